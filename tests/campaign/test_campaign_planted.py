"""Planted bugs that only the whole program shows: each is switched on in one start, and found by what it did."""

import pytest

from tests.campaign.judge import Broken, judge_end, orders_of
from tests.campaign.kills import ENDS
from tests.campaign.machine import GatewayProcess, Machine
from tests.campaign.ordinals import KILL, PART
from tests.campaign.test_campaign_disk import can_trace
from tests.campaign.tracing import traced


@can_trace
def test_a_reconciliation_written_in_place_is_found(machine: Machine, slow_gateway: GatewayProcess) -> None:
    """A kill while the file is written again leaves the older one whole, or (planted) half of the new one."""
    sheet = machine.sheet(4)
    assert machine.run("submit", sheet) in ENDS
    judge_end(machine, slow_gateway, 4)
    out = machine.home / "payroll.reconciliation.csv"
    whole = out.read_bytes()
    command = ("reconcile", sheet, "--out", out)

    only = [option for path in (out, machine.home / PART) for option in ("-P", str(path))]

    def torn(planted: str) -> bool:
        """Whether a kill at some write to the file, or to what becomes it, leaves anything but the whole file."""
        for ordinal in range(1, 4):
            inject = [*only, "-e", "trace=write", "-e", f"inject=write:{KILL}:when={ordinal}"]
            traced(machine, machine.home.with_name("strace.txt"), inject, *command, planted=planted)
            if not out.exists() or out.read_bytes() != whole:
                out.write_bytes(whole)
                return True
        return False

    assert not torn("plants:parts_by_a_known_name")
    assert torn("plants:reconciliation_in_place")


@pytest.mark.parametrize("planted", [None, "plants:reconciliation_with_the_time"])
def test_a_reconciliation_made_again_is_the_same_to_the_byte_or_the_planted_bug_shows(
    machine: Machine, planted: str | None
) -> None:
    sheet = machine.sheet(12)
    assert machine.run("submit", sheet) in ENDS
    made = []
    for name in ("one.csv", "two.csv"):
        assert machine.run("reconcile", sheet, "--out", machine.home / name, planted=planted) in ENDS
        made.append((machine.home / name).read_bytes())
    assert (made[0] == made[1]) == (planted is None)


def test_amounts_as_floats_are_found(machine: Machine, slow_gateway: GatewayProcess) -> None:
    """The digits of the sheet are the digits that arrive."""
    sheet = machine.sheet(3)
    sheet.write_text(sheet.read_text().replace("100.25", "1500.50"))
    machine.run("submit", sheet, planted="plants:amounts_as_floats")
    arrived = [line.amount for line in orders_of(machine, slow_gateway.record())]
    assert "1500.5" in arrived
    assert digits_differ(machine, slow_gateway)


def test_the_digits_of_the_sheet_arrive(machine: Machine, slow_gateway: GatewayProcess) -> None:
    sheet = machine.sheet(3)
    sheet.write_text(sheet.read_text().replace("100.25", "1500.50").replace("101.25", "1500"))
    machine.run("submit", sheet)
    assert not digits_differ(machine, slow_gateway)


def digits_differ(machine: Machine, at: GatewayProcess) -> bool:
    """Whether the gateway heard other digits than the reconciliation shows."""
    shown = {line["sent_orderid"]: line["amount"] for line in machine.reconciliation()}
    orders = orders_of(machine, at.record())
    if not orders:
        raise Broken("nothing arrived")
    return any(shown[line.client_orderid] != line.amount for line in orders)
