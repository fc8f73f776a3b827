"""The Python interface: submit a data frame or a file, follow the outcomes, and get the reconciliation as a frame.

It shares the journal, lock, checks and states with the commands, and is built from the same parts. Only the names in
`__all__` are public. docs/python-api.md shows how to use them.
"""

import os
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypedDict, Unpack, runtime_checkable

import polars as pl

from paygw_batch.approval.approval_keys import MODULE_VARIABLE, load_person_key
from paygw_batch.approval.plan_document import PlanDocument, needs_approval
from paygw_batch.approval.policy import default_plan_path, identify_person, require_line, require_maker, require_policy
from paygw_batch.approval.signed_document import ApprovalPolicy, approve, read_document, sign_document, write_document
from paygw_batch.clock import utc_now
from paygw_batch.core.batch import PAYOUT, ControlTotals
from paygw_batch.core.choices import BatchSender, Choices
from paygw_batch.core.lifecycle import Resolution
from paygw_batch.core.money import from_minor
from paygw_batch.core.outcome import Outcome, OutcomeKind
from paygw_batch.core.shown_states import DISPLAYED_IN_DOUBT, display_state
from paygw_batch.engine.engine import RunEnd
from paygw_batch.errors import (
    ApprovalError,
    ConfigurationError,
    JournalError,
    JournalHeld,
    JournalMissing,
    JournalNotAdopted,
    PaygwError,
    SheetError,
    UsageError,
)
from paygw_batch.journal import BatchRecord, FoundPayment, JournalReader
from paygw_batch.language import say, say_count
from paygw_batch.opening.gateway_access import SendJob, open_gateway
from paygw_batch.opening.given_sheet import Reading, SheetSource, require_complete, rule_minor_units, rules_for
from paygw_batch.opening.open_journal import (
    find_batch,
    journal_for_document,
    open_journal_for_run,
    open_journal_to_read,
)
from paygw_batch.processes import forbid_core_dumps
from paygw_batch.settings.configuration import load_settings
from paygw_batch.settle.resolve import Settlement
from paygw_batch.settle.settle_rows import refresh, require_enquiry_profile, settle_by_decision
from paygw_batch.sheet.check.validate import warnings_as_defects
from paygw_batch.sheet.findings import empty_findings
from paygw_batch.show.batch_status import MAX_MATCHES, RowStatus, batch_status, parse_payment_search
from paygw_batch.show.outputs import OutputGuard, OutputKind, RequestedOutput
from paygw_batch.show.remittance import build_payee
from paygw_batch.submit.approvals import newest_shared_plan, require_in_force, share_plan
from paygw_batch.submit.background_run import BackgroundRun, RowOutcome, RunHandle, WorkerOutcomes
from paygw_batch.submit.notices import discard_message
from paygw_batch.submit.plan import Plan
from paygw_batch.submit.results import BatchResult, batch_result
from paygw_batch.submit.send import send
from paygw_batch.submit.submission import Conversation, RefusedSheet, Submission, draft_plan
from paygw_batch.submit.submit_sheet import open_batch_to_continue, release_rejected_rows, submit_sheet

__all__ = [
    "ApprovalError",
    "ArrowTable",
    "BatchRecord",
    "BatchState",
    "Checked",
    "Conclusion",
    "ConfigurationError",
    "ControlTotals",
    "Finished",
    "FoundPayment",
    "JournalError",
    "JournalHeld",
    "JournalMissing",
    "JournalNotAdopted",
    "Outcome",
    "OutcomeKind",
    "PaygwError",
    "Payouts",
    "Planned",
    "Refused",
    "Resolution",
    "Result",
    "RowOutcome",
    "Run",
    "SheetChoices",
    "SheetError",
    "SheetReading",
    "UsageError",
    "WaitingRow",
]

_HOLDER = "a Python program"
"""How other processes describe this one in messages while it holds the journal."""
_NO_CONVERSATION = Conversation()


class Conclusion(StrEnum):
    """The possible results of a batch, most serious first. Each is named like an exit code of the commands."""

    PERSON_NEEDED = "person_needed"
    """A row is in doubt, or evidence contradicts the journal. Never pay such a row in another way."""
    STOPPED_EARLY = "stopped_early"
    """The run stopped early while rows were still ready. Run it again later."""
    INTERRUPTED = "interrupted"
    """The run was interrupted while rows were still ready. Run it again to continue."""
    SOME_REJECTED = "some_rejected"
    """The batch is finished, but some rows were rejected, returned, or left out as invalid."""
    DONE = "done"
    """All rows are accepted or paid."""


