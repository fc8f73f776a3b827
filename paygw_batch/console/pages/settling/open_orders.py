"""Finds the orders about rows that are not carried out yet, and how far each has come."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from threading import Lock

from paygw_batch.clock import timestamp
from paygw_batch.compose.actions.start_run import started_run
from paygw_batch.compose.approvals import order_problem
from paygw_batch.compose.journal import journal_to_plan_with
from paygw_batch.console.pages.document_signing import enough_approve, has_approved
from paygw_batch.console.pages.preparing import RUNS
from paygw_batch.console.pages.settling.order_folder import (
    AnyOrder,
    OrderFolder,
    new_order_folder,
    open_order_folders,
    order_folder_of,
)
from paygw_batch.console.permissions import Act
from paygw_batch.console.visits import PageNotFound, Visit
from paygw_batch.errors import ApprovalError
from paygw_batch.journal import JournalReader
from paygw_batch.language import mark, say, say_count
from paygw_batch.run.orders.kept_orders import is_kept
from paygw_batch.run.orders.release_order import ReleaseOrder

_locks: defaultdict[str, Lock] = defaultdict(Lock)
_drafting = Lock()


class OrderStage(StrEnum):
    """How far an order has come."""

    TO_SIGN = "to_sign"
    SENT_BACK = "sent_back"
    TO_AGREE = "to_agree"
    AGREED = "agreed"
    """It can be carried out: for an order to send rows again, by a run that is to be started."""
    STARTING = "starting"
    """A run of the payout is on: the one that carries the order out, or one that has to end first."""
    UNTRUE = "untrue"
    """A row has changed since: it can never be carried out."""
    DONE = "done"


_NEXT: Mapping[OrderStage, str] = {
    OrderStage.TO_SIGN: mark("Not signed yet"),
    OrderStage.SENT_BACK: mark("Sent back"),
    OrderStage.TO_AGREE: mark("A second person agrees"),
    OrderStage.AGREED: mark("Agreed: it can be carried out"),
    OrderStage.STARTING: mark("Starting"),
    OrderStage.UNTRUE: mark("A row has changed since: take it back"),
}


@dataclass(frozen=True, slots=True)
class OpenOrder:
    """An order that is not carried out yet, in a list. `needs` is the act that it asks the person for, or empty."""

    path: str
    batch: str
    name: str
    what: str
    by: str
    at: str
    next: str
    rows: Sequence[int]
    needs: str


def orders_directory(visit: Visit) -> Path:
    """Return where orders are kept."""
    return visit.console.directory / "orders"


def required_order(visit: Visit) -> OrderFolder:
    """Return the order of an address. Raises `PageNotFound` where there is none."""
    found = order_folder_of(orders_directory(visit), visit.path("order"))
    if found is None:
        raise PageNotFound(say("There is no such order. It may have been taken back."))
    return found


@contextmanager
def changing_order(visit: Visit) -> Iterator[OrderFolder]:
    """Yield the order of an address for a change: one at a time."""
    with _locks[visit.path("order")]:
        yield required_order(visit)


def drafted_order(visit: Visit, draft: AnyOrder) -> OrderFolder:
    """Keep an order that the person at the page drafted. The same one again, of a second click, is kept once."""
    with _drafting:
        for found in open_order_folders(orders_directory(visit)):
            is_own = found.drafted.by == visit.member.name and not found.drafted.sent_back
            if is_own and found.order is None and found.draft.content == draft.content:
                return found
        at = timestamp(visit.console.now())
        return new_order_folder(orders_directory(visit), draft, by=visit.member.name, at=at)


def order_stage(visit: Visit, journal: JournalReader, found: OrderFolder) -> OrderStage:
    """Return how far an order has come. One that the journal keeps is put away."""
    order = found.order
    if order is not None and is_kept(journal, order):
        found.put_away()
        return OrderStage.DONE
    if found.drafted.sent_back:
        return OrderStage.SENT_BACK
    if order_problem(visit.console.settings, journal, found.document):
        return OrderStage.UNTRUE
    if order is None:
        return OrderStage.TO_SIGN
    if not enough_approve(visit, order):
        return OrderStage.TO_AGREE
    run = started_run(visit.console.directory / RUNS, order.content.batch)
    is_starting = isinstance(order, ReleaseOrder) and run is not None and run.is_alive
    return OrderStage.STARTING if is_starting else OrderStage.AGREED


def open_orders(visit: Visit, batch: str = "") -> Sequence[OpenOrder]:
    """Return the orders that are not carried out yet: of one payout, or all."""
    folders = list(open_order_folders(orders_directory(visit)))
    if not folders:
        return []
    shown = []
    with journal_to_plan_with(visit.console.settings) as journal:
        for found in folders:
            try:
                stage = order_stage(visit, journal, found)
                if stage is not OrderStage.DONE:
                    shown.append(_shown(visit, found, stage))
            except (FileNotFoundError, ApprovalError):
                if found.path.exists():  # else it was carried out or taken back while this looked
                    raise
    return [one for one in shown if not batch or one.batch == batch]


def what_is_asked(order: AnyOrder) -> str:
    """Return the act that an order asks for, in a few words."""
    rows = len(order.numbers)
    if isinstance(order, ReleaseOrder):
        return say_count(rows, "Try {count:,} rejected row again", "Try {count:,} rejected rows again")
    return say_count(rows, "Settle {count:,} row", "Settle {count:,} rows")


def _shown(visit: Visit, found: OrderFolder, stage: OrderStage) -> OpenOrder:
    document, drafted = found.document, found.drafted
    return OpenOrder(
        f"/orders/{found.number}",
        document.content.batch,
        document.content.sheet,
        what_is_asked(document),
        drafted.by,
        drafted.at,
        say(_NEXT[stage]),
        document.numbers,
        _needed(visit, found, document, stage),
    )


def _needed(visit: Visit, found: OrderFolder, document: AnyOrder, stage: OrderStage) -> str:
    """Return the act that an order asks the person at the page for; empty where it asks for none."""
    drafted, what = found.drafted, what_is_asked(document)
    is_own = visit.may(Act.ORDER, drafted.by)
    match stage:
        case OrderStage.TO_AGREE if visit.may(Act.AGREE, drafted.by) and not has_approved(visit, document):
            return say("{by} asks you to agree: {what}.", by=drafted.by, what=what)
        case OrderStage.TO_SIGN if is_own:
            return say("You have not signed it yet: {what}.", what=what)
        case OrderStage.SENT_BACK if is_own:
            return say("Sent back by {who}", who=drafted.sent_back)
        case OrderStage.UNTRUE if is_own:
            return say("A row has changed since you signed. Take it back: {what}.", what=what)
        case OrderStage.AGREED if visit.may(Act.SETTLE):
            return say("Agreed: it can be carried out. {what}.", what=what)
        case _:
            return ""
