"""Adopting a journal: a person calls a copy the newest one, and everything that speaks against it is said first."""

import os
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw
import pytest

from paygw_batch.core.endpoint_identity import EndpointIdentity
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import JournalCorrupt, JournalError, JournalMissing, JournalWentBack
from paygw_batch.journal.guards.witness import WitnessedHead, make_witness, read_witness, witness_path
from paygw_batch.journal.opening.adopt import Adoption
from paygw_batch.journal.opening.examine import journal_exists
from paygw_batch.journal.opening.registry import JournalRegistry, Registered, journal_list_sentence
from tests.journal.journal_rows import AT, ENDPOINT, at, file_place, journal_path, make_at, open_at, open_sheet, send

RENAMED = EndpointIdentity.of("pay.example", "1234", "merchant")
"""The same endpoint and consumer key under another host."""
OTHER_ID = "f" * 32


def adoption(place: Path, path: Path | None = None, *, beside: str | None = None, **changes: Any) -> Adoption:
    return Adoption(replace(file_place(place, path), **{"now": lambda: at(9), **changes}), beside=beside)


def adopted(place: Path, path: Path | None = None, **changes: Any) -> None:
    with closing(adoption(place, path, **changes)) as found:
        found.carry_out("amina")


def unknown(place: Path, *, sent: bool = True) -> str:
    """Make a journal whose witness and registry are gone; return its id."""
    with closing(open_at(place)) as journal:
        if sent:
            open_sheet(journal)
            send(journal, 1, OutcomeKind.PAID)
        journal_id = journal.head().journal_id
    for directory in ("witness", "journals"):
        shutil.rmtree(place / directory)
    return journal_id


def registry(place: Path) -> JournalRegistry:
    return JournalRegistry(place / "journals")


def remembered(place: Path, *entries: Registered) -> None:
    """Write entries into the registry of a place."""
    with registry(place).held(AT):
        for entry in entries:
            registry(place).write(entry)


def column(path: Path, query: str) -> list[Any]:
    with closing(apsw.Connection(str(path))) as connection:
        return [line[0] for line in connection.execute(query)]


def said_of(attempt: Callable[[], object], kind: type[JournalError] = JournalError) -> tuple[str, str]:
    with pytest.raises(kind) as found:
        attempt()
    assert type(found.value) is kind
    return found.value.message, found.value.hint


def test_an_adopted_journal_has_its_witness_its_entry_and_the_word_of_a_person(place: Path) -> None:
    journal_id, path = unknown(place), journal_path(place)
    with closing(adoption(place)) as found:
        assert found.is_needed
        assert (found.journal_id, found.names, found.others) == (journal_id, ["gateway.example"], [])
        assert found.last_fact() == (7, AT)
        assert found.counts["facts"] == 7
        found.carry_out("amina")
    seen = read_witness(witness_path(place / "witness", path))
    assert seen is not None
    assert (seen.journal_id, seen.seq) == (journal_id, 8)
    names = (EndpointIdentity("gateway.example", "1234", ENDPOINT.consumer_key_sha256),)
    (entry,) = registry(place).entries()
    assert entry == Registered(journal_id, names, str(path), AT)
    adopted = "SELECT by || ' ' || at || ' ' || number FROM fact WHERE kind = 'adopted'"
    assert column(path, adopted) == [f"amina {at(9)} 8"]
    with closing(open_at(place)) as journal:
        assert journal.notes == ()
        journal.verify()
    with closing(adoption(place)) as found:
        assert not found.is_needed


def test_nothing_is_written_until_a_person_says_so(place: Path) -> None:
    unknown(place)
    path = journal_path(place)
    before = path.read_bytes()
    adoption(place).close()
    assert path.read_bytes() == before
    assert not (place / "witness").exists()
    assert not (place / "journals").exists()


def test_a_journal_without_a_fact_is_told_by_the_time_it_was_made(place: Path) -> None:
    unknown(place, sent=False)
    with closing(adoption(place)) as found:
        assert found.last_fact() == (0, AT)


def test_where_no_registry_is_kept_the_witness_alone_is_made(place: Path) -> None:
    unknown(place)
    adopted(place, registry_dir=None)
    assert read_witness(witness_path(place / "witness", journal_path(place))) is not None
    assert not (place / "journals").exists()


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: shutil.rmtree(path.parent)])
def test_what_is_not_there_cannot_be_adopted(place: Path, spoil: Callable[[Path], None]) -> None:
    unknown(place)
    path = journal_path(place)
    spoil(path)
    message, hint = said_of(lambda: adoption(place), JournalMissing)
    assert (message, hint) == (f"There is no journal at {path}.", "Name the file: --journal.")


def test_an_empty_file_is_no_journal_to_adopt(place: Path) -> None:
    unknown(place)
    path = journal_path(place)
    for file in path.parent.iterdir():
        file.unlink()
    path.touch(mode=0o600)
    message, hint = said_of(lambda: adoption(place), JournalMissing)
    assert (message, hint) == (f"The journal {path} is empty.", "Name the file: --journal.")


