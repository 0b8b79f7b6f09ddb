"""Nothing of the port that changes anything passes the fence of one who does not lead."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from edl_controller.api.configuration import ConfigMap
from edl_controller.api.kinds import CONFIG_MAPS
from edl_controller.api.meta import ObjectMeta
from edl_controller.api.v1 import TrainingJob
from edl_controller.api.workloads import Job, ReplicaSet
from edl_controller.cluster.port import Cluster
from edl_controller.errors import ClusterError, NotLeading
from edl_controller.runtime.fenced_cluster import FencedCluster
from tests.runtime.memory_cluster import MemoryCluster

META = ObjectMeta(name="a", namespace="ns")

WRITES: dict[str, Callable[[Cluster], Any]] = {
    "create": lambda cluster: cluster.create(ConfigMap(metadata=ObjectMeta(name="b", namespace="ns"))),
    "patch": lambda cluster: cluster.patch(CONFIG_MAPS, "ns", "a", {"data": {"x": "1"}}),
    "delete": lambda cluster: cluster.delete(CONFIG_MAPS, "ns", "a"),
    "create_job": lambda cluster: cluster.create_job(Job(metadata=ObjectMeta(name="b", namespace="ns"))),
    "create_replica_set": lambda cluster: cluster.create_replica_set(ReplicaSet(metadata=META)),
    "delete_replica_set": lambda cluster: cluster.delete_replica_set("ns", "a"),
    "delete_trainer_job": lambda cluster: cluster.delete_trainer_job("ns", "a"),
    "update_trainer_job": lambda cluster: cluster.update_trainer_job(Job(metadata=META)),
}
READS: dict[str, Callable[[Cluster], Any]] = {
    "get": lambda cluster: cluster.get(CONFIG_MAPS, "ns", "a"),
    "list": lambda cluster: cluster.list(CONFIG_MAPS, "ns", labels={}),
    "watch": lambda cluster: next(cluster.watch(CONFIG_MAPS, "ns", "0", _Never())),
    "get_replica_set": lambda cluster: cluster.get_replica_set("ns", "a"),
    "get_trainer_job": lambda cluster: cluster.get_trainer_job(TrainingJob(metadata=META)),
    "get_trainer_job_by_name": lambda cluster: cluster.get_trainer_job_by_name("ns", "a"),
    "job_pods": lambda cluster: cluster.job_pods(TrainingJob(metadata=META)),
    "inquiry_resource": lambda cluster: cluster.inquiry_resource(),
}


class _Never:
    def is_set(self) -> bool:
        return False

    def wait(self, timeout: float | None = None) -> bool:
        return False


def prepared() -> MemoryCluster:
    cluster = MemoryCluster()
    cluster.create(ConfigMap(metadata=META, data={"x": "0"}))
    return cluster


def test_the_tables_hold_every_call_of_the_port() -> None:
    calls = {name for name, _ in inspect.getmembers(Cluster, inspect.isfunction) if not name.startswith("_")}
    assert calls == {*WRITES, *READS}


@pytest.mark.fault("C4")
@pytest.mark.parametrize("call", WRITES)
def test_a_write_of_who_does_not_lead_is_refused_and_never_sent(call: str) -> None:
    cluster = prepared()
    sent = len(cluster.calls)
    with pytest.raises(NotLeading) as caught:
        WRITES[call](FencedCluster(cluster, lambda: False))
    assert isinstance(caught.value, ClusterError)
    assert len(cluster.calls) == sent


@pytest.mark.parametrize("call", WRITES)
def test_a_write_of_the_leader_reaches_the_cluster(call: str) -> None:
    assert _outcome(WRITES[call], FencedCluster(prepared(), lambda: True)) == _outcome(WRITES[call], prepared())


@pytest.mark.parametrize("call", READS)
def test_everybody_may_read(call: str) -> None:
    assert _outcome(READS[call], FencedCluster(prepared(), lambda: False)) == _outcome(READS[call], prepared())


def _outcome(call: Callable[[Cluster], Any], cluster: Cluster) -> str:
    """What came of it, without what differs between two clusters: an error's kind, or the answer's type."""
    try:
        return type(call(cluster)).__name__
    except ClusterError as error:
        return f"{type(error).__name__}: {error}"


def test_preconditions_and_options_pass() -> None:
    cluster = MemoryCluster()
    fenced = FencedCluster(cluster, lambda: True)
    made = fenced.create(ConfigMap(metadata=META)).metadata
    given: dict[str, Any] = {"uid": made.uid, "resource_version": made.resource_version}
    after = fenced.patch(CONFIG_MAPS, "ns", "a", {"data": {"x": "1"}}, **given)
    with pytest.raises(ClusterError):
        fenced.patch(CONFIG_MAPS, "ns", "a", {"data": {"x": "2"}}, **given)
    with pytest.raises(ClusterError):
        fenced.delete(CONFIG_MAPS, "ns", "a", **given)
    fenced.delete(CONFIG_MAPS, "ns", "a", uid=made.uid, resource_version=after.metadata.resource_version)
    assert not cluster.list(CONFIG_MAPS).items
