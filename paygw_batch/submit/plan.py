"""Plans a sheet's batch by comparing the sheet with the journal, and stores the planned batch."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

import polars as pl

from paygw_batch.approval.plan_document import NO_APPROVAL, PlanApproval
from paygw_batch.clock import Now, timestamp
from paygw_batch.core.batch import LOOK_ALIKE_DAYS, REPEAT_DAYS, derived_reference
from paygw_batch.core.choices import Choices
from paygw_batch.core.money import format_amount
from paygw_batch.core.text import normalise_spelling
from paygw_batch.countries.rules import Rules
from paygw_batch.engine.quarantine import JournalClock, Quarantine
from paygw_batch.errors import InternalError, ReferenceLookAlike
from paygw_batch.journal import Amendment, BatchPart, BatchRecord, Journal, JournalReader, KnownRow, LookAlike, NewBatch
from paygw_batch.language import mark, say
from paygw_batch.settle.resolve import require_people_not_forgotten
from paygw_batch.sheet.check.contract import ContractGate, payable_rows, rules_for_sheet
from paygw_batch.sheet.check.repeats import LOOK_ALIKE, REWRITTEN
from paygw_batch.sheet.check.validate import warnings_as_defects, with_defects, with_warnings
from paygw_batch.sheet.findings import Findings, build_findings, empty_findings
from paygw_batch.sheet.instructions import InstructionColumns, Pager
from paygw_batch.sheet.model import Validated
from paygw_batch.submit.compare_sheet import (
    ComparisonMemory,
    SheetComparison,
    compare_sheet,
    exclude_rows,
    select_rows,
    split_look_alikes,
    unpaid_state,
    warnings_by_batch,
)
from paygw_batch.submit.conflicts import CONFLICT, conflict_defects
from paygw_batch.submit.open_questions import (
    OpenQuestion,
    RepeatedRow,
    UsedReference,
    repeat_question,
    repeated_payee_question,
    sheet_payment_lines,
)


@dataclass(frozen=True, slots=True)
class Plan:
    """What submitting a sheet would do. Nothing has been written.

    If the journal already has the batch, it is `existing`, and only its due rows are sent. `known` rows belong to other
    batches. `amendments` replace payments that were rejected or never sent.
    """

    validated: Validated
    existing: BatchRecord | None
    known: Sequence[KnownRow]
    amendments: Sequence[Amendment]
    questions: Sequence[OpenQuestion] = ()
    """Questions that a person must answer before the batch is opened."""
    look_alikes: Sequence[LookAlike] = ()
    """Rows that resemble rows of another batch, with one warning per batch."""
    own_ids: Mapping[int, str] = field(default_factory=dict)
    """The order ids of the rows in `look_alikes`."""
    sheet_names: Mapping[str, str] = field(default_factory=dict)
    """The sheet names of the batches in `look_alikes`."""

    @property
    def warnings(self) -> pl.DataFrame:
        """The warnings in `warnings_found` as a frame (`DEFECT_SCHEMA`)."""
        return self.warnings_found.all_findings.frame

    @property
    def warnings_found(self) -> Findings:
        """The warnings. Those about the whole sheet, at row 0, come first."""
        sheet_warnings = [question.as_warnings() for question in self.questions]
        if self.look_alikes:
            sheet_warnings.append(warnings_by_batch(self.look_alikes, self.sheet_names))
        return self.validated.warnings_found.with_sheet_findings(pl.concat([empty_findings(), *sheet_warnings]))

    @property
    def all_warnings(self) -> pl.DataFrame:
        """All warnings for an approver, including one for each row that resembles a row of another batch."""
        warnings = [empty_findings(), *(question.as_warnings() for question in self.questions)]
        return pl.concat([*warnings, self.validated.warnings, _look_alike_warnings(self.look_alikes, self.own_ids)])

    def unanswered_questions(self, choices: Choices) -> Sequence[OpenQuestion]:
        """Return the questions not yet answered, by key or in advance."""
        return [question for question in self.questions if not question.is_answered(choices)]

    @property
    def sent_before(self) -> Sequence[KnownRow]:
        """The known rows that will not be sent, because they were sent before or are held."""
        return [row for row in self.known if not row.is_due]

    @property
    def known_row_count(self) -> int:
        """The number of rows that the journal already has."""
        return self.validated.payable_count if self.existing else len(self.known)


@dataclass(frozen=True, slots=True)
class LookBack:
    """How many past days are searched for repeats and look-alikes of a sheet. 0 disables the search."""

    repeat_days: int = REPEAT_DAYS
    look_alike_days: int = LOOK_ALIKE_DAYS


def plan_submission(
    validated: Validated,
    journal: JournalReader,
    choices: Choices,
    *,
    now: Now,
    quarantine_h: float,
    look_back: LookBack = LookBack(),
    as_of: datetime | None = None,
    memory: ComparisonMemory | None = None,
) -> Plan:
    """Compare a validated sheet with the journal and plan its batch.

    A row has a defect if its order id was used in another spelling or for different content. With `amend`, a row may
    replace a payment that was never made. If only a person reported this, it must wait `quarantine_h` hours. Rows that
    resemble rows from the last `look_alike_days` cause warnings. A sheet that repeats a batch from the last
    `repeat_days` causes an open question. Days are counted back from `as_of`. Raises `ReferenceLookAlike` for a
    respelled reference.
    """
    validated = warnings_as_defects(validated) if choices.strict else validated
    if existing := _find_existing_batch(validated, journal):
        return Plan(validated, existing, (), ())
    _reject_respelled_reference(validated, journal)
    clock = JournalClock.read(journal, now())
    search_clock, quarantine = replace(clock, now=as_of or clock.now), clock.quarantine(quarantine_h)
    cutoff = quarantine.cutoff(clock.now)
    run = _PaymentRun.from_sheet(validated, journal, cutoff)
    comparison = compare_sheet(
        validated,
        journal,
        lambda clash: choices.amend and clash.is_replaceable(cutoff) and run.pays_once(clash.client_orderid),
        search_clock.days_ago(max(look_back.look_alike_days, look_back.repeat_days)),
        None if choices.amend else memory,
    )
    if comparison.amended:
        # If the clock is fast, a quarantine may seem to have ended while the old payment can still be made.
        clock.require_plausible()
    if (defects := _comparison_defects(comparison, run, validated, journal, cutoff, quarantine)).height:
        validated = with_defects(validated, defects)
        # Without the rows with defects, this is another batch, which an earlier run may have opened.
        if existing := _find_existing_batch(validated, journal):
            return Plan(validated, existing, (), ())
    look_alikes: Sequence[LookAlike] = comparison.look_alikes
    recent = [row for row in look_alikes if row.opened_at > search_clock.days_ago(look_back.look_alike_days)]
    if choices.strict and recent:
        validated = with_defects(validated, _look_alike_warnings(recent, comparison.own_ids))
        if existing := _find_existing_batch(validated, journal):
            return Plan(validated, existing, (), ())
        excluded = {row.row for row in recent}
        look_alikes, recent = [row for row in look_alikes if row.row not in excluded], []
    since = search_clock.days_ago(look_back.repeat_days)
    repeat = _find_repeat(validated, look_alikes, journal, since=since) if look_back.repeat_days else None
    (single, grouped), refused = split_look_alikes(recent, repeat), set(defects["row"])
    questions = [*([] if repeat is None else [repeat]), *run.questions(validated, comparison)]
    warned = with_warnings(validated, _look_alike_warnings(single, comparison.own_ids))
    known_rows = [row for row in comparison.known if row.row not in refused]
    amendments = [Amendment(row.row, row.instruction, cutoff) for row in comparison.amended if row.row not in refused]
    batches = {row.batch for row in grouped}
    names = {batch.batch: batch.sheet_name for batch in journal.batches() if batch.batch in batches} if batches else {}
    return Plan(warned, None, known_rows, amendments, questions, grouped, comparison.own_ids, names)


def _find_existing_batch(validated: Validated, journal: JournalReader) -> BatchRecord | None:
    """Return the sheet's batch, if the journal has it. Raises `PeopleForgotten` if people in it were forgotten."""
    if (existing := journal.batch(validated.batch, operation=validated.sheet.operation)) is not None:
        require_people_not_forgotten(journal, existing)
    return existing


