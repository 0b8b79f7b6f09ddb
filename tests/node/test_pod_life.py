"""What becomes of pods on a real node: real processes, real signals, objects in a real etcd."""

from __future__ import annotations

import base64
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from edl_controller.api.configuration import ConfigMap, Secret
from edl_controller.api.kinds import NODES, PODS
from edl_controller.api.meta import ObjectMeta
from edl_controller.api.pods import Pod
from edl_controller.machine.node.images import ImageMapping, Images
from edl_controller.machine.node.restart import BackOff
from tests.bench.waiting import eventually, never
from tests.node.conftest import NAP, Room, condition, of, processes_with, python, shell

DEAF = "trap '' TERM; echo up; while :; do sleep 0.05; done"
POLITE = "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.02; done"


def gone(node: Room, name: str, timeout: float = 10.0) -> None:
    eventually(lambda: node.gone(name), timeout, f"end of {name}")


def test_a_log_that_is_too_long_is_cut_while_its_container_writes(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edl_controller.machine.node.log_limit.MOST", 100_000)
    monkeypatch.setattr("edl_controller.machine.node.log_limit.LEFT", 5_000)
    monkeypatch.setattr("edl_controller.machine.node.log_limit.LOOK_EVERY", 0.1)
    room.start()
    room.run("p", shell("i=0; while [ $$i -lt 40000 ]; do i=$$((i+1)); echo line $$i; done"))
    pod = room.phase("p", "Succeeded", 60)
    eventually(lambda: len(room.log(pod)) < 100_000, 10, "the log is cut")
    first, *lines = room.log(pod).splitlines()
    assert re.fullmatch(r"\[edl: the \d+ bytes before this were removed\]", first)
    numbers = [int(line.removeprefix("line ")) for line in lines]
    assert numbers == sorted(set(numbers)), "whole lines, in their order"
    assert numbers[-1] == 40000


# -- ends ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "phase", "code", "number", "reason"),
    [
        ("echo hello; echo trouble >&2", "Succeeded", 0, 0, "Completed"),
        ("exit 3", "Failed", 3, 0, "Error"),
        ("kill -9 $$$$", "Failed", 137, 9, "Error"),
        ("kill -SEGV $$$$", "Failed", 139, 11, "Error"),
    ],
)
def test_how_a_pod_ends(node: Room, script: str, phase: str, code: int, number: int, reason: str) -> None:
    node.run("p", shell(script))
    pod = node.phase("p", phase)
    ended = of(pod, "c0").state.terminated
    assert ended is not None
    assert (ended.exit_code, ended.signal, ended.reason) == (code, number, reason)
    assert ended.started_at
    assert ended.finished_at
    if code == 0:
        assert node.log(pod) == "hello\ntrouble\n"
    assert condition(pod, "Ready")[1] == ("PodCompleted" if code == 0 else "PodFailed")
    assert pod.status.pod_ip.startswith("127.")
    assert pod.status.host_ip == node.agent.address
    node.delete("p")
    gone(node, "p")


def test_a_running_pod_is_ready_and_ends_when_it_is_deleted(node: Room) -> None:
    node.run("p", shell(POLITE))
    pod = node.up("p")
    assert (pod.status.phase, of(pod, "c0").ready, of(pod, "c0").started) == ("Running", True, True)
    assert condition(pod, "Initialized")[0] == condition(pod, "ContainersReady")[0] == "True"
    node.delete("p")
    gone(node, "p")
    assert node.log(pod).split()[-1] == "bye"
    assert "Killing" in node.reasons("p")
    eventually(lambda: not (node.agent.root / "pods" / pod.metadata.uid).exists(), 5, "the pod's folder to go")


def test_who_does_not_hear_sigterm_is_killed_after_the_grace(node: Room) -> None:
    node.run("p", shell(DEAF), terminationGracePeriodSeconds=1)
    node.up("p")
    begin = time.monotonic()
    node.delete("p")
    gone(node, "p")
    assert 0.9 < time.monotonic() - begin < 4


def test_a_later_request_shortens_the_grace(node: Room) -> None:
    node.run("p", shell(DEAF), terminationGracePeriodSeconds=60)
    node.up("p")
    node.delete("p")
    node.until("p", lambda pod: pod.metadata.deletion_timestamp)
    node.delete("p", grace=1)
    gone(node, "p")


