"""`paygw-batch backup`: a safe copy of the journal, also while a run is on."""

from pathlib import Path

import click

from paygw_batch.cli.invocation import Invocation
from paygw_batch.cli.options import guard_of, settings_of
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.compose.journal import journal_to_read
from paygw_batch.compose.outputs import OutputKind, Wanted
from paygw_batch.errors import UsageError
from paygw_batch.journal import SqliteReader
from paygw_batch.report.summary import ExitCode, Summary


@click.command("backup", short_help="Copy the journal.")
@click.argument("file", type=click.Path(path_type=Path))
@click.pass_obj
def command(invocation: Invocation, *, file: Path) -> None:
    """Copy the journal to FILE, which must not exist yet: one moment of it, whole, also while a run is on.

    The notifications that listen has kept are copied to FILE.inbox, the console's audit trail to FILE.audit.

    The copy is for safekeeping. No run sends from it while the journal stands that it was made of, nor once that one
    has gone on: rows could be paid twice.
    """
    screen = Screen(invocation)
    settings = settings_of(invocation)
    if settings.journal.url is not None:
        raise UsageError(
            "A journal in PostgreSQL is copied with the database's own tools: nothing was copied.",
            hint="Use pg_basebackup or pg_dump, as docs/several-hosts.md says.",
        )
    guard_of(invocation, settings).check(Wanted("FILE", file, OutputKind.NEW))
    with journal_to_read(settings, screen.say) as journal:
        facts = journal.head().seq
        assert isinstance(journal, SqliteReader)  # noqa: S101 - there is no url
        journal.backup(file)
    screen.finish(Summary(ExitCode.DONE, f"The journal, {facts:,} facts, was copied to {file}."))
