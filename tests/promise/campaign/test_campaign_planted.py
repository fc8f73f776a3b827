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


@pytest.mark.parametrize("planted", [None, "plants:reconciliation_with_the_time"])
def test_repeated_reconciliation_differs_only_with_planted_bug(machine: Machine, planted: str | None) -> None:
    sheet = machine.sheet(12)
    assert machine.run("submit", sheet) in ENDS
    made = []
    for name in ("one.csv", "two.csv"):
        assert machine.run("reconcile", sheet, "--out", machine.home / name, planted=planted) in ENDS
        made.append((machine.home / name).read_bytes())
    assert (made[0] == made[1]) == (planted is None)


@pytest.mark.parametrize("planted", [None, "plants:amounts_as_floats"])
def test_amounts_keep_digits_of_sheet(machine: Machine, slow_gateway: GatewayProcess, planted: str | None) -> None:
    sheet = machine.sheet(3)
    sheet.write_text(sheet.read_text().replace("100.25", "1500.50").replace("101.25", "1500"))
    machine.run("submit", sheet, planted=planted)
    arrived = [line.amount for line in orders_of(machine, slow_gateway.record())]
    assert ("1500.5" in arrived) == digits_differ(machine, slow_gateway) == (planted is not None)


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
    [
        pytest.param("end_written_at_the_end", "runs and .* told", marks=pytest.mark.long),
        pytest.param("notices_noted_at_the_end", "sent twice", marks=pytest.mark.long),
    ],
)
def test_notice_recorded_late_is_detected(
    tmp_path: Path, spawner: Spawner, slow_gateway: GatewayProcess, planted: str, found: str
) -> None:
    plant = f"plants:{planted}"
    sender = partial(NoticeSender, planted=plant)
    with pytest.raises(Broken, match=found):
        kill(tmp_path, spawner, slow_gateway, kills=200, seed=1, beside=sender, planted=plant, letter="P")


def digits_differ(machine: Machine, at: GatewayProcess) -> bool:
    shown = {line["sent_orderid"]: line["amount"] for line in machine.reconciliation()}
    orders = orders_of(machine, at.record())
    if not orders:
        raise Broken("nothing arrived")
    return any(shown[line.client_orderid] != line.amount for line in orders)
