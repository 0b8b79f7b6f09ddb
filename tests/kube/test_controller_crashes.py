"""A controller that dies at a write of a job's life on a real API server: the next one ends the same (row K17).

Every write of a life is tried in memory (`tests/controller/test_crash_points.py`) and in ``make soak``; here some.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from edl_controller.cluster.kube import KubeCluster, kubeconfig
from edl_controller.controller import Controller
from edl_controller.core.job_settings import JobSettings
from tests.bench.kube_control_plane import KubeControlPlane
from tests.bench.kube_http import KubeHttpClient
from tests.bench.waiting import eventually
from tests.controller.crash_points import SIDES, Cut, CutCluster, Side, State, live
from tests.kube.controller_bench import ControllerBench, assert_invariants

SOME = 4
AT_ONCE = 4
DEFAULT_SEED = 20171


class KubeWorld:
    """A namespace of a real API server."""

    def __init__(self, bench: ControllerBench, user: KubeCluster, namespace: str) -> None:
        self.user: Any = user
        self.namespace = namespace
        self._bench = bench

    def finish(self, pod: Any) -> None:
        self._bench.nodes.finish(self.namespace, pod.metadata.name, 0)

    @contextlib.contextmanager
    def controller(self, cut: Cut) -> Iterator[object]:
        with KubeCluster(kubeconfig(self._bench.source)) as cluster:
            behind: Any = CutCluster(cluster, cut)
            controller = Controller(behind, settings=JobSettings(), namespaces=[self.namespace], workers=1)
            stop = threading.Event()
            thread = threading.Thread(target=controller.run, args=(stop,), name="edl-test-controller", daemon=True)
            thread.start()
            try:
                yield controller
            finally:
                stop.set()
                thread.join(35)


@contextlib.contextmanager
def namespace_of(client: KubeHttpClient, name: str) -> Iterator[str]:
    client.post("/api/v1/namespaces", {"metadata": {"name": name}})
    account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
    eventually(lambda: client.call("GET", account).status == 200, 30, "the namespace's service account")
    yield name
    client.delete(f"/api/v1/namespaces/{name}")


def die_at(
    bench: ControllerBench, control_plane: KubeControlPlane, choose: Callable[[int], list[tuple[int, Side]]]
) -> None:
    with KubeCluster(kubeconfig(control_plane.kubeconfig)) as user:

        def one_life(name: str, cut: Cut, expected: dict[str, State] | None = None) -> dict[str, State]:
            with namespace_of(bench.client, f"{bench.namespace}-{name}") as namespace:
                return live(KubeWorld(bench, user, namespace), cut, expected)

        cut = Cut()
        expected = one_life("well", cut)
        assert expected["deleted"] == {}

        def disturbed(one: tuple[int, Side]) -> str:
            number, side = one
            try:
                one_life(f"{number}-{side}", Cut(number, side), expected)
            except AssertionError as error:
                return f"cut {side} write {number}: {error}"
            return ""

        with ThreadPoolExecutor(AT_ONCE) as pool:
            faults = [fault for fault in pool.map(disturbed, choose(cut.count)) if fault]
        assert not faults
    assert_invariants(bench.proxy.writes(), {})


@pytest.mark.fault("K17")
def test_dead_at_some_write_of_a_life_the_next_controller_ends_the_same(
    bench: ControllerBench, control_plane: KubeControlPlane
) -> None:
    seed = int(os.environ.get("EDL_SOAK_SEED", DEFAULT_SEED))
    chance = random.Random(seed)

    def some(count: int) -> list[tuple[int, Side]]:
        return [(number, chance.choice(SIDES)) for number in chance.sample(range(count), SOME)]

    die_at(bench, control_plane, some)


@pytest.mark.soak
@pytest.mark.fault("K17")
def test_dead_at_any_write_of_a_life_the_next_controller_ends_the_same(
    bench: ControllerBench, control_plane: KubeControlPlane
) -> None:
    die_at(bench, control_plane, lambda count: [(number, side) for number in range(count + 1) for side in SIDES])
