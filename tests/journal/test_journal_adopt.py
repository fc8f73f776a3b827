"""Adopting a journal: a person calls a copy the newest one, and everything that speaks against it is said first."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest

from paygw_batch.core.endpoint_identity import EndpointIdentity
from paygw_batch.core.lifecycle import Basis, Resolution, State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import JournalCorrupt, JournalError, JournalMissing, JournalWentBack, LeftDamaged
from paygw_batch.journal import AcceptedRows
from paygw_batch.journal.adopt import Adoption
from paygw_batch.journal.file_place import journal_exists
from paygw_batch.journal.known_journals import KnownJournal, KnownJournals, journal_list_sentence
from paygw_batch.journal.left import RUN, newest
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal
from paygw_batch.journal.values import Amendment, Withdrawal
from tests.support.journal_rows import (
    AT,
    ENDPOINT,
    all_due,
    at,
    file_place,
    intent,
    journal_path,
    make_at,
    new_instruction,
    open_at,
    open_sheet,
    outcome_of,
    resolved,
    send,
    tampered,
)

RENAMED = EndpointIdentity.of("pay.example", "1234", "merchant")
"""The same endpoint and consumer key at another host."""
OTHER_ID = "f" * 32


def adoption(place: Path, path: Path | None = None, *, beside: str | None = None, **changes: Any) -> Adoption:
    return Adoption(replace(file_place(place, path), **{"now": lambda: at(9), **changes}), beside=beside)


def adopted(place: Path, path: Path | None = None, **changes: Any) -> None:
    with closing(adoption(place, path, **changes)) as found:
        found.carry_out("amina")


def unknown(place: Path, *, sent: bool = True) -> str:
    """Make a journal that nobody knows any more; return its id."""
    with closing(open_at(place)) as journal:
        if sent:
            open_sheet(journal)
            send(journal, 1, OutcomeKind.PAID)
        journal_id = journal.head().journal_id
    shutil.rmtree(place / "journals")
    return journal_id


def known(place: Path) -> KnownJournals:
    return KnownJournals(place / "journals")


def remembered(place: Path, *entries: KnownJournal) -> None:
    """Write entries about journals that are known at a place."""
    with known(place).held(AT):
        for entry in entries:
            known(place).write(entry)


def column(path: Path, query: str) -> list[Any]:
    with closing(apsw.Connection(str(path))) as connection:
        return [line[0] for line in connection.execute(query)]


def said_of(attempt: Callable[[], object], kind: type[JournalError] = JournalError) -> tuple[str, str]:
    with pytest.raises(kind) as found:
        attempt()
    assert type(found.value) is kind
    return found.value.message, found.value.hint


def test_adopted_journal_stays_known(place: Path) -> None:
    journal_id, path = unknown(place), journal_path(place)
    with closing(adoption(place)) as found:
        assert found.is_needed
        assert (found.journal_id, found.names, found.others) == (journal_id, ["gateway.example"], [])
        assert found.last_fact() == (7, AT)
        assert found.counts["facts"] == 7
        found.carry_out("amina")
    seen = newest(known(place).folder(journal_id), RUN)
    assert seen is not None
    assert seen.number == 8
    names = (EndpointIdentity("gateway.example", "1234", ENDPOINT.consumer_key_sha256),)
    (entry,) = known(place).entries()
    assert entry == KnownJournal(journal_id, names, str(path), AT)
    adopted = "SELECT by || ' ' || at || ' ' || number FROM fact WHERE kind = 'adopted'"
    assert column(path, adopted) == [f"amina {at(9)} 8"]
    with closing(open_at(place)) as journal:
        assert journal.notes == ()
        journal.verify()
    with closing(adoption(place)) as found:
        assert not found.is_needed


def test_adoption_writes_nothing_until_confirmed(place: Path) -> None:
    unknown(place)
    path = journal_path(place)
    before = path.read_bytes()
    adoption(place).close()
    assert path.read_bytes() == before
    assert not (place / "journals").exists()


def test_journal_without_facts_shows_creation_time(place: Path) -> None:
    unknown(place, sent=False)
    with closing(adoption(place)) as found:
        assert found.last_fact() == (0, AT)


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: shutil.rmtree(path.parent)])
def test_missing_journal_cannot_be_adopted(place: Path, spoil: Callable[[Path], None]) -> None:
    unknown(place)
    path = journal_path(place)
    spoil(path)
    message, hint = said_of(lambda: adoption(place), JournalMissing)
    assert (message, hint) == (f"There is no journal at {path}.", "Name the file: --journal.")


def test_empty_file_is_not_adopted(place: Path) -> None:
    unknown(place)
    path = journal_path(place)
    for file in path.parent.iterdir():
        file.unlink()
    path.touch(mode=0o600)
    message, hint = said_of(lambda: adoption(place), JournalMissing)
    assert (message, hint) == (f"The journal {path} is empty.", "Name the file: --journal.")


def test_renamed_endpoint_is_adopted_and_remembered(place: Path) -> None:
    with closing(open_at(place)) as journal:
        journal_id = journal.head().journal_id
    path = journal_path(place)
    message, hint = said_of(lambda: open_at(place, endpoint=RENAMED))
    assert message == (
        f"The journal {path} belongs to the same merchant at another host: it has gateway.example, but the "
        "configuration has pay.example."
    )
    assert hint == (
        "If both names belong to one gateway, confirm it with `paygw-batch journal adopt`; a journal in PostgreSQL "
        "keeps the host it was made with. If not, correct gateway.base_url, or name a separate journal: [journal] path "
        "or url, or --journal."
    )
    with closing(adoption(place, endpoint=RENAMED)) as found:
        assert found.is_needed
        found.carry_out("amina")
    with closing(adoption(place)) as found:
        assert not found.is_needed
        assert found.names == ["gateway.example", "pay.example"]
    for endpoint in (ENDPOINT, RENAMED):
        open_at(place, endpoint=endpoint).close()
    (entry,) = known(place).entries()
    assert (entry.journal_id, set(entry.names) >= {ENDPOINT, RENAMED}) == (journal_id, True)


def test_registered_names_are_kept_on_adoption(place: Path) -> None:
    journal_id = unknown(place)
    remembered(place, KnownJournal(journal_id, (RENAMED,), "/elsewhere", AT))
    adopted(place)
    (entry,) = known(place).entries()
    assert RENAMED in entry.names
    assert ENDPOINT in entry.names
    assert entry.path == str(journal_path(place))


def test_a_journal_of_another_merchant_is_not_adopted(place: Path) -> None:
    unknown(place)
    message, hint = said_of(lambda: adoption(place, endpoint=EndpointIdentity.of("gateway.example", "9", "other")))
    assert message == f"The journal {journal_path(place)} belongs to another merchant, or to another gateway."
    assert hint == (
        "Name a separate journal for each merchant at a gateway: [journal] path or url, or --journal. A merchant is "
        "known again by two of host, endpoint id and consumer key."
    )


def test_adoption_must_name_newest_journal_of_endpoint(place: Path) -> None:
    unknown(place)
    entries = [KnownJournal(letter * 32, (ENDPOINT,), f"/{letter}.sqlite3", at(n)) for n, letter in enumerate("ab")]
    remembered(place, *entries)
    for beside in (None, "a" * 32):
        message, hint = said_of(lambda beside=beside: adoption(place, beside=beside))  # type: ignore[misc]  # mypy: lambda
        assert message == (
            "This merchant already has a journal. This user's state directory remembers other journals of the same "
            f"merchant: {'a' * 32} at /a.sqlite3, {'b' * 32} at /b.sqlite3."
        )
        assert f"`paygw-batch journal adopt --beside {'b' * 32}`" in hint
    with closing(adoption(place, beside="b" * 32)) as found:
        assert [one.journal_id for one in found.others] == ["a" * 32, "b" * 32]
        found.carry_out("amina")
    open_at(place).close()


def test_journal_made_meanwhile_stops_adoption(place: Path) -> None:
    unknown(place)
    with closing(adoption(place)) as found:
        remembered(place, KnownJournal(OTHER_ID, (RENAMED,), "/other.sqlite3", AT))
        message, _ = said_of(lambda: found.carry_out("amina"))
    assert OTHER_ID in message
    assert column(journal_path(place), "SELECT count(*) FROM fact WHERE kind = 'adopted'") == [0]


def test_known_journal_needs_no_adoption(place: Path) -> None:
    make_at(place)
    remembered(place, KnownJournal(OTHER_ID, (ENDPOINT,), "/other.sqlite3", AT))
    with closing(adoption(place)) as found:
        assert not found.is_needed
        assert [one.journal_id for one in found.others] == [OTHER_ID]


def test_copy_is_not_adopted_while_original_exists(place: Path) -> None:
    unknown(place)
    path, copy = journal_path(place), journal_path(place).with_name("copy.sqlite3")
    shutil.copy(path, copy)
    message, hint = said_of(lambda: adoption(place, copy), JournalWentBack)
    assert message == (
        f"This is a copy of the journal {path}, which still exists: sending from both could pay rows twice."
    )
    assert hint == f"Use {path}. To move a journal, move the file and leave none behind."
    path.unlink()
    adopted(place, copy)
    assert column(copy, "SELECT home FROM identity") == [str(copy)]


# An older copy: what left since it was made


def copied(place: Path) -> Path:
    name = f"copy-{len(list(place.glob('copy-*')))}"
    return Path(shutil.copytree(journal_path(place).parent, place / name))


def put_back(place: Path, copy: Path) -> None:
    shutil.rmtree(journal_path(place).parent)
    shutil.copytree(copy, journal_path(place).parent)


@contextmanager
def lost(place: Path) -> Iterator[SqliteJournal]:
    """Open the journal; what the block writes is lost, because a copy from before it is put back."""
    copy = copied(place)
    with closing(open_at(place)) as journal:
        yield journal
    put_back(place, copy)


def relapsed(place: Path) -> AcceptedRows:
    """Adopt an older copy in the place of the journal, which is lost for good."""
    with pytest.raises(JournalWentBack):
        open_at(place)
    with closing(adoption(place)) as found:
        assert found.is_needed
        rows = found.carry_out("amina")
    with closing(open_at(place)) as journal:
        journal.verify()
    with closing(adoption(place)) as found:
        assert not found.is_needed
    return rows


def test_adopted_copy_puts_exactly_sent_rows_in_doubt(place: Path) -> None:
    with closing(open_at(place)) as journal:
        open_sheet(journal, new=6)
        first, second, third, fourth, *_ = all_due(journal, 1)
        journal.append([intent(first, at(1))])
    with lost(place) as journal:
        journal.append([outcome_of(first.number, 1, OutcomeKind.PAID, at(2))])
        for due in (second, third, fourth):
            journal.append([intent(due, at(3))])
        journal.append([outcome_of(second.number, 1, OutcomeKind.PAID, at(4))])
        journal.append([outcome_of(third.number, 1, OutcomeKind.NOT_SENT, at(4))])
    rows = relapsed(place)
    assert (rows.in_doubt, rows.held, rows.unknown_orders, rows.contradictions) == (2, 0, [], [])
    with closing(open_at(place)) as journal:
        assert journal.mark_interrupted(at(10)) == 1  # in flight when the copy was made
        found = [(row.state, row.sent_orderid, row.intended_at) for row in journal.rows(1)]
        assert found[1] == (State.IN_DOUBT, "ORD-3", at(3))
        assert [state for state, *_ in found] == [
            *(State.IN_DOUBT, State.IN_DOUBT, State.READY, State.IN_DOUBT, State.READY, State.READY)
        ]
        assert [due.row for due in all_due(journal, 1)] == [4, 6, 7]


def test_row_with_lost_decision_is_held(place: Path) -> None:
    with closing(open_at(place)) as journal:
        open_sheet(journal, new=2)
        (first, second) = all_due(journal, 1)
        journal.append([intent(first, at(1)), intent(second, at(1))])
        journal.append([outcome_of(first.number, 1, OutcomeKind.REJECTED, at(2))])
        journal.append([outcome_of(second.number, 1, OutcomeKind.UNKNOWN, at(2))])
    with lost(place) as journal:
        journal.settle([resolved(second.number, 1, Resolution.NOT_RECEIVED, at(3))])
        journal.release(1, None, suffix=True, by="amina", at=at(3))
        for due in all_due(journal, 1):
            journal.append([intent(due, at(4))])
    rows = relapsed(place)
    assert (rows.in_doubt, rows.held) == (0, 2)
    with closing(open_at(place)) as journal:
        journal.settle([resolved(second.number, 1, Resolution.NOT_RECEIVED, at(10))])
        journal.release(1, None, suffix=True, by="amina", at=at(10))
        assert [row.state for row in journal.rows(1)] == [State.READY] * 2
        assert not all_due(journal, 1), "held, whatever is decided about the attempts that the journal knows"
        assert {hold.left_at for hold in journal.holds(1).values()} == {at(9)}
        word = resolved(first.number, 1, Resolution.REJECTED, at(11), Basis.PERSON)
        journal.settle([word, resolved(second.number, 1, Resolution.PAID, at(11))])
        (rejected, paid) = journal.rows(1)
        assert (rejected.state, rejected.quarantined_since) == (State.REJECTED, at(9))
        assert paid.state is State.PAID


def test_two_lost_attempts_hold_their_row(place: Path) -> None:
    """The gateway's no to the first, without a time, must not be taken for its answer to the second."""
    with closing(open_at(place)) as journal:
        open_sheet(journal, new=1)
        copy = copied(place)
        (due,) = all_due(journal, 1)
        journal.append([intent(due, at(1))])
        journal.append([outcome_of(1, 1, OutcomeKind.REJECTED, at(2))])
        journal.release(1, None, suffix=False, by="amina", at=at(3))
        journal.append([intent(all_due(journal, 1)[0], at(4))])
    put_back(place, copy)
    rows = relapsed(place)
    assert (rows.in_doubt, rows.held) == (0, 1)
    with closing(open_at(place)) as journal:
        assert not all_due(journal, 1)


