"""What vanished jobs left in a real etcd."""

from __future__ import annotations

from edl_agent.testing import EtcdServer
from edl_controller.agent_state import AgentStates
from edl_controller.agent_store import EtcdAccess
from edl_controller.prefix_sweeper import KEPT, PrefixSweeper
from tests.bench.clocks import FakeClock


def keys(server: EtcdServer) -> list[str]:
    return server.etcdctl("get", "/edl/jobs/", "--prefix", "--keys-only").split()


def test_keys_of_a_job_that_is_gone_for_long_are_removed_and_no_others() -> None:
    with EtcdServer() as server:
        for path in ("a/one/u1", "a/two/u2", "b/one/u3"):
            server.etcdctl("put", f"/edl/jobs/{path}/ps_desired", "1")
        clock, live, agents = FakeClock(), {"u1"}, AgentStates(workers=2)
        try:
            access = EtcdAccess((server.client_url,))
            sweeper = PrefixSweeper(agents, access, live.__contains__, ["a"], clock.monotonic)
            sweeper.look()
            clock.advance(KEPT - 1)
            live.clear()
            sweeper.look()
            live.add("u1")
            assert len(keys(server)) == 3
            clock.advance(2)
            sweeper.look()
            assert keys(server) == ["/edl/jobs/a/one/u1/ps_desired", "/edl/jobs/b/one/u3/ps_desired"]
            live.clear()
            sweeper.look()
            assert len(keys(server)) == 2, "it was seen alive since, so its time begins anew"
            clock.advance(KEPT + 1)
            sweeper.look()
            assert keys(server) == ["/edl/jobs/b/one/u3/ps_desired"], "another namespace is another controller's"
        finally:
            agents.close()
