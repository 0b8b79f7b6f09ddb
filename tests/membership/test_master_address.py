"""The master's address: under the lease, kept through a registration anew, watched, in step with the original's."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from edl_agent import EtcdClient, LeaseLost, RequestRefused
from edl_agent.master_address import put_master_address, watch_master_address
from tests.bench.tcp_proxy import TcpProxy
from tests.bench.waiting import eventually

Make = Callable[..., EtcdClient]


def test_address_is_told_and_goes_with_its_master(client_of: Make) -> None:
    master, reader = client_of(), client_of()
    told: list[str | None] = []
    with watch_master_address(reader, told.append) as watch:
        eventually(lambda: told == [None], 3, "there is none yet")
        master.open(timeout=10)
        put_master_address(master, "10.0.0.1:8080")
        eventually(lambda: told == [None, "10.0.0.1:8080"], 3)
        assert watch.address == "10.0.0.1:8080"
        assert watch.age < 5
        [pair] = reader.get_prefix("/master/addr")
        assert pair.lease == master.session.lease_id
        master.shutdown()
        eventually(lambda: told == [None, "10.0.0.1:8080", None], 3)
        assert watch.address is None


def test_stale_address_without_a_lease_is_replaced_a_live_ones_is_not(client_of: Make) -> None:
    first, second, reader = client_of(), client_of(), client_of()
    reader.put_key("/master/addr", b"10.0.0.9:8080", timeout=5)
    for client in (first, second):
        client.open(timeout=10)
    put_master_address(first, "10.0.0.1:8080")
    assert reader.get_key("/master/addr", timeout=5) == b"10.0.0.1:8080"
    with pytest.raises(RequestRefused, match="another process"):
        put_master_address(second, "10.0.0.2:8080")
    first.shutdown()
    put_master_address(second, "10.0.0.2:8080")
    assert reader.get_key("/master/addr", timeout=5) == b"10.0.0.2:8080"


def test_address_is_put_again_under_the_next_lease(proxy: TcpProxy, client_of: Make) -> None:
    master, reader = client_of(proxy.endpoint, ttl=2, dial_timeout=1.0), client_of()
    master.open(timeout=10)
    put_master_address(master, "10.0.0.1:8080")
    before = master.session.lease_id
    proxy.black_hole()
    eventually(lambda: reader.get_key("/master/addr", timeout=5) is None, 10, "the end of the lease")
    proxy.pass_all()
    eventually(lambda: reader.get_key("/master/addr", timeout=5) == b"10.0.0.1:8080", 10, "the address again")
    [pair] = reader.get_prefix("/master/addr")
    assert pair.lease == master.session.lease_id != before


def test_empty_value_of_the_originals_client_means_none(client_of: Make) -> None:
    reader = client_of()
    reader.put_key("/master/addr", b"", timeout=5)
    told: list[str | None] = []
    watch = watch_master_address(reader, told.append)
    eventually(lambda: told == [None], 3)
    assert watch.address is None


def test_without_a_session_nothing_is_put(client_of: Make) -> None:
    with pytest.raises(LeaseLost):
        put_master_address(client_of(), "10.0.0.1:8080")
