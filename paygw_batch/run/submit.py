"""Submits a sheet: compares it with the journal, and then stores the planned batch."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

import polars as pl

from paygw_batch.clock import Now, timestamp
from paygw_batch.core.batch import LOOK_ALIKE_DAYS, REPEAT_DAYS, reference_of
from paygw_batch.core.money import with_separators
from paygw_batch.core.shown_states import state_words
from paygw_batch.core.text import spelled_alike
from paygw_batch.countries.rules import Rules
from paygw_batch.errors import InternalError, ReferenceLookAlike
from paygw_batch.journal import (
    Amendment,
    BatchPart,
    BatchRecord,
    Clash,
    Journal,
    JournalReader,
    Known,
    LookAlike,
    NewBatch,
)
from paygw_batch.language import say
from paygw_batch.run.compare_sheet import (
    ComparisonMemory,
    SheetComparison,
    SheetRepeat,
    compare_sheet,
    one_warning_per_batch,
    outside_repeat,
    repeated_by,
    repeated_within_a_batch,
    with_rows,
    without_rows,
)
from paygw_batch.run.forget_order import require_remembered
from paygw_batch.run.quarantine_clock import JournalClock, Quarantine
from paygw_batch.sheet.check.contract import ContractGate, good_rows, rules_for_sheet
from paygw_batch.sheet.check.repeats import LOOK_ALIKE, REWRITTEN
from paygw_batch.sheet.check.validate import warnings_as_defects, with_defects, with_warnings
from paygw_batch.sheet.findings import Findings, as_defects, no_defects
from paygw_batch.sheet.instructions import InstructionColumns, Pager
from paygw_batch.sheet.model import Validated


@dataclass(frozen=True, slots=True)
class Plan:
    """The effect that submitting a sheet to a journal would have. Nothing has been written yet.

    `existing` is the batch if the journal already has it, and then only its due rows are sent. `known` rows are covered
    by other batches of the journal; `amendments` replace payments that were rejected or never sent.
    """

    validated: Validated
    existing: BatchRecord | None
    known: Sequence[Known]
    amendments: Sequence[Amendment]
    repeat: SheetRepeat | None = None
    """The batch that the sheet repeats: it is only opened if a person says that this is intended."""
    look_alikes: Sequence[LookAlike] = ()
    """Rows that resemble rows of a batch. Several from one batch share one warning."""
    sheet_names: Mapping[str, str] = field(default_factory=dict)
    """The names of the sheets of those batches."""

    @property
    def warnings(self) -> pl.DataFrame:
        """Every warning (`DEFECT_SCHEMA`), as in `warnings_found`."""
        return self.warnings_found.every.frame

    @property
    def warnings_found(self) -> Findings:
        """The warnings, those about the whole sheet first, at row 0."""
        of_sheet = [] if self.repeat is None else [self.repeat.as_warning()]
        if self.look_alikes:
            of_sheet.append(one_warning_per_batch(self.look_alikes, self.sheet_names))
        return self.validated.warnings_found.after(pl.concat([no_defects(), *of_sheet]))

    @property
    def repeated_batch(self) -> str:
        """The id of the batch that the sheet repeats; empty if it repeats none."""
        return "" if self.repeat is None else self.repeat.batch

    def is_meant(self, answer: str) -> bool:
        """Whether the sheet repeats no batch, or the one that a person named in `answer`."""
        return self.repeat is None or self.repeat.batch == answer

    @property
    def known_rows(self) -> int:
        """The number of rows that the journal already has."""
        return self.validated.payable if self.existing else len(self.known)


def plan_submission(
    validated: Validated,
    journal: JournalReader,
    *,
    operation: str,
    amend: bool,
    now: Now,
    quarantine_h: float,
    strict: bool = False,
    repeat_days: int = REPEAT_DAYS,
    look_alike_days: int = LOOK_ALIKE_DAYS,
    as_of: datetime | None = None,
    memory: ComparisonMemory | None = None,
) -> Plan:
    """Compare a validated sheet with the journal.

    A row whose order id was used for other content is a defect, unless `amend` lets it replace a payment that was never
    made (after `quarantine_h` if only a person says so). So is a row whose id was used in another spelling, or for the
    same payment before a program rewrote it. A row that resembles one of the last `look_alike_days` gets a warning,
    shared by rows that resemble one batch; a repeat of a batch of the last `repeat_days` is a separate finding. 0 turns
    either off, and days count back from `as_of` or now. With `strict`, rows with a warning are left out as defects.
    `memory` saves queries about unchanged rows.

    Raises `ReferenceLookAlike` if the order ids come from a reference that was used in another spelling.
    """
    validated = warnings_as_defects(validated) if strict else validated
    if existing := _existing(validated, journal, operation):
        return Plan(validated, existing, (), ())
    _refuse_respelled_reference(validated, journal, operation)
    clock = JournalClock.read(journal, now())
    counted = replace(clock, now=as_of or clock.now)
    quarantine = clock.quarantine(quarantine_h)
    until = quarantine.cutoff(clock.now)
    found = compare_sheet(
        validated,
        journal,
        operation,
        lambda clash: amend and clash.amendable and _is_over(clash, until),
        counted.days_ago(max(look_alike_days, repeat_days)),
        None if amend else memory,
    )
    if found.amended:
        clock.require_sound()
    if found.conflicts or found.spelled or found.rewritten:
        conflicts = _conflict_defects(found.conflicts, until, quarantine)
        others = [_spelled_otherwise(found), _rewritten_since(found, validated)]
        validated = with_defects(validated, pl.concat([conflicts, *others]))
        if existing := _existing(validated, journal, operation):
            return Plan(validated, existing, (), ())
    paid_before: Sequence[LookAlike] = found.paid_before
    lately = [one for one in paid_before if one.opened_at > counted.days_ago(look_alike_days)]
    if strict and lately:
        validated = with_defects(validated, _look_alike_warnings(lately, found.own_ids))
        if existing := _existing(validated, journal, operation):
            return Plan(validated, existing, (), ())
        left_out = {one.row for one in lately}
        paid_before, lately = [one for one in paid_before if one.row not in left_out], []
    repeat = _repeat(validated, paid_before, journal, since=counted.days_ago(repeat_days)) if repeat_days else None
    together = repeated_within_a_batch(left := outside_repeat(lately, repeat))
    validated = _with_look_alikes(validated, [one for one in left if one not in together], found.own_ids)
    amendments = [Amendment(clash.row, clash.instruction, until) for clash in found.amended]
    return Plan(validated, None, found.known, amendments, repeat, together, _sheet_names(together, journal))


def _sheet_names(look_alikes: Sequence[LookAlike], journal: JournalReader) -> Mapping[str, str]:
    """Return the sheet name of each batch with a look-alike."""
    batches = {one.batch for one in look_alikes}
    return {one.batch: one.sheet_name for one in journal.batches() if one.batch in batches} if batches else {}


def _existing(validated: Validated, journal: JournalReader, operation: str) -> BatchRecord | None:
    """Return a sheet's batch if the journal has it. Raises `PeopleForgotten` if its people were forgotten."""
    existing = journal.batch(validated.batch, operation=operation)
    if existing is not None:
        require_remembered(journal, existing)
    return existing


