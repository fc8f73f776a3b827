"""The values of the database call that commits facts: chain, facts, texts and replies. Uses no server."""

import json
import re
from pathlib import Path
from typing import Any

from paygw_batch.core.lifecycle import Concluded, Fact, Intended, Interrupted, Resolution
from paygw_batch.core.outcome import Outcome, OutcomeKind
from paygw_batch.journal.facts import (
    SALT_BYTES,
    Line,
    PersonalData,
    chain_facts,
    encode_batch,
    line_text,
    link_hash,
    personal_data_digest,
)
from paygw_batch.journal.postgres import schema
from paygw_batch.journal.postgres.fact_writer import CALL, StagedFacts, stage_facts
from paygw_batch.journal.values import BatchOpened, Entry, Link, Remark, StoredReply, reply_sha256
from tests.support.journal_rows import at, outcome_of, resolved

START = b"s" * 32
SCHEMA = (Path(schema.__file__).parent / "schema-1.sql").read_text(encoding="utf-8")
PAGE = StoredReply("HTTP/1.1 402 Payment Required", b'{"status": "declined"}')
OPENED = BatchOpened(
    "b1", "payout", "s.csv", "", "0" * 64, 1, 0, 1, 1, "1" * 64, 0, "2" * 64, 1, "3" * 64, {}, "amina", ()
)
END = Link(4, START, at(0))
BYTES = {"hash", "said_sha256", "salt", "head", "body"}


def staged_values(*entries: Entry) -> StagedFacts:
    return stage_facts(entries, END)


def call_lines(staged: StagedFacts, prefix: str) -> list[dict[str, Any]]:
    """Return the lines of one group of the call: facts (`f_`), texts (`d_`) or replies (`r_`)."""
    lines = json.loads(staged.values[2:][("f_", "d_", "r_").index(prefix)])
    return [
        {name: bytes.fromhex(value.removeprefix("\\x")) if name in BYTES else value for name, value in line.items()}
        for line in lines
    ]


def intent_of(number: int, attempt: int = 1, when: str = "") -> Entry:
    fact = Intended(f"ORD-{number}", f"nonce-{number}", 1_795_000_000, "WALLET-KE", "1234")
    return Entry(number, attempt, fact, when or at(5))


def rejected_outcome(number: int, when: str = "", **fields: Any) -> Entry:
    """Return an outcome with every field that a reply can have."""
    outcome = Outcome(OutcomeKind.REJECTED, "c", "declined", "g-1", 402, "5", "too poor", conflict=True)
    more = {"customer_url": "https://pay.example/1", "reply_sha256": reply_sha256(PAGE.head, PAGE.body), **fields}
    return Entry(number, 1, Concluded(outcome._replace(**more)), when or at(6), PAGE)


def columns(definition: str) -> set[str]:
    """Return the columns of a table or a type, as the tables define it."""
    (body,) = re.findall(rf"{definition} \(\n(.*?)\n\)", SCHEMA, re.DOTALL)
    parts = (part.split() for part in re.sub(r"\([^()]*\)", "", body).split(","))
    return {part[0] for part in parts if part and part[0] not in {"PRIMARY", "UNIQUE"}}


def test_commit_call_matches_database_columns() -> None:
    facts: list[Fact] = [intent_of(11).fact, rejected_outcome(11).fact, resolved(11, 1, Resolution.PAID).fact]
    staged = staged_values(*(Entry(11, 1, fact, at(5), None) for fact in facts), rejected_outcome(12))
    fact_names, text_names, replies = (
        {name for line in call_lines(staged, prefix) for name in line} for prefix in ("f_", "d_", "r_")
    )
    of_the_server = {"number", "process"}
    of_other_facts = {"batch", "agreement", "details", "source", "finding", "means"}
    assert fact_names == columns("CREATE TABLE fact") - of_the_server - of_other_facts
    assert set(Line._fields) == columns("CREATE TABLE fact") - of_the_server
    # The database finds the fact and its instruction by their position in the chain.
    assert text_names == columns("CREATE TABLE said") - {"fact"} | {"seq"}
    assert replies == columns("CREATE TABLE reply") - {"fact", "instruction"} | {"seq"}
    assert CALL == "SELECT * FROM commit_facts(%s, %s, %s, %s::json, %s::json, %s::json)"


