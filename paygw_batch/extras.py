"""How an extra is added to this copy of the program: from what it was installed from."""

import json
import os
from importlib.metadata import distribution
from pathlib import Path
from urllib.parse import unquote, urlsplit

IMAGE = "PAYGW_IMAGE"
"""Set in the container image, which is built with every extra: nothing is installed there."""


def install_command(extra: str) -> str:
    """Return the command that adds `extra` to this copy: a checkout, a wheel, or the container image.

    It never asks a package index for this program's name, which anybody could own there.
    """
    if IMAGE in os.environ:
        return "docker build -t paygw-batch ."
    this = distribution("paygw-batch")
    # Written by every installer for what comes from a path (PEP 610).
    origin = json.loads(this.read_text("direct_url.json") or "{}")
    path = Path(unquote(urlsplit(origin.get("url", "")).path))
    if not path.is_absolute():
        path = Path(f"paygw_batch-{this.version}-py3-none-any.whl")
    editable = "--editable " if origin.get("dir_info", {}).get("editable") else ""
    return f"pip install {editable}'{path}[{extra}]'"
