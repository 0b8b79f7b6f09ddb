"""Every parser of ours that sees bytes of others: what it may raise, and values that it takes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from edl_agent import errors as agent_errors
from edl_agent import keys as agent_keys
from edl_agent.checkpoints import layout
from edl_agent.cli.certificate_expiry import not_after
from edl_agent.drain_request import DrainRequest
from edl_agent.etcd.endpoints import parse_endpoints
from edl_agent.etcd.kv import KeyValue
from edl_agent.initialisation_rules import decode_data, decode_epochs
from edl_agent.report import Report
from edl_agent.sidecar import key_rules, wire
from edl_agent.sidecar.calls import reader
from edl_agent.sidecar.statuses import Refusal
from edl_agent.tasks import encoding, rules
from edl_controller.agent_reading import read_state
from edl_controller.api import kinds, quantity, submission, timestamps
from edl_controller.api.kinds import TRAINING_JOBS, UNREADABLE
from edl_controller.api.validation import validate
from edl_controller.cluster.kube import answers, watching
from edl_controller.cluster.kube.decode import WholeObjects
from edl_controller.cluster.kube.lean_pods import LeanPods
from edl_controller.errors import InvalidQuantity, InvalidTrainingJob, Unavailable

Parse = Callable[[bytes], object]


@dataclass(frozen=True)
class Parser:
    """One of them: what it may raise, and values that it takes, from which damaged ones are made."""

    parse: Parse
    raises: tuple[type[Exception], ...]
    good: tuple[bytes, ...] = field(default=(b"",))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


JOB = b"""{"apiVersion":"paddlepaddle.org/v1","kind":"TrainingJob","metadata":{"name":"j","resourceVersion":"7",
"annotations":{"a":"b"}},"spec":{"image":"i","port":7164,"fault_tolerant":true,"volumes":[{"name":"v","secret":{"a":[1]
}}],"trainer":{"entrypoint":"python t.py","min-instance":1,"max-instance":3,"resources":{"limits":{"cpu":"1"}}},
"env":[{"name":"A","value":"$(B)"}]},"status":{"phase":"running","conditions":[{"type":"Ready","status":"True"}]}}"""
POD = b"""{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","resourceVersion":"8","labels":{"a":"b"},
"ownerReferences":[{"kind":"Job","name":"j","uid":"u","controller":true}]},"spec":{"nodeName":"n","containers":[{"name":
"c","resources":{"requests":{"cpu":"100m","memory":"1Gi"}}}],"tolerations":[{"operator":"Exists"}]},"status":{"phase":
"Running","conditions":[{"type":"Ready","status":"True"}],"containerStatuses":[{"name":"c","restartCount":1,"state":{
"terminated":{"exitCode":1}}}]}}"""
STATUS = b"""{"kind":"Status","status":"Failure","message":"no","reason":"Expired","code":410,"details":{"causes":[{
"reason":"FieldValueInvalid","field":"metadata.uid"}],"retryAfterSeconds":3}}"""


def _line(obj: bytes, kind: bytes = b"MODIFIED") -> bytes:
    return b'{"type":"%s","object":%s}' % (kind, obj)


def _list(obj: bytes) -> bytes:
    return b'{"metadata":{"resourceVersion":"9","continue":"x"},"items":[%s,%s]}' % (obj, obj)


LINES = (
    *(_line(one, kind) for one in (JOB, POD) for kind in (b"ADDED", b"DELETED", b"BOOKMARK")),
    _line(STATUS, b"ERROR"),
)


def _watch_line(decoder: Any) -> Parse:
    def parse(data: bytes) -> object:
        line = watching._decoded(decoder, data, "/x")
        return watching._error(line.raw, "/x") if line.type == "ERROR" else line

    return parse


class _Answering:
    """A transport whose every answer is the same."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def request(self, *_: object, **__: object) -> bytes:
        return self.data


def _page(decoder: Any) -> Parse:
    return lambda data: watching._page(_Answering(data), "/x", {}, decoder)  # type: ignore[arg-type]


def _stored_job(data: bytes) -> object:
    job = TRAINING_JOBS.decode_marked(data)
    return UNREADABLE in job.metadata.annotations or validate(job)


