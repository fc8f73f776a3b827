"""The commands that settle rows: by a person or statement (`resolve`), the gateway (`refresh`), an order (`order`)."""

import asyncio
import os
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from paygw_batch.approval.approval_keys import ApprovalKey
from paygw_batch.approval.order import ForgetOrder
from paygw_batch.approval.policy import person, required_line, required_policy
from paygw_batch.approval.signed_document import signed, write_document
from paygw_batch.cli.commands.forget import before_option, chosen_told, person_option, require_one, show_chosen
from paygw_batch.cli.help_texts import HelpCommand, HelpGroup
from paygw_batch.cli.invocation import Invocation, NamedFile, WholeNumber
from paygw_batch.cli.options import (
    ResultOptions,
    by_option,
    complete_batches,
    force_option,
    guard_of,
    result_options,
    settings_of,
    wait_option,
)
from paygw_batch.cli.screen.approval_plan import (
    differences_counted,
    own_key,
    show_content,
    show_matched,
    show_signatures,
    signed_summary,
)
from paygw_batch.cli.screen.screen import SHOWN_LINES, Screen
from paygw_batch.cli.send_batch import continued, held, reconcile
from paygw_batch.cli.signals import interruption
from paygw_batch.clock import utc_now
from paygw_batch.core.lifecycle import Basis, Resolution
from paygw_batch.core.shown_states import counted_finding, decided_by
from paygw_batch.engine.engine import RunEnd
from paygw_batch.engine.quarantine import JournalClock
from paygw_batch.errors import UsageError
from paygw_batch.forget_people import choose, draft_forget_order
from paygw_batch.journal import BatchRecord, JournalReader
from paygw_batch.language import mark, mark_count, say, say_count
from paygw_batch.opening.gateway_access import signer_key
from paygw_batch.opening.given_sheet import require_gateway
from paygw_batch.opening.open_journal import find_batch, journal_to_read
from paygw_batch.settings.configuration import Settings
from paygw_batch.settle.match_statement import Matched
from paygw_batch.settle.refresh import Refresh, Refreshed
from paygw_batch.settle.resolve import Settlement
from paygw_batch.settle.row_order import Decision, RowAct, RowOrder
from paygw_batch.settle.settle_rows import (
    AskedStatement,
    OrderNeeded,
    as_of_time,
    carry_out_statement,
    compare_statement,
    draft_order,
    needs_order,
    needs_order_sentence,
    refresh,
    refresh_all,
    require_enquiry,
    settle_by_word,
)
from paygw_batch.settle.statement import proof_sentence, statement_in
from paygw_batch.show.batch_status import batch_summary
from paygw_batch.show.next_step import order_steps
from paygw_batch.show.outputs import OutputKind, RequestedOutput
from paygw_batch.show.summary import ExitCode, Summary, worst
from paygw_batch.submit.submit_sheet import releasable_rows


@click.command("refresh", cls=HelpCommand)
@click.argument("batch", required=False, shell_complete=complete_batches)
@click.option("--out", type=NamedFile(), help="Reconciliation file (.csv, .parquet or .xlsx).")
@wait_option
@force_option
@click.pass_obj
@result_options
def refresh_command(invocation: Invocation, *, batch: str | None, results: ResultOptions) -> None:
    """Ask the gateway about the rows of BATCH that are accepted or in doubt, until each has a final answer.

    Without BATCH it asks once about such rows of every batch, and writes no reconciliation.

    Off unless the configuration names a [status_enquiry] profile. It never sends or releases a row.
    """
    screen, settings = Screen(invocation), settings_of(invocation)
    require_enquiry(settings)
    if batch is None:
        if results.out is not None:
            raise UsageError(say("--out needs BATCH: without it, no reconciliation is written."))
        screen.finish(_all_batches(invocation, settings, screen, wait=results.wait))
    with continued(invocation, settings, "refresh", screen, batch, results) as run:
        try:
            done = refresh(run.task, screen.say, lambda asking: _drain_on_signals(asking, screen))
        finally:
            interruption.heed_again()
        end = RunEnd(0, None, interrupted=done.interrupted)
        summary = reconcile(settings, run.task.rules, run.task.journal, run.task.batch, run.files, screen, end)
        run.report.summary = _asked_sentence(summary, done)
    screen.finish(run.report.summary)


