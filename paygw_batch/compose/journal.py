"""Opens the configured journal, to look into it or to write, and finds batches in it."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from paygw_batch.clock import timestamp, utc_now
from paygw_batch.errors import HolderKind, JournalMissing, UsageError
from paygw_batch.journal import (
    Adoption,
    BatchRecord,
    GateState,
    Identity,
    JournalReader,
    LimitChange,
    LockHolder,
    SqliteJournal,
    SqliteReader,
    WorkerLife,
    in_memory_journal,
    journal_holder,
    new_journal,
    open_journal,
    read_journal,
)
from paygw_batch.language import say
from paygw_batch.settings.configuration import Settings

if TYPE_CHECKING:
    from paygw_batch.journal import (
        MissingHost,
        Move,
        PostgresJournal,
        PostgresPlace,
        PostgresReader,
        WorkerJournal,
    )

Tell = Callable[[str], None]
"""Takes a sentence that a person should read now."""


def open_to_write(
    settings: Settings, command: str, kind: HolderKind = HolderKind.RUN
) -> "SqliteJournal | PostgresJournal":
    """Open the journal and hold it. The sandbox's is made where there is none; no other is.

    Raises `JournalHeld` at once when another process has it, and `JournalMissing` where there is none.
    """
    open_it = _opener(settings, command, kind)
    try:
        return open_it()
    except JournalMissing:
        if not settings.uses_sandbox:
            raise
    make_journal(settings, command)
    return open_it()


def _opener(settings: Settings, command: str, kind: HolderKind) -> "Callable[[], SqliteJournal | PostgresJournal]":
    if (place := database_place(settings)) is not None:
        from paygw_batch.journal import open_postgres_journal  # noqa: PLC0415 (psycopg)

        return partial(open_postgres_journal, place, now=timestamp(utc_now()), holder=command, kind=kind)
    return partial(
        open_journal,
        settings.journal_path(),
        witness_dir=settings.witness_directory(),
        registry_dir=settings.registry_directory(),
        endpoint=settings.endpoint_identity(),
        now=timestamp(utc_now()),
        holder=command,
        kind=kind,
    )


def open_to_work(settings: Settings, command: str, kind: HolderKind = HolderKind.WORKER) -> "WorkerJournal":
    """Open the journal for a worker. Raises `UsageError` for one in a file: it belongs to one machine."""
    from paygw_batch.journal import open_worker_journal  # noqa: PLC0415 (psycopg)

    return open_worker_journal(shared_database(settings), now=timestamp(utc_now()), holder=command, kind=kind)


def workers_now(settings: Settings) -> Sequence[WorkerLife]:
    """Return the workers that have not said their end. Raises `UsageError` for a journal in a file: it has none."""
    place = shared_database(settings)
    from paygw_batch.journal import read_postgres_journal  # noqa: PLC0415 (psycopg)

    with closing(read_postgres_journal(place)) as journal:
        return journal.workers()


def shared_database(settings: Settings) -> "PostgresPlace":
    """Return the place of a journal that several hosts can share. Raises `UsageError` for one in a file."""
    if (place := database_place(settings)) is not None:
        return place
    raise UsageError(
        say("The journal is a file: workers share a journal in PostgreSQL."),
        hint=say("Set [journal] url (docs/several-hosts.md). On one machine, `paygw-batch submit` sends by itself."),
    )


def holder_now(settings: Settings) -> LockHolder | None:
    """Return the process that holds the journal, or None: nobody does. Nothing is taken or touched."""
    if (place := database_place(settings)) is not None:
        from paygw_batch.journal import postgres_holder  # noqa: PLC0415 (psycopg)

        return postgres_holder(place)
    return journal_holder(settings.journal_path())


def is_there(settings: Settings) -> bool:
    """Whether there can be a journal to look into. The sandbox's file is made by its first run."""
    return settings.journal.url is not None or settings.journal_path().exists()


def database_place(settings: Settings) -> "PostgresPlace | None":
    """Return the place of a journal in PostgreSQL; None where it is a file."""
    section = settings.journal
    if section.url is None:
        return None
    from paygw_batch.journal import place_of_database  # noqa: PLC0415 (psycopg)

    return place_of_database(
        section.url,
        replication=section.replication,
        witness_dir=settings.witness_directory(),
        registry_dir=settings.registry_directory(),
        journal=settings.journal_path(),
        endpoint=settings.endpoint_identity(),
        lease_s=section.lease_s,
        chunk_rows=section.chunk_rows,
    )


