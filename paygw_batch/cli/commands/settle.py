"""The commands that settle rows: `resolve`, `refresh` and `order`."""

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
from paygw_batch.approval.policy import identify_person, require_line, require_policy
from paygw_batch.approval.signed_document import sign_document, write_document
from paygw_batch.cli.commands.forget import (
    before_option,
    person_option,
    require_single_selector,
    selection_as_json,
    show_selection,
)
from paygw_batch.cli.help_texts import HelpCommand, HelpGroup
from paygw_batch.cli.invocation import Invocation, PathType, WholeNumber
from paygw_batch.cli.options import (
    ResultOptions,
    by_option,
    complete_batches,
    force_option,
    output_guard,
    result_options,
    settings_for,
    wait_option,
)
from paygw_batch.cli.screen.approval_plan import (
    describe_differences,
    document_summary,
    load_own_key,
    show_document,
    show_signatures,
    show_statement_match,
)
from paygw_batch.cli.screen.screen import MAX_SHOWN_LINES, Screen
from paygw_batch.cli.send_batch import continue_batch, lock_journal, reconcile
from paygw_batch.cli.signals import interruption
from paygw_batch.clock import utc_now
from paygw_batch.core.lifecycle import Basis, Resolution
from paygw_batch.core.shown_states import format_decider, format_finding_count
from paygw_batch.engine.engine import RunEnd
from paygw_batch.engine.quarantine import JournalClock
from paygw_batch.errors import UsageError
from paygw_batch.forget_people import choose_payments, draft_forget_order
from paygw_batch.journal import BatchRecord, JournalReader
from paygw_batch.language import mark, mark_count, say, say_count
from paygw_batch.opening.gateway_access import load_signing_key
from paygw_batch.opening.given_sheet import require_sending_settings
from paygw_batch.opening.open_journal import find_batch, open_journal_to_read
from paygw_batch.settings.configuration import Settings
from paygw_batch.settle.match_statement import StatementMatch
from paygw_batch.settle.refresh import Refresh, RefreshResult
from paygw_batch.settle.resolve import Settlement
from paygw_batch.settle.row_order import Decision, RowAct, RowOrder
from paygw_batch.settle.settle_rows import (
    RequestedStatement,
    SecondPersonRequired,
    carry_out_statement,
    compare_statement,
    draft_order,
    parse_as_of,
    refresh,
    refresh_all,
    require_enquiry_profile,
    rows_needing_order,
    second_person_message,
    settle_by_decision,
)
from paygw_batch.settle.statement import load_statement, proof_message
from paygw_batch.show.batch_status import batch_summary
from paygw_batch.show.next_step import order_steps
from paygw_batch.show.outputs import OutputKind, RequestedOutput
from paygw_batch.show.summary import ExitCode, Summary, worst_code
from paygw_batch.submit.submit_sheet import releasable_rows


@click.command("refresh", cls=HelpCommand)
@click.argument("batch", required=False, shell_complete=complete_batches)
@click.option("--out", type=PathType(), help="Reconciliation file (.csv, .parquet or .xlsx).")
@wait_option
@force_option
@click.pass_obj
@result_options
def refresh_command(invocation: Invocation, *, batch: str | None, results: ResultOptions) -> None:
    """Ask the gateway about BATCH's rows that are accepted or in doubt, until each has a final answer.

    Without BATCH, the command asks once about these rows in every batch, and does not write a reconciliation.

    The configuration must have a [status_enquiry] profile. No rows are sent or released.
    """
    screen, settings = Screen(invocation), settings_for(invocation)
    require_enquiry_profile(settings)
    if batch is None:
        if results.out is not None:
            raise UsageError(say("--out can be used only with BATCH. Without BATCH, no reconciliation is written."))
        screen.finish(_refresh_all_batches(invocation, settings, screen, wait=results.wait))
    with continue_batch(invocation, settings, "refresh", screen, batch, results) as run:
        try:
            result = refresh(run.job, screen.say, lambda enquiries: _drain_on_signals(enquiries, screen))
        finally:
            interruption.restore_handlers()
        end = RunEnd(0, None, interrupted=result.interrupted)
        summary = reconcile(settings, run.job.rules, run.job.journal, run.job.batch, run.files, screen, end)
        run.report.summary = _with_enquiry_counts(summary, result)
    screen.finish(run.report.summary)