def _all_batches(invocation: Invocation, settings: Settings, screen: Screen, *, wait: bool) -> Summary:
    guard_of(invocation, settings).check(reporting=True)
    require_gateway(settings)
    signer_key(settings, os.environ)
    total, codes = Refreshed(), set[ExitCode]()
    with held(settings, "refresh", screen, wait=wait) as (journal, report):
        try:
            for record, done in refresh_all(
                settings, journal, os.environ, screen.say, lambda asking: _drain_on_signals(asking, screen)
            ):
                total.asked += done.asked
                total.findings.update(done.findings)
                total.causes.update(done.causes)
                codes.add(batch_summary(journal, record).exit_code)
                codes |= {ExitCode.INTERRUPTED} if done.interrupted else set()
        finally:
            interruption.heed_again()
        report.summary = _asked_sentence(Summary(worst(codes & _OF_ASKING), ""), total)
    return report.summary


_OF_ASKING = frozenset({ExitCode.PERSON_NEEDED, ExitCode.INTERRUPTED})
"""The exit codes of asking about all batches: a row is still in doubt, or the command was interrupted."""


def _asked_sentence(summary: Summary, done: Refreshed) -> Summary:
    findings = {finding.value: count for finding, count in sorted(done.findings.items())}
    heard = ", ".join(counted_finding(count, finding) for finding, count in findings.items())
    message = say_count(done.asked, "{count:,} enquiries: {findings}.", findings=heard or say("nothing new"))
    if done.stop_reason:
        message += " " + say("The enquiries ended early: {reason}", reason=done.stop_reason)
    return replace(
        summary,
        message=f"{message} {summary.message}".strip(),
        further={"asked": done.asked, "findings": findings, "no_answer": dict(sorted(done.causes.items()))},
    )


def _drain_on_signals(run: Refresh, screen: Screen) -> None:
    """At a signal, start no new enquiry, and wait for the enquiries under way."""

    def heed() -> None:
        screen.say(say("Stopping: no new enquiries are started. Waiting for those under way."))
        run.drain()

    interruption.heed_within(asyncio.get_running_loop(), heed)
    if interruption.came:
        heed()


_RESOLVED = {
    Resolution.PAID: mark_count("{count:,} paid"),
    Resolution.REJECTED: mark_count("{count:,} rejected"),
    Resolution.NOT_RECEIVED: mark_count("{count:,} not received"),
}


EVIDENCE_HELP = mark("Your evidence: who confirmed it, when, and the ticket.")


def statement_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--again", is_flag=True, help="Allow a file that was already applied to this batch."),
        click.option("--as-of", metavar="TIME", help="The time of the statement, for lines without a time."),
        click.option("--matching-only", is_flag=True, help="Settle the lines that match, even if others do not."),
    ):
        command = option(command)
    return command


@click.group("resolve", cls=HelpGroup)
def resolve_command() -> None:
    """Settle rows that are in doubt, held, or accepted but never answered, with evidence.

    Rows are settled on a person's word, or by a statement from the gateway. `order settle` has two people decide it
    instead.
    """


@resolve_command.command("row", short_help="Settle rows on your word.")
@click.argument("batch", shell_complete=complete_batches)
@click.argument("rows", metavar="ROW...", type=WholeNumber(1), nargs=-1, required=True)
@click.option(
    "--as", "said", type=click.Choice([way.value for way in Resolution]), required=True, help="What happened to it."
)
@click.option("--evidence", metavar="TEXT", required=True, help=EVIDENCE_HELP)
@by_option
@wait_option
@click.pass_obj
def row(
    invocation: Invocation, *, batch: str, rows: tuple[int, ...], said: str, evidence: str, by: str | None, wait: bool
) -> None:
    """Settle each ROW of BATCH on your word: all of them, or none.

    A row called rejected or not received can be paid again only after quarantine_h, and stays marked as a possible
    duplicate.
    """
    screen, who = Screen(invocation), person(by)
    words = required_line(evidence, "--evidence")
    settings = settings_of(invocation)
    settlements = [Settlement(row, Resolution(said), words) for row in sorted(set(rows))]
    with held(settings, "resolve", screen, wait=wait) as (journal, report):
        record = find_batch(journal, batch)
        rows_text = " ".join(str(settlement.row) for settlement in settlements[:SHOWN_LINES])
        with _naming_the_order(f"{record.batch} {rows_text} --as {said} --evidence TEXT"):
            settle_by_word(settings, journal, record, settlements, who)
        screen.say(settled_sentence(settlements, who))
        report.summary = summary_after_settling(journal, record, {"resolved": len(settlements)})
    screen.finish(report.summary)


@resolve_command.command("statement", short_help="Settle rows by a statement.")
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
    words = None if evidence is None else required_line(evidence, "--evidence")
    true_at = None if as_of is None else as_of_time(as_of)
    return AskedStatement(statement_in(settings, file), who, words, true_at, matching_only, again)