def make_journal(settings: Settings, command: str, *, beside: str | None = None) -> Identity | None:
    """Make the journal of the configured endpoint, and return which one it is; None where one is there already."""
    if (place := database_place(settings)) is not None:
        from paygw_batch.journal import new_postgres_journal  # noqa: PLC0415 (psycopg)

        return new_postgres_journal(place, now=timestamp(utc_now()), beside=beside)
    return new_journal(
        settings.journal_path(),
        witness_dir=settings.witness_directory(),
        registry_dir=settings.registry_directory(),
        endpoint=settings.endpoint_identity(),
        now=timestamp(utc_now()),
        holder=command,
        beside=beside,
    )


def move_to_database(settings: Settings, file: Path | None, by: str) -> "Move":
    """Move the journal in a file (None: at its default place) to the configured database."""
    place = database_place(settings)
    if place is None:
        raise UsageError(
            say("[journal] url names no database to move the journal to."),
            hint=say("Write the address of an empty database into [journal] url, and leave path out."),
        )
    from paygw_batch.journal import move_journal  # noqa: PLC0415 (psycopg)

    path = file or settings.journal_path()
    return move_journal(
        path,
        place,
        witness_dir=path.parent / "witness" if settings.uses_sandbox else settings.witness_directory(),
        words=settings.words(),
        now=timestamp(utc_now()),
        by=by,
    )


def check_has_roles(settings: Settings) -> None:
    """Raise `UsageError` for a journal in a file: it has no roles."""
    if settings.journal.url is None:
        raise UsageError(
            say("A journal in a file has no roles."),
            hint=say("Its owner may do everything with it, and nobody else anything."),
        )


def upgrade_journal(settings: Settings) -> tuple[int, int]:
    """Bring the tables of the journal up to this version of the program; return the versions before and now."""
    if (place := database_place(settings)) is None:
        raise UsageError(
            say("A journal in a file is brought up by the next command that writes to it."),
            hint=say("Nothing has to be done."),
        )
    from paygw_batch.journal import upgrade_postgres_journal  # noqa: PLC0415 (psycopg)

    return upgrade_postgres_journal(place, now=timestamp(utc_now()))


def give_rights(settings: Settings) -> Sequence[str]:
    """Give the roles of the journal their rights, and return the names of the roles; none for a file."""
    if (place := database_place(settings)) is None:
        return ()
    from paygw_batch.journal import give_postgres_rights  # noqa: PLC0415 (psycopg)

    return give_postgres_rights(place)


def role_in_database(settings: Settings) -> str | None:
    """Return the rights that this configuration has in the database of the journal; None for a file."""
    if (place := database_place(settings)) is None:
        return None
    from paygw_batch.journal import postgres_role  # noqa: PLC0415 (psycopg)

    role = postgres_role(place)
    return "none" if role is None else role.value


def adoption(settings: Settings, *, beside: str | None) -> Adoption:
    """Hold the configured journal, so that a person can look at it and call it the newest copy."""
    if settings.journal.url is not None:
        raise UsageError(
            "A journal in PostgreSQL is not adopted: every host that has its address may use it.",
            hint="`paygw-batch doctor` looks at it.",
        )
    return Adoption(
        settings.journal_path(),
        witness_dir=settings.witness_directory(),
        registry_dir=settings.registry_directory(),
        endpoint=settings.endpoint_identity(),
        now=timestamp(utc_now()),
        holder="journal adopt",
        beside=beside,
    )


def roll_call(settings: Settings) -> "Sequence[MissingHost]":
    """Show the witness of this host to the database, and return the hosts that have not shown theirs."""
    from paygw_batch.journal import roll_call_of  # noqa: PLC0415 (psycopg)

    return roll_call_of(_place_of_roll(settings))


def retire(settings: Settings, host: str, *, by: str) -> "tuple[MissingHost, int]":
    """Retire a host that is missing in the roll-call; return it, and how many rows it could have sent."""
    from paygw_batch.journal import retire_host  # noqa: PLC0415 (psycopg)

    return retire_host(_place_of_roll(settings), host, by=by, now=timestamp(utc_now()))


