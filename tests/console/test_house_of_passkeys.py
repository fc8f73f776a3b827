"""Tests a console whose people have only passkeys, added while the pages are served."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from paygw_batch.approval.policy import require_policy
from paygw_batch.console.console_app import ReloadingApp, build_console, console_app
from paygw_batch.console.permissions import Role
from paygw_batch.errors import ConfigurationError
from paygw_batch.settings.configuration import load_settings
from tests.support.people import make_key
from tests.support.program import sandbox_toml

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
def config(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    path = tmp_path / "paygw.toml"
    path.write_text(sandbox_toml() + NAMES)
    return path


def test_console_starts_without_keys_but_cannot_approve(config: Path) -> None:
    settings = load_settings(config, environ={})
    console = build_console(settings, config=config, environ={}, port=8443)
    assert [(member.name, set(member.roles)) for member in console.members] == [
        ("Ada Wanjiru", {Role.MAKER}),
        ("Ben Okello", {Role.APPROVER}),
        ("Tom Mutua", {Role.ADMINISTRATOR}),
    ]
    assert not console.access.keys
    with pytest.raises(ConfigurationError, match="at most 0 other people"):
        require_policy(settings)
    console.sessions.close()


def request_page(pages: Any, path: str) -> str:
    """Return the answer of an ASGI application for a path."""
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
    told: list[str] = []
    built: list[Any] = []

    def pages() -> Any:
        built.append(build_console(load_settings(config, environ={}), config=config, environ={}, port=8443))
        return console_app(built[-1])

    served = ReloadingApp(config, pages(), pages, told.append)
    assert "<bdi>Ada Wanjiru</bdi>" in request_page(served, "/sign-in")
    text = config.read_text()
    config.write_text(text + "no toml")
    assert "<bdi>Ada Wanjiru</bdi>" in request_page(served, "/sign-in")
    assert len(told) == 1
    assert "The pages continue as before." in told[0]
    (tmp_path / "made").mkdir()
    config.write_text(text.replace('"Ada Wanjiru" = []', f'"Ada Njeri" = "{make_key(tmp_path / "made", "Ada")}"'))
    assert "<bdi>Ada Njeri</bdi>" in request_page(served, "/sign-in")
    assert len(built) == 2
    assert [member.name for member in built[-1].access.keys.values()] == ["Ada Njeri"]
    for console in built:
        console.sessions.close()
