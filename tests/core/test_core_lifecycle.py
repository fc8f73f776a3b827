"""The state machine keeps its guarantees, which are stated here without its own table."""

import runpy
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paygw_batch.core.lifecycle import (
    TRANSITIONS,
    Basis,
    Concluded,
    Fact,
    FactKind,
    IllegalMove,
    Intended,
    Interrupted,
    Released,
    Replaced,
    Resolution,
    Resolved,
    Returned,
    Standing,
    State,
    fact_kind,
    next_standing,
)
from paygw_batch.core.outcome import Outcome, OutcomeKind
from paygw_batch.journal.values import is_in_quarantine
from tests.support.row_progress import RowProgress

FACTS: dict[FactKind, Fact] = {
    FactKind.INTENDED: Intended("A", "nonce", 1, None),
    **{FactKind(kind.value): Concluded(Outcome(kind)) for kind in OutcomeKind},
    FactKind.INTERRUPTED: Interrupted(),
    FactKind.RESOLVED_PAID: Resolved(Resolution.PAID, "statement", "amina"),
    FactKind.RESOLVED_REJECTED: Resolved(Resolution.REJECTED, "statement", "amina"),
    FactKind.RESOLVED_NOT_RECEIVED: Resolved(Resolution.NOT_RECEIVED, "statement", "amina"),
    FactKind.RELEASED: Released("A-r2", "amina"),
    FactKind.RETURNED: Returned("statement"),
    FactKind.REPLACED: Replaced("b2", 2),
}
CLEARING = {FactKind.NOT_SENT, FactKind.RESOLVED_NOT_RECEIVED, FactKind.RELEASED}
History = list[tuple[Fact, int]]


@st.composite
def legal_histories(draw: st.DrawFn) -> History:
    """Draw a history of the state machine that includes some facts that do not fit."""
    standing, history = Standing(), []
    for _ in range(draw(st.integers(0, 25))):
        legal = [kind for state, kind in TRANSITIONS if state is standing.state]
        if not legal:
            break
        kind = draw(st.sampled_from(legal))
        attempt = standing.attempt + (kind is FactKind.INTENDED)
        after = next_standing(standing, kind, attempt)
        assert isinstance(after, Standing)
        history.append((FACTS[kind], attempt))
        standing = after
    return history


def replay(history: History) -> tuple[Standing, list[IllegalMove]]:
    standing, illegal = Standing(), list[IllegalMove]()
    for fact, attempt in history:
        after = next_standing(standing, fact_kind(fact), attempt)
        if isinstance(after, IllegalMove):
            illegal.append(after)
        else:
            standing = after
    return standing, illegal


def fact_kinds(history: History) -> list[FactKind]:
    return [fact_kind(fact) for fact, _ in history]


@given(legal_histories())
def test_only_legal_histories_make_row_sendable(history: History) -> None:
    """A row may be sent if nothing has happened to it, or if the latest fact permits it."""
    for length in range(len(history) + 1):
        standing, illegal = replay(history[:length])
        assert illegal == []
        kinds = fact_kinds(history[:length])
        assert (standing.state is State.READY) == (not kinds or kinds[-1] in CLEARING)


@given(legal_histories(), st.lists(st.tuples(st.sampled_from(list(FACTS.values())), st.integers(0, 9))))
def test_illegal_fact_does_not_change_state(history: History, noise: History) -> None:
    standing, _ = replay(history)
    for fact, attempt in noise:
        after = next_standing(standing, fact_kind(fact), attempt)
        if isinstance(after, IllegalMove):
            assert replay([*history, (fact, attempt)]) == (standing, [after])
            assert (after.state, after.attempt) == (standing.state, standing.attempt)
            assert (after.kind, after.fact_attempt) == (fact_kind(fact), attempt)


@given(legal_histories())
def test_standing_counts_attempts_and_keeps_duplicate_mark(history: History) -> None:
    standing, _ = replay(history)
    result = fact_kinds(history)
    assert standing.attempt == result.count(FactKind.INTENDED)
    assert standing.generation == 1 + result.count(FactKind.RELEASED)
    words = {FactKind.RESOLVED_NOT_RECEIVED, FactKind.RESOLVED_REJECTED}
    marked = [attempt for fact, attempt in history if fact_kind(fact) in words]
    assert standing.possible_duplicate_of == (marked[-1] if marked else None), "a person's word is never forgotten"