def test_grace_zero_kills_at_once(node: Room) -> None:
    node.run("p", shell(f"{DEAF} # force-{NAP}"), terminationGracePeriodSeconds=60)
    node.up("p")
    node.delete("p", grace=0)
    gone(node, "p")
    eventually(lambda: not processes_with(f"force-{NAP}"), 5, "end of the processes")


def test_the_final_phase_is_seen_before_the_pod_vanishes(node: Room) -> None:
    node.run("p", shell(POLITE))
    version = node.up("p").metadata.resource_version
    node.delete("p")
    last: list[Pod] = []
    for change in node.cluster.watch(PODS, "default", version, threading.Event()):
        if change.obj is not None:
            last.append(change.obj)
        if change.type == "DELETED":
            break
    assert last[-1].status.phase == "Succeeded"
    assert last[-1].metadata.deletion_timestamp


def test_a_deadline(node: Room) -> None:
    node.run("p", shell("sleep 100"), activeDeadlineSeconds=1)
    pod = node.phase("p", "Failed")
    assert pod.status.reason == "DeadlineExceeded"
    assert of(pod, "c0").state.terminated is not None


def test_last_words(node: Room, tmp_path: Path) -> None:
    words = tmp_path / "words"
    node.run(
        "p",
        shell("echo to-default > /dev/termination-log; exit 1") if os.geteuid() == 0 else shell("exit 1"),
        {**shell('echo own words > "$EDL_TERMINATION_LOG"'), "terminationMessagePath": str(words)},
        {**shell("echo only in the log; exit 1"), "terminationMessagePolicy": "FallbackToLogsOnError"},
    )
    pod = node.phase("p", "Failed")
    messages = [of(pod, f"c{number}").state.terminated.message for number in range(3)]  # type: ignore[union-attr]
    assert messages[1:] == ["own words\n", "only in the log\n"]
    if os.geteuid() == 0:
        assert messages[0] == "to-default\n"
        eventually(lambda: not words.exists(), 5, "end of the mount point")


# -- restarts --------------------------------------------------------------------------------------------------------


def test_restart_on_failure_until_it_succeeds(node: Room, tmp_path: Path) -> None:
    counter = tmp_path / "n"
    node.run("p", shell(f"echo x >> {counter}; [ $(wc -l < {counter}) = 3 ]"), restartPolicy="OnFailure")
    pod = node.phase("p", "Succeeded")
    found = of(pod, "c0")
    assert found.restart_count == 2
    assert found.last_state.terminated is not None
    assert found.last_state.terminated.exit_code == 1
    assert "BackOff" in node.reasons("p")


def test_restart_always_backs_off(node: Room) -> None:
    node.run("p", shell("echo run; exit 0"), restartPolicy="Always")
    pod = node.until(
        "p",
        lambda pod: (
            of(pod, "c0").restart_count >= 3
            and of(pod, "c0").state.waiting
            and of(pod, "c0").state.waiting.reason == "CrashLoopBackOff"  # type: ignore[union-attr]
        ),
    )
    assert pod.status.phase == "Running"
    assert of(pod, "c0").last_state.terminated is not None
    assert node.log(pod, run=2) == "run\n"
    node.delete("p")
    gone(node, "p", 3)


@pytest.mark.parametrize(
    ("container", "reason", "says"),
    [
        ({"command": ["no-such-program-x"]}, "CreateContainerError", "no-such-program-x"),
        ({"command": ["/no/such/program"]}, "CreateContainerError", "No such file"),
        ({"command": ["/etc/passwd"]}, "CreateContainerError", "Permission denied"),
        ({"command": ["true"], "workingDir": "/no/such/folder"}, "CreateContainerError", "/no/such/folder"),
        ({}, "CreateContainerError", "no command"),
        ({"command": ["true"], "image": "gone:1"}, "ErrImagePull", "/no/such/venv"),
        (
            {"command": ["true"], "envFrom": [{"secretRef": {"name": "later"}}]},
            "CreateContainerConfigError",
            "'later'",
        ),
    ],
)
def test_what_cannot_start_waits_and_says_why(room: Room, container: dict[str, Any], reason: str, says: str) -> None:
    images = Images({"gone": ImageMapping(virtualenv="/no/such/venv")})
    room.start(images=images, back_off=BackOff(first=30.0))
    room.run("p", container)
    pod = room.until("p", lambda pod: getattr(of(pod, "c0").state.waiting, "reason", "") == reason)
    waiting = of(pod, "c0").state.waiting
    assert waiting is not None
    assert says in waiting.message
    assert pod.status.phase == "Pending"
    assert "Failed" in room.reasons("p")


