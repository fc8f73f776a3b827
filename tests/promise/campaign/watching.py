"""The kills again, with the console running: its pages are read throughout, and it is killed too."""

import re
import signal
import threading
import time
from collections import Counter
from functools import partial
from random import Random
from typing import Self

import httpx

from paygw_batch.approval.approval_keys import RelyingParty
from tests.promise.campaign.judge import Broken
from tests.promise.campaign.listening import kill_with_companion
from tests.promise.campaign.machine import GatewayProcess, Machine, Run, Spawner
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port
from tests.support.software_passkey import passkey

LETTER = "W"
WORDS = {"Paid": "paid", "Rejected": "rejected", "In doubt": "in_doubt"}
LIVES_S = (0.2, 3.0)
"""The lifetime of a console, from its first answer."""


class ConsoleWatcher:
    """Runs a console next to a machine, with a maker who signed in once, by passkey, before all kills."""

    def __init__(self, machine: Machine, at: GatewayProcess, rng: Random) -> None:
        self.kills = 0
        self._machine = machine
        self._rng = rng
        self._port = free_port()
        self._origin = f"http://localhost:{self._port}"
        self._client = httpx.Client(base_url=self._origin, timeout=PATIENCE_S)
        self._spawner = Spawner()  # two threads must not share one
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep_on)
        self._broken: list[str] = []
        self._seen = 0
        del at
        self._set_up()

    def _set_up(self) -> None:
        config = self._machine.home / "paygw.toml"
        keys = {name: passkey(f"p-{name}").public.text for name in ("ada", "ben")}
        people = (
            '[approval.from_amount]\nKES = "100000000"\n'
            f'[approval.makers]\nAda = "{keys["ada"]}"\n[approval.approvers]\nBen = "{keys["ben"]}"\n'
        )
        config.write_text(f'{config.read_text()}\n{people}[console]\norigin = "{self._origin}"\nport = {self._port}\n')

    def __enter__(self) -> Self:
        run = self._started()
        self._sign_in()
        self._kill(run)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.rest()
        self._client.close()
        self._spawner.close()

    def rest(self) -> None:
        """Stop killing and restarting the console."""
        self._over.set()
        self._thread.join()

    def judge(self, rows: int, runs: int) -> None:
        """Check that every page view was answered, and that the page finally shows the reconciliation's rows."""
        del runs
        if self._broken:
            raise Broken(f"the pages: {self._broken[0]}")
        run = self._started()
        try:
            (place,) = set(re.findall(r'href="(/payouts/\w+)"', self._get("/")))
            page = self._get(place)
        finally:
            run.send(signal.SIGTERM)
        if (code := run.done()) != 0:
            raise Broken(f"the console ended with {code}")
        shown = {WORDS[word.strip()]: int(count) for count, word in re.findall(r"<strong>(\d+)</strong> ([^<]+)", page)}
        states = Counter(line["state"] for line in self._machine.reconciliation())
        if shown != states or sum(shown.values()) != rows:
            raise Broken(f"the page shows {shown}, and the reconciliation {dict(states)}")
        if self._broken:
            raise Broken(f"the pages: {self._broken[0]}")

    def _keep_on(self) -> None:
        while not self._over.is_set():
            run = self._started()
            until_s = time.monotonic() + self._rng.uniform(*LIVES_S)
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
        """Start the console, and return when it answers."""
        away = self._machine.with_spawner(self._spawner)
        output = str(away.home / "console.txt")
        run = away.start("console", out=output, err=output)
        give_up_at_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                self._client.get("/static/mark.svg")
            except httpx.TransportError:
                if run.wait(0.02) is not None or time.monotonic() > give_up_at_s:
                    raise Broken(
                        f"the console is not there: {(away.home / 'console.txt').read_text()[-2000:]}"
                    ) from None
            else:
                return run

    def _kill(self, run: Run) -> None:
        run.send(signal.SIGKILL)
        run.done()
        self.kills += 1


kill_with_console = partial(kill_with_companion, ConsoleWatcher, LETTER)
