"""What goes wrong between a controller and the API server, and that it does no harm (rows K1 to K7, K22, K38)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edl_controller.api.configuration import ConfigMap
from edl_controller.api.kinds import CONFIG_MAPS, JOBS, PODS
from edl_controller.api.meta import ObjectMeta
from edl_controller.api.pods import Container, PodSpec, PodTemplateSpec
from edl_controller.api.workloads import Job, JobSpec
from edl_controller.cluster.kube import KubeCluster, kubeconfig, watching
from edl_controller.core.actions import Create
from edl_controller.errors import AlreadyExists, Conflict, Forbidden, Gone, Unavailable
from edl_controller.runtime.apply_actions import ActionApplier, StaleDecision
from edl_controller.runtime.informer import Informer
from edl_controller.runtime.informers import Informers
from edl_controller.runtime.reflector import Delta
from tests.bench.kube_control_plane import KubeControlPlane
from tests.bench.kube_proxy import KubeProxy, kubeconfig_for
from tests.bench.waiting import eventually, never

Follow = Callable[..., "Following"]


class Following:
    """An informer of one namespace's ConfigMaps in its thread, and all it told."""

    def __init__(self, cluster: KubeCluster, namespace: str, kind: Any = CONFIG_MAPS) -> None:
        self.informer: Informer[Any] = Informer(cluster, kind, namespaces=[namespace], resync=0)
        self.deltas: list[Delta[Any]] = []
        self.informer.add_handler(self.deltas.append)
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.informer.run, args=(self.stop,), name="edl-test-follow")
        self.thread.start()

    def told(self) -> list[tuple[str, str]]:
        return [(one.type, one.obj.metadata.name) for one in self.deltas if one.obj.metadata.name.startswith("t-")]

    def wait_told(self, *wanted: tuple[str, str], timeout: float = 15.0) -> None:
        eventually(lambda: set(wanted) <= set(self.told()), timeout, f"{wanted}, told: {self.told()}")

    def close(self) -> None:
        self.stop.set()
        self.thread.join(10)
        assert not self.thread.is_alive()


@pytest.fixture
def follow(cluster: KubeCluster, namespace: str) -> Iterator[Follow]:
    made: list[Following] = []

    def start(of: KubeCluster = cluster, where: str = namespace, **options: Any) -> Following:
        made.append(Following(of, where, **options))
        return made[-1]

    yield start
    for one in made:
        one.close()


def config_map(namespace: str, name: str, **data: str) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name=name, namespace=namespace), data=data)


def job(namespace: str, name: str) -> Job:
    spec = PodSpec(containers=(Container(name="c", image="i"),), restart_policy="Never")
    return Job(
        metadata=ObjectMeta(name=name, namespace=namespace),
        spec=JobSpec(parallelism=0, template=PodTemplateSpec(spec=spec)),
    )


class Direct:
    """Changes behind the proxy's back."""

    def __init__(self, control_plane: KubeControlPlane, namespace: str) -> None:
        self._client = control_plane.client
        self._path = f"/api/v1/namespaces/{namespace}/configmaps"

    def put(self, name: str, **data: str) -> None:
        if self._client.call("POST", self._path, {"metadata": {"name": name}, "data": data}).status == 409:
            self._client.patch(f"{self._path}/{name}", {"data": data})

    def delete(self, name: str) -> None:
        self._client.delete(f"{self._path}/{name}")


@pytest.fixture
def direct(control_plane: KubeControlPlane, namespace: str) -> Direct:
    return Direct(control_plane, namespace)


@pytest.mark.fault("K1")
def test_a_restarted_api_server_costs_nothing_but_the_time_it_is_away(tmp_path: Path) -> None:
    with KubeControlPlane(tmp_path / "plane") as plane, KubeCluster(kubeconfig(plane.kubeconfig)) as cluster:
        cluster.create(config_map("default", "t-before"))
        following = Following(cluster, "default")
        try:
            following.wait_told(("added", "t-before"))
            plane.apiserver.kill()
            with pytest.raises(Unavailable):
                cluster.create(config_map("default", "t-lost"))
            plane.apiserver.start()
            started = time.monotonic()
            eventually(lambda: _creates(cluster, "t-after"), 30, "a write")
            following.wait_told(("added", "t-after"), timeout=30)
            assert time.monotonic() - started < 30
            assert following.told().count(("added", "t-before")) == 1
            assert ("deleted", "t-before") not in following.told()
        finally:
            following.close()


def _creates(cluster: KubeCluster, name: str) -> bool:
    try:
        cluster.create(config_map("default", name))
    except AlreadyExists:
        return True
    except Unavailable:
        return False
    return True