def test_a_secret_that_comes_later(node: Room) -> None:
    node.run("p", {**shell('echo "$KEY"'), "envFrom": [{"secretRef": {"name": "later"}}]})
    node.until("p", lambda pod: getattr(of(pod, "c0").state.waiting, "reason", "") == "CreateContainerConfigError")
    data = {"KEY": base64.b64encode(b"open").decode()}
    node.cluster.create(Secret(metadata=ObjectMeta(name="later", namespace="default"), data=data))
    assert node.log(node.phase("p", "Succeeded")) == "open\n"


# -- what a container sees -------------------------------------------------------------------------------------------


@pytest.mark.report("M66")
@pytest.mark.security(9)
def test_environment_arguments_and_shell_characters(node: Room) -> None:
    node.cluster.create(ConfigMap(metadata=ObjectMeta(name="cm", namespace="default"), data={"GREETING": "hi $(NAME)"}))
    nasty = "; touch marker; $(touch marker) `touch marker` \"'\n*"
    show = "import os, sys; print(sys.argv[1:], {k: os.environ.get(k) for k in os.environ['SHOW'].split()}, sep='|')"
    env: list[dict[str, Any]] = [
        {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "BOTH", "value": "$(NAME)@$(NODE)$$(NODE)$(NONE)"},
        {"name": "NASTY", "value": nasty.replace("$(", "$$(")},
        {"name": "SHOW", "value": "NAME POD_IP NODE BOTH NASTY GREETING HOSTNAME EDL_CANARY"},
    ]
    container = {
        **python(show, "$(NAME)", "$$(NAME)", nasty.replace("$(", "$$(")),
        "env": env,
        "envFrom": [{"configMapRef": {"name": "cm"}}],
    }
    os.environ["EDL_CANARY"] = "of the node"
    try:
        node.run("p", container)
        pod = node.phase("p", "Succeeded")
    finally:
        del os.environ["EDL_CANARY"]
    arguments, _, variables = node.log(pod).strip().partition("|")
    assert eval(arguments) == ["p", "$(NAME)", nasty]
    assert eval(variables) == {
        "NAME": "p", "POD_IP": pod.status.pod_ip, "NODE": "node-a", "BOTH": "p@node-a$(NODE)$(NONE)", "NASTY": nasty,
        "GREETING": "hi $(NAME)", "HOSTNAME": "p", "EDL_CANARY": None,
    }  # fmt: skip
    assert not list(node.root.rglob("marker"))


def test_images_are_this_machine(room: Room, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "trainer").write_text("#!/bin/sh\necho mapped $FLAVOUR $1\n")
    (tools / "trainer").chmod(0o755)
    file = tmp_path / "images.yaml"
    file.write_text(f"reg.example:5000/train: {{path: [{tools}], env: {{FLAVOUR: mint}}, entrypoint: [trainer]}}\n")
    room.start(images=Images.read(file))
    room.run("mapped", {"image": "reg.example:5000/train:1.2@sha256:00", "args": ["now"]})
    room.run("plain", {"image": "other", "command": ["python", "-c", "import sys; print(sys.prefix)"]})
    assert room.log(room.phase("mapped", "Succeeded")) == "mapped mint now\n"
    assert room.log(room.phase("plain", "Succeeded")) == f"{sys.prefix}\n"
    assert len(room.notes("ImageMapped")) == 2
    assert "not pulled" in room.notes("ImageMapped")[0]
    file.write_text("x: {pathh: []}")
    with pytest.raises(ValueError, match="pathh"):
        Images.read(file)


def test_working_directory_and_nice(node: Room, tmp_path: Path) -> None:
    node.run("own", {**shell("pwd; nice"), "workingDir": str(tmp_path)})
    node.run("none", shell("pwd; ls"))
    assert node.log(node.phase("own", "Succeeded")) == f"{tmp_path}\n5\n"
    pod = node.phase("none", "Succeeded")
    assert node.log(pod) == f"{node.agent.root}/pods/{pod.metadata.uid}/containers/c0\n"


