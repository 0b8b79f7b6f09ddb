"""``edl-agent register``: hold a slot until a signal, and say so on stdout, one line per change."""

import contextlib
import json
import logging
import os
import queue
import select
import signal
import threading
import time
from typing import Any

import click

from edl_agent.cli.failures import OK, StreamFailed
from edl_agent.cli.options import Common, shared_options
from edl_agent.cli.output import check_stdout
from edl_agent.client import EtcdClient
from edl_agent.config import Reclaim
from edl_agent.errors import ClientClosed, LeaseLost
from edl_agent.session import Slot

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

_STDOUT = 1
_RELEASED = ", so nobody would learn of a loss; the slot was released"


class _Stop:
    """The command ends by a signal; then "released" is printed."""


_Ending = BaseException | _Stop


class _Endings:
    """What ends the command, in the order it came; the main thread waits here.

    It waits for a pipe that the signal's own C handler writes to, not for a queue: a signal that comes after Python's
    last look at pending ones and before the thread sleeps on the queue's lock interrupts nothing, and would be noticed
    only at the next signal.
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[_Ending] = queue.SimpleQueue()
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._poll = select.poll()
        self._poll.register(self._read, select.POLLIN)
        self._poll.register(_STDOUT, 0)  # POLLERR comes unasked: nobody reads the pipe any more

    def put(self, ending: _Ending) -> None:
        """From any thread or signal handler."""
        self._queue.put(ending)
        with contextlib.suppress(BlockingIOError):  # full: the reader is woken anyway
            os.write(self._write, b"\0")

    def get(self) -> _Ending:
        """Wait for the first. On the main thread."""
        while True:
            with contextlib.suppress(queue.Empty):
                return self._queue.get_nowait()
            for number, events in self._poll.poll():
                if number == _STDOUT:
                    self._poll.unregister(_STDOUT)  # said once; a terminal that is gone would be told without end
                    if events & select.POLLERR:
                        self.put(StreamFailed(f"nobody reads stdout any more{_RELEASED}"))
            with contextlib.suppress(BlockingIOError):
                os.read(self._read, 4096)


class _Events:
    """Prints each change as it is told by the client's hooks, which come one after the other.

    The lines are written without Python's buffers: nothing is held back, and nothing blocks the end of the process when
    nobody reads.
    """

    def __init__(self, client: EtcdClient, as_json: bool, endings: _Endings) -> None:
        self._client = client
        self._json = as_json
        self._endings = endings
        self._slot: Slot | None = None
        self._broken = False
        client.on_registered(self._registered)
        client.on_suspended(lambda: self._changed("suspended", "no answer from etcd; the lease still runs"))
        client.on_connected(lambda: self._changed("connected", "etcd answers again"))
        client.on_lost(self._lost)

    def released(self) -> None:
        """After `EtcdClient.shutdown`: no hook is called any more."""
        if select.select([], [_STDOUT], [], 1.0)[1]:
            self._print("released", "")

    def _registered(self, slot: Slot) -> None:
        self._slot = slot
        self._print("registered", "")

    def _changed(self, event: str, text: str) -> None:
        if self._slot is not None:  # the lease of one who waits for a slot is nobody's concern
            self._print(event, text)

    def _lost(self, loss: LeaseLost, slot: Slot | None) -> None:
        if slot is not None:
            self._print("lost", str(loss), reason=str(loss))
        self._slot = None

    def _print(self, event: str, text: str, **more: str) -> None:
        slot = self._slot
        lease = f"{slot.lease_id:x}" if slot else None
        if self._json:
            fields: dict[str, Any] = {
                "event": event,
                "index": slot.index if slot else None,
                "epoch": slot.epoch if slot else None,
                "lease": lease,
                "address": slot.address if slot else None,
                "time": time.time(),
                "monotonic": time.monotonic(),
            }
            line = json.dumps(fields | more)
        else:
            what = f"pserver {slot.index} at {slot.address} (epoch {slot.epoch}, lease {lease})" if slot else "no slot"
            line = f"{time.strftime('%H:%M:%S')} {event}: {what}" + (f": {text}" if text else "")
        if self._broken:
            return
        try:
            left = line.encode() + b"\n"
            while left:
                left = left[os.write(_STDOUT, left) :]
        except OSError as error:
            self._broken = True
            self._endings.put(StreamFailed(f"stdout can no longer be written ({error.strerror}){_RELEASED}"))


@click.command()
@click.option("--port", type=click.IntRange(1, 65535), required=True, metavar="P", help="TCP port of the pserver.")
@click.option("--host", metavar="H", help="Address to register; default POD_IP, else the source of the route to etcd.")
@click.option(
    "--num-pservers",
    type=click.IntRange(1, 10_000),
    metavar="N",
    help="Create /ps_desired with N where it is absent; an existing value wins. Without it: wait for /ps_desired.",
)
@click.option(
    "--reclaim",
    type=click.Choice(["always", "never"]),
    default="always",
    show_default=True,
    help="After a loss claim a slot again, or exit with 4.",
)
@click.option("--no-wait", is_flag=True, help="Exit with 1 when every slot is held.")
@shared_options(logging.INFO)
def register(
    common: Common, port: int, host: str | None, num_pservers: int | None, reclaim: Reclaim, no_wait: bool
) -> int:
    """Claim a pserver slot and hold it until SIGTERM, SIGINT or SIGHUP; then release it and exit with 0.

    Where stdout cannot be written, or its reader goes away, nobody would learn of a loss: the slot is released, and the
    exit status is 7.

    Prints one line per change: registered, suspended (etcd does not answer, the lease still runs), connected, lost,
    released. With -o json each is an object with event, index, epoch, lease, address, time, monotonic; a lost one has
    also reason. When a newer process with the same address takes the slot over, exits with 4.
    """
    if not common.json and not common.verbose:
        # stdout says the same already.
        logging.getLogger("edl_agent.live_session").setLevel(logging.ERROR)
    if os.getpid() == 1:
        # The first process of a container inherits orphans (of a kubectl exec); if ignored, the kernel reaps them.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    check_stdout()
    endings = _Endings()
    _watch_signals(endings)
    client = common.client(num_pservers, host=host, reclaim=reclaim)
    events = _Events(client, common.json, endings)

    def hold() -> None:
        try:
            client.register(port, timeout=common.timeout, wait=not no_wait)
            while True:
                client.session.lost.wait()
                if reclaim == "never":
                    raise client.session.loss or LeaseLost("the slot was lost")
                # Waits until the client holds a slot again; raises what ends it for good.
                client.register(port)
        except ClientClosed:
            return
        except BaseException as error:
            endings.put(error)

    try:
        threading.Thread(target=hold, name="edl-cli-register", daemon=True).start()
        ending = endings.get()
    finally:
        client.shutdown()
    if isinstance(ending, BaseException):
        raise ending
    events.released()
    return OK


def _watch_signals(endings: _Endings) -> None:
    for number in _STOP_SIGNALS:
        # A signal that is ignored from the start stays ignored (nohup, a shell's background job); SIGTERM never is.
        if number == signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, frame: endings.put(_Stop()))
