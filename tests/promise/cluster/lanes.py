"""Runs parts of a campaign in parallel lanes, each a process with its own server, gateway and spawner."""

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from threading import Event

from tests.promise.campaign.machine import ROOT, GatewayProcess, Spawner, gateway
from tests.promise.cluster.company import PRELOADED
from tests.promise.cluster.lean_gateway import lean_gateway
from tests.promise.cluster.shifts import play_shift
from tests.promise.cluster.trouble import RELEASE, SLOWLY, OrdealTally, Size, play_failover, play_ordeal
from tests.support.long_runs import say
from tests.support.postgres_server import PostgresServer, new_server

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
"""The rules of the lean gateway for the sandbox, which verifies every request."""
_MEMORY = Path("/dev/shm")  # noqa: S108 - a file system in memory, in which a private directory is made


@dataclass(frozen=True, slots=True)
class LaneRequest:
    batches: int
    failovers: int
    rows: int
    start: int
    lanes: int
    is_release: bool

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> "LaneRequest":
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
        return replace(RELEASE if self.is_release else Size(self.rows), rows=self.rows)

    def command(self, lane: int) -> list[str]:
        given = {name: str(getattr(self, name)) for name in ("batches", "failovers", "rows", "start", "lanes")}
        words = [word for name, value in given.items() for word in (f"--{name}", value)]
        release = ["--release"] if self.is_release else []
        return [sys.executable, "-m", "tests.promise.cluster", *words, *release, "--lane", str(lane)]

    def parts(self, lane: int) -> Iterator[tuple[str, int]]:
        """Yield kind and seed of the parts of one lane: every second batch by workers, with failovers in between."""
        batches = range(lane, self.batches, self.lanes)
        failovers = deque(range(lane, self.failovers, self.lanes))
        interval = max(1, len(batches) // max(1, len(failovers)))
        for at, seed in enumerate(batches):
            yield "work" if at % 2 else "submit", self.start + seed
            if failovers and at % interval == 0:
                yield "failover", self.start + failovers.popleft()
        yield from (("failover", self.start + seed) for seed in failovers)


@dataclass
class _LaneReports:
    began_s: float
    total: OrdealTally = field(default_factory=OrdealTally)
    broken: int = 0

    def hear(self, lane: "subprocess.Popen[str]") -> None:
        for line in lane.stdout or ():
            report = json.loads(line)
            if "broken" in report:
                say(f"BROKEN: {report['broken']}")
                self.broken += 1
            else:
                self.total.update(report["endured"])
                wall_s = time.monotonic() - self.began_s
                say(f"{report['part']} ({report['wall_s']:.0f} s): {self.total}, {wall_s:,.0f} s")
        self.broken += bool(lane.wait())


def play_lanes(wanted: LaneRequest, stop: Event) -> int:
    """Play all lanes, and print the totals after each part. Return 1 if anything broke."""
    report = _LaneReports(time.monotonic())
    running = [
        subprocess.Popen(wanted.command(lane), cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for lane in range(wanted.lanes)
    ]
    with ThreadPoolExecutor(wanted.lanes) as pool:
        hearing = [pool.submit(report.hear, lane) for lane in running]
        while not all(each.done() for each in hearing):
            if stop.wait(0.5) or report.broken:  # report this before the other lanes continue for hours
                for lane in running:
                    lane.terminate()
                break
    for each in hearing:
        each.result()
    if report.broken:
        say(f"{report.total}: BROKEN")
        return 1
    say(f"{report.total}: 0 sent twice, 0 without an intent, 0 lost, every chain whole")
    return 0


def play_lane(wanted: LaneRequest, lane: int, stop: Event) -> int:
    code = 0
    with TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as place:
        home = Path(place)
        with new_server() as server, Spawner(*PRELOADED) as spawner, _gateway(wanted, lane, home / "gateway") as at:
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
                wall_s = time.monotonic() - began_s
                say(json.dumps({"part": f"{kind}-{seed}", "wall_s": wall_s, "endured": endured}))
    return code


def _played(
    kind: str, home: Path, spawner: Spawner, at: GatewayProcess, server: PostgresServer, seed: int, wanted: LaneRequest,
    stop: Event,
) -> OrdealTally:  # fmt: skip
    if kind == "failover":
        return play_failover(home, spawner, at, seed=seed, rows=FAILOVER_ROWS)
    part = play_shift if kind == "work" else play_ordeal
    return part(home, spawner, at, server, seed=seed, size=wanted.size, stop=stop)


@contextmanager
def _gateway(wanted: LaneRequest, lane: int, home: Path) -> Iterator[GatewayProcess]:
    """Run the gateway of a lane. In a release run the first one verifies, and the others only record."""
    with (
        lean_gateway(home)
        if wanted.is_release and lane
        else gateway(home, VERIFYING if wanted.is_release else SLOWLY) as at
    ):
        yield at
