"""Submits a sheet (plan, approve, open, send), or continues a batch using only the journal.

The caller provides the function that sends, for example one with a progress bar. Rejected rows are released by one
person's decision, or by an order that a second person approved.
"""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

from paygw_batch.approval.plan_document import NO_APPROVAL
from paygw_batch.approval.policy import require_policy
from paygw_batch.clock import timestamp, utc_now
from paygw_batch.core.batch import PAYOUT
from paygw_batch.core.choices import BatchSender, Choices
from paygw_batch.core.evidence import SignedOrder
from paygw_batch.core.lifecycle import State
from paygw_batch.core.shown_states import render_record
from paygw_batch.countries.load import load_operation
from paygw_batch.engine.quarantine import JournalClock
from paygw_batch.errors import InternalError, UsageError
from paygw_batch.journal import BatchRecord, Journal, JournalReader, RowState, TallyKind, is_in_quarantine
from paygw_batch.language import say, say_count
from paygw_batch.opening.gateway_access import GatewayAccess, SendJob, load_signing_key, open_gateway
from paygw_batch.opening.given_sheet import require_complete, rules_for
from paygw_batch.opening.open_journal import Echo, open_journal_for_run
from paygw_batch.settings.configuration import Settings
from paygw_batch.settle.resolve import (
    check_releasable,
    quarantine_end,
    quarantined_rows,
    require_people_not_forgotten,
    waiting_message,
)
from paygw_batch.settle.row_order import RowOrder, order_in_force
from paygw_batch.sheet.check.validate import warnings_as_defects, whole_sheet_refusal
from paygw_batch.sheet.findings import warning_summary
from paygw_batch.show.summary import ExitCode, Summary
from paygw_batch.submit.approvals import named_plan, require_approval, require_same_batch
from paygw_batch.submit.open_questions import superseded_rows
from paygw_batch.submit.plan import Plan, open_planned_batch
from paygw_batch.submit.submission import (
    Conversation,
    RefusedSheet,
    Submission,
    ask_questions,
    plan_sheet,
    refusal_for_defects,
)

T = TypeVar("T")


def submit_sheet(
    submission: Submission,
    gateway: GatewayAccess,
    journal: Journal,
    conversation: Conversation,
    send: Callable[[SendJob, Plan], T],
) -> T | RefusedSheet:
    """Open a sheet's batch if necessary, and `send` its due rows.

    Before anything is written, returns a refusal for defects or open questions, or raises `ApprovalError`.
    """
    source, choices, plan = submission.source, submission.choices, plan_sheet(submission, journal)
    conversation.show(plan)
    plan_document = named_plan(submission)
    if (refusal := refusal_for_defects(submission, plan, journal)) is not None:
        return refusal
    plan_approval = require_approval(submission, plan, journal)
    if plan_approval is NO_APPROVAL and plan_document is not None:
        require_same_batch(plan_document, plan)
    for approval in plan_approval.approvals:
        conversation.say(say("The plan was {sentence}.", sentence=render_record(approval)))
    refusal = ask_questions(submission, plan, journal, conversation, answered=plan_approval.answered)
    if refusal is not None:
        return refusal
    path, by = submission.sheet, choices.decided_by
    batch = open_planned_batch(
        plan, journal, source.rules, sheet_path=path, now=utc_now, by=by, approved=plan_approval, is_answered=True
    )
    return send(SendJob(source.settings, source.rules, gateway, journal, batch, plan.known_row_count, choices), plan)


def add_warnings(summary: Summary, plan: Plan) -> Summary:
    if plan.warnings_found.is_empty:
        return summary
    details = warning_summary(plan.warnings_found, plan.validated.sheet.headers)
    return replace(summary, extra={**summary.extra, **details})


