"""`paygw-batch resolve`: a person settles rows in doubt, one by one or from one of the gateway's statements."""

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from paygw_batch.actions.approvals import needs_order, order_steps
from paygw_batch.actions.batch_status import batch_summary
from paygw_batch.actions.settle_rows import (
    AskedStatement,
    OrderNeeded,
    as_of_time,
    carry_out_statement,
    compare_statement,
    needs_order_sentence,
    settle_by_word,
)
from paygw_batch.cli.help_texts import HelpGroup
from paygw_batch.cli.invocation import Invocation, NamedFile, WholeNumber
from paygw_batch.cli.options import by_option, complete_batches, guard_of, settings_of, wait_option
from paygw_batch.cli.screen.approval_plan import SHOWN_LINES, differences_counted, show_held, show_matched
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.cli.send_batch import held
from paygw_batch.clock import utc_now
from paygw_batch.core.lifecycle import Basis, Resolution
from paygw_batch.core.recorded_words import decided_by
from paygw_batch.countries.load import minor_units_by_currency
from paygw_batch.journal import BatchRecord, JournalReader
from paygw_batch.language import mark, mark_count, say, say_count
from paygw_batch.report.summary import ExitCode, Summary, worst
from paygw_batch.run.match_statement import Matched
from paygw_batch.run.quarantine_clock import JournalClock
from paygw_batch.run.resolve import Settlement
from paygw_batch.settings.configuration import Settings
from paygw_batch.statement.proof import proof_sentence
from paygw_batch.wiring.approvals import person, required_line
from paygw_batch.wiring.journal import find_batch, journal_to_read
from paygw_batch.wiring.statements import statement_in

_RESOLVED = {
    Resolution.PAID: mark_count("{count:,} paid"),
    Resolution.REJECTED: mark_count("{count:,} rejected"),
    Resolution.NOT_RECEIVED: mark_count("{count:,} not received"),
}


EVIDENCE_HELP = mark("Your evidence: who confirmed it, when, and the ticket.")


