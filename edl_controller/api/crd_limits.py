"""PURE: what the schema of the resource says beyond its types: bounds and CEL rules, by struct and field.

The numbers come from `edl_controller.api.rules`, so that the schema and `validate` cannot differ. Every list, map and
text that a CEL rule reads has a bound: API servers refuse rules that could cost too much.
"""

from __future__ import annotations

from typing import Any

from edl_controller.api import pods, v1
from edl_controller.api.rules import coordination, counts, environment, programs, volumes
from edl_controller.api.settings import Settings

Schema = dict[str, Any]

_LABEL = "^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"
_SUBDOMAIN = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$"
_LABEL_VALUE = "^([A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?)?$"
_ENDPOINT = r"^([A-Za-z]+://)?(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(:[0-9]{1,5})?/?$"
_PLAIN = r"^[^\x00]*$"


def _between(low: int, high: int) -> Schema:
    return {"minimum": low, "maximum": high}


def _text(limit: int, pattern: str = "") -> Schema:
    return {"maxLength": limit, "pattern": pattern} if pattern else {"maxLength": limit}


def _choice(*values: str) -> Schema:
    return {"enum": ["", *values]}


def _named(limit: int) -> Schema:
    """A list whose entries differ in their names."""
    return {"maxItems": limit, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}


_COUNT = _between(0, Settings().max_instances)
_IMAGE = _text(programs.IMAGE_LIMIT, "^([A-Za-z0-9][A-Za-z0-9._:/@+-]*)?$")
_SECONDS = _between(0, counts.COOLDOWN_LIMIT)
_LABELS = {"maxProperties": 64, "additionalProperties": {"type": "string", **_text(63, _LABEL_VALUE)}}
_ANNOTATIONS = {"maxProperties": 64}

BOUNDS: dict[tuple[type, str], Schema] = {
    (v1.TrainingJobSpec, "image"): _IMAGE,
    (v1.TrainingJobSpec, "port"): _between(0, 65535),
    (v1.TrainingJobSpec, "ports_num"): _between(0, counts.PORTS_LIMIT),
    (v1.TrainingJobSpec, "ports_num_for_sparse"): _between(0, counts.PORTS_LIMIT),
    (v1.TrainingJobSpec, "passes"): _between(0, counts.INT32),
    (v1.TrainingJobSpec, "image_pull_policy"): _choice(*programs.PULL_POLICIES),
    (v1.TrainingJobSpec, "image_pull_secrets"): {"maxItems": 20},
    (v1.TrainingJobSpec, "volumes"): _named(volumes.LIMIT),
    (v1.TrainingJobSpec, "volume_mounts"): {"maxItems": volumes.LIMIT},
    (v1.TrainingJobSpec, "node_selector"): _LABELS,
    (v1.TrainingJobSpec, "env"): _named(environment.LIMIT),
    (v1.TrainingJobSpec, "clean_pod_policy"): _choice("Running", "All", "None"),
    (v1.TrainingJobSpec, "ttl_seconds_after_finished"): _between(0, counts.INT32),
    (v1.TrainingJobSpec, "active_deadline_seconds"): _between(1, counts.INT32),
    (v1.TrainingJobSpec, "backoff_limit"): _between(0, counts.INT32),
    (v1.RoleSpec, "image"): _IMAGE,
    (v1.RoleSpec, "entrypoint"): _text(programs.COMMAND_LIMIT, _PLAIN),
    (v1.RoleSpec, "command"): {
        "maxItems": 1000,
        "items": {"type": "string", **_text(programs.COMMAND_LIMIT, _PLAIN)},
    },
    (v1.RoleSpec, "workspace"): _text(4096, _PLAIN),
    (v1.RoleSpec, "env"): _named(environment.LIMIT),
    (v1.RoleSpec, "min_instance"): _COUNT,
    (v1.RoleSpec, "max_instance"): _COUNT,
    (v1.RoleSpec, "etcd_endpoint"): _text(300),
    (v1.PodOverrides, "labels"): _LABELS,
    (v1.PodOverrides, "annotations"): _ANNOTATIONS,
    (v1.PodOverrides, "node_selector"): _LABELS,
    (v1.PodOverrides, "tolerations"): {"maxItems": 100},
    (v1.PodOverrides, "priority_class_name"): _text(253, f"{_SUBDOMAIN}|^$"),
    (v1.PodOverrides, "service_account_name"): _text(253),
    (v1.PodOverrides, "termination_grace_period_seconds"): _between(0, counts.INT32),
    (v1.EtcdSpec, "mode"): _choice(*coordination.ETCD_MODES),
    (v1.EtcdSpec, "endpoints"): {
        "maxItems": coordination.ENDPOINTS_LIMIT,
        "items": {"type": "string", **_text(300, _ENDPOINT)},
    },
    (v1.EtcdTls, "secret_name"): _text(253, _SUBDOMAIN),
    (v1.EtcdCredentials, "secret_name"): _text(253, _SUBDOMAIN),
    (v1.AgentSpec, "mode"): _choice(*coordination.AGENT_MODES),
    (v1.AgentSpec, "ttl_seconds"): _between(*coordination.TTL_RANGE),
    (v1.AgentSpec, "image"): _IMAGE,
    (v1.Autoscaling, "scale_up_cooldown_seconds"): _SECONDS,
    (v1.Autoscaling, "scale_down_cooldown_seconds"): _SECONDS,
    (v1.Autoscaling, "drain_seconds"): _SECONDS,
    (v1.Autoscaling, "priority"): _between(-counts.PRIORITY_LIMIT, counts.PRIORITY_LIMIT),
    (v1.Autoscaling, "weight"): _between(1, counts.WEIGHT_LIMIT),
    (pods.EnvVar, "name"): _text(253, "^[A-Za-z_.-][A-Za-z0-9_.-]*$"),
    (pods.EnvVar, "value"): _text(environment.VALUE_LIMIT, _PLAIN),
    (pods.Volume, "name"): _text(63, _LABEL),
    (pods.VolumeMount, "name"): _text(63),
    (pods.VolumeMount, "mount_path"): _text(volumes.PATH_LIMIT, "^/[^:]*$"),
    (pods.VolumeMount, "sub_path"): _text(volumes.PATH_LIMIT),
    (pods.KeySelector, "name"): _text(253, _SUBDOMAIN),
    (pods.KeySelector, "key"): _text(253),
    (pods.Toleration, "operator"): _choice("Exists", "Equal"),
    (pods.Toleration, "effect"): _choice("NoSchedule", "PreferNoSchedule", "NoExecute"),
    (pods.Toleration, "key"): _text(317),
    (pods.Toleration, "value"): _text(63),
}
"""Further keywords of a field's schema."""

