"""The Events of the nodes' agents about their pods: in the cluster, where `edl describe` shows them, and in the log."""

from __future__ import annotations

import logging

from edl_controller.api.meta import ObjectReference
from edl_controller.core.actions import Note
from edl_controller.machine.node.services import EventType
from edl_controller.runtime.recorder import Recorder

REPORTER = "kubelet"

_log = logging.getLogger(__name__)


class NodeEvents:
    """Has what a node reports written as Events; never waits (a `machine.node.services.Report`).

    Args:
        recorder: writes them, within its budgets.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def __call__(self, regarding: ObjectReference, type: EventType, reason: str, note: str) -> None:  # noqa: A002
        """Hear that something happened to an object."""
        level = logging.WARNING if type == "Warning" else logging.DEBUG
        _log.log(level, "%s %s/%s: %s: %s", regarding.kind, regarding.namespace, regarding.name, reason, note)
        self._recorder.record(regarding, Note(reason, reason, note, warning=type == "Warning"), REPORTER)
