"""`paygw-batch resolve`: a person settles rows in doubt, one by one or by a statement of the gateway's."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import click

from paygw_batch.cli.completions import complete_batches
from paygw_batch.cli.invocation import Invocation
from paygw_batch.cli.options import by_option, guard_of, settings_of, wait_option
from paygw_batch.cli.runs.run_report import Report, reported
from paygw_batch.cli.screen.approval_plan import document_told, own_key, show_content, show_signatures
from paygw_batch.cli.screen.matched_statement import SHOWN_LINES, differences_counted, show_held, show_matched
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.clock import utc_now
from paygw_batch.compose.actions.settle_rows import (
    AskedStatement,
    OrderNeeded,
    as_of_time,
    carry_out_order,
    carry_out_statement,
    compare_statement,
    needs_order_sentence,
    prepare_order,
    settle_by_word,
)
from paygw_batch.compose.approvals import needs_order, required_policy
from paygw_batch.compose.journal import find_batch, journal_to_read
from paygw_batch.compose.operator import in_words, person
from paygw_batch.compose.outputs import OutputGuard, OutputKind, Wanted
from paygw_batch.compose.run_journal import run_journal
from paygw_batch.core.lifecycle import Basis, Resolution
from paygw_batch.countries.load import minor_units_by_currency
from paygw_batch.errors import UsageError
from paygw_batch.journal import BatchRecord, Journal, JournalReader
from paygw_batch.language import mark_count, say, say_count
from paygw_batch.report.batch_states import batch_summary
from paygw_batch.report.summary import ExitCode, Summary, worst
from paygw_batch.run.match_statement import Matched
from paygw_batch.run.orders.settlement_order import SettlementOrder
from paygw_batch.run.quarantine_clock import clock_sentences
from paygw_batch.run.resolve import Settlement
from paygw_batch.run.signed_document import read_document, write_document
from paygw_batch.settings.configuration import Settings
from paygw_batch.statement.read import Statement, read_statement


@dataclass(frozen=True, slots=True)
class _OrderFile:
    """Where an order is to be written, and the key of its maker."""

    out: Path
    key: Path


_RESOLVED = {
    Resolution.PAID: mark_count("{count:,} paid"),
    Resolution.REJECTED: mark_count("{count:,} rejected"),
    Resolution.NOT_RECEIVED: mark_count("{count:,} not received"),
}


@click.command("resolve", short_help="Settle rows in doubt.")
@click.argument("batch", required=False, shell_complete=complete_batches)
@click.option("--row", "rows", type=click.IntRange(1), multiple=True, help="The row of the sheet. Repeatable.")
@click.option("--as", "resolution", type=click.Choice([one.value for one in Resolution]), help="What became of it.")
@click.option("--evidence", metavar="TEXT", help="How you know: who said so, when, under which ticket.")
@click.option("--from", "file", type=click.Path(path_type=Path), help="A statement of the gateway's: CSV or .xlsx.")
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
    screen = Screen(invocation)
    who = person(by)
    words = None if evidence is None else in_words(evidence, "--evidence")
    settings = settings_of(invocation)
    guard = guard_of(invocation, settings)
    guard.check(inputs={say("the statement"): file, say("the order"): order}, reporting=True)
    to_order = _order_file(guard, out, key, file)
    if order is not None:
        if rows or resolution or words or file or yes or matching_only or to_order or as_of or again:
            raise UsageError(say("--order speaks for itself: it goes with BATCH, --by and --wait alone."))
        summary = _by_order(settings, screen, order, batch, who, wait=wait)
    elif batch is None:
        raise UsageError(say("Name the BATCH, or give an --order."))
    elif file is not None:
        if rows or resolution:
            raise UsageError(say("--from speaks for itself: leave --row and --as out."))
        if yes and to_order:
            raise UsageError(say("--yes settles and --out does not: say one of them."))
        true_at = None if as_of is None else as_of_time(as_of)
        statement = read_statement(file, settings.statement.columns, code_page=settings.sheet.code_page)
        asked = AskedStatement(statement, who, words, true_at, matching_only, again)
        summary = (
            _by_statement(settings, screen, batch, asked, file, wait=wait)
            if yes
            else _previewed(settings, screen, batch, asked, to_order)
        )
    elif yes or matching_only or as_of or again:
        raise UsageError(say("--yes, --matching-only, --as-of and --again belong to --from FILE."))
    elif not rows or resolution is None or words is None:
        raise UsageError(say("Say --row, --as and --evidence, or give a statement with --from FILE."))
    else:
        settlements = [Settlement(row, Resolution(resolution), words) for row in sorted(set(rows))]
        summary = _by_hand(settings, screen, batch, settlements, who, to_order, wait=wait)
    screen.finish(summary)


@contextmanager
def _settling(settings: Settings, screen: Screen, *, wait: bool) -> Iterator[tuple[Journal, Report]]:
    """Hold the journal to settle rows, and report how that ended."""
    with (
        reported(settings, "resolve", screen) as report,
        run_journal(settings, "resolve", screen.say, wait=wait) as journal,
    ):
        yield journal, report


def _by_hand(
    settings: Settings,
    screen: Screen,
    batch: str,
    settlements: Sequence[Settlement],
    who: str,
    to_order: _OrderFile | None,
    *,
    wait: bool,
) -> Summary:
    if to_order is not None:
        with journal_to_read(settings) as reader:
            return _write_order(settings, screen, reader, find_batch(reader, batch), settlements, to_order)
    with _settling(settings, screen, wait=wait) as (journal, report):
        record = find_batch(journal, batch)
        words = " ".join(f"--row {one.row}" for one in settlements[:SHOWN_LINES])
        with _naming_the_order(record, f"{words} --as {settlements[0].resolution.value} --evidence TEXT"):
            settle_by_word(settings, journal, record, settlements, who)
        screen.say(_settled_sentence(settlements, who))
        report.summary = _after(journal, record, {"resolved": len(settlements)})
    return report.summary


def _by_order(settings: Settings, screen: Screen, file: Path, batch: str | None, who: str, *, wait: bool) -> Summary:
    required_policy(settings)
    order = read_document(file, SettlementOrder)
    with _settling(settings, screen, wait=wait) as (journal, report):
        done = carry_out_order(settings, journal, order, batch, who)
        screen.say(_settled_sentence(done.settled, done.by))
        report.summary = _after(journal, done.batch, {"resolved": len(done.settled)})
    return report.summary


def _by_statement(
    settings: Settings, screen: Screen, batch: str, asked: AskedStatement, file: Path, *, wait: bool
) -> Summary:
    def show(matched: Matched, held: int) -> None:
        show_matched(screen, matched)
        if matched.contrary:
            show_held(screen, held, asked.by)

    with _settling(settings, screen, wait=wait) as (journal, report):
        record = find_batch(journal, batch)
        with _naming_the_order(record, f"--from {file}"):
            done = carry_out_statement(settings, journal, record, asked, show)
        matched = done.matched
        summary = _after(journal, record, _told(matched, len(done.settled), done.held))
        if asked.is_refused(matched):
            summary = _refused(
                summary, say("Of the statement, {differences}.", differences=differences_counted(matched))
            )
        else:
            screen.say(_settled_sentence(done.settled, asked.by))
            if matched.differences:
                summary = replace(summary, exit_code=worst({summary.exit_code, ExitCode.PERSON_NEEDED}))
        report.summary = summary
    return report.summary


def _previewed(
    settings: Settings, screen: Screen, batch: str, asked: AskedStatement, to_order: _OrderFile | None
) -> Summary:
    """Show the effect that a statement would have; with `--out`, write it as an order. Nothing is changed."""
    with journal_to_read(settings) as journal:
        return _preview(settings, screen, journal, find_batch(journal, batch), asked, to_order)


def _preview(
    settings: Settings,
    screen: Screen,
    journal: JournalReader,
    record: BatchRecord,
    asked: AskedStatement,
    to_order: _OrderFile | None,
) -> Summary:
    matched = compare_statement(settings, journal, record, asked)
    show_matched(screen, matched)
    done = asked.carried_out_before(journal, record)
    for sentence in (done, *clock_sentences(journal, utc_now())):
        if sentence:
            screen.say(say("Note: {sentence}", sentence=sentence))
    summary = _after(journal, record, _told(matched, 0, 0))
    does = say_count(len(matched.settlements), "would settle {count:,} row", "would settle {count:,} rows")
    if matched.contrary:
        does += say(" and hold {held:,} (--yes holds them, whatever else does not fit)", held=len(matched.contrary))
    if asked.is_refused(matched):
        return _refused(
            summary,
            say("The statement {does}, but {differences}.", does=does, differences=differences_counted(matched)),
        )
    if to_order is not None:
        asked.refuse_again(done)
        settlements = asked.settlements(matched)
        return _write_order(settings, screen, journal, record, settlements, to_order, statement=asked.statement)
    message = say("The statement {does}. Nothing was changed: --yes carries it out.", does=does)
    if doubtful := needs_order(settings, journal, record, matched.settlements):
        message = say(
            "The statement {does}. Nothing was changed. {needed} --out ORDER.json --key KEY writes the order for the "
            "second person.",
            does=does,
            needed=needs_order_sentence(doubtful),
        )
    return replace(summary, message=message)


def _refused(summary: Summary, said: str) -> Summary:
    hint = say("Nothing was settled: clear them up with the gateway, or settle what fits with --matching-only.")
    return replace(summary, exit_code=ExitCode.DEFECTS, message=f"{said} {hint}")


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
    told = ", ".join(say_count(count, _RESOLVED[one]) for one, count in counts.items()) or say("nothing")
    sentence = say("Resolved by {who}: {counts}.", who=who, counts=told)
    if any(one.resolution is Resolution.REJECTED and one.basis is Basis.PERSON for one in settlements):
        sentence += " " + say(
            "What is rejected on a person's word alone may be sent again only after quarantine_h, and is marked for "
            "ever as a possible duplicate."
        )
    if counts[Resolution.NOT_RECEIVED]:
        sentence += " " + say(
            "What was not received is ready again under its old order id, marked for ever as a possible duplicate; "
            "`paygw-batch resume` sends it."
        )
    return sentence


def _after(journal: JournalReader, record: BatchRecord, further: dict[str, object]) -> Summary:
    return replace(batch_summary(journal, record, minor_units_by_currency()), further=further)


def _order_file(guard: OutputGuard, out: Path | None, key: Path | None, statement: Path | None) -> _OrderFile | None:
    """Return the order's file and the maker's key from `--out` and `--key`; None where neither is given.

    Raises `UsageError` when only one of them is given, and `OutputError` when the order must not be written there.
    """
    if out is None and key is None:
        return None
    if out is None or key is None:
        raise UsageError(
            say("--out ORDER.json and --key KEY belong together: they write an order for a second person.")
        )
    if out.suffix.lower() != ".json":
        raise UsageError(
            say("{out} does not end in .json.", out=out), hint=say("An order must not take the place of another file.")
        )
    guard.check(Wanted("--out", out, OutputKind.ORDER), inputs={say("the statement"): statement, say("a key"): key})
    return _OrderFile(out, key)


def _write_order(
    settings: Settings,
    screen: Screen,
    journal: JournalReader,
    record: BatchRecord,
    settlements: Sequence[Settlement],
    file: _OrderFile,
    *,
    statement: Statement | None = None,
) -> Summary:
    """Write the order to make `settlements`, signed by its maker. Nothing is changed."""
    policy = required_policy(settings)
    document = prepare_order(settings, journal, record, settlements, own_key(file.key), statement=statement)
    write_document(document, file.out)
    show_content(screen, document, policy)
    show_signatures(screen, document, policy)
    asks = say_count(policy.needed, "{count} other person has to approve it", "{count} other people have to approve it")
    return Summary(
        ExitCode.DONE,
        say(
            "Nothing was changed. The order is in {out}; {asks}: `paygw-batch approve {out} --key KEY`. Then "
            "`paygw-batch resolve --order {out}` carries it out.",
            out=file.out,
            asks=asks,
        ),
        batch=record.batch,
        sheet=record.sheet_name,
        rows=len(settlements),
        further=document_told(document, policy),
    )


@contextmanager
def _naming_the_order(record: BatchRecord, options: str) -> Iterator[None]:
    """Add the commands that make and carry out an order to the refusal of one person. `options` are the command's."""
    try:
        yield
    except OrderNeeded as refusal:
        refusal.hint = say(
            "`paygw-batch resolve {batch} {options} --out ORDER.json --key KEY` writes an order; another "
            "person approves it (`paygw-batch approve ORDER.json --key KEY`); `paygw-batch resolve --order ORDER.json` "
            "carries it out.",
            batch=record.batch,
            options=options,
        )
        raise
