"""Pays from a Python program: submit a frame or a sheet, take its outcomes as they come, reconcile to a frame.

The same journal, lock, checks and states as the commands have, composed from the same parts. Only what this module
names in `__all__` is public. docs/python-api.md shows how it is used.
"""

import os
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TypeAlias

import polars as pl

from paygw_batch.compose.actions.background_run import BackgroundRun, RowOutcome, RunHandle
from paygw_batch.compose.actions.continue_batch import continued_batch
from paygw_batch.compose.actions.send import Standings, Task, send, standings
from paygw_batch.compose.actions.submit_sheet import RefusedSheet, Submission, Surface, submit_sheet
from paygw_batch.compose.approvals import default_plan
from paygw_batch.compose.gateway import gateway_of
from paygw_batch.compose.journal import find_batch, journal_to_read
from paygw_batch.compose.operations import require_complete, rules_of
from paygw_batch.compose.operator import in_words, person
from paygw_batch.compose.run_journal import run_journal
from paygw_batch.compose.sheet import require_as_stated, validated_frame, validated_sheet
from paygw_batch.core.batch import PAYOUT, ControlTotals
from paygw_batch.core.outcome import Outcome, OutcomeKind
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
from paygw_batch.journal import BatchRecord, JournalReader
from paygw_batch.processes import forbid_core_dumps
from paygw_batch.run.submit import Plan
from paygw_batch.settings.configuration import load_settings
from paygw_batch.sheet.model import Validated, no_defects

__all__ = [
    "ApprovalError",
    "BatchRecord",
    "Conclusion",
    "ConfigurationError",
    "ControlTotals",
    "Finished",
    "JournalError",
    "JournalHeld",
    "JournalMissing",
    "JournalNotAdopted",
    "Outcome",
    "OutcomeKind",
    "PaygwError",
    "Payouts",
    "Refused",
    "Result",
    "RowOutcome",
    "Run",
    "SheetError",
    "UsageError",
]

_HOLDER = "a Python program"
"""The holder of the journal, as another run names it."""


class Conclusion(StrEnum):
    """The result of a batch, the most serious first. Each is one exit code of the commands, under its name."""

    PERSON_NEEDED = "person_needed"
    """At least one row is in doubt, or the journal holds contradicting evidence. Never submit such a row otherwise."""
    STOPPED_EARLY = "stopped_early"
    """The run stopped by itself, rows are still ready: run again later."""
    INTERRUPTED = "interrupted"
    """The run was stopped, rows are still ready: run again to continue."""
    SOME_REJECTED = "some_rejected"
    """Finished, but some rows are rejected, returned, or invalid and left out."""
    DONE = "done"
    """Every row is accepted or paid."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The sheet has defects, or repeats a batch, and nothing was sent.

    `defects` and `warnings`: `row, column, value, code, message`. Row 0 is the sheet as a whole.
    """

    message: str
    defects: pl.DataFrame
    warnings: pl.DataFrame


@dataclass(frozen=True, slots=True)
class Finished:
    """A batch, and the state of each of its rows.

    - `message`: what it came to in words, and what a person should do next.
    - `states`: how many rows stand in each state; `totals`: currency -> state -> exact sum as text.
    - `known`: the rows that the journal had before; `sent`: those for which a byte may have left in this run.
    - `reconciliation`: one line for every row of the sheet, with the columns of the reconciliation file.
    - `warnings`: as in `Refused`; empty where no sheet was read.
    - `notes`: sentences about the run that a person should read.
    """

    conclusion: Conclusion
    message: str
    batch: str
    states: Mapping[str, int]
    totals: Mapping[str, Mapping[str, str]]
    known: int
    sent: int
    reconciliation: pl.DataFrame
    warnings: pl.DataFrame
    notes: tuple[str, ...] = ()


Result: TypeAlias = Refused | Finished
"""The result of a run: refused or finished. An error that stops a run is raised, as a `PaygwError`."""

Run: TypeAlias = BackgroundRun[Result]
"""A run under way; `with` it, or `async with` it."""


