"""Planted bugs that only the whole program shows: each is switched on in one start, and found by its effects."""

from functools import partial
from pathlib import Path
from random import Random

import pytest

from tests.promise.campaign.companions import NoticeSender
from tests.promise.campaign.judge import Broken, judge_end, orders_of
from tests.promise.campaign.kills import ENDS, KillTally, Pace, forget_until_done, kill
from tests.promise.campaign.machine import GatewayProcess, Machine, Spawner, can_trace, run_under_strace
from tests.promise.campaign.ordinals import KILL, PART
from tests.support.long_part import long


@can_trace
def test_reconciliation_written_in_place_is_detected(machine: Machine, slow_gateway: GatewayProcess) -> None:
    """A kill during rewriting leaves the older file whole, or (planted) half of the new one."""
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
            run_under_strace(machine, machine.home.with_name("strace.txt"), inject, *command, planted=planted)
            if not out.exists() or out.read_bytes() != whole:
                out.write_bytes(whole)
                return True
        return False

    assert not torn("plants:parts_by_a_known_name")
    assert torn("plants:reconciliation_in_place")


def test_repeated_reconciliation_is_identical(machine: Machine) -> None:
    sheet = machine.sheet(12)
    assert machine.run("submit", sheet) in ENDS
    made = []
    for name in ("one.csv", "two.csv"):
        assert machine.run("reconcile", sheet, "--out", machine.home / name) in ENDS
        made.append((machine.home / name).read_bytes())
    assert made[0] == made[1]


def test_amounts_keep_digits_in_sheet(machine: Machine, slow_gateway: GatewayProcess) -> None:
    sheet = machine.sheet(3)
    sheet.write_text(sheet.read_text().replace("100.25", "1500.50").replace("101.25", "1500"))
    machine.run("submit", sheet)
    arrived = {line.client_orderid: line.amount for line in orders_of(machine, slow_gateway.record())}
    assert sorted(arrived.values()) == ["102.25", "1500", "1500.50"]
    assert arrived == {line["sent_orderid"]: line["amount"] for line in machine.reconciliation()}


@pytest.mark.long
def test_forget_order_marked_done_is_detected(tmp_path: Path, spawner: Spawner, slow_gateway: GatewayProcess) -> None:
    """A kill between commit and new file leaves names in pages, unless the order is repeated."""

    def forget_many() -> None:
        for seed in range(40):
            rng = Random(seed)  # noqa: S311 (dice)
            machine = Machine.create(tmp_path / str(seed), spawner, slow_gateway, prefix=f"G{seed}")
            assert machine.run("submit", machine.sheet(40)) in ENDS
            planted = "plants:order_carried_out_does_nothing"
            forget_until_done(machine, slow_gateway, rng, Pace(), KillTally(), planted=planted)

    with pytest.raises(Broken, match="still in the journal's files"):
        forget_many()


@pytest.mark.parametrize(
    ("planted", "found"),
    [long("end_written_at_the_end", "runs and .* told"), long("notices_noted_at_the_end", "sent twice")],
)
def test_notice_recorded_late_is_detected(
    tmp_path: Path, spawner: Spawner, slow_gateway: GatewayProcess, planted: str, found: str
) -> None:
    plant = f"plants:{planted}"
    sender = partial(NoticeSender, planted=plant)
    with pytest.raises(Broken, match=found):
        kill(tmp_path, spawner, slow_gateway, kills=200, seed=1, beside=sender, planted=plant, letter="P")