class _Ranges:
    """An etcd that holds one value under every key of a job."""

    def __init__(self, data: bytes) -> None:
        self.data, self.revision = data, 1

    def txn(self, _: object, wanted: list[Any], *__: object) -> Any:
        self.ranges = tuple((KeyValue(self._key(op), self.data, 1, 2, 1, 3),) for op in wanted)
        return self

    def _key(self, op: Any) -> bytes:
        return bytes(op.request_range.key) + b"0"


def _agents(data: bytes) -> object:
    return read_state(_Ranges(data), agent_keys.KeySchema("/j"), 0.0)  # type: ignore[arg-type]


def _sidecar_request(data: bytes) -> object:
    return [read(data) for read in REQUESTS]  # each of them, whatever the bytes were meant for


def _sidecar_key(data: bytes) -> object:
    found = []
    for prefix, index, epoch in (("/j", 1, 5), ("/j", None, None), ("", None, None)):
        with contextlib.suppress(Refusal):
            found.append(key_rules.check_readable(data, prefix))
        with contextlib.suppress(Refusal):
            found.append(key_rules.check_writable(data, prefix, index, epoch))
    return found


REQUESTS = [reader(wire.class_of(method.input_type)) for method in wire.service(wire.AGENT).methods]


def _der(tag: int, *parts: bytes) -> bytes:
    inner = b"".join(parts)
    return bytes([tag, len(inner)]) + inner


CERTIFICATE = _der(
    0x30,
    _der(
        0x30,
        _der(0xA0, _der(2, b"\x02")),
        _der(2, b"\x01"),
        _der(0x30, b""),
        _der(0x30, b""),
        _der(0x30, _der(0x17, b"261001000000Z"), _der(0x17, b"361001000000Z")),
    ),
)
"""Version, serial, algorithm, issuer, validity: as far as it is read."""
UUID = "01234567-89ab-cdef-0123-456789abcdef"
MANIFEST = layout.Entry(index=1, shards=2, step=7, epoch=3, uuid=UUID, place="x.ckpt", size=4, crc32=9)
_DATASET = rules.Dataset(tasks=100, passes=2, chunk_size=10, max_failures=3, timeout=60.0)

