"""A fault at every ordinal of a system call: the n-th call of each thread fails or is the last, n raised until none is.

strace counts calls for each thread by itself, so one ordinal may be struck in several threads of one run; none is left
out.
"""

import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

from tests.promise.campaign.judge import Broken, judge_end, judge_orders
from tests.promise.campaign.kills import ENDS
from tests.promise.campaign.machine import GatewayProcess, Machine, Spawner
from tests.promise.campaign.tracing import traced

KILL = "signal=KILL"
OF_DISKS = ("error=EIO", "error=ENOSPC", "error=EROFS")
ERRORS = {
    "fdatasync": OF_DISKS,
    "fsync": OF_DISKS,
    "pwrite64": OF_DISKS,
    "write": OF_DISKS,
    "rename": OF_DISKS,
    "sendto": (*OF_DISKS, "error=ECONNRESET", "error=EPIPE"),
    "connect": (*OF_DISKS, "error=ECONNREFUSED", "error=ENETUNREACH"),
}
"""Errors that a call is made to fail with: those of disks, and of networks where a network is called."""
EVERYTHING = tuple((call, fault) for call, errors in ERRORS.items() for fault in (KILL, *errors))
SEAMS: Mapping[str, Mapping[str, Any]] = {
    "sendto": {"hidden": ["uvloop"], "planted": "plants:wake_ups_by_write"},
    "write": {"planted": "plants:parts_by_a_known_name"},
}
"""How a call is told from what else it is used for. Without uvloop requests leave by `sendto` and nothing else does but
the wake-ups of the event loop: those go by `write` then."""
PART = ".paygw-known.part"
"""What a file is called that is not whole yet, where `plants.parts_by_a_known_name` is on."""
FILES = {"write": ("out.txt", "err.txt", PART)}
"""The only files whose calls are made to fail. By `write` libraries wake their own threads as well, and hang where that
fails, which no disk brings about. A kill strikes at every one."""
MAY_END = {0, 2, 3, 4, 5, 6, 7, -9}
"""What a struck run may end with: anything but an unexpected error."""
ROWS = 4
MAX_RESUMES = 5


@dataclass
class Struck:
    """How many runs were struck at which call, and what they ended with."""

    runs: int = 0
    codes: Counter[int] = field(default_factory=Counter)


def strike(
    directory: Path,
    spawner: Spawner,
    at: GatewayProcess,
    call: str,
    fault: str,
    *,
    every: int = 1,
    stop: Event | None = None,
) -> Struck:
    """Strike `call` with `fault` at every ordinal (or each `every`-th); after each, resume to the end and judge."""
    struck = Struck()
    ordinal = 1
    while not (stop is not None and stop.is_set()):
        name = f"{call}-{fault.partition('=')[2]}-{ordinal}"
        machine = Machine.made(directory / name, spawner, at, prefix=f"S{name}")
        try:
            code = _strike_once(machine, at, f"{call}:{fault}:when={ordinal}", call)
        except Broken as broken:
            raise Broken(f"{call} {fault} at ordinal {ordinal} in {machine.home}: {broken}") from None
        if code is None:
            return struck
        shutil.rmtree(machine.home)
        struck.runs += 1
        struck.codes[code] += 1
        ordinal += every
    return struck


def _strike_once(machine: Machine, at: GatewayProcess, inject: str, call: str) -> int | None:
    """Return the exit code of the struck run, None when nothing was struck any more."""
    sheet = machine.sheet(ROWS)
    log = machine.home / "strace.txt"
    seam = SEAMS.get(call, {})
    files = FILES.get(call, ()) if KILL not in inject else ()
    only = [option for name in files for option in ("-P", str(machine.home / name))]
    options = ["-y", *only, "-e", f"trace={call}", "-e", f"inject={inject}"]
    code = traced(machine, log, options, "submit", sheet, **seam)
    if "(INJECTED)" not in log.read_text() and code != -9:
        return None
    if code not in MAY_END:
        raise Broken(f"exit code {code}: {machine.said()}")
    judge_orders(machine, at) if machine.journal.exists() else None
    for _ in range(MAX_RESUMES):
        if machine.run("submit", sheet) in ENDS:
            break
    else:
        raise Broken(f"the batch is never done: {machine.said()}")
    judge_end(machine, at, ROWS)
    return code