def test_unsent_attempt_cancels_no_later_attempt(place: Path) -> None:
    with closing(open_at(place)) as journal:
        open_sheet(journal, new=1)
    copy = copied(place)
    for kind in (OutcomeKind.NOT_SENT, OutcomeKind.PAID):
        with closing(open_at(place)) as journal:
            journal.append([intent(all_due(journal, 1)[0], at(1))])
            journal.append([outcome_of(1, 1, kind, at(2))])
        put_back(place, copy)
        rows = relapsed(place)
    assert rows.in_doubt == 1
    with closing(open_at(place)) as journal:
        assert not all_due(journal, 1)


def test_adoption_holds_orders_of_two_lost_batches(place: Path) -> None:
    """Both had the same number in the journal, one after the other."""
    open_at(place).close()
    copy = copied(place)
    for order in ("ORD-A", "ORD-D"):
        with closing(open_at(place)) as journal:
            open_sheet(journal, new=[new_instruction(2, order)])
            journal.append([intent(all_due(journal, 1)[0], at(1))])
        put_back(place, copy)
        rows = relapsed(place)
    assert rows.unknown_orders == ["ORD-A", "ORD-D"]
    with closing(open_at(place)) as journal:
        open_sheet(journal, new=[new_instruction(2, "ORD-A"), new_instruction(3, "ORD-D")])
        assert not all_due(journal, 1)


