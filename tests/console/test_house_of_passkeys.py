"""A house of passkeys alone: names without a key let the pages start, and keys are read while they are served."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from paygw_batch.approval.policy import required_policy
from paygw_batch.console.console_app import CurrentPages, console_app, console_of
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
    console = console_of(settings, config=config, environ={}, port=8443)
    assert [(one.name, set(one.roles)) for one in console.members] == [
        ("Ada Wanjiru", {Role.MAKER}),
        ("Ben Okello", {Role.APPROVER}),
        ("Tom Mutua", {Role.ADMINISTRATOR}),
    ]
    assert not console.access.keys
    with pytest.raises(ConfigurationError, match="at most 0 other people"):
        required_policy(settings)
    console.sessions.close()


def asked(pages: Any, path: str) -> str:
    """Return the page at a path, as an ASGI application answers."""
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
        built.append(console_of(load_settings(config, environ={}), config=config, environ={}, port=8443))
        return console_app(built[-1])

    served = CurrentPages(config, pages(), pages, told.append)
    assert "<bdi>Ada Wanjiru</bdi>" in asked(served, "/sign-in")
    text = config.read_text()
    config.write_text(text + "no toml")
    assert "<bdi>Ada Wanjiru</bdi>" in asked(served, "/sign-in")
    assert len(told) == 1
    assert "The pages continue as before." in told[0]
    (tmp_path / "made").mkdir()
    config.write_text(text.replace('"Ada Wanjiru" = []', f'"Ada Njeri" = "{make_key(tmp_path / "made", "Ada")}"'))
    assert "<bdi>Ada Njeri</bdi>" in asked(served, "/sign-in")
    assert len(built) == 2
    assert [one.name for one in built[-1].access.keys.values()] == ["Ada Njeri"]
    for one in built:
        one.sessions.close()
