"""`paygw-batch resolve`: a person settles rows in doubt, one by one or by a statement of the gateway's."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import click

from paygw_batch.cli.options import by_option, settings_of, wait_option
from paygw_batch.cli.render import Screen
from paygw_batch.cli.root import Invocation
from paygw_batch.cli.standing import batch_summary
from paygw_batch.compose.parts import find_batch, journal_to_read, run_journal, utc_now
from paygw_batch.compose.person import in_words, person
from paygw_batch.core.evidence import HOLDING
from paygw_batch.core.lifecycle import Resolution
from paygw_batch.countries.load import minor_units_by_currency
from paygw_batch.errors import UsageError
from paygw_batch.journal.port import BatchRecord, Journal, JournalReader
from paygw_batch.run.ports import timestamp
from paygw_batch.run.resolve import Settlement, check_settlements, settle
from paygw_batch.run.statement import Matched, StatementReader
from paygw_batch.run.summary import ExitCode, Summary, worst
from paygw_batch.settings import Settings
from paygw_batch.sheet.statement import Statement, read_statement

Units = Mapping[str, int]
"""How many decimals each currency has."""

SHOWN_LINES = 20
"""How many lines of a kind are listed on a screen."""


@click.command("resolve", short_help="Settle rows in doubt.")
@click.argument("batch")
@click.option("--row", "rows", type=click.IntRange(1), multiple=True, help="The row of the sheet. Repeatable.")
@click.option("--as", "resolution", type=click.Choice([one.value for one in Resolution]), help="What became of it.")
@click.option("--evidence", metavar="TEXT", help="How you know: who said so, when, under which ticket.")
@click.option("--from", "file", type=click.Path(path_type=Path), help="A statement of the gateway's, as CSV.")
@click.option("--yes", is_flag=True, help="With --from: carry out what the preview shows.")
@click.option("--matching-only", is_flag=True, help="With --from: settle the lines that fit, though others do not.")
@by_option
@wait_option
@click.pass_obj
def command(
    invocation: Invocation,
    *,
    batch: str,
    rows: tuple[int, ...],
    resolution: str | None,
    evidence: str | None,
    file: Path | None,
    yes: bool,
    matching_only: bool,
    by: str | None,
    wait: bool,
) -> None:
    """Settle rows of BATCH that are in doubt (or accepted and never answered, or held), with the evidence for it.

    Either name rows (--row, --as, --evidence), or give a statement (--from FILE): without --yes it is only held
    against the journal, and nothing changes.
    """
    started_s = time.monotonic()
    screen = Screen(invocation)
    who = person(by)
    words = None if evidence is None else in_words(evidence, "--evidence")
    settings = settings_of(invocation)
    if file is not None:
        if rows or resolution:
            raise UsageError("--from speaks for itself: leave --row and --as out.")
        summary = _by_statement(
            settings, screen, batch, file, words, who, yes=yes, matching_only=matching_only, wait=wait
        )
    elif yes or matching_only:
        raise UsageError("--yes and --matching-only belong to --from FILE.")
    elif not rows or resolution is None or words is None:
        raise UsageError("Say --row, --as and --evidence, or give a statement with --from FILE.")
    else:
        settlements = [Settlement(row, Resolution(resolution), words) for row in sorted(set(rows))]
        summary = _by_hand(settings, screen, batch, settlements, who, wait=wait)
    screen.finish(replace(summary, seconds=time.monotonic() - started_s))


def _by_hand(
    settings: Settings, screen: Screen, batch: str, settlements: Sequence[Settlement], who: str, *, wait: bool
) -> Summary:
    units = minor_units_by_currency()
    with run_journal(settings, "resolve", screen.say, wait=wait) as journal:
        record = find_batch(journal, batch)
        quarantine_h = settings.submission.quarantine_h
        check_settlements(journal, record, settlements, quarantine_h=quarantine_h, now=utc_now)
        settle(journal, record, settlements, by=who, now=utc_now)
        screen.say(_settled_sentence(settlements, who))
        return _after(journal, record, units, {"resolved": len(settlements)})


def _by_statement(
    settings: Settings,
    screen: Screen,
    batch: str,
    file: Path,
    words: str | None,
    who: str,
    *,
    yes: bool,
    matching_only: bool,
    wait: bool,
) -> Summary:
    units = minor_units_by_currency()
    statement = read_statement(file, settings.statement.columns, code_page=settings.sheet.code_page)
    if not yes:
        with journal_to_read(settings) as journal:
            record = find_batch(journal, batch)
            matched = _reader(settings, units, journal, record).match(statement)
            _show(screen, matched)
            summary = _after(journal, record, units, _told(matched, 0, 0))
        does = f"would settle {len(matched.settlements):,} rows"
        if matched.contrary:
            does += f" and hold {len(matched.contrary):,} (--yes holds them, whatever else does not fit)"
        if matched.differences and not matching_only:
            return _refused(summary, f"The statement {does}, but {_count(matched)}.")
        return replace(summary, message=f"The statement {does}. Nothing was changed: --yes carries it out.")
    with run_journal(settings, "resolve", screen.say, wait=wait) as journal:
        record = find_batch(journal, batch)
        reader = _reader(settings, units, journal, record)
        matched = reader.match(statement)
        _show(screen, matched)
        held = _hold(journal, reader, statement, matched, who, screen)
        if matched.differences and not matching_only:
            return _refused(
                _after(journal, record, units, _told(matched, 0, held)), f"Of the statement, {_count(matched)}."
            )
        settlements = [
            replace(one, evidence=f"{words} ({one.evidence})" if words else one.evidence) for one in matched.settlements
        ]
        settle(journal, record, settlements, by=who, now=utc_now)
        screen.say(_settled_sentence(settlements, who))
        summary = _after(journal, record, units, _told(matched, len(settlements), held))
    if matched.differences:
        return replace(summary, exit_code=worst({summary.exit_code, ExitCode.PERSON_NEEDED}))
    return summary


def _hold(
    journal: Journal, reader: StatementReader, statement: Statement, matched: Matched, who: str, screen: Screen
) -> int:
    """Keep the lines that must keep their orders from being sent as evidence; return how many orders they hold."""
    if not matched.contrary:
        return 0
    evidence = reader.evidence(statement, matched.contrary, who)
    taken = journal.take_in(evidence, reader.meanings(statement), at=timestamp(utc_now()))
    held = sum(finding in HOLDING for finding in taken)
    screen.say(
        f"Held by {who}: {held:,} {'order' if held == 1 else 'orders'} that could be sent from here, and that the "
        "gateway has by the statement. No run sends a held row: `paygw-batch status` says what to do about each."
    )
    return held


def _reader(settings: Settings, units: Units, journal: JournalReader, record: BatchRecord) -> StatementReader:
    return StatementReader(
        journal,
        record,
        words=settings.words(),
        minor_units=units,
        quarantine_h=settings.submission.quarantine_h,
        now=utc_now,
    )


def _show(screen: Screen, matched: Matched) -> None:
    if matched.settlements:
        screen.table(
            "What the statement settles",
            ("row", "becomes", "evidence"),
            [(one.row, one.resolution.value, one.evidence) for one in matched.settlements[:SHOWN_LINES]],
        )
        _more(screen, len(matched.settlements))
    if matched.differences:
        screen.table(
            "What does not fit the journal",
            ("line", "order id", "why"),
            [(one.line, one.order_id, one.sentence) for one in matched.differences[:SHOWN_LINES]],
        )
        _more(screen, len(matched.differences))
    screen.say(
        f"{matched.agreeing:,} lines agree with the journal; {matched.elsewhere:,} speak of other batches; "
        f"{matched.waiting:,} rows are not decided yet; {len(matched.silent):,} rows in doubt stay in doubt."
    )


def _more(screen: Screen, count: int) -> None:
    if count > SHOWN_LINES:
        screen.say(f"... and {count - SHOWN_LINES:,} more: --json lists all of them.")


def _count(matched: Matched) -> str:
    count = len(matched.differences)
    return f"{count:,} {'line does' if count == 1 else 'lines do'} not fit the journal"


def _refused(summary: Summary, said: str) -> Summary:
    message = f"{said} Nothing was settled: clear them up with the gateway, or settle what fits with --matching-only."
    return replace(summary, exit_code=ExitCode.DEFECTS, message=message)


def _told(matched: Matched, resolved: int, held: int) -> dict[str, object]:
    return {
        "resolved": resolved,
        "held": held,
        "would_hold": [line.order_id for line in matched.contrary],
        "would_resolve": [{"row": one.row, "as": one.resolution.value} for one in matched.settlements],
        "differences": [
            {"line": one.line, "order_id": one.order_id, "message": one.sentence} for one in matched.differences
        ],
        "agreeing": matched.agreeing,
        "elsewhere": matched.elsewhere,
        "waiting": matched.waiting,
        "still_in_doubt": [row.row for row in matched.silent],
    }


def _settled_sentence(settlements: Sequence[Settlement], who: str) -> str:
    counts = Counter(one.resolution for one in settlements)
    told = ", ".join(f"{count:,} {one.value.replace('-', ' ')}" for one, count in counts.items()) or "nothing"
    sentence = f"Resolved by {who}: {told}."
    if counts[Resolution.NOT_RECEIVED]:
        sentence += (
            " What was not received is ready again under its old order id, marked for ever as a possible duplicate; "
            "`paygw-batch resume` sends it."
        )
    return sentence


def _after(journal: JournalReader, record: BatchRecord, units: Units, further: dict[str, object]) -> Summary:
    summary = batch_summary(journal, record, units)
    return replace(summary, further=further)
