"""`paygw-batch backup`: make a safe copy of the journal, even during a run."""

import os
import shutil
import subprocess
from contextlib import closing
from pathlib import Path

import click

from paygw_batch.cli.help_texts import HelpCommand
from paygw_batch.cli.invocation import Invocation, NamedFile
from paygw_batch.cli.options import guard_of, settings_of
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.errors import JournalError, OutputError, UsageError
from paygw_batch.files import create_once
from paygw_batch.language import say
from paygw_batch.report.summary import ExitCode, Summary
from paygw_batch.wiring.journal import database_of, file_of, tell_notes
from paygw_batch.wiring.outputs import OutputKind, RequestedOutput

SCHEMA = "paygw"


def dump_database(url: str, file: Path) -> None:
    """Copy the journal at `url` to a new file, 0600: one snapshot in the format of pg_restore. Raises `JournalError`.

    The workers' jobs are left out, because they are created again.
    """
    program = shutil.which("pg_dump")
    if program is None:
        raise UsageError(
            say("A journal in PostgreSQL is copied by pg_dump, which is not installed here. Nothing was copied."),
            hint=say("Install the client programs of PostgreSQL, of the server's version or a later one."),
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
            reason = next(iter(done.stderr.strip().splitlines()), str(done.returncode))
            raise JournalError(
                say("pg_dump could not copy the journal: {reason}.", reason=reason), hint=say("Nothing was copied.")
            )
        with part.open("rb") as written:
            os.fsync(written.fileno())
        part.rename(file)
    except OSError as error:
        raise OutputError(
            say("{path} cannot be written: {reason}.", path=file, reason=say(error.strerror or ""))
        ) from None


@click.command("backup", cls=HelpCommand)
@click.argument("file", type=NamedFile())
@click.pass_obj
def command(invocation: Invocation, *, file: Path) -> None:
    """Copy the journal to FILE, a new file: one consistent snapshot, even during a run.

    A journal in PostgreSQL is copied by pg_dump, in the format that pg_restore reads.

    The notifications that `listen` received are copied to FILE.inbox, the notices of [notices] to FILE.outbox, the
    console's audit trail to FILE.audit.

    The copy is for safekeeping. No run sends from it while the original exists, or if the original was used since: rows
    could be paid twice.
    """
    screen = Screen(invocation)
    settings = settings_of(invocation)
    guard_of(invocation, settings).check(RequestedOutput("FILE", file, OutputKind.NEW))
    if (database := database_of(settings)) is not None:
        with closing(database.open_to_read()) as journal:
            facts = journal.head().seq
        dump_database(database.server.url, file)
        said = say("The journal, {facts:,} facts or more, was copied to {file}.", facts=facts, file=file)
        screen.finish(Summary(ExitCode.DONE, said))
    place = file_of(settings)
    with closing(place.open_to_read()) as journal:
        tell_notes(journal, screen.say)
        facts = journal.head().seq
        journal.backup(file)
    try:
        place.note_copy()
    except OutputError as error:
        screen.say(say("The copy is complete, but the pages can't show it: {reason}", reason=error.message))
    screen.finish(
        Summary(ExitCode.DONE, say("The journal, {facts:,} facts, was copied to {file}.", facts=facts, file=file))
    )
