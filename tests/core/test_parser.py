"""What a TrainingJob becomes: names, labels, environment, commands, security."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_agent.cli.probes import ready
from edl_agent.cli.run import run as run_command
from edl_controller.api.kinds import JOBS, REPLICA_SETS, kind_of
from edl_controller.api.meta import LabelSelector
from edl_controller.api.pods import Container, PodTemplateSpec
from edl_controller.api.v1 import TrainingJob
from edl_controller.api.workloads import Job, ReplicaSet
from edl_controller.core.expansion import literal
from edl_controller.core.job_settings import JobSettings
from edl_controller.core.meeting_point import MeetingPoint, in_master
from edl_controller.core.parser import DefaultJobParser, JobParser, revision
from edl_controller.errors import InvalidTrainingJob
from tests.core.jobs import OWN, SHARED, edited, training_job

MODES = ("Launcher", "Library", "Sidecar", "Classic")


def children(
    job: TrainingJob, settings: JobSettings = SHARED, meeting: MeetingPoint | None = None
) -> dict[str, ReplicaSet | Job]:
    parser: JobParser = DefaultJobParser(settings)
    filled = parser.validate(job)
    if meeting is None and filled.spec.etcd.mode == "Master":
        meeting = in_master(filled, "10.0.0.9", "master-uid")
    found: dict[str, ReplicaSet | Job] = {
        "pserver": parser.parse_to_pserver(job, meeting),
        "trainer": parser.parse_to_trainer(job, meeting),
    }
    master = parser.parse_to_master(job)
    return found if master is None else {"master": master, **found}


def template(child: ReplicaSet | Job) -> PodTemplateSpec:
    return child.spec.template


def main(child: ReplicaSet | Job) -> Container:
    return template(child).spec.containers[0]


def env(container: Container) -> dict[str, str]:
    return {one.name: one.value for one in container.env}


def expanded(text: str, values: dict[str, str]) -> str:
    """What Kubernetes makes of ``$(NAME)`` (`k8s.io/kubernetes/third_party/forked/golang/expansion`)."""

    def one(found: re.Match[str]) -> str:
        if found[0] == "$$":
            return "$"
        return values.get(found[1], found[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", one, text)


def started(container: Container) -> list[str]:
    """The argument list that a node starts."""
    values: dict[str, str] = {}
    for variable in container.env:
        values[variable.name] = expanded(variable.value, values)
    return [expanded(word, values) for word in (*container.command, *container.args)]


# --- classic names ---


def test_children_have_the_classic_names_labels_ports_and_commands() -> None:
    job = training_job(
        {"pserver": {"min-instance": 2}, "ports_num": 2, "ports_num_for_sparse": 1, "port": 7164}, name="mnist"
    )
    found = children(job, OWN)
    assert {role: child.metadata.name for role, child in found.items()} == {
        "master": "mnist-master",
        "pserver": "mnist-pserver",
        "trainer": "mnist-trainer",
    }
    for role, label in (
        ("master", "paddle-job-master"),
        ("pserver", "paddle-job-pserver"),
        ("trainer", "paddle-job"),
    ):
        assert template(found[role]).metadata.labels[label] == "mnist"
    ports = [(port.name, port.container_port) for port in main(found["pserver"]).ports]
    assert ports == [("jobport-7164", 7164), ("jobport-7165", 7165), ("jobport-7166", 7166)]
    assert [started(main(found[role])) for role in found] == [
        ["paddle_k8s", "start_master"],
        ["paddle_k8s", "start_new_pserver"],
        ["paddle_k8s", "start_new_trainer"],
    ]
    master, etcd = template(found["master"]).spec.containers
    assert [(port.name, port.container_port) for one in (master, etcd) for port in one.ports] == [
        ("master-port", 8080),
        ("etcd-port", 2379),
    ]
    trainer = found["trainer"]
    assert isinstance(trainer, Job)
    assert (trainer.spec.parallelism, trainer.spec.completions) == (1, None)
    assert template(trainer).spec.restart_policy == "Never"


def test_a_strict_job_has_the_other_start_commands_and_fails_with_its_first_trainer() -> None:
    job = training_job(
        fault_tolerant=False, trainer={"entrypoint": "t", "min-instance": 2}, pserver={"min-instance": 1}
    )
    found = children(job, OWN)
    assert started(main(found["pserver"])) == ["paddle_k8s", "start_pserver"]
    assert started(main(found["trainer"])) == ["paddle_k8s", "start_trainer"]
    assert found["trainer"].spec.backoff_limit == 0  # type: ignore[union-attr]


def test_the_classic_environment_is_complete_in_each_pod() -> None:
    job = training_job(
        pserver={"min-instance": 2},
        passes=3,
        trainer={
            "entrypoint": "python train.py",
            "workspace": "/work",
            "min-instance": 2,
            "max-instance": 5,
            "resources": {"requests": {"cpu": "2500m"}, "limits": {"alpha.kubernetes.io/nvidia-gpu": 4}},
        },
    )
    for child in children(job, OWN).values():
        found = env(main(child))
        assert {name: found[name] for name in sorted(found) if not name.startswith(("EDL", "POD", "NAME"))} | {
            "MASTER_IP": "",
            "ETCD_IP": "",
        } == {
            "PADDLE_JOB_NAME": "digits",
            "TRAINERS": "2",
            "PADDLE_INIT_NUM_GRADIENT_SERVERS": "2",
            "PSERVERS": "2",
            "ENTRY": "python train.py",
            "TOPOLOGY": "python train.py",
            "TRAINER_PACKAGE": "/work",
            "PADDLE_INIT_PORT": "7164",
            "PADDLE_INIT_PORTS_NUM": "1",
            "PADDLE_INIT_PORTS_NUM_FOR_SPARSE": "1",
            "PADDLE_INIT_TRAINER_COUNT": "4",
            "PADDLE_INIT_NUM_PASSES": "3",
            "PADDLE_INIT_USE_GPU": "1",
            "LD_LIBRARY_PATH": "/usr/local/cuda/lib64",
            "MASTER_IP": "",
            "ETCD_IP": "",
        }
        paths = {
            one.name: one.value_from.field_ref.field_path
            for one in main(child).env
            if one.value_from and one.value_from.field_ref
        }
        assert paths == {
            "NAMESPACE": "metadata.namespace",
            "POD_NAME": "metadata.name",
            "POD_UID": "metadata.uid",
            "POD_IP": "status.podIP",
        }


@pytest.mark.parametrize(
    ("resources", "count", "gpu"),
    [
        ({}, "1", "0"),
        ({"requests": {"cpu": "250m"}}, "1", "0"),  # the original: 0 trainers
        ({"requests": {"cpu": "3"}}, "3", "0"),
        ({"requests": {"cpu": "3900m"}}, "3", "0"),
        ({"limits": {"cpu": 2}}, "2", "0"),
        ({"requests": {"cpu": "8"}, "limits": {"nvidia.com/gpu": "2"}}, "2", "1"),
    ],
)
def test_a_trainer_counts_its_gpus_else_its_whole_cpus_and_never_zero(
    resources: dict[str, Any], count: str, gpu: str
) -> None:
    job = training_job(trainer={"entrypoint": "t", "min-instance": 1, "resources": resources})
    found = env(main(children(job)["trainer"]))
    assert (found["PADDLE_INIT_TRAINER_COUNT"], found["PADDLE_INIT_USE_GPU"]) == (count, gpu)


def test_volumes_are_mounted_in_all_roles_and_the_classic_gpu_is_asked_for_by_its_present_name() -> None:
    job = training_job(
        volumes=[{"name": "data", "emptyDir": {}}],
        VolumeMounts=[{"name": "data", "mountPath": "/data"}],
        pserver={"min-instance": 1},
        trainer={
            "entrypoint": "t",
            "min-instance": 1,
            "resources": {"limits": {"alpha.kubernetes.io/nvidia-gpu": 1}},
        },
    )
    found = children(job, OWN)
    for child in found.values():
        assert [mount.mount_path for mount in main(child).volume_mounts] == ["/data"]
        assert template(child).spec.volumes[0].name == "data"
    assert main(found["trainer"]).resources.limits == {"nvidia.com/gpu": 1}


# --- what every pod needs ---


@pytest.mark.report("M36")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("settings", [SHARED, OWN])
def test_every_reference_and_every_variable_that_is_read_is_defined(mode: str, settings: JobSettings) -> None:
    job = training_job(
        agent={"mode": mode},
        etcd={"mode": "Master" if settings is OWN else "External"},
        master={"entrypoint": "m"} if settings is OWN else {},
    )
    for role, child in children(job, settings).items():
        spec = template(child).spec
        for container in (*spec.init_containers, *spec.containers):
            seen: set[str] = set()
            for variable in container.env:
                assert set(references(variable.value)) <= seen, f"{variable.name} refers to what comes later"
                seen.add(variable.name)
            texts = [*container.command, *container.args]
            assert {name for text in texts for name in references(text)} <= seen
            assert len(seen) == len(container.env), "a name is given twice"
            unprefixed = {"EDL_PREFIX"} if mode == "Classic" and settings is OWN else set()
            assert reads(container) - unprefixed <= seen, (role, container.name)
    # The check itself can fail.
    with pytest.raises(AssertionError):
        assert reads(main(children(job, settings)["trainer"])) <= {"POD_NAME"}


def references(text: str) -> list[str]:
    return re.findall(r"(?<!\$)(?:\$\$)*\$\(([^)]+)\)", text)


def reads(container: Container) -> set[str]:
    """What the program that a container starts reads of its environment, as far as it is ours or the original's."""
    if container.name == "etcd":
        return {"POD_IP", "POD_UID"}
    agent = {"EDL_ETCD_ENDPOINTS", "EDL_PREFIX", "EDL_TTL", "POD_NAME", "POD_UID", "POD_IP"}
    if container.name == "edl-agent":
        return agent
    classic = {"ENTRY", "TRAINER_PACKAGE", "PSERVERS", "TRAINERS", "PADDLE_JOB_NAME", "NAMESPACE", "POD_IP"}
    if container.command[:1] == ("paddle_k8s",):
        return classic  # the original's programs know no prefix
    return (
        agent
        | classic
        | ({"EDL_SOCKET"} if container.name != "master" and "edl-agent-socket" in mounts(container) else set())
    )


