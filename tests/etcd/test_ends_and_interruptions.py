"""Calls that end early, clients that are dropped, processes that end: what is left in etcd, and what goes on."""

from __future__ import annotations

import gc
import math
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import pytest

from edl_agent import ClientClosed, ConfigurationError, DeadlineExceeded, EtcdClient, SessionState, Unavailable
from edl_agent.testing import EtcdServer
from tests.bench.etcd_proxy import EtcdProxy
from tests.bench.waiting import eventually, never
from tests.conftest import SharedEtcd

ROOT = Path(__file__).parents[2]


def make(etcd: SharedEtcd, prefix: str, **options: object) -> EtcdClient:
    settings = {"num_pservers": 2, "ttl": 4, "dial_timeout": 2, "host": "127.0.0.1", "prefix": prefix, **options}
    return EtcdClient(etcd.client_url, **settings)  # type: ignore[arg-type]


def test_a_second_register_that_times_out_leaves_the_new_claim_alone(tmp_path: Path) -> None:
    with EtcdServer(folder=tmp_path) as server, EtcdClient(server.client_url, 1, 1.0, 2.0, host="127.0.0.1") as client:
        client.register(7000)
        server.pause()
        eventually(lambda: client.session.state is SessionState.LOST, 5.0, "lost")
        with pytest.raises(DeadlineExceeded):
            client.register(7000, timeout=0.3)
        server.resume()
        eventually(lambda: client.session.index == 0, 8.0, "claimed again by itself")


def test_one_caller_that_gives_up_does_not_take_the_goal_from_another(etcd: SharedEtcd, prefix: str) -> None:
    with make(etcd, prefix, num_pservers=None) as client:
        outcome: list[object] = []
        other = threading.Thread(target=lambda: outcome.append(client.register(7000, timeout=15)))
        other.start()
        with pytest.raises(DeadlineExceeded):
            client.register(7000, timeout=0.3)
        client.put_key("/ps_desired", b"1")
        other.join(10)
        assert outcome == [0]


class Interrupted(Exception):
    pass


def test_an_exception_out_of_register_leaves_nothing_behind(etcd: SharedEtcd, prefix: str) -> None:
    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with make(etcd, prefix, num_pservers=None) as client:
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with pytest.raises(Interrupted):
                client.register(7000)
            client.put_key("/ps_desired", b"1")
            time.sleep(0.5)
            assert client.session.index is None
            assert client.get_prefix("/ps/") == []
            assert client.register(7000, timeout=5) == 0
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_call_left_by_a_signal_handler_costs_its_channel_and_not_the_lease(
    etcd: SharedEtcd, prefix: str, etcd_proxy: EtcdProxy
) -> None:
    """gRPC may hold the channel's lock for ever then: here whoever still uses that channel waits for ever."""

    def interrupt(*_: object) -> None:
        raise Interrupted

    for_ever = threading.Event()

    class Stuck:
        def __getattr__(self, name: str) -> object:
            for_ever.wait()
            raise RuntimeError(name)

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with EtcdClient(etcd_proxy.endpoint, 1, prefix=prefix, host="127.0.0.1", ttl=3, dial_timeout=2) as client:
            client.register(7000)
            lease = client.session.lease_id
            peer = client._connection.choice.pinned
            assert peer is not None
            held = etcd_proxy.hold("KV/Range")
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with pytest.raises(Interrupted):
                client.get_key("/k", timeout=20.0)
            peer._channel = peer._unary = Stuck()  # type: ignore[assignment]
            held.remove()
            never(lambda: client.session.state is SessionState.LOST, 4.5, "a lost lease")
            assert client.session.lease_id == lease
            assert client.get_key("/k", timeout=2.0) is None
    finally:
        for_ever.set()
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("missing", ["edl-keeper", "edl-registration"])
@pytest.mark.parametrize("again", [True, False])
def test_without_a_thread_to_be_had_register_says_so_and_leaves_nothing_half_open(
    etcd: SharedEtcd, prefix: str, monkeypatch: pytest.MonkeyPatch, missing: str, again: bool
) -> None:
    start = threading._start_new_thread  # type: ignore[attr-defined]

    def refuse(run: Any, arguments: tuple[Any, ...]) -> Any:
        if run.__self__.name == missing:
            raise RuntimeError("can't start new thread")
        return start(run, arguments)

    monkeypatch.setattr(threading, "_start_new_thread", refuse)
    with make(etcd, prefix) as client:
        threads = (client._keeper.thread, client._registration.thread)
        with pytest.raises(Unavailable, match="can't start new thread"):
            client.register(7000, timeout=5.0)
        assert client.session.state is SessionState.NEW
        assert client.get_prefix("/") == []
        monkeypatch.undo()
        if again:
            assert client.register(7000, timeout=5.0) == 0
    eventually(lambda: not any(thread.is_alive() for thread in threads), 3.0, "the end of its threads")
    with make(etcd, prefix) as client:
        assert client.get_prefix("/ps/") == []


