"""Which trainers go, what the Job is cut to, and what is remembered of it."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from edl_controller.core.planner.journal import Decision, Journal
from edl_controller.core.planner.snapshot import TrainerPod
from edl_controller.core.planner.victims import choose_victims, cut_to, needs_drain, removal_order

UNASSIGNED = TrainerPod("unassigned", created=1)
PENDING = TrainerPod("pending", node="n", pending=True, created=1)
UNREADY = TrainerPod("unready", node="n", created=1)
LATE = TrainerPod("late", node="n", ready_since=90.0, created=1)
RESTARTED = TrainerPod("restarted", node="n", ready_since=50.0, restarts=3, created=1)
YOUNG = TrainerPod("young", node="n", ready_since=50.0, created=9)
OLD = TrainerPod("old", node="n", ready_since=50.0, created=1)
ORDER = [UNASSIGNED, PENDING, UNREADY, LATE, RESTARTED, YOUNG, OLD]


@given(st.permutations(ORDER))
def test_the_order_of_the_job_controller(pods: list[TrainerPod]) -> None:
    assert removal_order(pods) == ORDER


def test_who_does_no_work_goes_before_who_does() -> None:
    lost = replace(OLD, name="lost", agent="lost")
    assert [pod.name for pod in choose_victims([OLD, LATE, lost, UNREADY], 3)] == ["unready", "lost", "late"]


def test_the_wanted_go_first_and_the_draining_are_not_chosen_again() -> None:
    drains = replace(LATE, draining=True)
    assert [pod.name for pod in choose_victims([drains, UNREADY, OLD, YOUNG], 2, {"old"})] == ["old", "unready"]


def test_only_who_has_work_is_drained() -> None:
    assert [pod.name for pod in ORDER if needs_drain(pod)] == ["unready", "late", "restarted", "young", "old"]
    assert not needs_drain(replace(OLD, agent="lost"))


def unready(pod: TrainerPod) -> TrainerPod:
    return replace(pod, ready_since=None)


def test_the_cut_takes_along_what_ranks_before_the_victims() -> None:
    assert cut_to([UNASSIGNED, PENDING, unready(OLD), LATE, YOUNG], {"old"}, 0) == 2
    assert cut_to([unready(OLD), LATE, YOUNG], {"old"}, 0) == 2
    assert cut_to([unready(OLD), LATE, YOUNG], {"old"}, 3) == 3, "never below the minimum"
    assert cut_to([LATE, YOUNG], {"gone"}, 0) == 2


@given(st.sets(st.sampled_from([pod.name for pod in ORDER])))
def test_exactly_the_victims_go_where_all_others_are_ready(victims: set[str]) -> None:
    pods = [unready(pod) if pod.name in victims else replace(pod, node="n", pending=False) for pod in ORDER[3:]]
    chosen = victims & {pod.name for pod in pods}
    left = cut_to(pods, chosen, 0)
    assert {pod.name for pod in removal_order(pods)[: len(pods) - left]} == chosen


def test_the_journal_is_bounded_and_keeps_outcomes() -> None:
    journal = Journal(kept=3)
    for number in range(5):
        journal = journal.add(Decision(f"d{number}", float(number), "job", number, number + 1, "Room."))
    assert [one.id for one in journal.entries] == ["d2", "d3", "d4"]
    journal = journal.close("d3", "done").close("d0", "unknown here")
    assert [one.outcome for one in journal.entries] == ["", "done", ""]
    assert journal.last is not None
    assert journal.last.id == "d4"
    assert Journal().last is None
