"""Facts as stored columns, their chain, and the values of the database call that commits them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paygw_batch.core.evidence import Claim, Proof, StatedTimes, TimeInterval, match_attempt
from paygw_batch.core.lifecycle import (
    Basis,
    Concluded,
    Fact,
    Intended,
    Interrupted,
    Released,
    Replaced,
    Resolution,
    Resolved,
    Returned,
)
from paygw_batch.core.outcome import Outcome, OutcomeKind
from paygw_batch.errors import JournalCorrupt
from paygw_batch.journal.evidence import Notification, decode_notification, encode_notification
from paygw_batch.journal.facts import (
    SALT_BYTES,
    Line,
    NoteKind,
    PersonalData,
    chain_facts,
    decode_batch,
    decode_forgetting,
    encode_batch,
    encode_forgetting,
    fact_columns,
    line_text,
    parse_note,
    personal_data_digest,
    verify_links,
)
from paygw_batch.journal.postgres.fact_writer import stage_facts
from paygw_batch.journal.values import BatchForgotten, BatchOpened, Entry, Link
from tests.support.journal_rows import AT, at, outcome_of

PLAIN = st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=12)
WORDS = st.text(st.characters(exclude_categories=[]), max_size=12)
IDS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=12)
NUMBERS = st.integers(0, 2**40)
OUTCOMES = st.builds(
    Outcome,
    st.sampled_from(OutcomeKind),
    st.sampled_from(["", "read.timeout"]),
    st.none() | WORDS,
    st.none() | WORDS,
    st.none() | st.integers(100, 999),
    st.none() | WORDS,
    st.none() | WORDS,
    st.booleans(),
    st.none() | WORDS,
    st.none() | st.just("ab" * 32),
)
FACTS: st.SearchStrategy[Fact] = st.one_of(
    st.builds(Intended, IDS, IDS, NUMBERS, st.none() | WORDS),
    st.builds(Concluded, OUTCOMES),
    st.just(Interrupted()),
    st.builds(Resolved, st.sampled_from(Resolution), WORDS, WORDS, st.sampled_from(Basis)),
    st.builds(Released, IDS, WORDS),
    st.builds(Returned, WORDS),
    st.builds(Replaced, WORDS, NUMBERS),
)
OPENINGS = st.builds(
    BatchOpened,
    **dict.fromkeys(("batch", "operation", "sheet_name", "sheet_path", "sheet_sha256"), WORDS),
    **dict.fromkeys(("rows", "defects", "first_instruction", "instructions", "known", "pages"), NUMBERS),
    **dict.fromkeys(("instructions_sha256", "known_sha256", "pages_sha256"), WORDS),
    by=PLAIN,
    approvals=st.lists(PLAIN, max_size=2).map(tuple),
    plan_sha256=WORDS,
    totals=st.dictionaries(WORDS, st.tuples(NUMBERS, st.integers(0, 10**25)), max_size=3),
)


@given(FACTS)
def test_fact_columns_contain_no_line_breaks(fact: Fact) -> None:
    """No column is empty, of a wrong type, or could end its line in the hashed text."""
    told, said = fact_columns(fact)
    checked_before = {"order_id", "nonce", "cause", "agreement", "details"}
    for text in (one for name, one in told._asdict().items() if isinstance(one, str) and name not in checked_before):
        assert text
        assert "\n" not in text
        assert text.encode()
    for text in (one for one in said if one is not None):
        assert text
        assert "\0" not in text
        assert text.encode()


def test_digest_of_gateway_text_depends_on_salt() -> None:
    said, moved = PersonalData("no such wallet", None, "ab"), PersonalData("no such wallet", "ab", None)
    assert len({personal_data_digest(salt * 16, one) for salt, one in ((b"a", said), (b"b", said), (b"a", moved))}) == 3


@given(OPENINGS)
def test_batch_opening_survives_encoding(opened: BatchOpened) -> None:
    assert decode_batch(encode_batch(opened)) == opened


def test_unprintable_characters_in_names_are_not_stored() -> None:
    assert decode_forgetting(encode_forgetting(BatchForgotten("\udcffam\0ina", "2019-12-31", 1, "ab"))).by == "?am?ina"


@pytest.mark.parametrize("details", ["{}", "[]", '{"totals":1}', '{"totals":{"KES":[1]}}', "x"])
def test_noncanonical_batch_opening_is_rejected(details: str) -> None:
    with pytest.raises(JournalCorrupt, match=r"^The fact that opens a batch cannot be read\.$"):
        decode_batch(details)


def test_opening_of_batch_omits_missing_plan() -> None:
    details = (
        '{"approvals":["prepared by ada"],"batch":"b1","by":"ada","defects":0,"first_instruction":1,"instructions":1,'
        '"instructions_sha256":"aa","known":0,"known_sha256":"bb","operation":"payout","pages":1,"pages_sha256":"cc",'
        '"rows":1,"sheet_name":"s.csv","sheet_path":"/s.csv","sheet_sha256":"dd","totals":{"KES":[1,150050]}}'
    )
    read = decode_batch(details)
    assert (read.plan_sha256, encode_batch(read)) == ("", details)
    with pytest.raises(JournalCorrupt):
        decode_batch(details.replace('"rows"', '"plan_sha256":"","rows"'))


ENTRIES = st.builds(Entry, NUMBERS, NUMBERS, FACTS, st.just(AT))


@given(ENTRIES, ENTRIES, st.binary(min_size=32, max_size=32))
def test_different_lines_have_different_hashes(one: Entry, other: Entry, start: bytes) -> None:
    (first,), _ = chain_facts([one], Link(0, start), lambda: bytes(16))
    (second,), _ = chain_facts([other], Link(0, start), lambda: bytes(16))
    assert (first.hash == second.hash) == (first[:-1] == second[:-1])


def test_missing_or_changed_fact_is_located() -> None:
    start = Link(0, bytes(32))
    entries = [Entry(4, 1, Intended("A-1", "nonce", 1, None), AT), outcome_of(4, 1, OutcomeKind.PAID)]
    (first, second), _ = chain_facts(entries, start, lambda: bytes(16))

    def verify(*lines: Line) -> list[int]:
        stored = ((line.seq, line_text(line[:-2]), line.said_sha256, line.hash) for line in lines)
        return [line[0] for line in verify_links(start, stored)]

    assert verify(first, second) == [1, 2]
    with pytest.raises(JournalCorrupt, match=r"^Fact 1 is missing from the journal\.$"):
        verify(second)
    for changed in (second._replace(attempt=2), second._replace(hash=bytes(32)), second._replace(cause="x")):
        with pytest.raises(JournalCorrupt, match=r"^Fact 2 or the one before it was changed: its hash is wrong\.$"):
            verify(first, changed)


@pytest.mark.parametrize("details", ["{", "[]", '["one"]', "7", None])
@pytest.mark.parametrize("kind", [NoteKind.STATEMENT, NoteKind.CLOCK, NoteKind.ENDPOINT, NoteKind.PROCESSED])
def test_unreadable_note_is_rejected(kind: NoteKind, details: str | None) -> None:
    with pytest.raises(JournalCorrupt, match="cannot be read"):
        parse_note(kind, "amina", None, details, None, "2026-11-20T10:00:00.000Z")


SPAN = TimeInterval(AT, "2026-11-21T08:00:01.000Z")


@pytest.mark.parametrize("times", [StatedTimes(), StatedTimes((SPAN,), SPAN)])
def test_notification_is_decoded_as_encoded(times: StatedTimes) -> None:
    claim = Claim("PAY-2", "10.00", "KES", "approved", "r", Proof.PROVEN, times=times)
    notice = Notification(AT, "POST", "application/json", "", b"{}", 2, "", claim)
    kept = decode_notification(encode_notification(notice))
    assert kept == notice
    assert match_attempt(kept.claim.times, AT) is match_attempt(times, AT)


def test_staged_texts_are_separate_and_salted() -> None:
    entries = [outcome_of(number, 1, OutcomeKind.REJECTED, message="too poor") for number in (11, 13)]
    facts, texts, _ = map(json.loads, stage_facts(entries, Link(4, b"s" * 32, at(0))).values[2:])
    assert ("too poor" in str(facts), [text["text"] for text in texts]) == (False, ["too poor"] * 2)
    salts = [bytes.fromhex(text["salt"][2:]) for text in texts]
    assert [len(salt) for salt in {*salts}] == [SALT_BYTES] * 2
    digests = [personal_data_digest(salt, PersonalData("too poor")).hex() for salt in salts]
    assert [fact["said_sha256"][2:] for fact in facts] == digests