def test_rows_sent_before_first_record_block_adoption(place: Path) -> None:
    with closing(open_at(place)) as journal:
        open_sheet(journal, new=1)
    copy = copied(place)
    with closing(open_at(place)) as journal:
        send(journal, 1, OutcomeKind.PAID)
    shutil.rmtree(place / "journals")  # another account
    adopted(place)
    put_back(place, copy)
    said_of(lambda: adoption(place), LeftDamaged)


def test_adoption_holds_row_despite_earlier_decision(place: Path) -> None:
    with closing(open_at(place)) as journal:
        open_sheet(journal, new=1)
        send(journal, 1, OutcomeKind.REJECTED, at(1))
    with lost(place) as journal:
        journal.release(1, None, suffix=True, by="amina", at=at(2))
        send(journal, 1, OutcomeKind.PAID, at(2))
    assert relapsed(place).held == 1
    with closing(open_at(place)) as journal:
        journal.release(1, None, suffix=False, by="amina", at=at(10))
        journal.settle([resolved(1, 1, Resolution.REJECTED, at(10))])
    with lost(place) as journal:
        open_sheet(journal, "b2", new=[new_instruction(2, amount="9.00")], amendments=[Amendment(2, 1)])
        send(journal, 2, OutcomeKind.PAID, at(11))
    relapsed(place)
    with closing(open_at(place)) as journal:
        journal.release(1, None, suffix=True, by="amina", at=at(12))
        assert not all_due(journal, 1)