@dataclass(frozen=True, slots=True)
class _Result:
    """A result that can be converted to JSON. Its repr contains no names or account numbers."""

    def to_dict(self) -> dict[str, object]:
        """Return the values by name, ready for JSON. Frames become lists of rows, and paths become strings."""
        return {entry.name: _json_value(getattr(self, entry.name)) for entry in fields(self)}


@dataclass(frozen=True, slots=True)
class Refused(_Result):
    """A sheet that was refused because it has defects or repeats a batch. Nothing was sent.

    - `defects` and `warnings`: frames with `row, column, value, code, message`. Row 0 means the whole sheet.
    - `code`: the code of the sheet's open question, or empty.
    """

    message: str = field(repr=False)
    defects: pl.DataFrame = field(repr=False)
    warnings: pl.DataFrame = field(repr=False)
    code: str = ""


@dataclass(frozen=True, slots=True)
class Finished(_Result):
    """A batch after its run, with the state of each row.

    - `message`: the result in words, and what to do next.
    - `states`: the number of rows in each state. `totals`: exact sums as text, by currency and then by state.
    - `known`: the number of rows already in the journal. `sent`: the number that this run may have sent.
    - `reconciliation`: a line for each row in the sheet, with the columns of the reconciliation file.
    - `warnings`: as in `Refused`, or empty if no sheet was read.
    - `notes`: messages about the run for a person to read.
    """

    conclusion: Conclusion
    message: str
    batch: str
    states: Mapping[str, int]
    totals: Mapping[str, Mapping[str, str]]
    known: int
    sent: int
    reconciliation: pl.DataFrame = field(repr=False)
    warnings: pl.DataFrame = field(repr=False)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Checked(_Result):
    """A validated sheet. Nothing was sent, and no journal was read.

    - `payable`: the number of rows without defects, out of `rows`. `totals`: sums of readable amounts, by currency.
    - `defects` and `warnings`: as in `Refused`.
    - `headings`: the sheet's own heading for each of our columns.
    - `batch`: the id that a batch from this sheet would have.
    """

    batch: str
    rows: int
    payable: int
    totals: Mapping[str, str]
    defects: pl.DataFrame = field(repr=False)
    warnings: pl.DataFrame = field(repr=False)
    headings: Mapping[str, str] = field(repr=False)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WaitingRow(_Result):
    """A row that needs attention.

    `since` is when it began to need attention. `order_id` is that of the last attempt, or None if there was none. No
    run sends a row that is `held`, and `held_orders` are the orders to ask the gateway about.
    """

    row: int
    client_orderid: str
    order_id: str | None
    state: str
    error_code: str | None
    amount: str
    currency: str
    since: str | None
    payee: str = field(repr=False)
    account: str = field(repr=False)
    held: bool
    held_orders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BatchState(_Result):
    """The state of a batch in the journal. `needs_person` contains all rows that need attention."""

    conclusion: Conclusion
    message: str
    batch: str
    sheet: str
    opened_at: str
    rows: int
    states: Mapping[str, int]
    totals: Mapping[str, Mapping[str, str]]
    needs_person: tuple[WaitingRow, ...]


@dataclass(frozen=True, slots=True)
class Planned(_Result):
    """A plan written to the file `path`, which has `approvals` of the `needed` approvals."""

    path: Path
    batch: str
    sheet: str
    rows: int
    totals: Mapping[str, str]
    approvals: int
    needed: int


@runtime_checkable
class ArrowTable(Protocol):
    """A data frame from any library with the Arrow PyCapsule interface, such as pandas, pyarrow or DuckDB."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Export the frame as an Arrow stream."""


SheetLike: TypeAlias = pl.DataFrame | pl.LazyFrame | ArrowTable | Path | str
"""A data frame (a lazy one is collected) or the path of a file."""

Result: TypeAlias = Refused | Finished
"""The result of a run. Errors that stop a run are raised as `PaygwError`."""