@pytest.mark.fault("K2")
def test_a_watch_that_has_fallen_behind_tells_the_differences_alone(
    kube_proxy: KubeProxy, direct: Direct, follow: Follow
) -> None:
    for name in ("t-same", "t-changed", "t-gone"):
        direct.put(name, x="1")
    following = follow()
    following.wait_told(("added", "t-same"), ("added", "t-changed"), ("added", "t-gone"))
    following.deltas.clear()
    lists = kube_proxy.hold("list", "configmaps")
    kube_proxy.error_event("configmaps", 410, reason="Expired", message="too old resource version: 1 (2)")
    lists.wait_fired()
    direct.put("t-changed", x="2")
    direct.delete("t-gone")
    direct.put("t-new")
    lists.remove()
    following.wait_told(("updated", "t-changed"), ("deleted", "t-gone"), ("added", "t-new"))
    assert sorted(following.told()) == [("added", "t-new"), ("deleted", "t-gone"), ("updated", "t-changed")]


@pytest.mark.fault("K2")
def test_a_list_whose_next_page_is_too_old_is_read_whole(
    cluster: KubeCluster, namespace: str, direct: Direct, kube_proxy: KubeProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "PAGE", 2)
    for number in range(5):
        direct.put(f"t-{number}")
    rule = kube_proxy.fail(410, "list", "configmaps", reason="Expired", when=lambda call: "continue" in call.query)
    names = [one.metadata.name for one in cluster.list(CONFIG_MAPS, namespace).items]
    assert rule.fired == 1
    assert [name for name in names if name.startswith("t-")] == [f"t-{number}" for number in range(5)]
    assert len(names) == len(set(names))
    queries = [call.query for call in kube_proxy.calls("list", "configmaps")]
    assert [("limit" in one, "continue" in one) for one in queries] == [(True, False), (True, True), (False, False)]


@pytest.mark.fault("K2")
def test_a_long_list_comes_in_pages_of_one_moment(
    cluster: KubeCluster, namespace: str, direct: Direct, kube_proxy: KubeProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "PAGE", 2)
    for number in range(5):
        direct.put(f"t-{number}")
    second = kube_proxy.hold("list", "configmaps", when=lambda call: "continue" in call.query)
    listings: list[Any] = []
    reading = threading.Thread(target=lambda: listings.append(cluster.list(CONFIG_MAPS, namespace)))
    reading.start()
    second.wait_fired()
    direct.put("t-9")  # later than the first page
    second.remove()
    reading.join(10)
    assert "t-9" not in [one.metadata.name for one in listings[0].items]
    changes = cluster.watch(CONFIG_MAPS, namespace, listings[0].resource_version, threading.Event())
    change = next(change for change in changes if change.obj is not None)
    assert (change.type, change.obj.metadata.name if change.obj else "") == ("ADDED", "t-9")


@pytest.mark.fault("K3")
def test_a_silent_watch_is_given_up_and_taken_up_where_it_was(
    connect: Callable[..., KubeCluster], namespace: str, direct: Direct, kube_proxy: KubeProxy
) -> None:
    cluster = connect(silence=1.0)
    version = cluster.list(CONFIG_MAPS, namespace).resource_version
    changes = cluster.watch(CONFIG_MAPS, namespace, version, threading.Event())
    direct.put("t-1")
    change = next(change for change in changes if change.obj is not None)
    assert change.obj is not None
    kube_proxy.stall_open("configmaps")
    direct.put("t-2")
    begin = time.monotonic()
    with pytest.raises(Unavailable):
        next(changes)
    assert 0.5 < time.monotonic() - begin < 5
    changes = cluster.watch(CONFIG_MAPS, namespace, change.resource_version, threading.Event())
    resumed = next(one for one in changes if one.obj is not None)
    assert resumed.obj is not None
    assert resumed.obj.metadata.name == "t-2"


DAMAGES: dict[str, Callable[[KubeProxy], Any]] = {
    "half a line": lambda proxy: proxy.cut_answer("watch", "configmaps", times=None),
    "no UTF-8": lambda proxy: proxy.inject("configmaps", b'{"type":"ADDED","object":{"a":"\xff\xfe"}}\n', times=None),
    "a cut character": lambda proxy: proxy.inject("configmaps", '{"type":"é'.encode()[:-1], times=None),
    "no JSON": lambda proxy: proxy.inject("configmaps", b"<html>\n", times=None),
    "ERROR 500": lambda proxy: proxy.inject("configmaps", _error_500(), times=None),
    "the end at once": lambda proxy: proxy.end_watches("configmaps", times=None),
    "a bookmark, then the end": lambda proxy: proxy.inject("configmaps", _bookmark(proxy), times=None),
    "refusals": lambda proxy: proxy.fail(500, "watch", "configmaps", times=None),
}