def test_lost_attempt_of_replaced_row_holds_successor(place: Path) -> None:
    with closing(open_at(place)) as journal:
        open_sheet(journal, new=1)
        (due,) = all_due(journal, 1)
    first = copied(place)
    with closing(open_at(place)) as journal:
        new = [new_instruction(2, amount="9.00")]
        open_sheet(journal, "b2", new=new, amendments=[Amendment(2, 1)])
    second = copied(place)
    put_back(place, first)
    relapsed(place)
    with closing(open_at(place)) as journal:
        journal.append([intent(due, at(3))])
    put_back(place, second)  # it turns up again
    assert relapsed(place).unknown_orders == ["ORD-2"]
    with closing(open_at(place)) as journal:
        assert not all_due(journal, 2)


def test_lost_attempt_holds_row_in_doubt(place: Path) -> None:
    with closing(open_at(place)) as journal:
        open_sheet(journal, new=1)
        (due,) = all_due(journal, 1)
    first = copied(place)
    with closing(open_at(place)) as journal:
        journal.append([intent(due, at(1)), outcome_of(1, 1, OutcomeKind.UNKNOWN, at(1))])
    second = copied(place)
    put_back(place, first)
    assert relapsed(place).in_doubt == 1
    with closing(open_at(place)) as journal:
        journal.settle([resolved(1, 1, Resolution.NOT_RECEIVED, at(10))])
        journal.append([intent(all_due(journal, 1)[0], at(10))])
    put_back(place, second)
    assert relapsed(place).held == 1