def _refresh_all_batches(invocation: Invocation, settings: Settings, screen: Screen, *, wait: bool) -> Summary:
    output_guard(invocation, settings).check(reporting=True)
    require_sending_settings(settings)
    load_signing_key(settings, os.environ)
    total, codes = RefreshResult(), set[ExitCode]()
    with lock_journal(settings, "refresh", screen, wait=wait) as (journal, report):
        try:
            for record, result in refresh_all(
                settings, journal, os.environ, screen.say, lambda enquiries: _drain_on_signals(enquiries, screen)
            ):
                total.asked += result.asked
                total.findings.update(result.findings)
                total.causes.update(result.causes)
                codes.add(batch_summary(journal, record).exit_code)
                codes |= {ExitCode.INTERRUPTED} if result.interrupted else set()
        finally:
            interruption.restore_handlers()
        report.summary = _with_enquiry_counts(Summary(worst_code(codes & _REFRESH_CODES), ""), total)
    return report.summary


_REFRESH_CODES = frozenset({ExitCode.PERSON_NEEDED, ExitCode.INTERRUPTED})
"""The exit codes of `refresh` without a batch: a row is still in doubt, or the command was interrupted."""


def _with_enquiry_counts(summary: Summary, result: RefreshResult) -> Summary:
    findings = {finding.value: count for finding, count in sorted(result.findings.items())}
    findings_text = ", ".join(format_finding_count(count, finding) for finding, count in findings.items())
    message = say_count(
        result.asked, "Enquiries: {count:,}. Results: {findings}.", findings=findings_text or say("nothing new")
    )
    if result.stop_reason:
        message += " " + say("The enquiries stopped early: {reason}", reason=result.stop_reason)
    return replace(
        summary,
        message=f"{message} {summary.message}".strip(),
        extra={"asked": result.asked, "findings": findings, "no_answer": dict(sorted(result.causes.items()))},
    )


def _drain_on_signals(enquiries: Refresh, screen: Screen) -> None:
    def drain() -> None:
        screen.say(say("Stopping: no new enquiries are started. Waiting for those in progress."))
        enquiries.drain()

    interruption.handle_in_loop(asyncio.get_running_loop(), drain)
    if interruption.is_signalled:
        drain()


_COUNT_TEMPLATES = {
    Resolution.PAID: mark_count("{count:,} paid"),
    Resolution.REJECTED: mark_count("{count:,} rejected"),
    Resolution.NOT_RECEIVED: mark_count("{count:,} not received"),
}

EVIDENCE_HELP = mark("Your evidence: who confirmed it, when, and the ticket.")


def statement_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--again", is_flag=True, help="Allow a file that was already applied to this batch."),
        click.option("--as-of", metavar="TIME", help="The time to use for statement lines that have none."),
        click.option("--matching-only", is_flag=True, help="Settle the lines that match, even if others do not."),
    ):
        command = option(command)
    return command


@click.group("resolve", cls=HelpGroup)
def resolve_command() -> None:
    """Settle, with evidence, rows that are in doubt, held, or accepted without a final answer.

    Rows are settled on a person's word, or based on a statement from the gateway. If two people must decide, use `order
    settle`.
    """


