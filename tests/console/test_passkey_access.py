"""Tests sign-ins and invitations by passkey without a browser, and keys added while the pages are served."""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from paygw_batch.approval.approval_keys import PublicKey, RelyingParty, passkey_challenge, to_base64url
from paygw_batch.approval.policy import require_policy
from paygw_batch.console.console_app import ReloadingApp, build_console, console_app
from paygw_batch.console.passkey_access import (
    Invitations,
    SignIns,
    StoredSessions,
    find_signing_key,
    invitation_challenge,
    parse_new_passkey,
    sign_in_text,
)
from paygw_batch.console.permissions import Role
from paygw_batch.errors import ConfigurationError
from paygw_batch.settings.configuration import load_settings
from tests.support.clocks import ManualClock
from tests.support.keyed_people import ADA, CLEO, STRANGER, TOKEN, key_form
from tests.support.people import make_key
from tests.support.program import Program
from tests.support.software_passkey import CONSOLE, ELSEWHERE, SoftwarePasskey, passkey

NOW = datetime(2026, 11, 22, 8, tzinfo=UTC)


@pytest.fixture
def kept(journal: Path) -> Iterator[StoredSessions]:
    with closing(StoredSessions(journal)) as sessions:
        yield sessions


@pytest.fixture
def open_sign_ins(clock: ManualClock, kept: StoredSessions) -> SignIns:
    numbers = count(1)
    return SignIns(kept, now_s=clock, new_nonce=lambda: f"nonce-{next(numbers)}")


def test_sign_in_ends_once_within_five_minutes(open_sign_ins: SignIns, clock: ManualClock) -> None:
    first, second = open_sign_ins.begin(), open_sign_ins.begin()
    clock.now_s += 299
    assert [open_sign_ins.complete(first), open_sign_ins.complete(first)] == [True, False]
    clock.now_s += 2
    assert not open_sign_ins.complete(second)


def test_opening_many_sign_ins_writes_nothing(open_sign_ins: SignIns, journal: Path) -> None:
    def file_sizes() -> list[int]:
        return [path.stat().st_size for path in sorted(journal.parent.glob(f"{journal.name}.sessions*"))]

    sign_in_nonce, before = open_sign_ins.begin(), file_sizes()
    for _ in range(10_001):
        open_sign_ins.begin()
    assert file_sizes() == before
    assert open_sign_ins.complete(sign_in_nonce)


def test_sign_ins_survive_restart(open_sign_ins: SignIns, clock: ManualClock, journal: Path) -> None:
    open_one, used = open_sign_ins.begin(), open_sign_ins.begin()
    assert open_sign_ins.complete(used)
    with closing(StoredSessions(journal)) as later:
        again = SignIns(later, now_s=clock, new_nonce=lambda: "x")
        assert not again.complete(used)
        assert again.complete(open_one)
    assert not open_sign_ins.complete(open_one)


def test_altered_or_unknown_sign_in_nonce_is_refused(open_sign_ins: SignIns, tmp_path: Path) -> None:
    nonce = open_sign_ins.begin()
    altered = [nonce[:at] + ("1" if one == "0" else "0") + nonce[at + 1 :] for at, one in enumerate(nonce)]
    unknown = ["", ".", "..", nonce + "0", nonce[1:], nonce.rpartition(".")[0], "\u00e4." + nonce, "nonce-of-nobody"]
    with closing(StoredSessions(tmp_path / "other.sqlite3")) as elsewhere:
        unknown.append(SignIns(elsewhere, now_s=ManualClock(), new_nonce=lambda: "x").begin())
    assert [other for other in altered + unknown if open_sign_ins.complete(other)] == []
    assert open_sign_ins.complete(nonce)


SIGN_IN = sign_in_text("nonce-1")
APPROVAL = b"paygw-batch plan 5 approval\n" + SIGN_IN.split(b"\n", 1)[1]


@pytest.mark.parametrize(
    ("key", "text", "party", "person"),
    [
        *((ADA, SIGN_IN, CONSOLE, ADA.public), (CLEO, SIGN_IN, CONSOLE, CLEO.public)),
        *((STRANGER, SIGN_IN, CONSOLE, None), (ADA, SIGN_IN, ELSEWHERE, None), (ADA, APPROVAL, CONSOLE, None)),
        (ADA, SIGN_IN, RelyingParty(CONSOLE.origin + ":8443"), None),
        (ADA, sign_in_text("nonce-2"), CONSOLE, None),
    ],
)
def test_only_signature_for_this_sign_in_identifies_person(
    key: SoftwarePasskey, text: bytes, party: RelyingParty, person: PublicKey | None
) -> None:
    assert text is APPROVAL or text.startswith(b"paygw-batch sign-in 1\n")
    assert find_signing_key("nonce-1", key.sign(text), (ADA.public, CLEO.public), party) == person


@pytest.mark.parametrize("key", [ADA, CLEO, passkey("ed25519")])
def test_new_passkey_line_is_parsed_as_key(key: SoftwarePasskey) -> None:
    assert parse_new_passkey(key_form(key), TOKEN, CONSOLE) == key.public
    assert invitation_challenge(TOKEN) == passkey_challenge(b"paygw-batch invitation 1\n" + TOKEN.encode())