IGNORED: dict[type, dict[str, Schema]] = {
    v1.TrainerSpec: {"passes": {"type": "integer", "description": "Accepted and ignored, as in the original."}}
}
"""Fields that no type has."""


def _has(*path: str) -> str:
    """Write that a field of a field is there: CEL looks at each step."""
    steps = ["self", *path]
    return " && ".join(f"has({'.'.join(steps[: end + 1])})" for end in range(1, len(steps)))


_MIN, _MAX = "min__dash__instance", "max__dash__instance"  # how CEL spells the classic names
_NO_COMMAND = "(!has(self.entrypoint) || size(self.entrypoint) == 0) && (!has(self.command) || size(self.command) == 0)"
_COUNTS = (
    f"!has(self.{_MIN}) || !has(self.{_MAX}) || self.{_MIN} <= self.{_MAX}",
    "min-instance is at most max-instance",
)
_SOURCES = list(pods.EnvVarSource.__struct_encode_fields__)
_VOLUME_SOURCES = [name for name in pods.Volume.__struct_encode_fields__ if name != "name"]


def _exactly_one(names: list[str]) -> str:
    return "[" + ", ".join(f"has(self.{name})" for name in names) + "].filter(given, given).size() == 1"


def _free(field: str) -> str:
    """Write that no key of a map has the controller's own domain, or one below it."""
    domain = f"{v1.GROUP}/"
    return f"!has(self.{field}) || self.{field}.all(key, !key.startsWith('{domain}') && !key.contains('.{domain}'))"


_RESERVED = ", ".join(f"'{name}'" for name in sorted(environment.RESERVED))
_ROLE_RULES = (
    (
        "!has(self.entrypoint) || size(self.entrypoint) == 0 || !has(self.command) || size(self.command) == 0",
        "give one of entrypoint and command",
    ),
)