@resolve_command.command("row", short_help="Settle rows on your word.")
@click.argument("batch", shell_complete=complete_batches)
@click.argument("rows", metavar="ROW...", type=WholeNumber(1), nargs=-1, required=True)
@click.option(
    "--as",
    "resolution",
    type=click.Choice([resolution.value for resolution in Resolution]),
    required=True,
    help="What happened to each row.",
)
@click.option("--evidence", metavar="TEXT", required=True, help=EVIDENCE_HELP)
@by_option
@wait_option
@click.pass_obj
def resolve_rows(
    invocation: Invocation,
    *,
    batch: str,
    rows: tuple[int, ...],
    resolution: str,
    evidence: str,
    by: str | None,
    wait: bool,
) -> None:
    """Settle the rows of BATCH on your word. If one of them cannot be settled, none are.

    A row settled as rejected or not received can be paid again only after quarantine_h. It stays marked as a possible
    duplicate.
    """
    screen, actor = Screen(invocation), identify_person(by)
    evidence_line = require_line(evidence, "--evidence")
    settings = settings_for(invocation)
    settlements = [Settlement(row, Resolution(resolution), evidence_line) for row in sorted(set(rows))]
    with lock_journal(settings, "resolve", screen, wait=wait) as (journal, report):
        record = find_batch(journal, batch)
        rows_text = " ".join(str(settlement.row) for settlement in settlements[:MAX_SHOWN_LINES])
        with _suggest_order(f"{record.batch} {rows_text} --as {resolution} --evidence TEXT"):
            settle_by_decision(settings, journal, record, settlements, actor)
        screen.say(settlement_message(settlements, actor))
        report.summary = summary_after_settling(journal, record, {"resolved": len(settlements)})
    screen.finish(report.summary)


@resolve_command.command("statement", short_help="Settle rows based on a statement.")
@click.argument("batch", shell_complete=complete_batches)
@click.argument("file", type=PathType())
@click.option("--yes", is_flag=True, help="Apply what the preview shows.")
@statement_options
@click.option("--evidence", metavar="TEXT", help=EVIDENCE_HELP)
@by_option
@wait_option
@click.pass_obj
def resolve_statement(
    invocation: Invocation,
    /,
    *,
    batch: str,
    file: Path,
    yes: bool,
    evidence: str | None,
    by: str | None,
    wait: bool,
    **statement_choices: Any,
) -> None:
    """Settle rows of BATCH based on a statement: FILE, a CSV or .xlsx file with one order on each line.

    Without --yes, the statement is only compared with the journal. It counts as your word, unless [evidence] in the
    configuration says how to prove that it comes from the gateway.
    """
    screen, actor = Screen(invocation), identify_person(by)
    settings = settings_for(invocation)
    output_guard(invocation, settings).check(inputs={say("the statement"): file}, reporting=True)
    request = _load_requested_statement(settings, file, actor, evidence, **statement_choices)
    if yes:
        screen.finish(_apply_statement(settings, screen, batch, request, file, wait=wait))
    with open_journal_to_read(settings) as journal:
        record = find_batch(journal, batch)
        screen.finish(preview_statement(settings, screen, journal, record, request)[1])


def _load_requested_statement(
    settings: Settings,
    file: Path,
    actor: str,
    evidence: str | None,
    *,
    as_of: str | None,
    matching_only: bool,
    again: bool,
) -> RequestedStatement:
    evidence_line = None if evidence is None else require_line(evidence, "--evidence")
    valid_at = None if as_of is None else parse_as_of(as_of)
    return RequestedStatement(load_statement(settings, file), actor, evidence_line, valid_at, matching_only, again)


