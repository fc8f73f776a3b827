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
from paygw_batch.journal.file_place import FilePlace, in_memory_journal
from paygw_batch.journal.place import JournalPlace
from paygw_batch.language import say, say_count
from paygw_batch.settings.configuration import Settings

if TYPE_CHECKING:
    from paygw_batch.cluster.database_place import DatabasePlace

T = TypeVar("T")
Echo = Callable[[str], None]
"""A function that receives a sentence which a person should read now."""


def journal_location(settings: Settings) -> JournalPlace:
    return database_location(settings) or file_location(settings)


def file_location(settings: Settings, path: Path | None = None) -> FilePlace:
    """Return the location of the journal in the file at `path`, or at the configured path."""
    path = path or settings.journal_path()
    return FilePlace(
        path, endpoint=settings.endpoint_identity(), known_dir=settings.known_journals_directory(path), now=_now
    )


def database_location(settings: Settings) -> "DatabasePlace | None":
    """Return the location of a journal in PostgreSQL, or None if the journal is a file."""
    section = settings.journal
    if section.url is None:
        return None
    cluster = extra("cluster.database_place")
    location: DatabasePlace = cluster.DatabasePlace(
        cluster.Server(section.url, section.replication),
        section.intent_lives_s,
        endpoint=settings.endpoint_identity(),
        known_dir=settings.known_journals_directory(),
        now=_now,
    )
    return location


def _now() -> str:
    return timestamp(utc_now())


def require_database(settings: Settings, message: str, hint: str) -> "DatabasePlace":
    """Return the location of a journal in PostgreSQL. Raises `UsageError` with this message if it is a file."""
    if (location := database_location(settings)) is None:
        raise UsageError(message, hint=hint)
    return location


def require_workers(settings: Settings) -> "DatabasePlace":
    """Return the location of a journal in PostgreSQL. Raises `UsageError` if the journal is a file."""
    return require_database(
        settings,
        say("The journal is a file: workers share a journal in PostgreSQL."),
        say("Set [journal] url (docs/several-hosts.md). On one machine, `paygw-batch submit` sends by itself."),
    )


def open_to_write(settings: Settings, command: str, kind: HolderKind = HolderKind.RUN) -> Journal:
    """Open the journal for writing and hold it. Only the sandbox's journal is created if missing."""
    location = journal_location(settings)
    try:
        return location.open_to_write(command, kind)
    except JournalMissing:
        if not settings.uses_sandbox:
            raise
    location.make(command)
    return location.open_to_write(command, kind)


@contextmanager
def open_journal_to_read(
    settings: Settings, echo: Echo | None = None, *, must_be_known: bool = False
) -> Iterator[JournalReader]:
    """Open the journal for reading, even while a run holds it. `echo` is called with the journal's notes.

    A journal that this machine does not know is opened too, unless it `must_be_known`.
    """
    with closing(journal_location(settings).open_to_read(must_be_known=must_be_known)) as journal:
        if echo is not None:
            report_notes(journal, echo)
        yield journal


def report_notes(journal: JournalReader, echo: Echo) -> None:
    for note in journal.notes:
        echo(say("Note: {sentence}", sentence=note))


@contextmanager
def journal_for_planning(settings: Settings) -> Iterator[JournalReader]:
    """Open the journal of a run for reading. If the sandbox has none yet, this is an empty one in memory."""
    if _needs_creation(settings):
        with closing(in_memory_journal()) as empty:
            yield empty
        return
    with open_journal_to_read(settings, must_be_known=True) as journal:
        yield journal


@contextmanager
def journal_for_document(settings: Settings, command: str, *, must_be_known: bool = True) -> Iterator[JournalReader]:
    """Open a document's journal for reading. The sandbox's journal is created if missing."""
    if _needs_creation(settings):
        open_to_write(settings, command).close()
    with open_journal_to_read(settings, must_be_known=must_be_known) as journal:
        yield journal