PARSERS: dict[str, Parser] = {
    "quantity": Parser(
        lambda data: [call(_text(data)) for call in (quantity.parse, quantity.canonical, quantity.milli)],
        (InvalidQuantity,),
        (b"1500m", b"1.5Gi", b"2e3", b"9E", b"0.000000001", b"-7Ki"),
    ),
    "resource": Parser(lambda data: quantity.resource(_text(data)), (InvalidQuantity,), (b"1", b"100m")),
    "timestamp": Parser(lambda data: timestamps.parse(_text(data)), (ValueError,), (b"2026-11-30T12:00:00Z",)),
    "endpoints": Parser(
        lambda data: parse_endpoints(_text(data)),
        (agent_errors.ConfigurationError,),
        (b"http://a:1,http://b:2", b"https://[::1]:2379", b"etcd-0.etcd:2379"),
    ),
    "prefix": Parser(
        lambda data: agent_keys.KeySchema(_text(data)), (agent_errors.ConfigurationError,), (b"/edl/jobs/a/b/c",)
    ),
    "slot key": Parser(
        lambda data: agent_keys.KeySchema("/j").pservers.index(data), (), (b"/j/ps/0", b"/j/ps/12", b"/j/ps_desired")
    ),
    "desired": Parser(agent_keys.parse_desired, (agent_errors.InvalidDesiredCount,), (b"3", b"000000003", b" 3")),
    "task key": Parser(
        lambda data: encoding.TaskKeys(agent_keys.KeySchema("/j")).parse(data),
        (),
        (b"/j/edl/tasks/0/1", b"/j/edl/tasks/7/held/12"),
    ),
    "sidecar key": Parser(_sidecar_key, (), (b"/a", b"/ps/0", b"/checkpoints/1", b"/../x")),
    "sidecar request": Parser(
        _sidecar_request,
        (),
        (
            b"",
            b"\n\x02/a",
            wire.message("PutRequest")(key=b"/a", value=b"v").SerializeToString(),
            wire.message("ReportRequest")().SerializeToString(),
        ),
    ),
    "report": Parser(
        Report.decode,
        (),
        (Report("p", "pserver", slot=1, step=5, rate=1.5, drain="acked").encode(), b'{"v":1,"name":"x","time":1e308}'),
    ),
    "drain request": Parser(DrainRequest.decode, (), (DrainRequest("d", 9.5, "why", "uid").encode(),)),
    "what agents say": Parser(_agents, (), (b"10.0.0.1:7164", b"3", Report("p").encode())),
    "epochs": Parser(decode_epochs, (), (b'{"v":1,"epochs":{"0":5,"1":7}}',)),
    "pserver data": Parser(decode_data, (), (b'{"v":1,"epoch":5,"state":"restored"}',)),
    "dataset": Parser(encoding.decode_dataset, (agent_errors.ProtocolError,), (encoding.encode_dataset(_DATASET),)),
    "task state": Parser(
        encoding.decode_state,
        (agent_errors.ProtocolError,),
        (b'{"v":1,"dataset":"d","first":0,"end":2,"pass":1,"history":[[0,9,8,1,2,[3],"no"]]}',),
    ),
    "progress": Parser(
        lambda data: encoding.decode_progress(data, 1000),
        (agent_errors.ProtocolError,),
        (encoding.encode_progress(rules.Progress(1000, 9, {1: 2, 3: 1}, frozenset({5}), 4, True, "no")),),
    ),
    "runs": Parser(lambda data: encoding.from_runs(_text(data), 1000), (ValueError,), (b"0-4,7,9-11", b"0-999")),
    "holder": Parser(
        encoding.decode_holder,
        (agent_errors.ProtocolError,),
        (encoding.encode_holder(encoding.Holder("a", "q", 1.0)),),
    ),
    "saver": Parser(
        encoding.decode_saver, (agent_errors.ProtocolError,), (b'{"v":1,"pass":1,"token":"t","holder":"a","time":1.5}',)
    ),
    "specs": Parser(encoding.decode_specs, (agent_errors.ProtocolError,), (b'["a",{"b":1}]',)),
    "manifest": Parser(
        lambda data: layout.decode_manifest(MANIFEST.manifest, data), (ValueError,), (layout.encode_manifest(MANIFEST),)
    ),
    "manifest's name": Parser(
        lambda data: layout.parse_name(_text(data)), (), (MANIFEST.file.encode(), MANIFEST.manifest.encode())
    ),
    "checkpoint metadata": Parser(
        lambda data: layout.decode_metadata(1, data),
        (ValueError,),
        (layout.encode_metadata(MANIFEST, "/x"), b'{"uuid":"u","path":"s3://b/k","md5":"0","timestamp":"7"}'),
    ),
    "certificate": Parser(not_after, (ValueError,), (CERTIFICATE,)),
    "document": Parser(
        submission.read,
        (InvalidTrainingJob,),
        (JOB, b"apiVersion: paddlepaddle.org/v1\nkind: TrainingJob\nmetadata: {name: j}\nspec: &a {trainer: {x: *a}}"),
    ),
    "stored job": Parser(_stored_job, (msgspec.MsgspecError, UnicodeDecodeError), (JOB,)),
    "refusal": Parser(
        lambda data: str(answers.error_of(422, data, asked="GET /x", retry_after=_text(data)[:20])), (), (STATUS,)
    ),
    "watch of jobs": Parser(_watch_line(WholeObjects(TRAINING_JOBS)), (Unavailable,), LINES),
    "watch of pods": Parser(_watch_line(LeanPods()), (Unavailable,), LINES),
    "list of jobs": Parser(_page(WholeObjects(TRAINING_JOBS)), (Unavailable,), (_list(JOB), _list(POD))),
    "list of pods": Parser(_page(LeanPods()), (Unavailable,), (_list(POD), _list(JOB))),
    **{
        f"list of {kind.plural}, whole": Parser(_page(WholeObjects(kind)), (Unavailable,), (_list(POD), _list(JOB)))
        for kind in kinds.ALL
    },
}


def run(parser: Parser, data: bytes) -> object:
    """What it makes of them; an error that it may raise counts as an answer."""
    try:
        return parser.parse(data)
    except parser.raises as error:
        return error