def open_planned_batch(
    plan: Plan,
    journal: Journal,
    rules: Rules,
    *,
    operation: str,
    sheet_path: Path,
    now: Now,
    by: str = "",
    approvals: Sequence[str] = (),
    plan_sha256: str = "",
    repeats_meant: bool = False,
) -> BatchRecord:
    """Store the whole planned batch, or return it if the journal already has it.

    Every row of a new batch is checked against its country's contract again; if one fails, nothing is stored.

    `sheet_path` is the location of the sheet, where a later run of the batch writes the reconciliation. `by` is the
    person who opens the batch, `approvals` has a sentence for each person who prepared or approved it, and
    `plan_sha256` is the digest of the plan that they signed. Raises `SheetRepeatsBatch` if the sheet repeats a batch
    and nobody said that this is intended (`repeats_meant`).
    """
    if plan.existing is not None:
        return plan.existing
    if plan.repeat is not None and not repeats_meant:
        raise plan.repeat.refusal()
    validated = plan.validated
    if operation != validated.sheet.operation or any(rule.operation != operation for rule in rules.values()):
        raise InternalError(f"a sheet that was read for {validated.sheet.operation} was about to be opened otherwise")
    sheet = validated.sheet
    batch = NewBatch(
        batch=validated.batch,
        operation=operation,
        sheet_name=sheet.name,
        sheet_sha256=sheet.sha256,
        sheet_path=str(sheet_path.absolute()),
        rows=validated.height,
        defects=validated.defects_found.rows.len(),
        by=by,
        approvals=tuple(approvals),
        plan_sha256=plan_sha256,
    )
    parts = _parts(plan, ContractGate(rules_for_sheet(rules, validated.sheet.headers), operation))
    return journal.open_batch(batch, parts=parts, known=plan.known, amendments=plan.amendments, at=timestamp(now()))


