"""Submits a sheet, for any kind of conversation: plan -> approve -> open -> send.

The caller passes in the function that sends (with a progress bar, or a queue of outcomes).
"""

import shlex
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from paygw_batch.actions.approvals import named_plan, require_about, require_approval
from paygw_batch.actions.plan_document import (
    Conversation,
    RefusedSheet,
    Submission,
    plan_sheet,
    refused_for_defects,
    refused_for_questions,
    require_true_findings,
)
from paygw_batch.actions.send import SendJob
from paygw_batch.clock import utc_now
from paygw_batch.core.batch import PAYOUT
from paygw_batch.core.recorded_words import recorded
from paygw_batch.countries.load import load_operation
from paygw_batch.countries.rules import Rules
from paygw_batch.journal import Journal
from paygw_batch.language import say, say_count
from paygw_batch.report.summary import ExitCode, Summary
from paygw_batch.run.approval import NOT_ASKED_FOR
from paygw_batch.run.submit import Plan, open_planned_batch
from paygw_batch.settings.configuration import Settings
from paygw_batch.sheet.check.validate import refused_as_a_whole
from paygw_batch.sheet.findings import warnings_told
from paygw_batch.wiring.gateway import GatewayAccess

T = TypeVar("T")


def require_named_plan(asked: Submission, settings: Settings) -> None:
    """Raise `ApprovalError` if a person named a plan that is unreadable, or that no policy asks for."""
    if asked.options.is_plan_named:
        named_plan(settings, asked.plan)


def submit_sheet(
    asked: Submission,
    settings: Settings,
    rules: Rules,
    gateway: GatewayAccess,
    journal: Journal,
    conversation: Conversation,
    send: Callable[[SendJob, Plan], T],
) -> T | RefusedSheet:
    """Open the sheet's batch, or find it already open, and `send` its due rows.

    Raises `ApprovalError` if a new batch is not approved; nothing has been written by then.
    """
    plan = plan_sheet(asked, settings, journal)
    conversation.show(plan)
    require_named_plan(asked, settings)
    if (refused := refused_for_defects(asked, plan, journal)) is not None:
        return refused
    approved = require_approval(
        settings,
        rules,
        plan,
        asked.plan,
        journal,
        utc_now,
        partial(require_true_findings, asked=asked, settings=settings, rules=rules, journal=journal),
        is_named=asked.options.is_plan_named,
    )
    if approved is NOT_ASKED_FOR and asked.options.is_plan_named:
        require_about(named_plan(settings, asked.plan), plan)
    for approval in approved.approvals:
        conversation.say(say("The plan was {sentence}.", sentence=recorded(approval)))
    if (refused := refused_for_questions(asked, plan, journal, conversation, approved=approved.answered)) is not None:
        return refused
    batch = open_planned_batch(
        plan,
        journal,
        rules,
        operation=asked.operation,
        sheet_path=asked.sheet,
        now=utc_now,
        by=asked.by,
        approvals=approved.approvals,
        plan_sha256=approved.plan_sha256,
        is_answered=True,
    )
    options = asked.options
    task = SendJob(
        *(settings, rules, gateway, journal, batch, plan.known_rows),
        first=options.first,
        sent_by=options.sent_by,
        is_urgent=options.urgent,
    )
    return send(task, plan)


def with_warnings_told(summary: Summary, plan: Plan) -> Summary:
    """Return the summary with a planned sheet's warnings, if it has any."""
    if plan.warnings_found.is_empty:
        return summary
    told = warnings_told(plan.warnings_found, plan.validated.sheet.headers)
    return replace(summary, further={**summary.further, **told})


def refused_summary(refused: RefusedSheet, asked: Submission) -> Summary:
    """Return the summary of a refused sheet; if the submission is strict, warnings count as defects."""
    plan, validated = refused.plan, refused.plan.validated
    summary = Summary(
        ExitCode.DEFECTS,
        "",
        batch=validated.batch,
        sheet=validated.sheet.name,
        rows=validated.height,
        states=refused.states,
        known=plan.known_rows,
    )
    if (question := refused.question) is not None:
        message = f"{question.message} {question.hint}"
        summary = replace(summary, message=message, further={"code": question.code}, option=question.option)
    else:
        found = validated.defects_found.rows
        bad = len(found.filter(found != 0))
        is_whole = asked.options.strict and (asked.options.skip_invalid or not bad)
        message = (is_whole and refused_as_a_whole(validated)) or _defects_sentence(plan, bad, asked)
        summary = replace(summary, message=message, defects=len(found))
    return with_warnings_told(summary, plan)


def _defects_sentence(plan: Plan, bad: int, asked: Submission) -> str:
    operation = load_operation(plan.validated.sheet.operation)
    ending = ".xlsx" if asked.sheet.suffix.lower() == ".xlsx" else ".csv"
    rejects = shlex.quote(f"{asked.sheet.stem}.rejects{ending}")
    options = f"{'' if operation.name == PAYOUT else '--collect '}{'--strict ' if asked.options.strict else ''}"
    return say_count(
        bad,
        "{count:,} of {rows} has defects: nothing was sent. Correct it (`paygw-batch validate {sheet} "
        "{options}--rejects {rejects}` writes it out), or {command} with --skip-invalid to {verb} the others.",
        "{count:,} of {rows} have defects: nothing was sent. Correct them (`paygw-batch validate {sheet} "
        "{options}--rejects {rejects}` writes them out), or {command} with --skip-invalid to {verb} the others.",
        rows=say_count(plan.validated.height, "{count:,} row", "{count:,} rows"),
        sheet=asked.typed,
        options=options,
        rejects=rejects,
        command=operation.command,
        verb=say(operation.verb),
    )