def mounts(container: Container) -> set[str]:
    return {mount.name for mount in container.volume_mounts}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.security(17)
def test_pods_are_restricted(mode: str) -> None:
    for settings in (SHARED, OWN):
        for child in children(training_job(agent={"mode": mode}), settings).values():
            spec = template(child).spec
            assert spec.security_context == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
            assert spec.automount_service_account_token is False
            assert not spec.host_network
            for container in (*spec.init_containers, *spec.containers):
                # The image of etcd would run as root.
                user = {"runAsUser": 65532} if container.name == "etcd" else {}
                assert container.security_context == {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                    **user,
                }


@pytest.mark.security(12)
def test_a_role_overrides_the_job_and_nobody_overrides_the_controller() -> None:
    job = training_job(
        NodeSelector={"disk": "ssd"},
        template={
            "labels": {"team": "a", "tier": "x"},
            "nodeSelector": {"zone": "1"},
            "securityContext": {"runAsUser": 1000},
            "priorityClassName": "low",
        },
        trainer={
            "entrypoint": "t",
            "min-instance": 1,
            "template": {"labels": {"tier": "y"}, "nodeSelector": {"disk": "hdd"}, "priorityClassName": "high"},
        },
    )
    spec = template(children(job)["trainer"])
    assert {"team": "a", "tier": "y", "paddle-job": "digits"}.items() <= spec.metadata.labels.items()
    assert spec.spec.node_selector == {"disk": "hdd", "zone": "1"}
    assert spec.spec.priority_class_name == "high"
    assert spec.spec.security_context == {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
        "runAsUser": 1000,
    }
    # Stored before there was a validation: the labels that select pods are the controller's all the same.
    evil = training_job(template={"labels": {"paddle-job": "victim", "paddlepaddle.org/job-uid": "uid-of-victim"}})
    for child in (DefaultJobParser(SHARED).parse_to_trainer(evil), DefaultJobParser(SHARED).parse_to_pserver(evil)):
        assert template(child).metadata.labels["paddlepaddle.org/job-uid"] == "uid-1"
        if isinstance(child, ReplicaSet):
            assert child.spec.selector.matches(template(child).metadata.labels)
            assert not LabelSelector(match_labels={"paddlepaddle.org/job-uid": "uid-of-victim"}).matches(
                template(child).metadata.labels
            )


