"""Judges a machine by the gateway's record, after its batch or at any interruption of a run."""

import sqlite3
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from decimal import Decimal

from paygw_batch.sandbox.compare import compare, read_reconciliation
from paygw_batch.sandbox.record import RecordLine
from tests.promise.campaign.machine import GatewayProcess, Machine
from tests.support.patience import wait_until


class Broken(AssertionError):
    """The promise was broken."""


def orders_of(machine: Machine, record: Iterable[RecordLine]) -> list[RecordLine]:
    return [line for line in record if line.client_orderid.startswith(f"{machine.prefix}-")]


def order_ids_with_intent(machine: Machine) -> set[str]:
    """Return the order ids with an intent in the journal, read by another library than the program's."""
    with closing(sqlite3.connect(f"file:{machine.journal}?mode=ro", uri=True)) as connection:
        return {order_id for (order_id,) in connection.execute("SELECT order_id FROM fact WHERE kind = 'intended'")}


def judge_orders(machine: Machine, at: GatewayProcess) -> list[RecordLine]:
    """Check that no row arrived twice, and none without an intent in the journal."""
    orders = orders_of(machine, at.of(machine.operation).record(machine.since))
    twice = [order_id for order_id, count in Counter(line.client_orderid for line in orders).items() if count > 1]
    if twice:
        raise Broken(f"sent twice: {twice}")
    if orders and (unintended := {line.client_orderid for line in orders} - order_ids_with_intent(machine)):
        raise Broken(f"sent without an intent: {sorted(unintended)}")
    return orders


def judge_end(machine: Machine, at: GatewayProcess, rows: int, *, name: str = "payroll.reconciliation.csv") -> None:
    """Check the end of a batch: every row is there once, and agrees with the gateway."""
    orders = judge_orders(machine, at)
    lines = machine.reconciliation(name)
    if [int(line["row"]) for line in lines] != list(range(2, rows + 2)):
        raise Broken(f"the reconciliation does not hold every row once: {[line['row'] for line in lines]}")
    if differences := compare(orders, read_reconciliation(machine.home / name)):
        raise Broken("; ".join(differences))
    shown = {line["sent_orderid"] for line in lines if line["sent_orderid"]}
    if lost := {line.client_orderid for line in orders} - shown:
        raise Broken(f"arrived, but unknown here: {sorted(lost)}")
    moved = sum(Decimal(line.amount) for line in orders if line.committed == "yes")
    if moved > sum(Decimal(line["amount"]) for line in lines):
        raise Broken("more money moved than the sheet asks for")


def judge_code(machine: Machine, code: int) -> None:
    states = {line["state"] for line in machine.reconciliation()}
    if code != (5 if "in_doubt" in states else 4 if "rejected" in states else 0):
        raise Broken(f"rows are {sorted(states)}, and the run ended with {code}")


def wait_for_orders(machine: Machine, at: GatewayProcess, count: int) -> None:
    wait_until(lambda: len(judge_orders(machine, at)) >= count, machine.said, look_every_s=0.005)
