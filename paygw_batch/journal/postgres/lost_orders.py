"""Keeps the orders that left in commits lost by the database, and holds every row with one of them."""

import json
from collections.abc import Iterable

from paygw_batch.core.batch import first_order_id
from paygw_batch.core.evidence import EvidenceSource, Finding, Heard
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.core.text import spelled_alike
from paygw_batch.journal.evidence_log import Record
from paygw_batch.journal.tables import Tables
from paygw_batch.journal.values import Remark, canonical

_ORDERS_AT_ONCE = 1_000


def keep_lost_orders(tables: Tables, record: Record, orders: Iterable[str], *, by: str, at: str) -> None:
    """Keep orders whose batch the database does not have, inside the open transaction: rows that go by one are held.

    Those that are kept already are left out: the command can be run again.
    """
    new = sorted(set(orders) - _lost_orders(tables))
    pages = [new[start : start + _ORDERS_AT_ONCE] for start in range(0, len(new), _ORDERS_AT_ONCE)]
    if pages:
        record([Remark(_heard(Finding.UNKNOWN_ORDER, {"by": by, "orders": page}), at) for page in pages])
    hold_lost_orders(tables, record, 0)


def hold_lost_orders(tables: Tables, record: Record, first: int) -> None:
    """Hold the instructions from `first` on whose order left by a lost commit: a person finds out at the gateway."""
    spellings = set()
    for order in _lost_orders(tables):
        spellings |= {spelled_alike(order), spelled_alike(first_order_id(order) or order)}
    held = tables.run("spelled_as_lost", spellings=sorted(spellings), first=first) if spellings else []
    if held:
        found = ((number, _heard(Finding.AMBIGUOUS, {"order_id": order_id})) for number, order_id in held)
        record([Remark(heard, "", instruction) for instruction, heard in found])


def _heard(finding: Finding, content: object) -> Heard:
    means = OutcomeKind.ACCEPTED if finding is Finding.AMBIGUOUS else None
    return Heard(EvidenceSource.WITNESS, finding, means, canonical(content))


def _lost_orders(tables: Tables) -> set[str]:
    return {str(order) for (content,) in tables.run("lost_orders") for order in json.loads(content)["orders"]}
