"""Writes what a pass has found into a TrainingJob's status: only what differs, on the version it was decided on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import msgspec

from edl_controller.api import conditions as known
from edl_controller.api.kinds import TRAINING_JOBS
from edl_controller.api.meta import find_condition
from edl_controller.api.v1 import ScaleRecord, TrainingJob, TrainingJobStatus
from edl_controller.cluster.port import Cluster
from edl_controller.core.actions import Note
from edl_controller.core.lifecycle import Outcome
from edl_controller.core.merge_patch import difference
from edl_controller.errors import ClusterError, Conflict, Invalid, NotFound
from edl_controller.runtime.apply_actions import StaleDecision
from edl_controller.runtime.cache import Cache
from edl_controller.runtime.logs import about
from edl_controller.runtime.plain_text import printable
from edl_controller.runtime.recorder import Recorder

SYNCED = "Synced"
"""Condition: False while the controller fails to do what the job needs; the message says why."""

log = logging.getLogger(__name__)


class StatusWriter:
    """Writes the status of TrainingJobs, and the Events that go with it.

    Args:
        cluster: where it is written.
        jobs: the cache, told of what was written before the watch tells it.
        recorder: of Events.
        now: Unix seconds.
    """

    def __init__(
        self, cluster: Cluster, jobs: Cache[TrainingJob], recorder: Recorder, now: Callable[[], float]
    ) -> None:
        self._cluster, self._jobs, self._recorder, self._now = cluster, jobs, recorder, now

    def write(self, job: TrainingJob, outcome: Outcome, records: Sequence[ScaleRecord]) -> bool:
        """Write what was decided; returns whether anything differed.

        Args:
            job: as it was when that was decided.
            outcome: of the pass.
            records: what the autoscaler has done, whether the status has it already or not.

        Raises:
            StaleDecision: the job has changed since.
            ClusterError: the cluster did not take it.
        """
        status = _with_scaling(outcome.status, records)
        failed = find_condition(status.conditions, SYNCED)
        if failed is not None and failed.status == "False":
            status = self._with_synced(status, "True", "Synced", "", job)
        written = self._patch(job, status)
        for note in outcome.notes:
            self._recorder.record(TRAINING_JOBS.reference(job), note)
        return written

    def show_failure(self, job: TrainingJob, reason: str, message: str) -> None:
        """Show on the job why what it needs is not done. A cluster that does not take that either is only logged."""
        message = printable(message, known.MESSAGE_LIMIT)
        before = find_condition(job.status.conditions, SYNCED)
        if before is not None and (before.status, before.reason, before.message) == ("False", reason, message):
            return
        self._recorder.record(TRAINING_JOBS.reference(job), Note(reason, "Sync", message, warning=True))
        try:
            self._patch(job, self._with_synced(job.status, "False", reason, message, job))
        except ClusterError as error:
            log.debug("The failure of %s/%s is not shown: %s", job.metadata.namespace, job.metadata.name, error)

    def show_unreadable(self, job: TrainingJob, why: str) -> None:
        """Show on an object that cannot be read that it is so.

        Raises:
            ClusterError: the cluster did not take it.
        """
        meta = job.metadata
        message = f"the object cannot be read: {why}"
        note = Note("Invalid", "Validate", message, warning=True)
        conditions = known.set_condition(
            (), known.INVALID, "True", "Unreadable", message, now=self._now(), generation=meta.generation
        )
        # Of what its status says nothing is known, nor of any conflict with it.
        status = {"status": {"conditions": msgspec.to_builtins(conditions)}}
        try:
            self._cluster.patch(TRAINING_JOBS, meta.namespace, meta.name, status, subresource="status", uid=meta.uid)
        except (Invalid, NotFound) as error:  # written, and the answer cannot be read; or deleted meanwhile
            log.info("%s/%s: %s (%s)", meta.namespace, meta.name, message, error)
        self._recorder.record(TRAINING_JOBS.reference(job), note)

    # --- inside ---

    def _patch(self, job: TrainingJob, status: TrainingJobStatus) -> bool:
        patch = difference(msgspec.to_builtins(job.status), msgspec.to_builtins(status))
        if not patch:
            return False
        meta = job.metadata
        try:
            after = self._cluster.patch(
                TRAINING_JOBS,
                meta.namespace,
                meta.name,
                {"status": patch},
                subresource="status",
                resource_version=meta.resource_version,
                uid=meta.uid,
            )
        except NotFound:
            return False  # deleted meanwhile
        except Conflict as error:
            # It was decided on what has changed since: the pass is made again with what is.
            try:
                self._jobs.observe(self._cluster.get(TRAINING_JOBS, meta.namespace, meta.name))
            except NotFound:
                return False
            raise StaleDecision(str(error)) from error
        self._jobs.observe(after)
        if after.status.phase != job.status.phase:
            phase, extra = after.status.phase or "new", about(TRAINING_JOBS.name, meta.namespace, meta.name)
            log.info("TrainingJob %s/%s is %s", meta.namespace, meta.name, phase, extra=extra)
        return True

    def _with_synced(
        self, status: TrainingJobStatus, value: str, reason: str, message: str, job: TrainingJob
    ) -> TrainingJobStatus:
        conditions = known.set_condition(
            status.conditions,
            SYNCED,
            value,
            reason,
            message,
            now=self._now(),
            generation=job.metadata.generation,
        )
        return msgspec.structs.replace(status, conditions=conditions)


def _with_scaling(status: TrainingJobStatus, done: Sequence[ScaleRecord]) -> TrainingJobStatus:
    """Add what the autoscaler has done since."""
    records = status.scale_records
    for record in done:
        if record not in records.scale_records:
            records = known.add_scale_record(records, record)
    return msgspec.structs.replace(status, scale_records=records)
