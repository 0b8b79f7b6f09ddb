"""The sidecar's calls: a read through to etcd against a direct one, a call from memory against an empty service.

The sidecar and the empty service are processes of their own, as they are in a pod; the caller is this one. The direct
read is the library's own (`EtcdClient.get_key`) over TCP to the same etcd.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc

from benchmarks.ground import Child, children, etcd_in_memory, say
from benchmarks.table import Row, ratio
from edl_agent import EtcdClient
from edl_agent.sidecar import wire

NAME = "sidecar"
VALUE = b"v" * 256


def run(quick: bool) -> Iterator[Row]:
    """Four rows."""
    pairs = 200 if quick else 4_000
    with (
        tempfile.TemporaryDirectory(prefix="edl-") as scratch,
        etcd_in_memory() as etcd,
        EtcdClient(etcd.client_url, prefix="/bench") as client,
    ):
        empty_socket, socket = f"{scratch}/empty.sock", f"{scratch}/run/agent.sock"
        empty, ours = Child("empty-service", empty_socket), Child("sidecar", etcd.client_url, socket)
        with children(empty, ours), _channel(empty_socket) as baseline, _channel(socket) as channel:
            empty.hear(), ours.hear()
            client.put_key("/read", VALUE, timeout=10.0)
            get, session, slot = _call(channel, "Get"), _call(channel, "GetSession"), _call(channel, "GetPservers")
            get_request, nothing = wire.message("GetRequest")(key=b"/read"), wire.message("GetSessionRequest")()
            assert get(get_request, timeout=10.0).value == VALUE
            say(f"{pairs} interleaved pairs each")
            note = f"p50 of {pairs} calls each, alternating"
            direct, through = _alternate(
                lambda: client.get_key("/read", timeout=10.0), lambda: get(get_request, timeout=10.0), pairs
            )
            what = "read of 256 B through the sidecar; baseline: the library"
            yield ratio(NAME, what, "us", direct, through, must=1.5, moonshot=1.15, note=note)
            echo = _call(baseline, "GetSession")
            limits = {"must": 1.3, "moonshot": 1.1}
            hop, cached = _alternate(lambda: echo(nothing, timeout=10.0), lambda: session(nothing, timeout=10.0), pairs)
            what = "GetSession from memory; baseline: the same call of an empty service"
            yield ratio(NAME, what, "us", hop, cached, note=note, **limits)
            what = "the read through the sidecar; baseline: direct read plus call of an empty service"
            yield ratio(NAME, what, "us", direct + hop, through, note="what two hops cost without anything in between")
            pservers = wire.message("GetPserversRequest")()
            same = _call(baseline, "GetPservers")
            yield ratio(
                NAME,
                "GetPservers from memory; baseline: the same call of an empty service",
                "us",
                *_alternate(lambda: same(pservers, timeout=10.0), lambda: slot(pservers, timeout=10.0), pairs),
                note=note,
                **limits,
            )


def _channel(socket: str) -> grpc.Channel:
    return grpc.insecure_channel(f"unix:{Path(socket)}")


def _call(channel: grpc.Channel, name: str) -> Any:
    method = wire.service(wire.AGENT).methods_by_name[name]
    write, read = wire.class_of(method.input_type).SerializeToString, wire.class_of(method.output_type).FromString
    return channel.unary_unary(f"/{wire.AGENT}/{name}", write, read)


def _alternate(baseline: Callable[[], object], ours: Callable[[], object], pairs: int) -> tuple[float, float]:
    """p50 in microseconds of both, calls taking turns, who goes first changing."""
    for _ in range(100):
        baseline(), ours()
    times: tuple[list[int], list[int]] = ([], [])
    clock = time.perf_counter_ns
    both = ((baseline, times[0]), (ours, times[1]))
    for number in range(pairs):
        for call, taken in both if number % 2 else both[::-1]:
            start = clock()
            call()
            taken.append(clock() - start)
    return statistics.median(times[0]) / 1e3, statistics.median(times[1]) / 1e3