@pytest.mark.parametrize("timeout", [math.inf, math.nan, 1e300, 1e10, "1", True], ids=str)
def test_a_timeout_that_cannot_be_meant_is_refused(etcd: SharedEtcd, prefix: str, timeout: float) -> None:
    with make(etcd, prefix) as client:
        for call in (
            lambda: client.register(7000, timeout=timeout),
            lambda: client.open(timeout=timeout),
            lambda: client.get_key("/k", timeout=timeout),
            lambda: client.put_key("/k", b"v", timeout=timeout),
            lambda: client.delete_key("/k", timeout=timeout),
            lambda: client.get_prefix("/k", timeout=timeout),
            lambda: client.watch_prefix("/k", timeout=timeout),
            lambda: client.compare_and_set("/k", b"v", guarded=False, timeout=timeout),
        ):
            with pytest.raises(ConfigurationError, match="timeout"):
                call()
        assert client.session.state is SessionState.NEW
        with pytest.raises(DeadlineExceeded):
            client.get_key("/k", timeout=-1)
        with pytest.raises(ConfigurationError, match="timeout"):
            client.get_key("/k", timeout=None)  # type: ignore[arg-type]


def test_what_stands_on_the_client_closes_while_etcd_is_there(etcd: SharedEtcd, prefix: str) -> None:
    client = make(etcd, prefix)
    client.register(7000)
    client.on_close(lambda: client.guarded_put("/last", b"words"))
    client.on_close(client.shutdown)  # no use, no harm
    begun = time.monotonic()
    client.shutdown()
    assert time.monotonic() - begun < 1.5
    with make(etcd, prefix) as other:
        assert other.get_key("/last") == b"words"
    with pytest.raises(ClientClosed):
        client.get_key("/last")


def test_a_close_callback_that_blocks_costs_its_time_only(etcd: SharedEtcd, prefix: str) -> None:
    client = make(etcd, prefix, dial_timeout=0.5)
    client.register(7000)
    forever = threading.Event()
    client.on_close(lambda: forever.wait(30))
    begun = time.monotonic()
    client.shutdown()
    assert time.monotonic() - begun < 4
    forever.set()
    with make(etcd, prefix) as other:
        assert other.get_prefix("/ps/") == []


def test_a_dropped_client_warns_and_frees_its_slot(etcd: SharedEtcd, prefix: str) -> None:
    client = make(etcd, prefix)
    client.register(7000)
    gone = weakref.ref(client)
    del client
    with pytest.warns(ResourceWarning, match="dropped without shutdown"):
        gc.collect()
    assert gone() is None
    with make(etcd, prefix) as other:
        eventually(lambda: other.get_prefix("/ps/") == [], 3.0, "the slot freed")


def run(body: str, etcd: SharedEtcd, prefix: str, signal_after: str | None = None) -> tuple[int, str]:
    """A program with a registered client `c`; SIGTERM once it has printed `signal_after`."""
    program = f"""
        import os, signal, sys, time
        from edl_agent import EtcdClient
        c = EtcdClient({etcd.client_url!r}, 2, 2.0, 20.0, prefix={prefix!r}, host="127.0.0.1")
        c.register(7000)
    """
    text = textwrap.dedent(program) + textwrap.dedent(body)
    process = subprocess.Popen(
        [sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        if signal_after is not None:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == signal_after
            time.sleep(0.2)
            os.kill(process.pid, signal.SIGTERM)
        _, stderr = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
    return process.returncode, stderr


@pytest.mark.parametrize(
    "body",
    [
        "signal.pause()",
        "while True: c.put_key('/loop', b'x')",
        "while c.session.state.value != 'closed': time.sleep(0.01)",
        "for event in c.watch_prefix('/nothing'): pass",
        "c.session.lost.wait()",
    ],
)
def test_a_stop_signal_frees_the_slot_before_it_ends_the_process(etcd: SharedEtcd, prefix: str, body: str) -> None:
    body = f"c.install_signal_handlers()\nprint('ready', flush=True)\n{body}\n"
    status, stderr = run(body, etcd, prefix, signal_after="ready")
    with make(etcd, prefix) as other:
        assert other.get_prefix("/ps/") == [], "the slot is still held"
    assert status == -signal.SIGTERM, stderr
    assert "Traceback" not in stderr


def test_a_process_that_ends_without_shutdown_frees_its_slot(etcd: SharedEtcd, prefix: str) -> None:
    assert run("", etcd, prefix) == (0, "")
    with make(etcd, prefix) as other:
        assert other.get_prefix("/ps/") == []


@pytest.mark.parametrize("call", ["put_key('/a', b'1', timeout=1)", "get_key('/a', timeout=1)", "shutdown()"])
def test_a_call_while_the_interpreter_ends_does_not_hang(etcd: SharedEtcd, prefix: str, call: str) -> None:
    body = f"""
        class Late:
            def __del__(self):
                try:
                    self.c.{call}
                except Exception as error:
                    os.write(2, type(error).__name__.encode())
        late = Late()
        late.c = c
    """
    status, stderr = run(body, etcd, prefix)
    assert (status, stderr) in ((0, "ClientClosed"), (0, ""))
