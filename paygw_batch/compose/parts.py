"""What settings come to: clock, rules, a validated sheet, the journal."""

import hashlib
import random
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import polars as pl

from paygw_batch.clock import timestamp
from paygw_batch.countries.load import load_operation, load_rules, minor_units_by_currency, operation_names
from paygw_batch.countries.rules import AmountUnit, Operation, Rules
from paygw_batch.engine.ports import World
from paygw_batch.errors import (
    ConfigurationError,
    HolderKind,
    InboxDamaged,
    JournalHeld,
    JournalMissing,
    SheetError,
    UsageError,
)
from paygw_batch.journal import (
    Adoption,
    BatchRecord,
    Identity,
    InboxReader,
    Journal,
    JournalReader,
    SqliteJournal,
    SqliteReader,
    in_memory_journal,
    inbox_path,
    new_journal,
    open_journal,
    read_journal,
)
from paygw_batch.run.quarantine_clock import clock_sentences
from paygw_batch.run.take_in import NotificationReader
from paygw_batch.settings.configuration import Settings
from paygw_batch.sheet.check.validate import validate_opened
from paygw_batch.sheet.model import Validated
from paygw_batch.sheet.pieces import InMemory, SheetSource
from paygw_batch.sheet.read.misdirected import refuse_misdirected
from paygw_batch.sheet.read.profiles import every_profile, known_headings
from paygw_batch.sheet.read.sheet_file import ReadOptions, open_sheet, sheet_of

PAYOUT = "payout"
PAYIN = "payin"
"""The operations: what `submit` and `collect` run, and what every batch is of one of."""


Tell = Callable[[str], None]
"""Takes a sentence that a person should read now."""


def utc_now() -> datetime:
    """Return the wall clock's time."""
    return datetime.now(UTC)


def real_world() -> World:
    """Return the real clock, nonces of 128 random bits, and chance."""
    return World(now=utc_now, nonce=partial(secrets.token_hex, 16), chance=random.random)


def rules_of(settings: Settings, operation: str) -> Rules:
    """Return what every country asks of an operation, with the operator's terms."""
    return load_rules(operation, settings.terms(operation))


def operation_of(rules: Rules) -> Operation:
    """Return the operation that rules are for."""
    return load_operation(next(iter(rules.values())).operation)


def as_answered(settings: Settings, operation: Operation) -> Operation:
    """Return the operation with the names that `[reply]` gives to what a reply says."""
    section = settings.reply
    named = {name: tuple(paths) for name, paths in section if isinstance(paths, list)}
    unit, minor_units = AmountUnit(section.amount_unit), minor_units_by_currency()
    return replace(operation, reply=replace(operation.reply, **named, amount_unit=unit, minor_units=minor_units))


def minor_units_of(rules: Rules) -> Mapping[str, int]:
    """Return how many decimals each currency has."""
    return {rule.currency: rule.minor_units for rule in rules.values()}


def validated_sheet(
    settings: Settings, rules: Rules, path: Path, *, reference: str | None, worksheet: str | None = None
) -> Validated:
    """Read and validate a sheet by the rules of its operation; `worksheet` names one of a workbook's."""
    return _validated(open_sheet(path, read_options(settings, operation_of(rules).name, worksheet)), rules, reference)


def validated_frame(
    settings: Settings, rules: Rules, frame: pl.DataFrame, *, name: str, reference: str | None
) -> Validated:
    """Validate a frame as a sheet called `name`, by the rules of its operation."""
    sheet = sheet_of(frame, read_options(settings, operation_of(rules).name), name=name)
    return _validated(InMemory(sheet), rules, reference)


def _validated(source: SheetSource, rules: Rules, reference: str | None) -> Validated:
    try:
        refuse_misdirected(source, {name: load_operation(name).command for name in operation_names()})
    except SheetError:
        source.whole()  # what is wrong with the file itself is told first
        raise
    return validate_opened(source, rules, reference=reference)


