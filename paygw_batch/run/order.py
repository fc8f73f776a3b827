"""What every kind of order shares: its place, who agreed to it, and whether it is still true.

An order says how everything that it changes is now. Before it is carried out, its content is made again and compared.
Carrying it out changes what it says, so it works once.
"""

from abc import abstractmethod
from collections.abc import Sequence
from datetime import datetime
from typing import Any, ClassVar

from paygw_batch.core.evidence import SignedOrder
from paygw_batch.core.recorded_words import kept
from paygw_batch.errors import ApprovalError
from paygw_batch.journal import JournalReader
from paygw_batch.language import mark, say
from paygw_batch.run.signed_document import (
    ApprovalPolicy,
    SignedDocument,
    require_journal,
    require_not_withdrawn,
    require_signatures,
)


class Order(SignedDocument):
    """A document by which two people agree on something other than a payout."""

    placeholder: ClassVar[str] = "ORDER"
    make_another: ClassVar[str] = mark("Make a new order with `paygw-batch order`, and have it approved.")

    @property
    def batch(self) -> str:
        """The batch under which the journal keeps the order; empty if it is about several."""
        return ""

    @property
    @abstractmethod
    def rows(self) -> int:
        """The number of rows that it changes."""

    @abstractmethod
    def changes(self, actual: Any) -> Sequence[str]:
        """Return what differs from `actual`, the content that the order would have now."""


def require_place(order: Order, journal: JournalReader, endpoint: str) -> None:
    """Raise `ApprovalError` for an order of another endpoint or another journal."""
    if order.content.endpoint != endpoint:
        raise ApprovalError(
            say(
                "The {noun} is for {endpoint}, but this is {actual}.",
                noun=say(order.noun),
                endpoint=order.content.endpoint,
                actual=endpoint,
            ),
            hint=say(order.nothing_done),
        )
    require_journal(order, journal.head().journal_id, say(order.nothing_done))


def agreed(
    order: Order, journal: JournalReader, policy: ApprovalPolicy, now: datetime, *, by: str
) -> tuple[str, SignedOrder]:
    """Return who decided, as the journal records it, and the order that it keeps. `by` is who carries it out.

    Raises `ApprovalError` if it was withdrawn, or too few people approve it.
    """
    require_not_withdrawn(order, journal.withdrawals())
    found = require_signatures(order, policy, now)
    approvers, digest = ", ".join(person.name for person in found.valid), order.digest()
    counted = order.model_copy(update={"approvals": list(found.valid.values())})
    decided = kept("agreed", by, digest, found.maker.name, approvers)
    return decided, SignedOrder(order.batch, counted.model_dump_json(), sha256=digest)


def require_true(order: Order, actual: Any) -> None:
    """Raise `ApprovalError` unless the content that an order would have now is the content that it has."""
    if actual != order.content:
        changes = "; ".join(order.changes(actual))
        raise ApprovalError(
            say("The {noun} is no longer valid: {changes}.", noun=say(order.noun), changes=changes),
            hint=f"{say(order.nothing_done)} {say(order.make_another)}",
        )
