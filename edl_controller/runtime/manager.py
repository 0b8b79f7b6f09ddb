"""The manager: starts the parts of a program in order, watches over them, and stops them in the reverse order.

A part that ends by itself, by an exception or by returning, is never passed over in silence: the program stops, or the
part is started again, as its policy says.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edl_controller.cluster.port import Stop
from edl_controller.errors import EdlControllerError
from edl_controller.runtime.back_off import JitteredBackOff

STOP_WITHIN = 30.0
"""Seconds that all parts together have to end."""
STOP_SEEN = 0.1
"""Seconds within which the program's stop, or a part's end, is seen."""

END_SEEN = 1.0
"""Seconds within which it is seen, while all run, that a part has ended by itself; the stop is seen at once."""

log = logging.getLogger(__name__)


class ComponentDied(EdlControllerError):
    """A part that the program cannot do without has ended by itself; the cause is what it raised, if anything."""


@dataclass(frozen=True)
class Component:
    """A part of a program.

    Attributes:
        name: for people.
        run: does its work until the stop it is given is set, then returns.
        ready: whether what comes after it may be started.
        restart: start it again when it ends by itself; otherwise the program stops.
    """

    name: str
    run: Callable[[Stop], None]
    ready: Callable[[], bool] = lambda: True
    restart: bool = False


class _Part:
    """A component and its thread."""

    def __init__(self, component: Component, ended: threading.Event) -> None:
        self.component, self._ended = component, ended
        self.stop = threading.Event()
        self.died: ComponentDied | None = None
        self.thread = threading.Thread(target=self._run, name=f"edl-{component.name}", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        name, back_off = self.component.name, JitteredBackOff()
        while not self.stop.is_set():
            error: Exception | None = None
            try:
                self.component.run(self.stop)
            except Exception as caught:
                error = caught
            if self.stop.is_set():
                if error is not None:
                    log.error("%s failed while it was stopped", name, exc_info=error)
                return
            if not self.component.restart:
                self.died = ComponentDied(f"{name} has ended by itself: {error or 'it returned'}")
                self.died.__cause__ = error
                self._ended.set()
                return
            delay = back_off.failed()
            log.error("%s has ended by itself, it is started again in %.1f s", name, delay, exc_info=error)
            self.stop.wait(delay)


class Manager:
    """Runs components.

    Args:
        components: in the order in which they start; each once the one before is ready.
        stop_within: seconds that all together have to end.
    """

    def __init__(self, components: Sequence[Component], *, stop_within: float = STOP_WITHIN) -> None:
        self._components, self._stop_within = tuple(components), stop_within
        self._parts: list[_Part] = []
        self._ended = threading.Event()
        self._started = threading.Event()

    @property
    def ready(self) -> bool:
        """Whether all parts run and are ready."""
        return self._started.is_set() and all(part.component.ready() for part in self._parts)

    def run(self, stop: Stop) -> None:
        """Run all components until ``stop`` is set, and end them.

        Raises:
            ComponentDied: one of them has ended by itself; the others have been ended.
        """
        try:
            for component in self._components:
                self._parts.append(_Part(component, self._ended))
                pause = STOP_SEEN / 100
                while not (component.ready() or stop.is_set() or self._ended.is_set()):
                    self._ended.wait(pause)
                    pause = min(STOP_SEEN, pause * 1.5)  # a replica may wait for days to lead
                if stop.is_set() or self._ended.is_set():
                    break
                log.debug("%s is ready", component.name)
            else:
                self._started.set()
            while not self._ended.is_set() and not stop.wait(END_SEEN):
                pass
        finally:
            self._stop()
        for part in self._parts:
            if part.died is not None:
                raise part.died

    def _stop(self) -> None:
        deadline = time.monotonic() + self._stop_within
        left = []
        for part in reversed(self._parts):
            part.stop.set()
            # One that takes all the time must not make the others look as if they did not end.
            part.thread.join(max(0.5, deadline - time.monotonic()))
            if part.thread.is_alive():
                left.append(part.component.name)
        if left:
            log.error("Did not end within %g s: %s", self._stop_within, ", ".join(left))
