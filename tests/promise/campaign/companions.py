"""Kills beside a listener (late, doubled and forged notifications), a console, or the sender of notices."""

import csv
import json
import re
import signal
import sqlite3
import threading
import time
from collections import Counter, defaultdict
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Self

import httpx
import standardwebhooks

from paygw_batch.approval.approval_keys import RelyingParty
from tests.promise.campaign.judge import Broken, judge_end
from tests.promise.campaign.kills import ENDS, MAX_STARTS, SLOW, Pace, is_let_end, kill
from tests.promise.campaign.machine import GatewayProcess, Machine, Run, Spawner
from tests.support.patience import PATIENCE_S, wait_until
from tests.support.ports import accepts_connections, free_port
from tests.support.receivers import SECRET, webhook
from tests.support.software_passkey import passkey

NOTIFYING = (
    SLOW.replace("approved", "processing")
    + """
[[notification]]
order_id = ".*[0-24-9]"
status = "approved"
jitter_s = 0.5
times = 2

[[notification]]
order_id = ".*[0-24-9]"
status = "processing"
jitter_s = 0.5
method = "GET"

[[notification]]
order_id = ".*3"
status = "declined"
jitter_s = 0.2

[[notification]]
order_id = ".*4"
status = "declined"
forged = true
format = "form"
"""
)


def proof_configuration(secret: Path) -> str:
    secret.write_text("a secret of more than enough bytes")
    secret.chmod(0o600)
    return f"""
[notifications]
token_env = "PAYGW_TOKEN"
authenticity = "shared-secret-hash"
hash_algorithm = "hmac-sha256"
hash_fields = ["client_orderid", "amount", "currency", "status"]
hash_separator = ";"
hash_field = "control"
secret_file = "{secret}"
"""


class Companion:
    """A program that runs next to a machine, killed and restarted at random instants."""

    def __init__(self, machine: Machine, at: GatewayProcess, rng: Random) -> None:
        self.kills = 0
        self._machine, self._at, self._rng = machine, at, rng
        self._port = free_port()
        self._stack = ExitStack()
        self._away = replace(machine, spawner=self._stack.enter_context(Spawner()))  # two threads must not share one
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep_on)
        self._broken: list[str] = []

    def __enter__(self) -> Self:
        self._set_up()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.rest()
        self._stack.close()

    def rest(self) -> None:
        self._over.set()
        self._thread.join()

    def judge(self, rows: int, runs: int) -> None:
        """Check its results at the end of a batch, in which `runs` runs sent rows."""
        raise NotImplementedError

    def _set_up(self) -> None:
        raise NotImplementedError

    def _keep_on(self) -> None:
        raise NotImplementedError

    def _start(self, *command: str, planted: str | None = None) -> Run:
        output = str(self._away.home / f"{command[0]}.txt")
        return self._away.start(*command, planted=planted, out=output, err=output)

    def _until_it_listens(self, run: Run) -> None:
        wait_until(lambda: run.wait(0.02) is not None or accepts_connections(self._port), self._machine.said)

    def _kill(self, run: Run) -> None:
        run.send(signal.SIGKILL)
        run.done()
        self.kills += 1

    def _end(self, run: Run) -> None:
        run.send(signal.SIGTERM)
        if (code := run.done()) != 0:
            raise Broken(f"{type(self).__name__} ended with {code}")


class ListenerRun(Companion):
    def _set_up(self) -> None:
        self._machine.enable_listener(proof_configuration(self._at.directory / "secret.txt"), self._port)

    def _keep_on(self) -> None:
        while not self._over.is_set():
            run = self._start("listen")
            # On a busy machine it would always be killed during its start, and the gateway would give up.
            if self._rng.random() < 0.5:
                self._until_it_listens(run)
            self._over.wait(self._rng.uniform(0.05, 2.5))
            self._kill(run)

    def judge(self, rows: int, runs: int) -> None:
        del runs
        run = self._start("listen")
        wait_until(self._is_all_taken_in, lambda: f"heard {self._heard()}, kept {self._kept()}: {self._machine.said()}")
        self._until_it_listens(run)
        self._end(run)
        if self._machine.run("verify") != 0:
            raise Broken(f"the journal is not sound, or holds contradictions: {self._machine.said()}")
        name = "after.reconciliation.csv"
        sheet = self._machine.home / "payroll.csv"
        if self._machine.run("reconcile", sheet, "--out", self._machine.home / name) not in ENDS:
            raise Broken(self._machine.said())
        judge_end(self._machine, self._at, rows, name=name)
        left = [line["client_orderid"] for line in self._machine.reconciliation(name) if line["state"] == "accepted"]
        if left:
            raise Broken(f"notified, and still accepted: {left}")

    def _is_all_taken_in(self) -> bool:
        orders = [line.client_orderid for line in self._at.record() if self._is_ours(line.client_orderid)]
        notification_count = sum(1 if order_id[-1] == "3" else 4 if order_id[-1] == "4" else 3 for order_id in orders)
        return self._heard() >= notification_count and self._kept() >= notification_count

    def _heard(self) -> int:
        with (self._at.directory / "sandbox-callbacks.csv").open(newline="") as stream:
            return sum(status == "200" and self._is_ours(order_id) for order_id, _, _, status in csv.reader(stream))

    def _kept(self) -> int:
        with closing(sqlite3.connect(f"file:{self._machine.journal}?mode=ro", uri=True)) as connection:
            return int(connection.execute("SELECT count(*) FROM fact WHERE finding IS NOT NULL").fetchone()[0])

    def _is_ours(self, order_id: str) -> bool:
        return order_id.startswith(f"{self._machine.prefix}-")


