"""Facts as one call of the database: what the call says of chains, rows, replies and tallies. No server is asked."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paygw_batch.core.lifecycle import Intended, Interrupted, Resolution, Standing, State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.journal.facts.chain import Link, follow
from paygw_batch.journal.facts.progress import RowProgress
from paygw_batch.journal.postgres import migrations
from paygw_batch.journal.postgres.leasing.fact_commit import CALL, StagedFacts, opening_values, stage_facts
from paygw_batch.journal.postgres.leasing.leases import Lease
from paygw_batch.journal.postgres.standing_lines import COLUMNS, Loaded
from paygw_batch.journal.values import Entry, KeptReply
from tests.journal.journal_rows import at, outcome_of, resolved

START = b"s" * 32
SCHEMA = (Path(migrations.__file__).parent / "schema-1.sql").read_text(encoding="utf-8")
(SIGNATURE,) = re.findall(r"CREATE FUNCTION commit_facts\((.*?)\) RETURNS", SCHEMA, re.DOTALL)
PARAMETERS = [tuple(one.split(maxsplit=1)) for one in re.split(r",\s*", SIGNATURE.strip())]
"""Name and type of each parameter of the function that commits, as the tables define it."""


def lease(segment: int = 7, chain: int = 3, end: Link | None = None) -> Lease:
    return Lease(segment, chain, end or Link(4, START, at(0)), is_clear=True)


def loaded(number: int, *, facts: int = 0, batch: int = 1, minor: int = 150_050, **progress: Any) -> Loaded:
    """An instruction as it was read; one without facts has no line in `standing` yet."""
    at_rest = RowProgress(f"ORD-{number}", **progress)
    return Loaded(number, f"ORD-{number}", batch, 3, "KE", "KES", minor, facts, facts == 0, at_rest)


def in_flight(number: int, facts: int = 1, attempt: int = 1) -> Loaded:
    standing = Standing(State.IN_FLIGHT, attempt)
    return loaded(number, facts=facts, standing=standing, sent_orderid=f"ORD-{number}", intended_at=at(0))


def staged(entries: Sequence[Entry], *rows: Loaded, **more: Any) -> StagedFacts:
    ours = lease()
    return stage_facts(entries, lambda _: ours, {row.number: row for row in rows}, **more)


def given(values: Sequence[Any], prefix: str) -> list[dict[str, Any]]:
    """Return the lines that the call gives to the parameters of one group, by their names in the function."""
    named = {name: array for (name, _), array in zip(PARAMETERS[1:], values, strict=True)}
    group: Mapping[str, list[Any]] = {
        name.removeprefix(prefix): array for name, array in named.items() if name.startswith(prefix)
    }
    return [dict(zip(group, line, strict=True)) for line in zip(*group.values(), strict=True)]


def intent_of(row: Loaded, attempt: int = 1, when: str = "", order_id: str = "") -> Entry:
    fact = Intended(order_id or row.progress.order_id, f"nonce-{row.number}", 1_795_000_000, "0" * 64, "WALLET-KE")
    return Entry(row.number, attempt, fact, when or at(5))


def test_the_call_has_a_place_for_every_parameter_in_its_order() -> None:
    types = [kind.removesuffix("[]") for _, kind in PARAMETERS[1:]]
    assert re.findall(r"%s::(\w+)\[\]", CALL) == types
    assert CALL.startswith("SELECT commit_facts(%s, %s::bigint[], ")
    assert CALL.count("%s") == len(PARAMETERS)
    assert [name for name, _ in PARAMETERS if name.startswith("t_")][4] == "t_state"


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
    new, known = given(found.values, "t_")
    assert (new["instruction"], new["is_new"], new["before"], new["facts"]) == (11, True, 0, 1)
    assert (new["state"], new["attempt"], new["order_id"], new["sent_orderid"]) == ("in_flight", 1, "ORD-11", "ORD-11")
    assert (new["purpose"], new["intended_at"], new["updated_at"]) == ("WALLET-KE", at(5), at(5))
    assert (known["instruction"], known["is_new"], known["before"], known["facts"]) == (12, False, 3, 4)
    assert (known["state"], known["attempt"], known["first_sent_at"]) == ("in_flight", 2, at(1))
    facts = {line["instruction"]: line for line in given(found.values, "f_")}
    assert {number: (line["nth"], line["attempt"], line["kind"]) for number, line in facts.items()} == {
        12: (4, 2, "intended"),
        11: (1, 1, "intended"),
    }
    assert {line["batch"] for line in facts.values()} == {1}
    assert list(found.nths) == [4, 1]
    after = found.loaded[11]
    assert (after.facts, after.is_new, after.progress.standing.state) == (1, False, State.IN_FLIGHT)
    assert (after.client_orderid, after.batch, after.chunk, after.country, after.currency, after.minor) == (
        *("ORD-11", 1, 3, "KE", "KES", 150_050),
    )


def test_several_facts_of_one_row_are_counted_and_it_is_saved_once() -> None:
    row = loaded(11, batch=9)
    found = staged([intent_of(row), outcome_of(11, 1, OutcomeKind.PAID, at(6))], row)
    (saved,) = given(found.values, "t_")
    assert (saved["before"], saved["facts"], saved["state"], saved["updated_at"]) == (0, 2, "paid", at(6))
    assert [(line["nth"], line["batch"]) for line in given(found.values, "f_")] == [(1, 9), (2, 9)]


def test_every_column_of_a_row_is_given_under_its_own_name() -> None:
    row = in_flight(11)
    words = {"gateway_status": "declined", "gateway_reference": "ref", "http_status": 402, "error_code": "E7"}
    found = staged([outcome_of(11, 1, OutcomeKind.REJECTED, at(6), message="no\0funds", **words)], row)
    (saved,) = given(found.values, "t_")
    assert saved["message"] == "no?funds"
    assert {name: saved[name] for name in words} == words
    named = {"duplicate": "possible_duplicate_of", "inherited": "inherited_attempts"}
    assert [named.get(name, name) for name in list(saved)[4:]] == list(COLUMNS)


def test_a_fact_that_does_not_fit_is_kept_and_moves_nothing() -> None:
    paid = loaded(11, facts=2, standing=Standing(State.PAID, 1))
    found = staged([outcome_of(11, 1, OutcomeKind.REJECTED, at(6)), intent_of(paid, 2)], paid)
    facts = given(found.values, "f_")
    assert [(line["contradicts"], line["nth"]) for line in facts] == [("paid", 3), ("paid", 4)]
    assert [line.contradicts for line in found.lines] == ["paid", "paid"]
    (saved,) = given(found.values, "t_")
    assert (saved["state"], saved["before"], saved["facts"]) == ("paid", 2, 4)
    assert given(found.values, "m_") == []


def test_an_intent_under_another_order_id_moves_nothing() -> None:
    row = loaded(11)
    found = staged([intent_of(row, order_id="ORD-11-r2")], row)
    assert [line.contradicts for line in found.lines] == ["ready"]
    assert given(found.values, "m_") == []


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
    tallied = given(found.values, "m_")
    assert {(line["chain"], line["state"]): line["rows"] for line in tallied} == {
        (0, "in_flight"): -1,
        (0, "accepted"): 1,
        (3, "in_flight"): -2,
        (3, "paid"): 1,
        (3, "rejected"): 1,
    }


def test_the_tallies_say_from_which_state_to_which_rows_and_sums_moved() -> None:
    new, open_one = loaded(11, minor=100), in_flight(12)
    entries = [intent_of(new), outcome_of(12, 1, OutcomeKind.PAID, at(6))]
    found = staged(entries, new, open_one)
    assert given(found.values, "m_") == [
        {
            "chunk": 3,
            "chain": 3,
            "country": "KE",
            "currency": "KES",
            "state": "in_flight",
            "rows": 0,
            "minor": -149_950,
        },
        {"chunk": 3, "chain": 3, "country": "KE", "currency": "KES", "state": "paid", "rows": 1, "minor": 150_050},
        {"chunk": 3, "chain": 3, "country": "KE", "currency": "KES", "state": "ready", "rows": -1, "minor": -100},
    ]


def test_tallies_that_change_nothing_are_not_written() -> None:
    one, other = loaded(11), in_flight(12)
    back = outcome_of(12, 1, OutcomeKind.NOT_SENT, at(6))
    found = staged([intent_of(one), back], one, other)
    assert given(found.values, "m_") == []
    assert [line["state"] for line in given(found.values, "t_")] == ["in_flight", "ready"]


def test_a_row_that_no_fact_moves_can_be_saved_with_the_others() -> None:
    """An amended row takes over the numbering of the one that it replaces."""
    mover, taken = in_flight(11), loaded(12, inherited_attempts=2, standing=Standing(State.READY, 2))
    found = staged([outcome_of(11, 1, OutcomeKind.PAID)], mover, taken, extra={12})
    saved = given(found.values, "t_")
    assert [(line["instruction"], line["facts"], line["inherited"]) for line in saved] == [(11, 2, 0), (12, 0, 2)]
    assert [line["instruction"] for line in given(found.values, "f_")] == [11]
    assert not found.loaded[12].is_new
    untouched = staged([outcome_of(11, 1, OutcomeKind.PAID)], mover, taken)
    assert [line["instruction"] for line in given(untouched.values, "t_")] == [11]
    assert untouched.loaded[12].is_new


def test_what_moves_a_row_that_is_only_saved_counts_in_the_chain_of_the_others() -> None:
    ready, mover = loaded(12, standing=Standing(State.REJECTED, 2)), in_flight(11)
    found = staged([outcome_of(11, 1, OutcomeKind.PAID)], mover, ready, extra={12})
    assert {(line["chain"], line["state"]): line["rows"] for line in given(found.values, "m_")} == {
        (3, "in_flight"): -1,
        (3, "paid"): 1,
        (3, "ready"): -1,
        (3, "rejected"): 1,
    }


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
    (saved,) = given(found.values, "t_")
    assert (saved["state"], saved["duplicate"]) == ("ready", 1)


def test_the_fact_that_opens_a_batch_moves_no_row() -> None:
    row = in_flight(11)
    (line,) = staged([outcome_of(11, 1, OutcomeKind.PAID, at(6), message="a\0b")], row).lines
    values = opening_values(7, Link(4, START, at(0)), line._replace(details="a\0b"))
    (end,) = given(values, "s_")
    (fact,) = given(values, "f_")
    assert end == {"number": 7, "seq": 4, "hash": START, "new_seq": 5, "new_hash": line.hash, "new_at": at(6)}
    assert (fact["segment"], fact["seq"], fact["at"], fact["kind"], fact["batch"]) == (7, 5, at(6), line.kind, 1)
    assert (fact["details"], fact["hash"]) == ("a?b", line.hash)
    assert {fact[name] for name in ("instruction", "nth", "attempt", "contradicts")} == {None}
    assert [given(values, prefix) for prefix in ("t_", "r_", "m_")] == [[], [], []]
