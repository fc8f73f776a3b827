"""Adopting a journal: a person confirms a copy as the newest, after all objections are shown."""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import apsw
import pytest

from paygw_batch.core.endpoint_identity import EndpointIdentity
from paygw_batch.core.lifecycle import Basis, Resolution, State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import JournalCorrupt, JournalError, JournalMissing, JournalTooOld, SentLogDamaged
from paygw_batch.journal import AcceptedRows
from paygw_batch.journal.adopt import Adoption
from paygw_batch.journal.file_location import journal_exists
from paygw_batch.journal.known_journals import KnownJournal, KnownJournals, journal_list_sentence
from paygw_batch.journal.sent_log import RUN, newest_line
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal
from paygw_batch.journal.values import Amendment, DueRow, Withdrawal
from tests.support.journal_rows import (
    AT,
    ENDPOINT,
    at,
    copy_journal,
    create_journal_at,
    due_rows,
    file_location,
    intent,
    journal_path,
    new_instruction,
    open_journal_at,
    open_sheet,
    outcome_of,
    put_back,
    resolved,
    send,
    tamper,
)

RENAMED = EndpointIdentity.create("pay.example", "1234", "merchant")
"""The same endpoint and consumer key at another host."""
OTHER_ID = "f" * 32


def open_adoption(folder: Path, path: Path | None = None, *, beside: str | None = None, **changes: Any) -> Adoption:
    return Adoption(replace(file_location(folder, path), **{"now": lambda: at(9), **changes}), beside=beside)


def adopt(folder: Path, path: Path | None = None, **changes: Any) -> None:
    with closing(open_adoption(folder, path, **changes)) as found:
        found.carry_out("amina")


def make_unknown_journal(folder: Path, *, sent: bool = True) -> str:
    """Create a journal, remove it from the known ones, and return its id."""
    with closing(open_journal_at(folder)) as journal:
        if sent:
            open_sheet(journal)
            send(journal, 1, OutcomeKind.PAID)
        journal_id = journal.head().journal_id
    shutil.rmtree(folder / "journals")
    return journal_id


def known_journals(folder: Path) -> KnownJournals:
    return KnownJournals(folder / "journals")


def remember_journals(folder: Path, *entries: KnownJournal) -> None:
    with known_journals(folder).hold_lock(AT):
        for entry in entries:
            known_journals(folder).write(entry)


def read_column(path: Path, query: str) -> list[Any]:
    with closing(apsw.Connection(str(path))) as connection:
        return [line[0] for line in connection.execute(query)]


def error_message(attempt: Callable[[], object], kind: type[JournalError] = JournalError) -> tuple[str, str]:
    with pytest.raises(kind) as raised:
        attempt()
    assert type(raised.value) is kind
    return raised.value.message, raised.value.hint


def test_adopted_journal_stays_known(folder: Path) -> None:
    journal_id, path = make_unknown_journal(folder), journal_path(folder)
    before = path.read_bytes()
    with closing(open_adoption(folder)) as found:
        assert found.is_needed
        assert (found.journal_id, found.hosts, found.other_journals) == (journal_id, ["gateway.example"], [])
        assert (found.last_fact(), found.counts["facts"]) == ((7, AT), 7)
        assert path.read_bytes() == before
        assert not (folder / "journals").exists(), "nothing is written until it is confirmed"
        found.carry_out("amina")
    newest = newest_line(known_journals(folder).folder(journal_id), RUN)
    assert newest is not None
    assert newest.number == 8
    names = (EndpointIdentity("gateway.example", "1234", ENDPOINT.consumer_key_sha256),)
    assert list(known_journals(folder).entries()) == [KnownJournal(journal_id, names, str(path), AT)]
    query = "SELECT by || ' ' || at || ' ' || number FROM fact WHERE kind = 'adopted'"
    assert read_column(path, query) == [f"amina {at(9)} 8"]
    with closing(open_journal_at(folder)) as journal:
        assert journal.notes == ()
        journal.verify()
    with closing(open_adoption(folder)) as found:
        assert not found.is_needed