def test_replaced_known_journal_is_refused_until_adopted(place: Path) -> None:
    with closing(open_at(place)) as journal:
        open_sheet(journal)
        journal_id = journal.head().journal_id
    other = journal_path(place).with_name("other.sqlite3")
    made = file_place(place, other).make("a test", beside=journal_id)
    assert made is not None
    with closing(file_place(place, other).open_to_write("a test")) as journal:
        open_sheet(journal)
    journal_path(place).unlink()
    other.rename(journal_path(place))
    for open_it in (partial(open_at, place), lambda: file_place(place).open_to_read()):
        said_of(open_it, JournalWentBack)
    with closing(adoption(place, beside=journal_id)) as found:
        found.carry_out("amina")
    assert {entry.journal_id for entry in known(place).entries() if entry.is_lost} == {journal_id}
    open_at(place).close()


def test_an_order_of_a_lost_batch_is_held(place: Path) -> None:
    open_at(place).close()
    with lost(place) as journal:
        open_sheet(journal, new=[new_instruction(2, "Órd-2"), new_instruction(3), new_instruction(4)])
        for due in all_due(journal, 1)[:2]:
            journal.append([intent(due, at(1))])
    rows = relapsed(place)
    assert rows.unknown_orders == ["ORD-3", "Órd-2"]
    with closing(open_at(place)) as journal:
        open_sheet(journal, new=[new_instruction(2, "órd-2"), new_instruction(3, "ord-3"), new_instruction(4)])
        assert [due.row for due in all_due(journal, 1)] == [4]
        assert set(journal.holds(1)) == {2, 3}


def test_a_row_paid_by_another_attempt_is_named(place: Path) -> None:
    with closing(open_at(place)) as journal:
        open_sheet(journal, new=1)
        (due,) = all_due(journal, 1)
        copy = copied(place)
        journal.append([intent(due, at(1))])
    put_back(place, copy)
    with closing(adoption(place)) as found:
        assert found.loss.commits == 1
    left = (place / "journals").glob(f"*/{RUN}.1")
    kept = {path: path.read_bytes() for path in left}
    for path in kept:
        path.unlink()
    adopted(place)  # with no knowledge of what left
    with closing(open_at(place)) as journal:
        send(journal, 1, OutcomeKind.PAID)
    for path, content in kept.items():
        path.write_bytes(content)
    with closing(adoption(place)) as found:
        assert found.carry_out("amina").contradictions == ["ORD-2"]


