"""Lists and loads the extras: optional packages with their own commands, health checks and libraries.

The core never imports an extra directly. It loads the modules listed here when they are needed.
"""

import json
import os
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urlsplit

from paygw_batch.errors import UsageError
from paygw_batch.language import say

FOLDERS = ("cluster", "console", "custody", "journal/postgres", "notices", "sandbox")
"""The folders of the extras, as paths below the package."""
COMMANDS: Mapping[str, str] = {
    "console": "console.console_command",
    "invite": "console.invite_command",
    "notices": "notices.notices_command",
    "work": "cluster.work_command",
    "workers": "cluster.workers_command",
    "limits": "cluster.workers_command",
    "sandbox": "sandbox.sandbox_command",
}
"""Maps the commands of extras to their modules. Their help texts are in `cli/main.py`, with all others."""
RUN_HOOK_MODULES = ("notices.delivery",)
"""The modules with run hooks. `begin(settings, environ)` is called when a run begins, and returns its end hook."""
HEALTH_MODULES = ("notices.health",)
"""The modules whose `checks(settings, environ)` yields health checks for `doctor`."""
IMAGE = "PAYGW_IMAGE"
"""The environment variable that marks the container image. The image has every extra, so nothing is installed in it."""


def has_extra(name: str) -> bool:
    """Return whether this installation includes the extra that contains a module."""
    return find_spec(f"{__package__}.{name.partition('.')[0]}") is not None


def extra(name: str) -> ModuleType:
    """Import a module from an extra. Raises `UsageError` if this installation does not include the extra."""
    if not has_extra(name):
        raise UsageError(
            say("This copy of the program is incomplete: {folder} is missing.", folder=name.partition(".")[0]),
            hint=say("Install the complete program."),
        )
    return import_module(f"{__package__}.{name}")


def extras(names: tuple[str, ...]) -> Iterator[ModuleType]:
    yield from (extra(name) for name in names if has_extra(name))


def install_command(extra: str) -> str:
    """Return the command that adds `extra` to this installation: a checkout, a wheel or the container image.

    It never installs this program from a package index, because anyone could have taken its name there.
    """
    if IMAGE in os.environ:
        return "docker build -t paygw-batch ."
    package = distribution("paygw-batch")
    # Installers write this file for a package installed from a path (PEP 610).
    origin = json.loads(package.read_text("direct_url.json") or "{}")
    path = Path(unquote(urlsplit(origin.get("url", "")).path))
    if not path.is_absolute():
        path = Path(f"paygw_batch-{package.version}-py3-none-any.whl")
    editable = "--editable " if origin.get("dir_info", {}).get("editable") else ""
    return f"pip install {editable}'{path}[{extra}]'"