def empty_folder(path: Path) -> None:
    for file in path.parent.iterdir():
        file.unlink()
    path.touch(mode=0o600)


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (Path.unlink, "There is no journal at {}."),
        (lambda path: shutil.rmtree(path.parent), "There is no journal at {}."),
        (empty_folder, "The journal {} is empty."),
    ],
)
def test_missing_or_empty_journal_cannot_be_adopted(folder: Path, spoil: Callable[[Path], None], sentence: str) -> None:
    make_unknown_journal(folder)
    path = journal_path(folder)
    spoil(path)
    found = error_message(lambda: open_adoption(folder), JournalMissing)
    assert found == (sentence.format(path), "Specify its path with --journal.")


def test_adoption_remembers_renamed_endpoint(folder: Path) -> None:
    with closing(open_journal_at(folder)) as journal:
        journal_id = journal.head().journal_id
    path = journal_path(folder)
    message, hint = error_message(lambda: open_journal_at(folder, endpoint=RENAMED))
    assert message == (
        f"The journal {path} belongs to the same merchant at another gateway host. It was created for "
        "gateway.example, but the configuration has pay.example."
    )
    assert hint == (
        "If both names belong to the same gateway, confirm it with `paygw-batch journal adopt` (a journal in "
        "PostgreSQL keeps the host it was created with). If not, correct gateway.base_url, or use a separate journal "
        "with [journal] path or url, or --journal."
    )
    with closing(open_adoption(folder, endpoint=RENAMED)) as found:
        assert found.is_needed
        found.carry_out("amina")
    with closing(open_adoption(folder)) as found:
        assert (found.is_needed, found.hosts) == (False, ["gateway.example", "pay.example"])
    for endpoint in (ENDPOINT, RENAMED):
        open_journal_at(folder, endpoint=endpoint).close()
    (entry,) = known_journals(folder).entries()
    assert (entry.journal_id, set(entry.names) >= {ENDPOINT, RENAMED}) == (journal_id, True)


def test_adoption_keeps_registered_names(folder: Path) -> None:
    remember_journals(folder, KnownJournal(make_unknown_journal(folder), (RENAMED,), "/elsewhere", AT))
    adopt(folder)
    (entry,) = known_journals(folder).entries()
    assert (set(entry.names) >= {ENDPOINT, RENAMED}, entry.path) == (True, str(journal_path(folder)))


def test_journal_of_another_merchant_is_not_adopted(folder: Path) -> None:
    make_unknown_journal(folder)
    other = EndpointIdentity.create("gateway.example", "9", "other")
    assert error_message(lambda: open_adoption(folder, endpoint=other)) == (
        f"The journal {journal_path(folder)} belongs to another merchant, or to another gateway.",
        (
            "Use a separate journal for each merchant at a gateway, with [journal] path or url, or --journal. A "
            "merchant is recognised by any two of these: host, endpoint id and consumer key."
        ),
    )


def test_adoption_must_name_newest_journal_of_endpoint(folder: Path) -> None:
    make_unknown_journal(folder)
    older, newest = "a" * 32, "b" * 32
    remember_journals(folder, *(KnownJournal(one * 32, (ENDPOINT,), f"/{one}", at(n)) for n, one in enumerate("ab")))
    for beside in (None, older):
        message, hint = error_message(partial(open_adoption, folder, beside=beside))
        assert message == (
            "This merchant already has a journal. This user's state directory lists other journals of the same "
            f"merchant: {older} at /a, {newest} at /b."
        )
        assert f"`paygw-batch journal adopt --beside {newest}`" in hint
    with closing(open_adoption(folder, beside=newest)) as found:
        assert [one.journal_id for one in found.other_journals] == [older, newest]
        found.carry_out("amina")
    open_journal_at(folder).close()