def statement_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say how a statement is to be carried out."""
    for option in (
        click.option("--again", is_flag=True, help="Allow a file that was already applied to this batch."),
        click.option("--as-of", metavar="TIME", help="The time of the statement, for lines without a time."),
        click.option("--matching-only", is_flag=True, help="Settle the lines that match, even if others do not."),
    ):
        command = option(command)
    return command


@click.group("resolve", cls=HelpGroup)
def command() -> None:
    """Settle rows that are in doubt, held, or accepted but never answered, with evidence.

    Rows are settled on a person's word, or by a statement from the gateway. `order settle` has two people decide it
    instead.
    """


@command.command("row", short_help="Settle rows on your word.")
@click.argument("batch", shell_complete=complete_batches)
@click.argument("rows", metavar="ROW...", type=WholeNumber(1), nargs=-1, required=True)
@click.option(
    "--as",
    "said",
    type=click.Choice([one.value for one in Resolution]),
    required=True,
    help="What happened to it.",
)
@click.option("--evidence", metavar="TEXT", required=True, help=EVIDENCE_HELP)
@by_option
@wait_option
@click.pass_obj
def row(
    invocation: Invocation,
    *,
    batch: str,
    rows: tuple[int, ...],
    said: str,
    evidence: str,
    by: str | None,
    wait: bool,
) -> None:
    """Settle each ROW of BATCH on your word: all of them, or none.

    A row called rejected or not received can be paid again only after quarantine_h, and stays marked as a possible
    duplicate.
    """
    screen, who = Screen(invocation), person(by)
    words = required_line(evidence, "--evidence")
    settings = settings_of(invocation)
    settlements = [Settlement(one, Resolution(said), words) for one in sorted(set(rows))]
    with held(settings, "resolve", screen, wait=wait) as (journal, report):
        record = find_batch(journal, batch)
        named = " ".join(str(one.row) for one in settlements[:SHOWN_LINES])
        with _naming_the_order(f"{record.batch} {named} --as {said} --evidence TEXT"):
            settle_by_word(settings, journal, record, settlements, who)
        screen.say(settled_sentence(settlements, who))
        report.summary = summary_after_settling(journal, record, {"resolved": len(settlements)})
    screen.finish(report.summary)


@command.command("statement", short_help="Settle rows by a statement.")
@click.argument("batch", shell_complete=complete_batches)
@click.argument("file", type=NamedFile())
@click.option("--yes", is_flag=True, help="Apply what the preview shows.")
@statement_options
@click.option("--evidence", metavar="TEXT", help=EVIDENCE_HELP)
@by_option
@wait_option
@click.pass_obj
def statement(
    invocation: Invocation,
    /,
    *,
    batch: str,
    file: Path,
    yes: bool,
    evidence: str | None,
    by: str | None,
    wait: bool,
    **chosen: Any,
) -> None:
    """Settle rows of BATCH by a statement: FILE, a CSV or .xlsx file with one order a line.

    Without --yes it is only compared with the journal, and nothing changes. A statement counts as your word unless
    [evidence] in the configuration says what proves that it comes from the gateway.
    """
    screen, who = Screen(invocation), person(by)
    settings = settings_of(invocation)
    guard_of(invocation, settings).check(inputs={say("the statement"): file}, reporting=True)
    asked = asked_statement(settings, file, who, evidence, **chosen)
    if yes:
        screen.finish(_by_statement(settings, screen, batch, asked, file, wait=wait))
        return
    with journal_to_read(settings) as journal:
        record = find_batch(journal, batch)
        screen.finish(preview_statement(settings, screen, journal, record, asked)[1])


def asked_statement(
    settings: Settings,
    file: Path,
    who: str,
    evidence: str | None,
    *,
    as_of: str | None,
    matching_only: bool,
    again: bool,
) -> AskedStatement:
    """Return the statement in a file, and how it is to be carried out: see `statement_options`."""
    words = None if evidence is None else required_line(evidence, "--evidence")
    true_at = None if as_of is None else as_of_time(as_of)
    return AskedStatement(statement_in(settings, file), who, words, true_at, matching_only, again)


def _by_statement(
    settings: Settings, screen: Screen, batch: str, asked: AskedStatement, file: Path, *, wait: bool
) -> Summary:
    def show(matched: Matched, held: int) -> None:
        show_matched(screen, matched)
        if matched.contrary:
            show_held(screen, held, asked.by)

    with held(settings, "resolve", screen, wait=wait) as (journal, report):
        record = find_batch(journal, batch)
        with _naming_the_order(f"{record.batch} --statement {shlex.quote(str(file))}"):
            done = carry_out_statement(settings, journal, record, asked, show)
        matched = done.matched
        summary = summary_after_settling(journal, record, _told(matched, len(done.settled), done.held))
        if asked.is_refused(matched):
            summary = _refused(
                summary, say("Of the statement, {differences}.", differences=differences_counted(matched))
            )
        else:
            screen.say(settled_sentence(done.settled, asked.by))
            if matched.differences:
                summary = replace(summary, exit_code=worst({summary.exit_code, ExitCode.PERSON_NEEDED}))
        report.summary = summary
    return report.summary


def preview_statement(
    settings: Settings, screen: Screen, journal: JournalReader, record: BatchRecord, asked: AskedStatement
) -> tuple[Matched, Summary]:
    """Show the effect of a statement, and return it with the summary. Nothing changes."""
    matched = compare_statement(settings, journal, record, asked)
    show_matched(screen, matched)
    done = asked.carried_out_before(journal, record)
    for sentence in (proof_sentence(asked.statement.proof), done, *JournalClock.read(journal, utc_now()).sentences()):
        if sentence:
            screen.say(say("Note: {sentence}", sentence=sentence))
    summary = summary_after_settling(journal, record, _told(matched, 0, 0))
    does = say_count(len(matched.settlements), "would settle {count:,} row", "would settle {count:,} rows")
    if matched.contrary:
        does += say(
            " and hold {held:,} (--yes holds them even if other lines do not match)", held=len(matched.contrary)
        )
    if asked.is_refused(matched):
        said = say("The statement {does}, but {differences}.", does=does, differences=differences_counted(matched))
        return matched, _refused(summary, said)
    message = say("The statement {does}. Nothing was changed: --yes applies it.", does=does)
    if doubtful := needs_order(settings, journal, record, matched.settlements):
        message = say(
            "The statement {does}. Nothing was changed. {needed} `paygw-batch order settle BATCH --statement FILE` "
            "writes an order for a second person.",
            does=does,
            needed=needs_order_sentence(doubtful),
        )
    return matched, replace(summary, message=message)


def _refused(summary: Summary, said: str) -> Summary:
    hint = say(
        "Nothing was settled. Clear them up with the gateway, or settle the lines that match with --matching-only."
    )
    return replace(summary, exit_code=ExitCode.DEFECTS, message=f"{said} {hint}")


def _told(matched: Matched, resolved: int, held: int) -> dict[str, object]:
    return {
        "resolved": resolved,
        "held": held,
        "would_hold": [line.order_id for line in matched.contrary],
        "would_resolve": [{"row": one.row, "as": one.resolution.value} for one in matched.settlements],
        "on_the_gateways_word": [one.row for one in matched.settlements if one.basis is Basis.GATEWAY],
        "differences": [
            {"line": one.line, "order_id": one.order_id, "message": one.sentence} for one in matched.differences
        ],
        "agreeing": matched.agreeing,
        "elsewhere": matched.elsewhere,
        "waiting": matched.waiting,
        "still_in_doubt": [row.row for row in matched.silent],
    }


def settled_sentence(settlements: Sequence[Settlement], by: str) -> str:
    """Return what was settled, by whom (as recorded), and what that means for the rows."""
    counts = Counter(one.resolution for one in settlements)
    told = ", ".join(say_count(count, _RESOLVED[one]) for one, count in counts.items()) or say("nothing")
    sentence = say("Resolved by {who}: {counts}.", who=decided_by(by), counts=told)
    rejected = {one.basis for one in settlements if one.resolution is Resolution.REJECTED}
    if Basis.PERSON in rejected:
        sentence += " " + say(
            "Rows rejected only on a person's word may be sent again only after quarantine_h. They stay marked as "
            "possible duplicates."
        )
    if Basis.GATEWAY in rejected:
        sentence += " " + say(
            "Rows that a proven statement calls rejected may be sent again at once. They stay marked as possible "
            "duplicates."
        )
    if counts[Resolution.NOT_RECEIVED]:
        sentence += " " + say(
            "Rows that were not received are ready again under their old order ids, and stay marked as possible "
            "duplicates; `paygw-batch resume` sends them."
        )
    return sentence


def summary_after_settling(journal: JournalReader, record: BatchRecord, further: dict[str, object]) -> Summary:
    """Return the summary of a batch after its rows were settled."""
    return replace(batch_summary(journal, record, minor_units_by_currency()), further=further)


@contextmanager
def _naming_the_order(words: str) -> Iterator[None]:
    """Add the commands for an order to the refusal of a single person; `words` are the present command's."""
    try:
        yield
    except OrderNeeded as refusal:
        refusal.hint = order_steps(f"settle {words}")
        raise