Run: TypeAlias = BackgroundRun[Result]
"""A run in progress. Enter it using `with` or `async with`."""


class SheetReading(TypedDict, total=False):
    """Options for reading a sheet. A frame needs a `name`. The last four resolve ambiguities."""

    name: str | None
    reference: str | None
    worksheet: str | None
    encoding: str | None
    numbers: str | None
    names: str | None


class SheetChoices(SheetReading, total=False):
    """Options for reading a sheet, and decisions about it.

    `repeats_meant` allows a sheet to repeat a recent batch under other order ids, or to pay a payee twice. `new_payees`
    lists payees who may be new although the reference has been used before.
    """

    skip_invalid: bool
    amend: bool
    strict: bool
    repeats_meant: bool
    new_payees: Iterable[str]


class Payouts:
    """The payouts of the endpoint in a configuration file. Thread-safe.

    Each call opens and closes the journal. Raises `ConfigurationError` if the configuration cannot be used.
    """

    def __init__(
        self,
        config: Path | str,
        *,
        journal: Path | str | None = None,
        environ: Mapping[str, str] | None = None,
        allow_core_dumps: bool = False,
    ) -> None:
        """Read the configuration file `config`. `environ`, by default `os.environ`, may override its settings.

        Core dumps of this process are disabled unless `allow_core_dumps` is set. They would contain secrets and
        personal data.
        """
        if not allow_core_dumps:
            forbid_core_dumps(permanent=False)
        self._environ = dict(os.environ if environ is None else environ)
        flags = {} if journal is None else {("journal", "path"): str(_require_path(journal, "journal").absolute())}
        self._config = _require_path(config, "config")
        self._settings = load_settings(self._config, environ=self._environ, flags=flags)
        self._rules = rules_for(self._settings, PAYOUT)

    def submit(
        self,
        sheet: SheetLike,
        *,
        expected: ControlTotals | None = None,
        plan: Path | str | None = None,
        by: str | None = None,
        wait: bool = False,
        stop_on: Iterable[signal.Signals] = (),
        **options: Unpack[SheetChoices],
    ) -> Run:
        """Return a run that starts or continues the sheet's batch. The run is a context manager.

        `expected` contains the control totals that the sheet must have. `plan` is the approved plan, if one is
        required. `by` is the name of the person who decides, recorded with their login. With `wait`, the run waits for
        another run to finish. `stop_on` lists signals that stop this run.

        Entering the run raises `SheetError`, `ConfigurationError`, `ApprovalError`, `JournalHeld`, `JournalMissing` and
        similar errors, before anything is sent.
        """
        source, choices = self._source_and_choices(
            sheet,
            options,
            sent_by=BatchSender.WORKERS_IF_ANY,
            is_plan_named=plan is not None,
            expected=expected or ControlTotals(),
            decided_by=identify_person(by),
        )
        plan_file = default_plan_path(source.path) if plan is None else _require_path(plan, "plan")

        def perform(handle: RunHandle) -> Result:
            require_complete(self._settings, self._rules, set())
            submission = Submission.read(source, choices, plan_file)
            for note in submission.validated.sheet.notes:
                handle.echo(note)
            submission.require_ready_to_send()
            with (
                open_gateway(self._settings, self._rules, self._environ) as gateway,
                open_journal_for_run(self._settings, _HOLDER, handle.echo, wait=wait) as journal,
            ):
                result = submit_sheet(submission, gateway, journal, _NO_CONVERSATION, partial(_send_batch, handle))
            return _build_refused(result) if isinstance(result, RefusedSheet) else result

        return BackgroundRun(perform, stop_on=stop_on)

    def validate(self, sheet: SheetLike, *, strict: bool = False, **options: Unpack[SheetReading]) -> Checked:
        """Read and validate a sheet as `submit` would. Raises `SheetError` if it cannot be read."""
        validated = self._source_and_choices(sheet, options)[0].validated()
        if strict:
            validated = warnings_as_defects(validated)
        return Checked(
            batch=validated.batch,
            rows=validated.height,
            payable=validated.payable_count,
            totals={currency: f"{amount:f}" for currency, amount in (validated.totals.sums or {}).items()},
            defects=validated.defects,
            warnings=validated.warnings,
            headings=dict(validated.sheet.headers),
            notes=tuple(validated.sheet.notes),
        )

    def resume(self, batch: str, *, wait: bool = False, stop_on: Iterable[signal.Signals] = ()) -> Run:
        """Return a run that continues a batch without its sheet. `batch` is the batch's id or a prefix of it."""
        return self._continue_batch(batch, lambda _job: None, wait=wait, stop_on=stop_on)

    def retry(
        self,
        batch: str,
        *,
        rows: Iterable[int] | None = None,
        by: str | None = None,
        wait: bool = False,
        stop_on: Iterable[signal.Signals] = (),
    ) -> Run:
        """Return a run that releases rejected rows (all if `rows` is None) and then sends all due rows.

        Entering the run raises `UsageError` and releases no row if one of `rows` must not be released.
        """
        decider, chosen_rows = identify_person(by), None if rows is None else tuple(rows)

        def release(job: SendJob) -> None:
            release_rejected_rows(job, chosen_rows, decider)

        return self._continue_batch(batch, release, wait=wait, stop_on=stop_on)

    def resolve(
        self, batch: str, rows: Sequence[int], resolution: Resolution, evidence: str, *, by: str | None = None
    ) -> BatchState:
        """Settle rows by one person's decision, and return the state of the batch.

        Raises `UsageError` and settles no row if one of `rows` must not be settled. Raises `ApprovalError` if two
        people must decide.
        """
        decider, evidence_line = identify_person(by), require_line(evidence, "evidence")
        settlements = [Settlement(row, resolution, evidence_line) for row in rows]
        with open_journal_for_run(self._settings, _HOLDER, discard_message) as journal:
            record = self._find_payout_batch(journal, batch)
            settle_by_decision(self._settings, journal, record, settlements, decider)
            return self._batch_state(journal, record)

    def refresh(self, batch: str, *, wait: bool = False) -> BatchState:
        """Ask the gateway about rows that are accepted or in doubt, and return the state of the batch.

        Do not call this inside an event loop. Raises `ConfigurationError` unless `[status_enquiry]` is configured.
        """
        require_enquiry_profile(self._settings)
        find = partial(self._find_payout_batch, batch=batch)
        with open_batch_to_continue(self._settings, _HOLDER, find, self._environ, discard_message, wait=wait) as job:
            refresh(job, discard_message, lambda _refresh: None)
            return self._batch_state(job.journal, job.batch)

    def status(self, batch: str) -> BatchState:
        """Return the state of a batch, even during a run, without sending or writing anything."""
        with open_journal_to_read(self._settings) as journal:
            return self._batch_state(journal, self._find_payout_batch(journal, batch))

    def find(self, text: str, *, limit: int = MAX_MATCHES) -> Sequence[FoundPayment]:
        """Find payments in all batches. `text` is a payee's name, an account or phone number, or an order id."""
        search = parse_payment_search(require_line(text, "text"), [rule.numbers for rule in self._rules.values()])
        with open_journal_to_read(self._settings) as journal:
            return journal.find_payments(search, limit=limit)

    def plan(
        self,
        sheet: SheetLike,
        out: Path | str,
        key: Path | str,
        *,
        passphrase: bytes | None = None,
        **options: Unpack[SheetChoices],
    ) -> Planned | Refused:
        """Write a plan for the sheet to `out`, signed with the maker's `key`, for others to approve."""
        source, choices = self._source_and_choices(sheet, options)
        file, policy = _require_path(out, "out"), require_policy(self._settings)
        maker = load_person_key(_require_path(key, "key"), passphrase, self._environ.get(MODULE_VARIABLE))
        require_maker(maker.public, policy, say("No plan was made."))
        submission = Submission.read(source, choices, file)
        OutputGuard(self._settings, self._config).check(
            RequestedOutput("out", file, OutputKind.PLAN), inputs={"the sheet": source.path, "a key": Path(key)}
        )
        with journal_for_document(self._settings, "plan") as journal:
            draft = draft_plan(submission, journal, _NO_CONVERSATION, maker.public)
        if isinstance(draft, RefusedSheet):
            return _build_refused(draft)
        document = sign_document(draft.document, maker)
        write_document(document, file)
        share_plan(self._settings, document)
        return _build_planned(document, file, policy)

    def approve(self, plan: Path | str, key: Path | str, *, passphrase: bytes | None = None) -> Planned:
        """Approve the plan in a file with a `key` that does not belong to its maker.

        Show the plan to the owner of `key` first. Raises `ApprovalError` if the plan was changed or withdrawn, or if
        this person has already approved it.
        """
        file, policy = _require_path(plan, "plan"), require_policy(self._settings)
        document = read_document(file, PlanDocument)
        if (shared := newest_shared_plan(self._settings, document)) is not None:
            document = shared.document
        require_in_force(self._settings, document)
        module = self._environ.get(MODULE_VARIABLE)
        approved = approve(document, load_person_key(_require_path(key, "key"), passphrase, module), policy, utc_now())
        write_document(approved, file)
        share_plan(self._settings, approved, None if shared is None else shared.stored)
        return _build_planned(approved, file, policy)

    def reconcile(self, batch: str) -> Finished:
        """Return the state of every row of a batch, even during a run, without sending or writing anything."""
        with open_journal_to_read(self._settings) as journal:
            end = RunEnd(0, None, interrupted=False)
            result = batch_result(journal, self._find_payout_batch(journal, batch), self._rules, end)
        return _build_finished(result, empty_findings(), ())

    def batches(self) -> Sequence[BatchRecord]:
        """Return all batches in the journal, oldest first. Raises `JournalError` if there is no journal yet."""
        with open_journal_to_read(self._settings) as journal:
            return journal.batches()

    def _continue_batch(
        self, batch: str, prepare: Callable[[SendJob], None], *, wait: bool, stop_on: Iterable[signal.Signals]
    ) -> Run:
        def perform(handle: RunHandle) -> Result:
            require_complete(self._settings, self._rules, set())
            find = partial(self._find_payout_batch, batch=batch)
            with open_batch_to_continue(self._settings, _HOLDER, find, self._environ, handle.echo, wait=wait) as job:
                prepare(job)
                return _send_batch(handle, job)

        return BackgroundRun(perform, stop_on=stop_on)

    def _batch_state(self, journal: JournalReader, record: BatchRecord) -> BatchState:
        status = batch_status(self._settings, journal, record)
        payments = journal.payments(record.number, [entry.row.row for entry in status.rows])
        units = rule_minor_units(self._rules)
        summary = status.summary
        return BatchState(
            conclusion=Conclusion[summary.exit_code.name],
            message=summary.message,
            batch=record.batch,
            sheet=record.sheet_name,
            opened_at=record.opened_at,
            rows=record.rows,
            states=summary.states,
            totals=summary.totals,
            needs_person=tuple(_build_waiting_row(entry, payments[entry.row.row], units) for entry in status.rows),
        )

    def _find_payout_batch(self, journal: JournalReader, batch: str) -> BatchRecord:
        record = find_batch(journal, batch)
        if record.operation != PAYOUT:
            context = {"batch": record.batch, "operation": record.operation}
            raise UsageError(say("Batch {batch} belongs to another operation ({operation}).", **context))
        return record

    def _source_and_choices(
        self, sheet: SheetLike, options: SheetReading | SheetChoices, **decisions: Any
    ) -> tuple[SheetSource, Choices]:
        choices = dict[str, Any](options)
        if unknown := choices.keys() - SheetChoices.__annotations__.keys():
            raise TypeError(f"unexpected keyword argument: {', '.join(sorted(unknown))}")
        path = _sheet_path(sheet, choices.pop("name", None))
        reading = Reading(**{name: choices.pop(name) for name in SheetReading.__annotations__ if name in choices})
        choices["new_payees"] = tuple(choices.get("new_payees", ()))
        source = SheetSource(self._settings, self._rules, path, reading, _read_frame(sheet))
        return source, Choices(**decisions, **choices)


