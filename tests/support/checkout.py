"""The checkout that tests read: its versioned files only, without leftovers of its use."""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from functools import cache
from pathlib import Path, PurePosixPath
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]


def import_script(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    if spec is None or spec.loader is None:
        raise ImportError(path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def versioned_files(folder: str = "", pattern: str = "*") -> list[Path]:
    """Return the sorted versioned files below a folder of the checkout whose names match a pattern."""
    below = PurePosixPath(folder)
    found = (name for name in _list_versioned_files() if name.is_relative_to(below) and fnmatch(name.name, pattern))
    return sorted(ROOT / name for name in found)


def copy_versioned(into: Path, *folders: str) -> Path:
    """Copy the versioned files of some folders, or single files, of the checkout, and return their new location."""
    for path in (path for folder in folders for path in versioned_files(folder)):
        copy = into / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    return into


@cache
def _list_versioned_files() -> tuple[PurePosixPath, ...]:
    """Return every versioned file that exists. In an unpacked archive, return every file that is not ignored."""
    if not (ROOT / ".git").exists():
        return tuple(_list_unignored_files())
    new_source = _run_git(
        "ls-files", "-z", "--others", "--exclude-standard", "--", "*.py"
    )  # new files are imported before they are added
    names = {PurePosixPath(name) for name in (_run_git("ls-files", "-z") + new_source).split("\0") if name}
    return tuple(name for name in names if (ROOT / name).is_file())


def _run_git(*words: str) -> str:
    """Return git's output for this checkout, which may belong to another user, as in a container."""
    command = ["git", "-c", f"safe.directory={ROOT}", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def _list_unignored_files() -> Iterator[PurePosixPath]:
    lines = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    for place, folders, files in os.walk(ROOT):
        below = PurePosixPath(Path(place).relative_to(ROOT))
        folders[:] = [name for name in folders if not _is_ignored(below / name, patterns)]
        yield from (below / name for name in files if not _is_ignored(below / name, patterns))


def _is_ignored(path: PurePosixPath, patterns: Sequence[str]) -> bool:
    """Return whether a pattern of our .gitignore matches: a name anywhere, or a path from the root after `/`."""
    for pattern in patterns:
        expected = PurePosixPath(pattern.strip("/"))
        if path.match(str(expected)) and (len(path.parts) == len(expected.parts) or not pattern.startswith("/")):
            return True
    return False
