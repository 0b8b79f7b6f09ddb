"""PURE: the variables of a container, from its spec, its pod, and the Secrets and ConfigMaps that it names.

Order as in Kubernetes: what the image brings, ``envFrom``, then ``env``; later ones win. A value of ``env`` may refer
to earlier variables. There are no variables for services.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Literal

from edl_controller.api import quantity
from edl_controller.api.pods import Container, EnvVarSource, KeySelector, Pod, Quantities
from edl_controller.machine.node.expansion import expand

Source = tuple[Literal["Secret", "ConfigMap"], str]
"""Kind and name of an object of the pod's namespace."""

_MAP_FIELD = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")
_NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")


class ConfigurationMissing(ValueError):
    """Something that the container needs is not there; the container waits (``CreateContainerConfigError``)."""


@dataclass(frozen=True)
class PodFacts:
    """What a container may ask about its pod.

    Attributes:
        pod: the pod.
        pod_ip: its address, text.
        host_ip: the node's address.
        node_name: the node.
        allocatable: what the node has; the limit of a container that states none.
        data: text of each Secret and ConfigMap that is there.
    """

    pod: Pod
    pod_ip: str
    host_ip: str
    node_name: str
    allocatable: Quantities = field(default_factory=dict)
    data: Mapping[Source, Mapping[str, str]] = field(default_factory=dict)

    def with_data(self, data: Mapping[Source, Mapping[str, str]]) -> PodFacts:
        """Return the same with these Secrets and ConfigMaps."""
        return replace(self, data=data)


def sources(container: Container) -> Iterator[Source]:
    """Yield the Secrets and ConfigMaps that the variables of a container come from."""
    for part in container.env_from:
        for key, kind in (("secretRef", "Secret"), ("configMapRef", "ConfigMap")):
            if part.get(key):
                yield kind, part[key].get("name", "")  # type: ignore[misc]
    for variable in container.env:
        if variable.value_from and variable.value_from.secret_key_ref:
            yield "Secret", variable.value_from.secret_key_ref.name
        if variable.value_from and variable.value_from.config_map_key_ref:
            yield "ConfigMap", variable.value_from.config_map_key_ref.name


def variables(container: Container, facts: PodFacts, image: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return all variables of a container.

    Raises:
        ConfigurationMissing: a Secret, ConfigMap or key is missing and not optional, or a field is not known.
    """
    result = dict(image or {})
    for part in container.env_from:
        for key, kind in (("secretRef", "Secret"), ("configMapRef", "ConfigMap")):
            if part.get(key):
                result |= _all_of((kind, part[key].get("name", "")), part, key, facts)  # type: ignore[arg-type]
    for variable in container.env:
        if variable.value_from is None:
            result[variable.name] = expand(variable.value, result)
        else:
            value = _value(variable.value_from, container, facts)
            if value is not None:
                result[variable.name] = value
    return result


def command_line(container: Container, environment: Mapping[str, str], entrypoint: tuple[str, ...] = ()) -> list[str]:
    """Return the command with its arguments, expanded. Without a command: the image's entry point."""
    words = (*(container.command or entrypoint), *container.args)
    return [expand(word, environment) for word in words]


def decoded(secret: Mapping[str, str]) -> dict[str, str]:
    """Return the values of a Secret as text; bytes that are no UTF-8 are kept by surrogates.

    Raises:
        ConfigurationMissing: a value is no base64.
    """
    try:
        return {key: base64.b64decode(value).decode("utf-8", "surrogateescape") for key, value in secret.items()}
    except binascii.Error as error:
        raise ConfigurationMissing("a value of the Secret is no base64") from error


def pod_field(path: str, facts: PodFacts) -> str:
    """Return a field of the pod (downward API).

    Raises:
        ConfigurationMissing: there is no such field.
    """
    meta, spec = facts.pod.metadata, facts.pod.spec
    known = {
        "metadata.name": meta.name,
        "metadata.namespace": meta.namespace,
        "metadata.uid": meta.uid,
        "spec.nodeName": facts.node_name,
        "spec.serviceAccountName": spec.service_account_name or "default",
        "status.podIP": facts.pod_ip,
        "status.podIPs": facts.pod_ip,
        "status.hostIP": facts.host_ip,
        "status.hostIPs": facts.host_ip,
    }
    if path in known:
        return known[path]
    found = _MAP_FIELD.fullmatch(path)
    if found is None:
        raise ConfigurationMissing(f"field {path!r} of a pod is not known")
    return (meta.labels if found[1] == "labels" else meta.annotations).get(found[2], "")


def resource_field(reference: Mapping[str, Any], container: Container, facts: PodFacts) -> str:
    """Return a limit or request in whole units of the divisor, rounded up; a limit not set is what the node has.

    Raises:
        ConfigurationMissing: no such container or resource.
    """
    name = reference.get("containerName") or container.name
    spec = facts.pod.spec
    asked = next((one for one in (*spec.containers, *spec.init_containers) if one.name == name), None)
    kind, _, resource = str(reference.get("resource", "")).partition(".")
    if asked is None or kind not in ("limits", "requests") or not resource:
        raise ConfigurationMissing(f"resource {reference.get('resource')!r} of container {name!r} is not known")
    limit = asked.resources.limits.get(resource)
    if kind == "limits":
        amount = facts.allocatable.get(resource, 0) if limit is None else limit
    else:
        amount = asked.resources.requests.get(resource, 0 if limit is None else limit)
    divisor = quantity.parse(reference.get("divisor") or "1") or quantity.parse("1")
    return str(math.ceil(Fraction(quantity.parse(amount)) / Fraction(divisor)))


def _value(source: EnvVarSource, container: Container, facts: PodFacts) -> str | None:
    if source.field_ref:
        return pod_field(source.field_ref.field_path, facts)
    if source.resource_field_ref:
        return resource_field(source.resource_field_ref, container, facts)
    if source.secret_key_ref:
        return _key("Secret", source.secret_key_ref, facts)
    if source.config_map_key_ref:
        return _key("ConfigMap", source.config_map_key_ref, facts)
    raise ConfigurationMissing("a variable's valueFrom names no source")


def _key(kind: Literal["Secret", "ConfigMap"], selector: KeySelector, facts: PodFacts) -> str | None:
    data = facts.data.get((kind, selector.name))
    if data is not None and selector.key in data:
        return data[selector.key]
    if selector.optional:
        return None
    what = f"{kind} {selector.name!r}" if data is None else f"key {selector.key!r} of {kind} {selector.name!r}"
    raise ConfigurationMissing(f"{what} is not there")


def _all_of(source: Source, part: Mapping[str, Any], key: str, facts: PodFacts) -> dict[str, str]:
    data = facts.data.get(source)
    if data is None:
        if part[key].get("optional"):
            return {}
        raise ConfigurationMissing(f"{source[0]} {source[1]!r} is not there")
    prefix = part.get("prefix") or ""
    return {prefix + name: value for name, value in data.items() if _NAME.fullmatch(prefix + name)}
