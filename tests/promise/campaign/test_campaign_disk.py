"""Disk faults in a run: failing calls, and loss of everything that was not synced."""

import hashlib
import http.client
import json
import signal
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from paygw_batch.approval.plan_document import read_plan
from paygw_batch.core.lifecycle import State
from paygw_batch.errors import PaygwError
from paygw_batch.journal.sqlite.connect import connect, fetch
from tests.promise.campaign.judge import Broken
from tests.promise.campaign.machine import TOKEN, GatewayProcess, Machine, Run, Spawner, can_trace
from tests.promise.campaign.ordinals import KILL, strike
from tests.promise.campaign.power import (
    Disk,
    Look,
    OrderSent,
    check_journal,
    files_of,
    open_as_configured,
    play,
    record,
)
from tests.support.approving import policy
from tests.support.long_part import long, share
from tests.support.patience import PATIENCE_S, wait_until
from tests.support.ports import accepts_connections, free_port

FEW_ROWS = 4


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
def test_failing_system_calls_lose_no_row(
    tmp_path: Path, spawner: Spawner, slow_gateway: GatewayProcess, call: str, fault: str, every: int
) -> None:
    assert strike(tmp_path, spawner, slow_gateway, call, fault, every=every).total() > 0


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
    operations = record(in_memory, "submit", in_memory.sheet(FEW_ROWS))
    assert len({operation.order_id for operation in operations if isinstance(operation, OrderSent)}) == FEW_ROWS
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
    operations = record(in_memory, "submit", in_memory.sheet(FEW_ROWS), planted=planted)
    with pytest.raises(Broken, match=r"had begun to leave|does not open"):
        play(in_memory, operations, every=every)


ROWS = 8
DECLINED_ROW, DOUBTFUL_ROW = 5, 9  # the campaign's gateway declines orders that end in 3, and drops those that end in 7
NOTIFICATIONS = 6


@dataclass(frozen=True, slots=True)
class Story:
    prepare: Callable[[Machine], None]
    command: tuple[str, ...]
    look: Look
    meanwhile: Callable[[Machine], Callable[[Run], None]] | None = None


def play_story(machine: Machine, story: Story, *, every: int = 1, planted: str | None = None) -> int:
    """Cut the power in a story after each `every`-th operation. Return the number of disks checked."""
    if not machine.journal.exists() and machine.run("journal", "new") != 0:
        raise AssertionError(f"no journal was created: {machine.said()}")
    story.prepare(machine)
    before = files_of(machine)
    meanwhile = None if story.meanwhile is None else story.meanwhile(machine)
    operations = record(machine, *_command(machine, story.command), planted=planted, meanwhile=meanwhile)
    return play(machine, operations, before=before, every=every, look=story.look)


def _command(machine: Machine, words: Sequence[str]) -> list[str]:
    files = (".csv", ".json", ".pem", ".sqlite3")
    return [str(machine.home / word) if word.endswith(files) else word for word in words]


def _submit_sheet(machine: Machine) -> None:
    if (code := machine.run("submit", machine.sheet(ROWS))) not in {4, 5}:
        raise AssertionError(f"exit code {code}: {machine.said()}")


def _after_resolve(machine: Machine, disk: Disk, when: str, is_over: bool) -> None:
    check_journal(machine, disk.sent, when)
    state = _state_of(machine, DOUBTFUL_ROW)
    if state not in {State.IN_DOUBT, State.PAID} or (is_over and state is not State.PAID):
        raise Broken(f"{when}: row {DOUBTFUL_ROW} is {state}, and was called paid")


def _after_retry(machine: Machine, disk: Disk, when: str, is_over: bool) -> None:
    check_journal(machine, disk.sent, when)
    if is_over and not disk.sent:
        raise Broken(f"{when}: nothing left")
    if disk.sent and _state_of(machine, DECLINED_ROW) is State.READY:
        raise Broken(f"{when}: row {DECLINED_ROW} had begun to leave again, and is ready")


def _state_of(machine: Machine, row: int) -> State:
    with closing(open_as_configured(machine)) as journal:
        stored = next(journal.rows(1, numbers=[row]), None)
    if stored is None:
        raise Broken(f"row {row} is gone")
    return stored.state


def _enable_listener(machine: Machine) -> None:
    machine.enable_listener('[notifications]\ntoken_env = "PAYGW_TOKEN"\n', free_port())


