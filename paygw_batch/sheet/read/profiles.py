"""Reads column profiles: sets of headings in config/columns/, or in a file of the operator."""

import tomllib
from collections.abc import Mapping
from pathlib import Path

from paygw_batch.countries.data import config_dir, nearest
from paygw_batch.errors import ConfigurationError
from paygw_batch.files import read_regular
from paygw_batch.language import say
from paygw_batch.sheet.columns import known_columns
from paygw_batch.sheet.read.headings import IGNORED_HEADING, fold_heading

_MAX_PROFILE_BYTES = 1024 * 1024
PROFILE_EXTENSION = ".toml"
"""A profile with this extension is a path, not a name."""


def profile_names(data: Path | None = None) -> list[str]:
    """Return the names of all profiles in `data`, by default the program's own config/."""
    return sorted(file.stem for file in ((data or config_dir()) / "columns").glob("*.toml"))


def read_profile(name: str, data: Path | None = None) -> Mapping[str, str]:
    """Read a profile: a sender's heading -> our column. A name that ends in .toml is a path.

    Raises `ConfigurationError` for an unusable file, and for an unknown name, with the nearest known one.
    """
    names = profile_names(data)
    is_own = name.endswith(PROFILE_EXTENSION)
    if name not in names and not is_own:
        raise ConfigurationError(
            say("sheet.column_profile: no profile is called {name!r}; {known}", name=name, known=nearest(name, names)),
            hint=say("Use one of these, or a file that `paygw-batch validate SHEET --map FILE.toml` wrote."),
        )
    file = Path(name) if is_own else (data or config_dir()) / "columns" / f"{name}.toml"
    shown_name = name if is_own else f"config/columns/{file.name}"
    try:
        tables = tomllib.loads(read_regular(file, _MAX_PROFILE_BYTES).decode())
    except OSError as error:
        raise ConfigurationError(
            say("{path} cannot be read: {reason}.", path=shown_name, reason=say(str(error.strerror))),
            hint=say("Check the path. `paygw-batch validate SHEET --map FILE.toml` writes such a file."),
        ) from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(
            say("{path} is not TOML: {error}.", path=shown_name, error=error), hint=say("Correct that line.")
        ) from error
    headings, columns = tables.get("columns"), {*known_columns(), IGNORED_HEADING}
    if not isinstance(headings, dict) or set(tables) != {"columns"}:
        raise ConfigurationError(say("{path} must contain [columns] and nothing else.", path=shown_name))
    for heading, column in headings.items():
        if not isinstance(column, str) or column not in columns:
            nearest_column = nearest(str(column), columns - {IGNORED_HEADING})
            raise ConfigurationError(
                say(
                    "{path}: {heading!r} is mapped to {column!r}, which is not a column; {near}",
                    path=shown_name,
                    heading=heading,
                    column=column,
                    near=nearest_column,
                )
            )
    return headings


def load_profiles(overrides: Mapping[str, str]) -> Mapping[str, Mapping[str, str]]:
    """Load the headings of all built-in profiles by name, overridden by `overrides` (from the configuration)."""
    return {name: merge_headings(name, overrides) for name in profile_names()}


def merge_headings(profile: str | None, own: Mapping[str, str]) -> Mapping[str, str]:
    """Merge a profile's headings (heading -> column) with `own`, from the configuration, which takes precedence.

    `own` may remove a heading from the profile (`IGNORED_HEADING`). Case, spaces, hyphens and underscores are ignored.
    Raises `ConfigurationError` for an unknown profile, and if `own` gives one heading two meanings.
    """
    merged = {
        fold_heading(heading): (heading, column)
        for heading, column in ({} if profile is None else read_profile(profile)).items()
    }
    overrides: dict[str, tuple[str, str]] = {}
    for heading, column in own.items():
        other, meaning = overrides.setdefault(fold_heading(heading), (heading, column))
        if meaning != column:
            raise ConfigurationError(
                say(
                    "columns: {other!r} and {heading!r} are the same heading, and mean {meaning!r} and {column!r}.",
                    other=other,
                    heading=heading,
                    meaning=meaning,
                    column=column,
                ),
                hint=say("Case, spaces, hyphens and underscores make no difference. Remove one of the two."),
            )
    return {heading: column for heading, column in (merged | overrides).values() if column != IGNORED_HEADING}