def _parts(plan: Plan, gate: ContractGate) -> Iterator[BatchPart]:
    """Yield the parts of a batch that have passed the contract.

    An error here, including for a changed sheet, is raised inside the journal's transaction, so nothing of the batch is
    stored.
    """
    pager = Pager()
    known = [row.row for row in plan.known]
    for part in plan.validated.parts():
        gate.hold(good_rows(part))
        pages = pager.take(part.rows)
        new = InstructionColumns(without_rows(part.instructions, known))
        del part  # free its memory: the next part needs the room
        yield BatchPart(pages, new)
    yield BatchPart(pager.last())


def _refuse_respelled_reference(validated: Validated, journal: JournalReader, operation: str) -> None:
    """Raise `ReferenceLookAlike` if the sheet's reference was never used, but another spelling of it was.

    Either all ids of a sheet are derived, or none is, so the first row decides.
    """
    opened = [one for one in journal.batches() if one.operation == operation and one.reference]
    reference = _reference(validated) if opened else None
    if reference is None:
        return
    spelled = spelled_alike(reference)
    used = [one for one in opened if spelled_alike(one.reference) == spelled]
    if not used or any(one.reference == reference for one in used):
        return
    newest = used[-1]
    raise ReferenceLookAlike(
        say(
            "The reference {reference} differs only in its spelling from {used}, under which batch "
            "{batch} was opened on {opened_at}: its rows would get other order ids, and be paid again.",
            reference=reference,
            used=newest.reference,
            batch=newest.batch,
            opened_at=newest.opened_at[:10],
        ),
        hint=say(
            "Nothing was sent. For the same payment run, write --reference {reference}; for another one, "
            "choose a reference that differs in more than its spelling.",
            reference=newest.reference,
        ),
        option="--reference",
    )


def _reference(validated: Validated) -> str | None:
    """Return the reference that a sheet's order ids were derived from; None if the sheet has its own."""
    for part in validated.parts():
        for order_id, content in part.instructions.head(1).select("client_orderid", "content").iter_rows():
            return reference_of(order_id, content)
    return None


def _spelled_otherwise(found: SheetComparison) -> pl.DataFrame:
    """Return a defect for every row whose order id the journal knows only in another spelling."""
    lines = []
    for one in found.spelled:
        own_id = found.own_ids[one.row]
        sentence = say(
            "{own_id} differs only in its spelling from {order_id}, which was used on {opened_at} (batch "
            "{batch}): write {order_id} if it is the same payment; if not, give this one an id that differs "
            "in more than case, width or hyphens.",
            own_id=own_id,
            order_id=one.order_id,
            opened_at=one.opened_at[:10],
            batch=one.batch,
        )
        lines.append((one.row, "client_orderid", own_id, LOOK_ALIKE, sentence))
    return as_defects(lines)


