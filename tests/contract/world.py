"""What a contract case may use of a cluster: the port, and a few strings to pull behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from edl_controller.api.nodes import Taint
from edl_controller.api.pods import Pod
from edl_controller.cluster.port import Cluster

T = TypeVar("T")


class World(Protocol):
    """One cluster for one test, empty at first. Its pods have no work: they run until they are told to end.

    Containers of pods that are deleted end at once with exit code 143, unless they are held.
    """

    name: str
    """``sim``, ``local``, ``kube``."""
    namespace: str
    """Where the test puts its objects."""

    @property
    def cluster(self) -> Cluster:
        """The port."""
        ...

    def settle(self, seconds: float = 0.0) -> None:
        """Let the machinery run until it is quiet, or for about ``seconds`` of its own time."""
        ...

    def add_node(
        self,
        name: str,
        cpu: str = "4",
        memory: str = "8Gi",
        labels: Mapping[str, str] | None = None,
        taints: Sequence[Taint] = (),
    ) -> None:
        """Add a ready node; it has the label ``kubernetes.io/hostname`` beside those given."""
        ...

    def set_ready(self, pod: Pod, ready: bool) -> None:
        """Let the containers of a running pod pass or fail their readiness probe."""
        ...

    def finish(self, pod: Pod, exit_code: int) -> None:
        """Let the containers of a running pod end by themselves."""
        ...

    def hold_terminating(self) -> None:
        """From now on, pods that are asked to end do not, until ``let_terminate()``."""
        ...

    def let_terminate(self, exit_code: int = 143) -> None:
        """End pods that are held, and from now on those that are asked to end, with this exit code."""
        ...

    def old_version(self) -> str:
        """Return a resource version that is no longer kept."""
        ...


def until(world: World, condition: Callable[[], T], seconds: float = 20.0, what: str = "") -> T:
    """Settle until ``condition`` returns something true, and return that; ``seconds`` of the cluster's time at most.

    An AssertionError or a NotFound of the cluster inside is a failure, not a "not yet".
    """
    step, waited = 0.1, 0.0
    while True:
        value = condition()
        if value:
            return value
        assert waited < seconds, f"not within {seconds} s: {what or 'the condition'}; last value {value!r}"
        world.settle(step)
        waited += step


def stays(world: World, condition: Callable[[], object], seconds: float = 1.5, what: str = "") -> None:
    """Check that ``condition`` is true now and for ``seconds`` of the cluster's time."""
    step, waited = 0.1, 0.0
    while waited <= seconds:
        assert condition(), f"no longer so after {waited:.1f} s: {what or 'the condition'}"
        world.settle(step)
        waited += step
