"""The kills again, with notices: a webhook gets every notice, and its sender is killed too.

The receiver sometimes refuses a notice. It knows the process of each one by a path that a plant gives to every process.
"""

import json
import signal
import sqlite3
import threading
from collections import Counter, defaultdict
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Self

import standardwebhooks

from tests.promise.campaign.judge import Broken
from tests.promise.campaign.kills import MAX_STARTS, Pace, is_let_end
from tests.promise.campaign.listening import kill_with_companion
from tests.promise.campaign.machine import GatewayProcess, Machine, Spawner
from tests.support.receivers import SECRET, webhook

NAMED = "plants:posts_name_their_process"
NAMED_AT_ONCE = "plants:posts_name_their_process_and_wait_for_nothing"
REFUSED_SHEET = 3
STILL_WAITING = 6
REFUSALS = 3
"""The number of refused sheets after each batch."""


@dataclass(frozen=True)
class _Post:
    """A received notice, and whether it was answered with 2xx."""

    notice: str
    process: int
    body: bytes
    is_taken: bool


class NoticeSender:
    """Runs `notices send` next to a machine, killed at random instants."""

    def __init__(self, machine: Machine, at: GatewayProcess, rng: Random, planted: str = NAMED) -> None:
        del at
        self.kills = 0
        self._machine, self._rng, self._planted = machine, rng, planted
        self._spawner = Spawner()  # two threads must not share one
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep_on)
        self._broken: list[str] = []
        self._posts: list[_Post] = []
        self._refused = 0
        self._answers = Random(rng.random())  # noqa: S311 (dice)
        self._received = ExitStack()

    def __enter__(self) -> Self:
        self._webhook = self._received.enter_context(webhook())
        self._webhook.on_post = self._answer
        config = self._machine.home / "paygw.toml"
        config.write_text(
            f'{config.read_text()}\n[notices]\nwebhook = "{self._webhook.url}"\nwebhook_secret_env = "PAYGW_HOOK"\n'
            "in_doubt_h = 0\n"
        )
        self._machine.environ["PAYGW_HOOK"] = SECRET
        self._machine.sheet(2, name="refused.csv", first=5000)
        refused = self._machine.home / "refused.csv"
        refused.write_text(refused.read_text().replace("5100.25", "-1"))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.rest()
        self._received.close()
        self._spawner.close()

    def rest(self) -> None:
        """Start no more senders."""
        self._over.set()
        self._thread.join()

    def _answer(self) -> None:
        """Accept a notice, or refuse one in four."""
        headers, body = self._webhook.got[-1]
        standardwebhooks.Webhook(SECRET).verify(body, dict(headers))
        self._webhook.status = 204 if self._answers.random() < 0.75 or self._over.is_set() else 503
        process = int(headers[":path"].rpartition("/")[2])
        self._posts.append(_Post(headers["webhook-id"], process, body, self._webhook.status == 204))

    def _keep_on(self) -> None:
        machine, pace = self._machine.with_spawner(self._spawner), Pace()
        while not self._over.is_set():
            again = ["--again"] if self._rng.random() < 0.5 else []
            code = self._killed(machine, ("notices", "send", *again), pace, self._planted)
            if code not in {0, STILL_WAITING, -signal.SIGKILL}:
                self._broken.append(f"it ended with {code}: {(machine.home / 'telling.txt').read_text()[-500:]}")

    def _killed(self, machine: Machine, command: tuple[str, ...], pace: Pace, planted: str) -> int:
        notices = str(machine.home / "telling.txt")
        run = machine.start(*command, planted=planted, out=notices, err=notices)
        if not is_let_end(run, lambda: len(self._posts), self._rng, pace):
            run.send(signal.SIGKILL)
        code = run.done()
        self.kills += code == -signal.SIGKILL
        return code

    def judge(self, rows: int, runs: int) -> None:
        """Check that every event was reported, and nothing twice except by a killed process."""
        pace = Pace()
        for _ in range(REFUSALS):
            code = self._killed(self._machine, (self._machine.command, "refused.csv"), pace, self._planted)
            self._refused += code == REFUSED_SHEET
        for _ in range(MAX_STARTS):
            code = self._killed(self._machine, ("notices", "send", "--again"), pace, NAMED_AT_ONCE)
            if code == 0:
                break
        else:
            self._broken.append("notices are never sent")
        if self._broken:
            raise Broken(self._broken[0])
        self._judge_posts()
        self._judge_contents(rows, runs)

    def _judge_posts(self) -> None:
        posts, last_of = defaultdict[str, list[_Post]](list), dict[int, _Post]()
        for post in self._posts:
            posts[post.notice].append(post)
            last_of[post.process] = post
        killed = {run.pid for run in self._machine.started if run.exit_code == -signal.SIGKILL}
        for notice, each in posts.items():
            if len({post.body for post in each}) > 1:
                raise Broken(f"{notice} says two things")
            taken = [post for post in each if post.is_taken]
            if any(post.process not in killed or last_of[post.process] is not post for post in taken[:-1]):
                raise Broken(f"{notice} was sent twice, and no kill hid the answer")
        if lost := self._kept() - {post.notice for post in self._posts if post.is_taken}:
            raise Broken(f"never sent: {sorted(lost)}")

    def _judge_contents(self, rows: int, runs: int) -> None:
        """Check that each sending run, each refused sheet and each row in doubt was reported."""
        notices = defaultdict[str, list[Any]](list)
        for body in {post.notice: post.body for post in self._posts if post.is_taken}.values():
            payload = json.loads(body)
            notices[payload["type"]].append((payload["timestamp"], payload["data"]))
        states = Counter(line["state"] for line in self._machine.reconciliation())
        if len(notices["run_ended"]) < runs or len(notices["sheet_refused"]) < self._refused:
            raise Broken(f"{runs} runs and {self._refused} refusals, told {dict(Counter(map(len, notices.values())))}")
        if (most := max((data["rows_in_doubt"] for _, data in notices["in_doubt"]), default=0)) < states["in_doubt"]:
            raise Broken(f"{states['in_doubt']} rows are in doubt, and at most {most} are told")  # or were in flight
        _, newest = max(notices["run_ended"], key=lambda one: str(one[0]))
        payload = Counter(newest["states"])
        payload["in_doubt"] += payload.pop("in_flight", 0)  # of a killed run, if the next one had nothing to send
        if +payload != states or newest["rows"] != rows:
            raise Broken(f"the last run is told with {newest['states']}, and came to {dict(states)}")

    def _kept(self) -> set[str]:
        """Return the ids of all notices in the outbox, read by another library than the program's."""
        path = self._machine.home / "journal.sqlite3"
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            return {notice for (notice,) in connection.execute("SELECT id FROM notice")}


kill_with_notices = partial(kill_with_companion, NoticeSender, "N", planted=NAMED)