@pytest.mark.security(11)
def test_reserved_variables_stay_the_controllers_and_the_roles_win_over_the_jobs() -> None:
    job = training_job(
        env=[{"name": "A", "value": "job"}, {"name": "LD_LIBRARY_PATH", "value": "/own"}],
        trainer={"entrypoint": "t", "min-instance": 1, "env": [{"name": "A", "value": "role"}]},
    )
    found = env(main(children(job)["trainer"]))
    assert (found["A"], found["LD_LIBRARY_PATH"]) == ("role", "/own")
    evil = training_job(env=[{"name": "EDL_PREFIX", "value": "/"}, {"name": "PSERVERS", "value": "9"}])
    with pytest.raises(InvalidTrainingJob):
        DefaultJobParser(SHARED).validate(evil)
    found = env(main(DefaultJobParser(SHARED).parse_to_trainer(evil)))  # stored before there was a validation
    assert (found["EDL_PREFIX"], found["PSERVERS"]) == ("/edl/jobs/team/digits/uid-1", "2")


def test_secrets_are_mounted_into_pods_for_a_group_only_and_not_into_the_master() -> None:
    job = training_job(
        etcd={
            "endpoints": ["https://etcd:2379"],
            "tls": {"secretName": "tls", "clientCertificate": True},
            "credentials": {"secretName": "login"},
        },
        agent={"mode": "Sidecar"},
    )
    spec = template(children(job)["pserver"]).spec
    for container in (*spec.containers, *spec.init_containers):
        found = env(container)
        assert found["EDL_ETCD_CA"] == "/etc/edl/etcd-tls/ca.crt"
        assert (found["EDL_ETCD_CERT"], found["EDL_ETCD_KEY"]) == (
            "/etc/edl/etcd-tls/tls.crt",
            "/etc/edl/etcd-tls/tls.key",
        )
        assert found["EDL_ETCD_PASSWORD_FILE"] == "/etc/edl/etcd-login/password"
        assert {"edl-etcd-tls", "edl-etcd-login"} <= mounts(container)
    assert [volume.secret for volume in spec.volumes if volume.secret] == [
        {"secretName": "tls", "defaultMode": 0o440},
        {"secretName": "login", "defaultMode": 0o440},
    ]
    assert spec.security_context is not None
    assert spec.security_context["fsGroup"]