# -- init containers, sidecars, hooks --------------------------------------------------------------------------------


def test_init_containers_run_one_after_the_other(node: Room, tmp_path: Path) -> None:
    out = tmp_path / "order"
    node.run(
        "p",
        shell(f"echo main >> {out}"),
        initContainers=[
            {"name": "i0", **shell(f"sleep 0.2; echo i0 >> {out}")},
            {"name": "i1", **shell(f"echo i1 >> {out}")},
        ],
    )
    node.until("p", lambda pod: condition(pod, "Initialized")[1] == "ContainersNotInitialized")
    pod = node.phase("p", "Succeeded")
    assert out.read_text().split() == ["i0", "i1", "main"]
    assert of(pod, "i0").ready


def test_a_failed_init_container(node: Room, tmp_path: Path) -> None:
    node.run("never", shell("echo main"), initContainers=[{"name": "i", **shell("exit 4")}])
    pod = node.phase("never", "Failed")
    assert of(pod, "c0").state.waiting is not None
    flag = tmp_path / "flag"
    init = {"name": "i", **shell(f"[ -e {flag} ] || {{ touch {flag}; exit 1; }}")}
    node.run("again", shell("echo main"), initContainers=[init], restartPolicy="OnFailure")
    assert of(node.phase("again", "Succeeded"), "i").restart_count == 1


def test_sidecars_start_before_and_stop_after(node: Room, tmp_path: Path) -> None:
    out = tmp_path / "order"

    def sidecar(name: str) -> dict[str, Any]:
        script = f"trap 'echo end-{name} >> {out}; exit 0' TERM; echo {name} >> {out}; while :; do sleep 0.02; done"
        probe = {"exec": {"command": ["grep", "-q", name, str(out)]}, "periodSeconds": 1}
        return {"name": name, "restartPolicy": "Always", "startupProbe": probe, **shell(script)}

    node.run("p", shell(f"echo main >> {out}"), initContainers=[sidecar("s1"), sidecar("s2")])
    pod = node.phase("p", "Succeeded")
    assert out.read_text().split() == ["s1", "s2", "main", "end-s2", "end-s1"]
    assert of(pod, "s1").state.terminated is not None


def test_a_sidecar_is_started_again(node: Room) -> None:
    sidecar = {"name": "s", "restartPolicy": "Always", **shell("sleep 0.3; exit 1")}
    node.run("p", shell("sleep 1.5"), initContainers=[sidecar])
    node.until("p", lambda pod: of(pod, "s").restart_count >= 1)
    assert node.phase("p", "Succeeded").status.phase == "Succeeded"


def test_hooks(node: Room, tmp_path: Path) -> None:
    out = tmp_path / "order"
    lifecycle = {
        "postStart": {"exec": {"command": ["sh", "-c", f"sleep 0.2; echo post >> {out}"]}},
        "preStop": {"exec": {"command": ["sh", "-c", f"echo pre >> {out}"]}},
    }
    script = f"trap 'echo term >> {out}; exit 0' TERM; echo up; while :; do sleep 0.02; done"
    node.run("p", {**shell(script), "lifecycle": lifecycle})
    node.up("p")
    assert out.read_text().split() == ["post"]
    node.delete("p")
    gone(node, "p")
    assert out.read_text().split() == ["post", "pre", "term"]


def test_a_hook_that_waits_and_one_that_fails(node: Room) -> None:
    node.run("slow", {**shell(POLITE), "lifecycle": {"preStop": {"sleep": {"seconds": 1}}}})
    node.up("slow")
    begin = time.monotonic()
    node.delete("slow")
    gone(node, "slow")
    assert 0.9 < time.monotonic() - begin < 4
    node.run("bad", {**shell(POLITE), "lifecycle": {"postStart": {"exec": {"command": ["false"]}}}})
    node.until("bad", lambda pod: pod.status.phase in ("Succeeded", "Failed"))
    assert "FailedPostStartHook" in node.reasons("bad")
    node.run("stuck", {**shell(POLITE), "lifecycle": {"preStop": {"exec": {"command": ["sleep", "100"]}}}},
             terminationGracePeriodSeconds=1)  # fmt: skip
    node.up("stuck")
    node.delete("stuck")
    gone(node, "stuck", 4)


