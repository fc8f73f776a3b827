"""Every change to a journal by another program is detected and named."""

import random
import shutil
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import apsw
import pytest

from paygw_batch.core.batch import payee_tag
from paygw_batch.core.lifecycle import Concluded, State
from paygw_batch.core.outcome import Outcome, OutcomeKind
from paygw_batch.errors import JournalCorrupt, JournalError
from paygw_batch.journal.facts import chain_facts
from paygw_batch.journal.port import ignore_progress
from paygw_batch.journal.sqlite.sqlite_tables import write_lines
from paygw_batch.journal.sqlite.verify import _check_facts as verify_facts
from paygw_batch.journal.sqlite.verify import check_tail, verify
from paygw_batch.journal.values import Amendment, Entry, KnownRow, Link, StoredReply, reply_sha256
from tests.support.journal_rows import (
    AT,
    due_rows,
    intent,
    journal_path,
    new_instruction,
    open_journal_at,
    open_sheet,
    outcome_of,
    read_journal_at,
    send,
    tamper,
)

REPLY = StoredReply("HTTP/1.1 200 OK", b'{"status":"declined"}')


@pytest.fixture
def full_journal(folder: Path) -> Path:
    with closing(open_journal_at(folder)) as journal:
        open_sheet(journal, new=5)
        rejected, returned, paid, doubtful, _ = due_rows(journal, 1)
        journal.append([intent(due) for due in (rejected, returned, paid, doubtful)])
        digest = reply_sha256(REPLY.head, REPLY.body)
        declined = outcome_of(rejected.number, 1, OutcomeKind.REJECTED, gateway_status="declined", reply_sha256=digest)
        no_wallet = outcome_of(returned.number, 1, OutcomeKind.REJECTED, message="no such wallet")
        paid_outcome = outcome_of(paid.number, 1, OutcomeKind.PAID, gateway_reference="REF")
        journal.append([replace(declined, reply=REPLY), no_wallet, paid_outcome])
        journal.append([outcome_of(paid.number, 1, OutcomeKind.REJECTED)])
        journal.mark_interrupted(AT)
        journal.release(1, [3], suffix=True, by="amina", at=AT)
        corrected = [new_instruction(2, amount="7.00"), new_instruction(7)]
        known = [KnownRow(9, paid.number, State.PAID)]
        open_sheet(journal, "b2", corrected, known=known, amendments=[Amendment(2, rejected.number)])
        open_sheet(journal, "b3", [new_instruction(8, f"José-{payee_tag('José', new_instruction(8).payee)}-1")])
        send(journal, 2, OutcomeKind.ACCEPTED)
    return journal_path(folder)


WRONG_HASH = "Fact {} or the one before it was changed: its hash is wrong."
DIFFERS = "Batch {} was changed after it was opened: {} differs."
UNLIKE_FACTS = "Instruction {} (row {} of batch {}) does not match its facts."
FACT_TIME = "UPDATE fact SET at = '2026-11-22T08:00:00.000Z' WHERE number = 2"
FACT_DROPPED = "DELETE FROM fact WHERE number = 4"
PAYEE = "UPDATE instruction SET payee = '254799999999' WHERE number = 5"
STATE = "UPDATE state SET state = 'ready' WHERE instruction = 3"
PAYEE_WORD = "INSERT INTO payment_words (rowid, words) VALUES (5, 'mallory')"


def update(table: str, where: str, *changes: str) -> list[str]:
    return [f"UPDATE {table} SET {change} WHERE {where}" for change in changes]  # noqa: S608 - names written below