# --- commands ---


def test_the_launcher_understands_what_it_is_started_with() -> None:
    for settings in (SHARED, JobSettings(etcd_endpoints=("http://e:2379",), probe_port=0)):
        for role in ("pserver", "trainer"):
            container = main(children(training_job(), settings)[role])
            words = started(container)
            assert words[:2] == ["edl-agent", "run"]
            given = run_command.make_context("run", words[2:], resilient_parsing=True).params
            assert given["role"] == role
            assert given["command"] == tuple(shlex.split(f"python {'train' if role == 'trainer' else role}.py"))
            assert given["port"] == (7164 if role == "pserver" else None)
            probe = container.readiness_probe
            assert probe is not None
            if settings is SHARED:
                assert probe.http_get is not None
                assert given["probe_port"] == probe.http_get.port == 7099
            else:
                assert probe.exec is not None
                assert probe.exec.command[1] == ready.name


def test_a_sidecar_shares_a_folder_with_the_program() -> None:
    job = training_job(agent={"mode": "Sidecar", "image": "example.com/agent:1"})
    spec = template(children(job)["pserver"]).spec
    (sidecar,) = spec.init_containers
    assert (sidecar.restart_policy, sidecar.image) == ("Always", "example.com/agent:1")
    assert sidecar.command == (
        *("edl-agent", "sidecar", "--socket", "/run/edl/agent/agent.sock"),
        *("--num-pservers", "2"),
    )
    program = spec.containers[0]
    assert started(program) == ["python", "pserver.py"]
    assert env(program)["EDL_SOCKET"] == "/run/edl/agent/agent.sock"
    assert mounts(program) == mounts(sidecar) == {"edl-agent-socket"}
    assert "A" not in env(sidecar)