def _send_batch(handle: RunHandle, job: SendJob, plan: Plan | None = None) -> Finished:
    handle.set_batch(job.batch.batch)
    rows = WorkerOutcomes(job.journal, job.batch, handle)
    end = send(
        *(job, handle, handle.start), wait_for_room=handle.wait_for_room, on_counts=rows.record_counts, begin=rows.begin
    )
    rows.end()
    result = batch_result(job.journal, job.batch, job.rules, end, known_count=job.known)
    return _build_finished(result, empty_findings() if plan is None else plan.warnings, handle.notes())


def _build_finished(result: BatchResult, warnings: pl.DataFrame, notes: tuple[str, ...]) -> Finished:
    summary = result.summary
    return Finished(
        conclusion=Conclusion[summary.exit_code.name],
        message=summary.message,
        batch=summary.batch or "",
        states=summary.states,
        totals=summary.totals,
        known=summary.known,
        sent=summary.sent_this_run,
        reconciliation=result.frame,
        warnings=warnings,
        notes=notes,
    )


def _build_refused(sheet: RefusedSheet) -> Refused:
    defects, warnings = sheet.plan.validated.defects, sheet.plan.warnings
    if sheet.question is not None:
        return Refused(sheet.question.message, defects, warnings, sheet.question.code)
    message = say_count(
        defects["row"].n_unique(),
        "{count:,} of {rows} has defects. Nothing was sent.",
        "{count:,} of {rows} have defects. Nothing was sent.",
        rows=say_count(sheet.plan.validated.height, "{count:,} row", "{count:,} rows"),
    )
    return Refused(message, defects, warnings)