def test_a_journal_under_another_name_of_the_endpoint_is_adopted_and_knows_it_then(place: Path) -> None:
    with closing(open_at(place)) as journal:
        journal_id = journal.head().journal_id
    path = journal_path(place)
    message, hint = said_of(lambda: open_at(place, endpoint=RENAMED))
    assert message == (
        f"The journal {path} belongs to the same endpoint and consumer key under another name: it has "
        "gateway.example, but the configuration has pay.example."
    )
    assert hint == (
        "If both names belong to one gateway, confirm it with `paygw-batch journal adopt`; a journal in PostgreSQL "
        "keeps the name it was made with. If not, correct gateway.base_url, or name a separate journal: [journal] path "
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
    (entry,) = registry(place).entries()
    assert (entry.journal_id, set(entry.names) >= {ENDPOINT, RENAMED}) == (journal_id, True)


def test_names_that_the_registry_remembered_are_kept(place: Path) -> None:
    journal_id = unknown(place)
    remembered(place, Registered(journal_id, (RENAMED,), "/elsewhere", AT))
    adopted(place)
    (entry,) = registry(place).entries()
    assert RENAMED in entry.names
    assert ENDPOINT in entry.names
    assert entry.path == str(journal_path(place))


def test_a_journal_of_another_endpoint_is_not_adopted(place: Path) -> None:
    unknown(place)
    message, hint = said_of(lambda: adoption(place, endpoint=EndpointIdentity.of("gateway.example", "9", "merchant")))
    assert message == f"The journal {journal_path(place)} belongs to another endpoint."
    assert hint == "Name a separate journal for each endpoint: [journal] path or url, or --journal."


def test_another_journal_of_the_endpoint_has_to_be_named(place: Path) -> None:
    unknown(place)
    entries = [Registered(letter * 32, (ENDPOINT,), f"/{letter}.sqlite3", at(n)) for n, letter in enumerate("ab")]
    remembered(place, *entries)
    for beside in (None, "a" * 32):
        message, hint = said_of(lambda beside=beside: adoption(place, beside=beside))  # type: ignore[misc]  # mypy: lambda
        assert message == (
            "This endpoint already has a journal. This user's state directory remembers other journals of the same "
            f"endpoint: {'a' * 32} at /a.sqlite3, {'b' * 32} at /b.sqlite3."
        )
        assert f"`paygw-batch journal adopt --beside {'b' * 32}`" in hint
    with closing(adoption(place, beside="b" * 32)) as found:
        assert [one.journal_id for one in found.others] == ["a" * 32, "b" * 32]
        found.carry_out("amina")
    open_at(place).close()


def test_a_journal_that_was_made_meanwhile_is_seen_before_the_word_is_written(place: Path) -> None:
    unknown(place)
    with closing(adoption(place)) as found:
        remembered(place, Registered(OTHER_ID, (RENAMED,), "/other.sqlite3", AT))
        message, _ = said_of(lambda: found.carry_out("amina"))
    assert OTHER_ID in message
    assert column(journal_path(place), "SELECT count(*) FROM fact WHERE kind = 'adopted'") == [0]
    assert not (place / "witness").exists()


def test_one_that_is_known_needs_no_word_beside_another(place: Path) -> None:
    make_at(place)
    remembered(place, Registered(OTHER_ID, (ENDPOINT,), "/other.sqlite3", AT))
    with closing(adoption(place)) as found:
        assert not found.is_needed
        assert [one.journal_id for one in found.others] == [OTHER_ID]


def test_a_copy_is_not_adopted_while_its_original_is_there(place: Path) -> None:
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


def test_the_witness_of_the_place_it_was_moved_from_ends_with_the_word(place: Path) -> None:
    with closing(open_at(place)) as journal:
        open_sheet(journal)
    former = witness_path(place / "witness", journal_path(place))
    moved = journal_path(place).with_name("moved.sqlite3")
    journal_path(place).rename(moved)
    adopted(place, moved)
    assert not former.exists()
    assert read_witness(witness_path(place / "witness", moved)) is not None


def test_a_copy_that_any_witness_of_this_machine_is_ahead_of_is_not_adopted(place: Path) -> None:
    journal_id, path = unknown(place), journal_path(place)
    (place / "witness").mkdir(mode=0o700)
    for name in ("here", "elsewhere", journal_id):
        witness = witness_path(place / "witness", path) if name == "here" else place / "witness" / f"{name}.witness"
        make_witness(witness, WitnessedHead(journal_id, 8, "0" * 64))
        message, _ = said_of(lambda: adoption(place), JournalWentBack)
        assert message == "The journal ends at fact 7, but fact 8 was already written: this is an older copy."
        witness.unlink()
    make_witness(place / "witness" / "elsewhere.witness", WitnessedHead(OTHER_ID, 8, "0" * 64))
    adopted(place)


def test_a_damaged_journal_is_not_adopted(place: Path) -> None:
    unknown(place)
    with closing(apsw.Connection(str(journal_path(place)))) as connection:
        for (trigger,) in list(connection.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'")):
            connection.execute(f"DROP TRIGGER {trigger}")
        connection.execute("UPDATE fact SET hash = zeroblob(32) WHERE number = 2")
    with pytest.raises(JournalCorrupt):
        adoption(place)


def test_a_first_page_that_is_none_is_said_to_be_damaged(place: Path) -> None:
    unknown(place)
    path = journal_path(place)
    path.write_text("client_orderid;amount\n" * 500)
    message, _ = said_of(lambda: adoption(place))
    assert message == f"{path} is damaged, or not the expected kind of file (journal)."


def test_a_journal_whose_pages_are_damaged_is_named(place: Path) -> None:
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
def test_no_file_of_a_journal_that_is_adopted_may_be_open_to_others(place: Path, ending: str) -> None:
    unknown(place)
    path = journal_path(place).with_name(f"{journal_path(place).name}{ending}")
    path.touch()
    path.chmod(0o644)
    message, hint = said_of(lambda: adoption(place))
    assert message.startswith(f"{path} can be read or written by others")
    assert f"chmod 600 {path}" in hint


def test_a_journal_whose_tables_were_changed_is_named(place: Path) -> None:
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


# The registry


def test_an_entry_that_is_not_there_is_forgotten_without_a_word(place: Path) -> None:
    entry = Registered(OTHER_ID, (ENDPOINT,), "/other.sqlite3", AT)
    remembered(place, entry)
    for _ in range(2):
        registry(place).forget(entry)
    assert list(registry(place).entries()) == []


def test_journals_are_told_oldest_first_and_each_endpoint_has_its_own(place: Path) -> None:
    entries = [Registered(letter * 32, (ENDPOINT,), f"/{letter}", at(9 - n)) for n, letter in enumerate("abc")]
    same_time = Registered("0" * 32, (ENDPOINT,), "/0", at(9))
    other = Registered("d" * 32, (EndpointIdentity.from_name("gateway.example/9"),), "/d", at(0))
    remembered(place, *entries, same_time, other)
    found = [one.journal_id[0] for one in registry(place).paying((ENDPOINT,))]
    assert found == ["c", "b", "0", "a"]
    assert [one.journal_id[0] for one in registry(place).paying((RENAMED,), but="b" * 32)] == ["c", "0", "a"]
    assert [one.journal_id[0] for one in registry(place).entries()] == ["d", "c", "b", "0", "a"]
    assert registry(place).entry("d" * 32) == other
    assert registry(place).entry("e" * 32) is None


def test_no_journal_one_and_several_are_told_in_a_sentence() -> None:
    one = Registered("a" * 32, (ENDPOINT,), "/a", AT)
    assert journal_list_sentence([]) == ""
    assert journal_list_sentence([one]) == (
        f" This user's state directory remembers another journal of the same endpoint: {'a' * 32} at /a."
    )


def test_a_registry_that_cannot_be_read_or_written_is_named(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = place / "journals"
    kept.write_text("a file")
    message, _ = said_of(lambda: registry(place).entries())
    assert message == f"{kept} cannot be read: Not a directory."
    kept.unlink()
    kept.mkdir(mode=0o700)
    entry = Registered(OTHER_ID, (ENDPOINT,), "/other.sqlite3", AT)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    for step in ("fsync", "open"):
        with monkeypatch.context() as failing:
            failing.setattr(os, step, full)
            message, hint = said_of(lambda: registry(place).write(entry))
        assert message == f"{kept / entry.journal_id}.json cannot be written: No space left on device."
        assert hint == "Free some disk space, then run again."
        assert list(kept.iterdir()) == []


def test_an_entry_that_is_damaged_says_how_it_comes_back(place: Path) -> None:
    remembered(place, Registered(OTHER_ID, (ENDPOINT,), "/other.sqlite3", AT))
    path = place / "journals" / f"{OTHER_ID}.json"
    path.write_text("[]")
    message, hint = said_of(lambda: registry(place).entries())
    assert message == f"{path} is damaged. It records which endpoint each journal pays."
    assert hint == (
        "Put the file back from a backup. If there is none, move it away and run the next command with that journal: "
        "it is then written again."
    )


def test_a_file_at_a_default_place_that_is_no_journal_hinders_nothing(place: Path) -> None:
    make_at(place)
    path = journal_path(place)
    (known,) = registry(place).entries()
    for file in (place / "journals").iterdir():
        file.unlink()
    (found,) = registry(place).paying((ENDPOINT,))
    assert (found.journal_id, found.path, found.is_intended) == (known.journal_id, str(path), False)
    with closing(apsw.Connection(str(path))) as connection:
        for (trigger,) in list(connection.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'")):
            connection.execute(f"DROP TRIGGER {trigger}")
        connection.execute("DELETE FROM identity")
    assert list(registry(place).paying((ENDPOINT,))) == []
    path.write_text("no journal")
    assert list(registry(place).paying((ENDPOINT,))) == []


def test_a_file_that_cannot_be_read_counts_as_the_journal_it_may_be(place: Path) -> None:
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
