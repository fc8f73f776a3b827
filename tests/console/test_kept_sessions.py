"""Sessions outlive the process that serves the pages, and nothing else: idle time, eight hours, a key that is gone."""

import hashlib
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from paygw_batch.approval.approval_keys import PublicKey
from paygw_batch.console.passkey_access import KeptSessions, SignedInKey, SignInWay, WebSessions
from paygw_batch.console.permissions import Member, Role
from paygw_batch.errors import JournalError, SessionsBroken
from tests.support.journal_disk import failing_disk
from tests.support.people import APPROVER, AUDITOR, MAKER, ORIGIN, House
from tests.support.software_passkey import passkey

ADA, BEN = Member("Ada", frozenset({Role.MAKER})), Member("Ben", frozenset({Role.APPROVER}))
KEY = passkey("p-ada").public
BOTH = frozenset(SignInWay)


class Clock:
    """A clock that a test turns."""

    def __init__(self) -> None:
        self.now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite3"


@pytest.fixture
def serve(journal: Path, clock: Clock) -> Iterator[Callable[..., WebSessions]]:
    """Return a function that starts the console anew, with these people and keys in its configuration."""
    running: list[WebSessions] = []

    def start(
        members: Collection[Member] = (ADA, BEN),
        keys: Mapping[PublicKey, Member] | None = None,
        ways: Collection[SignInWay] = BOTH,
    ) -> WebSessions:
        while running:
            running.pop().close()
        known = {KEY: ADA} if keys is None else keys
        running.append(
            WebSessions(
                KeptSessions(journal),
                members=members,
                keys=known,
                ways=ways,
                idle_s=900,
                at_most_s=28_800,
                now_s=clock,
            )
        )
        return running[-1]

    yield start
    while running:
        running.pop().close()


Serve = Callable[..., WebSessions]


def test_session_ends_when_idle_or_after_workday(serve: Serve, clock: Clock) -> None:
    sessions = serve()
    found = sessions.sign_in(ADA, "", SignInWay.LIST)
    for _ in range(31):
        clock.now_s += 899
        assert sessions.session(found) is not None
        sessions.session(found, is_poll=True)
    clock.now_s += 931
    assert sessions.session(found) is None  # it was used all the time, and its eight hours are over
    found = sessions.sign_in(ADA, "", SignInWay.LIST)
    clock.now_s += 600
    assert sessions.session(found, is_poll=True) is not None
    clock.now_s += 301
    assert sessions.session(found) is None  # a page that asks by itself is nobody at the keyboard


def test_restart_keeps_sessions_without_lengthening(serve: Serve, clock: Clock) -> None:
    before = serve()
    found = before.sign_in(ADA, "", SignInWay.PASSKEY, SignedInKey(KEY, "credential"))
    session = before.session(found)
    clock.now_s += 899
    after = serve().session(found)
    assert after == session
    assert after is not None
    assert after.passkey == SignedInKey(KEY, "credential")
    clock.now_s += 901
    assert serve().session(found) is None
    assert serve().session(found) is None


def test_removed_key_signs_out_everywhere_for_good(serve: Serve) -> None:
    sessions = serve()
    at_work, at_home = (
        sessions.sign_in(ADA, "", SignInWay.PASSKEY, SignedInKey(KEY, place)) for place in ("work", "home")
    )
    by_another = sessions.sign_in(BEN, "", SignInWay.LIST)
    without = serve(keys={})
    assert without.session(at_work) is None
    assert without.session(by_another) is not None
    assert serve().session(at_home) is None  # also when the key comes back


@pytest.mark.parametrize(
    "changed",
    [
        {"members": [BEN]},
        {"keys": {KEY: BEN}},
        {"ways": {SignInWay.LIST}},
    ],
    ids=["the person left", "the key is another's now", "nobody signs in that way any more"],
)
def test_session_ends_when_member_or_key_changes(serve: Serve, changed: dict[str, object]) -> None:
    found = serve().sign_in(ADA, "", SignInWay.PASSKEY, SignedInKey(KEY, ""))
    assert serve(**changed).session(found) is None


