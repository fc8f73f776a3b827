"""Parts of a campaign side by side: each lane is a process with a server, a gateway and a spawner of its own."""

import argparse
import ctypes
import json
import os
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from threading import Event

from tests.promise.campaign.machine import ROOT, GatewayProcess, Spawner, gateway
from tests.promise.cluster.company import PRELOADED
from tests.promise.cluster.lean_gateway import lean_gateway
from tests.promise.cluster.shifts import work_through
from tests.promise.cluster.trouble import RELEASE, SLOWLY, Endured, Size, endure, fail_over
from tests.support.postgres_server import PostgresServer, own_server

RELEASE_BATCHES, RELEASE_FAILOVERS, FAILOVER_ROWS = 204, 50, 200
VERIFYING = """
[default]
status = "approved"
delay_s = 0.005

[[rule]]
order_id = ".*57"
fault = "drop_after"

[[rule]]
order_id = ".*[16]3"
status = "declined"
commits = false
"""
"""As the lean gateway answers; and the sandbox verifies every request."""
_MEMORY = Path("/dev/shm")  # noqa: S108 - a file system in memory, in which a private directory is made
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be played, in all lanes together."""

    batches: int
    failovers: int
    rows: int
    start: int
    lanes: int
    is_release: bool

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> "Wanted":
        """Return what the command line asks for."""
        is_release = arguments.release
        return cls(
            arguments.batches if arguments.batches is not None else RELEASE_BATCHES * is_release,
            arguments.failovers if arguments.failovers is not None else RELEASE_FAILOVERS * is_release,
            arguments.rows or (RELEASE.rows if is_release else 200),
            arguments.start,
            arguments.lanes,
            is_release,
        )

    @property
    def size(self) -> Size:
        """The size of a batch."""
        return replace(RELEASE if self.is_release else Size(self.rows), rows=self.rows)

    def command(self, lane: int) -> list[str]:
        """Return the command that plays one lane."""
        given = {name: str(getattr(self, name)) for name in ("batches", "failovers", "rows", "start", "lanes")}
        words = [word for name, value in given.items() for word in (f"--{name}", value)]
        release = ["--release"] if self.is_release else []
        return [sys.executable, "-m", "tests.promise.cluster", *words, *release, "--lane", str(lane)]

    def parts(self, lane: int) -> Iterator[tuple[str, int]]:
        """Yield kind and seed of the parts of one lane, every second batch by workers, failovers in between."""
        batches = range(lane, self.batches, self.lanes)
        failovers = deque(range(lane, self.failovers, self.lanes))
        every = max(1, len(batches) // max(1, len(failovers)))
        for at, seed in enumerate(batches):
            yield "work" if at % 2 else "submit", self.start + seed
            if failovers and at % every == 0:
                yield "failover", self.start + failovers.popleft()
        yield from (("failover", self.start + seed) for seed in failovers)


def say(line: str) -> None:
    """Write a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


@dataclass
class _Told:
    """What the lanes have told so far."""

    began_s: float
    total: Endured = field(default_factory=Endured)
    cpu_s: float = 0.0
    broken: int = 0

    def hear(self, lane: "subprocess.Popen[str]") -> None:
        """Take in what a lane tells, until it ends."""
        for line in lane.stdout or ():
            told = json.loads(line)
            if "broken" in told:
                say(f"BROKEN: {told['broken']}")
                self.broken += 1
            elif "cpu_s" in told:
                self.cpu_s += told["cpu_s"]
            else:
                self.total.add(Endured(**{one.name: told[one.name] for one in fields(Endured)}))
                wall_s = time.monotonic() - self.began_s
                say(f"{told['part']} ({told['wall_s']:.0f} s): {self.total}, {wall_s:,.0f} s")
        self.broken += bool(lane.wait())


def play_side_by_side(wanted: Wanted, stop: Event) -> int:
    """Play all lanes, and say after each part what it came to so far; return 1 when anything broke."""
    told = _Told(time.monotonic())
    running = [
        subprocess.Popen(wanted.command(lane), cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for lane in range(wanted.lanes)
    ]
    with ThreadPoolExecutor(wanted.lanes) as pool:
        hearing = [pool.submit(told.hear, lane) for lane in running]
        while not all(each.done() for each in hearing):
            if stop.wait(0.5) or told.broken:  # no other lane goes on for hours before this is told
                for lane in running:
                    lane.terminate()
                break
    for each in hearing:
        each.result()
    used = f"{told.cpu_s / 60:,.1f} minutes of processor time, the servers' included"
    if told.broken:
        say(f"{told.total}: BROKEN ({used})")
        return 1
    say(f"{told.total}: 0 sent twice, 0 without an intent, 0 lost, every chain whole ({used})")
    return 0


def play_lane(wanted: Wanted, lane: int, stop: Event) -> int:
    """Play the parts of one lane, and write one line of JSON for each."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)  # servers are counted with the processor time of this process
    code = 0
    with TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as place:
        home = Path(place)
        with own_server() as server, Spawner(*PRELOADED) as spawner, _gateway(wanted, lane, home / "gateway") as at:
            for kind, seed in wanted.parts(lane):
                if stop.is_set():
                    break
                began_s, part = time.monotonic(), home / f"{kind}-{seed}"
                part.mkdir(mode=0o700)
                try:
                    endured = _played(kind, part, spawner, at, server, seed, wanted, stop)
                except AssertionError as broken:
                    kept = shutil.copytree(part, Path(mkdtemp(prefix="paygw-cluster-")) / part.name)
                    say(json.dumps({"broken": f"{kind} with seed {seed}: {broken} (kept in {kept})"}))
                    code = 1
                    break
                shutil.rmtree(part)
                _reap()
                wall_s = time.monotonic() - began_s
                say(json.dumps({"part": f"{kind}-{seed}", "wall_s": wall_s, **asdict(endured)}))
    say(json.dumps({"cpu_s": _processor_s()}))
    return code


def _played(
    kind: str, home: Path, spawner: Spawner, at: GatewayProcess, server: PostgresServer, seed: int, wanted: Wanted,
    stop: Event,
) -> Endured:  # fmt: skip
    if kind == "failover":
        return fail_over(home, spawner, at, seed=seed, rows=FAILOVER_ROWS)
    part = work_through if kind == "work" else endure
    return part(home, spawner, at, server, seed=seed, size=wanted.size, stop=stop)


@contextmanager
def _gateway(wanted: Wanted, lane: int, home: Path) -> Iterator[GatewayProcess]:
    """Run the gateway of a lane: of a release's, the first one verifies, and the others only record."""
    with (
        lean_gateway(home)
        if wanted.is_release and lane
        else gateway(home, VERIFYING if wanted.is_release else SLOWLY) as at
    ):
        yield at


def _reap() -> None:
    """Wait for the servers and the processes of killed runs that have ended: so their processor time is counted."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue


def _processor_s() -> float:
    """Return the processor time of all that ran here and ended."""
    _reap()
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system
