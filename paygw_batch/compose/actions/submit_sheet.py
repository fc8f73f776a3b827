"""Submits a sheet, once for every surface: plan -> approve -> open -> send.

A surface is what a person or a program uses: the command line, the Python API, a page. What it shows and asks is passed
in as functions; how it sends (a progress bar, a queue of outcomes) is passed in as well.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import polars as pl

from paygw_batch.clock import utc_now
from paygw_batch.compose.actions.send import SentBy, Task
from paygw_batch.compose.approvals import require_approval
from paygw_batch.compose.gateway import GatewayAccess
from paygw_batch.compose.journal import Tell
from paygw_batch.core.lifecycle import State
from paygw_batch.core.recorded_words import recorded
from paygw_batch.core.shown_states import INVALID, STATES, shown_state
from paygw_batch.countries.rules import Rules
from paygw_batch.errors import SheetRepeatsBatch
from paygw_batch.journal import Journal, JournalReader
from paygw_batch.language import say
from paygw_batch.report.reconcile import reconciled
from paygw_batch.run.submit import Plan, open_planned_batch, plan_submission
from paygw_batch.settings.configuration import Settings
from paygw_batch.sheet.model import Validated

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Submission:
    """A validated sheet, and a person's choices for it.

    `sheet` is its path, `plan` the file of its approved plan, `by` who decides, in the words that the journal keeps.
    `repeats_meant` says that the sheet is meant to repeat a batch. `first` sends only so many of the due rows (None:
    all).
    """

    validated: Validated
    sheet: Path
    plan: Path
    by: str
    skip_invalid: bool = False
    amend: bool = False
    strict: bool = False
    repeats_meant: bool = False
    first: int | None = None
    sent_by: SentBy = SentBy.THIS_PROCESS

    @property
    def operation(self) -> str:
        """The operation that the sheet was read for."""
        return self.validated.sheet.operation


@dataclass(frozen=True, slots=True)
class Surface:
    """Shows the plan, says a sentence, asks a question. By default nobody is there, and the answer is no."""

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


def plan_sheet(asked: Submission, settings: Settings, journal: JournalReader) -> Plan:
    """Compare a sheet with the journal, by the settings and the wall clock. Nothing is written."""
    return plan_submission(
        asked.validated,
        journal,
        operation=asked.operation,
        amend=asked.amend,
        now=utc_now,
        quarantine_h=settings.submission.quarantine_h,
        strict=asked.strict,
        repeat_days=settings.sheet.repeat_days,
        look_alike_days=settings.sheet.look_alike_days,
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
    """Return the refusal of a sheet with defects, or None: it has none, or they were to be left out."""
    if asked.skip_invalid or plan.validated.defects_found.is_empty:
        return None
    return RefusedSheet(plan, _states_of(plan, journal))


def refused_as_repeat(
    asked: Submission, plan: Plan, journal: JournalReader, surface: Surface, *, approved: str = ""
) -> RefusedSheet | None:
    """Return the refusal of a sheet that repeats a batch, or None: it repeats none, or a person said that it is meant.

    `approved` is the batch that the approved plan names as the repeated one.
    """
    if plan.repeat is None or asked.repeats_meant or plan.is_meant(approved) or surface.confirm(plan.repeat.question):
        return None
    return RefusedSheet(plan, _states_of(plan, journal), plan.repeat.refusal())


def submit_sheet(
    asked: Submission,
    settings: Settings,
    rules: Rules,
    gateway: GatewayAccess,
    journal: Journal,
    surface: Surface,
    send: Callable[[Task, Plan], T],
) -> T | RefusedSheet:
    """Open the sheet's batch, or find it opened, and `send` the rows that are due in it.

    Raises `ApprovalError` when a new batch is not approved: nothing has been written by then.
    """
    plan = plan_sheet(asked, settings, journal)
    surface.show(plan)
    if (refused := refused_for_defects(asked, plan, journal)) is not None:
        return refused
    approved = require_approval(settings, rules, plan, asked.plan, journal, utc_now)
    for sentence in approved.sentences:
        surface.say(say("The plan was {sentence}.", sentence=recorded(sentence)))
    if (refused := refused_as_repeat(asked, plan, journal, surface, approved=approved.repeats_meant)) is not None:
        return refused
    batch = open_planned_batch(
        plan,
        journal,
        rules,
        operation=asked.operation,
        sheet_path=asked.sheet,
        now=utc_now,
        by=asked.by,
        approvals=approved.sentences,
        plan_sha256=approved.plan_sha256,
        repeats_meant=True,
    )
    task = Task(settings, rules, gateway, journal, batch, plan.known_rows, asked.first, asked.sent_by)
    return send(task, plan)


def _states_of(plan: Plan, journal: JournalReader) -> dict[str, int]:
    """Return how many rows of a refused sheet have each state."""
    invalid = plan.validated.defects_found.rows.len()
    counts = Counter({INVALID: invalid, State.READY.value: plan.validated.height - invalid})
    if plan.existing is not None:
        counts[State.READY.value] = 0
        for tally in journal.tallies(plan.existing.number):
            counts[shown_state(tally.state)] += tally.count
    for known in plan.known:
        counts[State.READY.value] -= 1
        counts[shown_state(known.state)] += 1
    return {state: counts[state] for state in STATES if counts[state]}
