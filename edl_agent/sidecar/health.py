"""The standard health service: serving while the sidecar does. Whether etcd answers is the session's news, not this."""

import threading
from collections.abc import Iterator
from typing import Any

from edl_agent.sidecar import wire
from edl_agent.sidecar.calls import Call
from edl_agent.sidecar.statuses import Refusal

_SERVING, _NOT_SERVING, _UNKNOWN = 1, 2, 3
_KNOWN = ("", wire.AGENT, wire.HEALTH)


class Health:
    """``grpc.health.v1.Health``, version of the description in ``protos/``."""

    def __init__(self) -> None:
        self._ending = threading.Event()
        self._changed = threading.Condition()
        self._answer = wire.class_of(wire.service(wire.HEALTH).methods_by_name["Check"].output_type)

    def check(self, request: Any, call: Call) -> Any:
        """Now."""
        if request.service not in _KNOWN:
            raise Refusal("UNKNOWN_SERVICE", f"there is no service {request.service!r} here")
        return self._answer(status=self._status(request.service))

    def watch(self, request: Any, call: Call) -> Iterator[Any]:
        """Now and at the end."""
        call.on_end(self._wake)
        ended = self._ending.is_set()
        yield self._answer(status=self._status(request.service))
        with self._changed:
            self._changed.wait_for(lambda: not call.alive or self._ending.is_set())
        if not ended and call.alive:
            yield self._answer(status=self._status(request.service))

    def end(self) -> None:
        """From now on not serving."""
        self._ending.set()
        self._wake()

    def _status(self, name: str) -> int:
        if name not in _KNOWN:
            return _UNKNOWN
        return _NOT_SERVING if self._ending.is_set() else _SERVING

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