def _build_waiting_row(entry: RowStatus, payment: FoundPayment, minor_units: Mapping[str, int]) -> WaitingRow:
    row, hold = entry.row, entry.hold
    amount = from_minor(row.minor, minor_units=minor_units[row.currency])
    payee = build_payee(payment.form, payment.fields)
    since = row.intended_at if row.state in DISPLAYED_IN_DOUBT else row.updated_at
    return WaitingRow(
        row.row,
        row.client_orderid,
        row.sent_orderid,
        display_state(row.state),
        row.error_code,
        amount,
        row.currency,
        since or row.updated_at,
        payee.name,
        payee.number,
        hold is not None,
        () if hold is None else hold.order_ids,
    )


def _build_planned(document: PlanDocument, path: Path, policy: ApprovalPolicy) -> Planned:
    content = document.content
    needed_count = policy.needed if needs_approval(content, policy) else 0
    return Planned(
        path, content.batch, content.sheet, content.rows, dict(content.totals), len(document.approvals), needed_count
    )


def _json_value(value: object) -> object:
    match value:
        case pl.DataFrame():
            return value.to_dicts()
        case StrEnum():
            return value.value
        case Path():
            return str(value)
        case tuple():
            return [item.to_dict() if isinstance(item, _Result) else item for item in value]
        case _:
            return value


