"""Files are private to their owner, and are written whole or not at all."""

import errno
import os
import stat
from pathlib import Path

import pytest

from paygw_batch.errors import OutputError
from paygw_batch.files import (
    append_line,
    atomic_file,
    create_if_missing,
    create_temporary_file,
    read_regular,
    replacement_file,
)


def test_replacing_file_keeps_old_content_until_complete(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with replacement_file(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
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


def test_failed_output_file_is_explained_and_removed(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot be written: full"), atomic_file(tmp_path / "file"):
        raise OSError(errno.ENOSPC, "full")
    assert list(tmp_path.iterdir()) == []


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


def test_create_if_missing_keeps_first_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