def refusal_summary(refusal: RefusedSheet, submission: Submission) -> Summary:
    """Return the summary for a refused sheet. In strict mode, warnings count as defects."""
    plan, validated = refusal.plan, refusal.plan.validated
    summary = Summary(
        ExitCode.DEFECTS,
        "",
        batch=validated.batch,
        sheet=validated.sheet.name,
        rows=validated.height,
        states=refusal.states,
        known=plan.known_row_count,
    )
    if (question := refusal.question) is not None:
        message = f"{question.message} {question.hint}"
        summary = replace(summary, message=message, extra={"code": question.code}, option=question.option)
    else:
        rows = validated.defects_found.rows
        defect_count = len(rows.filter(rows != 0))
        is_strict = submission.choices.strict and (submission.choices.skip_invalid or not defect_count)
        message = (is_strict and whole_sheet_refusal(validated)) or _defects_message(plan, defect_count, submission)
        summary = replace(summary, message=message, defects=len(rows))
    return add_warnings(summary, plan)


def _defects_message(plan: Plan, defect_count: int, submission: Submission) -> str:
    operation, defect_rows = load_operation(plan.validated.sheet.operation), plan.validated.defects_found.rows
    message = say_count(
        defect_count,
        "Nothing was sent, because {count:,} of {rows} has defects. Correct it, or run the command again with "
        "--skip-invalid to {verb} the others.",
        "Nothing was sent, because {count:,} of {rows} have defects. Correct them, or run the command again with "
        "--skip-invalid to {verb} the others.",
        rows=say_count(plan.validated.height, "{count:,} row", "{count:,} rows"),
        verb=say(operation.verb),
    )
    strict, validated = submission.choices.strict, submission.validated
    validation_rows = (warnings_as_defects(validated) if strict else validated).defects_found.rows
    if len(validation_rows) < len(defect_rows):  # `validate` would not find defects from the journal
        return message
    extension = ".xlsx" if submission.sheet.suffix.lower() == ".xlsx" else ".csv"
    rejects = shlex.quote(f"{submission.sheet.stem}.rejects{extension}")
    options = f"{'' if operation.name == PAYOUT else '--collect '}{'--strict ' if strict else ''}"
    advice = say(
        "To write the refused rows to a file, run `paygw-batch validate {sheet} {options}--rejects {rejects}`.",
        sheet=submission.command_argument,
        options=options,
        rejects=rejects,
    )
    return f"{message} {advice}"


@contextmanager
def open_batch_to_continue(
    settings: Settings,
    command: str,
    find: Callable[[JournalReader], BatchRecord],
    environ: Mapping[str, str],
    echo: Echo,
    *,
    wait: bool = False,
) -> Iterator[SendJob]:
    """Lock the journal, open the gateway, and yield a job for the batch returned by `find`."""
    load_signing_key(settings, environ)  # so that an unusable key is reported first
    with open_journal_for_run(settings, command, echo, wait=wait) as journal:
        batch = find(journal)
        require_people_not_forgotten(journal, batch)
        rules = rules_for(settings, batch.operation)
        with open_gateway(settings, rules, environ) as gateway:
            yield SendJob(settings, rules, gateway, journal, batch, choices=Choices(sent_by=BatchSender.WORKERS_IF_ANY))


def find_unfinished_batch(journal: JournalReader) -> BatchRecord:
    """Return the only batch with rows to send, or the newest batch if none has any.

    Raises `UsageError` if several batches have rows to send, or if the journal has no batches.
    """
    batches = journal.batches()
    unfinished = [batch for batch in batches if journal.tallies(batch.number, kind=TallyKind.DUE)]
    if len(unfinished) == 1:
        return unfinished[0]
    if not unfinished and batches:
        return batches[-1]
    if not unfinished:
        raise UsageError(
            say("The journal has no batches yet."),
            hint=say("To start one, run `paygw-batch submit SHEET`."),
            for_terminal=True,
        )
    names = ", ".join(f"{batch.batch} ({batch.sheet_name})" for batch in unfinished)
    raise UsageError(
        say("Several batches have rows to send: {names}.", names=names),
        hint=say("Choose one with `paygw-batch resume BATCH`."),
        for_terminal=True,
    )


@dataclass(frozen=True, slots=True)
class ReleasedRows:
    """How many rows were released, and a message for each row that must wait."""

    rows: int
    waiting: Sequence[str]


