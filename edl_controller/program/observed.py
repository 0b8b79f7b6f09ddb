"""What is counted at the moment in which the metrics are read: watches, jobs, slots, ages of the agents' news."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from edl_controller.api.kinds import TRAINING_JOBS
from edl_controller.controller import Controller

PHASES = ("none", "creating", "running", "scaling", "succeeded", "failed", "suspended")
"""Of jobs, as they are counted; any other counts as ``other``."""


class Observed:
    """Reads a controller's caches and counters.

    Args:
        controller: to look at.
        wall: Unix seconds.
    """

    def __init__(self, controller: Controller, wall: Callable[[], float] = time.time) -> None:
        self._controller, self._wall = controller, wall

    def metrics(self) -> Iterable[Metric]:
        """Return them."""
        yield from self._watches()
        yield from self._jobs()
        yield from self._agents()

    def _watches(self) -> Iterable[Metric]:
        lists = CounterMetricFamily("edl_watch_lists", "Whole lists that were asked for.", labels=["resource"])
        opened = CounterMetricFamily("edl_watch_opened", "Watches that were opened.", labels=["resource"])
        failed = CounterMetricFamily("edl_watch_failures", "Lists and watches that failed.", labels=["resource"])
        age = GaugeMetricFamily(
            "edl_watch_last_event_age_seconds",
            "Since anything was heard of the cluster, in the quietest namespace.",
            labels=["resource"],
        )
        synced = GaugeMetricFamily("edl_watch_synced", "1 where the cache is filled.", labels=["resource"])
        objects = GaugeMetricFamily("edl_cache_objects", "Objects in the cache.", labels=["resource"])
        for informer in self._controller.informers.all():
            name, sources = [informer.kind.plural], informer.reflectors
            lists.add_metric(name, sum(one.lists for one in sources))
            opened.add_metric(name, sum(one.watches for one in sources))
            failed.add_metric(name, sum(one.failures for one in sources))
            age.add_metric(name, informer.silence())
            synced.add_metric(name, informer.has_synced)
            objects.add_metric(name, len(informer.cache))
        yield from (lists, opened, failed, age, synced, objects)

    def _jobs(self) -> Iterable[Metric]:
        jobs = self._controller.informers.of(TRAINING_JOBS).cache.all()
        counts = Counter(_phase(job.status.phase) for job in jobs)
        phases = GaugeMetricFamily("edl_jobs", "TrainingJobs by phase.", labels=["phase"])
        for phase in (*PHASES, "other"):
            phases.add_metric([phase], counts[phase])
        yield phases
        pods = GaugeMetricFamily(
            "edl_pods", "Pods of all jobs by role: ready, and desired (trainers only).", labels=["role", "state"]
        )
        pods.add_metric(["trainer", "ready"], sum(job.status.trainers or 0 for job in jobs))
        pods.add_metric(["trainer", "desired"], sum(job.status.desired_trainers or 0 for job in jobs))
        pods.add_metric(["pserver", "ready"], sum(job.status.pservers or 0 for job in jobs))
        yield pods

    def _agents(self) -> Iterable[Metric]:
        states, now = self._controller.agents.all().values(), self._wall()
        held = GaugeMetricFamily("edl_slots_held", "Slots that agents hold, of all jobs together.", labels=["role"])
        held.add_metric(["pserver"], sum(len(state.pservers) for state in states))
        held.add_metric(["trainer"], sum(len(state.trainers) for state in states))
        yield held
        desired = GaugeMetricFamily("edl_slots_desired", "Slots that there should be.", labels=["role"])
        desired.add_metric(["pserver"], sum(state.desired or 0 for state in states))
        yield desired
        ages = [state.age(now) for state in states if state.observed is not None]
        yield GaugeMetricFamily(
            "edl_agent_state_age_seconds", "Age of the oldest news of a job's agents.", value=max(ages, default=0.0)
        )
        unknown = sum(state.observed is None or bool(state.error) for state in states)
        yield GaugeMetricFamily("edl_agent_state_unknown", "Jobs whose agents cannot be read now.", value=unknown)


def _phase(phase: str) -> str:
    return phase.lower() if phase.lower() in PHASES else "other" if phase else "none"
