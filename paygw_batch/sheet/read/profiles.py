"""Reads column profiles: sets of headings under config/columns/, or in a file of the operator's."""

import tomllib
from collections.abc import Mapping
from pathlib import Path

from paygw_batch.countries.data import config_dir, nearest
from paygw_batch.errors import ConfigurationError
from paygw_batch.files import read_regular
from paygw_batch.language import say
from paygw_batch.sheet.columns import known_columns
from paygw_batch.sheet.read.headings import NOT_OURS, fold

_MAX_PROFILE_BYTES = 1024 * 1024
OWN_ENDING = ".toml"
"""A profile with this ending is the path of a file, and not a name."""


def profile_names(data: Path | None = None) -> list[str]:
    """Return the names of all profiles under `data` (None: the program's own config/)."""
    return sorted(file.stem for file in ((data or config_dir()) / "columns").glob("*.toml"))


def read_profile(name: str, data: Path | None = None) -> Mapping[str, str]:
    """Return a profile: a sender's heading -> our column. A name that ends in .toml is the path of a file.

    Raises `ConfigurationError` for an unknown name, which suggests the nearest known one, and for an unusable file.
    """
    names = profile_names(data)
    is_own = name.endswith(OWN_ENDING)
    if name not in names and not is_own:
        raise ConfigurationError(
            say("sheet.column_profile: no profile is called {name!r}; {known}", name=name, known=nearest(name, names)),
            hint=say("Name one of these, or a file that `paygw-batch validate SHEET --map FILE.toml` wrote."),
        )
    file = Path(name) if is_own else (data or config_dir()) / "columns" / f"{name}.toml"
    shown_name = name if is_own else f"config/columns/{file.name}"
    try:
        tables = tomllib.loads(read_regular(file, _MAX_PROFILE_BYTES).decode())
    except OSError as error:
        raise ConfigurationError(
            say("{told} cannot be read: {reason}.", told=shown_name, reason=say(str(error.strerror))),
            hint=say("Check the path. `paygw-batch validate SHEET --map FILE.toml` writes such a file."),
        ) from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(
            say("{told} is not TOML: {error}.", told=shown_name, error=error), hint=say("Correct the named line.")
        ) from error
    headings, columns = tables.get("columns"), {*known_columns(), NOT_OURS}
    if not isinstance(headings, dict) or set(tables) != {"columns"}:
        raise ConfigurationError(say("{told}: it must have [columns] alone.", told=shown_name))
    for heading, column in headings.items():
        if not isinstance(column, str) or column not in columns:
            near = nearest(str(column), columns - {NOT_OURS})
            raise ConfigurationError(
                say(
                    "{told}: {heading!r} is mapped to {column!r}, which is not a column; {near}",
                    told=shown_name,
                    heading=heading,
                    column=column,
                    near=near,
                )
            )
    return headings


def every_profile(own: Mapping[str, str]) -> Mapping[str, Mapping[str, str]]:
    """Return the headings of each of the program's profiles, by name, overridden by the configuration's `own`."""
    return {name: known_headings(name, own) for name in profile_names()}


def known_headings(profile: str | None, own: Mapping[str, str]) -> Mapping[str, str]:
    """Return a sender's headings -> our columns: the profile's, overridden by the configuration's `own`.

    `own` may remove a heading from the profile (`NOT_OURS`). Case, blanks, hyphens and underscores make no other
    heading. Raises `ConfigurationError` for an unknown profile, and if `own` gives one heading two meanings.
    """
    merged = {
        fold(heading): (heading, column)
        for heading, column in ({} if profile is None else read_profile(profile)).items()
    }
    overrides: dict[str, tuple[str, str]] = {}
    for heading, column in own.items():
        other, meaning = overrides.setdefault(fold(heading), (heading, column))
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
    return {heading: column for heading, column in (merged | overrides).values() if column != NOT_OURS}
