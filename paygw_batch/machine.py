"""Describes the machine: how this Python was built, and the processor."""

import platform
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

_CPUS = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True)
class PythonBuild:
    """The optimisations of this Python build; None if unknown, because distributions record them differently."""

    has_profiles: bool | None
    has_lto: bool | None


def python_build() -> PythonBuild:
    """Return how this Python was built, by the words that its `configure` was given."""
    told = str(sysconfig.get_config_var("CONFIG_ARGS") or "")
    unless_told = False if told and sys.base_prefix != "/usr" else None
    return PythonBuild("--enable-optimizations" in told or unless_told, "--with-lto" in told or unless_told)


def processor() -> str:
    """Return the name of the processor, or of its kind where the system names none."""
    try:
        lines = _CPUS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()
