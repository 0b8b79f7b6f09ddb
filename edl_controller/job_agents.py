"""Where each job's agents are read, and with which identity; and the one number that is set right there."""

from __future__ import annotations

from collections.abc import Sequence

from edl_controller.agent_state import AgentStates
from edl_controller.agent_store import EtcdAccess
from edl_controller.api import conditions as known
from edl_controller.api.defaults import with_defaults
from edl_controller.api.v1 import TrainingJob
from edl_controller.core.agents import AgentState
from edl_controller.core.bring_up import pservers_in_effect, serving_master
from edl_controller.core.children import Children
from edl_controller.core.job_settings import JobSettings
from edl_controller.core.meeting_point import external, in_master, in_master_pod
from edl_controller.core.planner.observed import job_key

NO_IDENTITY = (
    "this job's own etcd asks for an identity that the controller does not have: it reads no Secrets, "
    "so what the agents say there is not shown; the job itself is not hindered"
)


class JobAgents:
    """Has the agents of jobs read.

    Args:
        states: what reads them.
        settings: of the operator.
        etcd: the controller's own access to the etcd that jobs share, if there is one.
    """

    def __init__(self, states: AgentStates, settings: JobSettings, etcd: EtcdAccess | None) -> None:
        self._states, self._settings, self._etcd = states, settings, etcd

    def watch(self, job: TrainingJob, children: Children) -> str:
        """Have the job's etcd read, once it is known where it is; return why it cannot be, if so."""
        filled = with_defaults(job, self._settings.rules)
        if known.is_final(job.status.conditions) or job.metadata.deletion_timestamp is not None:
            self._states.forget(job_key(job))
            return ""
        if in_master_pod(filled):
            pod = serving_master(children)
            if pod is None:
                return ""
            meeting = in_master(filled, pod.status.pod_ip, pod.metadata.uid)
        else:
            meeting = external(filled, self._settings)
        own = in_master_pod(filled) or bool(filled.spec.etcd.endpoints)
        access = self._access_to(meeting.endpoints) if own else self._etcd
        if access is None or not access.endpoints:
            return NO_IDENTITY if own else ""
        try:
            self._states.watch(job_key(job), access, meeting.prefix)
        except ValueError as error:
            return f"the agents cannot be read: {error}"
        if own and filled.spec.etcd.credentials is not None and self._states.get(job_key(job)).error:
            return NO_IDENTITY
        return ""

    def _access_to(self, endpoints: Sequence[str]) -> EtcdAccess | None:
        """Return how a job's own etcd is read; None: it wants to know who asks, and nobody told the controller.

        The job names Secrets, which are for its pods; the controller reads none. Its own certificate may be shown to
        anybody, its password is for its own etcd only.
        """
        if not any(one.lower().startswith("https:") for one in endpoints):
            return EtcdAccess(tuple(endpoints))
        if self._etcd is None or self._etcd.tls is None:
            return None
        return EtcdAccess(tuple(endpoints), tls=self._etcd.tls)

    def repair_desired(self, job: TrainingJob, children: Children, agents: AgentState) -> None:
        """Keep the number of pservers that the agents go by at the one in effect (row K35)."""
        if agents.observed is None or agents.error or agents.desired is None or children.pserver is None:
            return
        count = pservers_in_effect(with_defaults(job, self._settings.rules), children)
        if count and agents.desired != count:
            self._states.repair_desired(job_key(job), count)
