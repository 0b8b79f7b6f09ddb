"""The cluster of this machine as a process (``edl local up``)."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from edl_controller.errors import EdlControllerError
from edl_controller.machine import node_sizes
from edl_controller.machine.local_state import LocalState
from edl_controller.machine.node.images import Images
from edl_controller.machine.one_machine import OneMachine
from edl_controller.runtime import logs
from edl_controller.runtime.signals import SignalledEnd


def serve(state: LocalState, nodes: tuple[str, ...], images: Path | None) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        Unavailable: another process serves this cluster, or etcd does not start.
        InvalidQuantity: a node is described wrongly.
    """
    machine = OneMachine(state, node_sizes.read(nodes), images=Images.read(images) if images else None)
    with SignalledEnd() as end, machine:
        end.wait()


def main() -> int:
    """Serve what the command line says: root, file of images or ``""``, nodes."""
    logs.configure("text")
    root, images, *nodes = sys.argv[1:]
    try:
        serve(LocalState(Path(root)), tuple(nodes), Path(images) if images else None)
    except EdlControllerError as error:
        logging.getLogger(__name__).error("%s", error)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