def _notify(machine: Machine) -> Callable[[Run], None]:
    port = int((machine.home / "paygw.toml").read_text().rsplit("port = ", 1)[1])

    def notify(run: Run) -> None:
        wait_until(lambda: run.wait(0.02) is not None or accepts_connections(port), machine.said)
        for number in range(NOTIFICATIONS):
            fields = {"client_orderid": f"PAY-{number}", "amount": "1", "currency": "KES", "status": "approved"}
            with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)) as connection:
                connection.request("POST", f"/paygw/{TOKEN}", json.dumps(fields), {"Content-Type": "application/json"})
                if (status := connection.getresponse().status) != 200:
                    raise AssertionError(f"a notification was answered with {status}: {machine.said()}")
        run.send(signal.SIGTERM)

    return notify


def _after_notifications(machine: Machine, disk: Disk, when: str, is_over: bool) -> None:
    kept = 0
    if machine.journal.exists():
        try:
            with closing(connect(machine.journal, write=True)) as connection:
                ((kept,),) = fetch(connection, "SELECT count(*) FROM fact WHERE kind = 'arrived'")
        except PaygwError as error:
            raise Broken(f"{when}: the journal does not open: {error.message}") from None
    if kept < disk.answered:
        raise Broken(f"{when}: {disk.answered} notifications were answered with 200, and {kept} are kept")
    if is_over and disk.answered != NOTIFICATIONS:
        raise Broken(f"{when}: {disk.answered} answers of {NOTIFICATIONS} were seen")


def _enable_approval(machine: Machine) -> None:
    with (machine.home / "paygw.toml").open("a") as file:
        file.write(policy(machine.home).replace("1000", "0"))
    machine.sheet(3)


def _make_plan(machine: Machine) -> None:
    _enable_approval(machine)
    if code := machine.run(*_command(machine, PLAN)):
        raise AssertionError(f"exit code {code}: {machine.said()}")


def _approvals(machine: Machine, when: str) -> int | None:
    path = machine.home / "payroll.plan.json"
    try:
        return len(read_plan(path).approvals) if path.exists() else None
    except PaygwError as error:
        raise Broken(f"{when}: the plan is no plan any more: {error.message}") from None


def _after_plan(machine: Machine, _disk: Disk, when: str, is_over: bool, *, wanted: int = 0) -> None:
    stored = _approvals(machine, when)
    if (is_over and stored != wanted) or (wanted and stored is None):
        raise Broken(f"{when}: the plan has {stored} approvals")


def _after_backup(machine: Machine, disk: Disk, when: str, is_over: bool) -> None:
    copy = machine.home / "friday.sqlite3"
    if not copy.exists():
        if is_over:
            raise Broken(f"{when}: the backup is gone")
    elif _facts(copy) != _facts(machine.journal):
        raise Broken(f"{when}: the backup is no copy of the journal")
    check_journal(machine, disk.sent, when)


def _facts(path: Path) -> list[tuple[int, bytes]]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        try:
            if connection.execute("PRAGMA integrity_check").fetchall() != [("ok",)]:
                raise Broken(f"{path.name} is damaged")
            return connection.execute("SELECT number, hash FROM fact ORDER BY number").fetchall()
        except sqlite3.DatabaseError as error:
            raise Broken(f"{path.name} is damaged: {error}") from None


PLAN = ("plan", "payroll.csv", "--out", "payroll.plan.json", "--key", "ada.pem")
STORIES = {
    "resolve": Story(
        _submit_sheet,
        ("resolve", "row", "payroll.csv", str(DOUBTFUL_ROW), "--as", "paid", "--evidence", "letter", "--by", "amina"),
        _after_resolve,
    ),
    "retry": Story(_submit_sheet, ("retry", "payroll.csv"), _after_retry),
    "listen": Story(_enable_listener, ("listen",), _after_notifications, _notify),
    "plan": Story(_enable_approval, PLAN, _after_plan),
    "approve": Story(_make_plan, ("approve", "payroll.plan.json", "--key", "cleo.pem"), partial(_after_plan, wanted=1)),
    "backup": Story(_submit_sheet, ("backup", "friday.sqlite3"), _after_backup),
}


@can_trace
@pytest.mark.parametrize("story", share(STORIES, every=len(STORIES)))
def test_power_cut_keeps_reported_results(in_memory: Machine, story: str) -> None:
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