def _apply_statement(
    settings: Settings, screen: Screen, batch: str, request: RequestedStatement, file: Path, *, wait: bool
) -> Summary:
    def show_match(match: StatementMatch, held_count: int) -> None:
        show_statement_match(screen, match)
        if match.blocking:
            message = say_count(
                held_count,
                "Held by {who}: {count:,} order. It could still have been sent, but the statement shows that the "
                "gateway already has it. A held row is never sent: `paygw-batch status` shows what to do about "
                "each.",
                "Held by {who}: {count:,} orders. They could still have been sent, but the statement shows that "
                "the gateway already has them. A held row is never sent: `paygw-batch status` shows what to do "
                "about each.",
                who=request.by,
            )
            screen.say(message)

    with lock_journal(settings, "resolve", screen, wait=wait) as (journal, report):
        record = find_batch(journal, batch)
        with _suggest_order(f"{record.batch} --statement {shlex.quote(str(file))}"):
            result = carry_out_statement(settings, journal, record, request, show_match)
        match = result.match
        summary = summary_after_settling(journal, record, _statement_as_json(match, len(result.settled), result.held))
        if request.is_refused(match):
            differences = describe_differences(match)
            summary = _refusal_summary(summary, match, say("In the statement, {differences}.", differences=differences))
        else:
            screen.say(settlement_message(result.settled, request.by))
            if match.differences:
                summary = replace(summary, exit_code=worst_code({summary.exit_code, ExitCode.PERSON_NEEDED}))
        report.summary = summary
    return report.summary


def preview_statement(
    settings: Settings, screen: Screen, journal: JournalReader, record: BatchRecord, request: RequestedStatement
) -> tuple[StatementMatch, Summary]:
    """Show the changes that a statement would make, without applying it. Return the match and the summary."""
    match = compare_statement(settings, journal, record, request)
    show_statement_match(screen, match)
    notes = [proof_message(request.statement.proof), request.reuse_message(journal, record)]
    for note in (*notes, *JournalClock.read(journal, utc_now()).messages()):
        if note:
            screen.say(say("Note: {sentence}", sentence=note))
    summary = summary_after_settling(journal, record, _statement_as_json(match, 0, 0))
    effect = say_count(len(match.settlements), "would settle {count:,} row", "would settle {count:,} rows")
    if match.blocking:
        effect += say(
            " and hold {held:,} (--yes holds them even if other lines do not match)", held=len(match.blocking)
        )
    if request.is_refused(match):
        message = say("The statement {does}, but {differences}.", does=effect, differences=describe_differences(match))
        return match, _refusal_summary(summary, match, message)
    message = say("The statement {does}. Nothing was changed. To apply it, add --yes.", does=effect)
    if order_rows := rows_needing_order(settings, journal, record, match.settlements):
        message = say(
            "The statement {does}. Nothing was changed. {needed} To write an order for a second person, run "
            "`paygw-batch order settle BATCH --statement FILE`.",
            does=effect,
            needed=second_person_message(order_rows),
        )
    return match, replace(summary, message=message)


def _refusal_summary(summary: Summary, match: StatementMatch, reason: str) -> Summary:
    hint = (
        say("Nothing was settled. Ask the gateway about these lines, or add --matching-only to settle the others.")
        if match.settlements
        else say("Nothing was settled. Ask the gateway about these lines.")
    )
    return replace(summary, exit_code=ExitCode.DEFECTS, message=f"{reason} {hint}")


def _statement_as_json(match: StatementMatch, resolved_count: int, held_count: int) -> dict[str, object]:
    return {
        "resolved": resolved_count,
        "held": held_count,
        "would_hold": [line.order_id for line in match.blocking],
        "would_resolve": [{"row": entry.row, "as": entry.resolution.value} for entry in match.settlements],
        "on_the_gateways_word": [entry.row for entry in match.settlements if entry.basis is Basis.GATEWAY],
        "differences": [
            {"line": line.line, "order_id": line.order_id, "message": line.sentence} for line in match.differences
        ],
        "agreeing": match.agreeing,
        "elsewhere": match.elsewhere,
        "waiting": match.waiting,
        "still_in_doubt": [row.row for row in match.unsettled_rows],
    }


