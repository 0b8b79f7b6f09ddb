"""TrainingJobs that are accepted or refused: one table for schema, CEL rules, `validate` and real API servers."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

GOOD: Json = {
    "image": "registry.example.com/team/mnist:1",
    "fault_tolerant": True,
    "trainer": {"entrypoint": "python train.py", "min-instance": 1, "max-instance": 4},
    "pserver": {"entrypoint": "python ps.py", "min-instance": 2},
}
"""The spec that each case changes."""

GONE = object()
"""In place of a value: take the field away."""


@dataclass(frozen=True)
class Case:
    """One document.

    Attributes:
        what: is special about it.
        change: of the good spec: path with dots to value.
        faults: paths that `validate` or the strict reading names; none = accepted.
        only_here: why neither schema nor CEL refuses it: the reason; empty where they do.
        name: of the job.
    """

    what: str
    change: Json = field(default_factory=dict)
    faults: tuple[str, ...] = ()
    only_here: str = ""
    name: str = "mnist"

    @property
    def document(self) -> Json:
        """The whole object, as JSON values."""
        spec = copy.deepcopy(GOOD)
        for path, value in self.change.items():
            *outer, last = path.split(".")
            place = spec
            for step in outer:
                place = place.setdefault(step, {})
            if value is GONE:
                place.pop(last, None)
            else:
                place[last] = value
        return {
            "apiVersion": "paddlepaddle.org/v1",
            "kind": "TrainingJob",
            "metadata": {"name": self.name, "namespace": "default"},
            "spec": spec,
        }


_SETTINGS = "what an installation allows is a setting"
_EXACT = "amounts are compared exactly by the controller only"
_WORDS = "no schema can split words as a shell does"
_KEYS = "rules about keys of maps that API servers would find too costly"
BY_THE_SERVER = "API servers check names of all kinds by themselves"

_RESOURCES = "trainer.resources"
_VOLUME = [{"name": "data", "emptyDir": {}}]

CASES: tuple[Case, ...] = (
    # The classic fields.
    Case("the good one"),
    Case("only a trainer", {"pserver": GONE}),
    Case("a strict job", {"fault_tolerant": GONE, "trainer.max-instance": 1}),
    Case("a strict job with one bound", {"fault_tolerant": False, "trainer.max-instance": GONE}),
    Case("a strict job that is elastic", {"fault_tolerant": False}, ("spec.trainer.max-instance",)),
    Case("no pservers", {"pserver.min-instance": 0, "pserver.max-instance": 0}),
    Case("no trainers", {"trainer.min-instance": 0, "trainer.max-instance": 0}),
    Case("only a pserver", {"trainer": GONE}, ("spec.trainer.entrypoint",)),
    Case("an empty trainer", {"trainer": {}}, ("spec.trainer.entrypoint",)),
    Case("min above max", {"trainer.min-instance": 5}, ("spec.trainer.max-instance",)),
    Case("pservers: min above max", {"pserver.max-instance": 1}, ("spec.pserver.max-instance",)),
    Case("a negative count", {"trainer.min-instance": -1}, ("spec.trainer.min-instance",)),
    Case("the largest count", {"trainer.max-instance": 10_000}),
    Case("a count above the cap", {"trainer.max-instance": 10_001}, ("spec.trainer.max-instance",)),
    Case("a count beyond 31 bits", {"trainer.max-instance": 2**31}, ("spec.trainer.max-instance",)),
    Case("a count as text", {"trainer.min-instance": "3"}, ("spec.trainer.min-instance",)),
    Case("a count with a fraction", {"trainer.min-instance": 1.5}, ("spec.trainer.min-instance",)),
    Case("a count that is null", {"trainer.min-instance": None}),
    Case("two masters", {"master": {"min-instance": 2}}, ("spec.master.min-instance",)),
    Case("port zero is the default", {"port": 0, "ports_num": 0, "passes": 0}),
    Case("a port too high", {"port": 65_536}, ("spec.port",)),
    Case("ports that end too high", {"port": 65_535}, ("spec.port",)),
    Case("passes below nothing", {"passes": -1}, ("spec.passes",)),
    Case("passes of the trainer are ignored", {"trainer.passes": 10}),
    Case("a misspelled field", {"trainer.min-instances": 1}, ("spec.trainer.min-instances",)),
    # Programs.
    Case("no image at all", {"image": GONE}),
    Case("no name of an image", {"image": "a b; rm"}, ("spec.image",)),
    Case("a leading dash in an image", {"trainer.image": "-v"}, ("spec.trainer.image",)),
    Case("a pull policy that is none", {"imagePullPolicy": "Sometimes"}, ("spec.imagePullPolicy",)),
    Case("shell characters stay data", {"trainer.entrypoint": "python t.py '; touch x' '$(touch y)' '`z`'"}),
    Case("an open quotation", {"trainer.entrypoint": "python 't.py"}, ("spec.trainer.entrypoint",), _WORDS),
    Case("only blanks", {"trainer.entrypoint": "  "}, ("spec.trainer.entrypoint",), _WORDS),
    Case("a command as a list", {"trainer.entrypoint": GONE, "trainer.command": ["python", "t.py", "a b"]}),
    Case("both entrypoint and command", {"trainer.command": ["python"]}, ("spec.trainer.command",)),
    Case("a NUL in a command", {"pserver.entrypoint": "a\x00b"}, ("spec.pserver.entrypoint",)),
    Case(
        "a launcher with nothing to launch",
        {"pserver": {"min-instance": 1}, "agent": {"mode": "Launcher"}},
        ("spec.pserver.entrypoint",),
    ),
    Case("the original's start scripts", {"pserver": {"min-instance": 1}}),
    # Variables.
    Case("variables", {"env": [{"name": "A", "value": "$(POD_NAME); `x`"}, {"name": "PYTHONPATH", "value": "/work"}]}),
    Case(
        "a variable from a Secret",
        {"trainer.env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "token"}}}]},
    ),
    Case("a variable twice", {"env": [{"name": "A"}, {"name": "A"}]}, ("spec.env[1].name",)),
    Case("a reserved variable", {"trainer.env": [{"name": "POD_IP", "value": "1"}]}, ("spec.trainer.env[0].name",)),
    Case("a variable of the agent", {"env": [{"name": "EDL_ETCD_ENDPOINTS"}]}, ("spec.env[0].name",)),
    Case("no name of a variable", {"env": [{"name": "A=B"}]}, ("spec.env[0].name",)),
    Case(
        "value and source",
        {"env": [{"name": "A", "value": "1", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]},
        ("spec.env[0].valueFrom",),
    ),
    Case(
        "a Secret without a key",
        {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s"}}}]},
        ("spec.env[0].valueFrom.secretKeyRef.key",),
    ),
    Case("a source of nothing", {"env": [{"name": "A", "valueFrom": {}}]}, ("spec.env[0].valueFrom",)),
    # Resources.
    Case("amounts", {_RESOURCES: {"requests": {"cpu": "500m", "memory": "1.5Gi"}, "limits": {"cpu": 1}}}),
    Case("GPUs", {_RESOURCES: {"limits": {"nvidia.com/gpu": 1}}}),
    Case("GPUs of the original", {_RESOURCES: {"limits": {"alpha.kubernetes.io/nvidia-gpu": 1}}}),
    Case("lowercase ki", {_RESOURCES: {"requests": {"memory": "1ki"}}}, ("spec.trainer.resources.requests[memory]",)),
    Case("a negative amount", {_RESOURCES: {"limits": {"cpu": "-1"}}}, ("spec.trainer.resources.limits[cpu]",)),
    Case("no number", {_RESOURCES: {"limits": {"cpu": "NaN"}}}, ("spec.trainer.resources.limits[cpu]",)),
    Case("a huge exponent", {_RESOURCES: {"limits": {"cpu": "1e400"}}}, ("spec.trainer.resources.limits[cpu]",)),
    Case("a fraction as a number", {_RESOURCES: {"limits": {"cpu": 0.5}}}, ("spec.trainer.resources.limits[cpu]",)),
    Case(
        "beyond 63 bits",
        {_RESOURCES: {"limits": {"memory": "9E"}}},
        ("spec.trainer.resources.limits[memory]",),
        _EXACT,
    ),
    Case(
        "a request above the limit",
        {_RESOURCES: {"requests": {"cpu": "1001m"}, "limits": {"cpu": 1}}},
        ("spec.trainer.resources.requests[cpu]",),
        _EXACT,
    ),
    Case(
        "half a GPU",
        {_RESOURCES: {"limits": {"nvidia.com/gpu": "500m"}}},
        ("spec.trainer.resources.limits[nvidia.com/gpu]",),
        _EXACT,
    ),
    Case("an unknown resource", {_RESOURCES: {"limits": {"gpu": 1}}}, ("spec.trainer.resources.limits[gpu]",), _KEYS),
    # Volumes.
    Case("a volume", {"volumes": _VOLUME, "VolumeMounts": [{"name": "data", "mountPath": "/data"}]}),
    Case("a volume twice", {"volumes": _VOLUME * 2}, ("spec.volumes[1].name",)),
    Case("a volume of nothing", {"volumes": [{"name": "data"}]}, ("spec.volumes[0]",)),
    Case(
        "an unknown volume",
        {"volumes": _VOLUME, "VolumeMounts": [{"name": "date", "mountPath": "/data"}]},
        ("spec.VolumeMounts[0].name",),
    ),
    Case(
        "a relative mount",
        {"volumes": _VOLUME, "VolumeMounts": [{"name": "data", "mountPath": "data"}]},
        ("spec.VolumeMounts[0].mountPath",),
    ),
    Case("the controller's volumes", {"volumes": [{"name": "edl-x", "emptyDir": {}}]}, ("spec.volumes[0].name",)),
    # Access to the host.
    Case(
        "a path of the host",
        {"volumes": [{"name": "h", "hostPath": {"path": "/"}}]},
        ("spec.volumes[0].hostPath",),
        _SETTINGS,
    ),
    Case("the host's network", {"host_network": True}, ("spec.host_network",), _SETTINGS),
    Case(
        "privileged",
        {"template.containerSecurityContext": {"privileged": True}},
        ("spec.template.containerSecurityContext.privileged",),
        _SETTINGS,
    ),
    Case(
        "somebody else's account",
        {"template.serviceAccountName": "admin"},
        ("spec.template.serviceAccountName",),
        _SETTINGS,
    ),
    # Labels.
    Case("labels", {"template.labels": {"team": "a", "app.kubernetes.io/name": "mnist", "example.com/x": ""}}),
    Case("the owner's label", {"template.labels": {"paddle-job": "other"}}, ("spec.template.labels[paddle-job]",)),
    Case(
        "a label of the controller",
        {"trainer.template": {"labels": {"paddlepaddle.org/job-uid": "1"}}},
        ("spec.trainer.template.labels[paddlepaddle.org/job-uid]",),
    ),
    Case("no value of a label", {"template.labels": {"a": "b c"}}, ("spec.template.labels[a]",)),
    Case("no key of a label", {"template.labels": {"a b": "c"}}, ("spec.template.labels[a b]",), _KEYS),
    Case(
        "an annotation of the controller",
        {"template.annotations": {"x.paddlepaddle.org/a": "b"}},
        ("spec.template.annotations[x.paddlepaddle.org/a]",),
    ),
    Case(
        "a value that is not compared",
        {"template.tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]},
        ("spec.template.tolerations[0].value",),
    ),
    Case(
        "no key to compare",
        {"template.tolerations": [{"operator": "Equal"}]},
        ("spec.template.tolerations[0].operator",),
    ),
    # etcd and agents.
    Case("an external etcd", {"etcd": {"endpoints": ["https://e:2379"], "credentials": {"secretName": "login"}}}),
    Case(
        "a password in clear",
        {"etcd": {"endpoints": ["http://e:2379"], "credentials": {"secretName": "s"}}},
        ("spec.etcd.credentials",),
    ),
    Case("an empty endpoint", {"etcd": {"endpoints": [""]}}, ("spec.etcd.endpoints[0]",)),
    Case("an endpoint without a host", {"etcd": {"endpoints": [":2379"]}}, ("spec.etcd.endpoints[0]",)),
    Case("an endpoint's port", {"etcd": {"endpoints": ["e:70000"]}}, ("spec.etcd.endpoints[0]",), _WORDS),
    Case("a Secret without a name", {"etcd": {"endpoints": ["e:1"], "tls": {}}}, ("spec.etcd.tls.secretName",)),
    Case(
        "no name of a Secret",
        {"etcd": {"endpoints": ["https://e:1"], "credentials": {}}},
        ("spec.etcd.credentials.secretName",),
    ),
    Case("two endpoints in one", {"etcd": {"endpoints": ["a:1,b:2"]}}, ("spec.etcd.endpoints[0]",)),
    Case("IPv6", {"etcd": {"endpoints": ["http://[::1]:2379", "http://etcd.example.com"]}}),
    Case("etcd here and there", {"etcd": {"mode": "Master", "endpoints": ["e:2379"]}}, ("spec.etcd.endpoints",)),
    Case("external, but where", {"etcd": {"mode": "External"}}, ("spec.etcd.endpoints",), _SETTINGS),
    Case("a mode that is none", {"agent": {"mode": "Magic"}}, ("spec.agent.mode",)),
    Case("a lease of a second", {"agent": {"ttlSeconds": 1}}, ("spec.agent.ttlSeconds",)),
    # The rest.
    Case("autoscaling", {"autoscaling": {"enabled": True, "scaleUpCooldownSeconds": 0, "weight": 3, "priority": -5}}),
    Case("a weight of nothing", {"autoscaling": {"weight": 0}}, ("spec.autoscaling.weight",)),
    Case("times", {"ttlSecondsAfterFinished": 0, "activeDeadlineSeconds": 60, "backoffLimit": 3, "suspend": True}),
    Case("no time at all", {"activeDeadlineSeconds": 0}, ("spec.activeDeadlineSeconds",)),
    Case("a policy that is none", {"cleanPodPolicy": "Some"}, ("spec.cleanPodPolicy",)),
    Case("many faults", {"port": -1, "passes": -2, "image": "a b"}, ("spec.port", "spec.passes", "spec.image")),
    Case("a long name", name="a" * 253),
    Case("a path for a name", faults=("metadata.name",), only_here=BY_THE_SERVER, name="../../etc"),
    Case("a name too long", faults=("metadata.name",), only_here=BY_THE_SERVER, name="a" * 254),
)
