"""Measures the console with a long journal: page times, memory, and its cost for a run.

A signed-in person requests the pages one after the other, over loopback. A tab is a loop that polls a payout's
progress, as `static/progress.js` does.
"""

import os
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.commands import ROOT, Office, memory_mib
from paygw_batch.approval.approval_keys import PublicKey, encode_public_key
from paygw_batch.console.passkey_access import SignInKey, SignInMethod, StoredSessions, WebSessions
from paygw_batch.console.permissions import load_members
from paygw_batch.countries.data import config_dir
from paygw_batch.opening.open_journal import open_journal_to_read
from paygw_batch.settings.configuration import load_settings
from tests.support.ports import free_port, wait_for_server

MAKER, APPROVER = "Ada", "Ben"
NAME = "Wanjiru"
"""A frequent name in the generated sheets."""
TABS = 50
VISIBLE_S = 2.0
"""The interval at which a visible tab polls."""
_PATIENCE_S = 120
_LOOKED_AT_EVERY_S = 0.2
_TICKS_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class PageTime:
    """The response times of one page, and the console's processor time for each request."""

    name: str
    took_ms: Sequence[float]
    cpu_ms: float
    kib: float

    @property
    def p95_ms(self) -> float:
        """The 95th percentile."""
        ordered = sorted(self.took_ms)
        return ordered[min(len(ordered) - 1, len(ordered) * 95 // 100)]

    def line(self) -> str:
        """Return the times as a row of a table."""
        middle = statistics.median(self.took_ms)
        return (
            f"| {self.name} | {middle:,.0f} ms | {self.p95_ms:,.0f} ms | {self.cpu_ms:,.0f} ms | {self.kib:,.0f} KiB |"
        )


@dataclass
class ServedPages:
    """A console in a separate process, and a person who is signed in to it."""

    process: "subprocess.Popen[bytes]"
    port: int
    cookie: str = field(repr=False)

    def ask(self, path: str) -> tuple[int, bytes, HTTPResponse]:
        """Request a page once, over a new connection."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=_PATIENCE_S)
        try:
            connection.request("GET", path, headers={"cookie": f"payouts={self.cookie}"})
            answer = connection.getresponse()
            return answer.status, answer.read(), answer
        finally:
            connection.close()

    def measure(self, name: str, path: str, times: int) -> PageTime:
        """Request a page many times, without counting the first. Raises `RuntimeError` if it is not served."""
        took_ms: list[float] = []
        size = 0
        before_s = 0.0
        for number in range(times + 1):
            if number == 1:
                before_s = self.cpu_s()
            started_s = time.perf_counter()
            status, body, _ = self.ask(path)
            took_ms.append(1000 * (time.perf_counter() - started_s))
            size = len(body)
            if status not in {200, 204}:
                raise RuntimeError(f"{path} was answered with {status}")
        return PageTime(name, took_ms[1:], 1000 * (self.cpu_s() - before_s) / times, size / 1024)

    def cpu_s(self) -> float:
        """Return the console's processor time so far, without that of its child processes."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_S

    def peak_mib(self) -> float:
        """Return the peak memory of the console."""
        result = memory_mib(self.process.pid)
        return 0.0 if result is None else result[1]

    def upload(self, sheet: Path) -> float:
        """Upload a sheet, and return the seconds until its page with the first defects was served."""
        _, page, _ = self.ask("/new")
        result = re.search(rb'name="csrf" value="([^"]+)"', page)
        token = "" if result is None else result[1].decode()
        mark = "benchmark-of-the-console"
        body = b"".join(
            [
                f'--{mark}\r\ncontent-disposition: form-data; name="csrf"\r\n\r\n{token}\r\n'.encode(),
                f'--{mark}\r\ncontent-disposition: form-data; name="sheet"; filename="{sheet.name}"\r\n\r\n'.encode(),
                sheet.read_bytes(),
                f"\r\n--{mark}--\r\n".encode(),
            ]
        )
        headers = {
            "cookie": f"payouts={self.cookie}",
            "origin": f"http://127.0.0.1:{self.port}",
            "content-type": f"multipart/form-data; boundary={mark}",
        }
        started_s = time.perf_counter()
        connection = HTTPConnection("127.0.0.1", self.port, timeout=_PATIENCE_S)
        connection.request("POST", "/new", body, headers)
        answer = connection.getresponse()
        answer.read()
        connection.close()
        if answer.status != 303:
            raise RuntimeError(f"the upload was answered with {answer.status}")
        while b"data-reload-ms" in self._require_page(answer.headers["location"]):
            time.sleep(_LOOKED_AT_EVERY_S)
        return time.perf_counter() - started_s

    def _require_page(self, path: str) -> bytes:
        status, body, _ = self.ask(path)
        if status != 200:
            raise RuntimeError(f"{path} was answered with {status}")
        return body


@contextmanager
def served_pages(machine: Office) -> Iterator[ServedPages]:
    """Serve the pages of an office's journal in a separate process, with a person signed in."""
    port = free_port()
    config = machine.directory / "console.toml"
    keys = {name: encode_public_key(Ed25519PrivateKey.generate().public_key()) for name in (MAKER, APPROVER)}
    makers, approvers = (f'{name} = "{keys[name].text}"' for name in (MAKER, APPROVER))
    people = f"[approval.makers]\n{makers}\n[approval.approvers]\n{approvers}\n"
    config.write_text(f"{(config_dir() / 'sandbox.toml').read_text(encoding='utf-8')}\n{people}", encoding="utf-8")
    cookie = _create_session(machine, config, keys[MAKER])
    command = [sys.executable, "-m", "paygw_batch", "--config", str(config), "--journal", str(machine.journal)]
    with subprocess.Popen(
        [*command, "console", "--port", str(port)], cwd=ROOT, env=machine.environment(), stdout=subprocess.DEVNULL
    ) as process:
        try:
            wait_for_server(port, process)
            yield ServedPages(process, port, cookie)
        finally:
            process.terminate()


def _create_session(machine: Office, config: Path, key: PublicKey) -> str:
    """Create a session before the console starts."""
    environ = machine.environment()
    settings = load_settings(config, environ=environ, flags={("journal", "path"): str(machine.journal)})
    members = load_members(settings)
    maker = next(member for member in members if member.name == MAKER)
    sessions = WebSessions(
        StoredSessions(machine.journal),
        members=members,
        keys={key: maker},
        methods=frozenset(SignInMethod),
        idle_s=3600,
        max_age_s=3600,
        now_s=time.time,
    )
    try:
        return sessions.sign_in(maker, "", SignInMethod.PASSKEY, SignInKey(key, ""))
    finally:
        sessions.close()


def page_times(machine: Office, pages: ServedPages, times: int) -> Iterator[PageTime]:
    """Yield the time of each page about the newest batch of an office's journal."""
    os.environ["XDG_STATE_HOME"] = machine.environment()["XDG_STATE_HOME"]
    settings = load_settings(
        config_dir() / "sandbox.toml", environ=machine.environment(), flags={("journal", "path"): str(machine.journal)}
    )
    with open_journal_to_read(settings) as journal:
        record = journal.batches()[-1]
        middle = record.rows // 2
        row = next(iter(journal.rows(record.number, after=middle, limit=1)))
    payout = f"/payouts/{record.batch}"
    for displayed, path in {
        "Overview": "/",
        "A payout": payout,
        "its rows from the middle on": f"{payout}?after={middle}",
        "its last rows": f"{payout}?after={record.rows - 10}",
        "those not sent yet": f"{payout}?state=ready",
        "those with the gateway, from the middle on": f"{payout}?state=accepted&after={middle}",
        "those in doubt (none)": f"{payout}?state=in_doubt",
        "its progress, nothing moved": f"{payout}/progress?seen={_latest_position(pages, payout)}",
        "A row": f"{payout}/rows/{row.row}",
        "Was this person paid? By number": "/payees?text=254712345678",
        "by order id": f"/payees?text={row.client_orderid}",
        "by name": f"/payees?text={NAME}",
        "by a name that nobody has": "/payees?text=Qqqqqq",
        "New payout": "/new",
        "People and health": "/people",
        "Sign in": "/sign-in",
    }.items():
        yield pages.measure(displayed, path, times)


def _latest_position(pages: ServedPages, payout: str) -> str:
    """Return the position that a tab has reached once it has received everything."""
    _, _, answer = pages.ask(f"{payout}/progress?seen=")
    return str(answer.headers.get("x-seen", ""))


@contextmanager
def polling_tabs(pages: ServedPages, count: int) -> Iterator[None]:
    """Have tabs poll the newest payout's progress every two seconds inside the block."""
    over = threading.Event()
    _, first, _ = pages.ask("/")
    path = re.findall(rb'href="(/payouts/\w+)"', first)[0].decode()

    def ask(number: int) -> None:
        seen = ""
        over.wait(VISIBLE_S * number / count)
        while not over.is_set():
            status, _, answer = pages.ask(f"{path}/progress?seen={seen}")
            seen = str(answer.headers.get("x-seen", seen)) if status == 200 else seen
            over.wait(VISIBLE_S)

    tabs = [threading.Thread(target=ask, args=(number,)) for number in range(count)]
    for tab in tabs:
        tab.start()
    try:
        yield
    finally:
        over.set()
        for tab in tabs:
            tab.join()