def open_planned_batch(
    plan: Plan,
    journal: Journal,
    rules: Rules,
    *,
    sheet_path: Path,
    now: Now,
    by: str = "",
    approved: PlanApproval = NO_APPROVAL,
    is_answered: bool = False,
) -> BatchRecord:
    """Return the planned batch, after storing it if the journal does not have it.

    Checks every row of a new batch against its country's contract again. Nothing is stored if a row fails.

    Later runs write the reconciliation next to `sheet_path`. `by` is the person who opens the batch. Raises
    `OpenSheetQuestion` if the plan has questions, unless they are answered (`is_answered`).
    """
    if plan.existing is not None:
        return plan.existing
    if plan.questions and not is_answered:
        raise plan.questions[0].refusal()
    validated, sheet = plan.validated, plan.validated.sheet
    if any(rule.operation != sheet.operation for rule in rules.values()):
        raise InternalError(f"a sheet that was read for {sheet.operation} was about to be opened otherwise")
    batch = NewBatch(
        batch=validated.batch,
        operation=sheet.operation,
        sheet_name=sheet.name,
        sheet_sha256=sheet.sha256,
        sheet_path=str(sheet_path.absolute()),
        rows=validated.height,
        defects=validated.defects_found.rows.len(),
        by=by,
        approvals=approved.approvals,
        plan_sha256=approved.plan_sha256,
    )
    parts = _batch_parts(plan, ContractGate(rules_for_sheet(rules, sheet.headers), sheet.operation))
    return journal.open_batch(batch, parts=parts, known=plan.known, amendments=plan.amendments, at=timestamp(now()))


