"""One container of a pod over all its runs: starts it, probes it, stops it, starts it again."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from edl_controller.api import timestamps
from edl_controller.api.pods import (
    Container,
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
    ExecAction,
    LifecycleHandler,
    Pod,
)
from edl_controller.errors import ClusterError
from edl_controller.machine.node import environment, images, volumes
from edl_controller.machine.node.checks import Answer
from edl_controller.machine.node.environment import ConfigurationMissing, PodFacts
from edl_controller.machine.node.event_loop import Timer
from edl_controller.machine.node.images import ImageMissing
from edl_controller.machine.node.probes import ProbeKind
from edl_controller.machine.node.probing import Prober, ask
from edl_controller.machine.node.process import Ended, News, NotStarted, Order, Process, Started
from edl_controller.machine.node.restart import is_sidecar, runs_again
from edl_controller.machine.node.services import EventType, Services
from edl_controller.machine.node.volumes import VolumeUnavailable

_log = logging.getLogger(__name__)

TERMINATION_LOG = "EDL_TERMINATION_LOG"
"""Variable with the path of the container's last words, also where nothing can be mounted at the usual place."""

_DEFAULT_TERMINATION_PATH = "/dev/termination-log"
_LONGEST_MESSAGE, _LONGEST_LOG_TAIL = 4096, 2048
_LOGS_KEPT = 5
"""Logs of one container that are kept: those of its last runs."""


class Owner(Protocol):
    """The pod of a container, as its containers see it."""

    pod: Pod
    pod_ip: str
    folder: Path
    log_folder: Path
    paths: dict[str, str]

    def changed(self) -> None:
        """Hear that something about the container is different."""
        ...

    def report(self, type: EventType, reason: str, note: str) -> None:  # noqa: A002
        """Make an event about the pod."""
        ...

    def facts(self) -> PodFacts:
        """Return what containers may ask about the pod, without Secrets and ConfigMaps."""
        ...


class _Prepared(NamedTuple):
    order: Order
    image: str
    refused: list[volumes.Refused]


