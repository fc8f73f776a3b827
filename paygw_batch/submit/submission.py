"""Prepares a sheet's plan for approval: the exact instructions to send, and the findings for approvers."""

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Self

import polars as pl

from paygw_batch.approval.approval_keys import PublicKey
from paygw_batch.approval.plan_document import (
    ACCOUNTS_FIRST_PAID,
    ALREADY_SENT,
    COMPARED_BATCH,
    CORRECTED,
    FIRST_RUN,
    NAMED_ENCODING,
    OTHER_WORKSHEET,
    REASSIGNED_HEADING,
    SPELLED_COLUMN,
    WORKSHEET,
    PlanContent,
    PlanDocument,
    PlanFinding,
    build_content_and_people,
    build_plan,
    require_same_content,
    require_same_findings,
)
from paygw_batch.clock import utc_now
from paygw_batch.core.batch import find_differences
from paygw_batch.core.choices import Choices
from paygw_batch.core.lifecycle import State
from paygw_batch.core.shown_states import HELD, INVALID, STATES, display_state
from paygw_batch.errors import ApprovalError, OpenSheetQuestion, SheetError, UsageError
from paygw_batch.journal import JournalReader, KnownRow
from paygw_batch.language import language, language_context, languages, say
from paygw_batch.opening.given_sheet import SheetSource, require_complete, rule_minor_units
from paygw_batch.opening.open_journal import Echo, find_batch
from paygw_batch.settle.resolve import require_people_not_forgotten
from paygw_batch.sheet.check.corrections import LEFT_OUT
from paygw_batch.sheet.check.spelling import interpretations
from paygw_batch.sheet.findings import MAX_SHOWN_CHARACTERS, format_row_ranges
from paygw_batch.sheet.model import Validated
from paygw_batch.sheet.read.headings import IGNORED_HEADING, match_names
from paygw_batch.show.reconcile import reconciliation_pieces
from paygw_batch.submit.changes import Change, Comparison, compare_with_past
from paygw_batch.submit.compare_sheet import ComparisonMemory
from paygw_batch.submit.plan import LookBack, Plan, plan_submission

_PAID_OR_ACCEPTED = frozenset({State.PAID, State.ACCEPTED})
_PAYEE_COLUMNS = (
    pl.col("account_name").fill_null("").alias("name"),
    pl.coalesce("account_number", "phone").fill_null("").alias("account"),
    *(pl.col(name).fill_null("") for name in ("amount", "currency")),
)
"""The columns of a finding about the payment of a row."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A validated sheet, the user's choices for it, and the path of its approved plan."""

    source: SheetSource
    validated: Validated
    choices: Choices
    plan: Path

    @classmethod
    def read(cls, source: SheetSource, choices: Choices, plan: Path) -> Self:
        """Read and validate a sheet. Raises `SheetQuestion` if it is unclear how to read it."""
        return cls(source, source.validated(), choices, plan)

    @property
    def sheet(self) -> Path:
        """The path at which a later run finds the sheet."""
        return self.source.final_path or self.source.path

    @property
    def command_argument(self) -> str:
        """The sheet as a command argument, with the options for reading it."""
        # A sheet stored under another name has no path that the user knows.
        return "SHEET" if self.source.file else shlex.join([str(self.source.path), *self.source.reading.words])

    @property
    def wrong_totals(self) -> Sequence[str]:
        """A message for each expected total that differs from the sheet's."""
        return find_differences(self.choices.expected, self.validated.totals)

    def require_ready_to_send(self) -> None:
        """Raise `SheetError` for unexpected totals, or `ConfigurationError` for missing settings."""
        if errors := self.wrong_totals:
            raise SheetError(" ".join(errors), hint=say("Nothing was sent. Make sure that this is the right sheet."))
        self.require_complete()

    def require_complete(self) -> None:
        """Raise `ConfigurationError`, listing all missing settings, if one is needed to send the sheet's rows."""
        valid = self.validated.counts.filter("valid")
        require_complete(self.source.settings, self.source.rules, set(valid["country"]))


