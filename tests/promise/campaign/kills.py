"""Random kills: SIGKILL at any instant, repeatedly, until the batch is done; then the judge."""

import csv
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from threading import Event
from typing import TYPE_CHECKING

from paygw_batch.clock import timestamp
from tests.promise.campaign.judge import Broken, judge_code, judge_end, judge_orders, order_ids_with_intent
from tests.promise.campaign.machine import GatewayProcess, Machine, Run, Spawner
from tests.support.approving import policy

if TYPE_CHECKING:
    from tests.promise.campaign.companions import Companion

FAST = '[default]\nstatus = "approved"\n'
SLOW = """
[default]
status = "approved"
delay_s = 0.03

[[rule]]
order_id = ".*7"
fault = "drop_after"

[[rule]]
order_id = ".*3"
status = "declined"
commits = false
"""
ENDS = {0, 4, 5}
SIGNED_IN_THREADS = "plants:key_known_to_be_sound"
MAX_STARTS = 200


KillTally = Counter[str]
"""The totals of a series of kills. `collected` batches were collections, and `forgotten` ones had people forgotten."""


@dataclass
class Pace:
    """The duration of a run here, in all and from its first order, learned from runs that end by themselves."""

    run_s: float = 0.3
    sending_s: float = 0.1

    def observe(self, run_s: float, sending_s: float) -> None:
        self.run_s += 0.2 * (run_s - self.run_s)
        self.sending_s += 0.2 * (sending_s - self.sending_s)


def _intents(machine: Machine) -> int:
    return len(order_ids_with_intent(machine)) if machine.journal.exists() else 0


def kill_until_done(
    machine: Machine, at: GatewayProcess, rng: Random, pace: Pace, tally: KillTally, planted: str = SIGNED_IN_THREADS
) -> None:
    """Submit a sheet and kill the program at random instants until it ends by itself, judging after each kill."""
    rows = rng.randrange(2, 50)
    sheet = machine.sheet(rows)
    before = 0
    for _ in range(MAX_STARTS):
        command = ("resume",) if before and rng.random() < 0.8 else (machine.command, sheet)
        intended = _intents(machine)
        run = machine.start(*command, planted=planted)
        if not is_let_end(run, at.of(machine.operation).record_bytes, rng, pace):
            run.send(signal.SIGKILL)
        code, arrived = run.done(), len(judge_orders(machine, at))
        # A killed run's requests may arrive, and its commits may be found, during the next run.
        tally["runs_that_sent"] += arrived > before and _intents(machine) > intended
        if code == -signal.SIGKILL:
            tally["kills"] += 1
            tally["kills_while_sending"] += 0 < arrived < rows
            before = arrived
        elif code in ENDS:
            break
        else:
            raise Broken(f"exit code {code}: {machine.said()}")
    else:
        raise Broken("the batch is never done")
    judge_end(machine, at, rows)
    judge_code(machine, code)
    if machine.run("verify") not in {0, 5}:
        raise Broken(f"the journal is not sound: {machine.said()}")
    tally["batches"] += 1
    tally["collected"] += machine.operation == "payin"
    tally["orders"] += len(judge_orders(machine, at))


def is_let_end(run: Run, moved: Callable[[], int], rng: Random, pace: Pace) -> bool:
    """Wait for an instant of a run: any, one soon after something `moved`, or sometimes its end."""
    began_s, choice = time.monotonic(), rng.random()
    if choice < 0.2:
        return run.wait(rng.uniform(0.02, pace.run_s * 1.1)) is not None
    before = moved()
    while moved() == before:
        if run.wait(0.001) is not None:
            return True
    if choice > 0.95:
        moved_s = time.monotonic()
        run.done()
        pace.observe(time.monotonic() - began_s, time.monotonic() - moved_s)
    return run.wait(rng.uniform(0.0, rng.choice((0.003, 0.02, pace.sending_s)))) is not None