def test_newly_created_journal_stops_adoption(folder: Path) -> None:
    make_unknown_journal(folder)
    with closing(open_adoption(folder)) as found:
        remember_journals(folder, KnownJournal(OTHER_ID, (RENAMED,), "/other.sqlite3", AT))
        message, _ = error_message(lambda: found.carry_out("amina"))
    assert OTHER_ID in message
    assert read_column(journal_path(folder), "SELECT count(*) FROM fact WHERE kind = 'adopted'") == [0]


def test_copy_is_not_adopted_while_original_exists(folder: Path) -> None:
    make_unknown_journal(folder)
    path, copy = journal_path(folder), journal_path(folder).with_name("copy.sqlite3")
    shutil.copy(path, copy)
    assert error_message(lambda: open_adoption(folder, copy), JournalTooOld) == (
        f"This is a copy of the journal {path}, which still exists. Sending from both could pay rows twice.",
        f"Use {path}. To move a journal, move its file instead of copying it.",
    )
    path.unlink()
    adopt(folder, copy)
    assert read_column(copy, "SELECT home FROM identity") == [str(copy)]


@contextmanager
def losing_writes(folder: Path) -> Iterator[SqliteJournal]:
    """Yield the journal, then put back a copy from before the block, so that its writes are lost."""
    copy = copy_journal(folder)
    with closing(open_journal_at(folder)) as journal:
        yield journal
    put_back(folder, copy)


def open_first_sheet(folder: Path, rows: int = 1) -> Sequence[DueRow]:
    with closing(open_journal_at(folder)) as journal:
        open_sheet(journal, new=rows)
        return due_rows(journal, 1)


def read_due(folder: Path, batch: int = 1) -> list[int]:
    with closing(open_journal_at(folder)) as journal:
        return [due.row for due in due_rows(journal, batch)]


def adopt_older_copy(folder: Path) -> AcceptedRows:
    """Replace the lost journal with an older copy, and adopt it."""
    with pytest.raises(JournalTooOld):
        open_journal_at(folder)
    with closing(open_adoption(folder)) as found:
        assert found.is_needed
        rows = found.carry_out("amina")
    with closing(open_journal_at(folder)) as journal:
        journal.verify()
    with closing(open_adoption(folder)) as found:
        assert not found.is_needed
    return rows


def test_adoption_puts_only_sent_rows_in_doubt(folder: Path) -> None:
    with closing(open_journal_at(folder)) as journal:
        open_sheet(journal, new=6)
        first, second, third, fourth, *_ = due_rows(journal, 1)
        journal.append([intent(first, at(1))])
    with losing_writes(folder) as journal:
        journal.append([outcome_of(first.number, 1, OutcomeKind.PAID, at(2))])
        for due in (second, third, fourth):
            journal.append([intent(due, at(3))])
        journal.append([outcome_of(second.number, 1, OutcomeKind.PAID, at(4))])
        journal.append([outcome_of(third.number, 1, OutcomeKind.NOT_SENT, at(4))])
    rows = adopt_older_copy(folder)
    assert (rows.in_doubt, rows.held_order_ids, rows.unknown_order_ids, rows.contradictions) == (2, [], [], [])
    with closing(open_journal_at(folder)) as journal:
        assert journal.mark_interrupted(at(10)) == 1  # in flight when the copy was made
        found = [(row.state, row.sent_orderid, row.intended_at) for row in journal.rows(1)]
        assert found[1] == (State.IN_DOUBT, "ORD-3", at(3))
        assert [state for state, *_ in found] == [
            *(State.IN_DOUBT, State.IN_DOUBT, State.READY, State.IN_DOUBT, State.READY, State.READY)
        ]
        assert [due.row for due in due_rows(journal, 1)] == [4, 6, 7]


