"""Keeps the log files of a node's containers from filling its disk: of one that is too long the newest part stays.

A container writes into its file itself, in append mode, so the file is cut in place: what it writes in the very moment
between reading the newest part and cutting is lost. (Kubelets rotate at 10 MiB, ``containerLogMaxSize``, and keep
five.)
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from edl_controller.machine.node.services import Services

MOST = 64 << 20
"""Bytes of one file."""
LEFT = 4 << 20
"""Bytes that stay of one that had more."""
LOOK_EVERY = 10.0
"""Seconds between two looks."""

_log = logging.getLogger(__name__)


class LogLimit:
    """Looks at the files from time to time. On the loop's thread.

    Args:
        services: of the node.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._look()

    def _look(self) -> None:
        for path in self._services.root.glob("logs/*/*/*.log"):
            try:
                if path.stat().st_size > MOST:
                    cut(path, LEFT)
            except OSError as error:  # removed with its pod, or the disk is full already
                _log.debug("%s could not be cut: %s", path, error)
        self._services.loop.call_later(LOOK_EVERY, self._look)


def cut(path: Path, left: int) -> None:
    """Leave the last whole lines of a file, ``left`` bytes at most, below a line that says so.

    Raises:
        OSError: that was not possible.
    """
    with path.open("r+b", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - left))
        kept = file.read(left)
        kept = kept[kept.find(b"\n") + 1 :]
        file.truncate(0)
    with path.open("ab", buffering=0) as file:
        file.write(b"[edl: the %d bytes before this were removed]\n" % (size - len(kept)) + kept)
    _log.warning("%s had %d bytes: its newest %d are kept", path, size, len(kept))
