"""`paygw-batch journal`: make the journal of an endpoint, move it to a database, or adopt a copy of it."""

import sys
from contextlib import closing
from pathlib import Path

import click

from paygw_batch.cli.invocation import Invocation
from paygw_batch.cli.options import by_option, settings_of
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.clock import timestamp, utc_now
from paygw_batch.compose.journal import adoption, check_has_roles, give_rights, make_journal, move_to_database
from paygw_batch.compose.operations import require_endpoint
from paygw_batch.compose.operator import person
from paygw_batch.errors import JournalError, JournalNotAdopted, UsageError
from paygw_batch.journal import Adoption
from paygw_batch.report.summary import ExitCode, Summary
from paygw_batch.settings.configuration import Settings

_QUESTION = "Is this the newest copy of the journal, and does nobody send from another copy?"
_beside_option = click.option(
    "--beside", metavar="JOURNAL_ID", help="The newest other journal of the endpoint, which you know of."
)


@click.group("journal", short_help="Make, move or adopt a journal.")
def command() -> None:
    """Make the journal of an endpoint, move it to a database, or say that a copy of it is the newest one.

    An endpoint has one journal. It knows only what was sent from it, so that two journals pay the same sheet twice.
    """


@command.command("new", short_help="Make the journal, once for an endpoint.")
@_beside_option
@click.option("--roles", is_flag=True, help="Also give the roles of the database their rights.")
@click.pass_obj
def new(invocation: Invocation, *, beside: str | None, roles: bool) -> None:
    """Make the journal of the configured endpoint, at [journal] path, --journal or its default place.

    Refused where the endpoint has one already, as far as this user's state directory remembers, unless --beside names
    it. With --roles, a journal that is there already is kept, and only the rights are given.
    """
    screen = Screen(invocation)
    settings = settings_of(invocation)
    require_endpoint(settings)
    if roles:
        check_has_roles(settings)
    made = make_journal(settings, "journal new", beside=beside)
    given = give_rights(settings) if roles else ()
    path = settings.journal_place()
    if made is None and not given:
        kind = "file" if settings.journal.url is None else "journal"
        raise JournalError(
            f"There is a {kind} at {path} already: no journal was made.",
            hint="If it is the journal of this endpoint, nothing has to be made: `paygw-batch doctor` looks at it.",
        )
    told, about = [], dict[str, object]()
    if made is not None:
        told.append(
            f"The journal {made.journal_id} of {made.endpoint} was made at {path}. Every run for this endpoint must "
            "use it, from every account."
        )
        about["journal"] = {"id": made.journal_id, "path": path, "endpoint": made.endpoint}
    if given:
        told.append(f"The roles {', '.join(given)} have their rights: make each login a member of one of them.")
        about["roles"] = given
    screen.finish(Summary(ExitCode.DONE, " ".join(told), further=about))


@command.command("move", short_help="Move a journal from its file to a database.")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@by_option
@click.pass_obj
def move(invocation: Invocation, *, file: Path | None, by: str | None) -> None:
    """Move the journal in FILE to the database that [journal] url names, with all that it knows.

    FILE is the journal at its default place where it is not named. File and copy are replayed. Nothing is paid from the
    file any more then: keep it as an archive. Where a move was broken off, the same command goes on with it.
    """
    screen = Screen(invocation)
    settings = settings_of(invocation)
    require_endpoint(settings)
    moved = move_to_database(settings, file, person(by))
    place = settings.journal_place()
    screen.finish(
        Summary(
            ExitCode.DONE,
            f"The journal {moved.identity.journal_id} is at {place} now, with {moved.facts:,} facts. Every run for "
            "this endpoint must use it, from every host. Nothing is paid from the file any more.",
            further={"journal": {"id": moved.identity.journal_id, "path": place, "endpoint": moved.identity.endpoint}},
        )
    )


@command.command("adopt", short_help="Say that a copy of the journal is the newest.")
@by_option
@_beside_option
@click.option("--yes", is_flag=True, help="Do not ask: this is the newest copy.")
@click.pass_obj
def adopt(invocation: Invocation, *, by: str | None, beside: str | None, yes: bool) -> None:
    """Say that the configured journal is the newest copy, where this user's state directory has never seen it.

    Also for a journal whose gateway goes by another host name now. The journal is replayed and shown first. Where a
    newer copy is known here, it is refused.
    """
    screen = Screen(invocation)
    settings = settings_of(invocation)
    require_endpoint(settings)
    who = person(by)
    with closing(adoption(settings, beside=beside)) as found:
        told = _show(screen, found, settings)
        if not found.is_needed:
            screen.finish(Summary(ExitCode.DONE, f"Nothing to adopt: runs here use {found.path}.", further=told))
        _confirm(yes=yes)
        found.carry_out(who, timestamp(utc_now()))
    message = f"{who} adopted the journal {found.journal_id}: runs here send from {found.path} now."
    screen.finish(Summary(ExitCode.DONE, message, further=told))


def _show(screen: Screen, found: Adoption, settings: Settings) -> dict[str, object]:
    """Show the journal that would be trusted, and return the same description for the summary."""
    seq, at = found.last_fact()
    about = {
        "id": found.journal_id,
        "path": str(found.path),
        "endpoint": settings.endpoint_identity().name,
        "known_as": ", ".join(found.names),
        "batches": found.counts["batches"],
        "rows_ready": found.counts["ready"],
        "rows_in_doubt": found.counts["in_doubt"] + found.counts["in_flight"],
        "last_fact": seq,
        "last_fact_at": at,
    }
    lines = [(what.replace("_", " "), str(value)) for what, value in about.items()]
    screen.table("", ("journal", "what was found"), lines)
    screen.say("It was replayed: its chain of facts is whole. Rows that are ready are sent by the next run.")
    for other in found.others:
        screen.say(f"This user's state directory also remembers {other.journal_id} at {other.path} for the endpoint.")
    return {"journal": about}


def _confirm(*, yes: bool) -> None:
    """Ask a person to confirm: at a terminal by an answer, otherwise by --yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(
            "Nobody can be asked here whether this is the newest copy: nothing was changed.",
            hint="Run the command at a terminal, or say so with --yes.",
        )
    if not click.confirm(_QUESTION, err=True):
        raise JournalNotAdopted("The journal was not adopted: nothing was changed.")
