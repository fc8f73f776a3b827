"""Caches a parsed sheet and the journal's answers about it, so that a correction needs no new process."""

import json
from collections import OrderedDict
from dataclasses import fields
from pathlib import Path
from threading import Lock
from typing import Any

import polars as pl

from paygw_batch.files import write_whole
from paygw_batch.sheet.model import Sheet
from paygw_batch.submit.compare_sheet import ComparisonMemory

_FRAMES = ("frame", "defects", "warnings")
_VALUES = "sheet.json"
MAX_KEPT_ROWS = 200_000
"""A larger sheet is read from its file again: the pages lack the memory for it."""


def keep_sheet(sheet: Sheet, folder: Path, reading: str) -> None:
    """Keep a sheet in `folder`. `reading` identifies it later: its bytes, and how they were read."""
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / _VALUES).unlink(missing_ok=True)
    if sheet.frame.height > MAX_KEPT_ROWS:
        return
    for name in _FRAMES:
        getattr(sheet, name).write_ipc(folder / f"{name}.arrow", compression="lz4")
    values = {field.name: getattr(sheet, field.name) for field in fields(sheet) if field.name not in _FRAMES}
    write_whole(folder / _VALUES, json.dumps({"reading": reading, "sheet": values}, default=dict).encode())


def kept_sheet(folder: Path, reading: str) -> Sheet | None:
    """Return the sheet that was read as `reading` says; None if it is not kept."""
    if (kept := kept_values(folder, reading)) is None:
        return None
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in kept.items()}
    return Sheet(**values | {name: pl.read_ipc(folder / f"{name}.arrow") for name in _FRAMES})


def kept_values(folder: Path, reading: str) -> dict[str, Any] | None:
    """Return the values of a kept sheet other than its frames; None if it is not kept."""
    try:
        kept: dict[str, Any] = json.loads((folder / _VALUES).read_bytes())
    except FileNotFoundError:
        return None
    return kept["sheet"] if kept["reading"] == reading else None


MAX_SHEETS = 2
"""A sheet of 200,000 rows takes about 100 MB, and the pages have room for two. A third starts with an empty memory."""


class CheckMemories:
    """The memory of each payout in preparation, by its number. Safe to call from several threads."""

    def __init__(self) -> None:
        self._memories: OrderedDict[str, ComparisonMemory] = OrderedDict()
        self._lock = Lock()

    def of(self, number: str) -> ComparisonMemory:
        """Return the memory of a payout, empty if it was not corrected recently."""
        with self._lock:
            memory = self._memories.setdefault(number, ComparisonMemory())
            self._memories.move_to_end(number)
            while len(self._memories) > MAX_SHEETS:
                self._memories.popitem(last=False)
            return memory