def test_session_role_comes_from_configuration(serve: Serve) -> None:
    found = serve().sign_in(ADA, "", SignInWay.LIST)
    moved = Member("Ada", frozenset({Role.AUDITOR}))
    session = serve(members=[moved]).session(found)
    assert session is not None
    assert session.member == moved


def test_clock_set_back_ends_sessions(serve: Serve, clock: Clock) -> None:
    sessions = serve()
    found = sessions.sign_in(ADA, "", SignInWay.LIST)
    clock.now_s -= 30  # as time servers do
    assert sessions.session(found) is not None
    clock.now_s -= 3600
    assert sessions.session(found) is None


def test_session_file_has_no_secrets_and_is_private(serve: Serve, journal: Path) -> None:
    sessions = serve()
    found = sessions.sign_in(ADA, "", SignInWay.LIST)
    session = sessions.session(found)
    assert session is not None
    files = list(journal.parent.iterdir())
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    content = b"".join(path.read_bytes() for path in files)
    assert hashlib.sha256(found.encode()).digest() in content
    for secret in (found, session.csrf_token):
        assert secret.encode() not in content


def test_session_limit_ends_oldest_session(serve: Serve, clock: Clock, journal: Path) -> None:
    sessions = serve()
    first = sessions.sign_in(ADA, "", SignInWay.LIST)
    clock.now_s += 1
    second = sessions.sign_in(ADA, "", SignInWay.LIST)
    later_s = clock.now_s + 1
    with closing(sqlite3.connect(journal.with_name(f"{journal.name}.sessions"))) as other, other:
        rows = [(n.to_bytes(4, "big"), "Ada", "list", "", "", later_s, later_s) for n in range(998)]
        other.executemany("INSERT INTO session VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
    clock.now_s += 2
    sessions.sign_in(ADA, "", SignInWay.LIST)
    assert sessions.session(first) is None
    assert sessions.session(second) is not None


def test_full_disk_prevents_sign_in_but_not_reading(journal: Path, clock: Clock) -> None:
    with failing_disk() as disk, closing(KeptSessions(journal)) as kept:
        sessions = WebSessions(kept, members=[ADA], keys={}, ways=BOTH, idle_s=900, at_most_s=28_800, now_s=clock)
        found = sessions.sign_in(ADA, "", SignInWay.LIST)
        clock.now_s += 60
        disk.fail_at = disk.operations + 1
        assert sessions.session(found) is not None
        disk.fail_at = disk.operations + 1
        with pytest.raises(SessionsBroken):
            sessions.sign_in(ADA, "", SignInWay.LIST)


@pytest.mark.parametrize("content", [b"SQLite format 3\0" + b"x" * 4096, b"nothing of ours " * 300])
def test_damaged_session_file_is_refused_with_hint(journal: Path, content: bytes) -> None:
    path = journal.with_name(f"{journal.name}.sessions")
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(SessionsBroken) as refused:
        KeptSessions(journal)
    assert "Everyone then signs in again" in refused.value.hint


def test_session_file_readable_by_others_is_refused(serve: Serve, journal: Path) -> None:
    serve().close()
    journal.with_name(f"{journal.name}.sessions").chmod(0o644)
    with pytest.raises(JournalError, match="can be read or written by others"):
        KeptSessions(journal)


# On the pages


def test_sessions_survive_console_restart(house: House) -> None:
    people = {name: house.person(name) for name in (MAKER, APPROVER, AUDITOR)}
    tokens = {name: person.token("/") for name, person in people.items()}
    house.console.sessions.close()
    again = House(house.program)
    for name, person in people.items():
        new = again.stranger()
        new.client.cookies.set("payouts", person.client.cookies["payouts"])
        assert name in new.get("/").text
        assert new.token("/") == tokens[name]  # a form that was open is still taken
    form = {"csrf": tokens[MAKER]}
    left = again.stranger()
    left.client.cookies.set("payouts", people[MAKER].client.cookies["payouts"])
    assert left.ask("POST", "/sign-out", data=form, headers={"origin": ORIGIN}).status_code == 303
    assert left.get("/").status_code == 303