FOUND: dict[str, list[str]] = {
    WRONG_HASH.format(2): [
        FACT_TIME,
        *update("fact", "number = 2", "order_id = 'ORD-9'", "gateway_reference = 'None'", "hash = zeroblob(32)"),
        (
            "UPDATE fact SET number = CASE number WHEN 2 THEN -3 ELSE -2 END WHERE number IN (2, 3); "
            "UPDATE fact SET number = -number WHERE number < 0"
        ),
    ],
    WRONG_HASH.format(6): ["UPDATE fact SET kind = 'paid' WHERE number = 6"],
    WRONG_HASH.format(3): update(
        "fact", "number = 3", "attempt = 2", "instruction = 5", "batch = 2", "finding = 'moved', source = 'enquiry'"
    ),
    "Fact 9 does not fit the state of instruction 3.": [
        "DELETE FROM contradiction",
        "UPDATE contradiction SET state = 'ready'",
    ],
    "Fact 2 does not fit the state of instruction 1.": ["INSERT INTO contradiction VALUES (2, 'ready')"],
    "Personal data in fact 7 of the journal was changed.": update(
        "said", "text IS NOT NULL", "text = 'no such account'", "salt = zeroblob(16)"
    ),
    "Personal data in fact 7 of the journal was removed.": ["DELETE FROM said WHERE text IS NOT NULL"],
    "The journal's state machine was altered.": [
        "UPDATE move SET after = 'ready' WHERE before = 'in_flight' AND kind = 'unknown'",
        "INSERT INTO move VALUES ('paid', 'not_sent', 'ready', 0, 0, 0, 0)",
    ],
    "Fact 4 is missing from the journal.": [FACT_DROPPED],
    "Fact 1 is missing from the journal.": ["DELETE FROM fact WHERE number = 1"],
    UNLIKE_FACTS.format(7, 7, "b2"): ["DELETE FROM fact WHERE number = (SELECT max(number) FROM fact)"],
    DIFFERS.format("b1", "instructions_sha256"): update(
        "instruction", "number = 5", "amount = '9500.50'", "minor = minor + 1", "client_orderid = 'ORD-66'", "row = 77"
    ),
    "An instruction of batch number 1 was changed.": [
        *update(
            "instruction",
            "number = 5",
            "country = 'KE' || char(0)",
            "fields = replace(fields, 'Wanjiku', 'Mallory')",
            "content = replace(content, 'KES', 'UGX')",
            "content = char(31) || content",
        ),
        PAYEE,
    ],
    DIFFERS.format("b2", "instructions_sha256"): ["UPDATE instruction SET replaces = 2 WHERE replaces = 1"],
    DIFFERS.format("b1", "instructions"): [
        (
            "DELETE FROM order_id WHERE instruction = 5; DELETE FROM state WHERE instruction = 5; "
            "DELETE FROM instruction WHERE number = 5"
        )
    ],
    DIFFERS.format("b1", "pages_sha256"): [
        "UPDATE page SET content = CAST('page 0ne' AS BLOB) WHERE number = 0 AND batch = 1",
        (
            "UPDATE page SET number = 1 - number + 10 WHERE batch = 1; UPDATE page SET number = number - 10 "
            "WHERE batch = 1"
        ),
    ],
    "A page of batch number 1 is missing.": ["DELETE FROM page WHERE number = 0 AND batch = 1"],
    DIFFERS.format("b1", "pages"): ["DELETE FROM page WHERE number = 1 AND batch = 1"],
    DIFFERS.format("b2", "pages"): ["DELETE FROM page WHERE batch = 2"],
    DIFFERS.format("b2", "known_sha256"): ["UPDATE known SET instruction = 4"],
    DIFFERS.format("b2", "known"): ["DELETE FROM known"],
    "The journal's batches do not match the facts that opened them.": [
        (
            "INSERT INTO batch SELECT 4, 'b4', operation, sheet_name, sheet_sha256, rows, defects, opened_at, "
            "sheet_path FROM batch WHERE number = 1"
        )
    ],
    "A line of table known refers to missing data.": ["UPDATE known SET instruction = 99"],
    DIFFERS.format("b1", "sheet_name"): ["UPDATE batch SET sheet_name = 'other.csv' WHERE number = 1"],
    DIFFERS.format("b1", "opened_at"): ["UPDATE batch SET opened_at = '2026-11-20T08:00:00.000Z' WHERE number = 1"],
    DIFFERS.format("b1", "sheet_path"): ["UPDATE batch SET sheet_path = '/elsewhere' WHERE number = 1"],
    UNLIKE_FACTS.format(3, 4, "b1"): [
        STATE,
        *update("state", "instruction = 3", "state = 'settled'", "attempt = 0", "first_sent = NULL"),
        "DELETE FROM state WHERE instruction = 3",
    ],
    UNLIKE_FACTS.format(2, 3, "b1"): update(
        "state", "instruction = 2", "generation = 7", "possible_duplicate_of = 1", "order_id = 'ORD-3'"
    ),
    UNLIKE_FACTS.format(6, 2, "b2"): ["UPDATE state SET inherited_attempts = 0 WHERE inherited_attempts = 1"],
    UNLIKE_FACTS.format(4, 5, "b1"): update("state", "instruction = 4", "intent = 2", "fact = intent"),
    UNLIKE_FACTS.format(5, 6, "b1"): update(
        "state", "instruction = 5", "state = 'paid', attempt = 1", "batch = 2", "country = 'UG'", "minor = minor + 1"
    ),
    "The order ids of instruction 2 do not match its facts.": [
        "DELETE FROM order_id WHERE order_id = 'ORD-3-r2'",
        *update("order_id", "order_id = 'ORD-3-r2'", "instruction = 4", "operation = 'payin'"),
    ],
    "The order ids of instruction 5 do not match its facts.": ["INSERT INTO order_id VALUES ('payout', 'ORD-77', 5)"],
    "The stored reply of fact 9 was changed.": [
        "INSERT INTO reply SELECT max(number), instruction, x'7b7d', x'7b7d' FROM fact WHERE kind = 'rejected'"
    ],
    "The stored reply of fact 2 was changed.": [
        "INSERT INTO reply SELECT min(number), instruction, x'7b7d', x'7b7d' FROM fact WHERE kind = 'intended'"
    ],
    "The stored reply of fact 6 was changed.": [
        "UPDATE reply SET body = x'7b7d'",
        "UPDATE reply SET head = x'7b7d'",
        "UPDATE reply SET instruction = 2",
    ],
    "A reply is missing from the journal, although a fact refers to it.": ["DELETE FROM reply"],
    "The index of payees does not match the instructions.": [
        (
            "INSERT INTO payment_words (payment_words, rowid, words) SELECT 'delete', number, words FROM "
            "payment_text WHERE number = 5"
        ),
        PAYEE_WORD,
        "INSERT INTO payment_words (payment_words) VALUES ('delete-all')",
    ],
    "The index of spellings does not match the order ids.": [
        "DELETE FROM order_id_spelling",
        "UPDATE order_id_spelling SET spelling = 'jose-1'",
        "INSERT INTO order_id_spelling VALUES ('payout', 'x', 'X')",
    ],
    "The batches' references do not match their order ids.": [
        "DELETE FROM batch_reference",
        "UPDATE batch_reference SET reference = 'jose'",
    ],
    WRONG_HASH.format(1): [
        "UPDATE identity SET journal_id = 'ffff'",
        "UPDATE identity SET endpoint = 'https://elsewhere.example/1'",
        "UPDATE identity SET consumer_key_sha256 = ''",
    ],
    "The journal {path} does not have a valid creation time.": [
        "UPDATE migration SET applied_at = '2026-11-20T08:00:00.000Z' WHERE version = 1",
        "DELETE FROM migration WHERE version = 1",
    ],
    "The journal {path} does not have valid upgrade times.": [
        "INSERT INTO migration VALUES (2, '2026-11-20T08:00:00.000Z')"
    ],
}
"""The message of `verify` for each change. Without it, another check could hide one that does nothing."""


