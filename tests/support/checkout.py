"""The checkout that the tests read: what is versioned in it, and nothing that its use left lying about."""

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


def script(path: str) -> ModuleType:
    """Return a script of the checkout as a module."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    if spec is None or spec.loader is None:
        raise ImportError(path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def versioned_files(folder: str = "", pattern: str = "*") -> list[Path]:
    """Return the versioned files below a folder of the checkout whose names fit a pattern, in order."""
    below = PurePosixPath(folder)
    return sorted(ROOT / name for name in _versioned() if name.is_relative_to(below) and fnmatch(name.name, pattern))


def copy_versioned(into: Path, *folders: str) -> Path:
    """Copy the versioned files of some folders (or single files) of the checkout, and return where they are."""
    for path in (path for folder in folders for path in versioned_files(folder)):
        copy = into / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    return into


@cache
def _versioned() -> tuple[PurePosixPath, ...]:
    """Return every versioned file that is there; in an unpacked archive every file that .gitignore does not name."""
    if not (ROOT / ".git").exists():
        return tuple(_not_ignored())
    new_source = _git("ls-files", "-z", "--others", "--exclude-standard", "--", "*.py")  # imported before it is added
    names = {PurePosixPath(name) for name in (_git("ls-files", "-z") + new_source).split("\0") if name}
    return tuple(name for name in names if (ROOT / name).is_file())


def _git(*words: str) -> str:
    """Return what git says of this checkout, which may be somebody else's, as in a container."""
    command = ["git", "-c", f"safe.directory={ROOT}", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def _not_ignored() -> Iterator[PurePosixPath]:
    lines = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    for place, folders, files in os.walk(ROOT):
        below = PurePosixPath(Path(place).relative_to(ROOT))
        folders[:] = [name for name in folders if not _is_ignored(below / name, patterns)]
        yield from (below / name for name in files if not _is_ignored(below / name, patterns))


def _is_ignored(path: PurePosixPath, patterns: Sequence[str]) -> bool:
    """Whether one of the patterns that our .gitignore has fits: a name anywhere, or a path from the top after `/`."""
    for pattern in patterns:
        wanted = PurePosixPath(pattern.strip("/"))
        if path.match(str(wanted)) and (len(path.parts) == len(wanted.parts) or not pattern.startswith("/")):
            return True
    return False
