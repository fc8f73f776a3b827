"""The program as processes: killed, signalled, paused, started twice. The gateway's record judges."""

import shutil
import signal
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from random import Random

import pytest

from tests.promise.campaign.companions import kill_with_console, kill_with_listener, kill_with_notices
from tests.promise.campaign.judge import Broken, judge_end, judge_orders, wait_for_orders
from tests.promise.campaign.kills import ENDS, FAST, SLOW, KillTally, Pace, forget_until_done, kill, kill_until_done
from tests.promise.campaign.machine import GatewayProcess, Machine, Spawner, gateway, run_under_strace, why_not
from tests.support.long_part import long, share

ROWS = 30


@pytest.mark.parametrize(
    ("behaviour", "seed", "kills"),
    [(SLOW, 1, 5), long(SLOW, 1, 50), long(SLOW, 2, 50), long(FAST, 3, 10), long(FAST, 3, 50), long(FAST, 4, 50)],
)
def test_kills_repeat_and_lose_nothing(tmp_path: Path, spawner: Spawner, behaviour: str, seed: int, kills: int) -> None:
    with gateway(tmp_path / "gateway", behaviour) as at:
        tally = kill(tmp_path, spawner, at, kills=kills, seed=seed)
    assert tally["kills"] >= kills
    assert tally["kills_while_sending"] > 0


@pytest.mark.parametrize(
    ("kill_beside", "gateway_name", "kills"),
    [
        *((kill_with_listener, "notifying_gateway", 2), long(kill_with_listener, "notifying_gateway", 20)),
        *((kill_with_console, "slow_gateway", 2), long(kill_with_console, "slow_gateway", 12)),
        *((kill_with_notices, "slow_gateway", 2), long(kill_with_notices, "slow_gateway", 40)),
    ],
)
def test_kills_with_companion_neither_repeat_nor_lose_rows(
    tmp_path: Path,
    spawner: Spawner,
    request: pytest.FixtureRequest,
    kill_beside: Callable[..., KillTally],
    gateway_name: str,
    kills: int,
) -> None:
    assert kill_beside(tmp_path, spawner, request.getfixturevalue(gateway_name), kills=kills, seed=1)["kills"] >= kills


@pytest.mark.parametrize("seed", [4, long(1), long(2)])
def test_kill_during_forget_order_forgets_people(machine: Machine, slow_gateway: GatewayProcess, seed: int) -> None:
    rng, tally = Random(seed), KillTally()  # noqa: S311 (dice)
    kill_until_done(machine, slow_gateway, rng, Pace(), tally)
    forget_until_done(machine, slow_gateway, rng, Pace(), tally)
    assert tally["forgotten"] == 1


@pytest.mark.parametrize("number", share([signal.SIGTERM, signal.SIGINT], every=2))
def test_first_signal_awaits_sent_rows(machine: Machine, slow_gateway: GatewayProcess, number: signal.Signals) -> None:
    run = machine.start("submit", machine.sheet(300))
    wait_for_orders(machine, slow_gateway, 3)
    run.send(number)
    code = run.done()
    orders = judge_orders(machine, slow_gateway)
    states = [line["state"] for line in machine.reconciliation()]
    assert len(orders) < 300
    assert states.count("in_doubt") == sum(line.answer == "drop_after" for line in orders)
    assert code == (5 if "in_doubt" in states else 130)
    judge_end(machine, slow_gateway, 300)


@pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")
@pytest.mark.parametrize("name", share(["TERM", "INT"], every=2))
@pytest.mark.parametrize("commit", share([6, 4, 8], every=3))
def test_signal_in_commit_ends_cleanly(machine: Machine, slow_gateway: GatewayProcess, name: str, commit: int) -> None:
    """It arrives while an intent or an outcome is flushed to the disk, after the batch was opened."""
    sheet = machine.sheet(ROWS)
    first = machine.start("submit", sheet)
    wait_for_orders(machine, slow_gateway, 1)
    first.send(signal.SIGKILL)
    first.done()
    log = machine.home / "strace.txt"
    inject = ["-e", "trace=fdatasync", "-e", f"inject=fdatasync:signal={name}:when={commit}"]
    code = run_under_strace(machine, log, inject, "resume")
    assert f"SIG{name} {{" in log.read_text()
    states = [line["state"] for line in machine.reconciliation()]
    assert "in_doubt" in states, "the kill left some"
    assert code == 5
    assert "ready" in states
    assert machine.run("submit", sheet) in ENDS
    judge_end(machine, slow_gateway, ROWS)


def test_second_signal_ends_run_immediately_without_loss(machine: Machine, slow_gateway: GatewayProcess) -> None:
    sheet = machine.sheet(ROWS)
    run = machine.start("submit", sheet)
    wait_for_orders(machine, slow_gateway, 1)
    run.send(signal.SIGTERM)
    run.send(signal.SIGINT)
    assert run.done() in {130, 5}
    assert machine.run("submit", sheet) in {4, 5}
    judge_end(machine, slow_gateway, ROWS)


