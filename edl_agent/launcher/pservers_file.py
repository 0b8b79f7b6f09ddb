"""The list of pservers as a file, for a command that reads it again when it is told of a change by a signal."""

import contextlib
import json
import logging
import os
import time

from edl_agent.launcher.policy import Pservers

_log = logging.getLogger(__name__)


class PserversFile:
    """JSON ``{"v": 1, "desired", "complete", "pservers": [{"index", "address", "epoch"}, ...], "time"}``.

    Attributes:
        path: of the file; empty = none is written.
    """

    def __init__(self) -> None:
        self.path = ""

    def write(self, pservers: Pservers) -> None:
        """By atomic rename, before the command is told to read it. Trouble is logged, the run goes on."""
        if not self.path:
            return
        value = {
            "v": 1,
            "desired": pservers.desired,
            "complete": pservers.complete,
            "pservers": [{"index": one.index, "address": one.address, "epoch": one.epoch} for one in pservers.held],
            "time": time.time(),
        }
        new = f"{self.path}.new"
        try:
            with open(new, "w") as file:
                json.dump(value, file)
            os.replace(new, self.path)
        except OSError as error:
            _log.warning("The list of pservers could not be written to %s: %s", self.path, error)

    def remove(self) -> None:
        """Take the file away, at the launcher's end."""
        if self.path:
            with contextlib.suppress(OSError):
                os.unlink(self.path)