@given(legal_histories(), st.integers(0, 24), st.sampled_from(list(FACTS)))
def test_outcome_applies_only_to_attempt_in_flight(history: History, attempt: int, kind: FactKind) -> None:
    standing, _ = replay(history)
    expected = standing.attempt + 1 if kind is FactKind.INTENDED else standing.attempt
    if attempt != expected:
        assert isinstance(next_standing(standing, kind, attempt), IllegalMove)


def test_each_fact_has_distinct_kind() -> None:
    assert {kind: fact_kind(fact) for kind, fact in FACTS.items()} == {kind: kind for kind in FactKind}


def test_only_listed_facts_send_or_free_row() -> None:
    assert {kind for _, kind in TRANSITIONS} == set(FactKind)
    assert len({(kind, target) for (_, kind), target in TRANSITIONS.items()}) == len(FactKind), "one target for each"
    assert [way for way, target in TRANSITIONS.items() if target is State.IN_FLIGHT] == [
        (State.READY, FactKind.INTENDED)
    ]
    assert {way for way, target in TRANSITIONS.items() if target is State.READY} == {
        (State.IN_FLIGHT, FactKind.NOT_SENT),
        (State.IN_DOUBT, FactKind.RESOLVED_NOT_RECEIVED),
        (State.READY, FactKind.RESOLVED_NOT_RECEIVED),
        (State.REJECTED, FactKind.RELEASED),
    }


@pytest.mark.parametrize("state", [State.PAID, State.RETURNED, State.REPLACED])
def test_finished_row_is_never_resent(state: State) -> None:
    reachable, todo = set(), {state}
    while todo:
        here = todo.pop()
        reachable.add(here)
        todo |= {target for (origin, _), target in TRANSITIONS.items() if origin is here} - reachable
    assert not reachable & {State.READY, State.IN_FLIGHT}


@pytest.mark.parametrize("state", [State.IN_DOUBT, State.ACCEPTED, State.READY])
def test_rejection_by_person_marks_possible_duplicate(state: State) -> None:
    assert next_standing(Standing(state, 1), FactKind.RESOLVED_REJECTED, 1) == Standing(State.REJECTED, 1, 1, 1)


@pytest.mark.parametrize("basis", Basis)
@pytest.mark.parametrize(
    ("resolution", "mark"), [(Resolution.REJECTED, 1), (Resolution.NOT_RECEIVED, 1), (Resolution.PAID, None)]
)
def test_released_row_stays_possible_duplicate(resolution: Resolution, basis: Basis, mark: int | None) -> None:
    kind = fact_kind(Resolved(resolution, "Ticket 4711", "amina", basis))
    after = next_standing(Standing(State.IN_DOUBT, 1), kind, 1)
    assert isinstance(after, Standing)
    assert after.possible_duplicate_of == mark
    assert after.is_rejected_by_person == (resolution is Resolution.REJECTED)


SENT_AT = "2026-11-20T10:00:00.000Z"


@pytest.mark.parametrize(
    ("standing", "code", "intended_at", "waits"),
    [
        (Standing(State.REJECTED, 2, 1, 2), None, "2026-11-20T10:00:00.001Z", True),
        (Standing(State.REJECTED, 2, 1, 2), "proven_statement", "2026-11-20T10:00:00.001Z", False),
        *((Standing(State.REJECTED, 2, 1, 2), None, intended_at, False) for intended_at in (SENT_AT, None)),
        *((Standing(State.REJECTED, 2, 1, mark), None, "2026-11-20T10:00:00.001Z", False) for mark in (1, None)),
        (Standing(State.READY, 2, 1, 2), None, "2026-11-20T10:00:00.001Z", False),
    ],
)
def test_only_rejection_by_person_has_quarantine(
    standing: Standing, code: str | None, intended_at: str | None, waits: bool
) -> None:
    progress = RowProgress("ORD-2", standing, error_code=code, intended_at=intended_at)
    assert is_in_quarantine(progress.quarantined_since, SENT_AT) == waits


def test_lifecycle_page_shows_all_moves_and_states() -> None:
    root = Path(__file__).resolve().parents[2]
    tool = runpy.run_path(str(root / "tooling/state_diagram.py"))
    page = tool["render_page"]()
    assert (root / "docs/lifecycle.md").read_text(encoding="utf-8") == page, "run python tooling/state_diagram.py"
    assert tool["main"](["--check"]) == 0
    for (origin, kind), target in TRANSITIONS.items():
        (arrow,) = [line for line in page.splitlines() if line.startswith(f"    {origin.value} --> {target.value}:")]
        assert kind.value in arrow.partition(": ")[2].split(", ")
    assert all(f"| `{state.value}` | " in page for state in State)
