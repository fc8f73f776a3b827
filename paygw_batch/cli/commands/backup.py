"""`paygw-batch backup`: a safe copy of the journal, also while a run is on."""

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
from paygw_batch.wiring.journal import require_file, tell_notes
from paygw_batch.wiring.outputs import OutputKind, RequestedOutput


@click.command("backup", cls=HelpCommand)
@click.argument("file", type=NamedFile())
@click.pass_obj
def command(invocation: Invocation, *, file: Path) -> None:
    """Copy the journal to FILE, a new file: one consistent snapshot, also during a run.

    The notifications that `listen` received are copied to FILE.inbox, the console's audit trail to FILE.audit.

    The copy is for safekeeping. No run sends from it while the original exists, or once the original has gone on:
    rows could be paid twice.
    """
    screen = Screen(invocation)
    settings = settings_of(invocation)
    place = require_file(
        settings,
        say("A journal in PostgreSQL is copied with the database's own tools: nothing was copied."),
        say("Use pg_basebackup or pg_dump, as docs/several-hosts.md says."),
    )
    guard_of(invocation, settings).check(RequestedOutput("FILE", file, OutputKind.NEW))
    with closing(place.open_to_read()) as journal:
        tell_notes(journal, screen.say)
        facts = journal.head().seq
        journal.backup(file)
    try:
        place.note_copy()
    except OutputError as error:
        screen.say(say("The pages do not know of this copy: {reason}", reason=error.message))
    screen.finish(
        Summary(ExitCode.DONE, say("The journal, {facts:,} facts, was copied to {file}.", facts=facts, file=file))
    )