def test_interrupted_adoption_is_repeated(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(open_at(place)) as journal:
        open_sheet(journal, new=3)
    with lost(place) as journal:
        for due in all_due(journal, 1)[:2]:
            journal.append([intent(due, at(1))])

    class Killed(BaseException):
        pass

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as cut:
        cut.setattr(KnownJournals, "write", killed)
        with closing(adoption(place)) as found, pytest.raises(Killed):
            found.carry_out("amina")
    assert relapsed(place).in_doubt == 2
    assert column(journal_path(place), "SELECT count(*) FROM fact WHERE kind = 'intended'") == [2]


def test_an_adopted_copy_opens_without_a_lost_withdrawal(place: Path) -> None:
    open_at(place).close()
    copy = copied(place)
    file_place(place).withdraw(Withdrawal("1" * 64, "cleo", "{}", AT))
    put_back(place, copy)
    relapsed(place)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_bytes(b"x" * 4096),
        lambda path: path.write_bytes(
            b"\n".join(line for number, line in enumerate(path.read_bytes().split(b"\n")) if number != 2)
        ),
    ],
)
def test_no_older_copy_is_adopted_without_all_lines(place: Path, spoil: Callable[[Path], object]) -> None:
    with closing(open_at(place)) as journal:
        open_sheet(journal, new=3)
    with lost(place) as journal:
        for due in all_due(journal, 1):
            journal.append([intent(due, at(1))])
    (path,) = (place / "journals").glob(f"*/{RUN}.1")
    spoil(path)
    said_of(lambda: adoption(place), LeftDamaged)
    path.unlink()  # a person, who has asked the gateway
    adopted(place)
    open_at(place).close()


def test_no_copy_of_a_moved_journal_is_adopted(place: Path) -> None:
    with closing(open_at(place)) as journal:
        open_sheet(journal)
        journal_id = journal.head().journal_id
    remembered(place, KnownJournal(journal_id, (ENDPOINT,), "paygw on db.example", AT))
    for attempt in (partial(open_at, place), partial(adoption, place)):
        message, hint = said_of(attempt, JournalWentBack)
        assert message == "This is a copy of a journal that was moved to the database paygw on db.example."
        assert "[journal] url" in hint


def test_a_damaged_journal_is_not_adopted(place: Path) -> None:
    unknown(place)
    tampered(journal_path(place), "UPDATE fact SET hash = zeroblob(32) WHERE number = 2").close()
    with pytest.raises(JournalCorrupt):
        adoption(place)


def test_invalid_first_page_is_called_damaged(place: Path) -> None:
    unknown(place)
    path = journal_path(place)
    path.write_text("client_orderid;amount\n" * 500)
    message, _ = said_of(lambda: adoption(place))
    assert message == f"{path} is damaged, or not the expected kind of file."


def test_journal_with_damaged_pages_is_named(place: Path) -> None:
    unknown(place)
    path = journal_path(place)
    (page,), (size,) = (
        column(path, "SELECT rootpage FROM sqlite_schema WHERE name = 'identity'"),
        column(path, "PRAGMA page_size"),
    )
    content = bytearray(path.read_bytes())
    content[(page - 1) * size : page * size] = b"\xa5" * size
    path.write_bytes(content)
    message, _ = said_of(lambda: adoption(place), JournalCorrupt)
    assert message == f"The journal {path} is damaged: database disk image is malformed."


@pytest.mark.parametrize("ending", ["", "-wal", "-shm"])
def test_adopted_journal_files_must_be_private(place: Path, ending: str) -> None:
    unknown(place)
    path = journal_path(place).with_name(f"{journal_path(place).name}{ending}")
    path.touch()
    path.chmod(0o644)
    message, hint = said_of(lambda: adoption(place))
    assert message.startswith(f"{path} can be read or written by others")
    assert f"chmod 600 {path}" in hint


def test_journal_with_altered_tables_is_named(place: Path) -> None:
    unknown(place)
    path = journal_path(place)
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("CREATE INDEX more ON fact (kind)")
    message, _ = said_of(lambda: adoption(place), JournalCorrupt)
    assert message == f"The schema of the journal {path} was altered: more."
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("DROP TABLE identity")
    message, _ = said_of(lambda: adoption(place))
    assert message == f"The journal {path} cannot be read: no such table: identity."


