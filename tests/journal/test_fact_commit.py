"""Facts as one call of the database: what the call says of the chain, facts, texts and replies. No server is asked."""

import json
import re
from pathlib import Path
from typing import Any

from paygw_batch.core.lifecycle import Concluded, Fact, Intended, Interrupted, Resolution
from paygw_batch.core.outcome import Outcome, OutcomeKind
from paygw_batch.journal.facts import (
    SALT_BYTES,
    Line,
    Said,
    chained,
    encode_batch,
    link_hash,
    said_digest,
    text_of_line,
)
from paygw_batch.journal.postgres import schema
from paygw_batch.journal.postgres.fact_writer import CALL, StagedFacts, stage_facts
from paygw_batch.journal.values import BatchOpened, Entry, KeptReply, Link, Remark, reply_sha256
from tests.support.journal_rows import at, outcome_of, resolved

START = b"s" * 32
SCHEMA = (Path(schema.__file__).parent / "schema-1.sql").read_text(encoding="utf-8")
PAGE = KeptReply("HTTP/1.1 402 Payment Required", b'{"status": "declined"}')
OPENED = BatchOpened(
    "b1", "payout", "s.csv", "", "0" * 64, 1, 0, 1, 1, "1" * 64, 0, "2" * 64, 1, "3" * 64, {}, "amina", ()
)
END = Link(4, START, at(0))
BYTES = {"hash", "said_sha256", "salt", "head", "body"}


def staged(*entries: Entry) -> StagedFacts:
    return stage_facts(entries, END)


def given(found: StagedFacts, prefix: str) -> list[dict[str, Any]]:
    """Return the lines of one group of the call: facts (`f_`), texts (`d_`) or replies (`r_`)."""
    lines = json.loads(found.values[2:][("f_", "d_", "r_").index(prefix)])
    return [
        {name: bytes.fromhex(value.removeprefix("\\x")) if name in BYTES else value for name, value in line.items()}
        for line in lines
    ]


def intent_of(number: int, attempt: int = 1, when: str = "") -> Entry:
    fact = Intended(f"ORD-{number}", f"nonce-{number}", 1_795_000_000, "WALLET-KE", "1234")
    return Entry(number, attempt, fact, when or at(5))


def rejected(number: int, when: str = "", **said: Any) -> Entry:
    """Everything that an answer can say."""
    digest = reply_sha256(PAGE.head, PAGE.body)
    outcome = Outcome(
        OutcomeKind.REJECTED,
        "c",
        gateway_status="declined",
        gateway_reference="g-1",
        http_status=402,
        error_code="5",
        message="too poor",
        customer_url="https://pay.example/1",
        reply_sha256=digest,
        conflict=True,
    )
    return Entry(number, 1, Concluded(outcome._replace(**said)), when or at(6), PAGE)


def columns(definition: str) -> set[str]:
    """Return the columns of a table or a type, as the tables define it."""
    (body,) = re.findall(rf"{definition} \(\n(.*?)\n\)", SCHEMA, re.DOTALL)
    parts = (part.split() for part in re.sub(r"\([^()]*\)", "", body).split(","))
    return {part[0] for part in parts if part and part[0] not in {"PRIMARY", "UNIQUE"}}


def test_commit_call_names_exactly_columns_of_database() -> None:
    facts: list[Fact] = [intent_of(11).fact, rejected(11).fact, resolved(11, 1, Resolution.PAID).fact]
    found = staged(*(Entry(11, 1, fact, at(5), None) for fact in facts), rejected(12))
    told, said, replies = ({name for line in given(found, prefix) for name in line} for prefix in ("f_", "d_", "r_"))
    of_the_server = {"number", "process"}
    of_other_facts = {"batch", "agreement", "details", "source", "finding", "means"}
    assert told == columns("CREATE TABLE fact") - of_the_server - of_other_facts
    assert set(Line._fields) == columns("CREATE TABLE fact") - of_the_server
    # The database finds the fact and its instruction by their place in the chain.
    assert said == columns("CREATE TABLE said") - {"fact"} | {"seq"}
    assert replies == columns("CREATE TABLE reply") - {"fact", "instruction"} | {"seq"}
    assert CALL == "SELECT * FROM commit_facts(%s, %s, %s, %s::json, %s::json, %s::json)"