@pytest.mark.parametrize("role", ["pserver", "trainer"])
def test_a_launcher_with_a_read_only_root_has_a_folder_for_its_socket(role: str) -> None:
    """Elsewhere it takes /tmp: a mount that is not needed is not made."""
    job = training_job(template={"containerSecurityContext": {"readOnlyRootFilesystem": True}})
    spec = template(children(job)[role]).spec
    program = spec.containers[0]
    (mount,) = program.volume_mounts
    (volume,) = spec.volumes
    assert (volume.name, volume.empty_dir is not None) == (mount.name, True)
    # In a folder of its own below the mount, which is everybody's.
    assert env(program)["EDL_RUN_DIR"].startswith(f"{mount.mount_path}/")

    plain = main(children(training_job())[role])
    assert not plain.volume_mounts
    assert "EDL_RUN_DIR" not in env(plain)


def test_without_pservers_there_is_nothing_to_wait_for() -> None:
    job = training_job(pserver={"min-instance": 0}, agent={"mode": "Launcher"})
    assert started(main(children(job)["trainer"])) == ["python", "train.py"]


CANARIES = [
    "python train.py; touch MARKER",
    "python train.py && touch MARKER",
    "python train.py | tee MARKER",
    "python train.py > MARKER",
    "python train.py $(touch MARKER)",
    "python train.py `touch MARKER`",
    "python train.py '$(POD_NAME)' $$(POD_NAME) $HOME ${HOME}",
    'python train.py "two words" --flag',
    "python 'it''s' \\; -x --",
    "python train.py '\n touch MARKER'",
    "-c 'touch MARKER'",
]


@pytest.mark.parametrize("entrypoint", CANARIES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.security(9)
def test_shell_characters_stay_data(entrypoint: str, mode: str, tmp_path: Path) -> None:
    """Every word reaches the program byte for byte, and nothing else is run."""
    job = training_job(
        agent={"mode": mode},
        trainer={
            "entrypoint": entrypoint,
            "min-instance": 1,
            "env": [{"name": "CANARY", "value": entrypoint}],
            "workspace": entrypoint,
        },
    )
    container = main(children(job)["trainer"])
    words, wanted = started(container), shlex.split(entrypoint)
    if mode == "Classic":
        assert words == ["paddle_k8s", "start_new_trainer"]
    else:
        assert words[-len(wanted) :] == wanted
    assert not {"sh", "bash", "/bin/sh"} & set(words) - set(wanted)
    values: dict[str, str] = {"POD_NAME": "stolen"}
    for variable in container.env:
        values[variable.name] = expanded(variable.value, values)
    for name in ("CANARY", "ENTRY", "TOPOLOGY", "TRAINER_PACKAGE"):
        assert values[name] == entrypoint
    # As a node starts it: the words are the arguments of one process, and no file appears.
    code = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['ENTRY']]))"
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=tmp_path,
        env={**os.environ, "ENTRY": values["ENTRY"]},
        capture_output=True,
        check=True,
        text=True,
    )
    assert json.loads(done.stdout) == [words, entrypoint]
    assert not list(tmp_path.iterdir())


@given(st.text(alphabet="$()AB x", max_size=20))
@pytest.mark.security(10)
def test_kubernetes_expansion_gives_back_what_the_user_wrote(text: str) -> None:
    assert expanded(literal(text), {"A": "1", "B": "2", "": "3"}) == text


# --- the rest ---


