"""The choices for a sheet, shared by the command line, the drop folder, the pages and the Python interface."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from paygw_batch.core.batch import ControlTotals


class BatchSender(Enum):
    """Who sends a batch: this process or workers."""

    THIS_PROCESS = "this_process"
    WORKERS_IF_ANY = "workers_if_any"
    """Workers, if any are alive, while this process follows their run; otherwise this process."""
    WORKERS_UNATTENDED = "workers_unattended"
    """Like `WORKERS_IF_ANY`, but for a timer: a signal leaves the run to the workers instead of stopping it."""
    WORKERS_LATER = "workers_later"
    """Workers, even if none is alive yet. This process ends without waiting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """A person's choices for a sheet.

    `repeats_meant`: the sheet may repeat a batch or its payees. `new_payees`: the names of new people in a payment run
    whose reference was used before. `answered` has the keys of answered questions. `first` limits the number of due
    rows to send (None: all). If `is_plan_named`, a person named the plan, and nothing may be paid without it. If
    `urgent`, workers send this batch before others. `expected` are the control totals that the sheet must have.
    `decided_by` is the person's name as the journal records it.
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
