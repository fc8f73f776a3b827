"""Submitting one validated sheet to an open journal: what `submit` and `run-folder` have in common."""

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from paygw_batch.cli.runs.send_batch import send_and_reconcile
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.cli.screen.sheet_tables import show_findings, warnings_told
from paygw_batch.clock import utc_now
from paygw_batch.compose.actions.send import Task
from paygw_batch.compose.approvals import require_approval
from paygw_batch.compose.gateway import GatewayAccess
from paygw_batch.compose.operator import person
from paygw_batch.compose.outputs import OutputGuard, OutputKind, Wanted
from paygw_batch.compose.planning import planned_submission
from paygw_batch.core.batch import PAYOUT
from paygw_batch.core.lifecycle import State
from paygw_batch.core.shown_states import INVALID, STATES, shown_state
from paygw_batch.countries.load import load_operation
from paygw_batch.countries.rules import Rules
from paygw_batch.errors import InternalError
from paygw_batch.journal import Journal, JournalReader
from paygw_batch.report.summary import ExitCode, Summary
from paygw_batch.run.submit import Plan, open_planned_batch
from paygw_batch.settings.configuration import Settings
from paygw_batch.sheet.model import Validated
from paygw_batch.sheet.write.table import write_rejects


@dataclass(frozen=True, slots=True)
class Submission:
    """A sheet to submit: where it stands, where its results go, where its plan would be, and what was asked for.

    `guard` looks at where results go; `is_out_named` says that a person named `out`.
    `rejects` is where the rows of a refused sheet are written, `report` where the page to look at goes, if anywhere.
    `repeats_meant` says beforehand that the sheet is meant to repeat a batch; without it a person is asked, where that
    is possible and `may_ask`. `first` sends only so many of the due rows (None: all).
    """

    sheet: Path
    validated: Validated
    out: Path
    plan: Path
    guard: OutputGuard
    is_out_named: bool = False
    skip_invalid: bool = False
    amend: bool = False
    strict: bool = False
    repeats_meant: bool = False
    rejects: Path | None = None
    report: Path | None = None
    may_ask: bool = True
    first: int | None = None

    def check_outputs(self) -> None:
        """Raise `OutputError` unless every result may be written where it goes."""
        self.guard.check(
            Wanted("--out" if self.is_out_named else "The reconciliation", self.out, OutputKind.RECONCILIATION),
            Wanted("The rejects", self.rejects, OutputKind.REJECTS),
            Wanted("The report", self.report, OutputKind.REPORT),
            inputs={"the sheet": self.sheet, "the plan": self.plan},
            reporting=True,
        )


def submit_sheet(
    submission: Submission,
    settings: Settings,
    rules: Rules,
    connection: GatewayAccess,
    journal: Journal,
    screen: Screen,
) -> Summary:
    """Open the sheet's batch, or find it opened, and send what is due in it.

    A sheet with defects, or one that repeats a batch and is not meant to, is refused by its summary. Raises
    `ApprovalError` when a new batch is not approved: nothing has been written by then.
    """
    planned = planned_submission(
        settings,
        submission.validated,
        journal,
        operation=submission.validated.sheet.operation,
        amend=submission.amend,
        strict=submission.strict,
    )
    show_planned(screen, planned)
    if planned.validated.defects.height and not submission.skip_invalid:
        if submission.rejects is not None:
            write_rejects(planned.validated, submission.rejects)
        return refused(planned, journal, strict=submission.strict)
    approved = require_approval(settings, rules, planned, submission.plan, journal, utc_now)
    for sentence in approved.sentences:
        screen.say(f"The plan was {sentence}.")
    is_meant = submission.repeats_meant or planned.is_meant(approved.repeats_meant)
    if not may_repeat(planned, screen, is_meant=is_meant, may_ask=submission.may_ask):
        return repeat_refused(planned, journal)
    batch = open_planned_batch(
        planned,
        journal,
        rules,
        operation=submission.validated.sheet.operation,
        sheet_path=submission.sheet,
        now=utc_now,
        by=person(None),
        approvals=approved.sentences,
        plan_sha256=approved.plan_sha256,
        repeats_meant=True,
    )
    task = Task(settings, rules, connection, journal, batch, planned.known_rows, submission.first)
    summary = send_and_reconcile(task, submission.out, screen, report=submission.report)
    return with_warnings_told(summary, planned)


