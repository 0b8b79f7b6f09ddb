"""Reports as they reach a real etcd: rarely, at once when it matters, under the lease, in order, never raising."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from edl_agent import ConfigurationError, EtcdClient
from edl_agent.drain import Drain
from edl_agent.report import Report
from edl_agent.reporting import Reporter
from tests.bench.clocks import FakeClock
from tests.bench.etcd_proxy import EtcdProxy
from tests.bench.tcp_proxy import TcpProxy
from tests.bench.waiting import eventually, never
from tests.conftest import SharedEtcd

HOST = "127.0.0.1"
Make = Callable[..., EtcdClient]


@pytest.fixture
def client_of(etcd: SharedEtcd, prefix: str) -> Iterator[Make]:
    made: list[EtcdClient] = []

    def make(endpoint: str = etcd.client_url, **options: Any) -> EtcdClient:
        settings: dict[str, Any] = {"prefix": prefix, "ttl": 3, "dial_timeout": 2.0} | options
        made.append(EtcdClient(endpoint, **settings))
        return made[-1]

    yield make
    for client in made:
        client.shutdown()


class Reports:
    """What etcd holds, read by a client of its own."""

    def __init__(self, client: EtcdClient, name: str) -> None:
        self._client, self._key = client, f"/edl/agents/{name}"

    def now(self) -> Report:
        value = self._client.get_key(self._key, timeout=5)
        assert value is not None, "no report yet"
        report = Report.decode(value)
        assert report is not None
        return report

    def pair(self) -> Any:
        [pair] = self._client.get_prefix(self._key)
        return pair


@pytest.fixture
def reports(client_of: Make) -> Reports:
    return Reports(client_of(), "me")


def test_report_is_written_under_the_lease_with_the_slot_and_goes_with_shutdown(
    client_of: Make, reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POD_UID", "uid-1")
    client = client_of(num_pservers=1)
    reporter = Reporter(client, role="pserver", name="me")
    client.register(7164, host=HOST, timeout=10)
    assert reporter.flush(5)
    report = reports.now()
    assert (report.role, report.slot, report.epoch, report.address, report.pod_uid, report.drain) == (
        *("pserver", 0, client.session.epoch, f"{HOST}:7164", "uid-1"),
        "none",
    )
    assert reports.pair().lease == client.session.lease_id
    assert abs(report.time - time.time()) < 30
    client.shutdown()
    assert client_of().get_key("/edl/agents/me", timeout=5) is None


def test_writes_are_as_rare_as_the_interval_and_there_are_none_at_rest(
    etcd_proxy: EtcdProxy, client_of: Make, reports: Reports
) -> None:
    client = client_of(etcd_proxy.endpoint)
    reporter = Reporter(client, role="trainer", name="me", interval=0.5)
    client.open(timeout=10)
    assert reporter.flush(5)
    etcd_proxy.clear()
    end = time.monotonic() + 2.0
    step = 0
    while time.monotonic() < end:
        step += 1
        reporter.update(step=step)
        time.sleep(0.005)
    eventually(lambda: reports.now().step == step, 3, "the last step in etcd")
    written = etcd_proxy.count("Txn")
    assert 3 <= written <= 6, written
    never(lambda: etcd_proxy.count("Txn") > written, 1.5, "a write at rest")


def test_update_is_cheap_and_passes_over_what_is_no_number(client_of: Make) -> None:
    client = client_of("127.0.0.1:1")  # nobody there
    reporter = Reporter(client, role="trainer", name="me")
    begun = time.perf_counter()
    for step in range(2000):
        reporter.update(step=step, samples=step * 64, busy=0.5, queue=3, checkpoint_age=1.0)
    assert time.perf_counter() - begun < 1.0  # 500 us each; it takes about 3
    for bad in (float("nan"), float("inf"), "x", object()):
        reporter.update(step=bad, samples=bad, busy=bad, queue=bad, checkpoint_age=bad)  # type: ignore[arg-type]
    report = reporter.report()
    assert (report.step, report.samples) == (1999, 1999 * 64)
    assert Report.decode(report.encode()) is not None


def test_rate_and_the_age_of_the_checkpoint_come_from_the_clock(client_of: Make) -> None:
    clock = FakeClock()
    reporter = Reporter(client_of("127.0.0.1:1", clock=clock), role="trainer", name="me")
    reporter.update(samples=0, checkpoint_age=10)
    for tick in range(1, 11):
        clock.advance(1)
        reporter.update(samples=tick * 64)
    assert reporter.report().rate == pytest.approx(64)
    assert reporter.report().checkpoint_age == pytest.approx(20)
    clock.advance(100)
    assert reporter.report().rate == 0
    assert reporter.report().checkpoint_age == pytest.approx(120)


def test_a_new_epoch_is_reported_at_once_under_the_new_lease(client_of: Make, reports: Reports) -> None:
    client = client_of(num_pservers=1)
    reporter = Reporter(client, role="pserver", name="me", interval=60)
    client.register(7164, host=HOST, timeout=10)
    assert reporter.flush(5)
    before = reports.pair()
    assert client_of().delete_key("/ps/0", timeout=5)  # the slot is lost, the client claims anew
    eventually(lambda: (client.session.epoch or 0) > before.mod_revision, 5, "a new epoch")
    eventually(lambda: reports.now().epoch == client.session.epoch, 2, "its report")
    assert reports.now().slot == 0
    assert reports.pair().lease == client.session.lease_id != before.lease


def test_report_comes_again_at_once_under_the_next_lease_of_a_session_without_a_slot(
    client_of: Make, reports: Reports, etcd: SharedEtcd
) -> None:
    client = client_of()
    reporter = Reporter(client, role="trainer", name="me", interval=60)
    client.open(timeout=10)
    reporter.update(step=7)
    assert reporter.flush(5)
    before = client.session.lease_id
    etcd.etcdctl("lease", "revoke", f"{before:x}")
    eventually(lambda: client.session.lease_id not in (None, before), 10, "the next lease")
    eventually(lambda: reports.now().step == 7, 2, "the report")
    assert reports.pair().lease == client.session.lease_id


def test_an_older_process_of_the_name_is_replaced(client_of: Make, reports: Reports) -> None:
    older, newer = client_of(), client_of()
    for client in (older, newer):
        client.open(timeout=10)
        reporter = Reporter(client, role="trainer", name="me", interval=60)
        assert reporter.flush(5)
    assert reports.pair().lease == newer.session.lease_id
    older.shutdown()
    assert reports.pair().lease == newer.session.lease_id


def test_outage_raises_nothing_is_logged_once_and_the_newest_numbers_follow(
    proxy: TcpProxy, client_of: Make, reports: Reports, caplog: pytest.LogCaptureFixture
) -> None:
    client = client_of(proxy.endpoint, ttl=10)
    reporter = Reporter(client, role="trainer", name="me", interval=0.2)
    client.open(timeout=10)
    reporter.update(step=1)
    assert reporter.flush(5)
    proxy.black_hole()
    end = time.monotonic() + 3
    step = 1
    while time.monotonic() < end:
        step += 1
        reporter.update(step=step)
        time.sleep(0.01)
    proxy.pass_all()
    eventually(lambda: reports.now().step == step, 10, "the last step")
    told = [record for record in caplog.records if "report was not written" in record.message]
    assert len([record for record in told if record.levelname == "WARNING"]) == 1


def test_report_whose_answer_was_lost_and_that_arrives_late_undoes_nothing(
    etcd_proxy: EtcdProxy, client_of: Make, reports: Reports
) -> None:
    client = client_of(etcd_proxy.endpoint, ttl=20)
    reporter = Reporter(client, role="trainer", name="me", interval=0.1)
    client.open(timeout=10)
    reporter.update(step=1)
    assert reporter.flush(5)
    held = etcd_proxy.hold("Txn")
    reporter.update(step=2)
    held.wait_held()
    reporter.update(step=3)
    eventually(lambda: reports.now().step == 3, 10, "the newer report, past the one that is held")
    held.release()
    held.wait_delivered()
    assert reports.now().step == 3
    reporter.update(step=4)
    eventually(lambda: reports.now().step == 4, 5, "the next one")


def test_report_of_an_ended_lease_that_arrives_late_is_refused(
    etcd_proxy: EtcdProxy, client_of: Make, reports: Reports
) -> None:
    client = client_of(etcd_proxy.endpoint)
    held = etcd_proxy.hold("Txn")
    reporter = Reporter(client, role="trainer", name="me", interval=0.1)
    client.open(timeout=10)
    reporter.update(step=1)
    held.wait_held()
    client.shutdown()
    held.release()
    held.wait_delivered()
    assert client_of().get_key("/edl/agents/me", timeout=5) is None


def test_name_and_interval_are_checked(client_of: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    client = client_of()
    for bad in ("a/b", "a b", "x" * 254):
        with pytest.raises(ConfigurationError):
            Reporter(client, role="trainer", name=bad)
    with pytest.raises(ConfigurationError, match="interval"):
        Reporter(client, role="trainer", interval=0)
    monkeypatch.setenv("POD_NAME", "digits-trainer-1")
    assert Reporter(client, role="trainer").name == "digits-trainer-1"


def test_drain_state_is_reported_at_once_whichever_was_made_first(client_of: Make, reports: Reports) -> None:
    for drain_first in (True, False):
        client = client_of()
        client.open(timeout=10)
        drain = Drain(client, "me") if drain_first else None
        reporter = Reporter(client, role="trainer", name="me", interval=60)
        drain = drain or Drain(client, "me")
        assert reporter.flush(5)
        drain.start("SIGTERM", 30)
        eventually(lambda: reports.now().drain == "requested", 2, "the request in the report")
        assert drain.acknowledge()
        eventually(lambda: reports.now().drain == "acked", 2, "the answer in the report")
        client.shutdown()


def test_no_thread_is_left_after_close(client_of: Make) -> None:
    client = client_of()
    client.open(timeout=10)
    with Reporter(client, role="trainer", name="me") as reporter:
        assert reporter.flush(5)
    eventually(lambda: not [t for t in threading.enumerate() if t.name == "edl-reporter"], 2, "its end")
    reporter.update(step=5)  # harmless
    reporter.close()
