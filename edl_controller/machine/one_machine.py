"""One machine as a whole cluster: etcd, the loops of a control plane, nodes, and the controller, in one process."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from types import TracebackType

from edl_controller.cluster.local import LocalCluster
from edl_controller.cluster.local.keys import DEFAULT_PREFIX
from edl_controller.controller import Controller
from edl_controller.core.job_settings import JobSettings
from edl_controller.machine.etcd import LocalEtcd
from edl_controller.machine.local_state import LocalState, Serving
from edl_controller.machine.loops import Loops
from edl_controller.machine.node.images import ImageMapping, Images
from edl_controller.machine.node.node_agent import NodeAgent
from edl_controller.machine.node_events import NodeEvents
from edl_controller.machine.node_sizes import NodeSize
from edl_controller.runtime.recorder import Recorder

_log = logging.getLogger(__name__)

STOP_WITHIN = 30.0
"""Seconds that each part has to end."""


def here() -> Images:
    """Let every image stand for this very environment: its Python, its PATH, its present folder."""
    virtualenv = sys.prefix if sys.prefix != sys.base_prefix else ""
    return Images({"*": ImageMapping(virtualenv=virtualenv, working_dir=os.getcwd())})


class OneMachine:
    """A cluster of this machine, from `start` to `stop`; also a context manager. Nothing is left running after it.

    Args:
        state: where its files are; taken while it runs.
        nodes: the virtual nodes.
        images: what the images of the pods stand for; default `here`.
        max_load_desired: share of the cluster's capacity that elastic trainers may fill.
        durable: wait for the disk with each write.

    Attributes:
        cluster: the port to it, from `start` on.
        nodes: the nodes' agents, by name.
        controller: what manages the jobs.
    """

    cluster: LocalCluster
    controller: Controller

    def __init__(
        self,
        state: LocalState,
        nodes: tuple[NodeSize, ...],
        *,
        images: Images | None = None,
        max_load_desired: float = 0.97,
        durable: bool = True,
    ) -> None:
        self._state, self._sizes, self._max_load_desired = state, nodes, max_load_desired
        self._images, self._durable = images or here(), durable
        self._stack = contextlib.ExitStack()
        self.nodes: dict[str, NodeAgent] = {}

    def start(self) -> None:
        """Start all parts.

        Raises:
            Unavailable: another process serves this cluster, or etcd does not start.
        """
        with contextlib.ExitStack() as stack:
            self._state.take()
            stack.callback(self._state.release)
            etcd = stack.enter_context(LocalEtcd(self._state.etcd, durable=self._durable))
            self.cluster = stack.enter_context(LocalCluster(etcd.endpoint))
            self._run_beside(stack, "loops", Loops(self.cluster).run)
            recorder = Recorder(self.cluster)
            self._run_beside(stack, "node events", recorder.run)
            report = NodeEvents(recorder)
            for size in self._sizes:
                folder = self._state.nodes / size.name
                node = NodeAgent(self.cluster, size.name, size.capacity, folder, images=self._images, report=report)
                node.start()
                stack.callback(node.stop)
                self.nodes[size.name] = node
            self.controller = Controller(
                self.cluster,
                max_load_desired=self._max_load_desired,
                settings=JobSettings(etcd_endpoints=(etcd.endpoint,)),
            )
            self._run_beside(stack, "controller", self.controller.run)
            self._state.announce(
                Serving(
                    pid=os.getpid(),
                    endpoints=etcd.endpoint,
                    prefix=DEFAULT_PREFIX,
                    since=time.time(),
                    nodes=tuple(self.nodes),
                )
            )
            self._stack = stack.pop_all()

    def _run_beside(self, stack: contextlib.ExitStack, name: str, run: object) -> None:
        stop = threading.Event()
        thread = threading.Thread(target=run, args=(stop,), name=name, daemon=True)  # type: ignore[arg-type]

        def end() -> None:
            stop.set()
            thread.join(STOP_WITHIN)
            if thread.is_alive():
                _log.warning("%s did not end within %g s", name, STOP_WITHIN)

        thread.start()
        stack.callback(end)

    def stop(self) -> None:
        """Stop all parts, in the reverse order. Idempotent."""
        self._stack.close()

    def __enter__(self) -> OneMachine:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