def release_rejected_rows(
    job: SendJob, rows: Sequence[int] | None, by: str, *, order: SignedOrder | None = None
) -> ReleasedRows:
    """Release rejected rows of a batch (all if `rows` is None) for another attempt, as `by` decided.

    A row is not released if a later sheet of the payment run pays its payee in another row. The journal stores the
    signed `order` for the release, if any. Raises `UsageError` and releases nothing if one of `rows` may not be
    released.
    """
    settings, journal, batch = job.settings, job.journal, job.batch
    quarantine_h = settings.submission.quarantine_h
    check_releasable(journal, batch, rows or (), quarantine_h=quarantine_h, now=utc_now)
    superseded = superseded_rows(journal, batch)
    if named := sorted(superseded.keys() & set(rows or ())):
        raise UsageError(
            " ".join(_superseded_message(row, superseded[row]) for row in named), hint=say("Nothing was released.")
        )
    rejected = {row.row for row in journal.rows(batch.number, states={State.REJECTED})} if superseded else set()
    kept = sorted(rejected & superseded.keys())
    rows = sorted(rejected - superseded.keys()) if rows is None and kept else rows
    sendable_states = {State.READY, State.REJECTED}
    countries = {tally.country for tally in journal.tallies(batch.number) if tally.state in sendable_states}
    require_complete(settings, job.rules, countries)
    now = utc_now()
    # A row that only a person reported as rejected may still be paid until its quarantine ends, so the journal does not
    # release such a row if it was sent after `cutoff`.
    quarantine = JournalClock.read(journal, now).quarantine(quarantine_h)
    released_count = journal.release(
        batch.number,
        rows,
        suffix=settings.retry.order_id == "suffix",
        by=by,
        at=timestamp(now),
        cutoff=quarantine.cutoff(now),
        order=None if order is None else replace(order, at=timestamp(now)),
    )
    waiting_rows = quarantined_rows(journal, batch, quarantine_h=quarantine_h, now=utc_now).values()
    waiting = [waiting_message(row, quarantine) for row in waiting_rows if row.row not in superseded]
    return ReleasedRows(released_count, [*waiting, *(_superseded_message(row, superseded[row]) for row in kept)])


def _superseded_message(row: int, batch: str) -> str:
    return say(
        "Row {row} was not released, because batch {batch} of the same payment run has a new row with the same name. "
        "To retry row {row}, first submit a sheet of this run that has it again.",
        row=row,
        batch=batch,
    )


@dataclass(frozen=True, slots=True)
class RejectedRows:
    """The first rejected rows of a batch. `open_from` maps each row that must wait to its release time."""

    rows: Sequence[RowState]
    open_from: Mapping[int, str]
    has_more: bool


def rejected_rows(settings: Settings, journal: JournalReader, batch: BatchRecord, *, limit: int) -> RejectedRows:
    """Return the first `limit` rejected rows of a batch, in the sheet's order."""
    rejected = list(journal.rows(batch.number, states={State.REJECTED}, limit=limit + 1))
    now = utc_now()
    quarantine = JournalClock.read(journal, now).quarantine(settings.submission.quarantine_h)
    cutoff = quarantine.cutoff(now)
    release_times = {
        row.row: timestamp(end)
        for row in rejected[:limit]
        if is_in_quarantine(row.quarantined_since, cutoff) and (end := quarantine_end(row, quarantine)) is not None
    }
    return RejectedRows(rejected[:limit], release_times, len(rejected) > limit)


def releasable_rows(settings: Settings, journal: JournalReader, batch: BatchRecord) -> Sequence[int]:
    quarantined = quarantined_rows(journal, batch, quarantine_h=settings.submission.quarantine_h, now=utc_now)
    excluded = quarantined.keys() | superseded_rows(journal, batch).keys()
    return [row.row for row in journal.rows(batch.number, states={State.REJECTED}) if row.row not in excluded]


def release_by_order(job: SendJob, order: RowOrder, by: str) -> ReleasedRows:
    """Release the rows in an approved order. Raises `ApprovalError` if it is not valid or was already carried out."""
    policy, endpoint = require_policy(job.settings), job.settings.endpoint()
    in_force = order_in_force(order, job.journal, policy, utc_now(), by=by, endpoint=endpoint)
    if in_force.batch != job.batch:
        raise InternalError(f"an order about batch {in_force.batch.batch} was to be carried out for {job.batch.batch}")
    return release_rejected_rows(job, order.numbers, in_force.by, order=in_force.signed_order)
