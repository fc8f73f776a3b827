"""Facts as one call of the database: what the call says of chains, rows, replies and tallies. No server is asked."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paygw_batch.core.lifecycle import Intended, Interrupted, Resolution, Standing, State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.journal.facts.chain import follow
from paygw_batch.journal.facts.progress import RowProgress
from paygw_batch.journal.postgres import migrations
from paygw_batch.journal.postgres.leasing.fact_commit import CALL, StagedFacts, stage_facts, stage_of_batch
from paygw_batch.journal.postgres.leasing.leases import Lease
from paygw_batch.journal.postgres.standing_lines import Loaded
from paygw_batch.journal.values import Entry, KeptReply, Link
from tests.journal.journal_rows import at, outcome_of, resolved

START = b"s" * 32
SCHEMA = (Path(migrations.__file__).parent / "schema-1.sql").read_text(encoding="utf-8")


def lease(segment: int = 7, chain: int = 3, end: Link | None = None) -> Lease:
    return Lease(segment, chain, end or Link(4, START, at(0)), is_clear=True)


def loaded(number: int, *, facts: int = 0, batch: int = 1, minor: int = 150_050, **progress: Any) -> Loaded:
    """An instruction as it was read; one without facts has no line in `standing` yet."""
    at_rest = RowProgress(f"ORD-{number}", **progress)
    return Loaded(number, f"ORD-{number}", batch, 3, "KE", "KES", minor, facts, facts == 0, at_rest)


def in_flight(number: int, facts: int = 1, attempt: int = 1) -> Loaded:
    standing = Standing(State.IN_FLIGHT, attempt)
    return loaded(number, facts=facts, standing=standing, sent_orderid=f"ORD-{number}", intended_at=at(0))


def staged(entries: Sequence[Entry], *rows: Loaded) -> StagedFacts:
    ours = lease()
    return stage_facts(entries, lambda _: ours, {row.number: row for row in rows})


def given(values: Sequence[str], prefix: str) -> list[dict[str, Any]]:
    """Return the lines of one group of the call: ends (`s_`), facts (`f_`) or replies (`r_`)."""
    lines = json.loads(values[("s_", "f_", "r_").index(prefix)])
    return [
        {
            name: bytes.fromhex(value[2:]) if isinstance(value, str) and value.startswith("\\x") else value
            for name, value in line.items()
        }
        for line in lines
    ]


def intent_of(row: Loaded, attempt: int = 1, when: str = "", order_id: str = "") -> Entry:
    fact = Intended(order_id or row.progress.order_id, f"nonce-{row.number}", 1_795_000_000, "0" * 64, "WALLET-KE")
    return Entry(row.number, attempt, fact, when or at(5))


def columns(definition: str) -> set[str]:
    """Return the columns of a table or a type, as the tables define it."""
    (body,) = re.findall(rf"{definition} \(\n(.*?)\n\)", SCHEMA, re.DOTALL)
    parts = (part.split() for part in re.sub(r"\([^()]*\)", "", body).split(","))
    return {part[0] for part in parts if part and part[0] not in {"PRIMARY", "UNIQUE"}}


def test_the_call_names_every_column_that_the_database_reads_and_no_other() -> None:
    row = in_flight(11)
    reply = KeptReply("HTTP/1.1 402 Payment Required", b"{}")
    outcome = outcome_of(11, 1, OutcomeKind.REJECTED)
    values = staged([Entry(11, 1, outcome.fact, outcome.at, reply)], row).values
    ends, facts, replies = ({*given(values, prefix)[0]} for prefix in ("s_", "f_", "r_"))
    of_the_tables = {"chain", "at", "first", "last"}
    assert ends == columns("CREATE TYPE chain_end AS") - of_the_tables
    assert facts == columns("CREATE TABLE fact") - {"number"}
    assert replies == columns("CREATE TABLE reply")
    assert CALL == "SELECT commit_facts(%s, %s::json, %s::json, %s::json)"


def test_a_chain_goes_on_from_the_end_that_its_lease_knows() -> None:
    first, second = loaded(11), loaded(12)
    found = staged([intent_of(first), intent_of(second, when=at(6))], first, second)
    (end,) = given(found.values, "s_")
    one, two = given(found.values, "f_")
    assert (end["number"], end["seq"], end["hash"]) == (7, 4, START)
    assert (end["new_seq"], end["new_hash"], end["new_at"]) == (6, two["hash"], at(6))
    assert [(line["segment"], line["seq"], line["at"]) for line in (one, two)] == [(7, 5, at(5)), (7, 6, at(6))]
    assert found.before == {7: Link(4, START, at(0))}
    assert found.ends == {7: Link(6, two["hash"], at(6))}
    before = Link(4, START, at(0))
    for line in found.lines:
        before = follow(before, line)
    assert before.hash == two["hash"]


def test_an_intent_moves_its_row_and_says_what_it_was_when_it_was_read() -> None:
    row, returned = loaded(11), loaded(12, facts=3, standing=Standing(State.READY, 1), first_sent_at=at(1))
    found = staged([intent_of(returned, 2), intent_of(row)], row, returned)
    new, known = found.loaded[11].progress, found.loaded[12].progress
    assert (new.standing.state, new.standing.attempt, new.order_id, new.sent_orderid) == (
        *(State.IN_FLIGHT, 1, "ORD-11", "ORD-11"),
    )
    assert (new.purpose, new.intended_at, new.updated_at) == ("WALLET-KE", at(5), at(5))
    assert (known.standing.state, known.standing.attempt, known.first_sent_at) == (State.IN_FLIGHT, 2, at(1))
    assert found.loaded[12].facts == 4
    facts = {line["instruction"]: line for line in given(found.values, "f_")}
    assert {number: (line["nth"], line["attempt"], line["kind"]) for number, line in facts.items()} == {
        12: (4, 2, "intended"),
        11: (1, 1, "intended"),
    }
    assert {line["batch"] for line in facts.values()} == {1}
    after = found.loaded[11]
    assert (after.facts, after.progress.standing.state) == (1, State.IN_FLIGHT)
    assert (after.client_orderid, after.batch, after.chunk, after.country, after.currency, after.minor) == (
        *("ORD-11", 1, 3, "KE", "KES", 150_050),
    )


def test_several_facts_of_one_row_are_counted_and_it_is_saved_once() -> None:
    row = loaded(11, batch=9)
    found = staged([intent_of(row), outcome_of(11, 1, OutcomeKind.PAID, at(6))], row)
    after = found.loaded[11]
    assert (after.facts, after.progress.standing.state, after.progress.updated_at) == (2, State.PAID, at(6))
    assert [(line["nth"], line["batch"]) for line in given(found.values, "f_")] == [(1, 9), (2, 9)]


def test_a_fact_that_does_not_fit_is_kept_and_moves_nothing() -> None:
    paid = loaded(11, facts=2, standing=Standing(State.PAID, 1))
    found = staged([outcome_of(11, 1, OutcomeKind.REJECTED, at(6)), intent_of(paid, 2)], paid)
    facts = given(found.values, "f_")
    assert [(line["contradicts"], line["nth"]) for line in facts] == [("paid", 3), ("paid", 4)]
    assert [line.contradicts for line in found.lines] == ["paid", "paid"]
    after = found.loaded[11]
    assert (after.progress.standing.state, after.facts) == (State.PAID, 4)


def test_an_intent_under_another_order_id_moves_nothing() -> None:
    row = loaded(11)
    found = staged([intent_of(row, order_id="ORD-11-r2")], row)
    assert [line.contradicts for line in found.lines] == ["ready"]
    assert found.loaded[11].progress == row.progress


def test_each_chain_goes_on_by_itself_and_the_lines_keep_the_order_of_the_entries() -> None:
    ours, desk = lease(), lease(2, 0, Link(9, b"d" * 32, at(7)))
    rows = {number: in_flight(number) for number in (11, 12, 13)}
    entries = [
        outcome_of(11, 1, OutcomeKind.PAID, at(5)),
        outcome_of(12, 1, OutcomeKind.ACCEPTED, at(5)),
        outcome_of(13, 1, OutcomeKind.REJECTED, at(6)),
    ]
    found = stage_facts(entries, lambda entry: desk if entry.instruction == 12 else ours, rows)
    assert [(line.instruction, line.seq, line.at) for line in found.lines] == [
        (11, 5, at(5)),
        (12, 10, at(7)),
        (13, 6, at(6)),
    ]
    facts = {line["instruction"]: line["segment"] for line in given(found.values, "f_")}
    assert facts == {11: 7, 12: 2, 13: 7}
    ends = {line["number"]: (line["seq"], line["new_seq"], line["new_at"]) for line in given(found.values, "s_")}
    assert ends == {7: (4, 6, at(6)), 2: (9, 10, at(7))}
    assert [line["number"] for line in given(found.values, "s_")] == [2, 7], "locked in one order by everybody"


def test_raw_replies_are_kept_beside_the_fact_that_they_led_to() -> None:
    one, other = in_flight(11), in_flight(12, facts=4)
    reply = KeptReply("HTTP/1.1 402 Payment Required", b'{"status": "declined"}')
    first = outcome_of(11, 1, OutcomeKind.PAID)
    second = outcome_of(12, 1, OutcomeKind.REJECTED)
    found = staged([first, Entry(12, 1, second.fact, second.at, reply)], one, other)
    assert given(found.values, "r_") == [
        {"instruction": 12, "nth": 5, "head": b"HTTP/1.1 402 Payment Required", "body": b'{"status": "declined"}'}
    ]


def test_rows_of_the_dead_are_put_in_doubt_and_people_settle_them() -> None:
    row = in_flight(11)
    found = staged([Entry(11, 1, Interrupted(), at(6)), resolved(11, 1, Resolution.NOT_RECEIVED, at(7))], row)
    assert [line["kind"] for line in given(found.values, "f_")] == ["interrupted", "resolved_not_received"]
    standing = found.loaded[11].progress.standing
    assert (standing.state, standing.possible_duplicate_of) == (State.READY, 1)


def test_the_fact_that_opens_a_batch_moves_no_row() -> None:
    row = in_flight(11)
    (line,) = staged(
        [
            outcome_of(
                11,
                1,
                OutcomeKind.PAID,
                at(6),
            )
        ],
        row,
    ).lines
    line = line._replace(instruction=None, attempt=None)
    opening = stage_of_batch(lease(), line)
    (end,) = given(opening.values, "s_")
    (fact,) = given(opening.values, "f_")
    assert end == {"number": 7, "seq": 4, "hash": START, "new_seq": 5, "new_hash": line.hash, "new_at": at(6)}
    assert (fact["segment"], fact["seq"], fact["at"], fact["kind"], fact["batch"]) == (7, 5, at(6), line.kind, 1)
    assert (fact["details"], fact["hash"]) == (line.details, line.hash)
    assert {fact[name] for name in ("instruction", "nth", "attempt", "contradicts")} == {None}
    assert given(opening.values, "r_") == []
    assert (opening.before, opening.ends) == ({7: Link(4, START, at(0))}, {7: Link(5, line.hash, line.at)})