# -- probes ----------------------------------------------------------------------------------------------------------

SERVER = """
import http.server, os, sys
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        good = self.path == "/ok" or os.path.exists(sys.argv[2])
        self.send_response(200 if good else 503); self.end_headers()
    def log_message(self, *a): pass
http.server.HTTPServer((sys.argv[1], 8080), H).serve_forever()
"""
IP = [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]


def test_http_and_tcp_probes_on_the_pods_own_address(node: Room, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    server = {**python(SERVER, "$(POD_IP)", str(flag)), "env": IP, "ports": [{"name": "web", "containerPort": 8080}]}
    probes = {
        "startupProbe": {"tcpSocket": {"port": "web"}, "periodSeconds": 1, "failureThreshold": 10},
        "readinessProbe": {"httpGet": {"port": "web", "path": "/flag"}, "periodSeconds": 1, "failureThreshold": 1},
        "livenessProbe": {"httpGet": {"port": 8080, "path": "/ok"}, "periodSeconds": 1},
    }
    node.run("a", {**server, **probes})
    node.run("b", {**server, **probes})  # the same port, at another address
    for name in "ab":
        node.until(name, lambda pod: of(pod, "c0").started and condition(pod, "Ready")[0] == "False")
    flag.touch()
    ips = {node.ready(name).status.pod_ip for name in "ab"}
    assert len(ips) == 2
    flag.unlink()
    node.ready("a", "False")
    assert any("503" in note for note in node.notes("Unhealthy"))
    assert of(node.get("a"), "c0").restart_count == 0


def test_a_liveness_probe_restarts(node: Room, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    flag.touch()
    probe = {"exec": {"command": ["test", "-e", str(flag)]}, "periodSeconds": 1, "failureThreshold": 2}
    node.run(
        "p", {**shell(DEAF), "livenessProbe": {**probe, "terminationGracePeriodSeconds": 1}}, restartPolicy="Always"
    )
    node.up("p")
    flag.unlink()
    pod = node.until("p", lambda pod: of(pod, "c0").restart_count == 1)
    assert of(pod, "c0").last_state.terminated.exit_code == 137  # type: ignore[union-attr]
    assert "Killing" in node.reasons("p")
    flag.touch()


def test_a_probe_that_hangs_is_cut_off(node: Room) -> None:
    probe = {"exec": {"command": ["sleep", NAP]}, "periodSeconds": 1, "timeoutSeconds": 1}
    node.run("p", {**shell("sleep 100"), "readinessProbe": probe})
    eventually(lambda: any("timed out" in note for note in node.notes("Unhealthy")), 5, "the timeout")
    assert condition(node.get("p"), "Ready")[0] == "False"
    node.delete("p", grace=0)
    eventually(lambda: not processes_with(NAP), 5, "end of the probe")


def test_probes_and_hooks_end_with_their_container(node: Room) -> None:
    probe = {"exec": {"command": ["sleep", NAP]}, "periodSeconds": 1, "timeoutSeconds": 60}
    hook = {"postStart": {"exec": {"command": ["sleep", NAP]}}}
    node.run("probe", {**shell(POLITE), "readinessProbe": probe})
    node.run("hook", {**shell(POLITE), "lifecycle": hook})
    eventually(lambda: len(processes_with(NAP)) >= 2, 10, "the probe and the hook")
    for name in ("probe", "hook"):
        node.delete(name)
        gone(node, name)
    assert not processes_with(NAP)


def test_readiness_gates_belong_to_others(node: Room) -> None:
    node.run("p", shell("sleep 100"), readinessGates=[{"conditionType": "edl/active"}])
    pod = node.until("p", lambda pod: condition(pod, "Ready")[1] == "ReadinessGatesNotReady")
    assert condition(pod, "ContainersReady")[0] == "True"

    def gate(status: str) -> None:
        pod = node.get("p")
        others = [one for one in PODS.to_json(pod)["status"]["conditions"] if one["type"] != "edl/active"]
        patch = {"status": {"conditions": [*others, {"type": "edl/active", "status": status}]}}
        node.cluster.patch(
            PODS, "default", "p", patch, subresource="status", resource_version=pod.metadata.resource_version
        )

    gate("True")
    pod = node.ready("p")
    assert condition(pod, "edl/active")[0] == "True"
    begin = time.monotonic()
    gate("False")
    node.ready("p", "False")
    assert time.monotonic() - begin < 1.0


# -- the machine -----------------------------------------------------------------------------------------------------


def test_a_wildcard_bind_is_reported(node: Room) -> None:
    listen = "import socket, sys, time; s = socket.create_server((sys.argv[1], 0)); "
    listen += "print(s.getsockname()[1]); time.sleep(99)"
    node.run("wild", python(listen, "0.0.0.0"))
    node.run("good", {**python(listen, "$(POD_IP)"), "env": IP})
    note = eventually(lambda: node.notes("WildcardBind"), 10, "the event")[0]
    assert node.log(node.get("wild")).strip() in note
    assert node.get("wild").status.pod_ip in note
    never(lambda: "WildcardBind" in node.reasons("good") or len(node.notes("WildcardBind")) > 1, 1.0)


def test_addresses_are_given_back_and_nodes_have_their_own(room: Room) -> None:
    first, second = room.start("node-a"), room.start("node-b")
    assert first.address != second.address
    room.run("p", shell("sleep 100"))
    ip = room.ready("p").status.pod_ip
    assert ip.rpartition(".")[0] == second.address.rpartition(".")[0]
    assert ip != second.address


def test_the_node_object(room: Room) -> None:
    room.start("node-x", labels={"zone": "a"}, heartbeat=0.3)
    node = room.cluster.get(NODES, "", "node-x")
    assert node.metadata.labels["kubernetes.io/hostname"] == "node-x"
    assert node.metadata.labels["zone"] == "a"
    assert node.status.allocatable["cpu"] == "4"
    ready = next(one for one in node.status.conditions if one.type == "Ready")
    assert ready.status == "True"
    eventually(
        lambda: (
            room.cluster.get(NODES, "", "node-x").status.conditions[0].last_heartbeat_time
            != node.status.conditions[0].last_heartbeat_time
        ),
        5,
        "a heartbeat",
    )
    room.agent.stop()
    ready = next(o for o in room.cluster.get(NODES, "", "node-x").status.conditions if o.type == "Ready")
    assert (ready.status, ready.reason) == ("False", "NodeShutdown")


def test_pods_of_other_nodes_are_left_alone(node: Room) -> None:
    node.run("p", shell("sleep 1"), nodeName="elsewhere")
    never(lambda: node.get("p").status.container_statuses, 0.5)


def test_a_node_that_comes_back_takes_its_pods_over(room: Room) -> None:
    room.start()
    room.run("never", shell(f"sleep {NAP}"))
    room.run("always", shell(f"sleep {NAP}"), restartPolicy="Always",
             initContainers=[{"name": "i", **shell("true")}])  # fmt: skip
    room.ready("never")
    room.ready("always")
    room.agent.stop()
    assert not processes_with(NAP)
    assert room.get("never").status.phase == "Running"  # nobody has said otherwise
    room.start()
    pod = room.phase("never", "Failed")
    assert of(pod, "c0").state.terminated.exit_code == 137  # type: ignore[union-attr]
    pod = room.until("always", lambda pod: of(pod, "c0").restart_count == 1)
    assert of(room.ready("always"), "i").restart_count == 0


def test_a_pod_deleted_while_the_node_was_away(room: Room) -> None:
    room.start()
    room.run("p", shell("sleep 100"))
    room.ready("p")
    room.agent.stop()
    room.delete("p")
    assert not room.gone("p")
    room.start()
    gone(room, "p")


def test_signals_of_the_users_reach_the_group(node: Room) -> None:
    node.run("p", shell(f"trap 'kill %1; exit 9' USR1; sleep {NAP} & echo up; wait"))
    node.up("p")
    pid = eventually(lambda: processes_with(f"exit 9' USR1; sleep {NAP}"), 5)[0]
    os.kill(pid, signal.SIGUSR1)
    assert of(node.phase("p", "Failed"), "c0").state.terminated.exit_code == 9  # type: ignore[union-attr]
    assert not processes_with(NAP)