@dataclass(frozen=True, slots=True)
class Conversation:
    """Shows a plan, reports messages and asks questions. By default, it shows nothing and answers no."""

    show: Callable[[Plan], None] = lambda _plan: None
    say: Echo = lambda _message: None
    confirm: Callable[[str], bool] = lambda _question: False


@dataclass(frozen=True, slots=True)
class RefusedSheet:
    """A sheet refused for its defects or an unanswered `question`. `states` counts its rows by state."""

    plan: Plan
    states: Mapping[str, int]
    question: OpenSheetQuestion | None = None


def plan_sheet(
    submission: Submission,
    journal: JournalReader,
    *,
    as_of: datetime | None = None,
    memory: ComparisonMemory | None = None,
) -> Plan:
    """Compare a sheet with the journal and plan its batch. Days are counted back from `as_of`, or from now."""
    settings = submission.source.settings
    return plan_submission(
        submission.validated,
        journal,
        submission.choices,
        now=utc_now,
        quarantine_h=settings.submission.quarantine_h,
        look_back=LookBack(settings.sheet.repeat_days, settings.sheet.look_alike_days),
        as_of=as_of,
        memory=memory,
    )


def preview_rows(plan: Plan, journal: JournalReader, minor_units: Mapping[str, int]) -> Iterator[pl.DataFrame]:
    """Yield frames with the sheet's rows: `country, currency, amount, state`. Rows in state `ready` would be sent."""
    if plan.existing is not None:
        is_held = pl.col("row").is_in(list(journal.holds(plan.existing.number)))
        for piece in reconciliation_pieces(journal, plan.existing, minor_units):
            yield piece.with_columns(state=pl.when(is_held).then(pl.lit(HELD)).otherwise("state"))
        return
    known_rows = pl.DataFrame(
        [(row.row, _shown_state(row)) for row in plan.known],
        schema={"row": pl.UInt32, "known_state": pl.String},
        orient="row",
    )
    state = pl.when("valid").then(pl.coalesce("known_state", pl.lit(State.READY.value))).otherwise(pl.lit(INVALID))
    for part in plan.validated.parts():
        yield part.rows.join(known_rows, on="row", how="left", maintain_order="left").with_columns(state=state)


def _shown_state(row: KnownRow) -> str:
    return HELD if row.is_held else display_state(row.state)


def refusal_for_defects(submission: Submission, plan: Plan, journal: JournalReader) -> RefusedSheet | None:
    """Return a refusal if the sheet has defects, unless all are in rows to skip. Those at row 0 are never skipped."""
    defects = plan.validated.defects_found
    if defects.is_empty or (submission.choices.skip_invalid and 0 not in defects.rows):
        return None
    return RefusedSheet(plan, _count_states(plan, journal))


def ask_questions(
    submission: Submission,
    plan: Plan,
    journal: JournalReader,
    conversation: Conversation,
    *,
    answered: Sequence[str] = (),
) -> RefusedSheet | None:
    """Ask the open questions not `answered` in the plan. Returns a refusal unless all are confirmed."""
    choices = replace(submission.choices, answered=(*submission.choices.answered, *answered))
    unanswered = plan.unanswered_questions(choices)
    for number, question in enumerate(unanswered, 1):
        if not (question.question and conversation.confirm(question.question)):
            return RefusedSheet(plan, _count_states(plan, journal), question.refusal(unanswered[number:]))
    return None


def _count_states(plan: Plan, journal: JournalReader) -> dict[str, int]:
    invalid = int((plan.validated.defects_found.rows > 0).sum())  # row 0 is the sheet as a whole
    counts = Counter({INVALID: invalid, State.READY.value: plan.validated.height - invalid})
    if plan.existing is not None:
        counts[State.READY.value] = 0
        for tally in journal.tallies(plan.existing.number):
            counts[display_state(tally.state)] += tally.count
    for row in plan.known:
        counts[State.READY.value] -= 1
        counts[display_state(row.state)] += 1
    return {state: counts[state] for state in STATES if counts[state]}


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """A plan, and the document that its maker will sign."""

    plan: Plan
    document: PlanDocument


