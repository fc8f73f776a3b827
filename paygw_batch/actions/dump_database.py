"""Copies a journal in PostgreSQL by the database's own program, pg_dump."""

import os
import shutil
import subprocess
from pathlib import Path

from paygw_batch.errors import JournalError, OutputError, UsageError
from paygw_batch.files import create_once

SCHEMA = "paygw"


def dump_database(url: str, file: Path) -> None:
    """Copy the journal at `url` to a new file, 0600: one snapshot, as pg_restore reads it. Raises `JournalError`.

    The jobs of workers are left out: they are made again.
    """
    program = shutil.which("pg_dump")
    if program is None:
        raise UsageError(
            "A journal in PostgreSQL is copied by pg_dump, and this host has no such program: nothing was copied.",
            hint="Install the client programs of PostgreSQL, of the server's version or a later one.",
        )
    part = file.with_name(f"{file.name}.part")
    try:
        part.unlink(missing_ok=True)
        create_once(part, b"")  # for its owner alone, before pg_dump writes into it
        done = subprocess.run(  # noqa: S603 - the database's own program
            [program, "--format=custom", f"--schema={SCHEMA}", f"--file={part}", "--no-password", f"--dbname={url}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            part.unlink(missing_ok=True)
            reason = next(iter(done.stderr.strip().splitlines()), f"it ended with {done.returncode}")
            raise JournalError(f"pg_dump could not copy the journal: {reason}.", hint="Nothing was copied.")
        with part.open("rb") as written:
            os.fsync(written.fileno())
        part.rename(file)
    except OSError as error:
        raise OutputError(f"{file} cannot be written: {error.strerror}.") from None
