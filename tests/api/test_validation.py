"""The rules of a TrainingJob one by one, as far as `resource_cases` does not show them."""

import dataclasses
import itertools
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_controller.api.defaults import with_defaults
from edl_controller.api.kinds import TRAINING_JOBS, UNREADABLE
from edl_controller.api.rules import environment, labels, programs
from edl_controller.api.rules.found import Found
from edl_controller.api.settings import Settings
from edl_controller.api.v1 import PodOverrides, RoleSpec, TrainingJob
from edl_controller.api.validation import SPEC_LIMIT, check, validate
from edl_controller.errors import InvalidTrainingJob

GOOD: dict[str, Any] = {"trainer": {"entrypoint": "python t.py"}}


def job(name: str = "j", **spec: Any) -> TrainingJob:
    return TRAINING_JOBS.from_json({"metadata": {"name": name}, "spec": GOOD | spec})


def paths(wanted: TrainingJob, settings: Settings = Settings()) -> list[str]:  # noqa: B008 - frozen
    return [fault.path for fault in validate(wanted, settings)]


def test_a_good_job_comes_back_with_its_defaults() -> None:
    assert validate(job()) == ()
    assert check(job()) == with_defaults(job())
    assert validate(with_defaults(job())) == ()


def test_all_faults_are_named_at_once() -> None:
    bad = job(
        "No Name",
        port=-1,
        image="a b",
        env=[{"name": "A=B"}, {"name": "POD_IP"}],
        trainer={"entrypoint": "'", "min-instance": 3, "max-instance": 2, "resources": {"limits": {"cpu": "x"}}},
        pserver={"min-instance": -2},
        etcd={"endpoints": [":1"]},
    )
    with pytest.raises(InvalidTrainingJob) as caught:
        check(bad)
    assert sorted(fault.path for fault in caught.value.faults) == sorted(
        [
            *("metadata.name", "spec.port", "spec.image", "spec.env[0].name", "spec.env[1].name"),
            *("spec.trainer.entrypoint", "spec.trainer.max-instance", "spec.trainer.resources.limits[cpu]"),
            *("spec.pserver.min-instance", "spec.pserver.max-instance", "spec.etcd.endpoints[0]"),
        ]
    )
    for fault in caught.value.faults:
        assert str(fault) in str(caught.value)


@pytest.mark.report("M37")
@pytest.mark.report("M61")
@pytest.mark.parametrize(
    ("spec", "faults"),
    [
        ({"pserver": {"min-instance": 0, "max-instance": 0}}, []),
        ({"trainer": {"entrypoint": "a", "min-instance": 0, "max-instance": 0}}, []),
        ({"trainer": {"entrypoint": "a"}, "pserver": None, "master": None}, []),
        ({"trainer": None, "pserver": {"min-instance": 1}}, ["spec.trainer.entrypoint"]),
        ({"trainer": None}, ["spec.trainer.entrypoint"]),
        ({"trainer": {}, "template": None, "volumes": None, "env": None}, ["spec.trainer.entrypoint"]),
    ],
)
def test_absent_and_empty_parts_are_states_and_no_crashes(spec: dict[str, Any], faults: list[str]) -> None:
    assert paths(job(**spec)) == faults


@pytest.mark.report("M60")
def test_bad_jobs_get_faults_each() -> None:
    assert paths(job(), Settings(default_image="")) == ["spec.image"]
    assert paths(job(image="mine"), Settings(default_image="")) == []
    assert paths(job(trainer={"entrypoint": "a", "resources": {"limits": {"cpu": "lots"}}})) == [
        "spec.trainer.resources.limits[cpu]"
    ]
    assert paths(job(VolumeMounts=[{"name": "nowhere", "mountPath": "/x"}])) == ["spec.VolumeMounts[0].name"]


@pytest.mark.report("M62")
@pytest.mark.parametrize("length", [40, 54, 55, 63, 64, 253])
def test_long_names_are_fine(length: int) -> None:
    assert paths(job("a" * length)) == []


@pytest.mark.parametrize("name", ["", "A", "a_b", "-a", "a/b", "..", "a%2fb", "a\x00", "a" * 254, "ä", "a\n", "a..b"])
@pytest.mark.security(13)
def test_bad_names_are_refused(name: str) -> None:
    assert paths(job(name)) == ["metadata.name"]


