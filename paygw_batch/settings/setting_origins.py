"""Names the origin of each setting: the command line, the environment, the file, or the default."""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from paygw_batch.settings.configuration import Settings, environment_keys

_USER_INFO = re.compile(r"(?<=://)[^/@\s]+@")
"""A name and a password in an address: they have no place there, and are not repeated."""


@dataclass(frozen=True, slots=True)
class SettingOrigin:
    """One setting: its key with dots, its value as text (empty: not set), and where that comes from."""

    key: str
    value: str
    origin: str


def setting_origins(
    settings: Settings, file: Path | None, environ: Mapping[str, str], journal_origin: str | None
) -> Iterator[SettingOrigin]:
    """Yield every setting. `journal_origin` is where the journal's path comes from, where it is not the file.

    The file was read before, with `settings`: it is there, and is TOML.
    """
    in_file = dict(_leaves(tomllib.loads(file.read_text(encoding="utf-8")))) if file is not None else {}
    in_environment = {
        f"{section}.{key}": name for name, (section, key) in environment_keys().items() if name in environ
    }
    values = dict(_leaves(settings.model_dump()))
    values["journal.path"] = settings.journal_path()
    for key, value in values.items():
        if key == "journal.path" and journal_origin is not None:
            origin = journal_origin
        elif key in in_environment:
            origin = f"environment: {in_environment[key]}"
        else:
            origin = "file" if key in in_file else "default"
        yield SettingOrigin(key, _USER_INFO.sub("...@", _text(value)), origin)


def _leaves(tables: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, object]]:
    for name, value in tables.items():
        key = f"{above}{name}"
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{key}.")
        else:
            yield key, value


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, str | Path | Decimal):
        return str(value)
    return json.dumps(value, ensure_ascii=False, default=str)
