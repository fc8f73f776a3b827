"""`paygw-batch backup`: make a safe copy of the journal, even during a run."""

from contextlib import closing
from pathlib import Path

import click

from paygw_batch.cli.help_texts import HelpCommand
from paygw_batch.cli.invocation import Invocation, NamedFile
from paygw_batch.cli.options import guard_of, settings_of
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.errors import OutputError
from paygw_batch.language import say
from paygw_batch.report.summary import ExitCode, Summary
from paygw_batch.wiring.journal import database_of, file_of, tell_notes
from paygw_batch.wiring.outputs import OutputKind, RequestedOutput


@click.command("backup", cls=HelpCommand)
@click.argument("file", type=NamedFile())
@click.pass_obj
def command(invocation: Invocation, *, file: Path) -> None:
    """Copy the journal to FILE, a new file: one consistent snapshot, even during a run.

    A journal in PostgreSQL is copied by pg_dump, in the format that pg_restore reads.

    The copy is for safekeeping. No run sends from it while the original exists, or if the original was used since: rows
    could be paid twice.
    """
    screen = Screen(invocation)
    settings = settings_of(invocation)
    guard_of(invocation, settings).check(RequestedOutput("FILE", file, OutputKind.NEW))
    if (database := database_of(settings)) is not None:
        with closing(database.open_to_read()) as journal:
            facts = journal.head().seq
        database.dump(file)
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
