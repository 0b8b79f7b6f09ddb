"""The Events that the loops write beside what they do, as Kubernetes' controllers do (`core.semantics.happenings`)."""

from __future__ import annotations

from edl_controller.api.kinds import ApiObject, kind_of
from edl_controller.core.actions import Note
from edl_controller.core.semantics.happenings import REPORTERS
from edl_controller.runtime.recorder import Recorder


class LoopEvents:
    """Writes Events in the names of the controllers that the loops stand for.

    Args:
        recorder: writes them, within its budgets.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def say(self, obj: ApiObject, reason: str, note: str, *, warning: bool = False) -> None:
        """Have an Event about an object written; returns at once."""
        kind = kind_of(obj)
        what = Note(reason=reason, action=reason, note=note, warning=warning)
        self._recorder.record(kind.reference(obj), what, REPORTERS[kind.name])

    def made(self, owner: ApiObject, pod: str) -> None:
        """A workload has created a pod."""
        self.say(owner, "SuccessfulCreate", f"Created pod: {pod}")

    def removed(self, owner: ApiObject, pod: str) -> None:
        """A workload has deleted a pod."""
        self.say(owner, "SuccessfulDelete", f"Deleted pod: {pod}")