def draft_plan(
    submission: Submission,
    journal: JournalReader,
    conversation: Conversation,
    maker: PublicKey,
    *,
    against: str | None = None,
) -> DraftPlan | RefusedSheet:
    """Draft an unsigned plan for a sheet, which is also compared with the batch `against`. Writes nothing."""
    now = utc_now()
    plan = plan_sheet(submission, journal, as_of=now)
    conversation.show(plan)
    if (refusal := refusal_for_defects(submission, plan, journal)) is not None:
        return refusal
    if (refusal := ask_questions(submission, plan, journal, conversation)) is not None:
        return refusal
    against_batch = "" if against is None else find_batch(journal, against).batch
    findings = plan_findings(submission, plan, journal, against=against_batch)
    content, people = planned_content(submission, plan, journal)
    answered = [question.key for question in plan.questions]
    document = build_plan(content, findings, maker, now, people=people, answered=answered, against=against_batch)
    return DraftPlan(plan, document)


def planned_content(submission: Submission, plan: Plan, journal: JournalReader) -> tuple[PlanContent, str]:
    """Return a plan's content and the list of the people it pays."""
    return build_content_and_people(
        plan.validated,
        plan.sent_before,
        amended=len(plan.amendments),
        endpoint=submission.source.settings.endpoint(),
        journal_id=journal.head().journal_id,
        minor_units=rule_minor_units(submission.source.rules),
    )


def plan_findings(submission: Submission, plan: Plan, journal: JournalReader, *, against: str) -> list[PlanFinding]:
    """Return all findings for approvers. `against` is the id of an extra batch for comparison, or empty."""
    source = submission.source
    minor_units, share = rule_minor_units(source.rules), Decimal(str(source.settings.approval.changed_share))
    change_findings = _change_findings(plan, journal, against or None, share, minor_units)
    warnings = _warning_findings(plan)
    codes = {question.code for question in plan.questions}
    # The maker had to confirm these findings, so they come first.
    answered_warnings = [warning for warning in warnings if warning.code in codes]
    other_warnings = [warning for warning in warnings if warning.code not in codes]
    encoding = plan.validated.sheet.encoding  # set only if someone chose it, and approvers should check the names
    encodings = [PlanFinding(row=0, code=NAMED_ENCODING, value=encoding)] if encoding else []
    spellings = [
        PlanFinding(row=0, code=SPELLED_COLUMN, column=heading, value=text, becomes=meaning, rows=rows)
        for heading, text, meaning, rows in interpretations(plan.validated)
    ]
    corrections = [*_correction_findings(plan, source), *_worksheet_findings(plan), *encodings, *spellings]
    return [*answered_warnings, *change_findings, *_sent_before_findings(plan, journal), *corrections, *other_warnings]


def _worksheet_findings(plan: Plan) -> list[PlanFinding]:
    """Return a finding for each worksheet, including those not paid, if the workbook has several."""
    sheet = plan.validated.sheet
    others = [
        PlanFinding(row=0, code=OTHER_WORKSHEET, value=_shorten(name), people=rows or 0)
        for name, rows in sheet.other_worksheets
    ]
    return [PlanFinding(row=0, code=WORKSHEET, value=_shorten(sheet.worksheet)), *others] if sheet.worksheet else []


def require_current_findings(document: PlanDocument, submission: Submission, journal: JournalReader) -> None:
    """Raise `ApprovalError` unless a plan has exactly the findings for its sheet.

    The findings are computed again in the plan's language, rereading the sheet if necessary, so edited text does not
    match. Earlier batches are searched back from the time of the plan, but payments made since then also count.
    """
    has_batch = not document.against or journal.batch(document.against) is not None
    if document.language not in languages() or not has_batch:
        raise ApprovalError(
            say("The plan refers to an unknown language or batch."),
            hint=f"{say(document.nothing_done)} {say(document.renewal_hint)}",
        )
    is_current_language = document.language == language()
    with language_context(document.language):
        if not is_current_language:
            submission = replace(submission, validated=submission.source.validated())
        plan, findings = _recompute_findings(document, submission, journal)
    require_same_findings(document, findings, asked=[question.key for question in plan.questions])


