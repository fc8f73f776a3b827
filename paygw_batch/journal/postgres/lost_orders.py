"""Keeps the orders that left in commits lost by the database, and holds every row with one of them."""

from collections.abc import Iterable

from paygw_batch.core.batch import first_order_id
from paygw_batch.core.evidence import Claim, Evidence, EvidenceSource, Finding, Ruling
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.core.text import spelled_alike
from paygw_batch.journal.evidence_log import EvidenceLog
from paygw_batch.journal.facts.evidence_chain import lost_orders_evidence, lost_orders_of
from paygw_batch.journal.tables import Tables
from paygw_batch.journal.values import canonical

_ORDERS_AT_ONCE = 1_000


def keep_lost_orders(tables: Tables, orders: Iterable[str], *, by: str, at: str) -> None:
    """Keep orders whose batch the database does not have, inside the open transaction: rows that go by one are held.

    Those that are kept already are left out: the command can be run again.
    """
    new = sorted(set(orders) - _lost_orders(tables))
    pages = (new[start : start + _ORDERS_AT_ONCE] for start in range(0, len(new), _ORDERS_AT_ONCE))
    EvidenceLog(tables).add_all((lost_orders_evidence(page, by) for page in pages), at)
    hold_lost_orders(tables, 0)


def hold_lost_orders(tables: Tables, first: int) -> None:
    """Hold the instructions from `first` on whose order left by a lost commit: a person finds out at the gateway."""
    spellings = set()
    for order in _lost_orders(tables):
        spellings |= {spelled_alike(order), spelled_alike(first_order_id(order) or order)}
    if spellings:
        held = tables.run("spelled_as_lost", spellings=sorted(spellings), first=first)
        EvidenceLog(tables).add_all(_holding(held), "")


def _holding(held: Iterable[tuple[int, str]]) -> Iterable[tuple[Evidence, Ruling]]:
    for instruction, order_id in held:
        evidence = Evidence(EvidenceSource.WITNESS, Claim(None), canonical({"order_id": order_id}))
        yield evidence, Ruling(Finding.AMBIGUOUS, instruction, None, OutcomeKind.ACCEPTED)


def _lost_orders(tables: Tables) -> set[str]:
    return {order for (content,) in tables.run("lost_orders") for order in lost_orders_of(content)}