def _rewritten_since(found: SheetComparison, validated: Validated) -> pl.DataFrame:
    """Return a defect for every row whose order id is, but for a program's damage, that of an equal payment."""
    before = {one.row: one for one in found.rewritten}
    columns = ("row", "client_orderid", "account_name", "currency", "amount")
    named = (with_rows(part.rows, list(before)).select(columns) for part in (validated.parts() if before else ()))
    lines = []
    for row, own_id, name, currency, amount in (line for frame in named for line in frame.iter_rows()):
        sentence = say(
            "{own_id} may be {order_id}, changed by a spreadsheet: batch {batch} of {opened_at} pays {name} {currency} "
            "{amount} under {order_id}. If this is the same payment, write {order_id}. If not, give it a clearly "
            "different id.",
            own_id=own_id,
            order_id=before[row].client_orderid,
            name=name or say("the same person"),
            currency=currency,
            amount=with_separators(amount),
            opened_at=before[row].opened_at[:10],
            batch=before[row].batch,
        )
        lines.append((row, "client_orderid", own_id, REWRITTEN, sentence))
    return as_defects(lines)


def _repeat(
    validated: Validated, paid_before: Sequence[LookAlike], journal: JournalReader, *, since: str
) -> SheetRepeat | None:
    """Return the batch opened after `since` that more than half of the payable rows repeat."""
    if len(paid_before) * 2 <= validated.payable:
        return None
    columns = ("client_orderid", "payee", "currency", "minor")
    numbers = [one.row for one in paid_before]
    paid = (
        row for part in validated.parts() for row in with_rows(part.instructions, numbers).select(columns).iter_rows()
    )
    batches = journal.repeated_batches(validated.sheet.operation, paid, since=since)
    return repeated_by(batches, validated.payable)


def _with_look_alikes(validated: Validated, single: Sequence[LookAlike], own_ids: Mapping[int, str]) -> Validated:
    return with_warnings(validated, _look_alike_warnings(single, own_ids)) if single else validated


def _look_alike_warnings(look_alikes: Sequence[LookAlike], own_ids: Mapping[int, str]) -> pl.DataFrame:
    lines = []
    for one in look_alikes:
        own_id = own_ids[one.row]
        sentence = say(
            "{own_id} has the same account and amount as {client_orderid} of batch {batch} ({opened_at}): "
            "make sure that both are meant.",
            own_id=own_id,
            client_orderid=one.client_orderid,
            batch=one.batch,
            opened_at=one.opened_at[:10],
        )
        lines.append((one.row, "client_orderid", own_id, "row.look_alike", sentence))
    return as_defects(lines)


def _is_over(clash: Clash, until: str) -> bool:
    """Whether no quarantine blocks replacing a payment: the last that has ended began at `until`."""
    return clash.quarantined_since is None or clash.quarantined_since <= until


def _conflict_defects(conflicts: Sequence[Clash], until: str, quarantine: Quarantine) -> pl.DataFrame:
    lines = []
    for clash in conflicts:
        sentence = say(
            "{order_id} was used on {day} for another payment (batch {batch}, row {row}, now {state}): give this one "
            "its own id",
            order_id=clash.client_orderid,
            day=clash.opened_at[:10],
            batch=clash.batch,
            row=clash.sheet_row,
            state=state_words(clash.state.value),
        )
        mend = say(", or amend: this row then replaces the other.") if clash.amendable else "."
        since = clash.quarantined_since
        if clash.amendable and since is not None and not _is_over(clash, until):
            mend = say(
                ". The other is rejected on a person's word alone, was sent at {time} and could still be paid: "
                "this row may replace it from {opens} ({quarantine}).",
                time=since,
                opens=timestamp(quarantine.opens(since)),
                quarantine=quarantine,
            )
        lines.append((clash.row, "client_orderid", clash.client_orderid, "client_orderid.conflict", sentence + mend))
    return as_defects(lines)
