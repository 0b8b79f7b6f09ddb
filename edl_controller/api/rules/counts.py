"""PURE: how many, how long, how often."""

from __future__ import annotations

from edl_controller.api.rules.found import Found
from edl_controller.api.settings import Settings
from edl_controller.api.v1 import Autoscaling, TrainingJobSpec

INT32 = 2**31 - 1
"""Largest number in Kubernetes' own objects."""
PORTS_LIMIT = 1000
"""Ports of one pserver."""
COOLDOWN_LIMIT = 86_400
"""Seconds."""
PRIORITY_LIMIT = 1_000_000_000
"""As of Kubernetes' priority classes."""
WEIGHT_LIMIT = 1000
"""A job's share against others'."""


def check_instances(found: Found, spec: TrainingJobSpec, settings: Settings) -> None:
    """Check the numbers of trainers and pservers, defaults filled in."""
    for name, role in (("trainer", spec.trainer), ("pserver", spec.pserver)):
        path, low, high = f"spec.{name}", role.min_instance or 0, role.max_instance or 0
        found.range(f"{path}.min-instance", low, 0, settings.max_instances)
        found.range(f"{path}.max-instance", high, 0, settings.max_instances)
        if low > high:
            found.invalid(f"{path}.max-instance", f"it is less than min-instance, {low}")
    if not spec.fault_tolerant and (spec.trainer.min_instance or 0) < (spec.trainer.max_instance or 0):
        found.invalid("spec.trainer.max-instance", "it must equal min-instance unless fault_tolerant is true")
    for field, count in (("min-instance", spec.master.min_instance), ("max-instance", spec.master.max_instance)):
        if count not in (None, 1):
            found.invalid(f"spec.master.{field}", "there is one master")


def check_numbers(found: Found, spec: TrainingJobSpec) -> None:
    """Check ports, passes and times, defaults filled in."""
    found.range("spec.port", spec.port, 1, 65535)
    found.range("spec.ports_num", spec.ports_num, 1, PORTS_LIMIT)
    found.range("spec.ports_num_for_sparse", spec.ports_num_for_sparse, 1, PORTS_LIMIT)
    last = (spec.port or 0) + (spec.ports_num or 0) + (spec.ports_num_for_sparse or 0) - 1
    if not found and last > 65535:
        found.invalid("spec.port", f"counting up from it the last port is {last}, which is more than 65535")
    found.range("spec.passes", spec.passes, 1, INT32)
    found.choice("spec.cleanPodPolicy", spec.clean_pod_policy, ("Running", "All", "None"))
    found.range("spec.ttlSecondsAfterFinished", spec.ttl_seconds_after_finished, 0, INT32)
    found.range("spec.activeDeadlineSeconds", spec.active_deadline_seconds, 1, INT32)
    found.range("spec.backoffLimit", spec.backoff_limit, 0, INT32)


def check_autoscaling(found: Found, autoscaling: Autoscaling) -> None:
    """Check the numbers of ``spec.autoscaling``."""
    path = "spec.autoscaling"
    found.range(f"{path}.scaleUpCooldownSeconds", autoscaling.scale_up_cooldown_seconds, 0, COOLDOWN_LIMIT)
    found.range(f"{path}.scaleDownCooldownSeconds", autoscaling.scale_down_cooldown_seconds, 0, COOLDOWN_LIMIT)
    found.range(f"{path}.drainSeconds", autoscaling.drain_seconds, 0, COOLDOWN_LIMIT)
    found.range(f"{path}.priority", autoscaling.priority, -PRIORITY_LIMIT, PRIORITY_LIMIT)
    found.range(f"{path}.weight", autoscaling.weight, 1, WEIGHT_LIMIT)
