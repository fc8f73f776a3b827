"""The short way of `verify` for rows with two facts finds right what the replay finds right, and nothing else."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import count
from typing import Any

import apsw
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from paygw_batch.core.lifecycle import (
    Concluded,
    Fact,
    FactKind,
    Intended,
    Interrupted,
    Released,
    Resolution,
    Resolved,
    State,
)
from paygw_batch.core.outcome import Outcome, OutcomeKind
from paygw_batch.errors import JournalCorrupt
from paygw_batch.journal.facts.chain import Line, fold
from paygw_batch.journal.facts.progress import COLUMNS, RowProgress, columns_of
from paygw_batch.journal.port import unwatched
from paygw_batch.journal.replay import RowReplay
from paygw_batch.journal.salts import new_salt
from paygw_batch.journal.sqlite.schema import migrate
from paygw_batch.journal.sqlite.tables import SqliteTables
from paygw_batch.journal.sqlite.verify import plain_rows
from paygw_batch.journal.values import Entry, Link
from tests.journal.journal_rows import AT, OPERATION, at
from tests.long_part import share_of

FACT = Line._fields
TABLES: Mapping[str, Sequence[str]] = {
    "instruction": ("number", "batch", "row", "client_orderid", "replaces"),
    "standing": ("instruction", *COLUMNS),
    "fact": FACT,
    "order_id": ("operation", "order_id", "instruction"),
}
"""The tables that the replay of rows reads, with the columns that it reads."""
NOT_READ = {
    "instruction": (
        ", country, currency, minor, amount, form, fields, payee, content, salt",
        ", '', '', 1, '', '', '', '', '', zeroblob(16)",
    )
}

Tables = dict[str, list[list[Any]]]


def tables_of(rows: Sequence[tuple[str, Sequence[Fact]]]) -> Tables:
    """Return the lines of rows, each an order id and facts, as a journal would have written them."""
    progress = {number: RowProgress(order_id) for number, (order_id, _) in enumerate(rows, start=1)}
    minutes = count()
    entries = [
        Entry(number, 1, fact, at(next(minutes))) for number, (_, facts) in enumerate(rows, start=1) for fact in facts
    ]
    facts = fold(entries, Link(0, bytes(32)), progress, dict.fromkeys(progress, 1), new_salt)
    moved = {entry.instruction for entry in entries}
    return {
        "instruction": [[number, 1, number + 1, order_id, None] for number, (order_id, _) in enumerate(rows, start=1)],
        "standing": [[number, *columns_of(after)] for number, after in progress.items() if number in moved],
        "fact": [list(line) for line in facts],
        "order_id": [[OPERATION, order_id, number] for number, (order_id, _) in enumerate(rows, start=1)],
    }


def stored(tables: Tables) -> apsw.Connection:
    """Return a journal with these lines. Raises `apsw.Error` for some that no table takes."""
    connection = apsw.Connection(":memory:")
    connection.execute("PRAGMA foreign_keys = 0")
    migrate(connection, 0, now=AT)
    connection.execute("INSERT INTO batch VALUES (1, 'b1', ?, '', '', 1, 0, '', '')", (OPERATION,))
    for table, lines in tables.items():
        columns, (names, values) = TABLES[table], NOT_READ.get(table, ("", ""))
        query = f"INSERT INTO {table} ({', '.join(columns)}{names}) VALUES ({', '.join('?' * len(columns))}{values})"  # noqa: S608 - ours
        connection.executemany(query, lines)
    return connection


def passed(connection: apsw.Connection) -> int:
    return sum(plain_rows(SqliteTables(connection), unwatched).states.values())


def found_in(connection: apsw.Connection, *, shortly: bool) -> Mapping[str, int] | None:
    """Return the counts that `verify` has of the rows, None if it finds damage."""
    tables = SqliteTables(connection)
    try:
        return RowReplay(tables, unwatched).run(plain_rows(tables, unwatched) if shortly else None)
    except JournalCorrupt:
        return None


PLAIN = ["A", "processing", "200", "a b", "~!#"]
ODD = ["", 'q"', "\\", "\x7f", "é", "\x1f", "\n", "\0", "A\0é", "[", '["unknown"]', "null", "😀"]
USUAL = st.none() | st.sampled_from(PLAIN)
UNUSUAL = USUAL | st.sampled_from([*PLAIN, *ODD, "A\ud800"])
ORDER_IDS = st.sampled_from(["A-1", "A-2", "A-3", "A-4", *(f"{odd}-5" for odd in ODD)])


def often(usual: Any, *others: Any) -> st.SearchStrategy[Any]:
    """Draw the usual value most times: what stands at either end is drawn most."""
    most = [usual] * 8 * len(others)
    return st.sampled_from([*most, *others, *most])


def answers(texts: st.SearchStrategy[str | None]) -> st.SearchStrategy[Outcome]:
    return st.builds(
        Outcome,
        often(OutcomeKind.ACCEPTED, *OutcomeKind) | often(OutcomeKind.PAID, OutcomeKind.REJECTED),
        cause=often("", "read.timeout"),
        gateway_status=texts,
        gateway_reference=texts,
        http_status=st.sampled_from([None, 200, 0, -1, 2**63 - 1, -(2**63)]),
        error_code=texts,
        message=texts,
        conflict=often(False, True),
        customer_url=often(None, "https://pay.example"),
        reply_sha256=often(None, "0" * 64),
    )


LATER: st.SearchStrategy[Fact] = st.sampled_from(
    [
        Interrupted(),
        Concluded(Outcome(OutcomeKind.PAID)),
        Resolved(Resolution.REJECTED, "a statement", "amina"),
        Released("A-2", "amina"),
    ]
)


@st.composite
def histories(draw: st.DrawFn, order_id: str) -> list[Fact]:
    texts = draw(st.sampled_from([USUAL, USUAL, UNUSUAL, USUAL, USUAL]))
    intent = Intended(
        draw(often(order_id, "A-2")),
        draw(often("0123456789abcdef" * 2, "0" * 31, "A" * 32, '"' + "0" * 31)),
        draw(often(1_795_000_000, 0, -179_500_000, 10**10)),
        draw(often("f" * 64, "", 'f"' + "f" * 62)),
        draw(texts),
    )
    length = draw(st.sampled_from([2, 2, 2, 0, 1, 3, 2, 2, 2]))
    told: list[Fact] = [intent, Concluded(draw(answers(texts))), draw(LATER)]
    return told[:length]


@st.composite
def journals(draw: st.DrawFn) -> Tables:
    """Draw a journal that is whole, or in which some cells were changed."""
    order_ids = draw(st.lists(ORDER_IDS, min_size=1, max_size=4, unique=True))
    tables = tables_of([(order_id, draw(histories(order_id))) for order_id in order_ids])
    for _ in range(draw(st.sampled_from([0, 1, 1, 2, 1, 0]))):
        lines = tables[draw(st.sampled_from([table for table in TABLES if tables[table]]))]
        line = draw(st.sampled_from(lines))
        column = draw(st.integers(0, len(line) - 1))
        line[column] = draw(changed(line[column], [other[column] for other in lines]))
    return tables


@st.composite
def changed(draw: st.DrawFn, value: Any, others: Sequence[Any]) -> Any:
    """Draw what a cell is changed into: the value of another line, an odd one, or a text with a part cut and put in."""
    if isinstance(value, int | bytes):
        return draw(st.sampled_from([*others, None, 0, 1, 2, 3]))
    if value is None or draw(st.booleans()):
        return draw(st.sampled_from([*others, None, 1, at(0), "accepted", "paid", "ready", *PLAIN, *ODD]))
    place, cut = draw(st.integers(0, len(value))), draw(st.integers(0, 2))
    return value[:place] + draw(st.sampled_from(["", ",", '"', "0", "A", " ", *ODD])) + value[place + cut :]


@settings(max_examples=share_of(600))
@given(journals())
def test_the_short_way_finds_of_any_journal_what_the_replay_finds(tables: Tables) -> None:
    try:
        connection = stored(tables)
    except (apsw.Error, UnicodeEncodeError):
        return
    with closing(connection):
        event(f"{passed(connection)} rows pass")
        assert found_in(connection, shortly=True) == found_in(connection, shortly=False)


INTENT = Intended("A-1", "0" * 32, 1_795_000_000, "f" * 64, "WALLET")


def one_payout(outcome: Outcome) -> Tables:
    facts: list[Fact] = [INTENT, Concluded(outcome)]
    return tables_of([("A-1", facts)])


WORDS = {"gateway_status": "approved", "gateway_reference": "7", "http_status": 200, "error_code": "0"}


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome(OutcomeKind.PAID, **WORDS),  # type: ignore[arg-type]
        Outcome(OutcomeKind.REJECTED, message="no such wallet", **WORDS),  # type: ignore[arg-type]
        Outcome(OutcomeKind.ACCEPTED),
    ],
)
def test_what_an_ordinary_payout_leaves_passes(outcome: Outcome) -> None:
    with closing(stored(one_payout(outcome))) as connection:
        assert passed(connection) == 1


CELLS = [
    *(("standing", column) for column in TABLES["standing"]),
    *(("order_id", column) for column in TABLES["order_id"]),
    *(("instruction", column) for column in ("number", "batch", "client_orderid", "replaces")),
    *(("fact", column) for column in ("at", "kind", "instruction", "attempt", "contradicts", "details")),
]
NUMBERED_BY_SQLITE = {("standing", "instruction"), ("instruction", "number")}


@pytest.mark.parametrize(("table", "column"), CELLS)
def test_a_change_of_any_cell_is_found(table: str, column: str) -> None:
    words = {**WORDS, "message": "welcome"}
    outcome = Outcome(OutcomeKind.PAID, **words)  # type: ignore[arg-type]
    found = 0
    for value in (None, 2, "A-2", at(30), "returned", "", "{}"):
        for place in range(len(one_payout(outcome)[table])):
            tables = one_payout(outcome)
            line, cell = tables[table][place], TABLES[table].index(column)
            if line[cell] == value or (value is None and (table, column) in NUMBERED_BY_SQLITE):
                continue
            line[cell] = value
            try:
                connection = stored(tables)
            except apsw.Error:  # the table itself refuses it
                continue
            with closing(connection):
                assert passed(connection) == 0
                assert found_in(connection, shortly=True) is None
            found += 1
    assert found


SALT = "5a" * 16
WHOLE = {
    "kind": "paid",
    "order id": "A-1",
    "purpose": "WALLET",
    "nonce": "0" * 32,
    "digest": "f" * 64,
    "time": "1795000000",
    "status": "approved",
    "reference": "REF-7",
    "code": "CODE-0",
    "message": "welcome",
    "http status": "200",
    "salt": SALT,
}
"""The texts of a payout, none of which is in another one."""
INSTEAD = (
    *(*FactKind, *State, *ODD, "A-2", "null", "[x", 'A","nonce":"B', "A\\", "\\u00e9", "\t"),
    *("5A" * 16, "5a" * 15, "5a" * 17, "5g" * 16, "F" * 64, "g" * 64, "0" * 31 + '"', "f" * 63 + "\\", "f" * 62 + "é"),
    *("+795000000", " 795000000", "0795000000", "-795000000", "17950000.0", "1795e00000", "0200", "2e2", "-1", "200.0"),
)


@pytest.mark.parametrize("what", WHOLE)
def test_where_tables_and_facts_agree_on_an_odd_text_the_replay_decides(what: str) -> None:
    words = {"gateway_status": "approved", "gateway_reference": "REF-7", "error_code": "CODE-0", "message": "welcome"}
    outcome = Outcome(OutcomeKind.PAID, http_status=200, **words)  # type: ignore[arg-type]
    for value in INSTEAD:
        tables = one_payout(outcome)
        fact = tables["fact"][1]
        details = FACT.index("details")
        fact[details] = f'{fact[details][: -len(SALT) - 2]}{SALT}"}}'
        for lines in tables.values():
            for line in lines:
                line[:] = [cell.replace(WHOLE[what], value) if isinstance(cell, str) else cell for cell in line]
        with closing(stored(tables)) as connection:
            assert found_in(connection, shortly=True) == found_in(connection, shortly=False), value


@pytest.mark.parametrize(
    ("table", "column"), [("fact", "attempt"), ("standing", "attempt"), ("instruction", "replaces")]
)
def test_another_attempt_or_a_replaced_row_is_replayed(table: str, column: str) -> None:
    tables = one_payout(Outcome(OutcomeKind.PAID))
    for line in tables[table]:
        line[TABLES[table].index(column)] = 2
    with closing(stored(tables)) as connection:
        assert passed(connection) == 0