kill_with_listener = partial(kill, beside=ListenerRun, letter="L")


WORDS = {"Paid": "paid", "Rejected": "rejected", "In doubt": "in_doubt"}


class ConsoleWatcher(Companion):
    """Runs a console next to a machine, with a maker who signed in once, by passkey, before all kills."""

    def _set_up(self) -> None:
        self._origin = f"http://localhost:{self._port}"
        self._client = self._stack.enter_context(httpx.Client(base_url=self._origin, timeout=PATIENCE_S))
        self._seen = 0
        config = self._machine.home / "paygw.toml"
        keys = {name: passkey(f"p-{name}").public.text for name in ("ada", "ben")}
        people = (
            '[approval.from_amount]\nKES = "100000000"\n'
            f'[approval.makers]\nAda = "{keys["ada"]}"\n[approval.approvers]\nBen = "{keys["ben"]}"\n'
        )
        config.write_text(f'{config.read_text()}\n{people}[console]\norigin = "{self._origin}"\nport = {self._port}\n')
        run = self._started()
        self._sign_in()
        self._kill(run)

    def judge(self, rows: int, runs: int) -> None:
        """Check that every page view was answered, and that the page finally shows the reconciliation's rows."""
        del runs
        if self._broken:
            raise Broken(f"the pages: {self._broken[0]}")
        run = self._started()
        (place,) = set(re.findall(r'href="(/payouts/\w+)"', self._get("/")))
        page = self._get(place)
        self._end(run)
        shown = {WORDS[word.strip()]: int(count) for count, word in re.findall(r"<strong>(\d+)</strong> ([^<]+)", page)}
        states = Counter(line["state"] for line in self._machine.reconciliation())
        if shown != states or sum(shown.values()) != rows:
            raise Broken(f"the page shows {shown}, and the reconciliation {dict(states)}")
        if self._broken:
            raise Broken(f"the pages: {self._broken[0]}")

    def _keep_on(self) -> None:
        while not self._over.is_set():
            run = self._started()
            # The lifetime of a console, from its first answer.
            until_s = time.monotonic() + self._rng.uniform(0.2, 3.0)
            while not self._over.is_set() and time.monotonic() < until_s:
                self._look()
            self._kill(run)

    def _look(self) -> None:
        for place in {"/", *re.findall(r'href="(/payouts/\w+)"', self._get("/"))} - {"/"}:
            for page in (place, f"{place}/progress?seen={self._seen}", f"{place}?state=in_doubt", f"{place}/rows/2"):
                self._get(page)

    def _get(self, path: str) -> str:
        answer = self._client.get(path)
        self._seen += 1
        if answer.status_code not in {200, 204}:
            self._broken.append(f"{path} was answered with {answer.status_code} {answer.headers.get('location', '')}")
        return answer.text

    def _sign_in(self) -> None:
        nonce = str(re.findall(r'name="nonce" value="([^"]+)"', self._client.get("/sign-in").text)[0])
        key = passkey("p-ada", RelyingParty(self._origin))
        signature = key.sign(f"paygw-batch sign-in 1\n{nonce}".encode())
        form = {"nonce": nonce, "credential": key.credential_id, **signature.model_dump()}
        answer = self._client.post("/sign-in/passkey", data=form, headers={"origin": self._origin})
        if answer.status_code != 303:
            raise Broken(f"signing in was answered with {answer.status_code}: {answer.text[-500:]}")

    def _started(self) -> Run:
        run = self._start("console")
        self._until_it_listens(run)
        if run.exit_code is not None:
            raise Broken(f"the console is not there: {(self._away.home / 'console.txt').read_text()[-2000:]}")
        return run


kill_with_console = partial(kill, beside=ConsoleWatcher, letter="W")


NAMED = "plants:posts_name_their_process"


@dataclass(frozen=True)
class _Post:
    notice: str
    process: int
    body: bytes
    is_taken: bool


class NoticeSender(Companion):
    def __init__(self, machine: Machine, at: GatewayProcess, rng: Random, planted: str = NAMED) -> None:
        super().__init__(machine, at, rng)
        self._planted = planted
        self._posts: list[_Post] = []
        self._refused = 0
        self._answers = Random(rng.random())  # noqa: S311 (dice)

    def _set_up(self) -> None:
        self._webhook = self._stack.enter_context(webhook())
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

    def _answer(self) -> None:
        headers, body = self._webhook.got[-1]
        standardwebhooks.Webhook(SECRET).verify(body, dict(headers))
        self._webhook.status = 204 if self._answers.random() < 0.75 or self._over.is_set() else 503
        process = int(headers[":path"].rpartition("/")[2])
        self._posts.append(_Post(headers["webhook-id"], process, body, self._webhook.status == 204))

    def _keep_on(self) -> None:
        pace = Pace()
        while not self._over.is_set():
            again = ["--again"] if self._rng.random() < 0.5 else []
            code = self._killed(self._away, ("notices", "send", *again), pace, self._planted)
            if code not in {0, 6, -signal.SIGKILL}:
                self._broken.append(f"it ended with {code}: {(self._away.home / 'telling.txt').read_text()[-500:]}")

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
        for _ in range(3):  # the number of refused sheets after each batch
            code = self._killed(self._machine, (self._machine.command, "refused.csv"), pace, self._planted)
            self._refused += code == 3
        for _ in range(MAX_STARTS):
            code = self._killed(self._machine, ("notices", "send", "--again"), pace, f"{NAMED}_and_wait_for_nothing")
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


kill_with_notices = partial(kill, beside=NoticeSender, planted=NAMED, letter="N")