def test_new_facts_continue_hash_chain() -> None:
    found = staged(intent_of(11), intent_of(12, when=at(6)))
    one, two = given(found, "f_")
    assert found.values[:2] == (4, START)
    assert [(line["seq"], line["at"]) for line in (one, two)] == [(5, at(5)), (6, at(6))]
    assert (found.before, found.end) == (END, Link(6, two["hash"], at(6)))
    before = START
    for line in (one, two):
        before = link_hash(before, text_of_line([line.get(name) for name in Line._fields[:-2]]), None)
        assert before == line["hash"]


def test_intent_contains_no_personal_data() -> None:
    (fact,) = given(staged(intent_of(11, 2)), "f_")
    assert {name: fact[name] for name in fact if name != "hash"} == {
        "seq": 5, "at": at(5), "kind": "intended", "instruction": 11, "attempt": 2, "order_id": "ORD-11",
        "nonce": "nonce-11", "timestamp_s": 1_795_000_000, "purpose": "WALLET-KE", "endpoint_id": "1234",
    }  # fmt: skip
    assert given(staged(intent_of(11)), "d_") == given(staged(intent_of(11)), "r_") == []


def test_personal_data_of_answer_has_salted_digest() -> None:
    found = staged(outcome_of(12, 1, OutcomeKind.PAID, at(6)), rejected(11))
    _, fact = given(found, "f_")
    (said,) = given(found, "d_")
    words = Said("too poor", "https://pay.example/1", reply_sha256(PAGE.head, PAGE.body))
    assert said == {"seq": 6, "salt": said["salt"], **words._asdict()}
    assert len(said["salt"]) == SALT_BYTES
    assert fact["said_sha256"] == said_digest(said["salt"], words)
    assert "too poor" not in str(found.values[2])
    assert (fact["gateway_status"], fact["gateway_reference"], fact["http_status"]) == ("declined", "g-1", 402)
    assert (fact["error_code"], fact["cause"], fact["conflict"]) == ("5", "c", 1)
    again = given(staged(rejected(11)), "d_")
    assert again[0]["salt"] != said["salt"]


def test_raw_reply_is_stored_with_its_fact() -> None:
    found = staged(outcome_of(11, 1, OutcomeKind.PAID), rejected(12), rejected(13))
    assert given(found, "r_") == [{"seq": seq, "head": PAGE.head.encode(), "body": PAGE.body} for seq in (6, 7)]


def test_text_loses_only_characters_databases_refuse() -> None:
    found = staged(rejected(11, message="a\0b\ud83d\n", gateway_status="x\ny\0", customer_url=""))
    assert given(found, "d_")[0]["text"] == "a?b?\n"
    assert given(found, "d_")[0]["customer_url"] is None
    assert given(found, "f_")[0]["gateway_status"] == "x?y?"
    json.dumps([json.loads(one) for one in found.values[2:]]).encode()


def test_times_of_a_chain_never_decrease() -> None:
    found = stage_facts([rejected(12, at(5)), rejected(13, at(9))], Link(9, b"d" * 32, at(7)))
    assert [(line["seq"], line["at"]) for line in given(found, "f_")] == [(10, at(7)), (11, at(9))]
    for prefix in ("d_", "r_"):
        assert [line["seq"] for line in given(found, prefix)] == [10, 11]


def test_rows_of_dead_process_become_doubtful() -> None:
    found = staged(Entry(11, 1, Interrupted(), at(6)), resolved(11, 1, Resolution.NOT_RECEIVED, at(7)))
    one, other = given(found, "f_")
    assert (one["kind"], other["kind"]) == ("interrupted", "resolved_not_received")
    assert one.keys() == {"seq", "at", "kind", "instruction", "attempt", "hash"}
    assert other["basis"] == "gateway"
    assert [line["seq"] for line in given(found, "d_")] == [6], "the person's evidence"


def test_opening_fact_names_no_row() -> None:
    opened = Remark(OPENED, at(6), batch=1)
    (line,), _ = chained([opened], END, lambda: b"")
    opening = stage_facts([opened], END)
    (fact,) = given(opening, "f_")
    about = {"seq": 5, "at": at(6), "kind": "batch_opened", "batch": 1}
    assert fact == {**about, "details": encode_batch(OPENED), "hash": line.hash}
    assert given(opening, "d_") == given(opening, "r_") == []
    assert (opening.before, opening.end) == (END, Link(5, line.hash, line.at))
