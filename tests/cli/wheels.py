"""The program as its users install it: the wheel, in a virtual environment of its own."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from tests.checkout import copy_versioned


def build_wheel(into: Path) -> Path:
    """Build the wheel of what is versioned with the build backend of the lock file; nothing is fetched."""
    source = copy_versioned(into / "source", "")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(into)]
    built = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert built.returncode == 0, f"{built.stderr}\nIs requirements-dev.lock installed?"
    (wheel,) = into.glob("*.whl")
    return wheel


def install(what: Path, into: Path, *words: str) -> Path:
    """Install a wheel or a checkout into a new virtual environment, and return its folder of programs.

    What it depends on is seen from there, and is not installed again; the checkout is not seen.
    """
    venv.EnvBuilder(symlinks=True).create(into)
    python = into / "bin" / "python"
    (site_packages,) = into.glob("lib/python3*/site-packages")
    (site_packages / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--no-index",
        "--no-deps",
        *words,
        str(what),
    ]
    done = subprocess.run(
        pip, capture_output=True, text=True, check=False, env={**os.environ, "PIP_CONFIG_FILE": "/dev/null"}
    )
    assert done.returncode == 0, done.stderr
    return python.parent