def _batch_parts(plan: Plan, gate: ContractGate) -> Iterator[BatchPart]:
    """Check and yield a batch's parts. Errors are raised inside the journal's transaction, so nothing is stored."""
    pager = Pager()
    known_rows = [row.row for row in plan.known]
    for part in plan.validated.parts():
        gate.require_valid(payable_rows(part))
        pages = pager.add_rows(part.rows)
        new = InstructionColumns(exclude_rows(part.instructions, known_rows))
        del part  # frees the memory for the next part
        yield BatchPart(pages, new)
    yield BatchPart(pager.remaining_pages())


def _reject_respelled_reference(validated: Validated, journal: JournalReader) -> None:
    """Raise `ReferenceLookAlike` if the sheet's reference was used before only in another spelling."""
    batches = [batch for batch in journal.batches() if batch.operation == validated.sheet.operation and batch.reference]
    reference = _derived_reference(validated) if batches else None
    if reference is None:
        return
    spelling = normalise_spelling(reference)
    respelled = [batch for batch in batches if normalise_spelling(batch.reference) == spelling]
    if not respelled or any(batch.reference == reference for batch in respelled):
        return
    newest = respelled[-1]
    raise ReferenceLookAlike(
        say(
            "The reference {reference} differs only in spelling from {used}, under which batch {batch} was opened on "
            "{opened_at}. The rows would get new order ids and be paid again.",
            reference=reference,
            used=newest.reference,
            batch=newest.batch,
            opened_at=newest.opened_at[:10],
        ),
        hint=say(
            "Nothing was sent. For the same payment run, use --reference {reference}. For another one, choose a "
            "reference that differs in more than spelling.",
            reference=newest.reference,
        ),
        option="--reference",
    )


def _derived_reference(validated: Validated) -> str | None:
    """Return the reference from which a sheet's order ids were derived, or None if it has its own ids."""
    for part in validated.parts():  # either all order ids are derived or none are, so the first row decides
        for order_id in part.instructions["client_orderid"].head(1):
            return derived_reference(order_id)
    return None


@dataclass(frozen=True, slots=True)
class _PaymentRun:
    """A sheet without order ids, with any earlier use of its reference. Empty for a sheet with its own ids.

    `payments` are the sheet's `payment_lines`. `repeated_stems` are the payees (derived ids without their counter) with
    several rows in this sheet or in earlier ones.
    """

    payments: pl.DataFrame | None
    past: UsedReference | None
    repeated_stems: frozenset[str]
    sheet_name: str

    @classmethod
    def from_sheet(cls, validated: Validated, journal: JournalReader, cutoff: str) -> "_PaymentRun":
        reference = _derived_reference(validated) if "client_orderid" not in validated.sheet.headers else None
        if reference is None:
            return cls(None, None, frozenset(), validated.sheet.name)
        rows = sheet_payment_lines(validated)
        past = UsedReference.read(journal, validated.sheet.operation, reference, cutoff)
        stems = [rows["stem"]] if past is None else [rows["stem"], past.lines["stem"]]
        repeated_stems = {stem for column in stems for stem in column.filter(column.is_duplicated())}
        return cls(rows, past, frozenset(repeated_stems), validated.sheet.name)

    def pays_once(self, order_id: str) -> bool:
        """Return whether this order's payee has only one row."""
        return order_id.rpartition("-")[0] not in self.repeated_stems

    def pasted_row_defects(self, comparison: SheetComparison) -> pl.DataFrame:
        """Return defects for rows whose order ids may be new only because another row for the same payee changed."""
        if self.payments is None:
            return empty_findings()
        clashing = {entry.client_orderid.rpartition("-")[0] for entry in comparison.conflicts} & self.repeated_stems
        compared_rows = {*(entry.row for entry in comparison.known), *(entry.row for entry in comparison.conflicts)}
        lines = self.payments.filter(pl.col("stem").is_in(list(clashing)) & ~pl.col("row").is_in(list(compared_rows)))
        template = mark("{name} is in several rows, and one of them differs from the rows sent before.")
        return build_findings(
            (row, "amount", amount, CONFLICT, say(template, name=name))
            for row, name, amount in lines.select("row", "name", "amount").iter_rows()
        )

    def repeats(self, comparison: SheetComparison, refused_rows: Collection[int]) -> Sequence[RepeatedRow]:
        """Return rows that could pay someone twice because their order ids are new, except those already refused."""
        if self.payments is None or self.past is None:
            return ()
        refused = {*refused_rows, *(entry.row for entry in comparison.conflicts)}
        return [entry for entry in self.past.repeats(self.payments, self.sheet_name) if entry.row not in refused]

    def questions(self, validated: Validated, comparison: SheetComparison) -> Iterator[OpenQuestion]:
        if self.payments is None or (rows := sheet_payment_lines(validated)).is_empty():
            return
        due = set(rows["row"]) - {row.row for row in comparison.known if not row.is_due}
        if (repeat := repeated_payee_question(rows, due)) is not None:
            yield repeat
        if self.past is not None and (question := self.past.question(rows, self.payments["order_id"], due)) is not None:
            yield question


