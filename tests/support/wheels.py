"""The program as its users install it: the wheel, in a separate virtual environment."""

import os
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from tests.support.checkout import copy_versioned


def build_wheel(into: Path, version: str | None = None) -> Path:
    """Build the wheel of the versioned files with the lock file's build backend. Nothing is downloaded."""
    source = copy_versioned(into / "source", "")
    if version is not None:
        about = source / "pyproject.toml"
        about.write_text(re.sub(r'(?m)^version = ".*"$', f'version = "{version}"', about.read_text()))
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(into)]
    built = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert built.returncode == 0, f"{built.stderr}\nIs requirements-dev.lock installed?"
    (wheel,) = into.glob("*.whl")
    return wheel


def install_program(what: Path, into: Path, *words: str) -> Path:
    """Install a wheel or checkout in a new environment that sees our dependencies. Return its folder of programs."""
    venv.EnvBuilder(symlinks=True).create(into)
    (site_packages,) = into.glob("lib/python3*/site-packages")
    (site_packages / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return run_pip(into / "bin", "install", "--no-index", "--no-deps", *words, str(what))


def run_pip(programs: Path, *words: str) -> Path:
    """Run pip for the environment of a folder of programs, and return that folder."""
    command = [sys.executable, "-m", "pip", "--python", str(programs / "python"), *words]
    environ = {**os.environ, "PIP_CONFIG_FILE": "/dev/null"}
    completed = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    assert completed.returncode == 0, completed.stderr
    return programs