REFUSED = {
    "for another invitation": key_form(token="U" * 43),
    "an assertion": key_form(kind="webauthn.get"),
    "at another address": key_form(passkey("p-ada", ELSEWHERE)),
    "nobody present": key_form() | {"authenticator_data": to_base64url(ADA.authenticator_data(0x44, more=b"\0" * 9))},
    "nobody verified": key_form() | {"authenticator_data": to_base64url(ADA.authenticator_data(0x41, more=b"\0" * 9))},
    "no key": key_form() | {"authenticator_data": to_base64url(ADA.authenticator_data(0x05))},
    "too short": key_form() | {"authenticator_data": to_base64url(b"\0" * 36)},
    "no base64": key_form() | {"public_key": "*"},
    "readable public key": key_form() | {"public_key": to_base64url(b"\0" * 91)},
    "nothing": {},
}


@pytest.mark.parametrize("altered", REFUSED)
def test_invalid_new_passkey_is_refused(altered: str) -> None:
    assert parse_new_passkey(REFUSED[altered], TOKEN, CONSOLE) is None


def test_invitation_works_once_and_stores_no_token(tmp_path: Path) -> None:
    invitations = Invitations(folder := tmp_path / "console" / "invitations")
    invitations.invite("Ben Okello", TOKEN, NOW)
    (file,) = folder.iterdir()
    assert [path.stat().st_mode & 0o777 for path in (folder, file)] == [0o700, 0o600]
    assert TOKEN not in file.name + file.read_text()
    for unknown in ("", "x", "U" * 43, "../" + "T" * 40, "T" * 42 + "\0", "T" * 44, "\u00e4" * 43):
        assert invitations.invitation(unknown, NOW) is None, unknown
    stored = invitations.invitation(TOKEN, NOW)
    assert stored == {"name": "Ben Okello", "expires_at": "2026-11-23T08:00:00.000Z"}
    assert invitations.invitation(TOKEN, NOW) == stored
    assert invitations.use(TOKEN, "ab:cd", NOW) == ("Ben Okello", True)
    assert invitations.use(TOKEN, "ab:cd", NOW) == ("Ben Okello", False)  # This is a second click.
    assert invitations.use(TOKEN, "ef:01", NOW) is None
    assert invitations.invitation(TOKEN, NOW) is None
    assert invitations.use(TOKEN, "ab:cd", NOW + timedelta(hours=24)) is None
    assert invitations.invitation(TOKEN, NOW) is None


def test_invitation_expires_after_a_day(tmp_path: Path) -> None:
    invitations = Invitations(tmp_path)
    invitations.invite("Ben Okello", TOKEN, NOW)
    assert invitations.invitation(TOKEN, NOW + timedelta(hours=24) - timedelta(seconds=1)) is not None
    assert invitations.invitation(TOKEN, NOW + timedelta(hours=24)) is None
    assert invitations.use(TOKEN, "ab:cd", NOW + timedelta(hours=24)) is None


NAMES = """
[approval.makers]
"Ada Wanjiru" = []
[approval.approvers]
"Ben Okello" = []
[console]
origin = "http://localhost:8443"
[console.administrators]
"Tom Mutua" = []
"""


@pytest.fixture
def config(program: Program) -> Path:
    program.config.write_text(program.config.read_text() + NAMES)
    return program.config


def test_console_starts_without_keys_but_cannot_approve(config: Path) -> None:
    settings = load_settings(config, environ={})
    console = build_console(settings, config=config, environ={}, port=8443)
    roles = {"Ada Wanjiru": {Role.MAKER}, "Ben Okello": {Role.APPROVER}, "Tom Mutua": {Role.ADMINISTRATOR}}
    assert {member.name: set(member.roles) for member in console.members} == roles
    assert not console.access.keys
    with pytest.raises(ConfigurationError, match="at most 0 other people"):
        require_policy(settings)
    console.sessions.close()


def request_page(pages: Any, path: str) -> str:
    parts: list[bytes] = []

    async def send(message: Any) -> None:
        parts.append(message.get("body", b""))

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b""}
    scope |= {"headers": [(b"host", b"localhost:8443")], "http_version": "1.1", "scheme": "http"}
    asyncio.run(pages(scope, receive, send))
    return b"".join(parts).decode()


def test_added_keys_work_without_restart(config: Path, tmp_path: Path) -> None:
    told, built = list[str](), list[Any]()

    def pages() -> Any:
        built.append(build_console(load_settings(config, environ={}), config=config, environ={}, port=8443))
        return console_app(built[-1])

    served = ReloadingApp(config, pages(), pages, told.append)
    assert "<bdi>Ada Wanjiru</bdi>" in request_page(served, "/sign-in")
    text = config.read_text()
    config.write_text(text + "no toml")
    assert "<bdi>Ada Wanjiru</bdi>" in request_page(served, "/sign-in")
    assert [("The console still uses the previous one." in line) for line in told] == [True]
    (tmp_path / "made").mkdir()
    config.write_text(text.replace('"Ada Wanjiru" = []', f'"Ada Njeri" = "{make_key(tmp_path / "made", "Ada")}"'))
    assert "<bdi>Ada Njeri</bdi>" in request_page(served, "/sign-in")
    assert len(built) == 2
    assert [member.name for member in built[-1].access.keys.values()] == ["Ada Njeri"]
    for console in built:
        console.sessions.close()
