"""Get and Put reach the job's own keys and nothing else, whatever the key looks like."""

from __future__ import annotations

from collections.abc import Callable

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_agent import EtcdClient
from edl_agent.keys import KeySchema
from edl_agent.sidecar.key_rules import LONGEST_KEY, check_readable, check_writable
from edl_agent.sidecar.server import Sidecar, SidecarOptions
from edl_agent.sidecar.statuses import Refusal
from tests.conftest import SharedEtcd
from tests.sidecar.sidecar_process import Caller, Program, refused

Read = Callable[[str], str]

RESERVED = [
    b"/ps/0",
    b"/ps/1",
    b"/ps_desired",
    b"/ps",
    b"/PS/0",
    b"/trainer/0",
    b"/edl/agents/x",
    b"/edl/drain/x",
    b"/edl",
    b"/init_ps/done",
    b"/master/addr",
    b"/checkpoints/1",
    b"/checkpoints/00",
    b"/checkpoints/0/x",
]
BAD = [
    b"",
    b"x",
    b"ps/0",
    b"/",
    b"//ps/0",
    b"/x/../ps/0",
    b"/./ps/0",
    b"/x/",
    b"/x\0",
    b"/x\n/y",
    b"/" + b"k" * LONGEST_KEY,
]


@pytest.mark.parametrize("key", RESERVED + BAD)
@pytest.mark.security(29)
def test_reserved_and_bad_keys_are_not_written(key: bytes) -> None:
    with pytest.raises(Refusal) as error:
        check_writable(key, "/job", 0, 7)
    assert error.value.reason == "KEY_RESERVED"


@pytest.mark.parametrize("key", BAD)
@pytest.mark.security(29)
def test_bad_keys_are_not_read(key: bytes) -> None:
    for prefix in ("", "/job"):
        with pytest.raises(Refusal):
            check_readable(key, prefix)


@pytest.mark.security(29)
def test_own_checkpoint_only_and_with_the_epoch_only() -> None:
    assert check_writable(b"/checkpoints/3", "/job", 3, 7) == b"/checkpoints/3"
    assert check_writable(b"/checkpoints/3", "", 3, 7) == b"/checkpoints/3"
    for index, epoch in ((3, None), (None, 7), (2, 7), (33, 7)):
        with pytest.raises(Refusal):
            check_writable(b"/checkpoints/3", "/job", index, epoch)


@pytest.mark.security(29)
def test_without_a_prefix_only_classic_keys_are_read_and_none_is_written() -> None:
    for key in (b"/ps/0", b"/ps_desired", b"/init_ps/done", b"/checkpoints/0", b"/master/addr", b"/trainer/0"):
        assert check_readable(key, "") == key
    for key in (b"/registry/secrets/default/x", b"/x"):
        with pytest.raises(Refusal):
            check_readable(key, "")
        with pytest.raises(Refusal):
            check_writable(key, "", 0, 7)


@given(st.binary(max_size=60), st.one_of(st.none(), st.integers(0, 20)), st.one_of(st.none(), st.integers(1)))
@pytest.mark.security(29)
def test_whatever_the_key_is_a_write_stays_in_the_job_and_out_of_the_agents_keys(
    tail: bytes, index: int | None, epoch: int | None
) -> None:
    for key in (tail, b"/" + tail, b"/ps/" + tail, b"/checkpoints/" + tail, b"/edl" + tail):
        try:
            allowed = check_writable(key, "/edl/jobs/n/j/u", index, epoch)
        except Refusal:
            continue
        full = KeySchema("/edl/jobs/n/j/u").full(allowed)
        assert full == b"/edl/jobs/n/j/u" + key
        assert b"/../" not in full + b"/"
        first = key.split(b"/")[1].lower()
        assert not first.startswith((b"ps", b"trainer"))
        assert first not in (b"edl", b"init_ps", b"master")
        if first == b"checkpoints":
            assert key == b"/checkpoints/%d" % (index if index is not None else -1)
            assert epoch is not None


