"""PURE: whether and when an ended container runs again (Kubernetes' documentation, "Pod Lifecycle")."""

from __future__ import annotations

from dataclasses import dataclass

from edl_controller.api.pods import Container, PodSpec


@dataclass(frozen=True)
class BackOff:
    """How long a container that keeps ending waits; all in seconds.

    The first time it runs again at once, then after ``first``, then twice as long each time up to ``longest``. A run of
    ``forgiven`` seconds starts the count anew.
    """

    first: float = 10.0
    longest: float = 300.0
    forgiven: float = 600.0

    def after(self, previous: float | None, ran: float) -> float:
        """Return the wait after a run of ``ran`` seconds; ``previous`` is the wait before that run, None = none yet."""
        if previous is None or ran >= self.forgiven:
            return 0.0
        return self.first if previous <= 0 else min(previous * 2, self.longest)


def is_sidecar(container: Container) -> bool:
    """Tell whether an init container is a native sidecar (KEP-753)."""
    return container.restart_policy == "Always"


def runs_again(spec: PodSpec, container: Container, exit_code: int, *, init: bool) -> bool:
    """Tell whether a container that ended with ``exit_code`` is started again.

    Sidecars always are; init containers until they succeed unless the pod says ``Never``.
    """
    if init and is_sidecar(container):
        return True
    policy = spec.restart_policy or "Always"
    if init or policy == "OnFailure":
        return exit_code != 0 and policy != "Never"
    return policy == "Always"