def kill(
    directory: Path,
    spawner: Spawner,
    at: GatewayProcess,
    *,
    kills: int,
    seed: int | str,
    stop: Event | None = None,
    then: Callable[[Machine, GatewayProcess, Random, Pace, KillTally], None] | None = None,
    beside: "Callable[[Machine, GatewayProcess, Random], Companion] | None" = None,
    planted: str | None = None,
    letter: str = "K",
) -> KillTally:
    """Kill until there were `kills` kills, or until `stop`. A companion runs beside, and is killed as well.

    Without one, every third batch collects instead of paying, every fifth is signed in processes, as large ones are,
    and with every fifth `then` is called after the batch. The order ids begin with `letter`.
    """
    tally, pace, pace_then = KillTally(), Pace(), Pace()
    life = 0
    while tally["kills"] < kills and not (stop is not None and stop.is_set()):
        rng = Random(f"{seed}/{life}")  # noqa: S311 (dice)
        name, concurrency = f"{letter}{seed}x{life}".replace("/", "x"), rng.choice((1, 3, 16))
        operation = "payin" if life % 3 == 2 and beside is None else "payout"
        machine = Machine.create(
            directory / name, spawner, at, prefix=name, concurrency=concurrency, operation=operation
        )
        signing = "plants:signed_in_processes" if life % 5 == 4 and beside is None else SIGNED_IN_THREADS
        try:
            with nullcontext() if beside is None else beside(machine, at, Random(f"beside {seed}/{life}")) as other:  # noqa: S311
                sent_before = tally["runs_that_sent"]
                kill_until_done(machine, at, rng, pace, tally, planted or signing)
                if other is not None:
                    other.rest()
                    rows = len((machine.home / "payroll.csv").read_text().splitlines()) - 1
                    other.judge(rows, tally["runs_that_sent"] - sent_before)
                    tally["kills"] += other.kills
            if then is not None and life % 5 == 2:
                then(machine, at, rng, pace_then, tally)
        except AssertionError as broken:
            raise Broken(f"seed {seed}, life {life} in {machine.home}: {broken}") from None
        shutil.rmtree(machine.home)
        life += 1
    return tally


KEPT = {"Jane": "Otieno", "Wanjiku": "Odhiambo", "254712345": "254733678"}
"""The replacements of the forgotten people's texts in the other batch."""


def forget_until_done(
    machine: Machine, at: GatewayProcess, rng: Random, pace: Pace, tally: KillTally, *, planted: str | None = None
) -> None:
    """Forget the people of a finished batch next to one that is kept, killing the program meanwhile."""
    _settle(machine, at)
    before = timestamp(datetime.now(UTC))
    kept = _kept_batch(machine)
    arrived = [line.client_orderid for line in judge_orders(machine, at)]
    order = machine.home / "order.json"
    ordered = ("order", "forget", "--before", before, "--out", order, "--key", machine.home / "ada.pem")
    for command in (ordered, ("approve", order, "--key", machine.home / "cleo.pem")):
        if (code := machine.run(*command, planted="plants:forgotten_up_to_a_time")) != 0:
            raise Broken(f"{command[0]} ended with {code}: {machine.said()}")

    def log_size() -> int:
        """Return the size of the journal's log, which grows while people are forgotten and is emptied after."""
        return sum(path.stat().st_size for path in machine.home.glob("journal.sqlite3-wal"))

    for _ in range(MAX_STARTS):
        run = machine.start("carry-out", order, "--by", "Amina", planted=planted)
        if not is_let_end(run, log_size, rng, pace):
            run.send(signal.SIGKILL)
        if (code := run.done()) != -signal.SIGKILL:
            break
        tally["kills"] += 1
    if code != 0:
        raise Broken(f"people are not forgotten: {code}, {machine.said()}")
    files = [path.read_bytes() for path in machine.state_files()]
    texts = [text for name in KEPT for text in (name, name.lower())]
    if left := [text for text in texts if any(text.encode() in file for file in files)]:
        raise Broken(f"still in the journal's files: {left}")
    _judge_after(machine, at, kept, arrived)
    tally["forgotten"] += 1


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
    paid = {line.client_orderid for line in at.of(machine.operation).record(machine.since) if line.committed == "yes"}
    with (machine.home / "answers.csv").open("w", newline="") as stream:
        answers = csv.DictWriter(stream, lines[0])
        answers.writeheader()
        for line in lines:
            answers.writerow(line | {"answer": "paid" if line["order_id"] in paid else "rejected"})
    if machine.run("resolve", "statement", "payroll.csv", "answers.csv", "--yes") not in ENDS:
        raise Broken(f"not settled: {machine.said()}")


def _kept_batch(machine: Machine) -> bytes:
    sheet = machine.sheet(4, name="kept.csv", first=1000)
    text = sheet.read_text()
    for old, new in KEPT.items():
        text = text.replace(old, new).replace(old.lower(), new.lower())
    sheet.write_text(text)
    if machine.run(machine.command, sheet) not in ENDS:
        raise Broken(f"the batch that is kept was not sent: {machine.said()}")
    return (machine.home / "kept.reconciliation.csv").read_bytes()


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
    rows = (machine.home / "payroll.csv").read_text()
    *_, new = (machine.home / "kept.csv").read_text().replace(f"{machine.prefix}-1", f"{machine.prefix}-2").splitlines()
    more.write_text(rows + new.replace("110", "310") + "\n")
    if (code := machine.run(machine.command, more, "--repeats-meant")) not in {*ENDS, 3}:
        raise Broken(f"the same rows with another one ended with {code}: {machine.said()}")
    orders = [line.client_orderid for line in judge_orders(machine, at)]
    if orders[: len(arrived)] != arrived or set(orders[len(arrived) :]) - {new.split(",")[1]}:
        raise Broken(f"paid again: {orders[len(arrived) :]}")