def test_faults_are_named_all_at_once() -> None:
    job = training_job(trainer={"min-instance": 3, "max-instance": 1}, port=99999)
    with pytest.raises(InvalidTrainingJob) as caught:
        DefaultJobParser(SHARED).validate(job)
    for path in ("spec.trainer.entrypoint", "spec.trainer.max-instance", "spec.port"):
        assert path in str(caught.value)


def test_parsing_is_repeatable_and_the_children_belong_to_the_job() -> None:
    job = training_job()
    assert children(job) == children(job)
    for child in children(job, OWN).values():
        owner = child.metadata.controller()
        assert owner is not None
        assert (owner.kind, owner.name, owner.uid) == ("TrainingJob", "digits", "uid-1")


def test_a_job_with_its_defaults_is_parsed_like_one_without() -> None:
    parser = DefaultJobParser(SHARED)
    bare, filled = parser.parse_to_trainer(training_job()), parser.parse_to_trainer(parser.validate(training_job()))
    assert bare.spec.template.spec == filled.spec.template.spec


@pytest.mark.parametrize(
    ("edit", "pserver", "trainer"),
    [
        ({"image": "x:2"}, True, True),
        ({"trainer": {"image": "x:2"}}, False, True),
        ({"pserver": {"resources": {"requests": {"cpu": 1}}}}, True, False),
        ({"trainer": {"min-instance": 2}}, False, False),
        ({"trainer": {"max-instance": 9}}, False, False),
        ({"pserver": {"min-instance": 9}}, False, False),
        ({"suspend": True}, False, False),
        ({"autoscaling": {"priority": 3}}, False, False),
        ({"ttlSecondsAfterFinished": 3}, False, False),
    ],
)
def test_which_edits_make_other_pods(edit: dict[str, Any], pserver: bool, trainer: bool) -> None:
    before = training_job()
    after = edited(before, **edit)
    assert (revision(after, "pserver") != revision(before, "pserver")) == pserver
    assert (revision(after, "trainer") != revision(before, "trainer")) == trainer


# --- golden children ---

GOLDEN = Path(__file__).parent / "children_golden"
_CLASSIC = {
    "image": "paddlepaddle/paddlecloud-job",
    "port": 7164,
    "ports_num": 1,
    "ports_num_for_sparse": 1,
    "fault_tolerant": True,
    "trainer": {
        "entrypoint": "python train.py",
        "workspace": "/home/job-1/",
        "passes": 10,
        "min-instance": 2,
        "max-instance": 6,
        "resources": {
            "limits": {"alpha.kubernetes.io/nvidia-gpu": 1, "cpu": "200m", "memory": "200Mi"},
            "requests": {"cpu": "200m", "memory": "200Mi"},
        },
    },
    "pserver": {
        "min-instance": 2,
        "max-instance": 2,
        "resources": {"limits": {"cpu": "800m", "memory": "600Mi"}, "requests": {"cpu": "500m", "memory": "600Mi"}},
    },
}


@pytest.mark.parametrize(
    ("name", "spec", "settings"),
    [
        ("classic-example", _CLASSIC, OWN),
        ("launcher", {}, SHARED),
        ("launcher-own-etcd", {"master": {"command": ["python", "master.py"]}}, OWN),
        ("library", {"agent": {"mode": "Library"}}, SHARED),
        ("sidecar", {"agent": {"mode": "Sidecar", "image": "example.com/agent:1"}}, SHARED),
    ],
)
def test_golden_children(
    name: str, spec: dict[str, Any], settings: JobSettings, request: pytest.FixtureRequest
) -> None:
    """What is generated is written down: a change of it is seen, and is meant.

    ``EDL_WRITE_GOLDEN=1 pytest tests/core/test_parser.py`` writes it anew.
    """
    found = children(training_job(spec, name="example"), settings)
    assert {kind_of(child) for child in found.values()} == {JOBS, REPLICA_SETS}
    text = json.dumps({role: kind_of(child).to_json(child) for role, child in found.items()}, indent=1) + "\n"
    path = GOLDEN / f"{name}.json"
    if os.environ.get("EDL_WRITE_GOLDEN"):
        path.write_text(text)
    assert path.read_text() == text