def _read_frame(sheet: SheetLike) -> pl.DataFrame | None:
    """Convert a frame from any library to polars. Returns None for a file path."""
    if isinstance(sheet, Path | str):
        return None
    if not isinstance(sheet, ArrowTable | pl.LazyFrame):
        raise UsageError(
            say("A sheet must be a file path or a data frame, not {kind}.", kind=type(sheet).__name__),
            hint=say(
                "Use any data frame with __arrow_c_stream__, such as one from polars, pandas, pyarrow or DuckDB. "
                "Convert a list with polars.DataFrame."
            ),
        )
    try:
        if isinstance(sheet, pl.LazyFrame):
            return sheet.collect()
        return sheet if isinstance(sheet, pl.DataFrame) else pl.DataFrame(sheet)
    except pl.exceptions.PolarsError as error:
        raise SheetError(say("Cannot read the data frame: {reason}.", reason=str(error).partition("\n")[0])) from None


def _sheet_path(sheet: SheetLike, name: str | None) -> Path:
    """Return the path of a sheet. A frame is treated as a file called `name` in the current directory."""
    if isinstance(sheet, Path | str):
        if name is not None:
            raise UsageError(say("Leave out `name`. A file already has one."))
        return _require_path(sheet, "sheet")
    if name is None or Path(name).name != require_line(name, say("The name of a data frame")):
        raise UsageError(say("A data frame needs a name, such as name='payroll-2026-11'."))
    return Path(name)


def _require_path(path: Path | str, name: str) -> Path:
    """Return `path` as a path. Raises `UsageError` if it is empty, which would mean the current directory."""
    if not str(path).strip() or "\0" in str(path):
        raise UsageError(say("{what} is not a path: {path!r}.", what=name, path=str(path)), hint=say("Specify a path."))
    return Path(path)