def _by_statement(
    settings: Settings, screen: Screen, batch: str, asked: AskedStatement, file: Path, *, wait: bool
) -> Summary:
    def show(matched: Matched, held: int) -> None:
        show_matched(screen, matched)
        if matched.contrary:
            sentence = say_count(
                held,
                "Held by {who}: {count:,} order that could still be sent, but that the gateway already has, according "
                "to the statement. No run sends a held row: `paygw-batch status` says what to do about each.",
                "Held by {who}: {count:,} orders that could still be sent, but that the gateway already has, "
                "according to the statement. No run sends a held row: `paygw-batch status` says what to do about each.",
                who=asked.by,
            )
            screen.say(sentence)

    with held(settings, "resolve", screen, wait=wait) as (journal, report):
        record = find_batch(journal, batch)
        with _naming_the_order(f"{record.batch} --statement {shlex.quote(str(file))}"):
            done = carry_out_statement(settings, journal, record, asked, show)
        matched = done.matched
        summary = summary_after_settling(journal, record, _told(matched, len(done.settled), done.held))
        if asked.is_refused(matched):
            differences = differences_counted(matched)
            summary = _refused(summary, say("Of the statement, {differences}.", differences=differences))
        else:
            screen.say(settled_sentence(done.settled, asked.by))
            if matched.differences:
                summary = replace(summary, exit_code=worst({summary.exit_code, ExitCode.PERSON_NEEDED}))
        report.summary = summary
    return report.summary


def preview_statement(
    settings: Settings, screen: Screen, journal: JournalReader, record: BatchRecord, asked: AskedStatement
) -> tuple[Matched, Summary]:
    """Show the effect of a statement. Return the comparison and the summary. Nothing changes."""
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
        "Nothing was settled. Ask the gateway about these lines, or settle the lines that match with --matching-only."
    )
    return replace(summary, exit_code=ExitCode.DEFECTS, message=f"{said} {hint}")


def _told(matched: Matched, resolved: int, held: int) -> dict[str, object]:
    return {
        "resolved": resolved,
        "held": held,
        "would_hold": [line.order_id for line in matched.contrary],
        "would_resolve": [{"row": entry.row, "as": entry.resolution.value} for entry in matched.settlements],
        "on_the_gateways_word": [entry.row for entry in matched.settlements if entry.basis is Basis.GATEWAY],
        "differences": [
            {"line": line.line, "order_id": line.order_id, "message": line.sentence} for line in matched.differences
        ],
        "agreeing": matched.agreeing,
        "elsewhere": matched.elsewhere,
        "waiting": matched.waiting,
        "still_in_doubt": [row.row for row in matched.silent],
    }


def settled_sentence(settlements: Sequence[Settlement], by: str) -> str:
    """Return the sentence about settled rows. `by` is the name that the journal recorded."""
    counts = Counter(settlement.resolution for settlement in settlements)
    texts = ", ".join(say_count(count, _RESOLVED[kind]) for kind, count in counts.items()) or say("nothing")
    sentence = say("Resolved by {who}: {counts}.", who=decided_by(by), counts=texts)
    rejected = {settlement.basis for settlement in settlements if settlement.resolution is Resolution.REJECTED}
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
    return replace(batch_summary(journal, record), further=further)


@contextmanager
def _naming_the_order(words: str) -> Iterator[None]:
    """Add the commands that make an order to the refusal of one person. `words` are those of the present command."""
    try:
        yield
    except OrderNeeded as refusal:
        refusal.hint = order_steps(f"settle {words}")
        raise


_out_option = click.option("--out", type=NamedFile(), required=True, help="The file of the order (.json).")
_key_option = click.option("--key", type=NamedFile(), required=True, help="Your private key (Ed25519, PEM).")


@click.group("order", cls=HelpGroup)
def order_command() -> None:
    """Write an order, and sign it with your key. Nothing else changes.

    Another person approves it (`approve`), and it is carried out once (`carry-out`).
    """