@pytest.mark.report("M29")
@pytest.mark.parametrize(
    "endpoint", ["", ":2379", " ", "http://", "a:b:c", "e:70000", "ftp://e:1", "http://e:1/x", "a:1,b:1"]
)
def test_bad_endpoints_are_refused_by_name(endpoint: str) -> None:
    assert paths(job(etcd={"endpoints": ["e:1", endpoint]})) == ["spec.etcd.endpoints[1]"]


def test_the_classic_endpoint_of_a_role_is_looked_at_too() -> None:
    assert paths(job(master={"etcd-endpoint": "a:b:c"})) == ["spec.master.etcd-endpoint"]
    assert paths(job(master={"etcd-endpoint": "http://e:2379"})) == []


@pytest.mark.security(1)
def test_mixed_schemes_and_no_scheme_with_tls() -> None:
    assert paths(job(etcd={"endpoints": ["http://a:1", "https://b:1"]})) == ["spec.etcd.endpoints"]
    assert paths(job(etcd={"endpoints": ["a:1"], "tls": {"secretName": "s"}, "credentials": {"secretName": "p"}})) == []
    assert paths(job(etcd={"endpoints": ["http://a:1"], "tls": {"secretName": "s"}})) == ["spec.etcd.endpoints[0]"]


def test_external_needs_an_etcd_outside() -> None:
    wanted = job(etcd={"mode": "External"})
    assert paths(wanted) == ["spec.etcd.endpoints"]
    assert paths(wanted, Settings(external_etcd=True)) == []


