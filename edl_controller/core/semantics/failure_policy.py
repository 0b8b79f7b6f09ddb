"""PURE: what a Job's ``podFailurePolicy`` says of a failed pod (KEP-3329)."""

from __future__ import annotations

from typing import Literal

from edl_controller.api.meta import Json
from edl_controller.api.pods import ContainerStatus, Pod

Verdict = Literal["Count", "Ignore", "FailJob"]


def judge(policy: Json | None, pod: Pod) -> tuple[Verdict, str]:
    """Return what becomes of the failure, and for ``FailJob`` why; the first rule that matches decides.

    ``Ignore``: not counted as a failure. ``FailJob``: the whole Job fails.
    """
    for index, rule in enumerate((policy or {}).get("rules") or ()):
        action = rule.get("action", "Count")
        if "onExitCodes" in rule:
            ended = _matching_container(rule["onExitCodes"], pod)
            if ended is None or ended.state.terminated is None:
                continue
            why = f"Container {ended.name} for pod {pod.metadata.namespace}/{pod.metadata.name} failed with exit code "
            why += f"{ended.state.terminated.exit_code} matching {action} rule at index {index}"
        else:
            condition = _matching_condition(rule.get("onPodConditions") or (), pod)
            if condition is None:
                continue
            why = f"Pod {pod.metadata.namespace}/{pod.metadata.name} has condition {condition} matching {action} rule "
            why += f"at index {index}"
        if action == "FailJob":
            return "FailJob", why
        return ("Ignore", "") if action == "Ignore" else ("Count", "")
    return "Count", ""


def _matching_container(wanted: Json, pod: Pod) -> ContainerStatus | None:
    values, inside = wanted.get("values") or (), wanted.get("operator") == "In"
    for status in (*pod.status.container_statuses, *pod.status.init_container_statuses):
        ended = status.state.terminated
        if ended is None or ended.exit_code == 0 or wanted.get("containerName") not in (None, status.name):
            continue
        if (ended.exit_code in values) == inside:
            return status
    return None


def _matching_condition(patterns: tuple[Json, ...] | list[Json], pod: Pod) -> str | None:
    # The API server fills in the status where a pattern has none.
    wanted = {(pattern.get("type"), pattern.get("status", "True")) for pattern in patterns}
    return next((c.type for c in pod.status.conditions if (c.type, c.status) in wanted), None)