@order_command.command("settle", short_help="Settle rows that are in doubt, held or accepted.")
@click.argument("batch", shell_complete=complete_batches)
@click.argument("rows", metavar="[ROW...]", type=WholeNumber(1), nargs=-1)
@click.option("--as", "said", type=click.Choice([way.value for way in Resolution]), help="What happened to the rows.")
@click.option("--statement", type=NamedFile(), help="Settle the rows of a statement instead (.csv or .xlsx).")
@statement_options
@click.option("--evidence", metavar="TEXT", help=EVIDENCE_HELP)
@_out_option
@_key_option
@click.pass_obj
def settle(
    invocation: Invocation,
    /,
    *,
    batch: str,
    rows: tuple[int, ...],
    said: str | None,
    statement: Path | None,
    evidence: str | None,
    out: Path,
    key: Path,
    **chosen: Any,
) -> None:
    """Order that rows of BATCH are settled: each ROW as you say, or those that a statement settles.

    With --as a row called rejected or not received can be paid again only after quarantine_h, and stays marked as a
    possible duplicate.
    """
    screen = Screen(invocation)
    if statement is None and (said is None or evidence is None or not rows or any(chosen.values())):
        raise UsageError(say("Name rows with --as and --evidence, or a statement with --statement."))
    if statement is not None and (rows or said):
        raise UsageError(say("A statement says which rows are settled, and how: leave ROW and --as out."))
    settings, maker = _checked(invocation, out, key, statement)
    with journal_to_read(settings) as journal:
        record = find_batch(journal, batch)
        if statement is None:
            words, source = required_line(evidence or "", "--evidence"), None
            decisions = [Decision(row, RowAct(said or ""), words) for row in sorted(set(rows))]
        else:
            asked = asked_statement(settings, statement, "", evidence, **chosen)
            matched, summary = preview_statement(settings, screen, journal, record, asked)
            if asked.is_refused(matched):
                screen.finish(summary)
            asked.refuse_again(journal, record)
            decisions, source = [Decision.of(entry) for entry in asked.settlements(matched)], asked.statement
        draft = draft_order(settings, journal, record, decisions, maker.public, statement=source)
    screen.finish(_written(settings, screen, draft, maker, out))


@order_command.command("release", short_help="Send rejected rows again.")
@click.argument("batch", shell_complete=complete_batches)
@click.option("--row", "rows", type=WholeNumber(1), multiple=True, help="Only this row of the sheet. Repeatable.")
@click.option("--evidence", metavar="TEXT", required=True, help="Why they may be sent again.")
@_out_option
@_key_option
@click.pass_obj
def release(invocation: Invocation, *, batch: str, rows: tuple[int, ...], evidence: str, out: Path, key: Path) -> None:
    """Order that the rejected rows of BATCH are sent again: those of --row, or all that may be sent now."""
    screen, words = Screen(invocation), required_line(evidence, "--evidence")
    settings, maker = _checked(invocation, out, key)
    with journal_to_read(settings) as journal:
        record = find_batch(journal, batch)
        numbers = sorted(set(rows)) or releasable_rows(settings, journal, record)
        decisions = [Decision(row, RowAct.RELEASE, words) for row in numbers]
        draft = draft_order(settings, journal, record, decisions, maker.public)
    screen.finish(_written(settings, screen, draft, maker, out))


@order_command.command("forget", short_help="Forget people, and keep the totals.")
@before_option
@person_option
@_out_option
@_key_option
@click.pass_obj
def forget(invocation: Invocation, *, before: str | None, person: str | None, out: Path, key: Path) -> None:
    """Order that people are forgotten. The order names payments, not people.

    Without --before and --person, [retention] years in the configuration says the date.
    """
    screen = Screen(invocation)
    require_one(before, person)
    settings, maker = _checked(invocation, out, key)
    with journal_to_read(settings, screen.say) as journal:
        chosen = choose(settings, journal, before=before, person=person)
        show_chosen(screen, journal, chosen)
        draft, members = draft_forget_order(settings, journal, chosen, maker.public), chosen_told(journal, chosen)
    summary = _written(settings, screen, draft, maker, out)
    screen.finish(replace(summary, further=members | dict(summary.further)))


def _checked(
    invocation: Invocation, out: Path, key: Path, statement: Path | None = None
) -> tuple[Settings, ApprovalKey]:
    """Return the settings and the maker's key. Raises `OutputError` if the order must not be written to `out`."""
    if out.suffix.lower() != ".json":
        raise UsageError(
            say("{out} does not end in .json.", out=out), hint=say("An order must not overwrite another file.")
        )
    settings = settings_of(invocation)
    guard_of(invocation, settings).check(
        RequestedOutput("--out", out, OutputKind.ORDER), inputs={say("the statement"): statement, say("a key"): key}
    )
    required_policy(settings)
    return settings, own_key(key)


def _written(
    settings: Settings, screen: Screen, draft: RowOrder | ForgetOrder, maker: ApprovalKey, out: Path
) -> Summary:
    policy, document = required_policy(settings), signed(draft, maker)
    write_document(document, out)
    show_content(screen, document, policy, settings.submission.quarantine_h)
    show_signatures(screen, document, policy)
    asks = say_count(policy.needed, "{count} other person must approve it", "{count} other people must approve it")
    message = say(
        "Nothing was changed. The order is in {out}; {asks}: `paygw-batch approve {out} --key KEY`. Then "
        "`paygw-batch carry-out {out}` carries it out.",
        out=shlex.quote(str(out)),
        asks=asks,
    )
    return signed_summary(document, policy, message)