def settlement_message(settlements: Sequence[Settlement], actor: str) -> str:
    """Return a message that counts the settled rows by result. `actor` is the name recorded in the journal."""
    counts = Counter(settlement.resolution for settlement in settlements)
    text = ", ".join(say_count(count, _COUNT_TEMPLATES[kind]) for kind, count in counts.items()) or say("nothing")
    message = say("Settled by {who}: {counts}.", who=format_decider(actor), counts=text)
    bases = {settlement.basis for settlement in settlements if settlement.resolution is Resolution.REJECTED}
    if Basis.PERSON in bases:
        message += " " + say(
            "Rows that only a person reported as rejected can be sent again only after quarantine_h. They stay "
            "marked as possible duplicates."
        )
    if Basis.GATEWAY in bases:
        message += " " + say(
            "Rows that a proven statement shows as rejected can be sent again immediately. They stay marked as "
            "possible duplicates."
        )
    if counts[Resolution.NOT_RECEIVED]:
        message += " " + say(
            "Rows that were not received are ready again under their old order ids. They stay marked as possible "
            "duplicates. To send them, run `paygw-batch resume`."
        )
    return message


def summary_after_settling(journal: JournalReader, record: BatchRecord, extra: dict[str, object]) -> Summary:
    return replace(batch_summary(journal, record), extra=extra)


@contextmanager
def _suggest_order(arguments: str) -> Iterator[None]:
    """Add a hint to `SecondPersonRequired`: how to write and carry out an order with `arguments`."""
    try:
        yield
    except SecondPersonRequired as error:
        error.hint = order_steps(f"settle {arguments}")
        raise


_out_option = click.option("--out", type=PathType(), required=True, help="File for the order (.json).")
_key_option = click.option("--key", type=PathType(), required=True, help="Your private key (Ed25519, PEM).")


@click.group("order", cls=HelpGroup)
def order_command() -> None:
    """Write an order and sign it with your key. Nothing else is changed.

    Another person must approve it (`approve`). It can then be carried out once (`carry-out`).
    """


@order_command.command("settle", short_help="Settle rows that are in doubt, held or accepted.")
@click.argument("batch", shell_complete=complete_batches)
@click.argument("rows", metavar="[ROW...]", type=WholeNumber(1), nargs=-1)
@click.option(
    "--as",
    "resolution",
    type=click.Choice([resolution.value for resolution in Resolution]),
    help="What happened to the rows.",
)
@click.option("--statement", type=PathType(), help="Settle the rows in this statement instead (.csv or .xlsx).")
@statement_options
@click.option("--evidence", metavar="TEXT", help=EVIDENCE_HELP)
@_out_option
@_key_option
@click.pass_obj
def write_settle_order(
    invocation: Invocation,
    /,
    *,
    batch: str,
    rows: tuple[int, ...],
    resolution: str | None,
    statement: Path | None,
    evidence: str | None,
    out: Path,
    key: Path,
    **statement_choices: Any,
) -> None:
    """Write an order to settle rows of BATCH, on your word or based on a statement.

    With --as, a row settled as rejected or not received can be paid again only after quarantine_h. It stays marked as a
    possible duplicate.
    """
    screen = Screen(invocation)
    if statement is None and (resolution is None or evidence is None or not rows or any(statement_choices.values())):
        raise UsageError(say("Specify rows with --as and --evidence, or a statement with --statement."))
    if statement is not None and (rows or resolution):
        raise UsageError(say("The statement says which rows to settle and how. Leave out ROW and --as."))
    settings, maker_key = _load_settings_and_key(invocation, out, key, statement)
    with open_journal_to_read(settings) as journal:
        record = find_batch(journal, batch)
        if statement is None:
            evidence_line, loaded_statement = require_line(evidence or "", "--evidence"), None
            decisions = [Decision(row, RowAct(resolution or ""), evidence_line) for row in sorted(set(rows))]
        else:
            request = _load_requested_statement(settings, statement, "", evidence, **statement_choices)
            match, summary = preview_statement(settings, screen, journal, record, request)
            if request.is_refused(match):
                screen.finish(summary)
            request.require_first_use(journal, record)
            decisions = [Decision.from_settlement(entry) for entry in request.settlements(match)]
            loaded_statement = request.statement
        draft = draft_order(settings, journal, record, decisions, maker_key.public, statement=loaded_statement)
    screen.finish(_write_order(settings, screen, draft, maker_key, out))


