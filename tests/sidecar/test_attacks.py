"""Fault A48 and report M58: nonsense, floods and slow readers are refused; the lease and the memory do not feel it."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from edl_agent.sidecar import wire
from edl_agent.sidecar.calls import WAITING
from edl_agent.sidecar.front import MOST_CONNECTIONS, PREFACE
from tests.bench.waiting import eventually
from tests.sidecar.sidecar_process import METHODS, Caller, Program, Refused, SidecarProcess, refused

MIB = 2**20
MOST_GROWTH = 50 * MIB


def door(sidecar: SidecarProcess) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(15)
    connection.connect(str(sidecar.path))
    return connection


def is_closed(connection: socket.socket) -> bool:
    """Whether the other side closes it, whatever it says before."""
    with contextlib.suppress(ConnectionError):
        while connection.recv(65536):
            pass
    return True


def has_ended(connection: socket.socket) -> bool:
    """Whether the other side has closed this one, which does not block."""
    try:
        while connection.recv(65536):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        pass
    return True


class Guarded:
    """A program with a slot, from before the attack to after it."""

    def __init__(self, sidecar: SidecarProcess) -> None:
        self.sidecar = sidecar
        self.program = Program(sidecar.target)
        self.before = self.program.register()
        self.program.Get(key=b"/warm")
        for _ in range(20):
            self.program.GetSession()
        self.memory = sidecar.resident
        self.most = self.memory
        self._stop = threading.Event()
        self._watch = threading.Thread(target=self._measure, name="test-memory")
        self._watch.start()

    def _measure(self) -> None:
        while not self._stop.wait(0.02):
            self.most = max(self.most, self.sidecar.resident)

    def check(self) -> None:
        """Served as before, under the same lease, in little more memory."""
        session = self.program.GetSession().session
        assert (session.index, session.epoch, session.lease) == (
            self.before.index,
            self.before.epoch,
            self.before.lease,
        )
        assert session.state == self.before.state
        assert session.deadline_monotonic > time.monotonic() + 1.0
        assert not [one for one in self.program.seen if one.epoch != self.before.epoch and one.HasField("index")]
        grown = self.most - self.memory
        assert grown < MOST_GROWTH, f"{grown / MIB:.1f} MiB more"

    def close(self) -> None:
        self._stop.set()
        self._watch.join()
        self.program.close()


@pytest.fixture
def guarded(sidecar_process: SidecarProcess) -> Iterator[Guarded]:
    guarded = Guarded(sidecar_process)
    yield guarded
    guarded.close()


@pytest.mark.fault("A48")
@pytest.mark.security(27)
def test_garbage_bytes(sidecar_process: SidecarProcess, guarded: Guarded) -> None:
    nonsense = [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"\0" * 100,
        os.urandom(MIB),
        PREFACE[:-1] + b"!",
        PREFACE + b"\xff" * 4096,
        PREFACE + os.urandom(MIB),
    ]
    for data in nonsense * 5:
        with door(sidecar_process) as connection:
            with contextlib.suppress(ConnectionError):
                connection.sendall(data)
            assert is_closed(connection)
    guarded.check()


@pytest.mark.fault("A48")
@pytest.mark.security(27)
def test_a_message_of_64_mib(sidecar_process: SidecarProcess, guarded: Guarded) -> None:
    put = {"attachment": guarded.program.attachment, "key": b"/x"}
    for _ in range(3):
        large = refused(lambda: guarded.program.Put(value=bytes(64 * MIB), **put))
        assert large.code == "RESOURCE_EXHAUSTED"
    # Just below our limit, above etcd's: refused by etcd, with the details; and no worker thread keeps what it took.
    for _ in range(30):
        assert refused(lambda: guarded.program.Put(value=bytes(3 * MIB), **put)).reason == "REQUEST_TOO_LARGE"
    guarded.check()


@pytest.mark.fault("A48")
@pytest.mark.security(27)
def test_a_thousand_idle_connections(sidecar_process: SidecarProcess, guarded: Guarded) -> None:
    idle = []
    try:
        for number in range(1000):
            idle.append(door(sidecar_process))
            if number % 2:
                idle[-1].sendall(PREFACE[: number % 20])
        # A new program gets in although the house is full: the silent ones are shown out first.
        with Caller(sidecar_process.target) as caller:
            assert caller.GetSession().session.index == 0
        guarded.check()
        fds = len(os.listdir(f"/proc/{sidecar_process.process.pid}/fd"))
        assert fds < MOST_CONNECTIONS + 100
        for connection in idle[:500]:
            assert is_closed(connection)
    finally:
        for connection in idle:
            connection.close()


@pytest.mark.fault("A48")
@pytest.mark.security(27)
def test_a_house_full_of_talking_connections(sidecar_process: SidecarProcess, guarded: Guarded) -> None:
    settings = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
    talking = []
    try:
        for _ in range(1000):
            connection = door(sidecar_process)
            talking.append(connection)
            with contextlib.suppress(ConnectionError):
                connection.sendall(PREFACE + settings)
        guarded.check()
        for connection in talking:
            connection.setblocking(False)
        eventually(lambda: sum(map(has_ended, talking)) >= 1000 - MOST_CONNECTIONS, 10.0, "the rest to be refused")
    finally:
        for connection in talking:
            connection.close()

    def served() -> bool:
        with Caller(sidecar_process.target) as caller, contextlib.suppress(grpc.RpcError):
            return caller.call("GetSession", timeout=2.0).session.index == 0
        return False

    eventually(served, 10.0, "room for a new program")


@pytest.mark.fault("A48")
@pytest.mark.security(27)
def test_silent_connections_are_shown_out_in_time(sidecar_process: SidecarProcess, guarded: Guarded) -> None:
    with door(sidecar_process) as connection:
        began = time.monotonic()
        connection.sendall(PREFACE[:5])
        assert is_closed(connection)
        assert 8 < time.monotonic() - began < 14
    guarded.check()


@pytest.mark.fault("A48")
@pytest.mark.security(27)
def test_slow_readers(sidecar_process: SidecarProcess, guarded: Guarded) -> None:
    """Streams that nobody reads, while there is much to tell; and a connection whose bytes nobody takes at all."""
    with Caller(sidecar_process.target) as slow:
        streams = [slow.call("WatchSession") for _ in range(15)] + [slow.call("WatchPservers") for _ in range(15)]
        for stream in streams:
            next(stream)
        with door(sidecar_process) as deaf:
            deaf.sendall(PREFACE + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
            ping = bytes([0, 0, 8, 6, 0, 0, 0, 0, 0]) + b"\0" * 8
            deaf.setblocking(False)
            with contextlib.suppress(OSError):
                for _ in range(20_000):  # each is to be answered
                    deaf.send(ping)
            for number in range(300):
                guarded.program.own("Report", step=number)
                guarded.program.StartDrain(reason=f"{number}" * 20, seconds=100 + number)
            guarded.check()
        for stream in streams:
            stream.cancel()
    guarded.check()


@pytest.mark.fault("A48")
@pytest.mark.security(27)
def test_more_calls_than_workers(sidecar_process: SidecarProcess, guarded: Guarded) -> None:
    with Caller(sidecar_process.target) as greedy:
        streams = [greedy.call("WatchDrain") for _ in range(90)]
        codes = [refused_stream(stream) for stream in streams]
        assert codes.count("") <= WAITING
        assert set(codes) <= {"", "RESOURCE_EXHAUSTED"}
        guarded.check()  # quick calls still have workers
        for stream in streams:
            stream.cancel()


def refused_stream(stream: Any) -> str:
    try:
        next(stream)
    except grpc.RpcError as error:
        return Refused(error).code
    return ""


@pytest.mark.fault("A48")
@pytest.mark.security(27)
def test_large_metadata(sidecar_process: SidecarProcess, guarded: Guarded) -> None:
    session = guarded.program.raw("GetSession")
    assert session(b"", metadata=(("x-small", "y" * 4000),), timeout=5)
    with pytest.raises(grpc.RpcError) as error:
        session(b"", metadata=(("x-large", "y" * 20_000),), timeout=5)
    assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    guarded.check()


@pytest.mark.fault("A48")
@pytest.mark.security(27)
def test_a_flood_of_pings(sidecar_process: SidecarProcess, guarded: Guarded) -> None:
    with door(sidecar_process) as connection:
        connection.sendall(PREFACE + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        ping = bytes([0, 0, 8, 6, 0, 0, 0, 0, 0]) + b"\0" * 8
        with contextlib.suppress(ConnectionError):
            for _ in range(1000):
                connection.sendall(ping * 10)
        assert is_closed(connection)  # GOAWAY: enhance your calm
    guarded.check()


# --- M58 ---


class Bomb:
    """Runs a command where it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return os.mkdir, (str(self._marker),)


@pytest.mark.report("M58")
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.security(19)
def test_pickles_are_refused_by_every_method(protocol: int, onlooker: Caller, tmp_path: Path) -> None:
    marker = tmp_path / "exploded"
    payload = pickle.dumps(Bomb(marker), protocol)
    for service, methods in ((wire.AGENT, METHODS), (wire.HEALTH, ["Check", "Watch"])):
        for method in methods:
            answer = refused(lambda method=method, service=service: onlooker.raw(method, service)(payload, timeout=5))  # type: ignore[misc]
            assert (answer.code, answer.reason) == ("INVALID_ARGUMENT", "MALFORMED_REQUEST"), method
    assert not marker.exists()
    pickle.loads(payload)
    assert marker.exists(), "the bomb would have gone off"


@pytest.mark.report("M58")
def test_a_request_with_a_field_of_another_version_is_refused_not_half_obeyed(onlooker: Caller) -> None:
    answer = refused(lambda: onlooker.raw("GetSession")(b"\xf8\x06\x01", timeout=5))  # field 111
    assert (answer.code, answer.reason) == ("INVALID_ARGUMENT", "MALFORMED_REQUEST")
    assert "111" in answer.text