def _recompute_findings(
    document: PlanDocument, submission: Submission, journal: JournalReader
) -> tuple[Plan, list[PlanFinding]]:
    plan = plan_sheet(submission, journal, as_of=datetime.fromisoformat(document.made_at))
    return plan, plan_findings(submission, plan, journal, against=document.against)


def recompute_plan(document: PlanDocument, submission: Submission, journal: JournalReader) -> PlanDocument:
    """Return a plan with its findings in the current language. Raises `ApprovalError` if the sheet does not match."""
    plan = plan_sheet(submission, journal)
    require_same_content(document, planned_content(submission, plan, journal)[0])
    require_current_findings(document, submission, journal)
    _, findings = _recompute_findings(document, submission, journal)
    return document.model_copy(update={"findings": findings})


def _correction_findings(plan: Plan, source: SheetSource) -> list[PlanFinding]:
    """Return a finding for each row left out, with the reasons, and then for each other change since the upload."""
    corrections = source.reading.corrections
    left_out_by_row = {} if corrections is None else {row.row: row for row in corrections.left_out}
    codes = plan.validated.defects.group_by("row").agg(reasons=pl.col("code").unique(maintain_order=True).str.join(" "))
    left_out_rows = plan.validated.rows.filter(~pl.col("valid")).select("row", *_PAYEE_COLUMNS)
    lines = left_out_rows.join(codes, on="row", how="left", maintain_order="left")
    lines = lines.with_columns(pl.col("reasons").fill_null(""))
    left_out = [
        PlanFinding(code=LEFT_OUT, **line, by=decision.by if decision else "", at=decision.at if decision else "")
        for line in lines.iter_rows(named=True)
        for decision in [left_out_by_row.get(line["row"])]
    ]
    return [*left_out, *_edit_findings(source, plan.validated.sheet.headers)]


def _edit_findings(source: SheetSource, headers: Mapping[str, str]) -> Iterator[PlanFinding]:
    """Yield a finding for each reassigned heading and each corrected cell."""
    if (corrections := source.reading.corrections) is None:
        return
    options = replace(source, reading=replace(source.reading, corrections=None)).options
    for heading in corrections.headings:
        (default_column,) = match_names([heading.heading], options)
        if heading.column != (default_column or IGNORED_HEADING):
            value, column = _shorten(heading.heading), heading.column
            yield PlanFinding(row=0, code=REASSIGNED_HEADING, value=value, column=column, by=heading.by, at=heading.at)
    left_out_rows = {row.row for row in corrections.left_out}
    for edit in sorted(corrections.edits, key=lambda edit: (edit.row, edit.column)):
        if edit.row in left_out_rows:
            continue
        column, was, now = headers.get(edit.column) or edit.column, _shorten(edit.was), _shorten(edit.now)
        yield PlanFinding(row=edit.row, code=CORRECTED, column=column, value=was, becomes=now, by=edit.by, at=edit.at)


def _shorten(text: str | None) -> str:
    text = text or ""
    return text if len(text) <= MAX_SHOWN_CHARACTERS else f"{text[:MAX_SHOWN_CHARACTERS]}..."


def _warning_findings(plan: Plan) -> list[PlanFinding]:
    payees = plan.validated.rows.select("row", *_PAYEE_COLUMNS)
    warnings = plan.all_warnings.select("row", "column", "value", "code", "message")
    lines = warnings.join(payees, on="row", how="left", maintain_order="left")
    return [PlanFinding(**line) for line in lines.with_columns(pl.col(pl.String).fill_null("")).iter_rows(named=True)]


