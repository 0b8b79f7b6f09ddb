"""Pods with what a controller reads, for lists and watches of whole clusters.

A `LeanPods` pod has no volumes; of its containers only name, resources and restart policy; of their statuses no image
and no ids; and none of what only a node needs (commands, variables, probes, DNS, security). What is the same in many
pods - the containers and tolerations of one template, labels and owners of one Job, conditions of the same second - is
decoded once and shared: all of it is frozen.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable
from sys import intern
from typing import Any, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from edl_controller.api.kinds import PODS
from edl_controller.api.meta import Condition, Json, ObjectMeta, OwnerReference
from edl_controller.api.pods import (
    Container,
    ContainerState,
    ContainerStatus,
    Pod,
    PodSpec,
    PodStatus,
    Quantities,
    ReadinessGate,
    ResourceRequirements,
    Toleration,
)
from edl_controller.cluster.kube.decode import Line, ListMeta, Page, raw_line, raw_page, without_cycles_collected

V = TypeVar("V")

REMEMBERED = 2048
"""Different values of one field that are kept for sharing; then it begins anew."""

_ABSENT = msgspec.Raw(b"")


class _Wire(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """What is read off the wire. `Raw` parts are looked up by their bytes before they are decoded."""


class _Meta(_Wire, frozen=True):
    name: str
    uid: str = ""
    resource_version: str = ""
    namespace: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: msgspec.Raw = _ABSENT
    annotations: msgspec.Raw = _ABSENT
    owner_references: msgspec.Raw = _ABSENT
    finalizers: msgspec.Raw = _ABSENT


class _Container(_Wire, frozen=True):
    name: str
    resources: msgspec.Raw = _ABSENT
    restart_policy: str | None = None


class _Spec(_Wire, frozen=True):
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    node_name: str = ""
    restart_policy: str = ""
    priority: int | None = None
    termination_grace_period_seconds: int | None = None
    node_selector: msgspec.Raw = _ABSENT
    tolerations: msgspec.Raw = _ABSENT
    affinity: msgspec.Raw = _ABSENT
    topology_spread_constraints: msgspec.Raw = _ABSENT
    scheduling_gates: msgspec.Raw = _ABSENT
    readiness_gates: msgspec.Raw = _ABSENT
    overhead: msgspec.Raw = _ABSENT


class _ContainerStatus(_Wire, frozen=True):
    name: str
    ready: bool = False
    started: bool | None = None
    restart_count: int = 0
    state: ContainerState | None = None
    last_state: ContainerState | None = None


class _Status(_Wire, frozen=True):
    phase: str = ""
    reason: str = ""
    message: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    start_time: str | None = None
    conditions: msgspec.Raw = _ABSENT
    container_statuses: list[_ContainerStatus] | None = None
    init_container_statuses: list[_ContainerStatus] | None = None


_NO_STATUS = _Status()


class _Pod(_Wire, frozen=True):
    metadata: _Meta
    spec: _Spec
    status: _Status = _NO_STATUS


class _Page(_Wire, frozen=True):
    metadata: ListMeta = ListMeta()
    items: list[_Pod] | None = None


class _Line(_Wire, frozen=True):
    type: str
    object: _Pod


class _Shared(Generic[V]):
    """Decodes each text once. Threads may share it: at worst a text is decoded twice."""

    def __init__(self, decode: Callable[[bytes], V], default: V) -> None:
        self._decode, self._default = decode, default
        self._known: dict[bytes, V] = {}

    def of(self, raw: msgspec.Raw) -> V:
        if raw is _ABSENT:
            return self._default
        text = bytes(raw)
        value = self._known.get(text)
        if value is None:
            if text == b"null":
                return self._default
            if len(self._known) >= REMEMBERED:
                self._known = {}
            value = self._known[text] = self._decode(text)
        return value


def _of_type(kind: Any) -> Callable[[bytes], Any]:
    return msgspec.json.Decoder(kind).decode


class LeanPods:
    """Reads lists and watches of pods (`edl_controller.cluster.kube.decode.Decoder`)."""

    def __init__(self) -> None:
        self._page, self._line = msgspec.json.Decoder(_Page), msgspec.json.Decoder(_Line)
        self._texts: _Shared[dict[str, str]] = _Shared(_of_type(dict[str, str]), {})
        self._owners: _Shared[tuple[OwnerReference, ...]] = _Shared(_of_type(tuple[OwnerReference, ...]), ())
        self._finalizers: _Shared[tuple[str, ...]] = _Shared(_of_type(tuple[str, ...]), ())
        self._resources: _Shared[ResourceRequirements] = _Shared(_of_type(ResourceRequirements), ResourceRequirements())
        self._tolerations: _Shared[tuple[Toleration, ...]] = _Shared(_of_type(tuple[Toleration, ...]), ())
        self._maps: _Shared[Json | None] = _Shared(_of_type(Json), None)
        self._lists: _Shared[tuple[Json, ...]] = _Shared(_of_type(tuple[Json, ...]), ())
        self._gates: _Shared[tuple[ReadinessGate, ...]] = _Shared(_of_type(tuple[ReadinessGate, ...]), ())
        self._quantities: _Shared[Quantities] = _Shared(_of_type(Quantities), {})
        self._conditions: _Shared[tuple[Condition, ...]] = _Shared(_of_type(tuple[Condition, ...]), ())
        self._values: dict[Hashable, Any] = {}

    def page(self, data: bytes) -> Page[Pod]:
        """See `Decoder.page`."""
        with without_cycles_collected(len(data)):
            with contextlib.suppress(msgspec.ValidationError, RecursionError):
                found = self._page.decode(data)
                items = [*map(self._pod, found.items or ())]
                return Page(items, found.metadata.resource_version, found.metadata.continue_)
            return raw_page(PODS, data)

    def line(self, data: bytes) -> Line[Pod]:
        """See `Decoder.line`."""
        with contextlib.suppress(msgspec.ValidationError, RecursionError):
            found = self._line.decode(data)
            if found.type not in ("ERROR", "BOOKMARK"):
                return Line(found.type, self._pod(found.object), found.object.metadata.resource_version)
        return raw_line(PODS, data)

    def _pod(self, wire: _Pod) -> Pod:
        status = wire.status
        return Pod(
            metadata=self._meta(wire.metadata),
            spec=self._spec(wire.spec),
            status=PodStatus(
                phase=intern(status.phase),
                conditions=self._conditions.of(status.conditions),
                reason=status.reason,
                message=status.message,
                pod_ip=status.pod_ip,
                start_time=self._same(status.start_time),
                container_statuses=self._container_statuses(status.container_statuses),
                init_container_statuses=self._container_statuses(status.init_container_statuses),
            ),
        )

    def _meta(self, wire: _Meta) -> ObjectMeta:
        """Copy what the pods of one Job have in common, with what is this pod's own."""
        raw = (wire.labels, wire.owner_references, wire.finalizers, wire.annotations)
        key = (wire.namespace, *map(bytes, raw))
        mates: ObjectMeta | None = self._values.get(key)
        if mates is None:
            made = ObjectMeta(
                namespace=intern(wire.namespace),
                labels=self._texts.of(wire.labels),
                annotations=self._texts.of(wire.annotations),
                owner_references=self._owners.of(wire.owner_references),
                finalizers=self._finalizers.of(wire.finalizers),
            )
            mates = self._remember(key, made)
        return replace(
            mates,
            name=wire.name,
            uid=wire.uid,
            resource_version=wire.resource_version,
            generation=wire.generation,
            creation_timestamp=self._same(wire.creation_timestamp),
            deletion_timestamp=wire.deletion_timestamp,
            deletion_grace_period_seconds=wire.deletion_grace_period_seconds,
        )

    def _spec(self, wire: _Spec) -> PodSpec:
        """Copy what the pods of one template have in common, with the node that this one is on."""
        rare = (
            wire.node_selector,
            wire.affinity,
            wire.topology_spread_constraints,
            wire.scheduling_gates,
            wire.readiness_gates,
            wire.overhead,
        )
        key = (
            _container_keys(wire.containers),
            _container_keys(wire.init_containers) if wire.init_containers else None,
            bytes(wire.tolerations),
            wire.restart_policy,
            wire.priority,
            wire.termination_grace_period_seconds,
            # Mostly nothing, which comparing finds out without a copy.
            None if rare == _NOTHING_RARE else tuple(map(bytes, rare)),
        )
        mates: PodSpec | None = self._values.get(key)
        if mates is None:
            made = PodSpec(
                containers=self._containers(wire.containers),
                init_containers=self._containers(wire.init_containers),
                restart_policy=intern(wire.restart_policy),
                priority=wire.priority,
                termination_grace_period_seconds=wire.termination_grace_period_seconds,
                node_selector=self._texts.of(wire.node_selector),
                tolerations=self._tolerations.of(wire.tolerations),
                affinity=self._maps.of(wire.affinity),
                topology_spread_constraints=self._lists.of(wire.topology_spread_constraints),
                scheduling_gates=self._lists.of(wire.scheduling_gates),
                readiness_gates=self._gates.of(wire.readiness_gates),
                overhead=self._quantities.of(wire.overhead),
            )
            mates = self._remember(key, made)
        # One that waits for a node shares all of it.
        return replace(mates, node_name=intern(wire.node_name)) if wire.node_name else mates

    def _containers(self, wire: list[_Container] | None) -> tuple[Container, ...]:
        made = tuple(
            Container(name=one.name, resources=self._resources.of(one.resources), restart_policy=one.restart_policy)
            for one in wire or ()
        )
        key = ("containers", _container_keys(wire))
        known: tuple[Container, ...] | None = self._values.get(key)
        return self._remember(key, made) if known is None else known

    def _container_statuses(self, wire: list[_ContainerStatus] | None) -> tuple[ContainerStatus, ...]:
        if not wire:
            return ()
        made = tuple(
            [
                ContainerStatus(
                    name=one.name,
                    ready=one.ready,
                    started=one.started,
                    restart_count=one.restart_count,
                    state=one.state or _NO_STATE,
                    last_state=one.last_state or _NO_STATE,
                )
                for one in wire
            ]
        )
        return self._same(made)

    def _same(self, value: V) -> V:
        """Return an equal value that was there before, or remember this one."""
        known: V | None = self._values.get(value)
        return self._remember(value, value) if known is None else known

    def _remember(self, key: Hashable, value: V) -> V:
        if len(self._values) > 4 * REMEMBERED:
            self._values = {}
        self._values[key] = value
        return value


_NO_STATE = ContainerState()
_NOTHING_RARE = (_ABSENT,) * 6


def _container_keys(wire: list[_Container] | None) -> Hashable:
    return tuple([(one.name, bytes(one.resources), one.restart_policy) for one in wire or ()])
