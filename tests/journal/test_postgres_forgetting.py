"""Forgetting people in PostgreSQL: the roles that may, the changes that tables refuse, and the server's files."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from paygw_batch.cluster.database_location import DatabaseLocation
from paygw_batch.cluster.move import move_journal
from paygw_batch.core.evidence import SignedOrder
from paygw_batch.core.lifecycle import State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import JournalCorrupt, JournalTooOld, StaleRows
from paygw_batch.journal.postgres.postgres_journal import PostgresJournal
from paygw_batch.journal.values import RemainingData, Withdrawal
from tests.journal.forgotten_rows import (
    BEFORE,
    FORGERIES_OF_BOTH,
    LATER,
    SECRETS,
    WHEN,
    fill_journal,
    forget_old_batches,
    record_unknown_evidence,
    secret_row,
    secrets_in,
)
from tests.support.journal_rows import (
    OPERATION,
    at,
    due_rows,
    file_location,
    intent,
    new_instruction,
    open_journal_at,
    open_sheet,
    outcome_of,
    row_of,
    send,
)
from tests.support.long_part import long
from tests.support.postgres_rows import (
    execute_as_owner,
    make_postgres,
    open_postgres,
    postgres_location,
    read_postgres,
    triggers_off,
)
from tests.support.postgres_server import PostgresServer, new_server

PLAN = '{"document": "plan", "content": {"operation": "payout", "batch": "%s", "names": ["Zephyrine Quillfeather"]}}'


@pytest.fixture
def journal(at_database: DatabaseLocation) -> Iterator[PostgresJournal]:
    """Yield a journal in PostgreSQL with an old batch, a paid one and a new one."""
    opened = open_postgres(at_database)
    fill_journal(opened)
    yield opened
    with suppress(OSError):  # some tests close it
        opened.close()


def table_files(server: PostgresServer) -> list[Path]:
    """Return the files of a server, without its write-ahead log."""
    data = server.home / "data"
    return [path for path in data.rglob("*") if data / "pg_wal" not in path.parents]


def test_forgetting_leaves_no_personal_bytes_in_tables(folder: Path) -> None:
    with new_server() as server:
        shared = postgres_location(server.url(server.new_database()), folder)
        make_postgres(shared)
        with closing(open_postgres(shared)) as opened:
            fill_journal(opened)
            opened.settle([], order=SignedOrder("old", json.dumps({"content": {"rows": [{"row": 2}]}}), at(6)))
            for code in ("old", "never-submitted"):
                assert shared.store_plan(code, PLAN % code)
            execute_as_owner(shared, "ANALYZE", "CHECKPOINT")
            assert secrets_in(table_files(server)) == list(SECRETS)
            chosen = opened.payments_to_forget(before="2999-01-01", cutoff=WHEN)
            assert opened.forget(chosen, by="amina", at=WHEN) is RemainingData.IN_DATABASE
            assert opened.verify()["instructions"] == 5
            assert opened.signed_orders("old") == []
            assert shared.newest_plan("old") is shared.newest_plan("never-submitted") is None
        execute_as_owner(shared, "ANALYZE", "VACUUM FULL", "CHECKPOINT")
        assert secrets_in(table_files(server)) == []
        with closing(read_postgres(shared)) as reader:
            assert reader.verify()["evidence"] > 0


def test_forgetting_keeps_plans_of_other_people(journal: PostgresJournal, at_database: DatabaseLocation) -> None:
    for code in ("old", "new", "never-submitted"):
        assert at_database.store_plan(code, PLAN % code)
    forget_old_batches(journal, before="2026-11-22")
    assert at_database.newest_plan("old") is None
    assert at_database.newest_plan("new") is not None
    assert at_database.newest_plan("never-submitted") is not None  # made today


FORGERIES = [
    *FORGERIES_OF_BOTH,
    "UPDATE instruction SET salt = decode(repeat('00', 16), 'hex') WHERE number = 1",
    "UPDATE instruction SET people_sha256 = sha256('') WHERE number = 1",
    "UPDATE fact SET order_id = 'X-1' WHERE instruction = 3 AND kind = 'intended'",
    "UPDATE fact SET by = 'nobody' WHERE instruction = 3 AND kind = 'resolved_paid'",
    "UPDATE fact SET said_sha256 = NULL WHERE instruction = 3",
    "INSERT INTO said SELECT min(number), decode(repeat('00', 16), 'hex'), 'x' FROM fact WHERE instruction = 3",
    "INSERT INTO said SELECT max(number), decode(repeat('00', 16), 'hex'), 'x' FROM fact WHERE instruction = 3",
    "UPDATE said SET text = 'x'",
    "DELETE FROM said",
    "UPDATE fact SET hash = sha256('') WHERE instruction = 1 AND kind = 'rejected'",
    "UPDATE fact SET hash = sha256('') WHERE kind = 'batch_forgotten'",
    "UPDATE fact SET number = DEFAULT WHERE instruction = 1",
    "UPDATE state SET first_sent = NULL WHERE instruction = 1",
    "INSERT INTO page VALUES (1, 0, '')",
    "UPDATE payee_words SET words = 'zephyrine' WHERE instruction = 1",
]


@pytest.mark.share(4)
@pytest.mark.parametrize("forgery", FORGERIES)
def test_change_after_forgetting_is_found(
    journal: PostgresJournal, at_database: DatabaseLocation, forgery: str
) -> None:
    forget_old_batches(journal)
    (due,) = due_rows(journal, 3)
    journal.append([intent(due, LATER)])
    journal.append([outcome_of(due.number, 1, OutcomeKind.PAID, LATER, message="of nobody who is forgotten")])
    journal.close()
    with triggers_off(at_database, forgery.split()[2 if forgery.startswith(("INSERT", "DELETE")) else 1]):
        execute_as_owner(at_database, forgery)
    with pytest.raises((JournalCorrupt, JournalTooOld)) as raised, closing(read_postgres(at_database)) as reader:
        reader.verify()
    assert "triggers" not in raised.value.message


BEGIN = "SELECT begin_forgetting(1)"


def forgetting_statement(instruction: int, right: str = "", wrong: str = "") -> str:
    """Return the statement that forgets an instruction, with a change that makes it wrong."""
    text = "SET fields = NULL, payee = NULL, content = NULL, salt = NULL".replace(right, wrong, 1)
    return f"UPDATE instruction i {text} WHERE number = {instruction}"


REMOVE = "DELETE FROM said WHERE fact IN (SELECT number FROM fact WHERE {})"  # removes the personal data of some facts


REFUSED: Sequence[Sequence[str]] = [
    ["UPDATE instruction SET fields = '{}'"],
    [forgetting_statement(1)],
    [BEGIN, forgetting_statement(1, "salt = NULL", "salt = NULL, minor = 1")],
    [BEGIN, forgetting_statement(1, "salt = NULL", "salt = NULL, people_sha256 = sha256('')")],
    [BEGIN, forgetting_statement(1, ", salt = NULL", "")],
    [BEGIN, forgetting_statement(3)],  # of another batch
    [BEGIN, forgetting_statement(1, "payee = NULL", "payee = '254700000000'")],
    [BEGIN, forgetting_statement(1, "fields = NULL", "fields = i.fields")],
    [BEGIN, "DELETE FROM instruction WHERE number = 1"],
    [BEGIN, "UPDATE fact SET details = '{}' WHERE instruction = 1"],
    [BEGIN, "UPDATE fact SET details = '{}' WHERE instruction IS NULL"],
    [BEGIN, "DELETE FROM fact WHERE instruction = 1"],
    ["DELETE FROM said"],
    [BEGIN, "DELETE FROM said"],
    [BEGIN, forgetting_statement(1), REMOVE.format("instruction = 3")],
    [BEGIN, forgetting_statement(1), "UPDATE said SET text = NULL"],
    [BEGIN, "DELETE FROM state"],
    [REMOVE.format("kind = 'heard' AND instruction IS NULL")],
    [BEGIN, REMOVE.format("kind = 'withdrawn'")],
    [BEGIN, "DELETE FROM page WHERE batch = 3"],
    [BEGIN, "UPDATE page SET content = '' WHERE batch = 1"],
    [BEGIN, "DELETE FROM reply"],
    [BEGIN, "DELETE FROM payee_words"],
    [BEGIN, "UPDATE payee_words SET words = ''"],
    ["DELETE FROM page WHERE batch = 1"],
    ["DELETE FROM plan_document"],
    [BEGIN, "DELETE FROM plan_document"],  # the new batch is not over
    [BEGIN, "UPDATE forgetting SET batch = 2"],
    [BEGIN, "SET CONSTRAINTS ALL IMMEDIATE"],  # without a fact that records it
    ["INSERT INTO forgetting (batch, after) VALUES (1, 9)", "SET CONSTRAINTS ALL IMMEDIATE"],
    ["SELECT begin_forgetting(3)"],  # not over
    ["SELECT begin_forgetting(99)"],
    ["SELECT begin_forgetting(NULL)"],
]


def is_refused(location: DatabaseLocation, *statements: str) -> bool:
    """Run statements as the owner in one transaction and roll it back; return whether the tables refused one."""
    with psycopg.connect(location.server.url, options="-c search_path=paygw") as owner:
        try:
            for statement in statements:
                owner.execute(statement.encode())
        except psycopg.Error as error:
            assert error.sqlstate in {"P0001", "PW010", "PW013"}, error  # noqa: PT017 - one of ours, and no misspelling
            return True
        finally:
            owner.rollback()
    return False


FORGET = "refuse_all_but_forgetting"
TAKEN_AWAY: Sequence[tuple[str, str, str]] = [
    ("begin_forgetting", "IF is_over(p_batch) IS NOT TRUE", "IF false"),
    ("is_over", "'replaced', 'rejected'", "'replaced', 'rejected', 'ready'"),
    ("require_forgetting_fact", "RAISE EXCEPTION", "RAISE NOTICE"),
    (FORGET, "RAISE EXCEPTION", "RAISE NOTICE"),
    (FORGET, "num_nonnulls(NEW.fields, NEW.payee, ", "num_nonnulls(NEW.payee, "),
    (FORGET, "num_nonnulls(NEW.fields, NEW.payee, ", "num_nonnulls(NEW.fields, "),
    (FORGET, "NEW.content, NEW.salt) = 0", "NEW.content) = 0"),
    (FORGET, "NEW.people_sha256)", "OLD.people_sha256)"),
    (FORGET, "WHERE g.batch = NEW.batch AND g.made_in", "WHERE g.made_in"),
    (FORGET, "NEW.currency, NEW.minor,", "NEW.currency, OLD.minor,"),
    (FORGET, "THEN is_being_forgotten(f.instruction)", "THEN true"),
    (FORGET, "(f.kind = 'order' OR f.kind = 'heard' AND f.source <> 'witness')", "true"),
    (FORGET, "AND EXISTS (SELECT FROM forgetting g WHERE g.made_in = pg_current_xact_id()) END\n", "END\n"),
    (FORGET, "g.batch = OLD.batch AND g.made_in", "g.made_in"),
    (FORGET, "AND NEW.instruction = OLD.instruction AND is_being_forgotten(OLD.instruction)", ""),
    (FORGET, "is_left := is_being_forgotten(OLD.instruction);", "is_left := true;"),
    (FORGET, "WHERE b.batch = batch_of_plan(OLD.content) AND g.batch IS NULL", "WHERE false"),
]


@pytest.mark.parametrize("every", [4, long(1)])
def test_removing_any_guard_allows_change(journal: PostgresJournal, at_database: DatabaseLocation, every: int) -> None:
    """Every change but forgetting is refused. Planted bugs: without any one guard, some change succeeds."""
    record_unknown_evidence(journal, "B-1")
    journal.withdraw(Withdrawal("1" * 64, "cleo", "{}", at(6)))
    assert at_database.store_plan("new", PLAN % "new")
    assert [statements for statements in REFUSED if not is_refused(at_database, *statements)] == []
    removed = (REMOVE.format("instruction = 1"), "DELETE FROM page WHERE batch = 1")
    assert not is_refused(at_database, BEGIN, forgetting_statement(1), *removed)
    assert journal.verify()["instructions"] == 5
    missed = []
    for function, right, wrong in TAKEN_AWAY[::every]:
        ((text,),) = execute_as_owner(at_database, f"SELECT pg_get_functiondef('paygw.{function}'::regproc)")
        assert right in text, f"{function} has no {right!r} any more: nothing was planted"
        execute_as_owner(at_database, text.replace(right, wrong))
        if not all(is_refused(at_database, *statements) for statements in REFUSED):
            missed.append((function, right, wrong))
        execute_as_owner(at_database, text)
    assert missed == list(TAKEN_AWAY[::every])


def test_forgotten_row_cannot_be_forgotten_differently(journal: PostgresJournal, at_database: DatabaseLocation) -> None:
    forget_old_batches(journal)
    with pytest.raises(psycopg.Error, match="never changed"):
        execute_as_owner(at_database, "BEGIN", BEGIN, forgetting_statement(1, "fields = NULL", "fields = '{}'"))


def test_desk_role_may_forget(journal: PostgresJournal, as_role: Callable[[str], DatabaseLocation]) -> None:
    journal.close()
    with closing(open_postgres(as_role("desk"))) as opener:
        forget_old_batches(opener)
        assert opener.verify()["instructions"] == 5


def test_concurrently_changed_batch_is_not_forgotten(journal: PostgresJournal) -> None:
    chosen = journal.payments_to_forget(before=BEFORE, cutoff=WHEN)
    journal.release(1, None, suffix=True, by="amina", at=WHEN)
    with pytest.raises(StaleRows):
        journal.forget(chosen, by="amina", at=WHEN)
    assert (row_of(journal, 2, 2).state, journal.first_forgetting(2)) == (State.PAID, None)
    assert journal.verify()["instructions"] == 5


def test_moved_journal_keeps_forgetting(at_database: DatabaseLocation, folder: Path) -> None:
    execute_as_owner(at_database, "DROP SCHEMA paygw CASCADE")
    with closing(open_journal_at(folder)) as kept:
        fill_journal(kept)
        forget_old_batches(kept)
        open_sheet(kept, "again", [new_instruction(2, "E-1")], opened_at=LATER)
        send(kept, 4, OutcomeKind.PAID, LATER)
        counts = kept.verify()
    elsewhere = replace(at_database, known_dir=folder / "other" / "journals")
    assert {**move_journal(file_location(folder), elsewhere, {}, "amina").counts, "notifications_waiting": 0} == counts
    paid = secret_row(2, "B-1")
    with closing(open_postgres(elsewhere)) as journal:
        known, (clash,) = journal.compare(OPERATION, [(2, paid.client_orderid, paid.content)])
        assert (known, clash.instruction, clash.is_amendable) == ([], 3, False)
        assert [journal.first_forgetting(batch) is not None for batch in (1, 2, 3, 4)] == [True, True, False, False]
        open_sheet(journal, "more", [secret_row(2, "F-1")], opened_at=LATER)
        send(journal, 5, OutcomeKind.PAID, LATER)
        forget_old_batches(journal, before="2027-02-15")
        assert journal.verify()["instructions"] == 7
        assert not due_rows(journal, 5)
