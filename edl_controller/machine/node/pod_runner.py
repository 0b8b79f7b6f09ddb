"""One pod on its node: its folder and volumes, then its containers in their order, to their end."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from edl_controller.api import timestamps
from edl_controller.api.kinds import PODS
from edl_controller.api.pods import Pod
from edl_controller.machine.node import volumes
from edl_controller.machine.node.container_run import ContainerRun
from edl_controller.machine.node.environment import PodFacts
from edl_controller.machine.node.event_loop import Timer
from edl_controller.machine.node.pod_phase import Observation
from edl_controller.machine.node.restart import is_sidecar
from edl_controller.machine.node.services import EventType, Services

_SIDECAR_MINIMUM = 2.0
"""Seconds that sidecars get to stop even where the containers used up the grace period, as with kubelet."""


class PodRunner:
    """Runs one pod. All calls on the loop's thread.

    Args:
        services: what the pods of the node share.
        pod: the pod, bound to this node.
        pod_ip: its address.
        observed: told, with what is so now, whenever something changed.
    """

    def __init__(
        self, services: Services, pod: Pod, pod_ip: str, observed: Callable[[PodRunner, Observation], object]
    ) -> None:
        meta, spec, status = pod.metadata, pod.spec, pod.status
        self._services, self.pod, self.pod_ip, self._observed = services, pod, pod_ip, observed
        self.folder: Path = services.root / "pods" / meta.uid
        self.log_folder: Path = services.root / "logs" / f"{meta.namespace}_{meta.name}_{meta.uid}"
        self.paths: dict[str, str] = {}
        former = {one.name: one for one in (*status.init_container_statuses, *status.container_statuses)}
        self.init = [
            ContainerRun(services, self, one, init=True, former=former.get(one.name)) for one in spec.init_containers
        ]
        self.main = [
            ContainerRun(services, self, one, init=False, former=former.get(one.name)) for one in spec.containers
        ]
        self._start_time = status.start_time or timestamps.render(time.time())
        self._sandbox = self._initialized = self._called = False
        self._reason = self._message = ""
        self._end_by: float | None = None
        self._sidecars_by: float | None = None
        self._retry = services.back_off.first
        self._timers: list[Timer] = []
        self.over = False
        self.vanished = False
        """Whether the object is gone: nobody wants to know any more how the pod is."""

    @property
    def runs(self) -> list[ContainerRun]:
        """Return all containers."""
        return [*self.init, *self.main]

    def start(self) -> None:
        """Begin: volumes, then containers."""
        limit = self.pod.spec.active_deadline_seconds
        if limit is not None:
            left = timestamps.parse(self._start_time) + limit - time.time()
            self._timers.append(self._services.loop.call_later(max(0.0, left), self._too_long))
        self._prepare_volumes()
        self.changed()

    def update(self, pod: Pod) -> None:
        """Take a newer state of the pod: conditions that others set, a request to end."""
        self.pod = pod
        self.changed()

    def stop(self, grace: float, reason: str = "", message: str = "") -> None:
        """End the pod within ``grace`` seconds (0: at once); a second call may only shorten that."""
        end_by = self._services.loop.time() + max(0.0, grace)
        if self._end_by is not None and end_by >= self._end_by:
            return
        if self._end_by is None:
            self._reason, self._message = reason, message
            names = ", ".join(run.container.name for run in self.runs if run.running)
            if names:
                self.report("Normal", "Killing", f"Stopping container {names}")
        self._end_by = end_by
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self.changed()

    def facts(self) -> PodFacts:
        """Return what containers may ask about the pod, without Secrets and ConfigMaps."""
        services = self._services
        return PodFacts(self.pod, self.pod_ip, services.host_ip, services.node_name, services.allocatable)

    def report(self, type: EventType, reason: str, note: str) -> None:  # noqa: A002
        """Make an event about the pod."""
        self._services.report(PODS.reference(self.pod), type, reason, note)

    def changed(self) -> None:
        """Look at everything again, soon and once."""
        if not self._called:
            self._called = True
            self._services.loop.post(self._look)

    def observation(self) -> Observation:
        """Return what is so now."""
        return Observation(
            init=tuple(run.status() for run in self.init),
            main=tuple(run.status() for run in self.main),
            pod_ip=self.pod_ip,
            host_ip=self._services.host_ip,
            start_time=self._start_time,
            sandbox=self._sandbox,
            over=self.over,
            reason=self._reason if self.over else "",
            message=self._message if self.over else "",
        )

    # -- the steps -----------------------------------------------------------------------------------------------

    def _look(self) -> None:
        self._called = False
        if self.over:
            return
        if self._end_by is not None:
            self._continue_end()
        elif self._sandbox:
            self._continue_run()
        self._observed(self, self.observation())

    def _continue_run(self) -> None:
        for run in self.init:
            if is_sidecar(run.container):
                run.ensure()
                if not run.started and not self._initialized:
                    return
            elif not self._initialized and not run.succeeded:
                run.ensure()
                if run.finished:
                    self.stop(self._grace())  # it failed, and is not to run again
                return
        self._initialized = True
        for run in self.main:
            run.ensure()
        if all(run.finished for run in self.main):
            self.stop(self._grace())

    def _continue_end(self) -> None:
        """Stop the containers together, then the sidecars one by one, the last first."""
        assert self._end_by is not None
        now = self._services.loop.time()
        left = self._end_by - now
        sidecars = [run for run in self.init if is_sidecar(run.container)]
        others = [run for run in self.runs if run not in sidecars]
        for run in others:
            run.stop(left)
        if left <= 0:
            for run in sidecars:
                run.stop(left)
        elif all(run.quiet for run in others):
            if self._sidecars_by is None:
                self._sidecars_by = max(self._end_by, now + _SIDECAR_MINIMUM)
            for run in reversed(sidecars):
                run.stop(max(0.0, self._sidecars_by - now))
                if not run.quiet:
                    break
        if all(run.quiet for run in self.runs):
            self.over = True

    def _grace(self) -> float:
        given = self.pod.spec.termination_grace_period_seconds
        return 30.0 if given is None else float(given)

    def _too_long(self) -> None:
        message = "Pod was active on the node longer than the specified deadline"
        self.report("Normal", "DeadlineExceeded", message)
        self.stop(self._grace(), "DeadlineExceeded", message)

    # -- volumes -------------------------------------------------------------------------------------------------

    def _prepare_volumes(self) -> None:
        self._services.in_background(self._make_volumes, self._have_volumes)

    def _make_volumes(self) -> dict[str, str]:
        """On a thread that may wait."""
        namespace = self.pod.metadata.namespace
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o711)
        found = {source: self._services.fetch(namespace, source) for source in set(volumes.sources(self.pod))}
        facts = self.facts().with_data({source: values for source, values in found.items() if values is not None})
        return {
            volume.name: volumes.prepare(volume, facts, self.folder / "volumes") for volume in self.pod.spec.volumes
        }

    def _have_volumes(self, paths: dict[str, str] | Exception) -> None:
        if isinstance(paths, Exception):
            self.report("Warning", "FailedMount", str(paths))
            if self._end_by is None:
                self._timers.append(self._services.loop.call_later(self._retry, self._prepare_volumes))
                self._retry = min(self._retry * 2, self._services.back_off.longest)
        else:
            self.paths = paths
            self._sandbox = True
        self.changed()