def test_get_and_put(program: Program, key_of: Read) -> None:
    assert not program.Get(key=b"/settings").found
    assert program.own("Put", key=b"/settings", value=b"\xff1").written
    answer = program.Get(key=b"/settings")
    assert (answer.found, answer.value) == (True, b"\xff1")
    assert not program.own("Put", key=b"/settings", value=b"2", expect_absent=True).written
    assert not program.own("Put", key=b"/settings", value=b"2", expected=b"other").written
    assert program.own("Put", key=b"/settings", value=b"2", expected=b"\xff1").written
    assert key_of("/settings") == "2"
    both = refused(lambda: program.own("Put", key=b"/settings", expected=b"2", expect_absent=True))
    assert both.code == "INVALID_ARGUMENT"


def test_a_put_with_the_lease_vanishes_with_the_program(program: Program, key_of: Read, onlooker: Caller) -> None:
    early = refused(lambda: program.own("Put", key=b"/me", value=b"1", with_lease=True))
    assert early.reason == "NOT_REGISTERED"
    program.register()
    assert program.own("Put", key=b"/me", value=b"1", with_lease=True).written
    assert key_of("/me") == "1"
    program.own("Shutdown")
    assert not onlooker.Get(key=b"/me").found


def test_a_put_with_an_epoch_is_fenced(program: Program, key_of: Read, etcd: SharedEtcd, prefix: str) -> None:
    session = program.register()
    assert program.own("Put", key=b"/checkpoints/0", value=b"{}", epoch=session.epoch).written
    assert key_of("/checkpoints/0") == "{}"
    old = refused(lambda: program.own("Put", key=b"/checkpoints/0", value=b"old", epoch=session.epoch - 1))
    assert (old.code, old.reason) == ("ABORTED", "LEASE_LOST")
    etcd.etcdctl("put", prefix + "/ps/0", "127.0.0.9:1")
    assert refused(lambda: program.own("Put", key=b"/y", value=b"old", epoch=session.epoch)).code == "ABORTED"
    assert key_of("/y") == ""


@pytest.mark.parametrize("key", RESERVED + BAD[:6])
@pytest.mark.security(29)
def test_no_reserved_key_changes_through_the_socket(
    key: bytes, program: Program, etcd: SharedEtcd, prefix: str
) -> None:
    session = program.register()
    before = etcd.etcdctl("get", "--prefix", prefix + "/")
    for more in ({}, {"epoch": session.epoch}, {"with_lease": True}):
        answer = refused(lambda more=more: program.own("Put", key=key, value=b"evil", **more))  # type: ignore[misc]
        assert (answer.code, answer.reason) == ("PERMISSION_DENIED", "KEY_RESERVED")
    after = etcd.etcdctl("get", "--prefix", prefix + "/")
    assert "evil" not in after
    assert before.count(prefix + "/ps") == after.count(prefix + "/ps")


def test_outages_are_told_by_name_and_within_the_deadline(
    folder: object, tmp_path_factory: pytest.TempPathFactory
) -> None:
    def make_client(num_pservers: int | None, host: str | None) -> EtcdClient:
        return EtcdClient("http://127.0.0.1:1", 1, prefix="/job", host="127.0.0.1", ttl=4.0, dial_timeout=1.0)

    with (
        Sidecar(make_client, SidecarOptions(f"{folder}/agent.sock")),
        Caller(f"unix:{folder}/agent.sock") as caller,
    ):
        answer = refused(lambda: caller.call("Get", key=b"/x", timeout=1.5))
        assert answer.code == "DEADLINE_EXCEEDED"
        answer = refused(lambda: caller.call("Get", key=b"/x", timeout=20.0))
        assert answer.reason in ("DEADLINE_EXCEEDED", "UNAVAILABLE")
        assert answer.retryable
        assert caller.GetSession().session.name
        assert refused(lambda: caller.GetPservers()).reason == "UNAVAILABLE"
    with pytest.raises(grpc.RpcError), Caller(f"unix:{folder}/agent.sock") as caller:
        caller.GetSession()