def read_options(settings: Settings, operation: str, worksheet: str | None = None) -> ReadOptions:
    """Return how sheets of an operation are read."""
    return ReadOptions(
        max_rows=settings.limits.max_rows,
        max_sheet_bytes=settings.limits.max_sheet_mib * 1024 * 1024,
        code_page=settings.sheet.code_page,
        sheet_name=worksheet,
        aliases=known_headings(settings.sheet.column_profile, settings.columns),
        operation=operation,
        profiles=every_profile(settings.columns),
    )


def require_gateway(settings: Settings) -> None:
    """Raise `ConfigurationError` naming every key that sending anything at all still needs."""
    _require(settings.missing_to_send())


def require_complete(settings: Settings, rules: Rules, countries: set[str]) -> None:
    """Raise `ConfigurationError` naming every key that sending to `countries` still needs."""
    used = [rules[code] for code in sorted(countries) if code in rules]
    of_countries = [key for rule in used if rule.form is not None for key in rule.missing_terms]
    _require([*settings.missing_to_send(), *settings.missing_for(operation_of(rules).name), *of_countries])


def require_endpoint(settings: Settings) -> None:
    """Raise `ConfigurationError` naming every key that still needs saying which endpoint a journal is for."""
    keys = {"gateway.base_url", "gateway.endpoint_id", "gateway.consumer_key"}
    _require([key for key in settings.missing_to_send() if key in keys])


def _require(missing: Sequence[str]) -> None:
    if missing:
        raise ConfigurationError(
            f"The configuration does not say {', '.join(missing)}.",
            hint="The gateway's interface leaves these open, so there is no default: write them into the file that "
            "--config names. `paygw-batch doctor` lists all that is missing.",
        )


WAIT_EVERY_S = 0.5
"""How often a run that waits for another one looks whether it has ended."""
_FOR_A_MOMENT = frozenset({HolderKind.LISTENER, HolderKind.STARTING})
"""Who is waited for unasked: a listener lets go of the journal again, and what has just started may be one."""
LISTENER_LIMIT_S = 30.0
"""How long any command waits for that moment to end. A listener that needs longer is stuck."""


@contextmanager
def run_journal(settings: Settings, command: str, tell: Tell, *, wait: bool = False) -> Iterator[Journal]:
    """Hold the journal for a run: one at a time, and nothing left in flight by the one before.

    Raises `JournalHeld` when another run has it, unless asked to `wait`.
    """
    journal = _opened(settings, command, tell, wait=wait)
    try:
        for note in journal.notes:
            tell(f"Note: {note}")
        for sentence in clock_sentences(journal, utc_now()):
            tell(f"Note: {sentence}")
        if interrupted := journal.interrupt(timestamp(utc_now())):
            tell(f"{interrupted:,} rows were in flight when the run before this one ended: they are in doubt now.")
        take_in_waiting(intake_of(settings), journal, tell)
        yield journal
    finally:
        journal.close()


def intake_of(settings: Settings) -> NotificationReader:
    """Return what takes notifications from the inbox into the journal."""
    return NotificationReader(settings.journal_path(), settings.words(), utc_now)


def take_in_waiting(intake: NotificationReader, journal: Journal, tell: Tell, *, is_quiet: bool = False) -> None:
    """Take in the notifications that wait. A damaged inbox is told, and stops nothing: payouts do not need it."""
    try:
        findings = intake.take(journal)
    except InboxDamaged as error:
        tell(f"Note: {error.message} {error.hint}")
        return
    if findings and not is_quiet:
        told = ", ".join(f"{count:,} {finding.replace('_', ' ')}" for finding, count in sorted(findings.items()))
        tell(f"{findings.total():,} notifications were taken in: {told}.")


def waiting_in_inbox(settings: Settings, journal: JournalReader) -> int:
    """Check the inbox; return how many notifications the journal has not taken in yet. Raises `InboxDamaged`."""
    with closing(InboxReader(inbox_path(settings.journal_path()))) as inbox:
        return inbox.verify(journal.inbox_end())


