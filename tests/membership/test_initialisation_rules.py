"""Whether parameters have to be initialised: each rule as a table, without etcd."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_agent.initialisation_rules import (
    InitBoard,
    Initialised,
    Needed,
    NotYet,
    PserverData,
    decode_data,
    decode_epochs,
    encode_data,
    encode_epochs,
    judge,
)

TWO: Mapping[int, int] = {0: 10, 1: 11}


def board(**what: object) -> InitBoard:
    return InitBoard(**({"desired": 2, "epochs": TWO} | what))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seen", "verdict"),
    [
        pytest.param(board(), Needed((0, 1), again=False), id="a new job, at once"),
        pytest.param(board(epochs={0: 10}), NotYet("pserver 1 to come"), id="one is missing"),
        pytest.param(InitBoard(), NotYet("/ps_desired to be set"), id="nothing at all"),
        pytest.param(board(done=True, recorded=TWO), Initialised(), id="initialised"),
        pytest.param(board(done=True, recorded=TWO, epochs={0: 10}), Initialised(), id="initialised, one is away"),
        pytest.param(
            board(done=True, recorded={0: 10, 1: 5}, declared={1: (11, "ready")}), Initialised(), id="one restored"
        ),
        pytest.param(
            board(done=True, recorded={0: 10, 1: 5}, declared={1: (11, "empty")}),
            Initialised(without=(1,)),
            id="one lost its parameters",
        ),
        pytest.param(
            board(done=True, recorded={0: 4, 1: 5}, declared={0: (10, "empty"), 1: (11, "empty")}),
            Needed((0, 1), again=True),
            id="all lost them",
        ),
        pytest.param(
            board(done=True, recorded={0: 4, 1: 5}, declared={0: (4, "ready"), 1: (5, "ready")}),
            NotYet("pserver 0 to say whether it holds parameters"),
            id="what an earlier epoch said is void, and silence says nothing yet",
        ),
        pytest.param(
            board(done=True, recorded={0: 4, 1: 5}, declared={0: (10, "restoring"), 1: (11, "empty")}),
            NotYet("pserver 0 to restore its checkpoint"),
            id="one is restoring",
        ),
        pytest.param(
            board(done=True, recorded={0: 4, 1: 5}, declared={0: (10, "empty")}, epochs={0: 10}),
            NotYet("pserver 1 to come"),
            id="one lost them, the other is not there to say",
        ),
        pytest.param(
            board(declared={0: (10, "ready"), 1: (11, "ready")}),
            Initialised(unmarked=True),
            id="etcd lost everything, the pservers nothing",
        ),
        pytest.param(
            board(checkpoints=frozenset({0, 1})),
            NotYet("pserver 0 to say whether it holds parameters"),
            id="checkpoints of pservers that have said nothing yet",
        ),
        pytest.param(
            board(done=True),
            NotYet("pserver 0 to say whether it holds parameters"),
            id="initialised by the original's client",
        ),
    ],
)
def test_while_new_pservers_may_still_say_something(seen: InitBoard, verdict: object) -> None:
    assert judge(seen, patient=True, partial=False) == verdict


@pytest.mark.parametrize(
    ("seen", "verdict"),
    [
        pytest.param(board(done=True, recorded={0: 4, 1: 5}), Needed((0, 1), again=True), id="silent: all lost"),
        pytest.param(board(done=True), Initialised(), id="the original's client says done"),
        pytest.param(
            board(done=True, declared={0: (10, "empty"), 1: (11, "empty")}),
            Needed((0, 1), again=True),
            id="the original's mark outlived the parameters",
        ),
        pytest.param(
            board(checkpoints=frozenset({0, 1})), Initialised(unmarked=True), id="the original's pservers restore"
        ),
        pytest.param(
            board(done=True, recorded={0: 4, 1: 5}, checkpoints=frozenset({0, 1}), declared={0: (10, "empty")}),
            Initialised(without=(0,)),
            id="an unusable checkpoint",
        ),
    ],
)
def test_after_the_grace(seen: InitBoard, verdict: object) -> None:
    assert judge(seen, patient=False, partial=False) == verdict


def test_single_pservers_are_handed_out_only_if_wanted() -> None:
    seen = board(done=True, recorded={0: 10, 1: 5}, declared={1: (11, "empty")})
    assert judge(seen, patient=True, partial=False) == Initialised(without=(1,))
    assert judge(seen, patient=True, partial=True) == Needed((1,), again=True)


index = st.integers(0, 3)
epoch = st.integers(1, 4)
state: st.SearchStrategy[PserverData] = st.sampled_from(["ready", "restoring", "empty"])
boards = st.builds(
    InitBoard,
    done=st.booleans(),
    desired=st.none() | st.integers(1, 4),
    epochs=st.dictionaries(index, epoch),
    recorded=st.none() | st.dictionaries(index, epoch),
    declared=st.dictionaries(index, st.tuples(epoch, state)),
    checkpoints=st.frozensets(index),
)


@given(boards, st.booleans(), st.booleans())
def test_no_pserver_that_holds_parameters_is_ever_initialised_over(
    seen: InitBoard, patient: bool, partial: bool
) -> None:
    verdict = judge(seen, patient=patient, partial=partial)
    if not isinstance(verdict, Needed):
        return
    assert verdict.indexes
    assert all(seen.desired is not None and wanted in seen.epochs for wanted in range(seen.desired or 0))
    for one in verdict.indexes:
        assert (seen.recorded or {}).get(one) != seen.epochs[one]
        assert seen.declared.get(one) not in [(seen.epochs[one], "ready"), (seen.epochs[one], "restoring")]
    if not partial:
        assert set(verdict.indexes) == set(seen.epochs)


@given(boards, st.booleans())
def test_initialised_means_that_somebody_holds_parameters(seen: InitBoard, patient: bool) -> None:
    verdict = judge(seen, patient=patient, partial=False)
    if isinstance(verdict, Initialised):
        assert seen.epochs
        assert set(verdict.without) < set(seen.epochs)
        assert verdict.unmarked is not seen.done


@given(st.dictionaries(st.integers(0, 10_000), st.integers(1, 2**62)), epoch, state)
def test_values_come_back_as_they_were(epochs: dict[int, int], of: int, said: PserverData) -> None:
    assert decode_epochs(encode_epochs(epochs)) == epochs
    assert decode_data(encode_data(of, said)) == (of, said)


@pytest.mark.parametrize(
    "value", [b"", b"1", b"[]", b"{}", b'{"v":1}', b'{"v":1,"epochs":3}', b'{"v":1,"epochs":{"x":1,"1":"y","-1":2}}']
)
def test_other_values_say_nothing(value: bytes) -> None:
    assert decode_epochs(value) == {}
    assert decode_data(value) is None
