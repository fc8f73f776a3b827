"""Finds the user's directories for this program's files."""

from pathlib import Path

import platformdirs


def state_directory() -> Path:
    """Return the directory for files that outlive a run (XDG_STATE_HOME or the platform's equivalent)."""
    return Path(platformdirs.user_state_dir("paygw-batch", appauthor=False))


def default_configuration_path() -> Path:
    """Return the path of the configuration file that `init` writes and commands read by default.

    It is never in the current directory, because anyone who can write there could decide where money goes.
    """
    return Path(platformdirs.user_config_dir("paygw-batch", appauthor=False)) / "paygw.toml"


def find_user_configuration() -> Path | None:
    """Return the configuration file that this user wrote with `init`, or None."""
    path = default_configuration_path()
    return path if path.exists() else None