class Payouts:
    """The payouts of one endpoint, as its configuration file says.

    Holds nothing open: every call opens the journal for itself. May be used from any thread. Raises
    `ConfigurationError` for a configuration that cannot be used.
    """

    def __init__(
        self,
        config: Path | str,
        *,
        journal: Path | str | None = None,
        environ: Mapping[str, str] | None = None,
        allow_core_dumps: bool = False,
    ) -> None:
        """Read `config`. `environ` (default: the process's own) may set keys as it does for the commands.

        From now on a crash of this process leaves no image of its memory, which would hold the private key and payees'
        data, unless `allow_core_dumps` says that it may.
        """
        if not allow_core_dumps:
            forbid_core_dumps(for_good=False)
        self._environ = dict(os.environ if environ is None else environ)
        flags = {} if journal is None else {("journal", "path"): str(Path(journal).absolute())}
        self._settings = load_settings(Path(config), environ=self._environ, flags=flags)
        self._rules = rules_of(self._settings, PAYOUT)

    def submit(
        self,
        sheet: pl.DataFrame | Path | str,
        *,
        name: str | None = None,
        reference: str | None = None,
        skip_invalid: bool = False,
        amend: bool = False,
        strict: bool = False,
        repeats_meant: bool = False,
        expected: ControlTotals | None = None,
        plan: Path | str | None = None,
        by: str | None = None,
        stop_on: Iterable[signal.Signals] = (),
    ) -> Run:
        """Return a run that starts the sheet's batch, or continues it, once it is entered.

        A frame needs a `name`, the file name that its sheet would have. `expected` are control totals that the sheet
        must come to. `repeats_meant` says that the sheet is meant to repeat a batch of the last days under other order
        ids: without it such a sheet is refused. `plan` is the approved plan, where the configuration asks for approval.
        `by` says who decides, beside the login. `stop_on` names signals that stop the run while it is entered; none is
        touched otherwise.

        Entering raises `SheetError`, `ConfigurationError`, `ApprovalError`, `JournalHeld`, `JournalMissing` (nobody has
        made a journal) and their like: nothing was sent by then.
        """
        path = _path_of(sheet, name)
        decider = person(by)

        def work(parts: RunHandle) -> Result:
            require_complete(self._settings, self._rules, set())
            validated = self._read(sheet, path, reference)
            for note in validated.sheet.notes:
                parts.note(note)
            require_as_stated(self._settings, self._rules, validated, expected)
            file = default_plan(path) if plan is None else Path(plan)
            asked = Submission(validated, path, file, decider, skip_invalid, amend, strict, repeats_meant)

            def send_planned(task: Task, plan: Plan) -> Finished:
                return _sent(task, parts, plan.warnings)

            with (
                gateway_of(self._settings, self._rules, self._environ) as gateway,
                run_journal(self._settings, _HOLDER, parts.note) as journal,
            ):
                result = submit_sheet(asked, self._settings, self._rules, gateway, journal, Surface(), send_planned)
            return _refused(result) if isinstance(result, RefusedSheet) else result

        return BackgroundRun(work, stop_on=stop_on)

    def resume(self, batch: str, *, stop_on: Iterable[signal.Signals] = ()) -> Run:
        """Return a run that continues a batch from the journal alone. `batch`: its id, or a prefix of it."""

        def work(parts: RunHandle) -> Result:
            require_complete(self._settings, self._rules, set())
            find = partial(self._found, batch=batch)
            with continued_batch(self._settings, _HOLDER, find, self._environ, parts.note) as task:
                return _sent(task, parts, no_defects())

        return BackgroundRun(work, stop_on=stop_on)

    def reconcile(self, batch: str) -> Finished:
        """Return the state of every row of a batch, also while a run is on. Sends and writes nothing."""
        with journal_to_read(self._settings) as journal:
            end = RunEnd(0, None, interrupted=False)
            found = standings(journal, self._found(journal, batch), self._rules, end)
        return _finished(found, no_defects(), ())

    def batches(self) -> Sequence[BatchRecord]:
        """Return all batches of the journal, oldest first. Raises `JournalError` when there is no journal yet."""
        with journal_to_read(self._settings) as journal:
            return journal.batches()

    def _found(self, journal: JournalReader, batch: str) -> BatchRecord:
        record = find_batch(journal, batch)
        if record.operation != PAYOUT:
            raise UsageError(f"Batch {record.batch} is a batch of another operation ({record.operation}).")
        return record

    def _read(self, sheet: pl.DataFrame | Path | str, path: Path, reference: str | None) -> Validated:
        if isinstance(sheet, pl.DataFrame):
            return validated_frame(self._settings, self._rules, sheet, name=path.name, reference=reference)
        return validated_sheet(self._settings, self._rules, path, reference=reference)


def _sent(task: Task, parts: RunHandle, warnings: pl.DataFrame) -> Finished:
    end = send(task, parts, parts.watch, wait_for_room=parts.wait_for_room)
    found = standings(task.journal, task.batch, task.rules, end, known=task.known)
    return _finished(found, warnings, parts.notes())


def _finished(found: Standings, warnings: pl.DataFrame, notes: tuple[str, ...]) -> Finished:
    summary = found.summary
    return Finished(
        conclusion=Conclusion[summary.exit_code.name],
        message=summary.message,
        batch=summary.batch or "",
        states=summary.states,
        totals=summary.totals,
        known=summary.known,
        sent=summary.sent_this_run,
        reconciliation=found.frame,
        warnings=warnings,
        notes=notes,
    )


def _refused(refused: RefusedSheet) -> Refused:
    defects, warnings = refused.plan.validated.defects, refused.plan.warnings
    if refused.repeat is not None:
        return Refused(refused.repeat.message, defects, warnings)
    bad, height = defects["row"].n_unique(), refused.plan.validated.height
    found = f"{bad:,} of {height:,} row{'' if height == 1 else 's'} {'has' if bad == 1 else 'have'} defects"
    return Refused(f"{found}: nothing was sent.", defects, warnings)


def _path_of(sheet: pl.DataFrame | Path | str, name: str | None) -> Path:
    """Return the path of a sheet; a frame has none, and counts as a file of its name in this directory."""
    if not isinstance(sheet, pl.DataFrame):
        if name is not None:
            raise UsageError("A file has its own name: leave name out.")
        return Path(sheet)
    if name is None or Path(name).name != in_words(name, "The name of a frame"):
        raise UsageError("A frame needs a name, as of a file: name='payroll-2026-11'.")
    return Path(name)
