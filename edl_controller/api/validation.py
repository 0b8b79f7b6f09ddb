"""PURE: everything that is wrong with a TrainingJob, at once. The rules are in `edl_controller.api.rules`."""

from __future__ import annotations

import msgspec

from edl_controller.api import nesting
from edl_controller.api.defaults import with_defaults
from edl_controller.api.names import is_label, is_subdomain
from edl_controller.api.rules.coordination import check_coordination
from edl_controller.api.rules.counts import INT32, check_autoscaling, check_instances, check_numbers
from edl_controller.api.rules.environment import check_environment
from edl_controller.api.rules.found import Found, shown
from edl_controller.api.rules.host_access import check_identity, check_security_context
from edl_controller.api.rules.labels import check_annotations, check_labels, check_own_labels, check_selector
from edl_controller.api.rules.programs import PULL_POLICIES, check_command, check_image
from edl_controller.api.rules.resources import check_resources, check_smallest
from edl_controller.api.rules.volumes import check_mounts, check_volumes
from edl_controller.api.settings import Settings
from edl_controller.api.v1 import PodOverrides, RoleSpec, TrainingJob, TrainingJobSpec
from edl_controller.errors import Fault, InvalidTrainingJob

SPEC_LIMIT = 256 * 1024
"""Bytes of a spec as JSON."""
TOLERATIONS_LIMIT = 100
"""Tolerations of one template."""


def validate(job: TrainingJob, settings: Settings = Settings()) -> tuple[Fault, ...]:  # noqa: B008 - frozen
    """Return all faults of a job, none where it is good. Defaults count; they need not be filled in before.

    Args:
        job: as submitted or stored; it may break any rule that its types do not exclude.
        settings: what this installation allows.
    """
    found = Found()
    _check_name(found, job)
    if fault := _too_large(job):
        found.too_long("spec", fault)
        return tuple(found)
    spec = with_defaults(job, settings).spec
    check_numbers(found, spec)
    check_instances(found, spec, settings)
    check_autoscaling(found, spec.autoscaling)
    check_coordination(found, spec, settings)
    check_volumes(found, "spec.volumes", spec.volumes, settings)
    check_mounts(found, "spec.VolumeMounts", spec.volume_mounts, spec.volumes)
    check_selector(found, "spec.NodeSelector", spec.node_selector)
    check_environment(found, "spec.env", spec.env)
    _check_template(found, "spec.template", spec.template, settings)
    _check_programs(found, job.spec, spec, settings)
    # Resources as they were written, so that both of a GPU's names can be compared.
    for name, role, pods in _roles(job.spec, spec):
        check_resources(found, f"spec.{name}.resources", role.resources, pods)
    if spec.autoscaling.smallest_trainer is not None:
        check_smallest(
            found, "spec.autoscaling.smallestTrainer", spec.autoscaling.smallest_trainer, spec.trainer.resources
        )
    if spec.host_network and not settings.allow_host_network:
        found.forbidden("spec.host_network", "this installation does not let jobs use the network of the nodes")
    return tuple(found)


def _too_large(job: TrainingJob) -> str:
    try:
        data = msgspec.json.encode(job.spec)
    except RecursionError:
        return "it is nested too deep to be written"
    if len(data) > SPEC_LIMIT:
        return f"it has {len(data)} bytes, at most {SPEC_LIMIT} are allowed"
    if nesting.depth(data) > nesting.DEPTH_LIMIT:
        return f"it is nested more than {nesting.DEPTH_LIMIT} deep"
    return ""


def check(job: TrainingJob, settings: Settings = Settings()) -> TrainingJob:  # noqa: B008 - frozen
    """Return the job with its defaults.

    Raises:
        InvalidTrainingJob: it has faults; all of them.
    """
    faults = validate(job, settings)
    if faults:
        raise InvalidTrainingJob(faults)
    return with_defaults(job, settings)


def _check_name(found: Found, job: TrainingJob) -> None:
    meta = job.metadata
    if not meta.name and not meta.generate_name:
        found.required("metadata.name", "the job has no name")
    elif meta.name and not is_subdomain(meta.name):
        found.invalid(
            "metadata.name",
            f"{shown(meta.name)} is no name: at most 253 of a-z 0-9 - . inside letters or digits",
        )
    if meta.namespace and not is_label(meta.namespace):
        found.invalid("metadata.namespace", f"{shown(meta.namespace)} is no name of a namespace")
    check_own_labels(found, meta.labels)


def _roles(given: TrainingJobSpec, filled: TrainingJobSpec) -> tuple[tuple[str, RoleSpec, int], ...]:
    return (
        ("trainer", given.trainer, filled.trainer.max_instance or 0),
        ("pserver", given.pserver, filled.pserver.min_instance or 0),
        ("master", given.master, 1),
    )


def _check_programs(found: Found, given: TrainingJobSpec, filled: TrainingJobSpec, settings: Settings) -> None:
    found.choice("spec.imagePullPolicy", filled.image_pull_policy, PULL_POLICIES)
    for index, secret in enumerate(filled.image_pull_secrets):
        if not is_subdomain(secret.name):
            found.invalid(f"spec.imagePullSecrets[{index}].name", f"{shown(secret.name)} is no name of a Secret")
    check_image(found, "spec.image", filled.image, settings)
    if given.agent.image:
        check_image(found, "spec.agent.image", given.agent.image, settings)
    own_program = filled.agent.mode != "Classic" and (filled.pserver.min_instance or 0) > 0
    for name, role, needed in (
        ("trainer", given.trainer, True),
        ("pserver", given.pserver, own_program),
        ("master", given.master, False),
    ):
        if role.image:
            check_image(found, f"spec.{name}.image", role.image, settings)
        check_command(found, f"spec.{name}", role, needed=needed)
        check_environment(found, f"spec.{name}.env", role.env)
        _check_template(found, f"spec.{name}.template", role.template, settings)


def _check_template(found: Found, path: str, template: PodOverrides, settings: Settings) -> None:
    check_labels(found, f"{path}.labels", template.labels, settings)
    check_annotations(found, f"{path}.annotations", template.annotations, settings)
    check_selector(found, f"{path}.nodeSelector", template.node_selector)
    check_identity(found, path, template, settings)
    check_security_context(found, f"{path}.securityContext", template.security_context, settings)
    check_security_context(found, f"{path}.containerSecurityContext", template.container_security_context, settings)
    found.range(f"{path}.terminationGracePeriodSeconds", template.termination_grace_period_seconds, 0, INT32)
    if len(template.tolerations) > TOLERATIONS_LIMIT:
        found.too_long(f"{path}.tolerations", f"at most {TOLERATIONS_LIMIT} are allowed")
    for index, toleration in enumerate(template.tolerations):
        here = f"{path}.tolerations[{index}]"
        found.choice(f"{here}.operator", toleration.operator, ("Exists", "Equal"))
        found.choice(f"{here}.effect", toleration.effect, ("NoSchedule", "PreferNoSchedule", "NoExecute"))
        if toleration.operator == "Exists" and toleration.value:
            found.invalid(f"{here}.value", "with the operator Exists there is no value to compare")
        if not toleration.key and toleration.operator != "Exists":
            found.invalid(f"{here}.operator", "without a key it must be Exists")
