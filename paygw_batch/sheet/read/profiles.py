"""Reads column profiles: sets of headings in config/columns/ or in the operator's own file."""

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
"""A profile name with this extension is a path."""


def profile_names() -> list[str]:
    """Return the names of the built-in profiles."""
    return sorted(file.stem for file in (config_dir() / "columns").glob("*.toml"))


def read_profile(name: str) -> Mapping[str, str]:
    """Read a profile, which maps senders' headings to our columns. A name that ends in .toml is a path.

    Raises `ConfigurationError` for an unusable file or an unknown name.
    """
    names = profile_names()
    is_path = name.endswith(PROFILE_EXTENSION)
    if name not in names and not is_path:
        raise ConfigurationError(
            say("sheet.column_profile: there is no profile {name!r}. {known}", name=name, known=nearest(name, names)),
            hint=say("Use one of these, or a file written by `paygw-batch validate SHEET --map FILE.toml`."),
        )
    path = Path(name) if is_path else config_dir() / "columns" / f"{name}.toml"
    shown_name = name if is_path else f"config/columns/{path.name}"
    try:
        content = tomllib.loads(read_regular(path, _MAX_PROFILE_BYTES).decode())
    except OSError as error:
        raise ConfigurationError(
            say("{path} cannot be read: {reason}.", path=shown_name, reason=say(str(error.strerror))),
            hint=say("Check the path. To create this file, run `paygw-batch validate SHEET --map FILE.toml`."),
        ) from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(
            say("{path} is not valid TOML: {error}.", path=shown_name, error=error), hint=say("Correct that line.")
        ) from error
    headings, columns = content.get("columns"), {*known_columns(), IGNORED_HEADING}
    if not isinstance(headings, dict) or set(content) != {"columns"}:
        raise ConfigurationError(say("{path} must contain [columns] and nothing else.", path=shown_name))
    for heading, column in headings.items():
        if not isinstance(column, str) or column not in columns:
            nearest_column = nearest(str(column), columns - {IGNORED_HEADING})
            raise ConfigurationError(
                say(
                    "{path}: {heading!r} is mapped to {column!r}, which is not a column. {near}",
                    path=shown_name,
                    heading=heading,
                    column=column,
                    near=nearest_column,
                )
            )
    return headings


def load_profiles(overrides: Mapping[str, str]) -> Mapping[str, Mapping[str, str]]:
    """Load the headings of all built-in profiles, by name. `overrides` come from the configuration."""
    return {name: merge_headings(name, overrides) for name in profile_names()}


def merge_headings(profile: str | None, overrides: Mapping[str, str]) -> Mapping[str, str]:
    """Merge a profile's headings (heading -> column) with `overrides` from the configuration.

    An override may be `IGNORED_HEADING`, which removes a heading. Case, spaces, hyphens and underscores are ignored.
    Raises `ConfigurationError` for an unknown profile, and if `overrides` give a heading two meanings.
    """
    headings = {} if profile is None else read_profile(profile)
    merged = {fold_heading(heading): (heading, column) for heading, column in headings.items()}
    folded_overrides: dict[str, tuple[str, str]] = {}
    for heading, column in overrides.items():
        other, meaning = folded_overrides.setdefault(fold_heading(heading), (heading, column))
        if meaning != column:
            raise ConfigurationError(
                say(
                    "columns: {other!r} and {heading!r} count as the same heading, but are mapped to different "
                    "columns: {meaning!r} and {column!r}.",
                    other=other,
                    heading=heading,
                    meaning=meaning,
                    column=column,
                ),
                hint=say("Case, spaces, hyphens and underscores make no difference. Remove one of the two headings."),
            )
    return {heading: column for heading, column in (merged | folded_overrides).values() if column != IGNORED_HEADING}