def show_planned(screen: Screen, plan: Plan) -> None:
    """Show defects and warnings of a planned sheet, and how much of it the journal knows."""
    show_findings(screen, "Defects", plan.validated.defects)
    show_findings(screen, "Warnings", plan.warnings)
    if plan.known_rows:
        screen.say(known_sentence(plan.known_rows))


def known_sentence(count: int) -> str:
    """Return how many rows of a sheet the journal has already."""
    if count == 1:
        return "1 row is known to the journal; it keeps its state."
    return f"{count:,} rows are known to the journal; they keep their state."


def with_warnings_told(summary: Summary, plan: Plan) -> Summary:
    """Return the summary with the warnings of a planned sheet, where it has any."""
    if plan.warnings.is_empty():
        return summary
    return replace(summary, further={**summary.further, **warnings_told(plan.warnings)})


def may_repeat(plan: Plan, screen: Screen, *, is_meant: bool, may_ask: bool = True) -> bool:
    """Whether a sheet repeats no batch, or is meant to: as was said beforehand, or as a person says now."""
    if plan.repeat is None or is_meant:
        return True
    return may_ask and screen.asks() and screen.confirm(plan.repeat.question)


def repeat_refused(plan: Plan, journal: JournalReader) -> Summary:
    """Return the summary of a sheet that was refused because it repeats a batch."""
    if plan.repeat is None:
        raise InternalError("a sheet that repeats no batch was refused for it")
    refusal = plan.repeat.refusal()
    summary = Summary(
        ExitCode.DEFECTS,
        f"{refusal.message} {refusal.hint}",
        batch=plan.validated.batch,
        sheet=plan.validated.sheet.name,
        rows=plan.validated.height,
        states=_states_of(plan, journal),
        known=plan.known_rows,
        further={"code": refusal.code},
    )
    return with_warnings_told(summary, plan)


def _states_of(plan: Plan, journal: JournalReader) -> dict[str, int]:
    """Return how the rows of a refused sheet stand: those that the journal has keep their state."""
    invalid = plan.validated.defects["row"].n_unique()
    counts = Counter({INVALID: invalid, State.READY.value: plan.validated.height - invalid})
    if plan.existing is not None:
        counts[State.READY.value] = 0
        for tally in journal.tallies(plan.existing.number):
            counts[shown_state(tally.state)] += tally.count
    for known in plan.known:
        counts[State.READY.value] -= 1
        counts[shown_state(known.state)] += 1
    return {state: counts[state] for state in STATES if counts[state]}


def refused(plan: Plan, journal: JournalReader, *, strict: bool) -> Summary:
    """Return the summary of a sheet that was refused for its defects; with `strict`, warnings are among them."""
    validated = plan.validated
    bad = validated.defects["row"].n_unique()
    operation = load_operation(validated.sheet.operation)
    options = f"{'' if operation.name == PAYOUT else '--collect '}{'--strict ' if strict else ''}"
    write_out = f"paygw-batch validate {options}--rejects FILE"
    summary = Summary(
        ExitCode.DEFECTS,
        f"{bad:,} of {validated.height:,} rows have defects: nothing was sent. Mend them "
        f"(`{write_out}` writes them out), or {operation.command} with --skip-invalid to {operation.verb} the others.",
        batch=validated.batch,
        sheet=validated.sheet.name,
        rows=validated.height,
        states=_states_of(plan, journal),
        defects=bad,
        known=plan.known_rows,
    )
    return with_warnings_told(summary, plan)
