"""Files that hold a secret or decide about money: one reader, and two policies for access by others."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from paygw_batch.approval.approval_keys import load_approval_key
from paygw_batch.errors import ConfigurationError
from paygw_batch.gateway.signing.key import load_private_key
from paygw_batch.trusted_files import OtherUsers, read_trusted_file


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_bytes(b"content")
    path.chmod(0o600)
    return path


def test_private_file_is_read_as_trusted(secret: Path) -> None:
    for others in OtherUsers:
        assert read_trusted_file(secret, "it", others) == b"content"
    secret.chmod(0o644)
    assert read_trusted_file(secret, "it", OtherUsers.MAY_READ) == b"content"


@pytest.mark.parametrize(
    ("mode", "others", "hint"),
    [
        (0o640, OtherUsers.MAY_NOTHING, "chmod 600"),
        (0o604, OtherUsers.MAY_NOTHING, "chmod 600"),
        (0o660, OtherUsers.MAY_READ, "chmod go-w"),
        (0o646, OtherUsers.MAY_READ, "chmod go-w"),
    ],
)
def test_accessible_file_is_refused_with_chmod_command(secret: Path, mode: int, others: OtherUsers, hint: str) -> None:
    secret.chmod(mode)
    with pytest.raises(ConfigurationError, match="it is open to") as caught:
        read_trusted_file(secret, "it", others)
    assert caught.value.hint == f"{hint} {secret}"


@pytest.mark.parametrize(
    "read",
    [
        lambda path: read_trusted_file(path, "it", OtherUsers.MAY_READ),
        load_private_key,
        lambda p: load_approval_key(p, None),
    ],
)
def test_file_of_another_user_is_refused_by_readers(
    secret: Path, read: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() == 0:
        os.chown(secret, 65534, 65534)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(ConfigurationError, match="belongs to another user") as caught:
        read(secret)
    assert (caught.value.hint or "").startswith("chown ")


def test_irregular_or_large_file_is_refused_without_waiting(tmp_path: Path, secret: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path, sentence in (
        (tmp_path, "it is not a file"),
        (tmp_path / "pipe", "it is not a file"),
        (tmp_path / "none", "it: no such file"),
    ):
        with pytest.raises(ConfigurationError, match=sentence):
            read_trusted_file(path, "it", OtherUsers.MAY_READ)
    secret.write_bytes(b"x" * 65_537)
    with pytest.raises(ConfigurationError, match="too large to be a key"):
        read_trusted_file(secret, "it", OtherUsers.MAY_NOTHING)
