"""Reads what the agents of one job say in its etcd: slots, reports, drains, progress, in one transaction."""

from __future__ import annotations

from collections.abc import Iterable

from edl_agent import errors
from edl_agent.drain_request import DrainRequest
from edl_agent.etcd import kv as parts
from edl_agent.etcd.kv import KeyValue, Kv
from edl_agent.keys import KeySchema, SlotFamily, parse_desired, prefix_end
from edl_agent.report import Report
from edl_agent.tasks.encoding import TaskKeys, decode_state
from edl_controller.core.agents import AgentState, Slot


def read_state(kv: Kv, keys: KeySchema, deadline: float) -> tuple[AgentState, int]:
    """Read all that a job's agents say, at one revision; returns it with that revision.

    What is not understood is passed over: one bad value must not hide all others.

    Raises:
        EdlAgentError: etcd did not answer by ``deadline`` (on the monotonic clock).
    """
    tasks = TaskKeys(keys)
    reports, drains = keys.full("/edl/agents/"), keys.full("/edl/drain/")
    result = kv.txn(
        [],
        [
            parts.range_op(keys.pservers.prefix, keys.pservers.board_end),
            parts.range_op(keys.trainers.prefix, keys.trainers.end),
            parts.range_op(reports, prefix_end(reports)),
            parts.range_op(drains, prefix_end(drains)),
            parts.range_op(tasks.state),
        ],
        [],
        deadline,
    )
    board, trainers, told, asked, queue = result.ranges
    passes, finished = _passes(queue)
    requests = {pair.key[len(drains) :].decode(errors="replace"): DrainRequest.decode(pair.value) for pair in asked}
    state = AgentState(
        desired=_desired(board, keys.full("/ps_desired")),
        pservers=_slots(keys.pservers, board),
        trainers=_slots(keys.trainers, trainers),
        reports=tuple(report for pair in told if (report := Report.decode(pair.value)) is not None),
        drains=frozenset(requests),
        drain_requests=tuple((name, request) for name, request in sorted(requests.items()) if request is not None),
        passes=passes,
        passes_finished=finished,
    )
    return state, result.revision


def _slots(family: SlotFamily, pairs: Iterable[KeyValue]) -> tuple[Slot, ...]:
    found = [(family.index(pair.key), pair) for pair in pairs]
    return tuple(
        sorted(
            (
                Slot(index, pair.value.decode(errors="replace"), pair.mod_revision, pair.lease)
                for index, pair in found
                if index is not None
            ),
            key=lambda slot: slot.index,
        )
    )


def _desired(pairs: Iterable[KeyValue], key: bytes) -> int | None:
    for pair in pairs:
        if pair.key == key:
            try:
                return parse_desired(pair.value)
            except errors.InvalidDesiredCount:
                return None
    return None


def _passes(pairs: tuple[KeyValue, ...]) -> tuple[int, int]:
    if not pairs:
        return 0, 0
    try:
        state = decode_state(pairs[0].value)
    except errors.ProtocolError:
        return 0, 0
    return state.end - state.first, state.current - state.first
