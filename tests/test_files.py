"""Files are private to their owner, written whole or not at all, and trusted only if others cannot change them."""

import errno
import os
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path

import polars as pl
import pytest

from paygw_batch.approval.approval_keys import load_approval_key
from paygw_batch.errors import ConfigurationError, OutputError
from paygw_batch.files import (
    append_line,
    atomic_file,
    build_output_error,
    create_if_missing,
    create_temporary_file,
    read_regular,
    replacement_file,
)
from paygw_batch.gateway.signing.key import load_private_key
from paygw_batch.trusted_files import OtherUsers, read_trusted_file


def test_replacing_file_keeps_old_content_until_complete(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with replacement_file(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(OutputError, match="cannot be written: full"), atomic_file(tmp_path / "other"):
        raise OSError(errno.ENOSPC, "full")
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("problem", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt(), ValueError()])
def test_failed_replacement_leaves_only_old_file(tmp_path: Path, problem: BaseException) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def write_and_fail() -> None:
        with replacement_file(path) as file:
            file.write(b"half")
            raise problem

    with pytest.raises(type(problem)):
        write_and_fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("kind", [OSError, pl.exceptions.ComputeError])
def test_polars_error_names_system_reason(tmp_path: Path, kind: type[Exception]) -> None:
    message = build_output_error(tmp_path / "x", kind("parquet: No space left on device (os error 28)")).message
    assert message == f"{tmp_path}/x cannot be written: No space left on device."


def test_created_files_are_private_to_owner(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        create_if_missing(tmp_path / "new" / "once", b"")
        append_line(tmp_path / "lines", b"a\n")
        append_line(tmp_path / "lines", b"b\n")
        begun = create_temporary_file(tmp_path / "whole")
        with replacement_file(tmp_path / "whole"):
            pass
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    for path in (tmp_path / "new" / "once", tmp_path / "lines", begun, tmp_path / "whole"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (tmp_path / "lines").read_bytes() == b"a\nb\n"


def test_creating_existing_file_keeps_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    create_if_missing(path, b"first")
    monkeypatch.setattr(Path, "exists", lambda _: False)  # the file appears after the second process has checked
    create_if_missing(path, b"second")
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]


def test_pipes_are_not_read_and_links_not_written(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="Not a regular file"):
        read_regular(tmp_path / "pipe", 10)
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic links"):
        append_line(tmp_path / "link", b"a\n")


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
        *((0o640, OtherUsers.NO_ACCESS, "chmod 600"), (0o604, OtherUsers.NO_ACCESS, "chmod 600")),
        *((0o660, OtherUsers.MAY_READ, "chmod go-w"), (0o646, OtherUsers.MAY_READ, "chmod go-w")),
    ],
)
def test_accessible_file_is_refused_with_chmod_command(secret: Path, mode: int, others: OtherUsers, hint: str) -> None:
    secret.chmod(mode)
    with pytest.raises(ConfigurationError, match=r"it is (accessible|writable)") as caught:
        read_trusted_file(secret, "it", others)
    assert caught.value.hint == f"{hint} {secret}"


def test_file_of_another_user_is_refused_by_readers(secret: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() == 0:
        os.chown(secret, 65534, 65534)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    trusted: Callable[[Path], object] = partial(read_trusted_file, name="it", users=OtherUsers.MAY_READ)
    for read in (trusted, load_private_key, partial(load_approval_key, passphrase=None)):
        with pytest.raises(ConfigurationError, match="belongs to another user") as caught:
            read(secret)
        assert (caught.value.hint or "").startswith("chown ")


def test_irregular_or_large_file_is_refused_immediately(tmp_path: Path, secret: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    not_files = (tmp_path, "it is not a file"), (tmp_path / "pipe", "it is not a file")
    for path, sentence in (*not_files, (tmp_path / "none", "it: no such file")):
        with pytest.raises(ConfigurationError, match=sentence):
            read_trusted_file(path, "it", OtherUsers.MAY_READ)
    secret.write_bytes(b"x" * 65_537)
    with pytest.raises(ConfigurationError, match="too large to be a key"):
        read_trusted_file(secret, "it", OtherUsers.NO_ACCESS)
