"""A large sheet opened part by part gives the same batch as in one piece."""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random
from unittest.mock import Mock

import apsw
import polars as pl
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from paygw_batch.errors import InternalError
from paygw_batch.journal.facts import decode_batch
from paygw_batch.journal.file_location import in_memory_journal
from paygw_batch.journal.new_batch import BatchPart, InstructionRows
from paygw_batch.journal.sqlite.connect import check_tables
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal
from paygw_batch.journal.values import NewBatch, NewInstruction
from paygw_batch.sheet.check.validate import validate
from paygw_batch.sheet.instructions import INSTRUCTION_COLUMNS, InstructionColumns, from_pages, to_pages
from paygw_batch.sheet.model import Validated
from paygw_batch.sheet.read.headings import ReadOptions
from paygw_batch.sheet.read.sheet_file import read_sheet
from paygw_batch.sheet.write.table import write_frame, write_pieces
from paygw_batch.show.reconcile import reconciliation, reconciliation_pieces
from paygw_batch.submit.plan import Plan, open_planned_batch
from tests.support.journal_rows import AT, new_instruction, open_journal_at
from tests.support.journal_rows import open_sheet as open_new
from tests.support.long_part import example_count, share
from tests.support.planned_sheets import MINOR_UNITS, RULES
from tests.support.planned_sheets import plan as planned
from tests.support.scripted_scenario import NOW


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make pieces and pages small, so that every batch needs several and is sorted."""
    monkeypatch.setattr("paygw_batch.sheet.check.tally.ROWS_AT_ONCE", 9)
    monkeypatch.setattr("paygw_batch.sheet.instructions.ROWS_PER_PAGE", 25)
    monkeypatch.setattr("paygw_batch.sheet.instructions._ROWS_AT_ONCE", 7)
    monkeypatch.setattr("paygw_batch.journal.sqlite.sqlite_tables._MIN_SORTED", 1)
    monkeypatch.setattr("paygw_batch.journal.sqlite.sqlite_tables._MAX_SORTED", 200)
    monkeypatch.setattr("paygw_batch.journal.new_batch.urandom", bytes)


def write(path: Path, ids: list[str], *, amount: str = "100", bad: int | None = None) -> Path:
    lines = ["country,client_orderid,amount,currency,account_name,account_number,phone,note"]
    for n, order_id in enumerate(ids):
        paid = "1e3" if n == bad else amount
        lines.append(f'KE,{order_id},{paid},KES,"Jane ""J"" \\ Otieno",2547120{n:05},+2547120{n:05},n-{order_id}')
    path.write_text("\n".join(lines) + "\n")
    return path


def ids(count: int) -> list[str]:
    validated = [f"ID-{n}" for n in range(count)]
    Random(1).shuffle(validated)  # noqa: S311 (a sheet in no order, not a secret)
    return validated


def check_in_parts(path: Path) -> Validated:
    validated = validate(read_sheet(path, ReadOptions()), RULES)
    assert sum(1 for _ in validated.parts()) > 2
    return validated


def check_in_one_piece(path: Path) -> Validated:
    """Check a sheet in one piece, so that all its later processing uses that piece."""
    with pytest.MonkeyPatch.context() as patching:
        patching.setattr("paygw_batch.sheet.check.tally.ROWS_AT_ONCE", 1_000)
        validated = validate(read_sheet(path, ReadOptions()), RULES)
    assert validated.streamed is None
    return validated


def open_and_read(plan: Plan, journal: SqliteJournal) -> None:
    open_planned_batch(plan, journal, RULES, sheet_path=Path("/p.csv"), now=lambda: NOW, is_answered=True)


def journal_content(journal: SqliteJournal) -> tuple[object, ...]:
    """Return everything that a journal stores about its batches. The pages of the same rows may have other bytes."""
    assert journal.verify()["batches"] == len(journal.batches())
    check_tables(journal._connection, journal.path)
    pages = [from_pages(journal.pages(batch.number)).rows() for batch in journal.batches()]
    details = journal._connection.execute("SELECT details FROM fact WHERE kind = 'batch_opened'")
    openings = [replace(decode_batch(opening), pages_sha256="") for (opening,) in details]
    tables = ("batch", "instruction", "known", "order_id", "order_id_spelling", "state")
    lines = [journal._connection.execute(f"SELECT * FROM {table}").fetchall() for table in tables]  # noqa: S608
    return pages, openings, lines


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("order", share([reversed, list, sorted], every=3))
@pytest.mark.parametrize("names", share([["id", "Zoë"], ["id"]], every=2))
def test_reading_sheet_in_parts_opens_same_batch(
    tmp_path: Path, order: Callable[[list[str]], Iterable[str]], names: list[str]
) -> None:
    named = [f"{names[n % len(names)]}-{order_id}" for n, order_id in enumerate(ids(120))]
    path = write(tmp_path / "p.csv", [*order(named)])
    in_parts, whole = in_memory_journal(), in_memory_journal()
    open_and_read(planned(check_in_parts(path), in_parts), in_parts)
    open_and_read(planned(check_in_one_piece(path), whole), whole)
    assert journal_content(in_parts) == journal_content(whole)
    assert (len(list(in_parts.pages(1))), in_parts.verify()["order_ids"]) == (5, 120)


@pytest.mark.share(2)
@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("amend", [False, True])
def test_known_and_changed_rows_are_found_across_parts(tmp_path: Path, amend: bool) -> None:
    some, changed = ids(120), tmp_path / "q.csv"
    path = write(tmp_path / "p.csv", some)
    write(changed, [*some[:40], *(f"new-{n}" for n in range(30)), "id-7"])
    changed.write_text(changed.read_text().replace("100,KES", "101,KES", 25))  # the first rows have another amount
    journals = in_memory_journal(), in_memory_journal()
    for journal in journals:
        open_and_read(planned(check_in_parts(path), journal), journal)
    first = planned(check_in_parts(changed), journals[0], amend=amend)
    second = planned(check_in_one_piece(changed), journals[1], amend=amend)
    assert (first.known, first.amendments) == (second.known, second.amendments)
    assert (len(first.known), len(first.amendments)) == (15, 25 if amend else 0)
    assert first.validated.defects.equals(second.validated.defects)
    assert set(first.validated.defects["code"]) >= {"client_orderid.look_alike"}
    assert first.warnings.equals(second.warnings)
    assert (first.validated.batch, first.questions) == (second.validated.batch, second.questions)
    for plan, journal in zip((first, second), journals, strict=True):
        open_and_read(plan, journal)
    assert journal_content(journals[0]) == journal_content(journals[1])
    assert journals[0].verify()["batches"] == 2


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("step", ["", "_record", "_apply_amendments"])
def test_failure_to_open_batch_leaves_journal_unchanged(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """Its last rows cannot be read, or a step of the journal fails."""
    journal = in_memory_journal()
    open_new(journal, pages=list(to_pages(pl.DataFrame({"row": [2]}))))
    before = journal_content(journal)

    def parts() -> Iterator[BatchPart]:
        for row in range(2, 50):
            yield BatchPart([b"page"], InstructionRows([new_instruction(row, f"more-{row}")]))
        if not step:
            raise KeyboardInterrupt

    if step:
        monkeypatch.setattr(journal, step, Mock(side_effect=KeyboardInterrupt))
    new = NewBatch("b2", "payout", "p.csv", "sha", 48, 0)
    with pytest.raises(KeyboardInterrupt):
        journal.open_batch(new, parts=parts(), known=[], amendments=[], at=AT)
    monkeypatch.undo()
    check_tables(journal._connection, journal.path)
    assert journal_content(journal) == before


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("step", ["_record", "_apply_amendments", "_commit"])
def test_kill_while_opening_batch_preserves_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    tmp_path.chmod(0o700)
    with closing(open_journal_at(tmp_path)) as journal:
        open_new(journal)
        journal._connection.pragma("cache_size", 1)  # pages reach the disk before the commit

        def killed(*_: object) -> None:
            shutil.copytree(journal.path.parent, tmp_path / "left")
            raise KeyboardInterrupt

        monkeypatch.setattr(journal, step, killed)
        with pytest.raises(KeyboardInterrupt):
            open_new(journal, "b2", [new_instruction(row, f"more-{row}") for row in range(2, 500)])
    with closing(apsw.Connection(str(tmp_path / "left" / journal.path.name))) as again:
        check_tables(again, journal.path)
        assert [*again.execute("SELECT batch FROM batch")] == [("b1",)]
        assert [*again.execute("PRAGMA integrity_check")] == [("ok",)]


TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=12)
"""Valid contents of a field: line breaks and other control characters are refused."""


def instruction_columns(news: Sequence[NewInstruction]) -> InstructionColumns:
    schema = dict.fromkeys(INSTRUCTION_COLUMNS, pl.String) | {"row": pl.UInt32, "minor": pl.Int64}
    return InstructionColumns(pl.DataFrame(news, schema=schema, orient="row"))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    rows=st.lists(st.tuples(TEXTS, TEXTS, TEXTS, st.integers(0, 2**62), st.booleans()), max_size=30),
    first=st.integers(1, 10**12),
)
@example(rows=[("", "", "", 0, False)] * 2, first=2**32 - 2)
def test_columns_and_rows_give_same_instructions(rows: list[tuple[str, str, str, int, bool]], first: int) -> None:
    news = []
    for n, (name, fields, payee, minor, _) in enumerate(rows, start=2):
        content = (name, f"{name}{fields}", f"{fields}{name}", f"\x1f{name}{fields}")[minor % 4]
        paid = ("KE" if n % 2 else "UG", "KES" if n % 3 else "UGX", f'"{minor}"', minor)
        news.append(NewInstruction(n, f"{name}-{n}", *paid, "account", fields, payee, content))
    replaced = {new.row: new.row * 7 for new, (*_, is_replacing) in zip(news, rows, strict=True) if is_replacing}
    columns, in_rows = instruction_columns(news), InstructionRows(news)
    assert b"".join(columns.canonical(first, replaced)) == b"".join(in_rows.canonical(first, replaced))
    assert columns.totals() == in_rows.totals()
    assert columns.have_ascii_ids() == in_rows.have_ascii_ids()
    assert [*columns.shortened_rows("\x1f")] == [*in_rows.shortened_rows("\x1f")]
    assert [*map(NewInstruction._make, columns)] == news


NAMES = ("account_name", "account_number", "country", "purpose", "receiver_phone", "email", "username", "names")
SAID = st.text(st.one_of(st.sampled_from('":,{}\\ aé'), st.characters(codec="utf-8", categories=["L", "N", "P"])))


@settings(deadline=None, max_examples=example_count(50))
@given(st.lists(st.dictionaries(st.sampled_from(NAMES), SAID), max_size=5))
def test_payee_index_matches_stored_payments(rows: list[dict[str, str]]) -> None:
    journal = in_memory_journal()
    fields = [json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows]
    news = [new_instruction(n)._replace(fields=text) for n, text in enumerate(fields, start=2)]
    new, parts = (
        NewBatch("b1", "payout", "p.csv", "sha", len(news), 0),
        [BatchPart([b"page"], instruction_columns(news))],
    )
    journal.open_batch(new, parts=parts, known=[], amendments=[], at=AT)
    assert journal.verify()["instructions"] == len(rows)


@pytest.mark.share(2)
@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_reconciliation_in_pieces_is_whole_or_unwritten(
    tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = in_memory_journal()
    open_and_read(planned(check_in_parts(write(tmp_path / "p.csv", ids(120))), journal), journal)
    (batch,) = journal.batches()
    whole, in_pieces, out = (tmp_path / f"{name}.{ending}" for name in ("whole", "pieces", "out"))
    write_frame(reconciliation(journal, batch, MINOR_UNITS), whole)
    write_pieces(reconciliation_pieces(journal, batch, MINOR_UNITS), in_pieces)
    if ending == "csv":
        assert in_pieces.read_bytes() == whole.read_bytes()
    else:
        assert pl.read_parquet(in_pieces).equals(pl.read_parquet(whole))
        assert pl.read_parquet(whole).height == 120
    pages = list(journal.pages(batch.number))
    reasons = ((pages[:-1], "rows that its sheet does not have"), ([*pages, pages[-1]], r"row twice|disagree"))
    for wrong, reason in reasons:
        monkeypatch.setattr(journal, "pages", lambda _batch, wrong=wrong: iter(wrong))
        with pytest.raises(InternalError, match=reason):
            write_pieces(reconciliation_pieces(journal, batch, MINOR_UNITS), out)
    assert not out.exists()