def test_paused_run_blocks_second_run_and_continues(machine: Machine, slow_gateway: GatewayProcess) -> None:
    sheet = machine.sheet(ROWS)
    run = machine.start("submit", sheet)
    wait_for_orders(machine, slow_gateway, 1)
    run.send(signal.SIGSTOP)
    run.until_stopped()
    assert machine.run("submit", sheet) == 7
    assert machine.run("resume") == 7
    assert "nother run is using this journal" in machine.said()
    run.send(signal.SIGCONT)
    assert run.done() in {4, 5, 6}
    machine.run("submit", sheet)
    judge_end(machine, slow_gateway, ROWS)


def test_suspended_process_ends_with_spawner(tmp_path: Path, slow_gateway: GatewayProcess) -> None:
    with Spawner() as own:
        machine = Machine.create(tmp_path / "home", own, slow_gateway)
        run = machine.start("submit", machine.sheet(2), stopped=True)
        run.until_stopped()
    assert not Path(f"/proc/{run.pid}").exists()


@pytest.mark.parametrize("starts", [long(2), 4])
def test_simultaneous_starts_send_rows_once(machine: Machine, slow_gateway: GatewayProcess, starts: int) -> None:
    sheet = machine.sheet(8)
    runs = [machine.start("submit", sheet) for _ in range(starts)]
    codes = [run.done() for run in runs]
    assert set(codes) <= {4, 5, 7}
    assert set(codes) & {4, 5}
    judge_end(machine, slow_gateway, 8)
    assert len(judge_orders(machine, slow_gateway)) == 8


# People's mistakes with accounts, copies and sheets pay no row twice.
PAID_ROWS = 3


def another_account(machine: Machine) -> None:
    """Cron runs the sheet under another account, with another state directory and journal."""
    path = machine.home / "cron" / "journal.sqlite3"
    machine.run("--journal", path, "submit", "payroll.csv", environ=_fresh(machine))


def an_older_copy(machine: Machine, *, is_new: bool) -> None:
    """Friday's copy replaces the journal, on the machine that knows the newer one or on a new machine."""
    machine.run("submit", machine.sheet(PAID_ROWS, name="second.csv", first=PAID_ROWS))
    for path in machine.home.glob("journal.sqlite3*"):
        path.unlink()
    if is_new:
        shutil.rmtree(machine.home / "known.journal.sqlite3", ignore_errors=True)
    (machine.home / "friday.sqlite3").rename(machine.journal)
    machine.run("submit", "second.csv", environ=_fresh(machine) if is_new else {})


def the_same_sheet(machine: Machine) -> None:
    """The same sheet is submitted again, and under another name."""
    machine.run("submit", "payroll.csv")
    shutil.copy(machine.home / "payroll.csv", machine.home / "payroll (1).csv")
    machine.run("submit", "payroll (1).csv")


def other_ids(machine: Machine, change: Callable[[str], str]) -> None:
    """The sheet is submitted again with ids in lower case, or last month's comes under this month's ids."""
    text = (machine.home / "payroll.csv").read_text()
    (machine.home / "again.csv").write_text(text.replace(f"{machine.prefix}-", f"{change(machine.prefix)}-"))
    machine.run("submit", "again.csv")


def _fresh(machine: Machine) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(machine.home / "other-state"), "HOME": str(machine.home / "other-home")}


def play_people_story(machine: Machine, at: GatewayProcess, story: Callable[[Machine], None]) -> None:
    """Pay a sheet, make a backup, let people act, and check that the gateway paid nobody twice."""
    machine.run("submit", machine.sheet(PAID_ROWS))
    if code := machine.run("backup", machine.home / "friday.sqlite3"):
        raise AssertionError(f"exit code {code}: {machine.said()}")
    story(machine)
    committed = [line for line in at.record(machine.since) if line.committed == "yes"]
    prefix = f"{machine.prefix}-".casefold()
    ours = [line for line in committed if line.client_orderid.casefold().startswith(prefix)]
    if len({line.amount for line in ours}) < PAID_ROWS - 1:  # each row has a different amount
        raise AssertionError(f"the sheet was not paid: {machine.said()}")
    if twice := [amount for amount, count in Counter(line.amount for line in ours).items() if count > 1]:
        raise Broken(f"paid twice: the rows of {twice}")


PEOPLE: Mapping[str, Callable[[Machine], None]] = {
    "the same sheet": the_same_sheet,
    "an older copy on the same machine": partial(an_older_copy, is_new=False),
    "another account": another_account,
    "Friday's backup on a new machine": partial(an_older_copy, is_new=True),
    "corrected spelling": partial(other_ids, change=str.lower),
    "last month's sheet under new ids": partial(other_ids, change="{}-DEC".format),
}


@pytest.mark.parametrize("name", share(PEOPLE, every=2))
def test_human_mistakes_never_cause_double_payment(machine: Machine, slow_gateway: GatewayProcess, name: str) -> None:
    play_people_story(machine, slow_gateway, PEOPLE[name])
