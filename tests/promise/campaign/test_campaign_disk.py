"""Disk faults in a run: failing calls, and loss of everything that was not synced."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.promise.campaign.judge import Broken
from tests.promise.campaign.machine import GatewayProcess, Machine, Spawner
from tests.promise.campaign.ordinals import KILL, strike
from tests.promise.campaign.power import OrderSent, play, record
from tests.promise.campaign.power_stories import STORIES, play_story
from tests.promise.campaign.tracing import can_trace
from tests.support.long_part import long, share

ROWS = 4


@can_trace
@pytest.mark.parametrize(
    ("call", "fault", "every"),
    [
        ("fdatasync", KILL, 8),
        long("fdatasync", KILL, 2),
        long("fdatasync", "error=EIO", 4),
        long("pwrite64", KILL, 16),
        long("sendto", KILL, 2),
        long("write", "error=ENOSPC", 2),
        long("write", "error=ENOSPC", 1),
        long("rename", KILL, 1),
        long("rename", "error=ENOSPC", 1),
        long("connect", "error=ECONNREFUSED", 3),
    ],
)
def test_system_call_faults_double_or_lose_no_row(
    tmp_path: Path, spawner: Spawner, slow_gateway: GatewayProcess, call: str, fault: str, every: int
) -> None:
    assert strike(tmp_path, spawner, slow_gateway, call, fault, every=every).runs > 0


@pytest.fixture
def in_memory(spawner: Spawner, slow_gateway: GatewayProcess) -> Iterator[Machine]:
    """A machine on a disk in memory, if there is one, because thousands of disks are built on it."""
    shared_memory = Path("/dev/shm")  # noqa: S108 (a directory of our own is made in it)
    with TemporaryDirectory(dir=shared_memory if shared_memory.is_dir() else None) as directory:
        number = hashlib.sha256(directory.encode()).hexdigest()[:8]
        yield Machine.create(Path(directory) / "home", spawner, slow_gateway, prefix=f"P{number}", has_journal=False)


@can_trace
@pytest.mark.parametrize(("every", "disks"), [(45, 8), long(5, 50)])
def test_power_cut_leaves_journal_with_every_sent_order(in_memory: Machine, every: int, disks: int) -> None:
    operations = record(in_memory, "submit", in_memory.sheet(ROWS))
    assert len({operation.order_id for operation in operations if isinstance(operation, OrderSent)}) == ROWS
    assert play(in_memory, operations, every=every) > disks


@can_trace
@pytest.mark.parametrize(
    ("planted", "every"),
    [
        long("plants:synchronous_normal", 9),
        long("plants:synchronous_normal", 3),
        long("plants:synchronous_off", 3),
        long("plants:sent_log_not_synced", 3),
    ],
)
def test_power_cut_test_detects_planted_bug(in_memory: Machine, planted: str, every: int) -> None:
    operations = record(in_memory, "submit", in_memory.sheet(ROWS), planted=planted)
    with pytest.raises(Broken, match=r"had begun to leave|does not open"):
        play(in_memory, operations, every=every)


@can_trace
@pytest.mark.parametrize("story", share(STORIES, every=len(STORIES)))
def test_power_cut_undoes_no_reported_result(in_memory: Machine, story: str) -> None:
    assert play_story(in_memory, STORIES[story], every=4) > 2


@can_trace
@pytest.mark.parametrize(
    ("story", "planted", "what"),
    [
        ("listen", "plants:notifications_not_synced", "were answered with 200"),
        long("resolve", "plants:synchronous_off", "was called paid|does not open|fact"),
        long("retry", "plants:sent_log_not_synced", "it is noted"),
        long("approve", "plants:plan_in_place", "no plan any more|approvals"),
        long("backup", "plants:backup_not_synced", "is gone|is no copy|is damaged"),
    ],
)
def test_power_cut_story_detects_planted_bug(in_memory: Machine, story: str, planted: str, what: str) -> None:
    with pytest.raises(Broken, match=what):
        play_story(in_memory, STORIES[story], planted=planted)
