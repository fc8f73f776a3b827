"""Pay the demo's sheet from a copy of the tree without the folders of the extras (`tooling/core-alone`).

The gateway is the whole program's sandbox, which runs outside the copy. The core has only its address.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from paygw_batch.extras import COMMANDS, FOLDERS

ROOT = Path(__file__).resolve().parents[1]
SHEET = "samples/payroll-mixed.csv"


def main() -> int:
    """Return 0 if the core pays without extras, and has none of their commands."""
    with TemporaryDirectory() as name:
        copy = Path(name) / "core"
        copy_tree(copy, without=FOLDERS)
        print(
            "The core alone:",
            ", ".join(sorted(path.name for path in (copy / "paygw_batch").iterdir() if path.is_dir())),
        )
        with _running_gateway(Path(name)) as environ:
            _pay_sheet(copy, environ)
        if "--tests" in sys.argv[1:]:
            return subprocess.call(  # noqa: S603 (our own program)
                [sys.executable, "-m", "pytest", "-q", "-m", "not long", "-n", "2", *_core_test_files()], cwd=copy
            )
    return 0


def copy_tree(copy: Path, *, without: Collection[str] = ()) -> None:
    """Copy the tree, including new files, without these folders of the package."""
    listed = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, text=True)  # noqa: S607 (git)
    for name in listed.splitlines():
        if not any(name.startswith(f"paygw_batch/{folder}/") for folder in without) and (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)


@contextmanager
def _running_gateway(home: Path) -> Iterator[dict[str, str]]:
    """Run the whole program's sandbox, and yield the environment variables with its address."""
    config = home / "gateway.toml"
    text = (ROOT / "config/sandbox.toml").read_text(encoding="utf-8")
    config.write_text(text.replace("../sandbox-state/", f"{home}/gateway/"), encoding="utf-8")
    environ = {**os.environ, "HOME": str(home), "XDG_STATE_HOME": str(home / "state"), "PAYGW_LANG": "en"}
    command = [sys.executable, "-m", "paygw_batch", "--config", str(config)]
    (home / "gateway").mkdir(mode=0o700)
    with subprocess.Popen(  # noqa: S603 (our own program)
        [*command, "sandbox", "--port", "0"], cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            output = "".join(line for _, line in zip(range(3), server.stdout or (), strict=False))
            leads = dict(re.findall(r"(PAYGW_BASE_URL|PAYGW_PRIVATE_KEY)=(\S+)", output))
            yield {**environ, **leads, "PAYGW_CONFIG": str(config)}
        finally:
            server.terminate()
            server.communicate()


def _pay_sheet(copy: Path, environ: dict[str, str]) -> None:
    def run(*arguments: str, code: int = 0) -> str:
        command = [sys.executable, "-m", "paygw_batch", "--journal", str(copy / "core.journal"), *arguments]
        completed = subprocess.run(command, cwd=copy, env=environ, capture_output=True, text=True, check=False)  # noqa: S603 (our own program)
        if completed.returncode != code:
            sys.exit(f"{' '.join(arguments)} ended with {completed.returncode}:\n{completed.stdout}{completed.stderr}")
        return completed.stdout

    run("journal", "new")
    print(run("submit", SHEET))
    print(run("verify"))
    for command in COMMANDS:
        run(command, code=2)


def _core_test_files() -> list[str]:
    """Return the test files that use no extra, directly or through imports."""
    folders = (
        "approval",
        "core",
        "countries",
        "engine",
        "field",
        "gateway",
        "settings",
        "settle",
        "sheet",
        "show",
        "submit",
    )
    result = (path for folder in folders for path in sorted((ROOT / "tests" / folder).glob("test_*.py")))
    return [str(path.relative_to(ROOT)) for path in result if not _uses_extra(path, frozenset())]


def _uses_extra(path: Path, above: frozenset[Path]) -> bool:
    if path in above or not path.is_file():
        return False
    gone = tuple(f"paygw_batch.{folder.replace('/', '.')}" for folder in FOLDERS)
    names = _imported_modules(path)
    return any(f"{name}.".startswith(f"{item}.") for name in names for item in gone) or any(
        _uses_extra(ROOT / f"{name.replace('.', '/')}.py", above | {path})
        for name in names
        if name.startswith("tests.")
    )


@cache
def _imported_modules(path: Path) -> frozenset[str]:
    nodes = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.ImportFrom)]
    return frozenset(f"{node.module}.{alias.name}" for node in nodes for alias in node.names) | frozenset(
        node.module or "" for node in nodes
    )


if __name__ == "__main__":
    sys.exit(main())
