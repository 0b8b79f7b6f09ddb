"""The probes of one run of a container: asks when they are due, and keeps the verdicts."""

from __future__ import annotations

import signal
from collections.abc import Callable

from edl_controller.api.pods import Container, ExecAction, LifecycleHandler, Probe
from edl_controller.machine.node.checks import Answer, command_of, question
from edl_controller.machine.node.event_loop import Timer
from edl_controller.machine.node.probes import ProbeKind, ProbeState, answered, begun
from edl_controller.machine.node.process import News, NotStarted, Process, Started
from edl_controller.machine.node.services import Services

RunCommand = Callable[[ExecAction, Callable[[News], object]], Process]
"""Starts a command as the container would see it."""


def ask(
    services: Services,
    asked: Probe | LifecycleHandler,
    container: Container,
    address: str,
    timeout: float,
    run: RunCommand,
    done: Callable[[Answer], object],
) -> None:
    """Ask once; ``done`` hears the answer on the loop's thread, after ``timeout`` seconds at the latest."""
    try:
        outside = question(asked, container, address, timeout)
        command = command_of(asked)
        if outside is not None:
            services.in_background(
                outside, lambda answer: done(Answer(False, str(answer)) if isinstance(answer, Exception) else answer)
            )
        elif command is not None:
            _ask_by_command(services, command, timeout, run, done)
        else:
            done(Answer(True))
    except (ValueError, OSError) as error:
        done(Answer(False, str(error)))


def _ask_by_command(
    services: Services, command: ExecAction, timeout: float, run: RunCommand, done: Callable[[Answer], object]
) -> None:
    late = False

    def heard(news: News) -> None:
        if isinstance(news, Started):
            return
        timer.cancel()
        if isinstance(news, NotStarted):
            done(Answer(False, f"{command.command[0]!r}: {news.why}"))
        elif late:
            done(Answer(False, f"command timed out after {timeout:g} s: {command.command[0]}"))
        else:
            done(Answer(news.exit_code == 0, f"{command.command[0]} ended with {news.exit_code}"))

    def overdue() -> None:
        nonlocal late
        late = True
        process.signal(signal.SIGKILL)

    process = run(command, heard)
    timer = services.loop.call_later(timeout, overdue)


class Prober:
    """All probes of one run. Startup comes first; the others begin when it has passed.

    Args:
        changed: told when a verdict changed.
        give_up: told (kind, text) when the container is to be stopped.
        unhealthy: told (kind, text) of each bad answer.
    """

    def __init__(
        self,
        services: Services,
        container: Container,
        address: str,
        run: RunCommand,
        changed: Callable[[], object],
        give_up: Callable[[ProbeKind, str], object],
        unhealthy: Callable[[ProbeKind, str], object],
    ) -> None:
        self._services, self._container, self._address, self._run = services, container, address, run
        self._changed, self._give_up, self._unhealthy = changed, give_up, unhealthy
        self._states: dict[ProbeKind, ProbeState] = {}
        self._timers: dict[ProbeKind, Timer] = {}
        self._stopped = False

    @property
    def started(self) -> bool:
        """Whether the startup probe has passed, or there is none."""
        return self._container.startup_probe is None or self._passed("startup")

    @property
    def ready(self) -> bool:
        """Whether the container passes its readiness probe."""
        return self.started and (self._container.readiness_probe is None or self._passed("readiness"))

    def start(self) -> None:
        """Begin to ask."""
        if self._container.startup_probe is not None:
            self._begin("startup", self._container.startup_probe)
        else:
            self._begin_others()

    def stop(self, *kinds: ProbeKind) -> None:
        """Ask no more: all probes, or these."""
        self._stopped = self._stopped or not kinds
        for kind in kinds or tuple(self._timers):
            if kind in self._timers:
                self._timers.pop(kind).cancel()

    def _passed(self, kind: ProbeKind) -> bool:
        return kind in self._states and self._states[kind].passed

    def _begin_others(self) -> None:
        if self._container.liveness_probe is not None:
            self._begin("liveness", self._container.liveness_probe)
        if self._container.readiness_probe is not None:
            self._begin("readiness", self._container.readiness_probe)

    def _begin(self, kind: ProbeKind, probe: Probe) -> None:
        self._states[kind] = begun(kind, probe, self._services.loop.time())
        self._schedule(kind, probe)

    def _schedule(self, kind: ProbeKind, probe: Probe) -> None:
        self._timers[kind] = self._services.loop.call_at(self._states[kind].due, lambda: self._ask(kind, probe))

    def _ask(self, kind: ProbeKind, probe: Probe) -> None:
        timeout = max(1, probe.timeout_seconds)
        ask(
            self._services,
            probe,
            self._container,
            self._address,
            timeout,
            self._run,
            lambda answer: self._hear(kind, probe, answer),
        )

    def _hear(self, kind: ProbeKind, probe: Probe, answer: Answer) -> None:
        if self._stopped or kind not in self._timers:
            return
        before = self._states[kind]
        state = self._states[kind] = answered(kind, probe, before, answer.good, self._services.loop.time())
        if not answer.good:
            self._unhealthy(kind, answer.text)
        if state.gave_up:
            self.stop(kind)
            self._give_up(kind, answer.text)
            return
        if kind == "startup" and state.passed:
            self.stop(kind)
            self._begin_others()
        else:
            self._schedule(kind, probe)
        if state.passed != before.passed:
            self._changed()
