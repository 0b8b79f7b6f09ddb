"""What the launcher does next, as tables; pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from edl_agent.launcher import policy
from edl_agent.launcher.policy import (
    Action,
    Checkpoint,
    Ended,
    Exit,
    Held,
    Kill,
    Leave,
    Linger,
    Notify,
    Peer,
    Pservers,
    Retry,
    Rules,
    Running,
    Situation,
    Start,
    Stop,
    Wait,
    decide,
    describe,
    failures_after,
    pservers_changed,
)

NOW = 100.0
SLOT = Held(1, 17, 5)
FULL = Pservers((Peer(0, "a:1", 3), Peer(1, "b:1", 4)), 2, True)
MOVED = Pservers((Peer(0, "a:1", 3), Peer(1, "c:1", 9)), 2, True)
GAP = Pservers((Peer(0, "a:1", 3),), 2, False)
MORE = Pservers((*FULL.held, Peer(2, "d:1", 8)), 3, True)
WANTED = Pservers(FULL.held, 3, False)

TRAINER = Rules("trainer")
PSERVER = Rules("pserver", needs_pservers=False, on_pserver_change="ignore", stop_grace=5.0)
READY = Situation(slot=SLOT, pservers=FULL)
RUNS = replace(READY, command=Running(SLOT, FULL), started=True)
TERM = Leave("SIGTERM", 15, NOW + 2)
LONG_TERM = Leave("SIGTERM", 15, NOW + 20)
ASKED = Leave("drain requested", 15, NOW + 30, requested=True)


def ended(code: int, cause: policy.Cause = "itself", **more: Any) -> Situation:
    return replace(READY, ended=(Ended(code), cause), started=True, **more)


@pytest.mark.parametrize(
    ("situation", "rules", "expected"),
    [
        # Before the start.
        (READY, TRAINER, Start()),
        (replace(READY, slot=None), TRAINER, Wait("a trainer slot")),
        (replace(READY, slot=None), PSERVER, Wait("a pserver slot")),
        (replace(READY, pservers=GAP), TRAINER, Wait("the pservers to be complete")),
        (replace(READY, pservers=GAP), PSERVER, Start()),
        (replace(READY, pservers=GAP), replace(PSERVER, needs_pservers=True), Wait("the pservers to be complete")),
        (READY, replace(TRAINER, zero_first=True), Wait("trainer 0 to run")),
        (replace(READY, zero_runs=True), replace(TRAINER, zero_first=True), Start()),
        (replace(READY, slot=Held(0, 17, 5)), replace(TRAINER, zero_first=True), Start()),
        (READY, replace(PSERVER, zero_first=True), Start()),
        (replace(READY, not_before=NOW + 3), TRAINER, Wait("the pause before a restart", NOW + 3)),
        (replace(READY, fatal=(4, "taken over")), TRAINER, Exit(4, "taken over")),
        (replace(READY, leave=TERM), TRAINER, Exit(143, "SIGTERM")),
        (replace(READY, leave=replace(TERM, signal=2)), TRAINER, Exit(130, "SIGTERM")),
        (replace(READY, leave=TERM), PSERVER, Exit(0, "SIGTERM")),
        (
            replace(READY, slot=None, began=NOW - 5),
            replace(TRAINER, start_timeout=5.0),
            Exit(3, "not started within 5 s, waiting for a trainer slot"),
        ),
        (replace(READY, slot=None, began=NOW), replace(TRAINER, start_timeout=5.0), Wait("a trainer slot", NOW + 5)),
        (replace(READY, slot=None, started=True), replace(TRAINER, start_timeout=5.0), Wait("a trainer slot")),
        # While it runs.
        (RUNS, TRAINER, Wait("the command")),
        (replace(RUNS, slot=None), TRAINER, Kill("lost", "the slot was lost")),
        (replace(RUNS, slot=replace(SLOT, epoch=18)), PSERVER, Kill("lost", "the slot was lost")),
        (replace(RUNS, slot=replace(SLOT, index=0)), PSERVER, Kill("lost", "the slot was lost")),
        # Without grace, even in the middle of a drain.
        (
            replace(RUNS, slot=None, leave=LONG_TERM, command=Running(SLOT, FULL, "stopping", NOW + 9)),
            PSERVER,
            Kill("lost", "the slot was lost"),
        ),
        (replace(RUNS, slot=None, command=Running(SLOT, FULL, "killed")), PSERVER, Wait("the command's end")),
        # A drain.
        (replace(RUNS, leave=TERM), TRAINER, Stop("leave", "SIGTERM", 15, NOW + 1.5)),
        (replace(RUNS, leave=replace(TERM, until=NOW + 1)), TRAINER, Stop("leave", "SIGTERM", 15, NOW + 1)),
        (replace(RUNS, leave=replace(TERM, signal=2)), TRAINER, Stop("leave", "SIGTERM", 2, NOW + 1.5)),
        (replace(RUNS, leave=LONG_TERM), PSERVER, Stop("leave", "SIGTERM", 15, NOW + 20)),
        (replace(RUNS, leave=LONG_TERM), replace(PSERVER, checkpoint=True), Checkpoint(NOW + 15)),
        (
            replace(RUNS, leave=LONG_TERM, command=Running(SLOT, FULL, "checkpointing", NOW + 15)),
            replace(PSERVER, checkpoint=True),
            Wait("the checkpoint", NOW + 15),
        ),
        (
            replace(RUNS, leave=LONG_TERM, command=Running(SLOT, FULL, "checkpointed")),
            replace(PSERVER, checkpoint=True),
            Stop("leave", "SIGTERM", 15, NOW + 20),
        ),
        (
            replace(RUNS, leave=replace(TERM, until=NOW + 4), command=Running(SLOT, FULL, "checkpointing", NOW - 1)),
            replace(PSERVER, checkpoint=True),
            Stop("leave", "SIGTERM", 15, NOW + 4),
        ),
        (
            replace(RUNS, leave=TERM, command=Running(SLOT, FULL, "stopping", NOW)),
            TRAINER,
            Kill("leave", "the command did not end in time"),
        ),
        (
            replace(RUNS, leave=TERM, command=Running(SLOT, FULL, "stopping", NOW + 1)),
            TRAINER,
            Wait("the command to end", NOW + 1),
        ),
        # The pservers.
        (
            replace(RUNS, pservers=MOVED),
            TRAINER,
            Stop("change", "pserver 1 was started anew (epoch 4 -> 9)", 15, NOW + 1.5),
        ),
        (replace(RUNS, pservers=GAP), TRAINER, Stop("change", "pserver 1 (epoch 4) is gone", 15, NOW + 1.5)),
        (replace(RUNS, pservers=WANTED), TRAINER, Wait("the command")),
        (replace(RUNS, pservers=MORE), TRAINER, Stop("change", "there are 3 pservers now, 2 before", 15, NOW + 1.5)),
        (replace(RUNS, pservers=MOVED), replace(TRAINER, on_pserver_change="signal"), Notify()),
        (replace(RUNS, pservers=GAP), replace(TRAINER, on_pserver_change="signal"), Wait("the command")),
        (replace(RUNS, pservers=MOVED), replace(TRAINER, on_pserver_change="ignore"), Wait("the command")),
        (replace(RUNS, pservers=MOVED), PSERVER, Wait("the command")),
        # After its end.
        (ended(0), TRAINER, Exit(0, "done")),
        (ended(7), TRAINER, Exit(7, "exit code 7")),
        (ended(0), replace(TRAINER, restart="on-failure"), Exit(0, "done")),
        (ended(7), replace(TRAINER, restart="on-failure"), Retry(1.0, 1)),
        (ended(0), replace(TRAINER, restart="always"), Retry(1.0, 1)),
        (ended(7, failures=3), replace(TRAINER, restart="on-failure"), Retry(8.0, 4)),
        (ended(7, failures=9), replace(TRAINER, restart="on-failure"), Retry(60.0, 10)),
        (
            ended(7, failures=10),
            replace(TRAINER, restart="on-failure"),
            Exit(7, "exit code 7; given up after 10 restarts"),
        ),
        (ended(7, failures=99), replace(TRAINER, restart="on-failure", max_restarts=None), Retry(60.0, 100)),
        (ended(137, "lost"), TRAINER, Start()),
        (
            ended(137, "lost"),
            replace(TRAINER, on_loss="exit"),
            Exit(4, "the slot was lost (ended by SIGKILL (exit code 137))"),
        ),
        (ended(143, "change"), TRAINER, Start()),
        (replace(ended(143, "change"), pservers=GAP), TRAINER, Wait("the pservers to be complete")),
        # A trainer that was stopped has work left, whatever its command says.
        (ended(0, "leave", leave=TERM), TRAINER, Exit(143, "SIGTERM")),
        (ended(7, "leave", leave=TERM), TRAINER, Exit(143, "SIGTERM")),
        (ended(0, "leave", leave=replace(TERM, signal=2)), TRAINER, Exit(130, "SIGTERM")),
        (ended(0, "leave", leave=TERM), PSERVER, Exit(0, "SIGTERM")),
        (ended(9, "leave", leave=TERM), PSERVER, Exit(9, "SIGTERM")),
        # It had finished just before the signal.
        (ended(0, leave=TERM), TRAINER, Exit(0, "done")),
        (ended(7, leave=TERM), TRAINER, Exit(143, "SIGTERM")),
        (ended(0, leave=TERM), replace(TRAINER, restart="always"), Exit(143, "SIGTERM")),
        # A drain by a request in etcd: stay until removed, so that nobody takes the end for a failure.
        (ended(0, "leave", leave=ASKED), TRAINER, Linger(NOW + 30)),
        (ended(0, "leave", leave=replace(ASKED, until=NOW)), TRAINER, Exit(143, "drain requested")),
        (ended(0, "leave", leave=ASKED), replace(TRAINER, linger=False), Exit(143, "drain requested")),
        (ended(0, "leave", leave=ASKED), PSERVER, Exit(0, "drain requested")),
        (ended(0, "leave"), TRAINER, Start()),  # withdrawn
    ],
)
def test_decisions(situation: Situation, rules: Rules, expected: Action) -> None:
    assert decide(situation, rules, NOW) == expected


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (0, "done"),
        (1, "general error (exit code 1)"),
        (2, "exit code 2"),
        (134, "abort (exit code 134)"),
        (136, "floating point exception (exit code 136)"),
        (139, "segmentation fault (exit code 139)"),
        (137, "ended by SIGKILL (exit code 137)"),
        (143, "ended by SIGTERM (exit code 143)"),
        (150, "ended by signal 22 (exit code 150)"),
        (255, "exit code 255"),
    ],
)
def test_names_of_exit_codes(code: int, text: str) -> None:
    assert describe(code) == text


def test_signals_become_exit_codes() -> None:
    assert [Ended.of(code).code for code in (0, 3, -8, -11, -6, -15)] == [0, 3, 136, 139, 134, 143]


def test_a_long_run_clears_the_failures() -> None:
    rules = Rules("trainer", longest_backoff=60.0)
    assert failures_after(5, 599.0, rules) == 5
    assert failures_after(5, 600.0, rules) == 0


def test_a_command_that_was_told_no_list_misses_nothing() -> None:
    assert pservers_changed(GAP, FULL) == ""
    assert pservers_changed(FULL, FULL) == ""


def test_addresses_only_of_a_complete_list() -> None:
    assert FULL.addresses == ("a:1", "b:1")
    assert GAP.addresses == ()
