"""Submits one sheet from the command line: shows defects and warnings, asks, writes the results, and sums them up."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from paygw_batch.cli.runs.send_batch import send_and_reconcile
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.cli.screen.sheet_tables import show_findings, warnings_told
from paygw_batch.compose.actions.send import Task
from paygw_batch.compose.actions.submit_sheet import RefusedSheet, Submission, Surface, submit_sheet
from paygw_batch.compose.gateway import GatewayAccess
from paygw_batch.compose.outputs import OutputGuard, OutputKind, Wanted
from paygw_batch.core.batch import PAYOUT
from paygw_batch.countries.load import load_operation
from paygw_batch.countries.rules import Rules
from paygw_batch.journal import Journal
from paygw_batch.language import say, say_count
from paygw_batch.report.summary import ExitCode, Summary
from paygw_batch.run.submit import Plan
from paygw_batch.settings.configuration import Settings
from paygw_batch.sheet.read.sheet_file import ReadOptions
from paygw_batch.sheet.write.rejects import write_mendable


@dataclass(frozen=True, slots=True)
class Rejects:
    """Where the rows of a refused sheet are handed back, and how the sheet at `source` was read."""

    path: Path
    source: Path
    options: ReadOptions


@dataclass(frozen=True, slots=True)
class ResultFiles:
    """The files that a submission writes: `out` is the reconciliation, and `is_out_named` when a person named it.

    `rejects` gets the rows of a refused sheet; `report` is the page. None: not written.
    """

    out: Path
    is_out_named: bool = False
    rejects: Rejects | None = None
    report: Path | None = None

    def check(self, guard: OutputGuard, asked: Submission) -> None:
        """Raise `OutputError` unless every result may be written where it goes."""
        guard.check(
            Wanted("--out" if self.is_out_named else say("The reconciliation"), self.out, OutputKind.RECONCILIATION),
            Wanted(say("The rejects"), self.rejects.path if self.rejects else None, OutputKind.REJECTS),
            Wanted(say("The report"), self.report, OutputKind.REPORT),
            inputs={say("the sheet"): asked.sheet, say("the plan"): asked.plan},
            reporting=True,
        )


def submit_and_report(
    asked: Submission,
    files: ResultFiles,
    settings: Settings,
    rules: Rules,
    gateway: GatewayAccess,
    journal: Journal,
    screen: Screen,
    *,
    may_ask: bool = True,
) -> Summary:
    """Submit a sheet, write its results, and return the summary. Raises `ApprovalError` for one that is not approved.

    Where a question comes up, a person is asked only if one `may_ask`.
    """

    def send(task: Task, plan: Plan) -> Summary:
        return with_warnings_told(send_and_reconcile(task, files.out, screen, report=files.report), plan)

    surface = Surface(partial(show_planned, screen), screen.say, screen.confirm if may_ask else Surface().confirm)
    result = submit_sheet(asked, settings, rules, gateway, journal, surface, send)
    if isinstance(result, Summary):
        return result
    if files.rejects is not None and result.repeat is None:
        given, validated = files.rejects, result.plan.validated
        screen.notes(write_mendable(validated, given.source, given.options, given.path).notes)
    return refused_summary(result, strict=asked.strict)


def show_planned(screen: Screen, plan: Plan) -> None:
    """Show defects and warnings of a planned sheet, and how much of it the journal knows."""
    show_findings(screen, say("Defects"), plan.validated.defects_found)
    show_findings(screen, say("Warnings"), plan.warnings_found)
    show_known(screen, plan)


def show_known(screen: Screen, plan: Plan) -> None:
    """Say how many rows of a sheet the journal has already."""
    if plan.known_rows:
        screen.say(
            say_count(
                plan.known_rows,
                "{count:,} row is known to the journal; it keeps its state.",
                "{count:,} rows are known to the journal; they keep their state.",
            )
        )


def with_warnings_told(summary: Summary, plan: Plan) -> Summary:
    """Return the summary with the warnings of a planned sheet, where it has any."""
    if plan.warnings_found.is_empty:
        return summary
    return replace(summary, further={**summary.further, **warnings_told(plan.warnings_found)})


def refused_summary(refused: RefusedSheet, *, strict: bool) -> Summary:
    """Return the summary of a refused sheet; with `strict`, warnings are among its defects."""
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
    if refused.repeat is not None:
        message = f"{refused.repeat.message} {refused.repeat.hint}"
        summary = replace(summary, message=message, further={"code": refused.repeat.code})
    else:
        bad = validated.defects_found.rows.len()
        summary = replace(summary, message=_defects_sentence(plan, bad, strict=strict), defects=bad)
    return with_warnings_told(summary, plan)


def _defects_sentence(plan: Plan, bad: int, *, strict: bool) -> str:
    operation = load_operation(plan.validated.sheet.operation)
    options = f"{'' if operation.name == PAYOUT else '--collect '}{'--strict ' if strict else ''}"
    return say_count(
        bad,
        "{count:,} of {rows} has defects: nothing was sent. Mend it (`paygw-batch validate {options}"
        "--rejects FILE` writes it out), or {command} with --skip-invalid to {verb} the others.",
        "{count:,} of {rows} have defects: nothing was sent. Mend them (`paygw-batch validate {options}"
        "--rejects FILE` writes them out), or {command} with --skip-invalid to {verb} the others.",
        rows=say_count(plan.validated.height, "{count:,} row", "{count:,} rows"),
        options=options,
        command=operation.command,
        verb=say(operation.verb),
    )
