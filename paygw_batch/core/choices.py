"""The choices for a sheet, as the command line, the drop folder, the pages and Python programs make them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from paygw_batch.core.batch import ControlTotals


class BatchSender(Enum):
    """The processes that can send a batch."""

    THIS_PROCESS = "this_process"
    WORKERS_IF_ANY = "workers_if_any"
    """Workers, if any are alive, while this process follows their run; otherwise this process."""
    WORKERS_UNATTENDED = "workers_unattended"
    """Like `WORKERS_IF_ANY`, but for a timer: a signal leaves the run to the workers instead of stopping it."""
    WORKERS_LATER = "workers_later"
    """Workers, even if none is alive yet. This process ends without waiting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """A person's choices for a sheet, by name.

    `repeats_meant`: the sheet is meant to repeat a batch, or payees. `new_payees`: the names of people who are new in a
    payment run whose reference was used before. `answered` has the keys of answered questions. `first` limits the
    number of due rows that are sent; None means all. If `is_plan_named`, a person named the plan, and nothing may be
    paid without it. If `urgent`, workers leave other batches for this one. `expected` are the control totals that the
    sheet must have. `decided_by` is the person's name as the journal records it.
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
