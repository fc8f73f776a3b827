"""Column profiles: ready-made sets of headings under config/columns/, which a configuration chooses by name."""

import tomllib
from collections.abc import Mapping
from pathlib import Path

from paygw_batch.countries.data import nearest
from paygw_batch.countries.load import config_dir
from paygw_batch.errors import ConfigurationError
from paygw_batch.sheet.columns import known_columns
from paygw_batch.sheet.read.headings import fold

NOT_OURS = ""
"""The configuration's word for a heading of a profile that means nothing."""


def profile_names(data: Path | None = None) -> list[str]:
    """Return the names of all profiles under `data` (None: the program's own config/)."""
    return sorted(file.stem for file in ((data or config_dir()) / "columns").glob("*.toml"))


def read_profile(name: str, data: Path | None = None) -> Mapping[str, str]:
    """Return a profile: a sender's heading -> our column.

    Raises `ConfigurationError` for a name that is none, telling the nearest, and for a file that cannot be used.
    """
    known = profile_names(data)
    if name not in known:
        raise ConfigurationError(f"sheet.column_profile: no profile is called {name!r}; {nearest(name, known)}")
    file = (data or config_dir()) / "columns" / f"{name}.toml"
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"config/columns/{file.name} cannot be read: {error}") from error
    headings = tables.get("columns")
    if not isinstance(headings, dict) or set(tables) != {"columns"} or not set(headings.values()) <= {*known_columns()}:
        raise ConfigurationError(f"config/columns/{file.name}: it must have [columns] alone, each one of ours.")
    return headings


def known_headings(profile: str | None, own: Mapping[str, str]) -> Mapping[str, str]:
    """Return a sender's headings -> our columns: the profile's, and the configuration's `own` before them.

    `own` may take a heading out of the profile (`NOT_OURS`). Headings are the same whatever their case, blanks, hyphens
    and underscores. Raises `ConfigurationError` for an unknown profile, and where `own` gives one heading two meanings.
    """
    merged = {
        fold(heading): (heading, column) for heading, column in (read_profile(profile) if profile else {}).items()
    }
    seen: dict[str, tuple[str, str]] = {}
    for heading, column in own.items():
        other, meaning = seen.setdefault(fold(heading), (heading, column))
        if meaning != column:
            raise ConfigurationError(
                f"columns: {other!r} and {heading!r} are the same heading, and stand for {meaning!r} and {column!r}.",
                hint="Case, blanks, hyphens and underscores make no difference. Remove one of the two.",
            )
    return {heading: column for heading, column in (merged | seen).values() if column != NOT_OURS}
