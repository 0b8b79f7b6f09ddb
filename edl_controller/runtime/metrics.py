"""Metrics for Prometheus, in a registry of their own: what the runtime counts, under the names that dashboards know.

``workqueue_*`` and ``controller_runtime_*`` are the names of client-go and controller-runtime, with their meaning; all
others begin with ``edl_``. Labels are bounded: never the name of a job, pod or namespace.
"""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Callable, Iterable
from typing import Any

from edl_controller.core.planner.journal import Decision
from edl_controller.errors import MissingExtra
from edl_controller.runtime.http import Reply
from edl_controller.runtime.reconciler import Result
from edl_controller.runtime.workqueue import WorkQueue

try:
    from prometheus_client import (
        CollectorRegistry,
        Counter,
        Gauge,
        Histogram,
        Info,
        ProcessCollector,
        disable_created_metrics,
    )
    from prometheus_client.core import Metric
    from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
    from prometheus_client.registry import Collector
except ImportError as error:
    raise MissingExtra("metrics need prometheus-client: pip install 'edl[controller]'") from error

SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0)
"""Bounds of the histograms."""
LABELS = {
    "edl_api_requests": ("method", "code"),
    "edl_autoscaler_decisions": ("kind", "reason"),
}
"""Of those that have no samples before something is counted."""


class Metrics:
    """One program's metrics. Thread-safe.

    Attributes:
        registry: of prometheus-client.
    """

    def __init__(self) -> None:
        # When a counter was made is in the start time of the process; a series each is a waste.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        Info("edl_build", "Version of the program and its Python.", registry=self.registry).info(
            {"version": importlib.metadata.version("edl"), "python": platform.python_version()}
        )

    def page(self) -> Reply:
        """Return all of it as text."""
        return Reply(200, generate_latest(self.registry), CONTENT_TYPE_LATEST)

    def collect(self, found: Callable[[], Iterable[Metric]]) -> None:
        """Have ``found()`` called for each page; it must not wait."""

        class Found(Collector):
            def collect(self) -> Iterable[Metric]:
                return found()

            def describe(self) -> Iterable[Metric]:
                return ()

        self.registry.register(Found())


class QueueCounts:
    """The work queue (`edl_controller.runtime.workqueue.QueueMetrics`)."""

    def __init__(self, metrics: Metrics, name: str) -> None:
        registry = metrics.registry
        self._depth = Gauge("workqueue_depth", "Keys that wait.", ["name"], registry=registry).labels(name)
        self._adds = Counter("workqueue_adds_total", "Keys that were added.", ["name"], registry=registry).labels(name)
        self._retries = Counter(
            "workqueue_retries_total", "Keys that were added again after a failure.", ["name"], registry=registry
        ).labels(name)
        self._waited = Histogram(
            "workqueue_queue_duration_seconds",
            "How long a key waited before it was worked on.",
            ["name"],
            buckets=SECONDS,
            registry=registry,
        ).labels(name)
        self._worked = Histogram(
            "workqueue_work_duration_seconds",
            "How long the work on a key took.",
            ["name"],
            buckets=SECONDS,
            registry=registry,
        ).labels(name)
        self._longest = Gauge(
            "workqueue_longest_running_processor_seconds",
            "How long the oldest work that is under way has taken so far.",
            ["name"],
            registry=registry,
        ).labels(name)
        self._unfinished = Gauge(
            "workqueue_unfinished_work_seconds",
            "How long all work that is under way has taken so far, added up.",
            ["name"],
            registry=registry,
        ).labels(name)

    def follow(self, queue: WorkQueue[Any]) -> None:
        """Also show what is under way in ``queue``."""
        self._longest.set_function(queue.longest_work)
        self._unfinished.set_function(queue.unfinished_work)

    def depth(self, waiting: int) -> None:
        """See `QueueMetrics.depth`."""
        self._depth.set(waiting)

    def added(self) -> None:
        """See `QueueMetrics.added`."""
        self._adds.inc()

    def retried(self) -> None:
        """See `QueueMetrics.retried`."""
        self._retries.inc()

    def waited(self, seconds: float) -> None:
        """See `QueueMetrics.waited`."""
        self._waited.observe(seconds)

    def worked(self, seconds: float) -> None:
        """See `QueueMetrics.worked`."""
        self._worked.observe(seconds)


class ReconcileCounts:
    """Passes over jobs (`edl_controller.runtime.reconciler.ReconcileMetrics`)."""

    def __init__(self, metrics: Metrics, name: str) -> None:
        registry = metrics.registry
        total = Counter(
            "controller_runtime_reconcile_total",
            "Passes by how they ended: success, requeue_after (to be looked at again later), error.",
            ["controller", "result"],
            registry=registry,
        )
        results: tuple[Result, ...] = ("success", "requeue_after", "error")
        self._results = {result: total.labels(name, result) for result in results}
        self._errors = Counter(
            "controller_runtime_reconcile_errors_total", "Passes that failed.", ["controller"], registry=registry
        ).labels(name)
        self._seconds = Histogram(
            "controller_runtime_reconcile_time_seconds",
            "How long a pass took.",
            ["controller"],
            buckets=SECONDS,
            registry=registry,
        ).labels(name)

    def reconciled(self, result: Result, seconds: float) -> None:
        """See `ReconcileMetrics.reconciled`."""
        self._results[result].inc()
        if result == "error":
            self._errors.inc()
        self._seconds.observe(seconds)


class LeaderCounts:
    """The election (`edl_controller.runtime.leader.LeaderMetrics`)."""

    def __init__(self, metrics: Metrics) -> None:
        self._leads = Gauge("edl_leader", "1 where this replica leads, else 0.", registry=metrics.registry)
        self._losses = Counter(
            "edl_leader_losses_total", "How often the lead was lost against the will.", registry=metrics.registry
        )

    def leading(self, yes: bool) -> None:
        """See `LeaderMetrics.leading`."""
        self._leads.set(yes)

    def lost(self) -> None:
        """See `LeaderMetrics.lost`."""
        self._losses.inc()


class ApiCallCounts:
    """Requests to the API server (`edl_controller.cluster.kube.transport.Calls`)."""

    def __init__(self, metrics: Metrics) -> None:
        self._calls = Counter(
            "edl_api_requests_total",
            "Requests to the API server by method and status; status 0: no answer.",
            LABELS["edl_api_requests"],
            registry=metrics.registry,
        )

    def called(self, method: str, status: int) -> None:
        """See `Calls.called`."""
        self._calls.labels(method, str(status)).inc()


class DecisionCounts:
    """Decisions of the autoscaler."""

    def __init__(self, metrics: Metrics) -> None:
        self._decisions = Counter(
            "edl_autoscaler_decisions_total",
            "Decisions by kind (grow, shrink) and reason (bounds, load, no_room, room_for_others, fits, other).",
            LABELS["edl_autoscaler_decisions"],
            registry=metrics.registry,
        )

    def decided(self, decision: Decision) -> None:
        """Count one."""
        kind = "grow" if decision.target > decision.before else "shrink"
        self._decisions.labels(kind, decision.cause).inc()
