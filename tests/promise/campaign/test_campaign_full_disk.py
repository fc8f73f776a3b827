"""A full or read-only disk: nothing is sent unrecorded, and no file is half written."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.promise.campaign.judge import judge_end, judge_orders, orders_of
from tests.promise.campaign.kills import ENDS
from tests.promise.campaign.machine import GatewayProcess, Machine, Spawner
from tests.support.long_part import share

ROWS = 12
ELSEWHERE = {"out": "/dev/null", "err": "/dev/null"}  # the program's output does not go to the full disk
MAY_END = {0, 2, 3, 4, 5, 6, 7}


def check_end(machine: Machine, at: GatewayProcess, code: int) -> None:
    assert code in MAY_END, code
    assert not list(machine.home.glob(".paygw-*")), "a temporary file was left behind"
    out = machine.home / "payroll.reconciliation.csv"
    assert not out.exists() or len(machine.reconciliation()) == ROWS
    if not machine.journal.exists() or machine.journal.stat().st_size == 0:
        assert orders_of(machine, at.record()) == []
    else:
        judge_orders(machine, at)


def finish(machine: Machine, at: GatewayProcess, sheet: Path) -> None:
    assert machine.run("submit", sheet) in ENDS, machine.said()
    judge_end(machine, at, ROWS)


@pytest.mark.parametrize("file_bytes", share([0, 1_000, 5_000, 40_000, 70_000, 90_000, 110_000], every=3))
def test_file_size_limit_ends_run_cleanly(machine: Machine, slow_gateway: GatewayProcess, file_bytes: int) -> None:
    sheet = machine.sheet(ROWS)
    check_end(machine, slow_gateway, machine.run("submit", sheet, file_bytes=file_bytes, **ELSEWHERE))
    finish(machine, slow_gateway, sheet)


@pytest.fixture
def small_disk(tmp_path: Path, spawner: Spawner, slow_gateway: GatewayProcess) -> Iterator[Machine]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount: list[str | Path] = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs", disk]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk is not allowed here")
    try:
        yield Machine.create(disk / "home", spawner, slow_gateway, prefix=f"F{abs(hash(tmp_path)) % 10**8}")
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


@pytest.mark.share(4)
@pytest.mark.parametrize("room", [0, 8, 40, 80, 120, 160, 200, 240, 280])
def test_full_disk_ends_run_cleanly(small_disk: Machine, slow_gateway: GatewayProcess, room: int) -> None:
    sheet = small_disk.sheet(ROWS)
    filler = small_disk.home / "filler"
    fill(filler, room * 1024)
    code = small_disk.run("submit", sheet, **ELSEWHERE)
    filler.unlink()
    check_end(small_disk, slow_gateway, code)
    finish(small_disk, slow_gateway, sheet)


def fill(filler: Path, room: int) -> None:
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            file.truncate(max(0, file.tell() - room))


def test_read_only_disk_sends_nothing(small_disk: Machine, slow_gateway: GatewayProcess) -> None:
    sheet = small_disk.sheet(ROWS)
    disk = small_disk.home.parent
    small_disk.start("status").done()
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    assert small_disk.run("submit", sheet, **ELSEWHERE) in {2, 7}
    assert orders_of(small_disk, slow_gateway.record()) == []
    subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
    finish(small_disk, slow_gateway, sheet)