def _error_500() -> bytes:
    return b'{"type":"ERROR","object":{"kind":"Status","code":500,"message":"etcdserver: no leader"}}\n'


def _bookmark(proxy: KubeProxy) -> bytes:
    """Of where the watch is: no news."""
    version = proxy.calls("watch", "configmaps")[-1].query["resourceVersion"]
    return f'{{"type":"BOOKMARK","object":{{"metadata":{{"resourceVersion":"{version}"}}}}}}\n'.encode()


@pytest.mark.fault("K4")
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_watch_is_no_hot_loop_and_misses_nothing(
    damage: str, kube_proxy: KubeProxy, direct: Direct, follow: Follow
) -> None:
    direct.put("t-1")
    following = follow()
    following.wait_told(("added", "t-1"))
    before = len(kube_proxy.calls("*", "configmaps"))
    begin = time.monotonic()
    rule = DAMAGES[damage](kube_proxy)
    if damage == "refusals":
        kube_proxy.end_watches("configmaps")
    direct.put("t-2")
    time.sleep(1.0)
    requests = [call for call in kube_proxy.calls("*", "configmaps")[before:] if call.time < begin + 1.0]
    assert len(requests) < 3, [(call.verb, call.query) for call in requests]
    rule.remove()
    following.wait_told(("added", "t-2"))
    assert following.told().count(("added", "t-2")) == 1


@pytest.mark.fault("K5")
def test_too_many_requests_wait_as_long_as_they_are_told_and_others_go_on(
    cluster: KubeCluster, kube_proxy: KubeProxy, direct: Direct, follow: Follow, namespace: str
) -> None:
    rule = kube_proxy.fail(429, "list", "configmaps", retry_after=3, reason="TooManyRequests")
    begin = time.monotonic()
    following = follow()
    rule.wait_fired()
    others = follow(kind=JOBS)
    direct.put("t-1")
    assert others.informer.wait_synced(2.0)
    following.wait_told(("added", "t-1"))
    first, second = (call.time for call in kube_proxy.calls("list", "configmaps"))
    assert second - first >= 3.0
    assert time.monotonic() - begin < 12
    kube_proxy.fail(429, "create", "jobs", retry_after=7)
    with pytest.raises(Unavailable) as caught:
        cluster.create(job(namespace, "busy"))
    assert caught.value.retry_after == 7.0


@pytest.mark.fault("K6")
def test_a_patch_of_what_has_changed_meanwhile_is_refused_and_the_other_change_stays(
    cluster: KubeCluster, namespace: str, direct: Direct
) -> None:
    before = cluster.create(config_map(namespace, "t", x="1"))
    direct.put("t", user="wish")
    meta = before.metadata
    with pytest.raises(Conflict):
        cluster.patch(CONFIG_MAPS, namespace, "t", {"data": {"x": "2"}}, resource_version=meta.resource_version)
    with pytest.raises(Conflict):  # the API server says 422 here
        cluster.patch(CONFIG_MAPS, namespace, "t", {"data": {"x": "2"}}, uid="another")
    assert cluster.get(CONFIG_MAPS, namespace, "t").data == {"x": "1", "user": "wish"}
    after = cluster.patch(CONFIG_MAPS, namespace, "t", {"data": {"x": "2"}}, uid=meta.uid)
    assert after.data == {"x": "2", "user": "wish"}


@pytest.mark.fault("K7")
def test_a_lost_answer_of_a_create_makes_no_second_child(
    cluster: KubeCluster, namespace: str, kube_proxy: KubeProxy
) -> None:
    lost = kube_proxy.lose_answer("create", "jobs")
    informers = Informers(cluster)
    jobs = informers.of(JOBS)
    applier = ActionApplier(cluster, informers, time.time)
    child, owner = job(namespace, "child"), config_map(namespace, "owner")
    with pytest.raises(Unavailable):
        applier.apply([Create(child)], owner)
    assert lost.fired == 1
    with pytest.raises(StaleDecision):
        applier.apply([Create(child)], owner)
    (write,) = kube_proxy.writes("jobs")
    assert not write.delivered
    known = jobs.cache.get(namespace, "child")
    assert known is not None
    assert known.metadata.uid == cluster.get(JOBS, namespace, "child").metadata.uid


