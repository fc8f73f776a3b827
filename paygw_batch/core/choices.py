"""Defines the choices that a person can make for a sheet."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from paygw_batch.core.batch import ControlTotals


class BatchSender(Enum):
    """Who sends a batch: this process or workers."""

    THIS_PROCESS = "this_process"
    WORKERS_IF_ANY = "workers_if_any"
    """Workers, if any are alive, while this process follows their run. Otherwise this process."""
    WORKERS_UNATTENDED = "workers_unattended"
    """Like `WORKERS_IF_ANY`, but for timers: a signal leaves the run to the workers instead of stopping it."""
    WORKERS_LATER = "workers_later"
    """Workers, even if none is alive yet. This process does not wait for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """A person's choices for a sheet.

    `repeats_meant` allows the sheet to repeat a batch or its payees. `new_payees` lists new people in a payment run
    whose reference was used before. `answered` lists the keys of answered questions. `first` is the number of due rows
    to send, or None for all. With `is_plan_named`, the person named a plan, and nothing may be paid without it. With
    `urgent`, workers send this batch before others. `expected` contains the control totals that the sheet must have.
    `decided_by` is the person's name in the journal.
    """

    skip_invalid: bool = False
    amend: bool = False
    strict: bool = False
    repeats_meant: bool = False
    new_payees: Sequence[str] = ()
    answered: Sequence[str] = ()
    first: int | None = None
    sent_by: BatchSender = BatchSender.THIS_PROCESS
    is_plan_named: bool = False
    urgent: bool = False
    expected: ControlTotals = field(default_factory=ControlTotals)
    decided_by: str = ""