def test_row_with_lost_decision_is_held(folder: Path) -> None:
    with closing(open_journal_at(folder)) as journal:
        open_sheet(journal, new=2)
        (first, second) = due_rows(journal, 1)
        journal.append([intent(first, at(1)), intent(second, at(1))])
        journal.append([outcome_of(first.number, 1, OutcomeKind.REJECTED, at(2))])
        journal.append([outcome_of(second.number, 1, OutcomeKind.UNKNOWN, at(2))])
    with losing_writes(folder) as journal:
        journal.settle([resolved(second.number, 1, Resolution.NOT_RECEIVED, at(3))])
        journal.release(1, None, suffix=True, by="amina", at=at(3))
        for due in due_rows(journal, 1):
            journal.append([intent(due, at(4))])
    rows = adopt_older_copy(folder)
    assert (rows.in_doubt, rows.held_order_ids) == (0, ["ORD-2-r2", "ORD-3"])
    with closing(open_journal_at(folder)) as journal:
        journal.settle([resolved(second.number, 1, Resolution.NOT_RECEIVED, at(10))])
        journal.release(1, None, suffix=True, by="amina", at=at(10))
        assert [row.state for row in journal.rows(1)] == [State.READY] * 2
        assert not due_rows(journal, 1), "held, whatever is decided about the attempts that the journal knows"
        holds = [(hold.last_sent_at, *hold.order_ids) for hold in journal.holds(1).values()]
        assert holds == [(at(9), "ORD-2-r2"), (at(9), "ORD-3")]
        assert [message.row for message in journal.messages(1).waiting] == [2, 3]
        word = resolved(first.number, 1, Resolution.REJECTED, at(11), Basis.PERSON)
        journal.settle([word, resolved(second.number, 1, Resolution.PAID, at(11))])
        (rejected, paid) = journal.rows(1)
        assert (rejected.state, rejected.quarantined_since) == (State.REJECTED, at(9))
        assert paid.state is State.PAID


def test_two_lost_attempts_hold_their_row(folder: Path) -> None:
    """A rejection of the first attempt without a time must not settle the second."""
    open_first_sheet(folder)
    with losing_writes(folder) as journal:
        send(journal, 1, OutcomeKind.REJECTED, at(1))
        journal.release(1, None, suffix=False, by="amina", at=at(3))
        journal.append([intent(due_rows(journal, 1)[0], at(4))])
    rows = adopt_older_copy(folder)
    assert (rows.in_doubt, rows.held_order_ids) == (0, ["ORD-2"])
    assert read_due(folder) == []


def test_unsent_attempt_does_not_cancel_later_attempt(folder: Path) -> None:
    open_first_sheet(folder)
    copy = copy_journal(folder)
    for kind in (OutcomeKind.NOT_SENT, OutcomeKind.PAID):
        with closing(open_journal_at(folder)) as journal:
            send(journal, 1, kind, at(1))
        put_back(folder, copy)
        rows = adopt_older_copy(folder)
    assert rows.in_doubt == 1
    assert read_due(folder) == []


def test_adoption_holds_orders_of_lost_batches(folder: Path) -> None:
    """Both batches had the same number in the journal, one after the other."""
    open_journal_at(folder).close()
    copy = copy_journal(folder)
    for orders in (["Órd-2", "ORD-3", "ORD-4"], ["ORD-D", "ORD-3-r2", "ORD-4"]):
        with closing(open_journal_at(folder)) as journal:
            open_sheet(journal, new=[new_instruction(row, order) for row, order in enumerate(orders, 2)])
            journal.append([intent(due, at(1)) for due in due_rows(journal, 1)[:-1]])
        put_back(folder, copy)
        rows = adopt_older_copy(folder)
    assert rows.unknown_order_ids == ["ORD-3", "ORD-3-r2", "ORD-D", "Órd-2"]
    with closing(open_journal_at(folder)) as journal:
        orders = ["órd-2", "ord-3", "ORD-4", "ORD-D"]
        open_sheet(journal, new=[new_instruction(row, order) for row, order in enumerate(orders, 2)])
        assert [due.row for due in due_rows(journal, 1)] == [4]
        orders_by_row = {row: hold.order_ids for row, hold in journal.holds(1).items()}
        assert orders_by_row == {2: ("Órd-2",), 3: ("ORD-3", "ORD-3-r2"), 5: ("ORD-D",)}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_bytes(b"x" * 4096),
        lambda path: path.write_bytes(
            b"\n".join(line for number, line in enumerate(path.read_bytes().split(b"\n")) if number != 2)
        ),
    ],
)
def test_older_copy_needs_complete_log_for_adoption(folder: Path, spoil: Callable[[Path], object]) -> None:
    open_first_sheet(folder, rows=3)
    copy = copy_journal(folder)
    with losing_writes(folder) as journal:
        for due in due_rows(journal, 1):
            journal.append([intent(due, at(1))])
    (path,) = (folder / "journals").glob(f"*/{RUN}.1")
    spoil(path)
    error_message(lambda: open_adoption(folder), SentLogDamaged)
    path.unlink()  # a person who has asked the gateway
    adopt(folder)
    with closing(open_journal_at(folder)) as journal:
        send(journal, 1, OutcomeKind.PAID)
    put_back(folder, copy)  # its missing attempts began before the log
    error_message(lambda: open_adoption(folder), SentLogDamaged)


