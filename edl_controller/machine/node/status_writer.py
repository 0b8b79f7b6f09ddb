"""Writes what the node sees of its pods: one writer per node, and of each pod only the newest state."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from edl_controller.api.kinds import PODS
from edl_controller.api.pods import Pod
from edl_controller.cluster.port import Cluster
from edl_controller.core.merge_patch import difference
from edl_controller.errors import ClusterError, Conflict, Forbidden, Invalid, NotFound, Unavailable
from edl_controller.machine.node.pod_phase import Observation, composed

_log = logging.getLogger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
"""Seconds before a write is tried again that the cluster did not answer; doubled each time."""


class _Task(NamedTuple):
    pod: Pod
    seen: Observation | None
    remove: bool


class StatusWriter:
    """Writes statuses, and removes pods that have ended, on a thread of its own.

    Conditions that others set are kept: each write compares the version and is computed anew after a conflict.

    Args:
        cluster: where to.
        name: of the thread.
        now: Unix seconds.
    """

    def __init__(self, cluster: Cluster, name: str, now: Callable[[], float] = time.time) -> None:
        self._cluster, self._now = cluster, now
        self._tasks: OrderedDict[str, _Task] = OrderedDict()
        self._errands: list[Callable[[], object]] = []
        self._newest: dict[str, Pod] = {}
        self._changed = threading.Condition()
        self._stopping = False
        self._pause = _FIRST_PAUSE
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.writes = 0

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self, last: Callable[[], object]) -> None:
        """Make one last call to the cluster, then end the thread; statuses that wait are not written any more."""
        with self._changed:
            self._errands.append(last)
            self._stopping = True
            self._changed.notify()
        self._thread.join()

    def submit(self, pod: Pod, seen: Observation | None, *, remove: bool = False) -> None:
        """Write what is seen of a pod (newest known state given), then remove it if it was to be. From any thread."""
        with self._changed:
            self._tasks.pop(pod.metadata.uid, None)
            self._tasks[pod.metadata.uid] = _Task(pod, seen, remove)
            self._changed.notify()

    def forget(self, uid: str) -> None:
        """The pod is gone."""
        with self._changed:
            self._tasks.pop(uid, None)
            self._newest.pop(uid, None)

    def do(self, errand: Callable[[], object]) -> None:
        """Make a call to the cluster on this thread; its errors are logged. From any thread."""
        with self._changed:
            self._errands.append(errand)
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or self._tasks or self._errands)
                stopping = self._stopping
                errands, self._errands = self._errands, []
                uid, task = self._tasks.popitem(last=False) if self._tasks and not stopping else ("", None)
            for errand in errands:
                try:
                    errand()
                except ClusterError as error:
                    _log.warning("the node cannot be reported: %s", error)
                except Exception:
                    _log.exception("an errand of the node failed")
            if stopping:
                return
            if task is not None:
                self._attempt(uid, task)

    def _attempt(self, uid: str, task: _Task) -> None:
        try:
            self._write(uid, task)
            self._pause = _FIRST_PAUSE
        except NotFound:
            self.forget(uid)
        except Unavailable as error:
            _log.debug("status of pod %s: %s", task.pod.metadata.name, error)
            with self._changed:
                self._tasks.setdefault(uid, task)  # unless there is a newer one
                self._changed.wait_for(lambda: self._stopping, max(self._pause, error.retry_after or 0.0))
            self._pause = min(self._pause * 2, _LONGEST_PAUSE)
        except Exception:
            _log.exception("the status of pod %s cannot be written", task.pod.metadata.name)

    def _write(self, uid: str, task: _Task) -> None:
        meta = task.pod.metadata
        pod = _newer(task.pod, self._newest.get(uid))
        while task.seen is not None:
            status = composed(pod, task.seen, self._now())
            patch = difference(msgspec.to_builtins(pod.status), msgspec.to_builtins(status))
            if not patch:
                break
            try:
                pod = self._cluster.patch(
                    PODS,
                    meta.namespace,
                    meta.name,
                    {"status": patch},
                    subresource="status",
                    resource_version=pod.metadata.resource_version,
                    uid=uid,
                )
                self.writes += 1
                break
            except (Invalid, Forbidden) as error:
                _log.error("the status of pod %s is refused: %s", meta.name, error)
                break
            except Conflict:
                pod = self._cluster.get(PODS, meta.namespace, meta.name)
                if pod.metadata.uid != uid:
                    raise NotFound(f"pod {meta.name!r} is another one now") from None
        self._newest[uid] = pod
        if task.remove:
            self._cluster.delete(PODS, meta.namespace, meta.name, uid=uid, grace_seconds=0)
            self.forget(uid)


def _newer(seen: Pod, written: Pod | None) -> Pod:
    """Return the later state; versions are numbers that grow (KEP-5504)."""
    if written is None:
        return seen
    versions = (seen.metadata.resource_version, written.metadata.resource_version)
    if all(version.isdecimal() for version in versions):
        return written if int(versions[1]) > int(versions[0]) else seen
    return seen
