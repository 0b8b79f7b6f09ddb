"""Callbacks of the program, run one after the other on a thread of their own.

They may block or raise: the lease is kept meanwhile (fault row A41), and the next callback waits its turn.
"""

import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

from edl_agent.errors import ConfigurationError

_log = logging.getLogger(__name__)


class HookRunner:
    """Named lists of callbacks, and the thread that calls them.

    The thread starts with the first call that has something to do.
    """

    def __init__(self) -> None:
        self._callbacks: dict[str, list[Callable[..., object]]] = {}
        self._calls: queue.SimpleQueue[tuple[str, Callable[..., object], tuple[Any, ...]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, name: str, callback: Callable[..., object]) -> None:
        """Call ``callback`` at each `fire` of ``name``.

        Raises:
            ConfigurationError: it cannot be called.
        """
        if not callable(callback):
            raise ConfigurationError(f"the callback for {name} cannot be called: {callback!r}")
        with self._lock:
            self._callbacks.setdefault(name, []).append(callback)

    def fire(self, name: str, *args: object) -> None:
        """Queue the callbacks of ``name``; returns at once."""
        with self._lock:
            callbacks = list(self._callbacks.get(name, []))
        for callback in callbacks:
            self.call(name, callback, *args)

    def call(self, name: str, callback: Callable[..., object], *args: object) -> None:
        """Queue one callback, known under ``name`` in the log; returns at once."""
        with self._lock:
            if self._closed:
                return
            self._calls.put((name, callback, args))
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="edl-hooks", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # whoever changes the session must not fail by it
                    _log.warning("The callback for %s waits, since no thread can be started for it: %s", name, error)
                else:
                    self._thread = thread

    def close(self, seconds: float) -> None:
        """Let what is queued be called, then end the thread; wait at most ``seconds``.

        A callback that blocks longer is left behind.
        """
        with self._lock:
            self._closed = True
            thread = self._thread
        self._calls.put(None)
        if thread is not None and thread is not threading.current_thread():
            thread.join(seconds)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            name, callback, args = call
            try:
                callback(*args)
            except BaseException:  # also a sys.exit(), which ends no program from here and must not end this thread
                with contextlib.suppress(BaseException):
                    _log.exception("Callback for %s failed", name)
