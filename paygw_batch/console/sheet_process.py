"""Checks or marks a sheet in a separate process, because uploads are untrusted.

That process has limits on memory, file size and time, so a hostile file cannot stop the console.
"""

import os
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from paygw_batch.approval.approval_keys import parse_public_key
from paygw_batch.console.check_payout import check_payout, write_marked_copy
from paygw_batch.console.payout_folder import PayoutFolder
from paygw_batch.core.batch import PAYOUT
from paygw_batch.language import ENGLISH, language, set_language
from paygw_batch.opening.given_sheet import rules_for
from paygw_batch.processes import child_environment, forbid_core_dumps
from paygw_batch.settings.configuration import Settings, load_settings, secret_variables

MAX_MEMORY_BYTES = 8 * 1024**3
"""Maximum address space. It is large, because libraries reserve far more than they use."""
MAX_FILE_BYTES = 4 * 1024**3
MAX_PROCESSOR_S = 300
TIME_LIMIT_S = 600
MAX_IN_PROCESS_BYTES = 256 * 1024
"""Maximum size of a sheet that is rechecked in the console process. Starting another process takes a second."""
CHECK_PROGRAM = "from paygw_batch.console.sheet_process import check; check()"
MARK_PROGRAM = "from paygw_batch.console.sheet_process import mark; mark()"


def run_within_limits(
    program: str, arguments: Sequence[str], settings: Settings, *, config: Path, environ: Mapping[str, str]
) -> bool:
    """Run the Python code `program` in a process that limits its own resources. Return whether it succeeded."""
    variables = {name: value for name, value in environ.items() if name.startswith("PAYGW_")}
    secrets = secret_variables(settings)
    environment = child_environment(environ) | {name: value for name, value in variables.items() if name not in secrets}
    environment.setdefault("POLARS_MAX_THREADS", os.environ.get("POLARS_MAX_THREADS", "2"))
    environment["PAYGW_LANG"] = language()
    # A database URL is set only in the configuration, so no path is passed.
    journal = str(settings.journal_path()) if settings.journal.url is None else ""
    command = [sys.executable, "-P", "-c", program, str(config), journal]
    try:
        process = subprocess.run(  # noqa: S603 (our own program)
            [*command, *arguments],
            env=environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=TIME_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return process.returncode == 0


def limit_this_process() -> Settings:
    """Limit this process's resources before it reads an upload. Returns the settings."""
    forbid_core_dumps(permanent=True)
    os.umask(0o077)
    set_language(os.environ.get("PAYGW_LANG", ENGLISH))
    config, journal = sys.argv[1:3]
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_FILE_BYTES, MAX_FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_PROCESSOR_S, MAX_PROCESSOR_S))
    return load_settings(Path(config), environ=os.environ, flags={("journal", "path"): journal} if journal else None)


def check() -> None:
    """Check a payout. Process arguments: the configuration, the journal, the folder and the maker's public key."""
    settings = limit_this_process()
    folder, key = sys.argv[3:]
    maker_key = parse_public_key(key)
    if maker_key is None:
        sys.exit(2)
    check_payout(PayoutFolder(Path(folder)), settings, rules_for(settings, PAYOUT), maker_key)


def mark() -> None:
    """Write a marked copy of a sheet. Process arguments: the configuration, the journal, the folder and the copy."""
    settings = limit_this_process()
    folder, path = sys.argv[3:]
    write_marked_copy(PayoutFolder(Path(folder)), settings, rules_for(settings, PAYOUT), Path(path))