def _sent_before_findings(plan: Plan, journal: JournalReader) -> list[PlanFinding]:
    if not (rows := {row.row: row for row in plan.sent_before}):
        return []
    sheets = {batch.batch: batch.sheet_name for batch in journal.batches()}
    lines = plan.validated.rows.filter(pl.col("valid") & pl.col("row").is_in(list(rows))).select("row", *_PAYEE_COLUMNS)
    return [
        PlanFinding(
            code=ALREADY_SENT,
            **line,
            before_batch=(before := rows[line["row"]]).batch,
            before_sheet=sheets[before.batch],
            before_at=before.opened_at[:10],
            # A plan stays valid when an accepted payment becomes paid, so the two count as one state.
            value="" if before.state in _PAID_OR_ACCEPTED else _shown_state(before),
        )
        for line in lines.iter_rows(named=True)
    ]


def _change_findings(
    plan: Plan, journal: JournalReader, against: str | None, share: Decimal, minor_units: Mapping[str, int]
) -> list[PlanFinding]:
    """Return findings about differences from earlier payments, and about when accounts were first paid."""
    validated = plan.validated
    same_operation = [record for record in journal.batches() if record.operation == validated.sheet.operation]
    # Forgotten people cannot be compared, so they count as new.
    other_batches = [record for record in same_operation if record.batch != validated.batch]
    past = [record for record in other_batches if journal.first_forgetting(record.number) is None]
    extra_batch = None if against is None else find_batch(journal, against)
    if extra_batch is not None:
        require_people_not_forgotten(journal, extra_batch)
    if extra_batch is not None and extra_batch.operation != validated.sheet.operation:
        raise UsageError(
            say(
                "--against {against}: that batch and this sheet must both be payouts, or both be collections.",
                against=against,
            )
        )
    if extra_batch is not None and extra_batch not in past:
        raise UsageError(say("--against {against} is this sheet's own batch.", against=against))
    if not past:
        return [PlanFinding(row=0, code=FIRST_RUN)]
    sent = {row.row for row in plan.sent_before}
    result = compare_with_past(
        validated.rows, journal, past, against=extra_batch, share=share, minor_units=minor_units, sent=sent
    )
    return [_overlap_finding(result), *map(_change_finding, result.changes), *_known_since_findings(result)]


def _overlap_finding(comparison: Comparison) -> PlanFinding:
    if comparison.overlap is None:
        return PlanFinding(row=0, code=COMPARED_BATCH, people=comparison.people)
    batch = comparison.overlap.batch
    return PlanFinding(
        row=0,
        code=COMPARED_BATCH,
        before_batch=batch.batch,
        before_sheet=batch.sheet_name,
        before_at=batch.opened_at[:10],
        people=comparison.people,
        found=comparison.overlap.found,
        paid_before=comparison.overlap.paid_before,
    )


def _known_since_findings(comparison: Comparison) -> list[PlanFinding]:
    """Return a finding for each date on which accounts were first paid, with their rows."""
    rows_by_date: dict[str, list[int]] = {}
    for row, date in sorted(comparison.known_since.items()):
        rows_by_date.setdefault(date, []).append(row)
    pairs = sorted(rows_by_date.items())
    return [PlanFinding(row=0, code=ACCOUNTS_FIRST_PAID, at=date, rows=format_row_ranges(rows)) for date, rows in pairs]


def _change_finding(change: Change) -> PlanFinding:
    return PlanFinding(
        row=change.row,
        code=change.code,
        name=change.name,
        account=change.account,
        amount=change.amount,
        currency=change.currency,
        old_account=change.before.account if change.before.account != change.account else "",
        before=change.before.amount,
        before_batch=change.before.batch,
        before_sheet=change.before.sheet,
        before_at=change.before.at,
        first_amount=change.first.amount,
        first_sheet=change.first.sheet,
        first_at=change.first.at,
        shared_with=change.shared_with,
    )
