"""Facts as text and back."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paygw_batch.core.lifecycle import (
    Basis,
    Concluded,
    Fact,
    FactKind,
    Intended,
    Interrupted,
    Released,
    Replaced,
    Resolution,
    Resolved,
    Returned,
    State,
    kind_of,
)
from paygw_batch.core.outcome import Outcome, OutcomeKind
from paygw_batch.core.recorded_words import recorded
from paygw_batch.errors import JournalCorrupt
from paygw_batch.journal.facts.chain import Line, follow, linked
from paygw_batch.journal.facts.codec import (
    BatchOpened,
    _plainly_read,
    _strictly_read,
    decode,
    decode_batch,
    encode,
    encode_batch,
)
from paygw_batch.journal.facts.progress import RowProgress, advance, row_standing
from paygw_batch.journal.values import Link, canonical
from tests.long_part import share_of

WORDS = st.text(st.characters(exclude_categories=[]), max_size=12)
NUMBERS = st.integers(0, 2**40)
OUTCOMES = st.builds(
    Outcome,
    st.sampled_from(OutcomeKind),
    WORDS,
    st.none() | WORDS,
    st.none() | WORDS,
    st.none() | st.integers(100, 999),
    st.none() | WORDS,
    st.none() | WORDS,
    st.booleans(),
)
FACTS: st.SearchStrategy[Fact] = st.one_of(
    st.builds(Intended, WORDS, WORDS, NUMBERS, WORDS, st.none() | WORDS),
    st.builds(Concluded, OUTCOMES),
    st.just(Interrupted()),
    st.builds(Resolved, st.sampled_from(Resolution), WORDS, WORDS, st.sampled_from(Basis)),
    st.builds(Released, WORDS, WORDS),
    st.builds(Returned, WORDS),
    st.builds(Replaced, WORDS, NUMBERS),
)
OPENINGS = st.builds(
    BatchOpened,
    **dict.fromkeys(("batch", "operation", "sheet_name", "sheet_path", "sheet_sha256"), WORDS),
    **dict.fromkeys(("rows", "defects", "first_instruction", "instructions", "known", "pages"), NUMBERS),
    **dict.fromkeys(("instructions_sha256", "known_sha256", "pages_sha256"), WORDS),
    by=WORDS,
    approvals=st.lists(WORDS, max_size=2).map(tuple),
    plan_sha256=WORDS,
    totals=st.dictionaries(WORDS, st.tuples(NUMBERS, st.integers(0, 10**25)), max_size=3),
)


@given(FACTS)
def test_a_fact_goes_to_text_and_back(fact: Fact) -> None:
    kind, details = encode(fact)
    assert decode(kind, details) == fact
    assert kind == kind_of(fact)


@given(FACTS)
def test_the_text_of_a_fact_is_canonical(fact: Fact) -> None:
    _, details = encode(fact)
    assert details == canonical(json.loads(details))
    assert details.isascii()
    assert details.isprintable()


PLAIN_WORDS = st.text(' !#[]~aZ0\\"é\x7f', max_size=3)
PLAIN_FACTS = st.one_of(
    FACTS,
    st.builds(Intended, PLAIN_WORDS, PLAIN_WORDS, st.integers(-3, 3), PLAIN_WORDS, st.none() | PLAIN_WORDS),
    st.builds(
        Concluded,
        st.builds(
            Outcome,
            st.sampled_from(OutcomeKind),
            gateway_status=st.none() | PLAIN_WORDS,
            gateway_reference=st.none() | PLAIN_WORDS,
            http_status=st.none() | st.integers(-1, 10**20),
            error_code=st.none() | PLAIN_WORDS,
            message=st.none() | PLAIN_WORDS,
            reply_sha256=st.none() | PLAIN_WORDS,
        ),
    ),
)


def strictly(kind: str, details: str) -> Fact | None:
    """Return what is read of a fact without the short way for plain ones, None where that is refused."""
    try:
        return _strictly_read(kind, details)
    except JournalCorrupt:
        return None


@settings(max_examples=share_of(200))
@given(PLAIN_FACTS, st.data())
def test_the_short_way_to_read_plain_facts_reads_nothing_that_the_strict_one_does_not(
    fact: Fact, data: st.DataObject
) -> None:
    kind, details = encode(fact)
    if data.draw(st.booleans()):  # another spelling of the same, or no fact at all
        at = data.draw(st.integers(0, len(details)))
        cut = data.draw(st.integers(0, 2))
        put = data.draw(st.sampled_from(["", ",", "{", "}", " ", '"', "0", "-", "null", "\\u0041", "\n"]))
        details = details[:at] + put + details[at + cut :]
        kind = data.draw(st.sampled_from([kind, *FactKind, "batch_opened"]))
    shortly = _plainly_read(kind, details)
    assert shortly is None or shortly == strictly(kind, details)


@pytest.mark.parametrize(
    "fact",
    [
        Intended("A-1", "nonce", 1_763_798_000, "0" * 64, "WALLET"),
        Intended("A-1", "nonce", 1_763_798_000, "0" * 64, None),
        Concluded(Outcome(OutcomeKind.PAID, gateway_status="approved", gateway_reference="7", http_status=200)),
    ],
)
def test_a_plain_fact_is_read_the_short_way(fact: Fact) -> None:
    assert _plainly_read(*encode(fact)) == fact


def test_every_kind_of_fact_can_be_read() -> None:
    for kind in FactKind:
        with pytest.raises(JournalCorrupt):
            decode(kind, '{"surplus":1}')


@given(OPENINGS)
def test_the_opening_of_a_batch_goes_to_text_and_back(opened: BatchOpened) -> None:
    assert decode_batch(encode_batch(opened)) == opened


@pytest.mark.parametrize(
    ("kind", "details"),
    [
        ("settled", "{}"),
        ("interrupted", ""),
        ("interrupted", "{ }"),
        ("interrupted", "[]"),
        ("interrupted", "null"),
        ("released", '{"order_id":"A","by":"amina"}'),
        ("released", '{"by":"amina"}'),
        ("resolved_rejected", '{"basis":null,"by":"amina","evidence":"x"}'),
        ("resolved_rejected", '{"basis":"nobody","by":"amina","evidence":"x"}'),
        ("resolved_rejected", '["basis"]'),
        ("released", '{"by":"amina","order_id":"A","x":1}'),
        ("paid", '{"message":null}'),
        ("paid", '{"kind":"rejected"}'),
        ("paid", '{"http_status":200.0}'),
        ("paid", '{"http_status":NaN}'),
        ("paid", '{"message":"\\u0041"}'),
    ],
)
def test_what_we_would_not_have_written_is_damage(kind: str, details: str) -> None:
    with pytest.raises(JournalCorrupt, match="cannot be read"):
        decode(kind, details)


@pytest.mark.parametrize("details", ["{}", "[]", '{"totals":1}', '{"totals":{"KES":[1]}}', "x"])
def test_an_opening_that_we_would_not_have_written_is_damage(details: str) -> None:
    with pytest.raises(JournalCorrupt, match=r"^The opening of a batch cannot be read\.$"):
        decode_batch(details)


LINES = st.tuples(
    st.just("2026-11-21T08:00:00.000Z"),
    st.sampled_from([*FactKind, "batch_opened"]),
    NUMBERS,
    st.none() | NUMBERS,
    st.none() | NUMBERS,
    st.none() | st.sampled_from(["ready", "paid"]),
    WORDS.map(canonical),
)


@given(LINES, LINES, st.binary(min_size=32, max_size=32))
def test_two_different_lines_never_have_the_same_hash(
    one: tuple[str, str, int, int | None, int | None, str | None, str],
    other: tuple[str, str, int, int | None, int | None, str | None, str],
    start: bytes,
) -> None:
    first: Line = linked(Link(0, start), *one)
    second: Line = linked(Link(0, start), *other)
    assert (first.hash == second.hash) == (one == other)


AT = "2026-11-21T08:00:00.000Z"


def test_a_chain_ends_with_its_latest_line_and_names_the_fact_that_is_missing_or_changed() -> None:
    start = Link(0, bytes(32))
    first = linked(start, AT, "intended", 1, 4, 1, None, "{}")
    assert follow(start, first) == Link(1, first.hash, AT)
    second = linked(Link(1, first.hash, AT), AT, "paid", 1, 4, 1, None, "{}")
    with pytest.raises(JournalCorrupt) as found:
        follow(start, second)
    assert found.value.message == "Fact 1 is missing from the journal."
    for changed in (second._replace(attempt=2), second._replace(hash=bytes(32)), second._replace(details="{ }")):
        with pytest.raises(JournalCorrupt) as found:
            follow(Link(1, first.hash, AT), changed)
        assert found.value.message == "Fact 2 or the one before it was changed: its hash is wrong."


@pytest.mark.parametrize(
    ("resolution", "word"),
    [(Resolution.PAID, "paid"), (Resolution.REJECTED, "rejected"), (Resolution.NOT_RECEIVED, "not received")],
)
def test_a_row_shows_what_a_person_said_of_it_and_why(resolution: Resolution, word: str) -> None:
    left = advance(RowProgress("PAY-1"), Intended("PAY-1", "n", 1, "b", None), 1, AT)
    assert isinstance(left, RowProgress)
    doubtful = advance(left, Interrupted(), 1, AT)
    assert isinstance(doubtful, RowProgress)
    settled = advance(doubtful, Resolved(resolution, "call 17", "amina", Basis.PERSON), 1, AT)
    assert isinstance(settled, RowProgress)
    assert recorded(settled.message or "") == f"Resolved as {word} by amina: call 17"


def test_a_row_is_described_by_its_instruction_and_what_became_of_it() -> None:
    row = row_standing(2, 7, "PAY-1", "KE", "KES", 150_050, RowProgress("PAY-1"))
    assert (row.row, row.client_orderid, row.country, row.currency, row.minor) == (2, "PAY-1", "KE", "KES", 150_050)
    assert row.state is State.READY