def _opened(settings: Settings, command: str, tell: Tell, *, wait: bool) -> SqliteJournal:
    has_told = False
    give_up_s = time.monotonic() + LISTENER_LIMIT_S
    while True:
        try:
            return open_to_write(settings, command)
        except JournalHeld as held:
            is_moment = held.holder in _FOR_A_MOMENT and time.monotonic() < give_up_s
            if not wait and not is_moment:
                raise
            if not has_told and not is_moment:
                tell(f"Waiting: {held.message}")
                has_told = True
            time.sleep(WAIT_EVERY_S / 10 if is_moment else WAIT_EVERY_S)


def open_to_write(settings: Settings, command: str, kind: HolderKind = HolderKind.RUN) -> SqliteJournal:
    """Open the journal and hold it. The sandbox's is made where there is none; no other is.

    Raises `JournalHeld` at once when another process has it, and `JournalMissing` where there is none.
    """
    open_it = partial(
        open_journal,
        settings.journal_path(),
        witness_dir=settings.witness_directory(),
        registry_dir=settings.registry_directory(),
        endpoint=settings.endpoint_identity(),
        now=timestamp(utc_now()),
        holder=command,
        kind=kind,
    )
    try:
        return open_it()
    except JournalMissing:
        if not settings.uses_sandbox:
            raise
    make_journal(settings, command)
    return open_it()


def make_journal(settings: Settings, command: str, *, beside: str | None = None) -> Identity | None:
    """Make the journal of the configured endpoint, and return which one it is; None where one is there already."""
    return new_journal(
        settings.journal_path(),
        witness_dir=settings.witness_directory(),
        registry_dir=settings.registry_directory(),
        endpoint=settings.endpoint_identity(),
        now=timestamp(utc_now()),
        holder=command,
        beside=beside,
    )


def adoption(settings: Settings, *, beside: str | None) -> Adoption:
    """Hold the configured journal, so that a person can look at it and call it the newest copy."""
    return Adoption(
        settings.journal_path(),
        witness_dir=settings.witness_directory(),
        registry_dir=settings.registry_directory(),
        endpoint=settings.endpoint_identity(),
        now=timestamp(utc_now()),
        holder="journal adopt",
        beside=beside,
    )


@contextmanager
def journal_to_read(
    settings: Settings, tell: Tell | None = None, *, must_be_known: bool = False
) -> Iterator[SqliteReader]:
    """Look into the journal, also while a run holds it; `tell` takes what a person should read about it.

    One that this machine knows nothing of is looked into all the same, unless it `must_be_known`.
    """
    journal = read_journal(
        settings.journal_path(),
        witness_dir=settings.witness_directory(),
        registry_dir=settings.registry_directory(),
        endpoint=settings.endpoint_identity(),
        must_be_known=must_be_known,
    )
    try:
        if tell is not None:
            for note in journal.notes:
                tell(f"Note: {note}")
        yield journal
    finally:
        journal.close()


@contextmanager
def journal_to_plan_with(settings: Settings) -> Iterator[JournalReader]:
    """Look into the journal that a run would use. Where the sandbox has none yet, that is an empty one."""
    if settings.uses_sandbox and not settings.journal_path().exists():
        with closing(in_memory_journal()) as empty:
            yield empty
        return
    with journal_to_read(settings, must_be_known=True) as journal:
        yield journal


@contextmanager
def journal_to_name(settings: Settings, command: str) -> Iterator[JournalReader]:
    """Look into the journal that a document is to name. The sandbox makes its own first, where it has none yet."""
    if settings.uses_sandbox and not settings.journal_path().exists():
        open_to_write(settings, command).close()
    with journal_to_read(settings, must_be_known=True) as journal:
        yield journal


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
        raise UsageError(f"{batch} could be any of {names}.", hint="Write the batch id, or more of it.")
    raise UsageError(
        f"The journal has no batch {batch}.", hint="`paygw-batch status` lists the batches and their sheets."
    )
