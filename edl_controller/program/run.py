"""`edl-controller run`: puts the parts together, keeps them going, and ends them in order.

The order of the end (row K42): not ready any more; no new work; what is under way is finished or left behind; then the
Lease is released, so that another replica leads at once, when nothing of this one can write any more. Where something
was left behind the Lease is not released but runs out.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import os
import threading
import time
from dataclasses import replace

from edl_controller.agent_state import AgentStates
from edl_controller.agent_store import EtcdAccess
from edl_controller.cluster.port import Cluster
from edl_controller.controller import Controller
from edl_controller.errors import Forbidden, NotFound
from edl_controller.program import connect as connections
from edl_controller.program.health import Health
from edl_controller.program.observed import Observed
from edl_controller.program.settings import ProgramSettings
from edl_controller.runtime import metrics as counts
from edl_controller.runtime.fenced_cluster import FencedCluster
from edl_controller.runtime.http import Address, HttpServer, parse_address
from edl_controller.runtime.leader import Leader
from edl_controller.runtime.signals import SignalledEnd

OK, FAULT, USAGE, LOST_LEAD = 0, 1, 2, 3
"""Exit statuses."""
LOOK = 0.5
"""Seconds between two looks at the readiness, which is logged when it changes."""
FOR_THE_LEASE = 5.0
"""Seconds of ``stop_within`` that are kept for releasing the Lease."""
AGENTS_END = 0.5
"""Seconds that each thread that reads or writes agents' keys has to end; its connection is closed already."""

log = logging.getLogger(__name__)