def test_row_is_held_despite_earlier_decision(folder: Path) -> None:
    with closing(open_journal_at(folder)) as journal:
        open_sheet(journal, new=1)
        send(journal, 1, OutcomeKind.REJECTED, at(1))
    with losing_writes(folder) as journal:
        journal.release(1, None, suffix=True, by="amina", at=at(2))
        send(journal, 1, OutcomeKind.PAID, at(2))
    assert adopt_older_copy(folder).held_order_ids == ["ORD-2-r2"]
    with closing(open_journal_at(folder)) as journal:
        journal.release(1, None, suffix=False, by="amina", at=at(10))
        journal.settle([resolved(1, 1, Resolution.REJECTED, at(10))])
    with losing_writes(folder) as journal:
        open_sheet(journal, "b2", new=[new_instruction(2, amount="9.00")], amendments=[Amendment(2, 1)])
        send(journal, 2, OutcomeKind.PAID, at(11))
    adopt_older_copy(folder)
    with closing(open_journal_at(folder)) as journal:
        journal.release(1, None, suffix=True, by="amina", at=at(12))
        assert not due_rows(journal, 1)


def test_lost_attempt_of_replaced_row_holds_new_row(folder: Path) -> None:
    (due,) = open_first_sheet(folder)
    first = copy_journal(folder)
    with closing(open_journal_at(folder)) as journal:
        new = [new_instruction(2, amount="9.00")]
        open_sheet(journal, "b2", new=new, amendments=[Amendment(2, 1)])
    second = copy_journal(folder)
    put_back(folder, first)
    adopt_older_copy(folder)
    with closing(open_journal_at(folder)) as journal:
        journal.append([intent(due, at(3))])
    put_back(folder, second)  # it turns up again
    assert adopt_older_copy(folder).unknown_order_ids == ["ORD-2"]
    assert read_due(folder, 2) == []


def test_lost_attempt_holds_row_in_doubt(folder: Path) -> None:
    (due,) = open_first_sheet(folder)
    first = copy_journal(folder)
    with closing(open_journal_at(folder)) as journal:
        journal.append([intent(due, at(1)), outcome_of(1, 1, OutcomeKind.UNKNOWN, at(1))])
    second = copy_journal(folder)
    put_back(folder, first)
    assert adopt_older_copy(folder).in_doubt == 1
    with closing(open_journal_at(folder)) as journal:
        journal.settle([resolved(1, 1, Resolution.NOT_RECEIVED, at(10))])
        journal.append([intent(due_rows(journal, 1)[0], at(10))])
    put_back(folder, second)
    assert adopt_older_copy(folder).held_order_ids == ["ORD-2"]


def test_replaced_known_journal_is_refused_until_adopted(folder: Path) -> None:
    with closing(open_journal_at(folder)) as journal:
        open_sheet(journal)
        journal_id = journal.head().journal_id
    other = journal_path(folder).with_name("other.sqlite3")
    assert file_location(folder, other).create("a test", beside=journal_id) is not None
    with closing(file_location(folder, other).open_to_write("a test")) as journal:
        open_sheet(journal)
    journal_path(folder).unlink()
    other.rename(journal_path(folder))
    for open_it in (partial(open_journal_at, folder), lambda: file_location(folder).open_to_read()):
        error_message(open_it, JournalTooOld)
    with closing(open_adoption(folder, beside=journal_id)) as found:
        found.carry_out("amina")
    assert {entry.journal_id for entry in known_journals(folder).entries() if entry.is_lost} == {journal_id}
    open_journal_at(folder).close()


