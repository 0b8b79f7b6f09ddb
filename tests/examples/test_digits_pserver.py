"""The digits' pserver: answers for one index in one epoch, saves, restores, leaves."""

from __future__ import annotations

import argparse
import http.client
import json
import signal
import threading

import numpy as np
import pytest

from edl_agent import EtcdClient, Pserver
from edl_agent.checkpoints import CheckpointStore
from examples.digits import network, pserver, wire
from examples.digits.wire import Refused
from tests.bench.waiting import eventually
from tests.examples.digits_processes import TTL, Digits, digits, linked, seconds_to_end

__all__ = ["digits"]

FIRST = network.initial(1)
STEP = {name: np.ones_like(value) for name, value in FIRST.items()}


def trained(where: Pserver, steps: int) -> network.Parameters:
    """Initialise, push, pull."""
    with linked(where) as call:
        call("POST", "/parameters", wire.encode(FIRST))
        for _ in range(steps):
            call("POST", "/gradients", wire.encode(STEP))
        return wire.decode(call("GET", "/parameters"))


def same(one: network.Parameters, other: network.Parameters) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def test_answers_for_its_index_and_epoch_only(digits: Digits) -> None:
    where = digits.serving(digits.pserver())
    with linked(where) as call, pytest.raises(Refused, match="empty"):
        call("GET", "/parameters")
    now = trained(where, 2)
    for wrong in (
        Pserver(where.index, where.address, where.epoch - 1),
        Pserver(where.index, where.address, where.epoch + 1),
        Pserver(where.index + 1, where.address, where.epoch),
    ):
        for method, path, body in (
            ("GET", "/parameters", None),
            ("POST", "/gradients", wire.encode(STEP)),
            ("POST", "/parameters", wire.encode(FIRST)),
        ):
            with linked(wrong) as call, pytest.raises(Refused, match="is not here"):
                call(method, path, body)
    host, _, port = where.address.rpartition(":")
    plain = http.client.HTTPConnection(host, int(port), timeout=5)
    try:
        plain.request("POST", "/gradients", wire.encode(STEP))  # says neither index nor epoch
        assert plain.getresponse().status == wire.REFUSED
    finally:
        plain.close()
    with linked(where) as call:
        assert same(wire.decode(call("GET", "/parameters")), now)


def test_nonsense_changes_nothing(digits: Digits) -> None:
    where = digits.serving(digits.pserver())
    now = trained(where, 1)
    nan = {**STEP, "hidden/bias": np.full_like(STEP["hidden/bias"], np.nan)}
    for path, body in (
        ("/gradients", b"nonsense"),
        ("/gradients", wire.encode(nan)),
        ("/gradients", wire.encode({name: STEP[name] for name in list(STEP)[:-1]})),
        ("/gradients", wire.encode({name: value.reshape(-1) for name, value in STEP.items()})),
        ("/elsewhere", wire.encode(STEP)),
    ):
        with linked(where) as call, pytest.raises(ValueError, match="400"):
            call("POST", path, body)
    with linked(where) as call:
        with pytest.raises(Refused):  # it has been trained: to begin anew would throw that away
            call("POST", "/parameters", wire.encode(FIRST))
        assert same(wire.decode(call("GET", "/parameters")), now)


def test_asked_to_go_it_saves_and_frees_its_slot_at_once(digits: Digits) -> None:
    process = digits.pserver()
    now = trained(digits.serving(process), 3)
    assert seconds_to_end(process) < 2.0
    assert digits.slot() is None
    found = CheckpointStore(None, digits.folder, 0, shards=1).restore()
    assert found is not None
    assert found.step == 3
    with found.open() as file:
        assert same(wire.decode(file.read()), now)
    # Saved with the slot in hand: etcd names it.
    assert json.loads(digits.client.get_key("/checkpoints/0") or b"{}")["step"] == 3


def test_killed_its_successor_restores_and_has_a_higher_epoch(digits: Digits) -> None:
    first = digits.pserver(every=0.1)
    where = digits.serving(first)
    now = trained(where, 4)
    eventually(lambda: json.loads(digits.client.get_key("/checkpoints/0") or b"{}").get("step") == 4, 10.0)
    first.kill()
    second = digits.pserver("pserver-b")
    digits.said(second, "restored step 4$")
    after = digits.serving(second)
    assert after.epoch > where.epoch
    with linked(after) as call:
        assert same(wire.decode(call("GET", "/parameters")), now)
    with linked(Pserver(0, after.address, where.epoch)) as call, pytest.raises(Refused):
        call("POST", "/gradients", wire.encode(STEP))


def test_a_pserver_that_was_paused_too_long_refuses_the_next_call(digits: Digits) -> None:
    process = digits.pserver(every=0.1)
    where = digits.serving(process)
    trained(where, 2)
    eventually(lambda: json.loads(digits.client.get_key("/checkpoints/0") or b"{}").get("step") == 2, 10.0)
    process.popen.send_signal(signal.SIGSTOP)
    eventually(lambda: digits.slot() is None, TTL + 10.0, "end of the paused one's lease")
    with linked(where) as call:
        # The call waits at the socket before the process goes on: it is among the first things that it sees.
        waker = threading.Timer(0.3, process.popen.send_signal, [signal.SIGCONT])
        waker.start()
        with pytest.raises(Refused):
            call("POST", "/gradients", wire.encode(STEP))
        waker.join()
    # It comes back by itself, with what it had saved.
    digits.said(process, "stops serving|restored step 2$")
    after = digits.held()
    assert after.epoch > where.epoch
    digits.said(process, f"^pserver 0 epoch {after.epoch}: restored step 2$")


def test_refuses_from_the_loss_on_even_before_its_loop_has_seen_it(digits: Digits) -> None:
    with EtcdClient(digits.url, 1, prefix=digits.prefix, host="127.0.0.1", ttl=TTL, reclaim="never") as client:
        index, epoch = client.register(7164, timeout=20.0), client.session.epoch
        assert epoch is not None
        here = pserver.Pserver(client, argparse.Namespace())
        here._shard = pserver.Shard(index, epoch, CheckpointStore(client, digits.folder, index), 0.1)
        calls = [
            wire.Call("POST /parameters", str(index), str(epoch), wire.encode(FIRST)),
            wire.Call("POST /gradients", str(index), str(epoch), wire.encode(STEP)),
            wire.Call("GET /parameters", str(index), str(epoch), b""),
        ]
        for call in calls:
            here.answer(call)
        digits.client.delete_key("/ps/0")
        eventually(lambda: client.session.epoch is None, 10.0, "the loss is known")
        for call in calls:
            with pytest.raises(Refused, match="is not here"):
                here.answer(call)


def test_a_slot_key_deleted_by_hand_ends_the_serving(digits: Digits) -> None:
    process = digits.pserver(every=0.1)
    where = digits.serving(process)
    digits.client.delete_key("/ps/0")
    digits.said(process, "^pserver stops serving|^Lost pserver 0")
    after = digits.held()
    assert after.epoch > where.epoch
    digits.said(process, f"^pserver 0 epoch {after.epoch}: empty$")


def test_a_newer_process_with_its_address_ends_it(digits: Digits) -> None:
    process = digits.pserver()
    where = digits.serving(process)
    host, _, port = where.address.rpartition(":")
    with EtcdClient(digits.url, prefix=digits.prefix, host=host) as newer:
        newer.register(int(port), timeout=20.0)
        assert process.wait(20.0) == 1, process.lines
    assert process.said("^pserver ends: ")
