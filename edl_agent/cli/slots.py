"""``edl-agent slots``: who holds which slot, and for how long its lease still runs."""

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import click

from edl_agent.claiming import Claims
from edl_agent.cli.failures import ABSENT, OK
from edl_agent.cli.options import Common, connect, shared_options
from edl_agent.cli.output import check_stdout, paint, print_json, printable, say, table
from edl_agent.errors import InvalidDesiredCount
from edl_agent.etcd.connection import Connection
from edl_agent.etcd.kv import Kv
from edl_agent.etcd.lease import Leases
from edl_agent.keys import parse_desired
from edl_agent.slots import Board, SlotKey


class Wanted(NamedTuple):
    """What ``/ps_desired`` says: the number, or ``None`` and why (absent, not a number)."""

    number: int | None
    problem: str


def wanted(board: Board) -> Wanted:
    """Read the count of a board."""
    if board.desired is None:
        return Wanted(None, "/ps_desired is not set")
    try:
        return Wanted(parse_desired(board.desired), "")
    except InvalidDesiredCount as error:
        return Wanted(None, str(error))


def free_slots(board: Board, count: int | None) -> list[int]:
    """Indexes below the count that nobody holds."""
    taken = {slot.index for slot in board.slots}
    return [index for index in range(count or 0) if index not in taken]


def _seconds_left(connection: Connection, slots: tuple[SlotKey, ...], deadline: float) -> dict[int, int]:
    leases = sorted({slot.lease for slot in slots if slot.lease})
    service = Leases(connection)
    with ThreadPoolExecutor(8, "edl-cli-leases") as pool:
        answers = list(pool.map(lambda lease: service.time_to_live(lease, deadline)[0], leases))
    return dict(zip(leases, answers, strict=True))


@click.command()
@shared_options()
def slots(common: Common) -> int:
    """Show who holds which slot: address, epoch, lease and the seconds that it still runs.

    A key without a lease never expires and is shown as stuck: `edl-agent delete /ps/INDEX` frees it. Exits with 1 where
    /ps_desired holds no usable number. JSON: {"desired": ..., "slots": [{"index", "address", "epoch", "lease",
    "seconds_left", "stuck"}], "free": [...]}.
    """
    check_stdout()
    settings = common.settings()
    connection, clock = connect(settings)
    try:
        deadline = clock.monotonic() + common.seconds
        board = Claims(Kv(connection), settings.keys.pservers, clock, common.seconds).look()
        left = _seconds_left(connection, board.slots, deadline)
    finally:
        connection.close()
    count, problem = wanted(board)
    held = sorted(board.slots, key=lambda slot: slot.index)
    free = free_slots(board, count)
    if common.json:
        print_json(
            {
                "desired": count,
                "slots": [
                    {
                        "index": slot.index,
                        "address": printable(slot.address),
                        "epoch": slot.mod_revision,
                        "lease": f"{slot.lease:x}" if slot.lease else None,
                        "seconds_left": left.get(slot.lease),
                        "stuck": not slot.lease,
                    }
                    for slot in held
                ],
                "free": free,
            }
        )
    else:
        say(f"desired: {count}" if count is not None else paint(problem, fg="red"))
        rows = {slot.index: _row(slot, left, count) for slot in held}
        rows |= {index: [str(index), paint("free", fg="green"), "", "", "", ""] for index in free}
        if rows:
            say(table(["INDEX", "ADDRESS", "EPOCH", "LEASE", "LEFT", "NOTE"], [rows[index] for index in sorted(rows)]))
    return ABSENT if board.desired is not None and count is None else OK


def _row(slot: SlotKey, left: dict[int, int], count: int | None) -> list[str]:
    notes = []
    if not slot.lease:
        notes.append(f"stuck: no lease, never expires; `edl-agent delete /ps/{slot.index}` frees it")
    if count is not None and slot.index >= count:
        notes.append(f"at or above the desired count {count}")
    return [
        str(slot.index),
        printable(slot.address),
        str(slot.mod_revision),
        f"{slot.lease:x}" if slot.lease else "-",
        f"{left[slot.lease]} s" if slot.lease else "-",
        paint("; ".join(notes), fg="red" if not slot.lease else "yellow"),
    ]
