"""Opens the configured journal for reading, writing or a run, and finds batches in it."""

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from paygw_batch.clock import timestamp, utc_now
from paygw_batch.core.shown_states import format_finding_count
from paygw_batch.engine.quarantine import JournalClock
from paygw_batch.errors import HolderKind, JournalHeld, JournalMissing, UsageError
from paygw_batch.extras import extra
from paygw_batch.journal import BatchRecord, Journal, JournalReader
from paygw_batch.journal.file_location import FileLocation, in_memory_journal
from paygw_batch.journal.location import JournalLocation
from paygw_batch.language import say, say_count
from paygw_batch.settings.configuration import Settings

if TYPE_CHECKING:
    from paygw_batch.cluster.database_location import DatabaseLocation

T = TypeVar("T")
Echo = Callable[[str], None]
"""A function that shows a message to a person."""


def journal_location(settings: Settings) -> JournalLocation:
    return database_location(settings) or file_location(settings)


def file_location(settings: Settings, path: Path | None = None) -> FileLocation:
    """Return the location of the journal in the file at `path`, or at the configured path."""
    path = path or settings.journal_path()
    return FileLocation(
        path, endpoint=settings.endpoint_identity(), known_dir=settings.known_journals_directory(path), now=_now
    )


def database_location(settings: Settings) -> "DatabaseLocation | None":
    """Return the location of the journal in PostgreSQL, or None if the journal is a file."""
    section = settings.journal
    if section.url is None:
        return None
    module = extra("cluster.database_location")
    location: DatabaseLocation = module.DatabaseLocation(
        module.Server(section.url, section.replication),
        section.intent_lives_s,
        endpoint=settings.endpoint_identity(),
        known_dir=settings.known_journals_directory(),
        now=_now,
    )
    return location


def _now() -> str:
    return timestamp(utc_now())


def require_database(settings: Settings, message: str, hint: str) -> "DatabaseLocation":
    """Return the location of the journal in PostgreSQL. Raises `UsageError` if the journal is a file."""
    if (location := database_location(settings)) is None:
        raise UsageError(message, hint=hint)
    return location


def require_workers(settings: Settings) -> "DatabaseLocation":
    """Return the location of the database that workers share. Raises `UsageError` if the journal is a file."""
    return require_database(
        settings,
        say("The journal is a file, but workers need a journal in PostgreSQL."),
        say("Set [journal] url (docs/several-hosts.md). On a single host, `paygw-batch submit` sends without workers."),
    )


def open_to_write(settings: Settings, command: str, kind: HolderKind = HolderKind.RUN) -> Journal:
    """Open and lock the journal for writing. A missing journal is created only for the sandbox."""
    location = journal_location(settings)
    try:
        return location.open_to_write(command, kind)
    except JournalMissing:
        if not settings.uses_sandbox:
            raise
    location.create(command)
    return location.open_to_write(command, kind)


@contextmanager
def open_journal_to_read(
    settings: Settings, echo: Echo | None = None, *, must_be_known: bool = False
) -> Iterator[JournalReader]:
    """Open the journal for reading, even during a run. An unregistered journal is refused only if `must_be_known`."""
    with closing(journal_location(settings).open_to_read(must_be_known=must_be_known)) as journal:
        if echo is not None:
            report_notes(journal, echo)
        yield journal


def report_notes(journal: JournalReader, echo: Echo) -> None:
    for note in journal.notes:
        echo(say("Note: {sentence}", sentence=note))


@contextmanager
def journal_for_planning(settings: Settings) -> Iterator[JournalReader]:
    """Open the journal to plan a run. If the sandbox has no journal yet, use an empty one in memory."""
    if _is_sandbox_journal_missing(settings):
        with closing(in_memory_journal()) as empty:
            yield empty
        return
    with open_journal_to_read(settings, must_be_known=True) as journal:
        yield journal


@contextmanager
def journal_for_document(settings: Settings, command: str, *, must_be_known: bool = True) -> Iterator[JournalReader]:
    """Open the journal to read it for a plan or an order. If the sandbox has no journal yet, create one."""
    if _is_sandbox_journal_missing(settings):
        open_to_write(settings, command).close()
    with open_journal_to_read(settings, must_be_known=must_be_known) as journal:
        yield journal


def _is_sandbox_journal_missing(settings: Settings) -> bool:
    if not settings.uses_sandbox:
        return False
    location = journal_location(settings)
    if not location.may_exist():
        return True
    try:
        location.open_to_read(must_be_known=True).close()
    except JournalMissing:
        return True
    return False


