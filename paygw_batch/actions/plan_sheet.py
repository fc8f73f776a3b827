"""Plans a sheet: a person's choices for it, the journal's knowledge of it, and the reasons to refuse it.

A conversation is with whoever uses this: the command line, the Python API, a page. What it shows and asks is passed
in as functions.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from pathlib import Path

import polars as pl

from paygw_batch.clock import utc_now
from paygw_batch.core.lifecycle import State
from paygw_batch.core.shown_states import INVALID, STATES, shown_state
from paygw_batch.errors import SheetRepeatsBatch
from paygw_batch.journal import JournalReader
from paygw_batch.report.reconcile import reconciled
from paygw_batch.run.approval import PlanFinding
from paygw_batch.run.compare_sheet import ComparisonMemory
from paygw_batch.run.submit import Plan, plan_submission
from paygw_batch.settings.configuration import Settings
from paygw_batch.sheet.model import Validated
from paygw_batch.wiring.journal import Tell


class SentBy(Enum):
    """The processes that send a batch."""

    THIS_PROCESS = "this_process"
    WORKERS_IF_ANY = "workers_if_any"
    """The workers, where one lives, while this process follows them; otherwise this process."""
    WORKERS_UNATTENDED = "workers_unattended"
    """As before, for a timer: a signal leaves the run to the workers, instead of stopping it."""
    WORKERS_LATER = "workers_later"
    """The workers, also if none lives yet; this process ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SheetOptions:
    """A person's choices for a sheet, each by its name.

    `repeats_meant` says that the sheet is meant to repeat a batch. `first` sends only so many of the due rows (None:
    all). `is_plan_named`: a person named the plan, and wants nothing to be paid without it.
    `urgent`: workers leave other batches for it.
    """

    skip_invalid: bool = False
    amend: bool = False
    strict: bool = False
    repeats_meant: bool = False
    first: int | None = None
    sent_by: SentBy = SentBy.THIS_PROCESS
    is_plan_named: bool = False
    urgent: bool = False


@dataclass(frozen=True, slots=True)
class Submission:
    """A validated sheet, and a person's choices for it.

    `sheet` is its path, `plan` the file of its approved plan, `by` who decides, in the words that the journal keeps.
    `read` reads and validates the sheet once more (a plan may be in another language), and `corrections` returns
    those that people made after its upload: the findings of its plan are made again from them. `typed` is the sheet in
    a command, with the options that say how it is read.
    """

    validated: Validated
    sheet: Path
    plan: Path
    by: str
    options: SheetOptions = field(default_factory=SheetOptions)
    read: Callable[[], Validated] | None = None
    corrections: Callable[[Validated], Sequence[PlanFinding]] = lambda _validated: ()
    typed: str = "SHEET"

    @property
    def operation(self) -> str:
        """The operation that the sheet was read for."""
        return self.validated.sheet.operation


@dataclass(frozen=True, slots=True)
class Conversation:
    """Shows the plan, says a sentence, asks a question. By default nobody is there, and the answer is "no"."""

    show: Callable[[Plan], None] = lambda _plan: None
    say: Tell = lambda _sentence: None
    confirm: Callable[[str], bool] = lambda _question: False


@dataclass(frozen=True, slots=True)
class RefusedSheet:
    """A sheet of which nothing was sent: for its defects, or because it repeats a batch (`repeat`).

    `states` counts its rows: those that the journal knows keep their state.
    """

    plan: Plan
    states: Mapping[str, int]
    repeat: SheetRepeatsBatch | None = None


def plan_sheet(
    asked: Submission,
    settings: Settings,
    journal: JournalReader,
    *,
    as_of: datetime | None = None,
    memory: ComparisonMemory | None = None,
) -> Plan:
    """Compare a sheet with the journal, by the settings and the wall clock. Nothing is written.

    With `as_of`, look-alikes and repeats are those that were found then. `memory` is as for `plan_submission`.
    """
    return plan_submission(
        asked.validated,
        journal,
        operation=asked.operation,
        amend=asked.options.amend,
        now=utc_now,
        quarantine_h=settings.submission.quarantine_h,
        strict=asked.options.strict,
        repeat_days=settings.sheet.repeat_days,
        look_alike_days=settings.sheet.look_alike_days,
        as_of=as_of,
        memory=memory,
    )


def preview(plan: Plan, journal: JournalReader, minor_units: Mapping[str, int]) -> Iterator[pl.DataFrame]:
    """Yield every row of the sheet with the state it has now, part by part: `country, currency, amount, state`.

    What is `ready` is what would be sent.
    """
    if plan.existing is not None:
        yield from reconciled(journal, plan.existing, minor_units)
        return
    known = pl.DataFrame(
        [(row.row, shown_state(row.state)) for row in plan.known],
        schema={"row": pl.UInt32, "known_state": pl.String},
        orient="row",
    )
    state = pl.when("valid").then(pl.coalesce("known_state", pl.lit(State.READY.value))).otherwise(pl.lit(INVALID))
    for part in plan.validated.parts():
        yield part.rows.join(known, on="row", how="left", maintain_order="left").with_columns(state=state)


def refused_for_defects(asked: Submission, plan: Plan, journal: JournalReader) -> RefusedSheet | None:
    """Return the refusal of a sheet with defects, or None: it has none, or they were to be left out.

    A defect of the whole sheet (row 0) cannot be left out.
    """
    found = plan.validated.defects_found
    if found.is_empty or (asked.options.skip_invalid and 0 not in found.rows):
        return None
    return RefusedSheet(plan, _states_of(plan, journal))


def refused_as_repeat(
    asked: Submission, plan: Plan, journal: JournalReader, conversation: Conversation, *, approved: str = ""
) -> RefusedSheet | None:
    """Return the refusal of a sheet that repeats a batch, or None: it repeats none, or a person said that it is meant.

    `approved` is the batch that the approved plan names as the repeated one.
    """
    if plan.repeat is None or asked.options.repeats_meant or plan.is_meant(approved):
        return None
    if conversation.confirm(plan.repeat.question):
        return None
    return RefusedSheet(plan, _states_of(plan, journal), plan.repeat.refusal())


def _states_of(plan: Plan, journal: JournalReader) -> dict[str, int]:
    """Return the number of rows of a refused sheet in each state."""
    invalid = int((plan.validated.defects_found.rows > 0).sum())  # row 0 is the sheet as a whole
    counts = Counter({INVALID: invalid, State.READY.value: plan.validated.height - invalid})
    if plan.existing is not None:
        counts[State.READY.value] = 0
        for tally in journal.tallies(plan.existing.number):
            counts[shown_state(tally.state)] += tally.count
    for known in plan.known:
        counts[State.READY.value] -= 1
        counts[shown_state(known.state)] += 1
    return {state: counts[state] for state in STATES if counts[state]}
