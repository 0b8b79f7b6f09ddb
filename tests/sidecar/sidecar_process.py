"""``edl-agent sidecar`` as a process of its own, and a plain client of its protocol."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage

from edl_agent.sidecar import wire
from edl_agent.testing import spawn_bound_to_parent
from tests.bench.secret_watch import WATCH

ROOT = Path(__file__).resolve().parents[2]
METHODS = [method.name for method in wire.service(wire.AGENT).methods]


class Caller:
    """Calls by the names of the description: ``caller.Get(key=b"/k")``; a stream is an iterator with ``cancel()``."""

    def __init__(self, target: str, **options: Any) -> None:
        credentials = options.pop("credentials", None)
        settings = list(options.pop("options", {"grpc.max_send_message_length": -1}.items()))
        if credentials is not None:
            self.channel = grpc.secure_channel(target, credentials, settings)
        else:
            self.channel = grpc.insecure_channel(target, settings)

    def raw(self, name: str, service: str = wire.AGENT) -> Any:
        """The call with bytes in and bytes out."""
        method = wire.service(service).methods_by_name[name]
        kind = self.channel.unary_stream if method.server_streaming else self.channel.unary_unary
        return kind(f"/{service}/{name}")

    def call(self, name: str, timeout: float | None = 10.0, **fields: Any) -> Any:
        """One call with these fields; of the health service by ``grpc.health.v1.Health/Check``."""
        service, _, name = name.rpartition("/")
        service = service or wire.AGENT
        method = wire.service(service).methods_by_name[name]
        kind: Any = self.channel.unary_stream if method.server_streaming else self.channel.unary_unary
        made = kind(
            f"/{service}/{name}",
            lambda request: request.SerializeToString(),
            wire.class_of(method.output_type).FromString,
        )
        if method.server_streaming and timeout == 10.0:
            timeout = None
        return made(wire.class_of(method.input_type)(**fields), timeout=timeout, wait_for_ready=False)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in METHODS:
            raise AttributeError(name)
        return lambda **fields: self.call(name, **fields)

    def close(self) -> None:
        self.channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Program(Caller):
    """A client that has attached."""

    def __init__(self, target: str, **options: Any) -> None:
        super().__init__(target, **options)
        self.life = self.call("Attach", program="test")
        self.attachment: str = next(self.life).attachment
        self.seen: list[Any] = []
        threading.Thread(target=self._read, name="test-attach", daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(grpc.RpcError):
            for answer in self.life:
                self.seen.append(answer.session)

    def own(self, name: str, **fields: Any) -> Any:
        """A call with the attachment."""
        return self.call(name, attachment=self.attachment, **fields)

    def register(self, port: int = 7164, **fields: Any) -> Any:
        """As a pserver; returns the session."""
        return self.own("Register", role="ROLE_PSERVER", port=port, **fields).session

    def detach(self) -> None:
        self.life.cancel()


class Refused:
    """What a failed call says."""

    def __init__(self, error: Any) -> None:
        self.code: str = error.code().name
        self.text: str = error.details()
        self.reason = self.may_have_been_applied = self.retryable = None
        for key, value in error.trailing_metadata() or ():
            if key == "grpc-status-details-bin":
                rich = wire.message("ErrorStatus").FromString(value)
                assert (rich.code, rich.message) == (error.code().value[0], self.text)
                [packed] = rich.details
                assert packed.type_url.endswith("/edl.agent.v1.ErrorDetail")
                assert AnyMessage.FromString(packed.SerializeToString()).TypeName() == "edl.agent.v1.ErrorDetail"
                detail = wire.message("ErrorDetail").FromString(packed.value)
                numbers = detail.DESCRIPTOR.fields_by_name["reason"].enum_type.values_by_number
                self.reason = numbers[detail.reason].name.removeprefix("ERROR_REASON_")
                self.may_have_been_applied = detail.may_have_been_applied
                self.retryable = detail.retryable


def refused(call: Callable[[], Any]) -> Refused:
    """Make the call (of a stream: take one answer), which must fail."""
    try:
        answer = call()
        if hasattr(answer, "cancel"):
            answer = next(answer)
    except grpc.RpcError as error:
        return Refused(error)
    raise AssertionError(f"not refused, but answered with {answer!r}")


class SidecarProcess:
    """``edl-agent sidecar`` in a folder; started by ``with``, killed at its end."""

    def __init__(
        self,
        endpoints: str,
        folder: Path,
        prefix: str,
        *arguments: str,
        ttl: float = 4.0,
        num_pservers: int | None = 1,
        name: str = "pod-0",
    ) -> None:
        self.folder = folder
        self.path = folder / "agent.sock"
        self.target = f"unix:{self.path}"
        self.argv = [sys.executable, "-m", "edl_agent", "sidecar", "--endpoints", endpoints, "--prefix", prefix]
        self.argv += ["--socket", str(self.path), "--host", "127.0.0.1", "--ttl", f"{ttl:g}", "--name", name]
        if num_pservers is not None:
            self.argv += ["--num-pservers", str(num_pservers)]
        self.argv += arguments
        self.listening: dict[str, Any] = {}
        self._process: subprocess.Popen[str] | None = None
        self._stderr: list[str] = []

    def start(self) -> Self:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        self._process = spawn_bound_to_parent(
            self.argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        stderr = self._process.stderr

        def read() -> None:
            for line in stderr:
                self._stderr.append(line)
                WATCH.hear(line, "what a sidecar said")

        self._reader = threading.Thread(target=read, name="test-stderr", daemon=True)
        self._reader.start()
        line = self._process.stdout.readline()
        if line:
            self.listening = json.loads(line)
        else:
            self.kill()
        return self

    @property
    def process(self) -> subprocess.Popen[str]:
        assert self._process is not None
        return self._process

    @property
    def stderr(self) -> str:
        return "".join(self._stderr)

    @property
    def resident(self) -> int:
        """Bytes in memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))) * 1024

    def file(self, name: str) -> Any:
        """One of the state files."""
        return json.loads((self.folder / name).read_text())

    def wait(self, timeout: float = 15.0) -> int:
        return self.process.wait(timeout)

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        if self._process is not None:
            if not self.listening and self._process.stdout is not None:
                self._process.wait(10)  # it ends by itself: its exit status is looked at
            self._process.kill()
            self._process.wait()
            self._reader.join(5)
            for pipe in (self._process.stdout, self._process.stderr):
                if pipe is not None:
                    pipe.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            print(self.stderr, file=sys.stderr)
        self.kill()


PROGRAM = """
import sys, threading
sys.path.insert(0, {root!r})
from tests.sidecar.sidecar_process import Program
program = Program(sys.argv[1])
session = program.register()
print(session.index, session.epoch, program.attachment, flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def program_process(target: str, wrapper: Sequence[str] = ()) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A registered program in a process of its own: ``(process, [index, epoch, attachment])``."""
    argv = [*wrapper, sys.executable, "-c", PROGRAM.format(root=str(ROOT)), target]
    process = spawn_bound_to_parent(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().split()
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def wait_for(answers: Any, wanted: Callable[[Any], bool], timeout: float = 10.0) -> Any:
    """The first answer of a stream that is wanted; the stream is cancelled when none comes in time."""
    timer = threading.Timer(timeout, answers.cancel)
    timer.start()
    began = time.monotonic()
    try:
        for answer in answers:
            if wanted(answer):
                return answer
    except grpc.RpcError as error:
        raise AssertionError(f"no such answer within {time.monotonic() - began:.1f} s: {error}") from error
    finally:
        timer.cancel()
    raise AssertionError("the stream ended")