def _needs_creation(settings: Settings) -> bool:
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
    """Find a batch by its id, by an unambiguous prefix of the id, or by the path of its sheet.

    Raises `UsageError` unless exactly one batch matches.
    """
    if not batch.strip():  # In a shell, this is a variable that was never set. As a prefix, it would fit any batch.
        raise UsageError(
            say("The batch is empty."), hint=say("`paygw-batch status` lists the batches and their sheets.")
        )
    records = journal.batches()
    matches = [record for record in records if record.batch.startswith(batch.lower())]
    if not matches and os.path.isfile(batch):  # noqa: PTH113 (Path.is_file raises for a name that is too long)
        with Path(batch).open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        # Keep only the newest batch of each name. Each worksheet of a workbook is a separate batch.
        matches = list({(r.operation, r.sheet_name): r for r in records if r.sheet_sha256 == digest}.values())
    if len(matches) == 1:
        return matches[0]
    if matches:
        names = ", ".join(f"{record.batch} ({record.sheet_name})" for record in matches)
        raise UsageError(
            say("{batch} could be any of {names}.", batch=batch, names=names),
            hint=say("Give the whole batch id, or more of it."),
        )
    raise UsageError(
        say("The journal has no batch {batch}.", batch=batch),
        hint=say("`paygw-batch status` lists the batches and their sheets."),
    )


RETRY_INTERVAL_S = 0.5
"""The interval in seconds at which a run that waits for another one tries again."""


_SHORT_HOLDERS = frozenset({HolderKind.LISTENER, HolderKind.STARTING, HolderKind.WORKER})
"""The holders for which a command waits even without `wait`, because they release the journal soon."""


MAX_SHORT_WAIT_S = 30.0
"""The maximum time that a command waits for such a holder. A listener that needs longer is stuck."""


@contextmanager
def open_journal_for_run(settings: Settings, command: str, echo: Echo, *, wait: bool = False) -> Iterator[Journal]:
    """Hold the journal for a run and put rows that an interrupted run left in flight in doubt.

    Raises `JournalHeld` if another run has the journal, unless asked to `wait`.
    """
    journal = _acquire_lock(lambda: open_to_write(settings, command), echo, wait=wait)
    try:
        report_notes(journal, echo)
        for sentence in JournalClock.read(journal, utc_now()).sentences():
            echo(say("Note: {sentence}", sentence=sentence))
        # The request of a row in flight may have arrived, although its run has ended. The row must be in doubt before
        # anything else is sent.
        if interrupted := journal.mark_interrupted(timestamp(utc_now())):
            sentence = say_count(
                interrupted,
                "{count:,} row was in flight when the last run ended. It is in doubt now.",
                "{count:,} rows were in flight when the last run ended. They are in doubt now.",
            )
            echo(sentence)
        judge_arrivals(settings, journal, echo)
        yield journal
    finally:
        journal.close()


def require_journal(settings: Settings, command: str) -> str:
    """Return the id of the journal. The sandbox's journal is created if missing.

    Raises `JournalError` if there is no such journal.
    """
    with journal_for_document(settings, command) as journal:
        return journal.head().journal_id


def judge_arrivals(settings: Settings, journal: Journal, echo: Echo, *, is_quiet: bool = False) -> None:
    findings = journal.judge_arrivals(settings.words(), at=timestamp(utc_now()))
    if findings and not is_quiet:
        sentence = say_count(
            findings.total(),
            "{count:,} notification was recorded: {findings}.",
            "{count:,} notifications were recorded: {findings}.",
            findings=", ".join(format_finding_count(count, finding) for finding, count in sorted(findings.items())),
        )
        echo(sentence)


@contextmanager
def exclusive_task(settings: Settings, name: str, echo: Echo, *, wait: bool) -> Iterator[None]:
    """Let only one process of all hosts run the task `name`. A journal in a file is used by one host only."""
    with ExitStack() as stack:
        if (database := database_location(settings)) is not None:
            _acquire_lock(lambda: stack.enter_context(database.run_exclusively(name)), echo, wait=wait)
        yield


def reacquire_journal(journal: Journal, echo: Echo, *, wait: bool) -> None:
    """Reacquire the journal after a batch was handed over to workers, like `open_journal_for_run`."""
    _acquire_lock(journal.reacquire_lock, echo, wait=wait)


def _acquire_lock(hold: Callable[[], T], echo: Echo, *, wait: bool) -> T:
    """Take a lock that another process may hold. Wait for a moment or, with `wait`, as long as necessary."""
    has_notified = False
    give_up_s = time.monotonic() + MAX_SHORT_WAIT_S
    while True:
        try:
            return hold()
        except JournalHeld as error:
            is_moment = error.holder in _SHORT_HOLDERS and time.monotonic() < give_up_s
            if not wait and not is_moment:
                raise
            if not has_notified and not is_moment:
                echo(say("Waiting: {message}", message=error.message))
                has_notified = True
            time.sleep(RETRY_INTERVAL_S / 10 if is_moment else RETRY_INTERVAL_S)