@pytest.mark.fault("K22")
def test_what_is_forbidden_is_said_and_works_once_it_is_granted(
    control_plane: KubeControlPlane, kube_proxy: KubeProxy, namespace: str, tmp_path: Path
) -> None:
    client = control_plane.client
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    token = client.post(f"{accounts}/default/token", {"spec": {"expirationSeconds": 600}})["status"]["token"]
    with KubeCluster(kubeconfig(kubeconfig_for(kube_proxy, tmp_path, token))) as weak:
        with pytest.raises(Forbidden, match="cannot list resource"):
            weak.list(CONFIG_MAPS, namespace)
        with pytest.raises(Forbidden):
            next(weak.watch(CONFIG_MAPS, namespace, "1", threading.Event()))
        rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
        rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}]
        client.post(f"{rbac}/roles", {"metadata": {"name": "r"}, "rules": rules})
        subject = {"kind": "ServiceAccount", "name": "default", "namespace": namespace}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"}
        client.post(f"{rbac}/rolebindings", {"metadata": {"name": "b"}, "subjects": [subject], "roleRef": role})
        eventually(lambda: _may_list(weak, namespace), 20, "the grant")


def _may_list(cluster: KubeCluster, namespace: str) -> bool:
    try:
        cluster.list(CONFIG_MAPS, namespace)
    except Forbidden:
        return False
    return True


@pytest.mark.fault("K38")
@pytest.mark.parametrize("lean", [False, True])
def test_nulls_unknown_fields_and_new_words_are_read(
    connect: Callable[..., KubeCluster], namespace: str, kube_proxy: KubeProxy, lean: bool
) -> None:
    cluster = connect(lean_pods=lean)
    item = (
        b'{"metadata":{"name":"p","namespace":"n","labels":null,"ownerReferences":null,"finalizers":null,'
        b'"resourceVersion":"5"},"spec":{"containers":[{"name":"c","resources":null,"ports":null}],"tolerations":null,'
        b'"initContainers":null,"new":{"a":[1]}},"status":{"phase":"Sleeping","conditions":null,"podIP":null}}'
    )
    kube_proxy.rewrite("list", "pods", lambda _: b'{"items":[' + item + b'],"metadata":{"resourceVersion":"5"}}')
    (pod,) = cluster.list(PODS, namespace).items
    assert (pod.status.phase, pod.spec.containers[0].name, pod.metadata.labels) == ("Sleeping", "c", {})
    stop = threading.Event()
    lines = b'{"type":"NEWTYPE","object":{}}\n{"type":"MODIFIED","object":' + item + b"}\n"
    kube_proxy.inject("pods", lines)
    version = cluster.list(CONFIG_MAPS, namespace).resource_version
    _, change = cluster.watch(PODS, namespace, version, stop)
    assert change.obj == pod


@pytest.mark.fault("K38")
def test_null_for_a_list_of_items_and_one_bad_object(
    cluster: KubeCluster, namespace: str, kube_proxy: KubeProxy
) -> None:
    empty = kube_proxy.rewrite("list", "pods", lambda _: b'{"items":null,"metadata":{"resourceVersion":"5"}}')
    assert cluster.list(PODS, namespace).items == ()
    empty.remove()
    bad = b'{"items":[{"metadata":{"name":"bad"},"spec":7},{"metadata":{"name":"good"}}],"metadata":{}}'
    kube_proxy.rewrite("list", "pods", lambda _: bad)
    names = [one.metadata.name for one in cluster.list(PODS, namespace).items]
    assert names == ["bad", "good"]


def test_a_version_that_the_server_has_never_reached_means_a_new_list(
    cluster: KubeCluster, namespace: str, kube_proxy: KubeProxy
) -> None:
    text = "Timeout: Too large resource version: 99999999, current: 227"
    kube_proxy.fail(504, "watch", "configmaps", reason="Timeout", message=text)
    for _ in range(2):
        with pytest.raises(Gone):
            list(cluster.watch(CONFIG_MAPS, namespace, "99999999", threading.Event()))
        kube_proxy.error_event("configmaps", 504, reason="Timeout", message=text)


def test_delayed_events_of_one_kind_leave_the_others_alone(
    cluster: KubeCluster, namespace: str, direct: Direct, kube_proxy: KubeProxy, follow: Follow
) -> None:
    following, jobs = follow(), follow(kind=JOBS)
    assert following.informer.wait_synced(10)
    assert jobs.informer.wait_synced(10)
    kube_proxy.delay_events("configmaps", 1.5)
    direct.put("t-late")
    cluster.create(job(namespace, "t-now"))
    jobs.wait_told(("added", "t-now"))
    never(lambda: ("added", "t-late") in following.told(), 0.5)
    following.wait_told(("added", "t-late"))
