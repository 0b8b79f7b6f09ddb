"""What becomes of pods on a real node: real processes, real signals, objects in a real etcd."""

from __future__ import annotations

from tests.node.conftest import Room, condition, of, python, shell


def test_a_pod_succeeds(node: Room) -> None:
    node.run("p", shell("echo hello; echo trouble >&2"))
    pod = node.phase("p", "Succeeded")
    ended = of(pod, "c0").state.terminated
    assert ended is not None
    assert (ended.exit_code, ended.reason) == (0, "Completed")
    assert node.log(pod) == "hello\ntrouble\n"
    assert condition(pod, "Ready")[:2] == ("False", "PodCompleted")
    assert pod.status.pod_ip.startswith("127.")
    assert pod.status.host_ip == node.agent.address


def test_a_running_pod_is_ready(node: Room) -> None:
    node.run("p", shell("sleep 100"))
    pod = node.ready("p")
    assert pod.status.phase == "Running"
    assert of(pod, "c0").ready
    assert condition(pod, "Initialized")[0] == condition(pod, "ContainersReady")[0] == "True"
    node.delete("p")
    node_until_gone(node, "p")


def node_until_gone(node: Room, name: str) -> None:
    from tests.bench.waiting import eventually

    eventually(lambda: node.gone(name), 10.0, f"end of {name}")


def test_python_container(node: Room) -> None:
    node.run("p", python("print('x')"))
    assert node.log(node.phase("p", "Succeeded")) == "x\n"