def test_adoption_lists_row_paid_by_other_attempt(folder: Path) -> None:
    open_first_sheet(folder)
    with losing_writes(folder) as journal:
        journal.append([intent(due_rows(journal, 1)[0], at(1))])
    with closing(open_adoption(folder)) as found:
        assert found.loss.commits == 1
    kept = {path: path.read_bytes() for path in (folder / "journals").glob(f"*/{RUN}.1")}
    for path in kept:
        path.unlink()
    adopt(folder)  # without a sent log
    with closing(open_journal_at(folder)) as journal:
        send(journal, 1, OutcomeKind.PAID)
    for path, content in kept.items():
        path.write_bytes(content)
    with closing(open_adoption(folder)) as found:
        assert found.carry_out("amina").contradictions == ["ORD-2"]


def test_interrupted_adoption_can_be_repeated(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_first_sheet(folder, rows=3)
    with losing_writes(folder) as journal:
        for due in due_rows(journal, 1)[:2]:
            journal.append([intent(due, at(1))])
        file_location(folder).withdraw(Withdrawal("1" * 64, "cleo", "{}", AT))  # lost as well
    with monkeypatch.context() as cut:
        cut.setattr(KnownJournals, "write", Mock(side_effect=KeyboardInterrupt))
        with closing(open_adoption(folder)) as found, pytest.raises(KeyboardInterrupt):
            found.carry_out("amina")
    assert adopt_older_copy(folder).in_doubt == 2
    assert read_column(journal_path(folder), "SELECT count(*) FROM fact WHERE kind = 'intended'") == [2]


def test_copy_of_moved_journal_is_not_adopted(folder: Path) -> None:
    with closing(open_journal_at(folder)) as journal:
        open_sheet(journal)
        journal_id = journal.head().journal_id
    remember_journals(folder, KnownJournal(journal_id, (ENDPOINT,), "paygw on db.example", AT))
    for attempt in (partial(open_journal_at, folder), partial(open_adoption, folder)):
        message, hint = error_message(attempt, JournalTooOld)
        assert message == "This is a copy of a journal that was moved to the database paygw on db.example."
        assert "[journal] url" in hint


def change_schema(path: Path, statement: str) -> None:
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute(statement)


def overwrite_page(path: Path) -> None:
    (page,) = read_column(path, "SELECT rootpage FROM sqlite_schema WHERE name = 'identity'")
    (size,) = read_column(path, "PRAGMA page_size")
    content = bytearray(path.read_bytes())
    content[(page - 1) * size : page * size] = b"\xa5" * size
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("spoil", "kind", "sentence"),
    [
        (
            lambda path: tamper(path, "UPDATE fact SET hash = zeroblob(32) WHERE number = 2").close(),
            *(JournalCorrupt, "Fact 2 or the one before it was changed: its hash is wrong."),
        ),
        (overwrite_page, JournalCorrupt, "The journal {} is damaged: database disk image is malformed."),
        (
            lambda path: change_schema(path, "CREATE INDEX more ON fact (kind)"),
            *(JournalCorrupt, "The schema of the journal {} was altered: more."),
        ),
        (
            lambda path: change_schema(path, "DROP TABLE identity"),
            *(JournalError, "The journal {} cannot be read: no such table: identity."),
        ),
    ],
)
def test_damaged_journal_is_not_adopted(
    folder: Path, spoil: Callable[[Path], None], kind: type[JournalError], sentence: str
) -> None:
    make_unknown_journal(folder)
    path = journal_path(folder)
    spoil(path)
    assert error_message(lambda: open_adoption(folder), kind)[0] == sentence.format(path)