class Program:
    """The controller as a process.

    Args:
        settings: of it.
        end: ends it.

    Raises:
        ConfigurationError: they cannot be used here; the text says what to do.
    """

    def __init__(self, settings: ProgramSettings, end: SignalledEnd) -> None:
        self._settings, self._end = settings, end
        self._stopping, self._stop, self._ended = threading.Event(), threading.Event(), threading.Event()
        self._competes = threading.Event()
        self._error: Exception | None = None
        self._said: list[str] | None = None
        self._metrics = counts.Metrics()
        self._lead_counts = counts.LeaderCounts(self._metrics)
        with contextlib.ExitStack() as stack:
            self._assemble(stack)
            self._stack = stack.pop_all()

    def _assemble(self, stack: contextlib.ExitStack) -> None:
        settings = self._settings
        connections.check_names(settings)
        http = parse_address(settings.http_bind)
        metrics = parse_address(settings.metrics_bind) if settings.metrics_bind else http
        etcd, jobs = connections.etcd_access(settings), connections.job_settings(settings)
        connect = connections.connector(settings)
        if settings.cluster == "local" and etcd is None:
            endpoints = tuple(connections.local_place(settings)[0].split(","))
            etcd, jobs = EtcdAccess(endpoints), replace(jobs, etcd_endpoints=endpoints)
        calls = counts.ApiCallCounts(self._metrics)
        self._leader = self._candidate(stack, connect, calls) if settings.leader_elect else None
        check = None if self._leader is None else self._leader.check
        cluster: Cluster = _closed_after(stack, connect(calls, before_write=check))
        if self._leader is not None:
            cluster = FencedCluster(cluster, self._leader.is_leader)
        self._agents = agents = AgentStates(may_write=self._leads)
        stack.callback(agents.close)
        queue = counts.QueueCounts(self._metrics, "trainingjobs")
        self.controller = Controller(
            cluster,
            max_load_desired=settings.max_load,
            workers=settings.workers,
            namespaces=settings.namespaces,
            settings=jobs,
            etcd=etcd,
            agents=agents,
            autoscale=settings.scales,
            resync=settings.resync,
            metrics=queue,
            reconciles=counts.ReconcileCounts(self._metrics, "trainingjobs"),
            leads=None if self._leader is None else self._compete,
            stop_within=settings.stop_within - FOR_THE_LEASE,
        )
        queue.follow(self.controller.queue)
        self._metrics.collect(Observed(self.controller).metrics)
        self.controller.autoscaler.on_decision(counts.DecisionCounts(self._metrics).decided)
        self._serve(stack, http, metrics)

    def _candidate(
        self, stack: contextlib.ExitStack, connect: connections.Connect, calls: connections.ApiCalls
    ) -> Leader:
        times = connections.election_settings(self._settings)
        return Leader(
            _closed_after(stack, connect(calls, answer_within=times.attempt)),
            connections.lease_namespace(self._settings, os.environ),
            self._settings.lease_name,
            settings=times,
            metrics=self._lead_counts,
            on_lost=self._end.wake,
        )

    def _serve(self, stack: contextlib.ExitStack, http: Address, metrics: Address) -> None:
        self.health = Health(self.controller, self._stopping, self._competes_well, self._barred)
        pages = {"/healthz": self.health.healthz, "/readyz": self.health.readyz}
        if metrics is http or (metrics == http and metrics.port):
            servers = [HttpServer(http, {**pages, "/metrics": self._metrics.page})]
        else:
            servers = [HttpServer(http, pages), HttpServer(metrics, {"/metrics": self._metrics.page})]
        for server in servers:
            stack.enter_context(server)
            log.info("Listening", extra={"url": server.url})

    # --- the election ---

    def _leads(self) -> bool:
        return self._leader is None or self._leader.is_leader()

    def _compete(self) -> bool:
        """Compete from the first call on, which comes when the caches are filled: before, one could do no work."""
        assert self._leader is not None
        if not self._competes.is_set():
            self._leader.start()
            self._competes.set()
            log.info("Competing for the lead", extra={"identity": self._leader.identity})
        return self._leader.is_leader()

    def _competes_well(self) -> bool:
        """Tell whether the election goes on, where there is one and it has begun."""
        leader = self._leader
        return leader is None or not self._competes.is_set() or leader.competes or self._stopping.is_set()

    def _barred(self) -> Exception | None:
        """Return what somebody has to put right before this replica could lead: a right, the Lease's namespace."""
        trouble = None if self._leader is None else self._leader.trouble
        return trouble if isinstance(trouble, (Forbidden, NotFound)) else None

    # --- the life ---

    def run(self) -> int:
        """Run until a signal, the loss of the lead, or a fault; returns the exit status."""
        settings, started = self._settings, time.monotonic()
        with self._stack:
            log.info(
                "edl-controller %s starts",
                importlib.metadata.version("edl"),
                extra={
                    "cluster": settings.cluster,
                    "namespaces": ",".join(settings.namespaces) or "all",
                    "autoscale": settings.scales,
                },
            )
            thread = threading.Thread(target=self._run, name="edl-controller", daemon=True)
            thread.start()
            if self._leader is None:
                self._lead_counts.leading(True)  # nobody else may
            while not self._end.wait(LOOK):
                self._tell()
            begun = time.monotonic()
            status = self._why()
            self._stopping.set()
            self._stop.set()
            thread.join(settings.stop_within - FOR_THE_LEASE + 1.0)
            if self._error is not None and status == OK:
                status = FAULT
            self._leave(thread)
            log.info(
                "edl-controller ends",
                extra={
                    "status": status,
                    "seconds": round(time.monotonic() - begun, 2),
                    "lived": round(time.monotonic() - started, 1),
                },
            )
        return status

    def _run(self) -> None:
        try:
            self.controller.run(self._stop)
        except Exception as error:
            self._error = error
            log.critical("The controller has died: %s", error, exc_info=error)
        finally:
            self._ended.set()
            self._end.wake()

    def _why(self) -> int:
        if self._leader is not None and self._leader.lost.is_set():
            log.error("The lead is lost: this process ends, and follows when it is started again")
            return LOST_LEAD
        if self._ended.is_set():
            return FAULT
        log.info("Stopping: a signal came")
        return OK

    def _leave(self, thread: threading.Thread) -> None:
        """End the election, last: nothing of this process writes any more."""
        self._agents.close(AGENTS_END)
        left = thread.is_alive() or self.controller.queue.sizes()["working"]
        if left:
            log.error("Work was left behind: the Lease is not released, it runs out")
        if self._leader is None:
            return
        if left:
            self._leader.close()
        else:
            self._leader.release()

    def _tell(self) -> None:
        """Log what keeps this replica from being ready, whenever it changes."""
        missing = self.health.unready()
        if missing == self._said:
            return
        if missing and not all(line.endswith("not listed yet") for line in missing):
            log.warning("Not ready: %s", "; ".join(missing))
        elif not missing:
            log.info("Ready")
        self._said = missing


def _closed_after(stack: contextlib.ExitStack, cluster: connections.ClosableCluster) -> connections.ClosableCluster:
    stack.callback(cluster.close)
    return cluster


def run(settings: ProgramSettings) -> int:
    """Run the program until its end.

    Returns:
        0 after a signal, 1 after a fault, 3 after the lead was lost.

    Raises:
        ConfigurationError: the settings cannot be used here (status 2).
    """
    threading.excepthook = _log_end
    logging.raiseExceptions = False  # a closed stderr must not end anything
    with SignalledEnd() as end:
        return Program(settings, end).run()


def _log_end(what: threading.ExceptHookArgs) -> None:
    if what.exc_value is not None:
        name = what.thread.name if what.thread is not None else "?"
        log.critical("The thread %s has died: %s", name, what.exc_value, exc_info=what.exc_value)


__all__ = ["FAULT", "LOST_LEAD", "OK", "USAGE", "Program", "run"]