HOST_ACCESS: list[tuple[dict[str, Any], str, dict[str, Any]]] = [
    ({"host_network": True}, "spec.host_network", {"allow_host_network": True}),
    (
        {"volumes": [{"name": "h", "hostPath": {"path": "/data/../etc"}}]},
        "spec.volumes[0].hostPath.path",
        {},
    ),
    (
        {"volumes": [{"name": "h", "hostPath": {"path": "/data/x"}}]},
        "spec.volumes[0].hostPath",
        {"host_paths": ("/data",)},
    ),
    (
        {"volumes": [{"name": "h", "hostPath": {"path": "//data//x"}}]},
        "spec.volumes[0].hostPath",
        {"host_paths": ("/data/",)},
    ),
    ({"volumes": [{"name": "h", "hostPath": {"path": "/x"}}]}, "spec.volumes[0].hostPath", {"host_paths": ("/",)}),
    (
        {"template": {"serviceAccountName": "admin"}},
        "spec.template.serviceAccountName",
        {"service_accounts": ("admin",)},
    ),
    ({"template": {"priorityClassName": "system-node-critical"}}, "spec.template.priorityClassName", {}),
]
PRIVILEGES: list[tuple[dict[str, Any], str]] = [
    ({"privileged": True}, "privileged"),
    ({"capabilities": {"add": ["NET_ADMIN"]}}, "capabilities.add"),
    ({"capabilities": {"add": "SYS_ADMIN"}}, "capabilities.add"),
    ({"capabilities": {"add": [{"a": "b"}]}}, "capabilities.add"),
    ({"procMount": "Unmasked"}, "procMount"),
    ({"seccompProfile": {"type": "Unconfined"}}, "seccompProfile.type"),
    ({"appArmorProfile": {"type": "Unconfined"}}, "appArmorProfile.type"),
    ({"seLinuxOptions": {"user": "root"}}, "seLinuxOptions"),
    ({"seLinuxOptions": {"type": "spc_t"}}, "seLinuxOptions"),
    ({"windowsOptions": {"hostProcess": True}}, "windowsOptions.hostProcess"),
    ({"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}, "sysctls"),
    ({"sysctls": "x"}, "sysctls"),
]


@pytest.mark.parametrize(("spec", "path", "opens"), HOST_ACCESS)
@pytest.mark.security(17)
def test_access_to_the_host_is_denied_unless_a_setting_opens_it(
    spec: dict[str, Any], path: str, opens: dict[str, Any]
) -> None:
    assert paths(job(**spec)) == [path]
    if opens:
        assert paths(job(**spec), Settings(**opens)) == []


@pytest.mark.security(17)
def test_a_folder_beside_an_allowed_one_stays_closed() -> None:
    wanted = job(volumes=[{"name": "h", "hostPath": {"path": "/database"}}])
    assert paths(wanted, Settings(host_paths=("/data",))) == ["spec.volumes[0].hostPath"]


@pytest.mark.parametrize(("context", "field"), PRIVILEGES)
@pytest.mark.security(17)
def test_privileges_are_denied_for_pods_and_containers_of_all_roles(context: dict[str, Any], field: str) -> None:
    for template in ("spec.template", "spec.trainer.template", "spec.pserver.template"):
        for which in ("securityContext", "containerSecurityContext"):
            inner = {"template": {which: context}}
            role = template.split(".")[1]
            spec = inner if role == "template" else {role: {"entrypoint": "a", **inner}}
            assert paths(job(**spec)) == [f"{template}.{which}.{field}"]
            assert paths(job(**spec), Settings(allow_privileged=True)) == []


def test_what_the_baseline_allows_is_allowed() -> None:
    context = {
        "runAsUser": 0,
        "capabilities": {"add": ["CHOWN"], "drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
        "sysctls": [{"name": "net.ipv4.tcp_syncookies", "value": "1"}],
        "seLinuxOptions": {"type": "container_t", "level": "s0"},
    }
    assert paths(job(template={"securityContext": context, "serviceAccountName": "default"})) == []


@pytest.mark.parametrize(
    ("image", "prefixes", "allowed"),
    [
        ("registry.example.com/team/a:1", ("registry.example.com",), True),
        ("registry.example.com/team/a:1", ("registry.example.com/",), True),
        ("registry.example.com/team/a:1", ("registry.example.com/team/a",), True),
        ("registry.example.com/team/a@sha256:0", ("registry.example.com/team/a",), True),
        ("registry.example.com.evil.org/a", ("registry.example.com",), False),
        ("registry.example.com/teammate/a", ("registry.example.com/team",), False),
        ("other/a", ("registry.example.com", "x"), False),
        ("x/a", ("registry.example.com", "x"), True),
    ],
)
@pytest.mark.security(18)
def test_images_may_be_limited_to_places(image: str, prefixes: tuple[str, ...], allowed: bool) -> None:
    for spec, path in (
        ({"image": image}, "spec.image"),
        (
            {"image": prefixes[0].rstrip("/") + "/ok", "trainer": {"entrypoint": "a", "image": image}},
            "spec.trainer.image",
        ),
    ):
        assert paths(job(**spec), Settings(image_prefixes=prefixes)) == ([] if allowed else [path])


@pytest.mark.parametrize("name", [*sorted(environment.RESERVED), "EDL_TOKEN", "EDL_INDEX", "EDL_"])
@pytest.mark.security(11)
def test_reserved_variables_cannot_be_set(name: str) -> None:
    variable = [{"name": name, "value": "x"}]
    assert paths(job(env=variable)) == ["spec.env[0].name"]
    for role in ("trainer", "pserver", "master"):
        spec: dict[str, Any] = {role: {"entrypoint": "a", "env": variable}}
        assert paths(job(**spec)) == [f"spec.{role}.env[0].name"]


@pytest.mark.parametrize(
    ("key", "forbidden"),
    [
        *(("paddle-job", True), ("paddle-job-pserver", True), ("paddle-job-master", True), ("controller-uid", True)),
        *(("batch.kubernetes.io/job-name", True), ("paddlepaddle.org/role", True), ("a.paddlepaddle.org/x", True)),
        *(("kubernetes.io/x", True), ("pod-template-hash", True), ("security.k8s.io/x", True)),
        *(("app.kubernetes.io/name", False), ("example.com/paddle-job", False), ("team", False)),
        *(("notkubernetes.io/x", False), ("kueue.x-k8s.io/queue-name", False)),
    ],
)
@pytest.mark.security(12)
def test_labels_of_the_controllers_cannot_be_taken(key: str, forbidden: bool) -> None:
    for field in ("labels", "annotations"):
        faults = validate(job(template={field: {key: "v"}}))
        assert [fault.reason for fault in faults] == (["Forbidden"] if forbidden else [])


@pytest.mark.parametrize(
    ("resources", "faults"),
    [
        ({"requests": {"cpu": "1"}, "limits": {"cpu": "1000m"}}, []),
        ({"requests": {"nvidia.com/gpu": 1}}, ["limits[nvidia.com/gpu]"]),
        ({"requests": {"nvidia.com/gpu": 1}, "limits": {"nvidia.com/gpu": 2}}, ["requests[nvidia.com/gpu]"]),
        ({"limits": {"nvidia.com/gpu": 1, "alpha.kubernetes.io/nvidia-gpu": 1}}, []),
        (
            {"limits": {"nvidia.com/gpu": 2, "alpha.kubernetes.io/nvidia-gpu": 1}},
            ["limits[alpha.kubernetes.io/nvidia-gpu]"],
        ),
        ({"limits": {"hugepages-2Mi": "4Mi", "ephemeral-storage": "1G"}}, []),
        ({"limits": {"kubernetes.io/x": 1}}, ["limits[kubernetes.io/x]"]),
        ({"limits": {"memory": "9Pi"}}, ["limits[memory]"]),
    ],
)
@pytest.mark.security(14)
def test_resources(resources: dict[str, Any], faults: list[str]) -> None:
    assert paths(job(trainer={"entrypoint": "a", "resources": resources})) == [
        f"spec.trainer.resources.{fault}" for fault in faults
    ]


@pytest.mark.security(14)
def test_the_sum_over_all_trainers_must_fit() -> None:
    trainer = {"entrypoint": "a", "min-instance": 10_000, "resources": {"limits": {"memory": "1Pi"}}}
    assert paths(job(trainer=trainer)) == ["spec.trainer.resources.limits[memory]"]
    assert paths(job(trainer=trainer | {"min-instance": 100})) == []


@pytest.mark.parametrize(
    ("smallest", "faults"),
    [
        ({"requests": {"cpu": "250m"}}, []),
        ({"requests": {"cpu": "2"}}, ["requests[cpu]"]),
        ({"requests": {"memory": "1Mi"}}, ["requests[memory]"]),
        ({"limits": {"nvidia.com/gpu": "1"}}, ["limits[nvidia.com/gpu]"]),
    ],
)
def test_the_smallest_size_of_a_trainer(smallest: dict[str, Any], faults: list[str]) -> None:
    trainer = {"entrypoint": "a", "resources": {"requests": {"cpu": 1}, "limits": {"cpu": 1, "nvidia.com/gpu": 1}}}
    assert paths(job(trainer=trainer, autoscaling={"smallestTrainer": smallest})) == [
        f"spec.autoscaling.smallestTrainer.{fault}" for fault in faults
    ]


@pytest.mark.parametrize(
    ("mount", "faults"),
    [
        ({"mountPath": "/a", "subPath": "b/c"}, []),
        ({"mountPath": "/a", "subPath": "../c"}, ["subPath"]),
        ({"mountPath": "/a", "subPath": "/c"}, ["subPath"]),
        ({"mountPath": "/"}, ["mountPath"]),
        ({"mountPath": "/run/edl/x"}, ["mountPath"]),
        ({"mountPath": "/run//edl"}, ["mountPath"]),
        ({"mountPath": "/a/../b"}, ["mountPath"]),
        ({"mountPath": "/a:b"}, ["mountPath"]),
        ({"mountPath": ""}, ["mountPath"]),
    ],
)
def test_mounts(mount: dict[str, Any], faults: list[str]) -> None:
    wanted = job(volumes=[{"name": "v", "emptyDir": {}}], VolumeMounts=[{"name": "v", **mount}])
    assert paths(wanted) == [f"spec.VolumeMounts[0].{fault}" for fault in faults]


def test_two_mounts_in_one_folder_and_a_size_that_is_none() -> None:
    wanted = job(
        volumes=[{"name": "v", "emptyDir": {"sizeLimit": "big"}}],
        VolumeMounts=[{"name": "v", "mountPath": "/a"}, {"name": "v", "mountPath": "/a/"}],
    )
    assert paths(wanted) == ["spec.volumes[0].emptyDir.sizeLimit", "spec.VolumeMounts[1].mountPath"]


@pytest.mark.security(16)
def test_a_spec_above_its_limit_is_one_fault() -> None:
    assert paths(job(trainer={"entrypoint": "a " * SPEC_LIMIT})) == ["spec"]


@pytest.mark.security(15)
def test_the_cap_on_counts_is_a_setting() -> None:
    wanted = job(trainer={"entrypoint": "a", "min-instance": 50})
    assert paths(wanted, Settings(max_instances=49)) == ["spec.trainer.min-instance", "spec.trainer.max-instance"]


@pytest.mark.security(15)
@pytest.mark.parametrize(
    ("count", "outcome"),
    [(2**31, "refused"), (2**70, "refused"), (-1, "refused"), ("3", "unreadable"), (3.5, "unreadable"),
     (True, "unreadable"), (3.0, "taken"), (None, "taken"), (10_000, "taken"), (10_001, "refused")],
)  # fmt: skip
def test_counts(count: Any, outcome: str) -> None:
    """A whole number that was written as 3.0 is one, as API servers store it; null is as absent."""
    for role, field in itertools.product(("trainer", "pserver"), ("min-instance", "max-instance")):
        spec = {"fault_tolerant": True, role: {"entrypoint": "a", field: count}}
        value = {"metadata": {"name": "j"}, "spec": GOOD | spec}
        read = TRAINING_JOBS.decode_marked(json.dumps(value).encode())
        if UNREADABLE in read.metadata.annotations:
            assert outcome == "unreadable"
        else:
            refused = any(path.startswith(f"spec.{role}.") for path in paths(read))
            assert refused == (outcome == "refused"), (role, field)


HOSTILE = [
    "a" * 100_000,
    "a-" * 50_000,
    "a." * 50_000,
    "a_" * 50_000,
    "-" * 100_000,
    "/" * 100_000,
    "a/" * 50_000,
    " " * 100_000,
]


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:2])
@pytest.mark.security(20)
def test_every_rule_takes_linear_time(text: str) -> None:
    settings = Settings(image_prefixes=("x",))
    start = time.process_time()
    found = Found()
    labels.check_labels(found, "p", {text: text}, settings)
    labels.check_annotations(found, "p", {text: text}, settings)
    programs.check_image(found, "p", text, settings)
    programs.check_command(found, "p", RoleSpec(entrypoint=text, workspace=text), needed=True)
    environment.check_environment(found, "p", TRAINING_JOBS.from_json({"spec": {"env": [{"name": text}]}}).spec.env)
    assert time.process_time() - start < 0.05
    assert found
    assert all(len(fault.message) < 400 for fault in found)


@pytest.mark.security(24)
def test_messages_show_user_text_in_one_line() -> None:
    limits = {"limits": {"cpu\n\x1b[31m": "x", "memory\u202e": "1"}}
    faults = validate(job(trainer={"entrypoint": "a", "resources": limits}, NodeSelector={"a\nb": "c"}))
    assert len(faults) > 2
    assert all(str(fault).isprintable() for fault in faults)
    for fault in validate(job("a\nb\x1b[31m", image="x\ny", env=[{"name": "A\r\nB"}])):
        assert fault.message.isprintable()


templates = st.fixed_dictionaries(
    {},
    optional={
        "priorityClassName": st.text(max_size=5),
        "labels": st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2),
    },
)
specs = st.fixed_dictionaries(
    {},
    optional={
        "port": st.integers(-10, 70_000),
        "passes": st.integers(-(2**40), 2**40),
        "fault_tolerant": st.booleans(),
        "image": st.text(max_size=8),
        "template": templates,
        "trainer": st.fixed_dictionaries(
            {"entrypoint": st.text(max_size=10)},
            optional={"min-instance": st.integers(-2, 11_000), "max-instance": st.integers(-2, 11_000)},
        ),
        "env": st.lists(st.fixed_dictionaries({"name": st.text(max_size=6)}), max_size=3),
    },
)


@given(specs)
@pytest.mark.security(15)
def test_validation_never_raises_and_what_it_accepts_keeps_the_bounds(spec: dict[str, Any]) -> None:
    wanted = job(**spec)
    faults = validate(wanted)
    assert faults == validate(with_defaults(wanted)) or "image" in spec
    if faults:
        return
    filled = check(wanted).spec
    low, high = filled.trainer.min_instance or 0, filled.trainer.max_instance or 0
    assert 0 <= low <= high <= 10_000
    assert filled.fault_tolerant or low == high
    assert 1 <= (filled.port or 0) <= 65_535
    names = [variable.name for variable in filled.env]
    assert len(set(names)) == len(names)


@pytest.mark.security(17)
def test_the_defaults_open_no_door() -> None:
    open_by_default = {"allow_host_network": False, "host_paths": (), "allow_privileged": False}
    assert {
        name: value for name, value in dataclasses.asdict(Settings()).items() if name in open_by_default
    } == open_by_default
    assert PodOverrides().service_account_name == ""