class ContainerRun:
    """See the module. All calls on the loop's thread.

    Args:
        former: what the node that ran the pod before wrote; a container that ran then has died with it.
    """

    def __init__(
        self, services: Services, owner: Owner, container: Container, *, init: bool, former: ContainerStatus | None
    ) -> None:
        self._services, self._owner, self.container, self.init = services, owner, container, init
        self._process: Process | None = None
        self._prober: Prober | None = None
        self._order: Order | None = None
        self._beside: set[Process] = set()
        self._start_timer: Timer | None = None
        self._hook_timer: Timer | None = None
        self._kill_timer: Timer | None = None
        self._waiting = ContainerStateWaiting(reason="PodInitializing" if not init else "ContainerCreating")
        self._started_at = 0.0
        self._begun = 0.0
        self._attempt = 0
        self._delay: float | None = None
        self._trouble: float | None = None
        self._hooked = False
        self._stopping = False
        self._forbidden = False
        self._busy = False
        self.running = False
        self.restarts = -1
        self.last: ContainerStateTerminated | None = None
        self._before_last: ContainerStateTerminated | None = None
        self._not_before = 0.0
        if former is not None:
            self._take_over(former)

    # -- what is so ----------------------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """Return the process id of the command; 0 while it does not run."""
        return self._process.pid if self._process and self.running else 0

    @property
    def quiet(self) -> bool:
        """Whether nothing of it runs or is about to."""
        return not self.running and not self._busy and not self._beside

    @property
    def started(self) -> bool:
        """Whether it runs, its hook is done and its startup probe has passed."""
        return self.running and self._hooked and self._prober is not None and self._prober.started

    @property
    def succeeded(self) -> bool:
        """Whether its last run ended with 0 and it does not run again."""
        return self.quiet and self.last is not None and self.last.exit_code == 0 and not self._again

    @property
    def finished(self) -> bool:
        """Whether it has run and will not run again."""
        return self.quiet and self.last is not None and not self._again

    @property
    def _again(self) -> bool:
        return self.last is not None and runs_again(
            self._owner.pod.spec, self.container, self.last.exit_code, init=self.init
        )

    def status(self) -> ContainerStatus:
        """Return what the node reports of it."""
        ready = self.started and self._prober is not None and self._prober.ready and not self._stopping
        last = self.last
        if self.running:
            state = ContainerState(running=ContainerStateRunning(started_at=timestamps.render(self._started_at)))
        elif self.last is not None and not (self._waiting.reason and self._again and not self._forbidden):
            state, last = ContainerState(terminated=self.last), self._before_last
            ready = self.init and not is_sidecar(self.container) and self.last.exit_code == 0
        else:
            state = ContainerState(waiting=self._waiting)
        run = f"{self._owner.pod.metadata.uid}/{self.container.name}/{max(0, self.restarts)}"
        return ContainerStatus(
            name=self.container.name,
            ready=ready,
            started=self.started,
            restart_count=max(0, self.restarts),
            image=self.container.image,
            image_id="",
            container_id=f"process://{run}" if self.restarts >= 0 else "",
            state=state,
            last_state=ContainerState(terminated=last),
        )

    # -- starting ------------------------------------------------------------------------------------------------

    def ensure(self) -> None:
        """Start it, now or when its back-off is over, unless it runs, has finished or is being stopped."""
        if self._forbidden or not self.quiet or self.finished:
            return
        self._busy = True
        wait = self._not_before - self._services.loop.time()
        if wait > 0:
            self._start_timer = self._services.loop.call_later(wait, self._prepare)
        else:
            self._prepare()

    def _prepare(self) -> None:
        self._start_timer = None
        if self.last is None and self._waiting.reason == "PodInitializing":
            self._waiting = ContainerStateWaiting(reason="ContainerCreating")
        self._attempt = self.restarts + 1
        self._services.in_background(self._make_order, self._have_order)

    def _make_order(self) -> _Prepared:
        """On a thread that may wait: read what the container needs and write down what is to run."""
        services, owner, container = self._services, self._owner, self.container
        namespace = owner.pod.metadata.namespace
        mapping = services.images.find(container.image)
        found = {source: services.fetch(namespace, source) for source in set(environment.sources(container))}
        data = {source: values for source, values in found.items() if values is not None}
        facts = owner.facts().with_data(data)
        mounts = volumes.mounts(container, owner.paths)
        paths = dict(owner.paths)
        last_words = self._last_words(self._attempt)
        last_words.parent.mkdir(parents=True, exist_ok=True)
        last_words.write_bytes(b"")
        refused: list[volumes.Refused] = []
        if services.links is None:
            # The first mount of a volume is the one that its variable names.
            paths |= {one.name: one.mount_path for one in reversed(container.volume_mounts) if not one.sub_path}
            words = container.termination_message_path or _DEFAULT_TERMINATION_PATH
            mounts = volumes.outer_first([*mounts, (str(last_words), words, False)])
        else:
            refused = services.links.make(owner.pod.metadata.uid, mounts)
            mounts = []
        base = {
            **images.environment(mapping),
            "HOSTNAME": owner.pod.spec.hostname or owner.pod.metadata.name,
            TERMINATION_LOG: str(last_words),
            **volumes.variables(paths),
        }
        variables = environment.variables(container, facts, base)
        variables |= {name: volumes.relocated(value, refused) for name, value in variables.items() if name not in base}
        command = environment.command_line(container, variables, mapping.entrypoint)
        argv = [volumes.relocated(word, refused) for word in command]
        if not argv:
            raise FileNotFoundError("no command is given, and here no image brings one")
        folder = owner.folder / "containers" / container.name
        folder.mkdir(parents=True, exist_ok=True)
        log = self.log_path(self._attempt)
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log_path(self._attempt - _LOGS_KEPT).unlink(missing_ok=True)
        order = Order(
            argv=argv,
            program=images.program(argv[0], variables),
            environment=variables,
            folder=str(folder),
            working_dir=container.working_dir or mapping.working_dir,
            output=str(log),
            mounts=tuple(mounts),
            nice=services.nice,
        )
        return _Prepared(order, services.images.describe(container.image), refused)

    def _have_order(self, prepared: _Prepared | Exception) -> None:
        if self._forbidden:
            self._busy = False
            self._owner.changed()
            return
        match prepared:
            case _Prepared():
                if self.container.image not in self._services.images_told:
                    self._services.images_told.add(self.container.image)
                    self._owner.report("Normal", "ImageMapped", prepared.image)
                    _log.info("%s", prepared.image)
                for one in prepared.refused:
                    self._owner.report("Normal", "VolumeNotAtMountPath", one.note)
                self._order = prepared.order
                try:
                    self._process = self._services.host.start(prepared.order, self._hear)
                except OSError as error:
                    self._wait("CreateContainerError", f"no process can be started: {error}")
            case ImageMissing():
                self._wait("ErrImagePull" if self._trouble is None else "ImagePullBackOff", str(prepared))
            case ConfigurationMissing() | ClusterError():
                self._wait("CreateContainerConfigError", str(prepared))
            case FileNotFoundError() | VolumeUnavailable() | OSError() | ValueError():
                self._wait("CreateContainerError", str(prepared))
            case _:
                _log.error("container %s cannot be prepared", self.container.name, exc_info=prepared)
                self._wait("CreateContainerError", f"{type(prepared).__name__}: {prepared}")

    def _wait(self, reason: str, message: str) -> None:
        """It cannot be started as things are; try again later."""
        rules = self._services.back_off
        self._trouble = rules.first if self._trouble is None else min(self._trouble * 2, rules.longest)
        self._waiting = ContainerStateWaiting(reason=reason, message=message)
        self._not_before = self._services.loop.time() + self._trouble
        self._busy = False
        self._owner.report("Warning", "Failed", f"Error: {message}")
        self._owner.changed()

    def log_path(self, run: int) -> Path:
        """Return the file that a run writes its output to."""
        return self._owner.log_folder / self.container.name / f"{run}.log"

    def _last_words(self, run: int) -> Path:
        return self._owner.folder / "termination" / f"{self.container.name}-{run}"

    # -- running -------------------------------------------------------------------------------------------------

    def _hear(self, news: News) -> None:
        match news:
            case Started():
                self._run_begins()
            case NotStarted():
                self._process = None
                if news.again:
                    self._prepare()
                else:
                    self._wait("CreateContainerError", news.why)
            case Ended():
                self._run_ends(news)

    def _run_begins(self) -> None:
        self.running, self._busy, self._trouble = True, False, None
        self.restarts = self._attempt
        self._started_at, self._begun = time.time(), self._services.loop.time()
        self._waiting = ContainerStateWaiting()
        self._prober = Prober(
            self._services,
            self.container,
            self._owner.pod_ip,
            self._run_beside,
            self._owner.changed,
            self._gave_up,
            lambda kind, text: self._owner.report("Warning", "Unhealthy", f"{kind.capitalize()} probe failed: {text}"),
        )
        self._owner.report("Normal", "Started", f"Started container {self.container.name}")
        hook = self.container.lifecycle.post_start if self.container.lifecycle else None
        if self._forbidden:  # the order to stop came while it was being started
            self._hooked = True
            self._begin_stop(0.0, "")
        elif hook is None:
            self._hook_done(Answer(True))
        else:
            self._do_hook(hook, self._services.back_off.longest, self._hook_done)
        self._owner.changed()

    def _hook_done(self, answer: Answer) -> None:
        if not self.running:
            return
        self._hooked = True
        if not answer.good:
            self._owner.report("Warning", "FailedPostStartHook", f"PostStartHook failed: {answer.text}")
            self._begin_stop(self._grace(), "FailedPostStartHook")
        elif self._prober is not None and not self._stopping:
            self._prober.start()
        self._owner.changed()

    def _gave_up(self, kind: ProbeKind, text: str) -> None:
        probe = self.container.liveness_probe if kind == "liveness" else self.container.startup_probe
        grace = probe.termination_grace_period_seconds if probe else None
        note = f"Container {self.container.name} failed {kind} probe, will be restarted"
        self._owner.report("Normal", "Killing", note)
        self._begin_stop(self._grace() if grace is None else float(grace), text)

    def _grace(self) -> float:
        given = self._owner.pod.spec.termination_grace_period_seconds
        return 30.0 if given is None else float(given)

    def _run_beside(self, action: ExecAction, news: Callable[[News], object]) -> Process:
        """Run a command as the container would see it."""
        assert self._order is not None  # it runs
        argv = list(action.command)
        if not argv:
            raise ValueError("the command is empty")
        order = Order(
            argv=argv,
            program=images.program(argv[0], self._order.environment),
            environment=self._order.environment,
            folder=self._order.folder,
            working_dir=self._order.working_dir,
            output=os.devnull,
            mounts=self._order.mounts,
            nice=self._order.nice,
        )

        def heard(one: News) -> None:
            if not isinstance(one, Started):
                self._beside.discard(process)
                if not self.running:
                    self._owner.changed()
            news(one)

        process = self._services.host.start(order, heard)
        self._beside.add(process)
        return process

    def _do_hook(self, hook: LifecycleHandler, timeout: float, done: Callable[[Answer], object]) -> None:
        if hook.sleep is not None:
            seconds = min(timeout, float(hook.sleep.get("seconds", 0)))
            self._hook_timer = self._services.loop.call_later(seconds, lambda: done(Answer(True)))
        else:
            ask(self._services, hook, self.container, self._owner.pod_ip, max(timeout, 0.001), self._run_beside, done)

    # -- ending --------------------------------------------------------------------------------------------------

    def stop(self, grace: float) -> None:
        """Stop it for good: hook, SIGTERM, and SIGKILL after ``grace`` seconds; a second call may only shorten that."""
        self._forbidden = True
        if self._start_timer is not None:
            self._start_timer.cancel()
            self._start_timer, self._busy = None, False
        if self.running:
            self._begin_stop(grace, "")
        elif self._process is not None and grace <= 0:
            self._process.signal(signal.SIGKILL)

    def _begin_stop(self, grace: float, why: str) -> None:
        loop, process = self._services.loop, self._process
        if process is None:
            return
        if self._prober is not None:
            self._prober.stop("liveness", "startup")
        if self._kill_timer is not None:
            self._kill_timer.cancel()
        first, self._stopping = not self._stopping, True
        if grace <= 0:
            process.signal(signal.SIGKILL)
            return
        self._kill_timer = loop.call_later(grace, lambda: process.signal(signal.SIGKILL))
        if not first:
            return
        hook = self.container.lifecycle.pre_stop if self.container.lifecycle else None
        if hook is None:
            process.signal(signal.SIGTERM)
        else:

            def done(answer: Answer) -> None:
                if not answer.good:
                    self._owner.report("Warning", "FailedPreStopHook", f"PreStopHook failed: {answer.text}")
                process.signal(signal.SIGTERM)

            self._do_hook(hook, grace, done)
        _log.debug("container %s is being stopped: %s", self.container.name, why or "its pod ends")

    def _run_ends(self, end: Ended) -> None:
        if self._prober is not None:
            self._prober.stop()
        for timer in (self._kill_timer, self._hook_timer):
            if timer is not None:
                timer.cancel()
        self._kill_timer = self._hook_timer = None
        for process in self._beside:  # probes and hooks end with their container
            process.signal(signal.SIGKILL)
        self.running = self._busy = self._hooked = self._stopping = False
        self._process = self._prober = None
        now = time.time()
        self._before_last, self.last = (
            self.last,
            ContainerStateTerminated(
                exit_code=end.exit_code,
                signal=end.signal,
                reason="Completed" if end.exit_code == 0 else "Error",
                message=self._message(end.exit_code),
                started_at=timestamps.render(self._started_at),
                finished_at=timestamps.render(now),
            ),
        )
        if self._again and not self._forbidden:
            ran = self._services.loop.time() - self._begun
            self._delay = self._services.back_off.after(self._delay, ran)
            self._not_before = self._services.loop.time() + self._delay
            if self._delay > 0:
                note = f"back-off {self._delay:g}s restarting failed container={self.container.name}"
                self._waiting = ContainerStateWaiting(reason="CrashLoopBackOff", message=note)
                self._owner.report("Warning", "BackOff", f"Back-off restarting failed container {self.container.name}")
        self._owner.changed()

    def _message(self, exit_code: int) -> str:
        """Return the container's last words: its termination message, or the end of its log where it asks for that."""
        try:
            text = self._last_words(self.restarts).read_bytes()[:_LONGEST_MESSAGE]
            if not text and exit_code and self.container.termination_message_policy == "FallbackToLogsOnError":
                with self.log_path(self.restarts).open("rb") as log:
                    log.seek(max(0, log.seek(0, os.SEEK_END) - _LONGEST_LOG_TAIL))
                    text = log.read()
        except OSError:
            return ""
        return text.decode(errors="replace")

    def _take_over(self, former: ContainerStatus) -> None:
        state = former.state
        self.restarts = former.restart_count if former.container_id else -1
        self.last = state.terminated or former.last_state.terminated
        if state.running:
            self._before_last = former.last_state.terminated
            self.last = ContainerStateTerminated(
                exit_code=128 + signal.SIGKILL,
                signal=signal.SIGKILL,
                reason="Error",
                message="it ended with the node that ran it",
                started_at=state.running.started_at,
                finished_at=timestamps.render(time.time()),
            )
        if self.last is not None:
            self._waiting = ContainerStateWaiting()