def test_new_facts_continue_hash_chain() -> None:
    staged = staged_values(intent_of(11), intent_of(12, when=at(6)))
    one, two = call_lines(staged, "f_")
    assert staged.values[:2] == (4, START)
    assert [(line["seq"], line["at"]) for line in (one, two)] == [(5, at(5)), (6, at(6))]
    assert (staged.before, staged.end) == (END, Link(6, two["hash"], at(6)))
    before = START
    for line in (one, two):
        before = link_hash(before, line_text([line.get(name) for name in Line._fields[:-2]]), None)
        assert before == line["hash"]


def test_intent_contains_no_personal_data() -> None:
    (fact,) = call_lines(staged_values(intent_of(11, 2)), "f_")
    assert {name: fact[name] for name in fact if name != "hash"} == {
        "seq": 5, "at": at(5), "kind": "intended", "instruction": 11, "attempt": 2, "order_id": "ORD-11",
        "nonce": "nonce-11", "timestamp_s": 1_795_000_000, "purpose": "WALLET-KE", "endpoint_id": "1234",
    }  # fmt: skip
    assert call_lines(staged_values(intent_of(11)), "d_") == call_lines(staged_values(intent_of(11)), "r_") == []


def test_personal_data_in_reply_has_salted_digest() -> None:
    staged = staged_values(outcome_of(12, 1, OutcomeKind.PAID, at(6)), rejected_outcome(11))
    _, fact = call_lines(staged, "f_")
    (text_line,) = call_lines(staged, "d_")
    words = PersonalData("too poor", "https://pay.example/1", reply_sha256(PAGE.head, PAGE.body))
    assert text_line == {"seq": 6, "salt": text_line["salt"], **words._asdict()}
    assert len(text_line["salt"]) == SALT_BYTES
    assert fact["said_sha256"] == personal_data_digest(text_line["salt"], words)
    assert "too poor" not in str(staged.values[2])
    assert (fact["gateway_status"], fact["gateway_reference"], fact["http_status"]) == ("declined", "g-1", 402)
    assert (fact["error_code"], fact["cause"], fact["conflict"]) == ("5", "c", 1)
    other_lines = call_lines(staged_values(rejected_outcome(11)), "d_")
    assert other_lines[0]["salt"] != text_line["salt"]


def test_raw_reply_is_stored_with_its_fact() -> None:
    staged = staged_values(outcome_of(11, 1, OutcomeKind.PAID), rejected_outcome(12), rejected_outcome(13))
    assert call_lines(staged, "r_") == [{"seq": seq, "head": PAGE.head.encode(), "body": PAGE.body} for seq in (6, 7)]


def test_text_loses_only_unstorable_characters() -> None:
    staged = staged_values(rejected_outcome(11, message="a\0b\ud83d\n", gateway_status="x\ny\0", customer_url=""))
    assert call_lines(staged, "d_")[0]["text"] == "a?b?\n"
    assert call_lines(staged, "d_")[0]["customer_url"] is None
    assert call_lines(staged, "f_")[0]["gateway_status"] == "x?y?"
    json.dumps([json.loads(one) for one in staged.values[2:]]).encode()


def test_chain_times_never_decrease() -> None:
    staged = stage_facts([rejected_outcome(12, at(5)), rejected_outcome(13, at(9))], Link(9, b"d" * 32, at(7)))
    assert [(line["seq"], line["at"]) for line in call_lines(staged, "f_")] == [(10, at(7)), (11, at(9))]
    for prefix in ("d_", "r_"):
        assert [line["seq"] for line in call_lines(staged, prefix)] == [10, 11]


def test_rows_of_dead_process_are_in_doubt() -> None:
    staged = staged_values(Entry(11, 1, Interrupted(), at(6)), resolved(11, 1, Resolution.NOT_RECEIVED, at(7)))
    one, other = call_lines(staged, "f_")
    assert (one["kind"], other["kind"]) == ("interrupted", "resolved_not_received")
    assert one.keys() == {"seq", "at", "kind", "instruction", "attempt", "hash"}
    assert other["basis"] == "gateway"
    assert [line["seq"] for line in call_lines(staged, "d_")] == [6], "the person's evidence"


def test_opening_fact_has_no_row() -> None:
    opened = Remark(OPENED, at(6), batch=1)
    (line,), _ = chain_facts([opened], END, lambda: b"")
    opening = stage_facts([opened], END)
    (fact,) = call_lines(opening, "f_")
    about = {"seq": 5, "at": at(6), "kind": "batch_opened", "batch": 1}
    assert fact == {**about, "details": encode_batch(OPENED), "hash": line.hash}
    assert call_lines(opening, "d_") == call_lines(opening, "r_") == []
    assert (opening.before, opening.end) == (END, Link(5, line.hash, line.at))
