"""The people of a finished batch are forgotten by an order, and the program is killed until it has done so."""

import csv
import shutil
import signal
from datetime import UTC, datetime
from random import Random

from paygw_batch.clock import timestamp
from tests.promise.campaign.judge import Broken, judge_orders
from tests.promise.campaign.kills import ENDS, MAX_STARTS, KillTally, Pace, is_let_end
from tests.promise.campaign.machine import GatewayProcess, Machine
from tests.support.approving import policy

KEPT = {"Jane": "Otieno", "Wanjiku": "Odhiambo", "254712345": "254733678"}
"""The replacements of the forgotten people's texts in the other batch."""
FORGOTTEN_TEXTS = tuple(text.encode() for name in KEPT for text in (name, name.lower()))
KEPT_ROWS = 4
BY_A_TIME = "plants:forgotten_up_to_a_time"


def forget_until_done(
    machine: Machine, at: GatewayProcess, rng: Random, pace: Pace, tally: KillTally, *, planted: str | None = None
) -> None:
    """Forget the people of a finished batch next to one that is kept, killing the program meanwhile."""
    _settle(machine, at)
    before = timestamp(datetime.now(UTC))
    kept = _kept_batch(machine)
    arrived = [line.client_orderid for line in judge_orders(machine, at)]
    order = machine.home / "order.json"
    for command in (
        ("order", "forget", "--before", before, "--out", order, "--key", machine.home / "ada.pem"),
        ("approve", order, "--key", machine.home / "cleo.pem"),
    ):
        if (code := machine.run(*command, planted=BY_A_TIME)) != 0:
            raise Broken(f"{command[0]} ended with {code}: {machine.said()}")
    for _ in range(MAX_STARTS):
        run = machine.start("carry-out", order, "--by", "Amina", planted=planted)
        if not is_let_end(run, lambda: _log_size(machine), rng, pace):
            run.send(signal.SIGKILL)
        if (code := run.done()) != -signal.SIGKILL:
            break
        tally.kills += 1
    if code != 0:
        raise Broken(f"people are not forgotten: {code}, {machine.said()}")
    if left := sorted({text.decode() for text in FORGOTTEN_TEXTS if _is_in_files(machine, text)}):
        raise Broken(f"still in the journal's files: {left}")
    _judge_after(machine, at, kept, arrived)
    tally.forgotten += 1


def _settle(machine: Machine, at: GatewayProcess) -> None:
    """Settle every row in doubt, so that the batch is over. From then on two people decide."""
    config = machine.home / "paygw.toml"
    config.write_text(config.read_text().replace("[submission]\n", "[submission]\nquarantine_h = 0\n"))
    questions = machine.home / "questions.csv"
    if machine.run("status", "payroll.csv", "--in-doubt", "--out", questions) not in ENDS:
        raise Broken(f"no questions: {machine.said()}")
    with questions.open(newline="") as stream:
        lines = list(csv.DictReader(stream))
    if lines:
        _answer(machine, at, lines)
    old_enough = "\n[sheet]\nrepeat_days = 0\nlook_alike_days = 0\n"
    config.write_text(config.read_text() + old_enough + policy(machine.home).replace("1000", "1000000000"))


def _answer(machine: Machine, at: GatewayProcess, lines: list[dict[str, str]]) -> None:
    """Settle rows in doubt according to the gateway's record."""
    paid = {line.client_orderid for line in at.of(machine.operation).record(machine.since) if line.committed == "yes"}
    with (machine.home / "answers.csv").open("w", newline="") as stream:
        answers = csv.DictWriter(stream, lines[0])
        answers.writeheader()
        for line in lines:
            answers.writerow(line | {"answer": "paid" if line["order_id"] in paid else "rejected"})
    if machine.run("resolve", "statement", "payroll.csv", "answers.csv", "--yes") not in ENDS:
        raise Broken(f"not settled: {machine.said()}")


def _kept_batch(machine: Machine) -> bytes:
    """Send a batch of other people, who are not forgotten. Return its reconciliation."""
    sheet = machine.sheet(KEPT_ROWS, name="kept.csv", first=1000)
    text = sheet.read_text()
    for old, new in KEPT.items():
        text = text.replace(old, new).replace(old.lower(), new.lower())
    sheet.write_text(text)
    if machine.run(machine.command, sheet) not in ENDS:
        raise Broken(f"the batch that is kept was not sent: {machine.said()}")
    return (machine.home / "kept.reconciliation.csv").read_bytes()


def _log_size(machine: Machine) -> int:
    """Return the size of the journal's log, which grows while people are forgotten and is emptied after."""
    return sum(path.stat().st_size for path in machine.home.glob("journal.sqlite3-wal"))


def _is_in_files(machine: Machine, text: bytes) -> bool:
    return any(text in path.read_bytes() for path in machine.state_files())


def _judge_after(machine: Machine, at: GatewayProcess, kept: bytes, arrived: list[str]) -> None:
    """Check that the journal is sound, the other batch unchanged, and that the same rows again pay nobody twice."""
    if machine.run("verify") != 0:
        raise Broken(f"the journal is not sound: {machine.said()}")
    again = machine.home / "kept-again.csv"
    if machine.run("reconcile", "kept.csv", "--out", again) not in ENDS or again.read_bytes() != kept:
        raise Broken(f"the reconciliation of the other batch is another: {machine.said()}")
    shutil.copy(machine.home / "payroll.csv", machine.home / "same.csv")
    if (code := machine.run(machine.command, "same.csv")) != 2:
        raise Broken(f"the same sheet ended with {code}")
    more = machine.home / "more.csv"
    heading, *rows = (machine.home / "payroll.csv").read_text().splitlines()
    *_, new = (machine.home / "kept.csv").read_text().replace(f"{machine.prefix}-1", f"{machine.prefix}-2").splitlines()
    more.write_text("\n".join([heading, *rows, new.replace("110", "310")]) + "\n")
    if (code := machine.run(machine.command, more, "--repeats-meant")) not in {*ENDS, 3}:
        raise Broken(f"the same rows with another one ended with {code}: {machine.said()}")
    orders = [line.client_orderid for line in judge_orders(machine, at)]
    if orders[: len(arrived)] != arrived or set(orders[len(arrived) :]) - {new.split(",")[1]}:
        raise Broken(f"paid again: {orders[len(arrived) :]}")
