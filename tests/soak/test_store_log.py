"""The reader of etcd's history, against a real etcd and another client (etcdctl)."""

from __future__ import annotations

from edl_agent.testing import EtcdServer
from tests.soak.history import Slot, StoreChange
from tests.soak.store_log import StoreLog


def test_the_whole_history_is_read_back_in_commit_order() -> None:
    with EtcdServer() as etcd:
        log = StoreLog([etcd.endpoint])
        assert log.changes() == []
        log.put_desired(3)
        lease = int(etcd.etcdctl("lease", "grant", "60").split()[1], 16)
        etcd.etcdctl("put", f"--lease={lease:x}", "/ps/1", "10.0.0.1:7164")
        etcd.etcdctl("put", "/ps/0", "10.0.0.2:7164")
        etcd.etcdctl("put", "/soak/1", "one")
        assert log.granted_ttl(lease) == 60
        snapshot = log.snapshot()
        assert snapshot.at <= snapshot.done
        assert snapshot.desired == 3
        assert snapshot.slots == (Slot(0, "10.0.0.2:7164", 0, 4), Slot(1, "10.0.0.1:7164", lease, 3))
        etcd.etcdctl("lease", "revoke", f"{lease:x}")
        assert log.changes() == [
            StoreChange(2, "/ps_desired", "3"),
            StoreChange(3, "/ps/1", "10.0.0.1:7164", lease),
            StoreChange(4, "/ps/0", "10.0.0.2:7164"),
            StoreChange(5, "/soak/1", "one"),
            StoreChange(6, "/ps/1", None),
        ]
