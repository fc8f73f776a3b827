"""Tests that sessions survive a restart, and end after idling, eight hours, or a removed key."""

import hashlib
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from paygw_batch.console.passkey_access import SignInKey, SignInMethod, StoredSessions, WebSessions
from paygw_batch.console.permissions import Member, Role
from paygw_batch.errors import JournalError, SessionsBroken
from tests.support.clocks import ManualClock
from tests.support.journal_disk import failing_disk
from tests.support.people import APPROVER, AUDITOR, MAKER, ORIGIN, House
from tests.support.software_passkey import passkey

ADA, BEN = Member("Ada", frozenset({Role.MAKER})), Member("Ben", frozenset({Role.APPROVER}))
KEY = passkey("p-ada").public
BOTH = frozenset(SignInMethod)
LIMITS = {"idle_s": 900, "max_age_s": 28_800}


@pytest.fixture
def restart(journal: Path, clock: ManualClock) -> Iterator[Callable[..., WebSessions]]:
    """Return a function that restarts the sessions with other people and keys."""
    running: list[WebSessions] = []

    def start(**changed: Any) -> WebSessions:
        while running:
            running.pop().close()
        given = {"members": (ADA, BEN), "keys": {KEY: ADA}, "methods": BOTH, **LIMITS, **changed}
        running.append(WebSessions(StoredSessions(journal), now_s=clock, **given))
        return running[-1]

    yield start
    while running:
        running.pop().close()


Serve = Callable[..., WebSessions]


def test_session_ends_when_idle_or_too_old(restart: Serve, clock: ManualClock) -> None:
    sessions = restart()
    session_id = sessions.sign_in(ADA, "", SignInMethod.LIST)
    for _ in range(31):
        clock.now_s += 899
        assert sessions.session(session_id) is not None
        sessions.session(session_id, is_poll=True)
    clock.now_s += 931
    assert sessions.session(session_id) is None  # Despite constant use, its eight hours are over.
    session_id = sessions.sign_in(ADA, "", SignInMethod.LIST)
    clock.now_s += 600
    assert sessions.session(session_id, is_poll=True) is not None
    clock.now_s += 301
    assert sessions.session(session_id) is None  # A poll does not count as use.
    session_id = sessions.sign_in(ADA, "", SignInMethod.LIST)
    clock.now_s -= 30  # Time servers do this.
    assert sessions.session(session_id) is not None
    clock.now_s -= 3600
    assert sessions.session(session_id) is None


def test_restart_does_not_prolong_sessions(restart: Serve, clock: ManualClock) -> None:
    before = restart()
    session_id = before.sign_in(ADA, "", SignInMethod.PASSKEY, SignInKey(KEY, "credential"))
    session = before.session(session_id)
    clock.now_s += 899
    assert session is not None
    assert (restart().session(session_id), session.passkey) == (session, SignInKey(KEY, "credential"))
    clock.now_s += 901
    assert [restart().session(session_id) for _ in range(2)] == [None, None]


def test_removing_key_ends_its_sessions_permanently(restart: Serve) -> None:
    sessions = restart()
    keys = (SignInKey(KEY, place) for place in ("work", "home"))
    at_work, at_home = (sessions.sign_in(ADA, "", SignInMethod.PASSKEY, key) for key in keys)
    by_another = sessions.sign_in(BEN, "", SignInMethod.LIST)
    without = restart(keys={})
    assert without.session(at_work) is None
    assert without.session(by_another) is not None
    assert restart().session(at_home) is None  # It stays signed out after the key returns.


@pytest.mark.parametrize("changed", [{"members": [BEN]}, {"keys": {KEY: BEN}}, {"methods": {SignInMethod.LIST}}])
def test_session_ends_when_member_or_key_changes(restart: Serve, changed: dict[str, object]) -> None:
    session_id = restart().sign_in(ADA, "", SignInMethod.PASSKEY, SignInKey(KEY, ""))
    assert restart(**changed).session(session_id) is None


def test_session_role_follows_current_configuration(restart: Serve) -> None:
    session_id = restart().sign_in(ADA, "", SignInMethod.LIST)
    session = restart(members=[moved := Member("Ada", frozenset({Role.AUDITOR}))]).session(session_id)
    assert getattr(session, "member", None) == moved


def test_session_file_has_no_secrets_and_is_private(restart: Serve, journal: Path) -> None:
    sessions = restart()
    session_id = sessions.sign_in(ADA, "", SignInMethod.LIST)
    session = sessions.session(session_id)
    assert session is not None
    files = list(journal.parent.iterdir())
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    content = b"".join(path.read_bytes() for path in files)
    assert hashlib.sha256(session_id.encode()).digest() in content
    for secret in (session_id, session.csrf_token):
        assert secret.encode() not in content


def test_session_limit_ends_oldest_session(restart: Serve, clock: ManualClock, journal: Path) -> None:
    sessions = restart()
    first = sessions.sign_in(ADA, "", SignInMethod.LIST)
    clock.now_s += 1
    second = sessions.sign_in(ADA, "", SignInMethod.LIST)
    later_s = clock.now_s + 1
    with closing(sqlite3.connect(journal.with_name(f"{journal.name}.sessions"))) as other, other:
        rows = [(n.to_bytes(4, "big"), "Ada", "list", "", "", later_s, later_s) for n in range(998)]
        other.executemany("INSERT INTO session VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
    clock.now_s += 2
    sessions.sign_in(ADA, "", SignInMethod.LIST)
    assert sessions.session(first) is None
    assert sessions.session(second) is not None


def test_full_disk_prevents_sign_in_but_not_reading(journal: Path, clock: ManualClock) -> None:
    with failing_disk() as disk, closing(StoredSessions(journal)) as kept:
        sessions = WebSessions(kept, members=[ADA], keys={}, methods=BOTH, now_s=clock, **LIMITS)
        session_id = sessions.sign_in(ADA, "", SignInMethod.LIST)
        clock.now_s += 60
        disk.fail_at = disk.operations + 1
        assert sessions.session(session_id) is not None
        disk.fail_at = disk.operations + 1
        with pytest.raises(SessionsBroken):
            sessions.sign_in(ADA, "", SignInMethod.LIST)


@pytest.mark.parametrize("content", [b"SQLite format 3\0" + b"x" * 4096, b"nothing of ours " * 300])
def test_damaged_or_readable_session_file_is_refused(journal: Path, content: bytes) -> None:
    path = journal.with_name(f"{journal.name}.sessions")
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(SessionsBroken) as refused:
        StoredSessions(journal)
    assert "Everyone must then sign in again" in refused.value.hint
    path.chmod(0o644)
    with pytest.raises(JournalError, match="Other users can read or change"):
        StoredSessions(journal)


def test_sessions_survive_console_restart(house: House) -> None:
    people = [house.person(name) for name in (MAKER, APPROVER, AUDITOR)]
    tokens = [person.token("/") for person in people]
    house.console.sessions.close()
    again = House(house.program)
    for person, token in zip(people, tokens, strict=True):
        browser = again.stranger()
        browser.client.cookies.set("payouts", person.client.cookies["payouts"])
        assert person.name in browser.get("/").text
        assert browser.token("/") == token  # An open form is still accepted.
        assert browser.ask("POST", "/sign-out", data={"csrf": token}, headers={"origin": ORIGIN}).status_code == 303
        assert browser.get("/").status_code == 303