@pytest.mark.parametrize("ending", ["", "-wal", "-shm"])
def test_adopted_journal_files_must_be_private(folder: Path, ending: str) -> None:
    make_unknown_journal(folder)
    path = journal_path(folder).with_name(f"{journal_path(folder).name}{ending}")
    path.touch()
    path.chmod(0o644)
    message, hint = error_message(lambda: open_adoption(folder))
    assert message.startswith(f"Other users can read or change {path}")
    assert f"chmod 600 {path}" in hint


def test_journals_are_listed_oldest_first_by_endpoint(folder: Path) -> None:
    known = known_journals(folder)
    entries = [KnownJournal(letter * 32, (ENDPOINT,), f"/{letter}", at(9 - n)) for n, letter in enumerate("abc")]
    same_time = KnownJournal("0" * 32, (ENDPOINT,), "/0", at(9))
    other = KnownJournal("d" * 32, (EndpointIdentity.from_name("gateway.example/9"),), "/d", at(0))
    remember_journals(folder, *entries, same_time, other)
    assert [one.journal_id[0] for one in known.merchant_journals((ENDPOINT,))] == ["c", "b", "0", "a"]
    assert [one.journal_id[0] for one in known.merchant_journals((RENAMED,), except_id="b" * 32)] == ["c", "0", "a"]
    assert [entry.journal_id[0] for entry in known.entries()] == ["d", "c", "b", "0", "a"]
    assert (known.entry("d" * 32), known.entry("e" * 32)) == (other, None)
    for _ in range(2):  # a missing entry is removed
        known.remove(other)
    assert [entry.journal_id[0] for entry in known.entries()] == ["c", "b", "0", "a"]
    assert journal_list_sentence([]) == ""
    assert journal_list_sentence(entries[:1]) == (
        f" This user's state directory lists another journal of the same merchant: {'a' * 32} at /a."
    )


def test_unwritable_registry_folder_is_reported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = folder / "journals"
    kept.write_text("a file")
    message, hint = error_message(lambda: known_journals(folder).entries())
    assert message == f"{kept} cannot be read: Not a directory."
    assert hint.startswith("Nothing was sent. `paygw-batch doctor` shows")
    kept.unlink()
    kept.mkdir(mode=0o700)
    entry = KnownJournal(OTHER_ID, (ENDPOINT,), "/other.sqlite3", AT)
    for step in ("fsync", "open"):
        with monkeypatch.context() as failing:
            failing.setattr(os, step, Mock(side_effect=OSError(28, "No space left on device")))
            message, _ = error_message(partial(known_journals(folder).write, entry))
        assert message.endswith(": No space left on device.")
        assert str(kept / OTHER_ID) in message
        assert list(known_journals(folder).entries()) == []


def test_other_file_at_default_path_is_ignored(folder: Path) -> None:
    create_journal_at(folder)
    path = journal_path(folder)
    (entry,) = known_journals(folder).entries()
    shutil.rmtree(folder / "journals")
    (found,) = known_journals(folder).merchant_journals((ENDPOINT,))
    assert (found.journal_id, found.path, found.is_intended) == (entry.journal_id, str(path), False)
    tamper(path, "DELETE FROM identity").close()
    assert list(known_journals(folder).merchant_journals((ENDPOINT,))) == []
    path.write_text("no journal")
    assert list(known_journals(folder).merchant_journals((ENDPOINT,))) == []


def test_unreadable_file_counts_as_journal(folder: Path) -> None:
    create_journal_at(folder)
    path = journal_path(folder)
    with closing(open_journal_at(folder)) as journal:
        journal_id = journal.head().journal_id
    assert journal_exists(path, journal_id)
    assert not journal_exists(path, OTHER_ID)
    assert not journal_exists(path.with_name("none.sqlite3"), journal_id)
    path.write_text("no journal")
    assert journal_exists(path, journal_id)
    path.unlink()
    path.symlink_to(folder / "gone")
    assert journal_exists(path, journal_id)
