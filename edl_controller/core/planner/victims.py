"""PURE: which trainers go, and to what the Job's parallelism is cut so that exactly they do.

The Job controller removes, measured in this order: unassigned, Pending, not Ready, most recently Ready, more restarts,
youngest. It looks neither at nodes nor at agents. So victims are made not Ready first (a readiness gate), and the cut
takes along what ranks before them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from edl_controller.core.planner.snapshot import TrainerPod


def removal_rank(pod: TrainerPod) -> tuple[float, ...]:
    """Return what the Job controller sorts by; the lowest goes first."""
    return (
        bool(pod.node),
        not pod.pending,
        pod.ready_since is not None,
        -(pod.ready_since or 0.0),
        -pod.restarts,
        -pod.created,
    )


def removal_order(pods: Iterable[TrainerPod]) -> list[TrainerPod]:
    """Return the pods in the order in which the Job controller would remove them."""
    return sorted(pods, key=lambda pod: (removal_rank(pod), pod.name))


def choose_victims(pods: Iterable[TrainerPod], count: int, wanted: Collection[str] = ()) -> tuple[TrainerPod, ...]:
    """Return ``count`` trainers that should go.

    First the ``wanted`` (their nodes need the room), then those that do no work (not Ready, or their agent is lost),
    then the others; among equals in the Job controller's order. Those that drain already are not chosen.
    """

    def cost(pod: TrainerPod) -> tuple[object, ...]:
        idle = pod.ready_since is None or pod.agent == "lost"
        return (pod.name not in wanted, not idle, removal_rank(pod), pod.name)

    return tuple(sorted((pod for pod in pods if not pod.draining), key=cost)[: max(0, count)])


def needs_drain(pod: TrainerPod) -> bool:
    """Tell whether a victim has work to give back: one that never ran, or whose agent is lost, has none."""
    return bool(pod.node) and not pod.pending and pod.agent != "lost"


def cut_to(pods: Collection[TrainerPod], victims: Collection[str], minimum: int) -> int:
    """Return the parallelism that removes the victims, once they are not Ready.

    It is the active pods without the victims and without those that the Job controller ranks before one of them; never
    below the minimum (then some of these stay, whichever ranks last).
    """
    ranks = [(removal_rank(pod), pod.name) for pod in pods if pod.name in victims]
    if not ranks:
        return max(minimum, len(pods))
    last = max(ranks)[0]
    gone = sum(pod.name in victims or removal_rank(pod) <= last for pod in pods)
    return max(minimum, len(pods) - gone)
