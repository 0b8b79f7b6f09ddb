"""PURE: a drain request, version 1: JSON below ``/edl/drain/<name>``, written by the controller, read by the agent.

It asks one named trainer or pserver to give its work back and go. The answer is in the agent's report
(`edl_agent.report.Report.drain`). Times are seconds.
"""

import json
import math
from dataclasses import dataclass

from edl_agent.report import VERSION, load_object

LONGEST = 86_400.0
"""Seconds. A deadline further away than a day counts as one in a day."""

_REASON = 500


@dataclass(frozen=True, slots=True)
class DrainRequest:
    """What is asked for.

    Attributes:
        decision: id of the decision behind it, for the controller's journal; another id is another request.
        deadline: seconds since 1970, by when the agent should have answered.
        reason: for people.
        pod_uid: the very pod that is meant; empty = whoever has the name.
    """

    decision: str
    deadline: float
    reason: str = ""
    pod_uid: str = ""

    def encode(self) -> bytes:
        """As JSON; long reasons are cut.

        Raises:
            ValueError: the deadline is not finite.
        """
        value: dict[str, object] = {
            "v": VERSION,
            "decision": self.decision,
            "deadline": self.deadline,
            "reason": self.reason[:_REASON],
        }
        if self.pod_uid:
            value["pod_uid"] = self.pod_uid
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> "DrainRequest | None":
        """The request in a value, ``None`` where it holds none (no decision or no usable deadline). Never raises."""
        found = load_object(data)
        if found is None:
            return None
        decision, deadline = found.get("decision"), found.get("deadline")
        if not isinstance(decision, str) or not decision:
            return None
        if isinstance(deadline, bool) or not isinstance(deadline, int | float):
            return None
        if not -1e15 < deadline < 1e15 or not math.isfinite(deadline):
            return None
        reason, pod_uid = found.get("reason"), found.get("pod_uid")
        return cls(
            decision,
            float(deadline),
            reason[:_REASON] if isinstance(reason, str) else "",
            pod_uid if isinstance(pod_uid, str) else "",
        )

    def left(self, now: float) -> float:
        """Seconds until the deadline at ``now`` (seconds since 1970), at most `LONGEST`; negative when past."""
        return min(self.deadline - now, LONGEST)

    def concerns(self, pod_uid: str, *, found_at_start: bool, now: float) -> bool:
        """Whether the request is for this process.

        A request that names a pod is for that pod only. One that names none, was there before this process looked,
        and is past its deadline was for an earlier process of the same name. A request that arrives while this process
        watches is for it, also with a deadline in the past (clocks differ).

        Args:
            pod_uid: of this process, empty where not known.
            found_at_start: whether it was there when this process first looked.
            now: seconds since 1970.
        """
        if self.pod_uid and pod_uid:
            return self.pod_uid == pod_uid
        return not (found_at_start and self.left(now) <= 0)
