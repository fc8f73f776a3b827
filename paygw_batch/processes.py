"""Forbids core dumps, builds the environment of child processes, and describes the machine.

Secrets are in memory and in the environment. Neither a crash nor a child process must disclose them.
"""

import ctypes
import gc
import os
import platform
import resource
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

INHERITED_VARIABLES = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TZ"),
        *("LANG", "LANGUAGE", "LC_ALL", "LC_COLLATE", "LC_CTYPE", "LC_MESSAGES", "LC_MONETARY", "LC_NUMERIC"),
        "LC_TIME",
        *("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME"),
        *("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH"),
    }
)
"""The environment variables that a child process may need: paths, and the language."""

_PR_SET_DUMPABLE = 4
_CPU_INFO = Path("/proc/cpuinfo")
GC_THRESHOLD = 50_000
"""The number of new objects after which garbage is collected. Most runs stay below it."""


def child_environment(environ: Mapping[str, str], *, secret: Iterable[str] = ()) -> dict[str, str]:
    """Return the environment for a child process: `INHERITED_VARIABLES` without those in `secret`."""
    return {name: environ[name] for name in INHERITED_VARIABLES.difference(secret) if name in environ}


def python_command(program: str) -> list[str] | None:
    """Return a command that runs the Python code `program` with the import path of this process.

    Returns None in a frozen or embedding program, because its executable is not Python.
    """
    name = Path(sys.executable or "").name
    if getattr(sys, "frozen", False) or not name.startswith(("python", "pypy")):
        return None
    # An empty entry means the working directory, so make the paths absolute.
    path = [os.path.abspath(entry) for entry in sys.path]  # noqa: PTH100 (Path.resolve would follow links)
    return [sys.executable, "-I", "-c", f"import sys; sys.path[:] = {path!r}; {program}"]


def forbid_core_dumps(*, permanent: bool) -> None:
    """Forbid core dumps of this process, which would contain the private key and personal data.

    With `permanent`, the process cannot allow them again. A system that pipes dumps to a program ignores the limit, so
    on Linux the process is also marked as not dumpable.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0 if permanent else hard))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


@contextmanager
def gc_relaxed() -> Iterator[None]:
    """Collect garbage less often inside the block: only after `GC_THRESHOLD` new objects."""
    threshold = gc.get_threshold()
    gc.set_threshold(max(GC_THRESHOLD, threshold[0]), *threshold[1:])
    try:
        yield
    finally:
        gc.set_threshold(*threshold)


@dataclass(frozen=True, slots=True)
class PythonBuild:
    """The optimisations of a Python build. None means unknown, because not every distribution records them."""

    is_profile_guided: bool | None
    has_lto: bool | None


def python_build() -> PythonBuild:
    """Return the optimisations of this Python build, from its `configure` arguments."""
    arguments = str(sysconfig.get_config_var("CONFIG_ARGS") or "")
    default = False if arguments and sys.base_prefix != "/usr" else None
    return PythonBuild("--enable-optimizations" in arguments or default, "--with-lto" in arguments or default)


def processor_name() -> str:
    """Return the name of the processor, or its architecture if the name is unknown."""
    try:
        lines = _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, "") or platform.processor() or platform.machine()
