"""`paygw-batch resolve`: a person settles rows in doubt, one by one or by a statement of the gateway's."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import click

from paygw_batch.cli.completions import complete_batches
from paygw_batch.cli.invocation import Invocation
from paygw_batch.cli.options import by_option, guard_of, settings_of, wait_option
from paygw_batch.cli.runs.settle_by_order import (
    OrderFile,
    carry_out_order,
    needs_order_sentence,
    order_file,
    refuse_alone,
    write_order,
)
from paygw_batch.cli.screen.batch_states import batch_summary
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.clock import timestamp
from paygw_batch.compose.approvals import needs_order
from paygw_batch.compose.operator import in_words, person
from paygw_batch.compose.parts import find_batch, journal_to_read, run_journal, utc_now
from paygw_batch.core.evidence import HOLDING
from paygw_batch.core.lifecycle import Basis, Resolution
from paygw_batch.countries.load import minor_units_by_currency
from paygw_batch.errors import UsageError
from paygw_batch.journal import BatchRecord, CarriedOut, Journal, JournalReader
from paygw_batch.report.summary import ExitCode, Summary, worst
from paygw_batch.run.match_statement import Matched, StatementReader
from paygw_batch.run.quarantine_clock import AHEAD_AT_MOST_S, clock_sentences, require_sound_clock
from paygw_batch.run.resolve import Settlement, check_settlements, settle
from paygw_batch.settings.configuration import Settings
from paygw_batch.statement.read import Statement, read_statement
from paygw_batch.statement.stated_time import WRITTEN, TimeSpan, read_time

Units = Mapping[str, int]
"""How many decimals each currency has."""

SHOWN_LINES = 20
"""How many lines of a kind are listed on a screen."""


@click.command("resolve", short_help="Settle rows in doubt.")
@click.argument("batch", required=False, shell_complete=complete_batches)
@click.option("--row", "rows", type=click.IntRange(1), multiple=True, help="The row of the sheet. Repeatable.")
@click.option("--as", "resolution", type=click.Choice([one.value for one in Resolution]), help="What became of it.")
@click.option("--evidence", metavar="TEXT", help="How you know: who said so, when, under which ticket.")
@click.option("--from", "file", type=click.Path(path_type=Path), help="A statement of the gateway's, as CSV.")
@click.option("--yes", is_flag=True, help="With --from: carry out what the preview shows.")
@click.option("--matching-only", is_flag=True, help="With --from: settle the lines that fit, though others do not.")
@click.option("--out", type=click.Path(path_type=Path), help="Write an order for a second person, and settle nothing.")
@click.option("--key", type=click.Path(path_type=Path), help="With --out: your private key (Ed25519, PEM).")
@click.option("--order", type=click.Path(path_type=Path), help="Carry out an order that another person approved.")
@click.option("--as-of", metavar="TIME", help="With --from: when the statement was true, for lines without a time.")
@click.option("--again", is_flag=True, help="With --from: carry out a file that was carried out for the batch before.")
@by_option
@wait_option
@click.pass_obj
def command(
    invocation: Invocation,
    *,
    batch: str | None,
    rows: tuple[int, ...],
    resolution: str | None,
    evidence: str | None,
    file: Path | None,
    yes: bool,
    matching_only: bool,
    out: Path | None,
    key: Path | None,
    order: Path | None,
    as_of: str | None,
    again: bool,
    by: str | None,
    wait: bool,
) -> None:
    """Settle rows of BATCH that are in doubt (or accepted and never answered, or held), with the evidence for it.

    Either name rows (--row, --as, --evidence), or give a statement (--from FILE): without --yes it is only held
    against the journal, and nothing changes. With --out, either is written as an order, which another person approves
    and --order carries out.
    """
    started_s = time.monotonic()
    screen = Screen(invocation)
    who = person(by)
    words = None if evidence is None else in_words(evidence, "--evidence")
    settings = settings_of(invocation)
    to_order = order_file(guard_of(invocation, settings), out, key, file)
    if order is not None:
        if rows or resolution or words or file or yes or matching_only or to_order or as_of or again:
            raise UsageError("--order speaks for itself: it goes with BATCH, --by and --wait alone.")
        summary, settled, by_whom = carry_out_order(settings, screen, order, batch, who, wait=wait)
        screen.say(_settled_sentence(settled, by_whom))
        summary = replace(summary, further={"resolved": len(settled)})
    elif batch is None:
        raise UsageError("Name the BATCH, or give an --order.")
    elif file is not None:
        if rows or resolution:
            raise UsageError("--from speaks for itself: leave --row and --as out.")
        if yes and to_order:
            raise UsageError("--yes settles and --out does not: say one of them.")
        given = _Given(file, words, who, _as_of(as_of), yes, matching_only, again, to_order)
        summary = _by_statement(settings, screen, batch, given, wait=wait)
    elif yes or matching_only or as_of or again:
        raise UsageError("--yes, --matching-only, --as-of and --again belong to --from FILE.")
    elif not rows or resolution is None or words is None:
        raise UsageError("Say --row, --as and --evidence, or give a statement with --from FILE.")
    else:
        settlements = [Settlement(row, Resolution(resolution), words) for row in sorted(set(rows))]
        if to_order:
            with journal_to_read(settings) as journal:
                summary = write_order(settings, screen, journal, find_batch(journal, batch), settlements, to_order)
        else:
            summary = _by_hand(settings, screen, batch, settlements, who, wait=wait)
    screen.finish(replace(summary, seconds=time.monotonic() - started_s))


@dataclass(frozen=True, slots=True)
class _Given:
    """A statement to carry out, and how it was asked for."""

    file: Path
    words: str | None
    who: str
    as_of: TimeSpan | None
    yes: bool
    matching_only: bool
    again: bool
    to_order: OrderFile | None


def _as_of(text: str | None) -> TimeSpan | None:
    if text is None:
        return None
    if (found := read_time(text)) is None:
        raise UsageError(f"--as-of {text!r} cannot be read without guessing.", hint=f"Write it as {WRITTEN}.")
    if found.start > utc_now() + timedelta(seconds=AHEAD_AT_MOST_S):
        raise UsageError(f"--as-of {text} has not come yet.", hint="No statement is true before its time.")
    return found


def _by_hand(
    settings: Settings, screen: Screen, batch: str, settlements: Sequence[Settlement], who: str, *, wait: bool
) -> Summary:
    units = minor_units_by_currency()
    with run_journal(settings, "resolve", screen.say, wait=wait) as journal:
        record = find_batch(journal, batch)
        quarantine_h = settings.submission.quarantine_h
        check_settlements(journal, record, settlements, quarantine_h=quarantine_h, now=utc_now)
        words = " ".join(f"--row {one.row}" for one in settlements[:SHOWN_LINES])
        options = f"{words} --as {settlements[0].resolution.value} --evidence TEXT"
        refuse_alone(settings, journal, record, settlements, options)
        settle(journal, record, settlements, by=who, now=utc_now)
        screen.say(_settled_sentence(settlements, who))
        return _after(journal, record, units, {"resolved": len(settlements)})


def _by_statement(settings: Settings, screen: Screen, batch: str, given: _Given, *, wait: bool) -> Summary:
    units = minor_units_by_currency()
    statement = read_statement(given.file, settings.statement.columns, code_page=settings.sheet.code_page)
    if not given.yes:
        with journal_to_read(settings) as journal:
            return _previewed(settings, screen, journal, find_batch(journal, batch), statement, given)
    with run_journal(settings, "resolve", screen.say, wait=wait) as journal:
        record = find_batch(journal, batch)
        _refuse_again(_done_before(journal, record, statement), given)
        reader = _reader(settings, units, journal, record, given.as_of)
        matched = reader.match(statement)
        _show(screen, matched)
        held = _hold(journal, reader, statement, matched, given.who, screen)
        if matched.differences and not given.matching_only:
            return _refused(
                _after(journal, record, units, _told(matched, 0, held)), f"Of the statement, {_count(matched)}."
            )
        require_sound_clock(journal, utc_now())
        settlements = _with_words(matched.settlements, given.words)
        refuse_alone(settings, journal, record, settlements, f"--from {given.file}")
        carried_out = CarriedOut(record.batch, statement.name, statement.sha256, given.who)
        settle(journal, record, settlements, by=given.who, now=utc_now, carried_out=carried_out)
        screen.say(_settled_sentence(settlements, given.who))
        summary = _after(journal, record, units, _told(matched, len(settlements), held))
    if matched.differences:
        return replace(summary, exit_code=worst({summary.exit_code, ExitCode.PERSON_NEEDED}))
    return summary


def _previewed(
    settings: Settings, screen: Screen, journal: JournalReader, record: BatchRecord, statement: Statement, given: _Given
) -> Summary:
    """Show what carrying a statement out would do; with `--out`, write it as an order. Nothing is changed."""
    units = minor_units_by_currency()
    matched = _reader(settings, units, journal, record, given.as_of).match(statement)
    _show(screen, matched)
    done = _done_before(journal, record, statement)
    for sentence in (done, *clock_sentences(journal, utc_now())):
        if sentence:
            screen.say(f"Note: {sentence}")
    summary = _after(journal, record, units, _told(matched, 0, 0))
    does = f"would settle {_rows(len(matched.settlements))}"
    if matched.contrary:
        does += f" and hold {len(matched.contrary):,} (--yes holds them, whatever else does not fit)"
    if matched.differences and not given.matching_only:
        return _refused(summary, f"The statement {does}, but {_count(matched)}.")
    if given.to_order is not None:
        _refuse_again(done, given)
        settlements = _with_words(matched.settlements, given.words)
        return write_order(settings, screen, journal, record, settlements, given.to_order, statement=statement)
    how = ": --yes carries it out."
    if doubtful := needs_order(settings, journal, record, matched.settlements):
        how = f". {needs_order_sentence(doubtful)} --out ORDER.json --key KEY writes the order for the second person."
    return replace(summary, message=f"The statement {does}. Nothing was changed{how}")


def _with_words(settlements: Sequence[Settlement], words: str | None) -> list[Settlement]:
    """Return settlements with what the person said before what the statement says."""
    return [replace(one, evidence=f"{words} ({one.evidence})" if words else one.evidence) for one in settlements]


def _refuse_again(done: str, given: _Given) -> None:
    """Raise `UsageError` for a file that was carried out for the batch before, unless `--again` was given."""
    if done and not given.again:
        raise UsageError(
            f"{done} Nothing was changed.",
            hint="A file counts once. --again carries it out once more; each line must still be about the latest "
            "attempt.",
        )


def _done_before(journal: JournalReader, record: BatchRecord, statement: Statement) -> str:
    """Return the sentence that this very file was carried out for the batch before; empty where it was not."""
    done = [one for one in journal.carried_out(record.batch) if one.sha256 == statement.sha256]
    if not done:
        return ""
    return f"{statement.name} was carried out for this batch at {done[-1].at} by {done[-1].by}."


def _rows(count: int) -> str:
    return f"{count:,} row" if count == 1 else f"{count:,} rows"


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


def _reader(
    settings: Settings, units: Units, journal: JournalReader, record: BatchRecord, as_of: TimeSpan | None
) -> StatementReader:
    return StatementReader(
        journal,
        record,
        words=settings.words(),
        minor_units=units,
        quarantine_h=settings.submission.quarantine_h,
        now=utc_now,
        as_of=as_of,
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
    if any(one.resolution is Resolution.REJECTED and one.basis is Basis.PERSON for one in settlements):
        sentence += (
            " What is rejected on a person's word alone may be sent again only after quarantine_h, and is marked for "
            "ever as a possible duplicate."
        )
    if counts[Resolution.NOT_RECEIVED]:
        sentence += (
            " What was not received is ready again under its old order id, marked for ever as a possible duplicate; "
            "`paygw-batch resume` sends it."
        )
    return sentence


def _after(journal: JournalReader, record: BatchRecord, units: Units, further: dict[str, object]) -> Summary:
    summary = batch_summary(journal, record, units)
    return replace(summary, further=further)