RULES: dict[type, tuple[tuple[str, str], ...]] = {
    v1.TrainingJobSpec: (
        (_has("trainer"), "say what the trainers run: trainer.entrypoint"),
        (
            f"(has(self.fault_tolerant) && self.fault_tolerant) || !({_has('trainer', _MIN)})"
            f" || !({_has('trainer', _MAX)}) || self.trainer.{_MIN} == self.trainer.{_MAX}",
            "min-instance equals max-instance unless fault_tolerant is true",
        ),
        (
            f"!({_has('agent', 'mode')}) || self.agent.mode in ['', 'Classic'] || !has(self.pserver)"
            f" || (has(self.pserver.entrypoint) && size(self.pserver.entrypoint) > 0)"
            f" || (has(self.pserver.command) && size(self.pserver.command) > 0)"
            f" || (has(self.pserver.{_MIN}) ? self.pserver.{_MIN} == 0"
            f" : has(self.pserver.{_MAX}) && self.pserver.{_MAX} == 0)",
            "say what the pservers run: pserver.entrypoint",
        ),
        (
            "!has(self.VolumeMounts) || self.VolumeMounts.all(mount, has(self.volumes)"
            " && self.volumes.exists(volume, volume.name == mount.name))",
            "each of VolumeMounts shows one of volumes",
        ),
        (
            "(has(self.port) && self.port > 0 ? self.port : 7164)"
            " + (has(self.ports_num) && self.ports_num > 0 ? self.ports_num : 1)"
            " + (has(self.ports_num_for_sparse) && self.ports_num_for_sparse > 0 ? self.ports_num_for_sparse : 1)"
            " <= 65536",
            "ports count up from port to 65535 at most",
        ),
    ),
    v1.TrainerSpec: (_COUNTS, *_ROLE_RULES, (f"!({_NO_COMMAND})", "say what the trainers run: entrypoint or command")),
    v1.PserverSpec: (_COUNTS, *_ROLE_RULES),
    v1.MasterSpec: (
        *_ROLE_RULES,
        (
            f"(!has(self.{_MIN}) || self.{_MIN} == 1) && (!has(self.{_MAX}) || self.{_MAX} == 1)",
            "there is one master",
        ),
    ),
    v1.EtcdSpec: (
        (
            "!has(self.mode) || self.mode != 'Master' || (!has(self.tls) && !has(self.credentials)"
            " && (!has(self.endpoints) || size(self.endpoints) == 0))",
            "the etcd in the master pod is the controller's to set up",
        ),
        (
            "!has(self.credentials) || has(self.tls) || !has(self.endpoints)"
            " || self.endpoints.all(endpoint, endpoint.startsWith('https://'))",
            "a password is not sent without TLS",
        ),
    ),
    v1.EtcdTls: (("has(self.secretName)", "name the Secret"),),
    v1.EtcdCredentials: (("has(self.secretName)", "name the Secret"),),
    v1.PodOverrides: (
        (
            "!has(self.labels) || self.labels.all(key, !(key in ['paddle-job', 'paddle-job-master',"
            " 'paddle-job-pserver', 'job-name', 'controller-uid', 'pod-template-hash']))",
            "these labels belong to the controllers",
        ),
        (_free("labels"), "these labels belong to the controllers"),
        (_free("annotations"), "these annotations belong to the controllers"),
    ),
    pods.EnvVar: (
        (
            f"!self.name.startsWith('{environment.RESERVED_PREFIX}') && !(self.name in [{_RESERVED}])",
            "this variable is set by the controller or the agent",
        ),
        ("!has(self.valueFrom) || !has(self.value) || size(self.value) == 0", "give one of value and valueFrom"),
    ),
    pods.EnvVarSource: ((_exactly_one(_SOURCES), "give exactly one source"),),
    pods.KeySelector: (("has(self.name) && has(self.key) && size(self.key) > 0", "name the object and its key"),),
    pods.Volume: (
        (_exactly_one(_VOLUME_SOURCES), "give exactly one source"),
        (f"!self.name.startsWith('{volumes.RESERVED_VOLUMES}')", "names that begin so are the controller's"),
    ),
    pods.Toleration: (
        (
            "!has(self.operator) || self.operator != 'Exists' || !has(self.value) || size(self.value) == 0",
            "Exists compares no value",
        ),
        (
            "(has(self.key) && size(self.key) > 0) || (has(self.operator) && self.operator == 'Exists')",
            "without a key the operator is Exists",
        ),
    ),
}
"""CEL rules of the structs of the spec, with what is told to the user."""
