"""A fault at every ordinal n of a system call: the n-th of each thread, as strace counts, fails or is the last."""

import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from threading import Event
from typing import Any

from tests.promise.campaign.judge import Broken, judge_end, judge_orders
from tests.promise.campaign.kills import ENDS
from tests.promise.campaign.machine import GatewayProcess, Machine, Spawner, run_under_strace

KILL = "signal=KILL"
OF_DISKS = ("error=EIO", "error=ENOSPC", "error=EROFS")
ERRORS = {
    **dict.fromkeys(("fdatasync", "fsync", "pwrite64", "write", "rename"), OF_DISKS),
    "sendto": (*OF_DISKS, "error=ECONNRESET", "error=EPIPE"),
    "connect": (*OF_DISKS, "error=ECONNREFUSED", "error=ENETUNREACH"),
}
"""The errors with which a call fails: those of disks, and for network calls those of networks."""
EVERYTHING = tuple((call, fault) for call, errors in ERRORS.items() for fault in (KILL, *errors))
SEAMS: Mapping[str, Mapping[str, Any]] = {
    "sendto": {"hidden": ["uvloop"], "planted": "plants:wake_ups_by_write"},
    "write": {"planted": "plants:parts_by_a_known_name"},
}
"""How the traced uses of a call differ from others. Without uvloop, only requests use `sendto`: the event loop wakes
itself by `write`."""
PART = ".paygw-known.part"  # the name of an incomplete file if `plants.parts_by_a_known_name` is on
FILES = ("out.txt", "err.txt", PART)
"""The only files whose writes fail. Libraries also wake their threads by `write`, and hang if that fails, which no disk
causes. A kill strikes at every call."""
MAY_END = {0, 2, 3, 4, 5, 6, 7, -9}  # the accepted exit codes of a struck run: all except that of an unexpected error
ROWS = 4


def strike(
    directory: Path,
    spawner: Spawner,
    at: GatewayProcess,
    call: str,
    fault: str,
    *,
    every: int = 1,
    stop: Event | None = None,
) -> Counter[int]:
    """Strike `call` at each `every`-th ordinal, resume to the end and judge. Return the codes of the struck runs."""
    codes, ordinal = Counter[int](), 1
    while not (stop is not None and stop.is_set()):
        name = f"{call}-{fault.partition('=')[2]}-{ordinal}"
        machine = Machine.create(directory / name, spawner, at, prefix=f"S{name}")
        try:
            code = _strike_once(machine, at, f"{call}:{fault}:when={ordinal}", call)
        except Broken as broken:
            raise Broken(f"{call} {fault} at ordinal {ordinal} in {machine.home}: {broken}") from None
        if code is None:
            return codes
        shutil.rmtree(machine.home)
        codes[code] += 1
        ordinal += every
    return codes


def _strike_once(machine: Machine, at: GatewayProcess, inject: str, call: str) -> int | None:
    sheet = machine.sheet(ROWS)
    log = machine.home / "strace.txt"
    files = FILES if call == "write" and KILL not in inject else ()
    only = [option for name in files for option in ("-P", str(machine.home / name))]
    options = ["-y", *only, "-e", f"trace={call}", "-e", f"inject={inject}"]
    code = run_under_strace(machine, log, options, "submit", sheet, **SEAMS.get(call, {}))
    if "(INJECTED)" not in log.read_text() and code != -9:
        return None
    if code not in MAY_END:
        raise Broken(f"exit code {code}: {machine.said()}")
    if machine.journal.exists():
        judge_orders(machine, at)
    for _ in range(5):
        if machine.run("submit", sheet) in ENDS:
            break
    else:
        raise Broken(f"the batch is never done: {machine.said()}")
    judge_end(machine, at, ROWS)
    return code