@order_command.command("release", short_help="Send rejected rows again.")
@click.argument("batch", shell_complete=complete_batches)
@click.option("--row", "rows", type=WholeNumber(1), multiple=True, help="Only this row of the sheet. Repeatable.")
@click.option("--evidence", metavar="TEXT", required=True, help="Why the rows may be sent again.")
@_out_option
@_key_option
@click.pass_obj
def write_release_order(
    invocation: Invocation, *, batch: str, rows: tuple[int, ...], evidence: str, out: Path, key: Path
) -> None:
    """Write an order to send rejected rows of BATCH again: those given with --row, or all that can be sent now."""
    screen, evidence_line = Screen(invocation), require_line(evidence, "--evidence")
    settings, maker_key = _load_settings_and_key(invocation, out, key)
    with open_journal_to_read(settings) as journal:
        record = find_batch(journal, batch)
        numbers = sorted(set(rows)) or releasable_rows(settings, journal, record)
        decisions = [Decision(row, RowAct.RELEASE, evidence_line) for row in numbers]
        draft = draft_order(settings, journal, record, decisions, maker_key.public)
    screen.finish(_write_order(settings, screen, draft, maker_key, out))


@order_command.command("forget", short_help="Forget people, and keep the totals.")
@before_option
@person_option
@_out_option
@_key_option
@click.pass_obj
def write_forget_order(invocation: Invocation, *, before: str | None, person: str | None, out: Path, key: Path) -> None:
    """Write an order to forget people. The order names payments, not people.

    Without --before and --person, the date is calculated from [retention] years in the configuration.
    """
    screen = Screen(invocation)
    require_single_selector(before, person)
    settings, maker_key = _load_settings_and_key(invocation, out, key)
    with open_journal_to_read(settings, screen.say) as journal:
        selection = choose_payments(settings, journal, before=before, person=person)
        show_selection(screen, journal, selection)
        draft = draft_forget_order(settings, journal, selection, maker_key.public)
        extra = selection_as_json(journal, selection)
    summary = _write_order(settings, screen, draft, maker_key, out)
    screen.finish(replace(summary, extra=extra | dict(summary.extra)))


def _load_settings_and_key(
    invocation: Invocation, out: Path, key: Path, statement: Path | None = None
) -> tuple[Settings, ApprovalKey]:
    """Load the settings and the maker's key, and check the path of the order to write."""
    if out.suffix.lower() != ".json":
        message = say("{out} does not end in .json.", out=out)
        raise UsageError(message, hint=say("An order must not overwrite another file."))
    settings = settings_for(invocation)
    output_guard(invocation, settings).check(
        RequestedOutput("--out", out, OutputKind.ORDER), inputs={say("the statement"): statement, say("a key"): key}
    )
    require_policy(settings)
    return settings, load_own_key(key)


def _write_order(
    settings: Settings, screen: Screen, draft: RowOrder | ForgetOrder, maker_key: ApprovalKey, out: Path
) -> Summary:
    """Sign, write and show an order. Return the summary."""
    policy, document = require_policy(settings), sign_document(draft, maker_key)
    write_document(document, out)
    show_document(screen, document, policy, settings.submission.quarantine_h)
    show_signatures(screen, document, policy)
    approval = say_count(policy.needed, "{count} other person must approve it", "{count} other people must approve it")
    message = say(
        "Nothing was changed. The order is in {out}. {asks}: `paygw-batch approve {out} --key KEY`. To carry it out "
        "after that, run `paygw-batch carry-out {out}`.",
        out=shlex.quote(str(out)),
        asks=approval,
    )
    return document_summary(document, policy, message)