def _place_of_roll(settings: Settings) -> "PostgresPlace":
    place = database_place(settings)
    if place is None:
        raise UsageError(
            "A journal in a file has no other hosts: there is no roll-call.",
            hint="`paygw-batch journal adopt` says that a copy of it is the newest.",
        )
    return place


def shared_limits(settings: Settings) -> GateState:
    """Return the limits over all workers of the endpoint. Raises `UsageError` where they are in no database."""
    place = _shared_place(settings)
    from paygw_batch.journal import postgres_limits  # noqa: PLC0415 (psycopg)

    return postgres_limits(place)


def change_limits(settings: Settings, change: LimitChange) -> GateState:
    """Set limits over all workers, and return them. Raises `UsageError` where they are in no database."""
    place = _shared_place(settings)
    from paygw_batch.journal import change_postgres_limits  # noqa: PLC0415 (psycopg)

    return change_postgres_limits(place, change)


def _shared_place(settings: Settings) -> "PostgresPlace":
    if (place := database_place(settings)) is not None:
        return place
    raise UsageError(
        say("The journal is a file: one process sends, and its limits are in the configuration."),
        hint=say(
            "Set rate_per_s and concurrency in [submission]. Workers share limits where [journal] url names a database."
        ),
    )


@contextmanager
def journal_to_read(
    settings: Settings, tell: Tell | None = None, *, must_be_known: bool = False
) -> "Iterator[SqliteReader | PostgresReader]":
    """Open the journal for reading, also while a run holds it; `tell` takes its notes for a person.

    One that this machine knows nothing of is looked into all the same, unless it `must_be_known`.
    """
    journal = _reader(settings, must_be_known=must_be_known)
    try:
        if tell is not None:
            for note in journal.notes:
                tell(say("Note: {sentence}", sentence=note))
        yield journal
    finally:
        journal.close()


def _reader(settings: Settings, *, must_be_known: bool) -> "SqliteReader | PostgresReader":
    if (place := database_place(settings)) is not None:
        from paygw_batch.journal import read_postgres_journal  # noqa: PLC0415 (psycopg)

        return read_postgres_journal(place)
    return read_journal(
        settings.journal_path(),
        witness_dir=settings.witness_directory(),
        registry_dir=settings.registry_directory(),
        endpoint=settings.endpoint_identity(),
        must_be_known=must_be_known,
    )


@contextmanager
def journal_to_plan_with(settings: Settings) -> Iterator[JournalReader]:
    """Look into the journal that a run would use. Where the sandbox has none yet, that is an empty one."""
    if _must_be_made(settings):
        with closing(in_memory_journal()) as empty:
            yield empty
        return
    with journal_to_read(settings, must_be_known=True) as journal:
        yield journal


@contextmanager
def journal_to_name(settings: Settings, command: str) -> Iterator[JournalReader]:
    """Look into the journal that a document is to name. The sandbox makes its own first, where it has none yet."""
    if _must_be_made(settings):
        open_to_write(settings, command).close()
    with journal_to_read(settings, must_be_known=True) as journal:
        yield journal


def _must_be_made(settings: Settings) -> bool:
    """Whether the sandbox has no journal yet, in a file or in a database."""
    if not settings.uses_sandbox:
        return False
    if not is_there(settings):
        return True
    try:
        _reader(settings, must_be_known=True).close()
    except JournalMissing:
        return True
    return False


def find_batch(journal: JournalReader, batch: str) -> BatchRecord:
    """Return the batch that a person means: by id, by any unambiguous prefix of it, or by the path of its sheet."""
    records = journal.batches()
    found = [record for record in records if record.batch.startswith(batch.lower())]
    path = Path(batch)
    if not found and path.is_file():
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        # By its name the newest: of several worksheets of a workbook, each is a batch of its own.
        found = list({(r.operation, r.sheet_name): r for r in records if r.sheet_sha256 == digest}.values())
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(f"{record.batch} ({record.sheet_name})" for record in found)
        raise UsageError(
            say("{batch} could be any of {names}.", batch=batch, names=names),
            hint=say("Write the batch id, or more of it."),
        )
    raise UsageError(
        say("The journal has no batch {batch}.", batch=batch),
        hint=say("`paygw-batch status` lists the batches and their sheets."),
    )