def _comparison_defects(
    comparison: SheetComparison,
    run: _PaymentRun,
    validated: Validated,
    journal: JournalReader,
    cutoff: str,
    quarantine: Quarantine,
) -> pl.DataFrame:
    pasted = run.pasted_row_defects(comparison)
    clashes = {clash.row: (clash, run.pays_once(clash.client_orderid)) for clash in comparison.conflicts}
    repeats = {repeat.row: repeat for repeat in run.repeats(comparison, set(pasted["row"]))}
    amended = {clash.row: (clash, True) for clash in comparison.amended}
    conflicts = build_findings(conflict_defects(clashes, amended, repeats, validated, journal, cutoff, quarantine))
    return pl.concat([conflicts, _respelled_id_defects(comparison), _damaged_id_defects(comparison, validated), pasted])


def _respelled_id_defects(comparison: SheetComparison) -> pl.DataFrame:
    lines = []
    for spelling in comparison.respelled:
        own_id = comparison.own_ids[spelling.row]
        message = say(
            "{own_id} differs only in spelling from {order_id}, which was used on {opened_at} (batch {batch}). If it "
            "is the same payment, enter {order_id}. If not, give this one an id that differs in more than case, width "
            "or hyphens.",
            own_id=own_id,
            order_id=spelling.order_id,
            opened_at=spelling.opened_at[:10],
            batch=spelling.batch,
        )
        lines.append((spelling.row, "client_orderid", own_id, LOOK_ALIKE, message))
    return build_findings(lines)


def _damaged_id_defects(comparison: SheetComparison, validated: Validated) -> pl.DataFrame:
    """Return a defect for each row whose order id looks like a used one that a spreadsheet changed."""
    by_row = {look_alike.row: look_alike for look_alike in comparison.rewritten}
    columns = ("row", "client_orderid", "account_name", "currency", "amount")
    frames = (select_rows(part.rows, list(by_row)).select(columns) for part in (validated.parts() if by_row else ()))
    lines = []
    for row, own_id, name, currency, amount in (line for frame in frames for line in frame.iter_rows()):
        message = say(
            "{own_id} may be {order_id}, changed by a spreadsheet. Batch {batch} of {opened_at} pays {name} {currency} "
            "{amount} under {order_id}. If this is the same payment, enter {order_id}. If not, give it a clearly "
            "different id.",
            own_id=own_id,
            order_id=by_row[row].client_orderid,
            name=name or say("the same person"),
            currency=currency,
            amount=format_amount(amount),
            opened_at=by_row[row].opened_at[:10],
            batch=by_row[row].batch,
        )
        lines.append((row, "client_orderid", own_id, REWRITTEN, message))
    return build_findings(lines)


def _find_repeat(
    validated: Validated, look_alikes: Sequence[LookAlike], journal: JournalReader, *, since: str
) -> OpenQuestion | None:
    """Return a question if over half of the rows repeat the rows of a batch opened after `since`, or None."""
    if len(look_alikes) * 2 <= validated.payable_count:
        return None
    columns = ("client_orderid", "payee", "currency", "minor")
    numbers = [look_alike.row for look_alike in look_alikes]
    payments = (
        row for part in validated.parts() for row in select_rows(part.instructions, numbers).select(columns).iter_rows()
    )
    batches = journal.repeated_batches(validated.sheet.operation, payments, since=since)
    return repeat_question(batches, validated.payable_count)


def _look_alike_warnings(look_alikes: Sequence[LookAlike], own_ids: Mapping[int, str]) -> pl.DataFrame:
    lines = []
    for look_alike in look_alikes:
        own_id, state = own_ids[look_alike.row], unpaid_state(look_alike)
        message = say(
            "{own_id} has the same account and amount as {client_orderid} of batch {batch} ({opened_at}). Make sure "
            "that you want to pay both.",
            own_id=own_id,
            client_orderid=look_alike.client_orderid,
            batch=look_alike.batch,
            opened_at=look_alike.opened_at[:10] + (f", {state}" if state else ""),
        )
        lines.append((look_alike.row, "client_orderid", own_id, "row.look_alike", message))
    return build_findings(lines)