# What is known


def test_forgetting_missing_registry_entry_is_no_error(place: Path) -> None:
    entry = KnownJournal(OTHER_ID, (ENDPOINT,), "/other.sqlite3", AT)
    remembered(place, entry)
    for _ in range(2):
        known(place).forget(entry)
    assert list(known(place).entries()) == []


def test_journals_are_listed_oldest_first_by_endpoint(place: Path) -> None:
    entries = [KnownJournal(letter * 32, (ENDPOINT,), f"/{letter}", at(9 - n)) for n, letter in enumerate("abc")]
    same_time = KnownJournal("0" * 32, (ENDPOINT,), "/0", at(9))
    other = KnownJournal("d" * 32, (EndpointIdentity.from_name("gateway.example/9"),), "/d", at(0))
    remembered(place, *entries, same_time, other)
    found = [one.journal_id[0] for one in known(place).paying((ENDPOINT,))]
    assert found == ["c", "b", "0", "a"]
    assert [one.journal_id[0] for one in known(place).paying((RENAMED,), but="b" * 32)] == ["c", "0", "a"]
    assert [one.journal_id[0] for one in known(place).entries()] == ["d", "c", "b", "0", "a"]
    assert known(place).entry("d" * 32) == other
    assert known(place).entry("e" * 32) is None


def test_journal_list_sentence_is_empty_or_singular() -> None:
    one = KnownJournal("a" * 32, (ENDPOINT,), "/a", AT)
    assert journal_list_sentence([]) == ""
    assert journal_list_sentence([one]) == (
        f" This user's state directory remembers another journal of the same merchant: {'a' * 32} at /a."
    )


def test_unwritable_registry_folder_is_named(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = place / "journals"
    kept.write_text("a file")
    message, hint = said_of(lambda: known(place).entries())
    assert message == f"{kept} cannot be read: Not a directory."
    assert hint.startswith("Nothing was sent. `paygw-batch doctor` shows")
    kept.unlink()
    kept.mkdir(mode=0o700)
    entry = KnownJournal(OTHER_ID, (ENDPOINT,), "/other.sqlite3", AT)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    for step in ("fsync", "open"):
        with monkeypatch.context() as failing:
            failing.setattr(os, step, full)
            message, _ = said_of(lambda: known(place).write(entry))
        assert message.endswith(": No space left on device.")
        assert str(kept / entry.journal_id) in message
        assert list(known(place).entries()) == []


def test_damaged_entry_error_explains_recovery(place: Path) -> None:
    remembered(place, KnownJournal(OTHER_ID, (ENDPOINT,), "/other.sqlite3", AT))
    path = place / "journals" / OTHER_ID / "journal.json"
    path.write_text("[]")
    message, hint = said_of(lambda: known(place).entries())
    assert message == f"{path} is damaged. It records for whom each journal pays."
    assert hint == (
        "Put the file back from a backup. If there is none, move it away and run the next command with that journal: "
        "it is then written again."
    )


def test_foreign_file_at_default_place_is_ignored(place: Path) -> None:
    make_at(place)
    path = journal_path(place)
    (entry,) = known(place).entries()
    shutil.rmtree(place / "journals")
    (found,) = known(place).paying((ENDPOINT,))
    assert (found.journal_id, found.path, found.is_intended) == (entry.journal_id, str(path), False)
    tampered(path, "DELETE FROM identity").close()
    assert list(known(place).paying((ENDPOINT,))) == []
    path.write_text("no journal")
    assert list(known(place).paying((ENDPOINT,))) == []


def test_unreadable_file_counts_as_journal(place: Path) -> None:
    make_at(place)
    path = journal_path(place)
    with closing(open_at(place)) as journal:
        journal_id = journal.head().journal_id
    assert journal_exists(path, journal_id)
    assert not journal_exists(path, OTHER_ID)
    assert not journal_exists(path.with_name("none.sqlite3"), journal_id)
    path.write_text("no journal")
    assert journal_exists(path, journal_id)
    path.unlink()
    path.symlink_to(place / "gone")
    assert journal_exists(path, journal_id)