def find_batch(journal: JournalReader, batch: str) -> BatchRecord:
    """Find a batch by its id, a prefix of it, or its sheet's path. Raises `UsageError` unless exactly one matches."""
    if not batch.strip():  # Usually an unset shell variable. As a prefix, it would match every batch.
        message = say("The batch id is empty.")
        raise UsageError(message, hint=say("To list the batches and their sheets, run `paygw-batch status`."))
    records = journal.batches()
    matches = [record for record in records if record.batch.startswith(batch.lower())]
    if not matches and os.path.isfile(batch):  # noqa: PTH113 (Path.is_file raises for a name that is too long)
        with Path(batch).open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        # Each worksheet of a workbook is a separate batch. Keep only the newest batch of each worksheet.
        matches = list({(r.operation, r.sheet_name): r for r in records if r.sheet_sha256 == digest}.values())
    if len(matches) == 1:
        return matches[0]
    if matches:
        names = ", ".join(f"{record.batch} ({record.sheet_name})" for record in matches)
        message = say("{batch} matches several batches: {names}.", batch=batch, names=names)
        raise UsageError(message, hint=say("Use more characters of the batch id."))
    message = say("The journal has no batch {batch}.", batch=batch)
    raise UsageError(message, hint=say("To list the batches and their sheets, run `paygw-batch status`."))


RETRY_INTERVAL_S = 0.5
"""The interval between attempts to lock a journal that another run holds."""

_BRIEF_HOLDERS = frozenset({HolderKind.LISTENER, HolderKind.STARTING, HolderKind.WORKER})
"""The kinds of processes that hold the journal only briefly. A command waits for them even without --wait."""

MAX_BRIEF_WAIT_S = 30.0
"""The maximum wait for a process that should hold the journal only briefly. If it takes longer, it is stuck."""


@contextmanager
def open_journal_for_run(settings: Settings, command: str, echo: Echo, *, wait: bool = False) -> Iterator[Journal]:
    """Open and lock the journal for a run. Mark rows that an interrupted run left in flight as in doubt.

    Also records pending notifications. Raises `JournalHeld` if another run holds the journal and `wait` is false.
    """
    journal = _acquire_lock(lambda: open_to_write(settings, command), echo, wait=wait)
    try:
        report_notes(journal, echo)
        for message in JournalClock.read(journal, utc_now()).messages():
            echo(say("Note: {sentence}", sentence=message))
        # The request for a row in flight may have arrived even though its run has ended, so the row must be in doubt
        # before anything else is sent.
        if interrupted_count := journal.mark_interrupted(timestamp(utc_now())):
            message = say_count(
                interrupted_count,
                "{count:,} row was in flight when the last run ended. It is now in doubt.",
                "{count:,} rows were in flight when the last run ended. They are now in doubt.",
            )
            echo(message)
        process_arrivals(settings, journal, echo)
        yield journal
    finally:
        journal.close()


def require_journal_id(settings: Settings, command: str) -> str:
    """Return the journal's id. Raises `JournalError` if there is none, except in the sandbox, which creates one."""
    with journal_for_document(settings, command) as journal:
        return journal.head().journal_id


def process_arrivals(settings: Settings, journal: Journal, echo: Echo, *, is_quiet: bool = False) -> None:
    """Record pending notifications in the journal, and show how many unless `is_quiet`."""
    counts = journal.process_arrivals(settings.words(), at=timestamp(utc_now()))
    if counts and not is_quiet:
        message = say_count(
            counts.total(),
            "{count:,} notification was recorded: {findings}.",
            "{count:,} notifications were recorded: {findings}.",
            findings=", ".join(format_finding_count(count, finding) for finding, count in sorted(counts.items())),
        )
        echo(message)


@contextmanager
def exclusive_task(settings: Settings, name: str, echo: Echo, *, wait: bool) -> Iterator[None]:
    """Keep other processes, on any host, from running the task `name`. Does nothing for a journal in a file."""
    with ExitStack() as stack:
        if (database := database_location(settings)) is not None:
            _acquire_lock(lambda: stack.enter_context(database.run_exclusively(name)), echo, wait=wait)
        yield


def reacquire_journal(journal: Journal, echo: Echo, *, wait: bool) -> None:
    """Lock the journal again after it was released to workers. Waits for another holder like `open_journal_for_run`."""
    _acquire_lock(journal.reacquire_lock, echo, wait=wait)


def _acquire_lock(acquire: Callable[[], T], echo: Echo, *, wait: bool) -> T:
    """Acquire a lock. Waits for a brief holder or, if `wait` is true, for any holder as long as necessary."""
    has_shown_wait = False
    deadline_s = time.monotonic() + MAX_BRIEF_WAIT_S
    while True:
        try:
            return acquire()
        except JournalHeld as error:
            is_brief_wait = error.holder in _BRIEF_HOLDERS and time.monotonic() < deadline_s
            if not wait and not is_brief_wait:
                raise
            if not has_shown_wait and not is_brief_wait:
                echo(say("Waiting: {message}", message=error.message))
                has_shown_wait = True
            time.sleep(RETRY_INTERVAL_S / 10 if is_brief_wait else RETRY_INTERVAL_S)
