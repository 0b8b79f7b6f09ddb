"""``$(NAME)`` and the variables of a container, by tables."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_controller.api.kinds import PODS
from edl_controller.api.pods import Pod
from edl_controller.core.expansion import literal
from edl_controller.machine.node.environment import (
    ConfigurationMissing,
    PodFacts,
    Source,
    command_line,
    decoded,
    sources,
    variables,
)
from edl_controller.machine.node.expansion import expand

VALUES = {"A": "1", "B": "two words", "EMPTY": "", "LOOP": "$(A)"}


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("", ""),
        ("plain", "plain"),
        ("$(A)", "1"),
        ("x$(A)y$(B)z", "x1ytwo wordsz"),
        ("$(MISSING)", "$(MISSING)"),
        ("$(EMPTY)", ""),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$$$$(A)", "$$(A)"),
        ("$A ${A} $", "$A ${A} $"),
        ("$(A", "$(A"),
        ("$(A$$(A$$$", "$(A$(A$$"),
        ("$(A$$(B)$$(A", "$(A$$(B)$(A"),
        ("$()", "$()"),
        ("a$$b", "a$b"),
        ("$(LOOP)", "$(A)"),
        ("$($(A))", "$($(A))"),
        ("`id`; $(touch x)", "`id`; $(touch x)"),
    ],
)
def test_expansion(text: str, result: str) -> None:
    assert expand(text, VALUES) == result


@given(st.text(alphabet="$()AB x\n"))
@pytest.mark.security(10)
def test_what_is_written_literally_stays(text: str) -> None:
    assert expand(literal(text), VALUES) == text


def pod_of(**container: Any) -> Pod:
    spec = {
        "containers": [{"name": "c", **container}, {"name": "other", "resources": {"requests": {"cpu": "1500m"}}}],
        "serviceAccountName": "robot",
    }
    metadata = {
        "name": "p", "namespace": "ns", "uid": "u-1",
        "labels": {"app": "x", "a.b/c": "y"}, "annotations": {"note": "n"},
    }  # fmt: skip
    return PODS.from_json({"metadata": metadata, "spec": spec})


def resolved(
    data: dict[Source, dict[str, str]] | None = None, image: dict[str, str] | None = None, **container: Any
) -> dict[str, str]:
    pod = pod_of(**container)
    facts = PodFacts(pod, "127.9.9.9", "127.9.9.1", "n1", {"cpu": "4", "memory": "8Gi"}, data or {})
    return variables(pod.spec.containers[0], facts, image)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "p"),
        ("metadata.namespace", "ns"),
        ("metadata.uid", "u-1"),
        ("metadata.labels['app']", "x"),
        ("metadata.labels['a.b/c']", "y"),
        ("metadata.labels['none']", ""),
        ("metadata.annotations['note']", "n"),
        ("spec.nodeName", "n1"),
        ("spec.serviceAccountName", "robot"),
        ("status.podIP", "127.9.9.9"),
        ("status.podIPs", "127.9.9.9"),
        ("status.hostIP", "127.9.9.1"),
    ],
)
def test_fields_of_the_pod(path: str, value: str) -> None:
    assert resolved(env=[{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": path}}}]) == {"X": value}


@pytest.mark.parametrize(
    ("reference", "value"),
    [
        ({"resource": "limits.cpu"}, "1"),  # 100m, rounded up
        ({"resource": "limits.cpu", "divisor": "1m"}, "100"),
        ({"resource": "requests.cpu"}, "1"),  # no request: the limit
        ({"resource": "limits.memory"}, str(8 * 2**30)),  # no limit: the node's
        ({"resource": "limits.memory", "divisor": "1Mi"}, "8192"),
        ({"resource": "requests.memory"}, "0"),
        ({"resource": "requests.cpu", "containerName": "other", "divisor": "1m"}, "1500"),
    ],
)
def test_resources(reference: dict[str, str], value: str) -> None:
    env = [{"name": "X", "valueFrom": {"resourceFieldRef": reference}}]
    assert resolved(env=env, resources={"limits": {"cpu": "100m"}}) == {"X": value}


def test_order_and_references() -> None:
    data: dict[Source, dict[str, str]] = {
        ("ConfigMap", "cm"): {"A": "cm", "B": "cm", "not a name": "x"},
        ("Secret", "s"): {"B": "secret", "token": "t$(A)"},
    }
    result = resolved(
        data,
        {"PATH": "/bin", "A": "image"},
        envFrom=[{"configMapRef": {"name": "cm"}}, {"secretRef": {"name": "s"}, "prefix": "S_"}],
        env=[
            {"name": "C", "value": "$(A)-$(S_B)-$(LATER)"},
            {"name": "B", "value": "own"},
            {"name": "LATER", "value": "$(B)$$(B)"},
            {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "token"}}},
            {"name": "MAYBE", "valueFrom": {"secretKeyRef": {"name": "none", "key": "k", "optional": True}}},
            {"name": "PATH", "value": "/own:$(PATH)"},
        ],
    )
    assert result == {
        "PATH": "/own:/bin", "A": "cm", "B": "own", "C": "cm-secret-$(LATER)", "LATER": "own$(B)",
        "S_B": "secret", "S_token": "t$(A)", "TOKEN": "t$(A)",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("container", "says"),
    [
        ({"env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}, "Secret 's' is not there"),
        (
            {"env": [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "k"}}}]},
            "key 'k' of ConfigMap",
        ),
        ({"envFrom": [{"configMapRef": {"name": "none"}}]}, "ConfigMap 'none' is not there"),
        ({"env": [{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "spec.volumes"}}}]}, "spec.volumes"),
        ({"env": [{"name": "X", "valueFrom": {"resourceFieldRef": {"resource": "cpu"}}}]}, "cpu"),
        ({"env": [{"name": "X", "valueFrom": {}}]}, "names no source"),
    ],
)
def test_what_is_missing_is_said(container: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationMissing, match=says):
        resolved({("ConfigMap", "cm"): {}}, **container)


def test_sources_are_named() -> None:
    pod = pod_of(
        envFrom=[{"secretRef": {"name": "a"}}, {"configMapRef": {"name": "b"}}],
        env=[{"name": "X", "valueFrom": {"secretKeyRef": {"name": "c", "key": "k"}}}],
    )
    assert set(sources(pod.spec.containers[0])) == {("Secret", "a"), ("ConfigMap", "b"), ("Secret", "c")}


def test_commands() -> None:
    pod = pod_of(command=["run", "$(A)"], args=["--x=$(B)", "$$(A)", "$(NO)"])
    assert command_line(pod.spec.containers[0], VALUES) == ["run", "1", "--x=two words", "$(A)", "$(NO)"]
    bare = pod_of(args=["$(A)"]).spec.containers[0]
    assert command_line(bare, VALUES, ("entry",)) == ["entry", "1"]
    assert command_line(pod_of(command=["own"]).spec.containers[0], VALUES, ("entry",)) == ["own"]


def test_secrets_may_hold_bytes() -> None:
    assert decoded({"a": "aGk=", "b": "/w=="}) == {"a": "hi", "b": "\udcff"}
    with pytest.raises(ConfigurationMissing):
        decoded({"a": "x"})
