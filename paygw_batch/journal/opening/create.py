"""Makes a new journal: on purpose, once for an endpoint, whole or not at all.

The order is what makes it safe to be killed at any moment (docs/decisions/0091): an intention in the registry, the
witness, the journal under another name, its own name, and the registry's word that it is there.
"""

import os
import secrets
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import apsw

from paygw_batch.core.endpoint_identity import EndpointIdentity
from paygw_batch.errors import JournalError
from paygw_batch.journal.facts.chain import Identity
from paygw_batch.journal.guards.location import check_directory, make_directory, settled, sync_directory
from paygw_batch.journal.guards.lock import RunLock, lock_path
from paygw_batch.journal.guards.witness import Seen, make_witness, missing_journal, read_witness, retire, witness_path
from paygw_batch.journal.opening.examine import check_place, stands_at
from paygw_batch.journal.opening.registry import JournalRegistry, Registered, told
from paygw_batch.journal.sqlite.about import note_name
from paygw_batch.journal.sqlite.connect import connect
from paygw_batch.journal.sqlite.schema import migrate
from paygw_batch.language import say


def new_journal(
    path: Path,
    *,
    witness_dir: Path,
    registry_dir: Path | None,
    endpoint: EndpointIdentity,
    now: str,
    holder: str,
    beside: str | None = None,
) -> Identity | None:
    """Make the journal of `endpoint` at `path`, and return which one it is; None where a journal is there already.

    The registry in `registry_dir` remembers it; None remembers nothing, for the sandbox. `beside` is the id of the
    newest journal of the same endpoint, where there is one. Raises `JournalError` when another journal of the endpoint
    is remembered and not named, and `JournalHeld` when another process holds what is to be made.
    """
    path, witness_dir = settled(path), settled(witness_dir)
    registry = None if registry_dir is None else JournalRegistry(settled(registry_dir))
    for directory in (path.parent, witness_dir):
        make_directory(directory)
        check_directory(directory)
    with ExitStack() as held:
        held.callback(RunLock(lock_path(path), now=now, command=holder).close)
        if registry is not None:
            held.enter_context(registry.held(now))
            _settle_intentions(registry, witness_dir)
        if check_place(path) and path.stat().st_size > 0:
            return None
        witness = witness_path(witness_dir, path)
        seen = read_witness(witness)
        _check_alone(path, registry, endpoint, seen, beside)
        _check_no_log(path)
        identity = Identity(secrets.token_hex(16), endpoint.name, now, str(path))
        entry = Registered(identity.journal_id, (endpoint,), str(path), now, is_intended=True)
        try:
            if registry is not None:
                registry.write(entry)
            if seen is not None and seen.seq > 0:
                if registry is not None and registry.entry(seen.journal_id) is None:  # an older version made it
                    registry.write(_lost(seen, endpoint, path))
                retire(witness, seen)
            make_witness(witness, Seen(identity.journal_id, 0, identity.start.hash.hex()))
            _make_file(path, identity, endpoint)
            if registry is not None:
                registry.write(replace(entry, is_intended=False))
        except (apsw.Error, OSError) as error:
            raise JournalError(f"The journal {path} cannot be made: {error}.") from None
    return identity


def _settle_intentions(registry: JournalRegistry, witness_dir: Path) -> None:
    """Complete or remove the entries of journals whose making was broken off.

    The registry is held, so that no making is under way.
    """
    for entry in registry.entries():
        if not entry.is_intended:
            continue
        path = Path(entry.path)
        if stands_at(path, entry.journal_id):
            registry.write(replace(entry, is_intended=False))
            continue
        # It never had its name, so that no run had it open. Its witness goes as well: should a file of that id turn up
        # all the same, a person has to say first what it is.
        witness = witness_path(witness_dir, path)
        seen = read_witness(witness)
        if seen is not None and (seen.journal_id, seen.seq) == (entry.journal_id, 0):
            witness.unlink()
            sync_directory(witness_dir)
        registry.forget(entry)


def _check_alone(
    path: Path, registry: JournalRegistry | None, endpoint: EndpointIdentity, seen: Seen | None, beside: str | None
) -> None:
    """Raise `JournalError` unless no other journal is known, or `beside` is the newest of them."""
    others = list(registry.paying((endpoint,))) if registry is not None else []
    if seen is not None and seen.seq > 0 and seen.journal_id not in {entry.journal_id for entry in others}:
        if not others and beside is None:
            raise missing_journal(path, seen)
        others.insert(0, _lost(seen, endpoint, path))
    check_beside(others, beside, command="journal new")


def _lost(seen: Seen, endpoint: EndpointIdentity, path: Path) -> Registered:
    """Return a registry entry for a journal that is not registered, but whose witness is still at its place."""
    return Registered(seen.journal_id, (endpoint,), str(path), "")


def check_beside(others: Sequence[Registered], beside: str | None, *, command: str) -> None:
    """Raise `JournalError` unless `beside` is the id of the newest of `others`, or None where there is none."""
    if not others and beside is None:
        return
    if not others:
        raise JournalError(
            f"This user's state directory remembers no journal {beside} of this endpoint.",
            hint="Leave --beside out, or run the command as the user and with the state directory that know it.",
        )
    newest = others[-1].journal_id
    if beside != newest:
        raise JournalError(
            say("This endpoint has a journal already.{others}", others=told(others)),
            hint=say(
                "Use that one: --journal, or [journal] path. A journal knows only what was sent from it, so that "
                "a second one pays the same sheet again. Only if that one is lost for good, or you will never "
                "submit a sheet to both, run `paygw-batch {command} --beside {newest}`.",
                command=command,
                newest=newest,
            ),
        )


def _make_file(path: Path, identity: Identity, endpoint: EndpointIdentity) -> None:
    """Make a journal without a fact at `path`, for its owner alone.

    It is made under another name and then given its own, so that no crash leaves half of one.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        os.close(os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        _fill(temporary, identity, endpoint)
        temporary.rename(path)
        sync_directory(path.parent)
    finally:
        for ending in ("", "-wal", "-shm", "-journal"):
            temporary.with_name(temporary.name + ending).unlink(missing_ok=True)


def _fill(path: Path, identity: Identity, endpoint: EndpointIdentity) -> None:
    with closing(connect(path, write=True)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        migrate(connection, 0, now=identity.created_at)
        columns = (identity.journal_id, identity.endpoint, identity.created_at, identity.home)
        connection.execute("INSERT INTO identity VALUES (1, ?, ?, ?, ?)", columns)
        note_name(connection, endpoint, at=identity.created_at, by="")
        connection.execute("COMMIT")
        busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0]
        if busy:
            raise JournalError(f"The journal {identity.home} cannot be made: its log is in use.")


def _check_no_log(path: Path) -> None:
    """Refuse to put a new journal beside the log of a lost one, which SQLite would play into it."""
    log = path.with_name(f"{path.name}-wal")
    if log.exists() and log.stat().st_size > 0:
        raise JournalError(
            f"The journal {path} is gone, but its log {log} still stands and holds what was written last.",
            hint="Put the journal file back beside its log.",
        )
