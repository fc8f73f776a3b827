"""Holds the options that all commands share."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Invocation:
    """The options before the command, which all commands share."""

    config: Path | None
    journal: Path | None
    as_json: bool
    quiet: bool
    verbose: bool