@pytest.mark.share(6)
@pytest.mark.parametrize(
    ("sentence", "change"), [(sentence, change) for sentence, changes in FOUND.items() for change in changes]
)
def test_verify_names_changed_fact_or_row(full_journal: Path, sentence: str, change: str) -> None:
    with closing(tamper(full_journal, change)) as connection, pytest.raises(JournalCorrupt) as raised:
        verify(connection, full_journal)
    assert raised.value.message == sentence.format(path=full_journal)


@pytest.fixture
def _force_two_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every journal long enough for a second process."""
    monkeypatch.setattr("paygw_batch.journal.sqlite.verify._PARALLEL_FROM_FACTS", 1)


@pytest.mark.share(3)
@pytest.mark.usefixtures("_force_two_processes")
@pytest.mark.parametrize("change", [FACT_TIME, PAYEE, STATE, PAYEE_WORD])
def test_verify_finds_same_damage_with_two_processes(full_journal: Path, change: str) -> None:
    with closing(tamper(full_journal, change)) as connection:
        with pytest.raises(JournalCorrupt) as alone:
            verify(connection, full_journal)
        with pytest.raises(JournalCorrupt) as raised:
            verify(connection, full_journal, in_parallel=True)
    assert str(raised.value) == str(alone.value)


@pytest.mark.usefixtures("_force_two_processes")
@pytest.mark.parametrize("program", [None, ["/bin/false"], [sys.executable, "-c", "print()"]])
def test_single_process_verifies_whole_journal(
    full_journal: Path, monkeypatch: pytest.MonkeyPatch, program: list[str] | None
) -> None:
    monkeypatch.setattr("paygw_batch.journal.sqlite.verify.python_command", lambda _: program)
    with closing(tamper(full_journal, PAYEE)) as connection, pytest.raises(JournalCorrupt):
        verify(connection, full_journal, in_parallel=True)


@pytest.mark.usefixtures("_force_two_processes")
def test_verify_accepts_untouched_journal(full_journal: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paygw_batch.journal.replay._ROWS_PER_REPORT", 2)
    progress: list[tuple[int, int]] = []
    with closing(read_journal_at(folder)) as reader:
        counts = reader.verify(lambda done, rows: progress.append((done, rows)))
        monkeypatch.setattr("paygw_batch.journal.sqlite.verify._PARALLEL_FROM_FACTS", 10**9)
        assert counts == reader.verify(), "with one process as with two"
    assert progress == [(2, 8), (4, 8), (6, 8), (8, 8)]
    assert [counts[name] for name in ("contradictions", "replaced", "in_doubt")] == [1, 1, 1]
    with closing(apsw.Connection(str(full_journal))) as connection:
        check_tail(connection)


@pytest.mark.parametrize(
    "change",
    [
        "DROP TRIGGER fact_is_never_changed",
        "CREATE TRIGGER extra AFTER INSERT ON fact BEGIN DELETE FROM state; END",
        "CREATE TABLE extra (a)",
        "DROP INDEX state_counted",
        "DROP VIEW covered",
    ],
)
def test_altered_tables_are_refused_on_opening(full_journal: Path, folder: Path, change: str) -> None:
    with closing(apsw.Connection(str(full_journal))) as connection:
        connection.execute(change)
    with pytest.raises(JournalCorrupt, match="was altered"):
        open_journal_at(folder)


@pytest.mark.share(5)
@pytest.mark.parametrize(
    "statement",
    [
        *("UPDATE fact SET at = at", "DELETE FROM fact", "REPLACE INTO fact SELECT * FROM fact"),
        *("UPDATE instruction SET amount = '1'", "DELETE FROM instruction"),
        *("UPDATE page SET content = x''", "DELETE FROM page", "DELETE FROM known"),
        *("DELETE FROM order_id", "DELETE FROM batch", "UPDATE said SET text = ''"),
        *("DELETE FROM said", "DELETE FROM contradiction", "UPDATE move SET after = 'ready'"),
        *("DELETE FROM state", "UPDATE state SET minor = 1"),
    ],
)
def test_append_only_tables_refuse_changes(full_journal: Path, folder: Path, statement: str) -> None:
    del full_journal
    with closing(open_journal_at(folder)) as journal, pytest.raises(apsw.ConstraintError, match="never"):
        journal._connection.execute(statement)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE fact SET order_id = 'ORD-9' WHERE number = 2",
        FACT_DROPPED,
        "UPDATE state SET state = 'ready' WHERE instruction = 6",
    ],
)
def test_opening_finds_damage_near_chain_end(full_journal: Path, folder: Path, change: str) -> None:
    tamper(full_journal, change).close()
    with pytest.raises(JournalCorrupt):
        open_journal_at(folder)
    with pytest.raises(JournalCorrupt):
        read_journal_at(folder)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE state SET state = 'ready' WHERE instruction = 1",
        "UPDATE state SET state = 'ready', attempt = 0 WHERE instruction = 1",
        "UPDATE state SET state = 'ready', fact = intent WHERE instruction = 1",
        "UPDATE state SET state = 'ready', attempt = 0, intent = NULL, fact = NULL WHERE instruction = 1",
    ],
)
def test_row_contradicting_newest_fact_is_not_sent(folder: Path, change: str) -> None:
    """This includes a fact that is too old to be checked when the journal is opened."""
    with closing(open_journal_at(folder)) as journal:
        open_sheet(journal, "b1", 300)
        send(journal, 1, OutcomeKind.PAID)
    tamper(journal_path(folder), change).close()
    with closing(open_journal_at(folder)) as journal, pytest.raises(JournalCorrupt, match="nstruction 1 "):
        journal.due(1, after_row=0, limit=10)


def test_verify_finds_forged_fact_with_valid_hash(full_journal: Path) -> None:
    with closing(apsw.Connection(str(full_journal))) as connection:
        connection.execute("DROP TRIGGER fact_moves")
        ((number, digest),) = [*connection.execute("SELECT number, hash FROM fact ORDER BY number DESC LIMIT 1")]
        forged = Entry(4, 1, Concluded(Outcome(OutcomeKind.PAID)), AT)
        ((line,), _) = chain_facts([forged], Link(number, digest), lambda: bytes(16))
        write_lines(connection, "INSERT INTO fact {lines}", [line])
        with pytest.raises(JournalCorrupt, match="nstruction 4"):
            verify_facts(connection, ignore_progress)
        with pytest.raises(JournalCorrupt, match="nstruction 4"):
            check_tail(connection)


def test_flipped_byte_is_detected_or_harmless(full_journal: Path, folder: Path) -> None:
    """A sample of the bytes with content is tried, because most of a young journal is empty."""
    whole, copy = full_journal.read_bytes(), folder / "flipped.sqlite3"
    with closing(apsw.Connection(str(full_journal))) as connection:
        before = dump(connection)
    missed = 0
    chance = random.Random(20261121)  # noqa: S311 - the same bytes every time
    for offset in chance.sample([offset for offset, byte in enumerate(whole) if byte], 250):
        shutil.copy(full_journal, copy)
        with copy.open("r+b") as stream:
            stream.seek(offset)
            stream.write(bytes([whole[offset] ^ 0x10]))
        try:
            with closing(apsw.Connection(str(copy), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
                verify(connection, copy)
                assert dump(connection) == before
                missed += 1
        except (JournalError, apsw.Error):
            pass
    assert missed < 100


def dump(connection: apsw.Connection) -> list[object]:
    """Return all content except `home` and the times of upgrades."""
    tables = ["batch", "page", "instruction", "known", "order_id", "state", "fact", "said", "contradiction", "move"]
    queries = [f"SELECT * FROM {table} ORDER BY 1, 2" for table in tables]  # noqa: S608 - names written above
    queries.append("SELECT journal_id, endpoint, created_at, consumer_key_sha256 FROM identity")
    queries.append("SELECT version, CASE version WHEN 1 THEN applied_at END FROM migration ORDER BY 1")
    return [connection.execute(query).fetchall() for query in queries]


def test_truncated_file_is_refused(full_journal: Path, folder: Path) -> None:
    whole = full_journal.read_bytes()
    last_byte = len(whole.rstrip(b"\0")) - 1  # cutting off the empty end of the last page loses nothing
    for size in (1, 99, 100, 4096, len(whole) // 2, len(whole) - 4096, last_byte):
        full_journal.write_bytes(whole[:size])
        with pytest.raises(JournalError):
            open_journal_at(folder).verify()
