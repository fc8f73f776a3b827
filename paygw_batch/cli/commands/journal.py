"""`paygw-batch journal`: make the journal of an endpoint, move it to a database, or adopt a copy of it."""

import sys
from contextlib import closing
from pathlib import Path

import click

from paygw_batch.cli.invocation import Invocation
from paygw_batch.cli.options import by_option, settings_of
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.clock import timestamp, utc_now
from paygw_batch.compose.journal import (
    adoption,
    check_has_roles,
    give_rights,
    make_journal,
    move_to_database,
    retire,
    roll_call,
    upgrade_journal,
)
from paygw_batch.compose.operations import require_endpoint
from paygw_batch.compose.operator import person
from paygw_batch.errors import JournalError, JournalNotAdopted, RollCallOpen, UsageError
from paygw_batch.journal import Adoption
from paygw_batch.report.summary import ExitCode, Summary
from paygw_batch.settings.configuration import Settings

_GONE = "Is this host gone for good, and does nobody send from it any more?"
_QUESTION = "Is this the newest copy of the journal, and does nobody send from another copy?"
_beside_option = click.option(
    "--beside", metavar="JOURNAL_ID", help="The newest other journal of the endpoint, which you know of."
)


@click.group("journal", short_help="Make, move or adopt a journal; call the roll of its hosts.")
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


@command.command("upgrade", short_help="Bring the tables of a database up.")
@click.pass_obj
def upgrade(invocation: Invocation) -> None:
    """Bring the tables in PostgreSQL up to this version of the program, with the role in [journal] url that owns them.

    Refused while a process works with the journal. Programs of earlier versions are refused from then on.
    """
    screen = Screen(invocation)
    settings = settings_of(invocation)
    require_endpoint(settings)
    before, now = upgrade_journal(settings)
    message = (
        f"The tables at {settings.journal_place()} are of version {now} already: nothing was changed."
        if before == now
        else f"The tables at {settings.journal_place()} were brought up from version {before} to {now}. Every host "
        "needs this version of the program now."
    )
    screen.finish(Summary(ExitCode.DONE, message, further={"tables": {"before": before, "now": now}}))


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
        _confirm(_QUESTION, yes=yes)
        found.carry_out(who, timestamp(utc_now()))
    message = f"{who} adopted the journal {found.journal_id}: runs here send from {found.path} now."
    screen.finish(Summary(ExitCode.DONE, message, further=told))


@command.command("roll-call", short_help="Show the witness of this host.")
@click.pass_obj
def call_roll(invocation: Invocation) -> None:
    """Show the witness of this host to the database, and list the hosts that have not shown theirs.

    For a journal in PostgreSQL that was restored, or whose standby took over. A witness says what a host has sent on.
    Nothing is sent before every host of the last 30 days has shown its own, by this command or any other that writes.
    """
    screen = Screen(invocation)
    settings = settings_of(invocation)
    require_endpoint(settings)
    missing = roll_call(settings)
    told = [{"host": one.name, "id": one.host_id, "last_seen": one.seen_at} for one in missing]
    if missing:
        lines = [(one.name, one.host_id, one.seen_at) for one in missing]
        screen.table("", ("missing host", "id", "last seen"), lines)
        raise RollCallOpen(f"Nothing is sent yet: {_hosts(len(missing))} in the roll-call.")
    message = "Every host has shown its witness: nothing that was sent is missing in the database."
    screen.finish(Summary(ExitCode.DONE, message, further={"missing": told}))


def _hosts(count: int) -> str:
    return "1 host is missing" if count == 1 else f"{count} hosts are missing"


@command.command("retire", short_help="Retire a host that is gone for good.")
@click.argument("host")
@by_option
@click.option("--yes", is_flag=True, help="Do not ask: this host is gone for good.")
@click.pass_obj
def retire_one(invocation: Invocation, *, host: str, by: str | None, yes: bool) -> None:
    """Retire HOST, which is missing in the roll-call and never comes back: its name or its id.

    What it sent last is not in the database. So every row that it could have sent, which is each that is ready or in
    flight, is put in doubt: look at the gateway's statement, and settle it with `resolve`. Batches that it opened last
    are not in the database either: look for their orders at the gateway before you submit their sheets again.
    """
    screen = Screen(invocation)
    settings = settings_of(invocation)
    require_endpoint(settings)
    who = person(by)
    _confirm(_GONE, yes=yes)
    retired, rows = retire(settings, host, by=who)
    message = (
        f"{who} retired the host {retired.name}: {'1 row is' if rows == 1 else f'{rows} rows are'} in doubt that it "
        "could have sent."
    )
    further = {"host": {"name": retired.name, "id": retired.host_id}, "rows_in_doubt": rows}
    screen.finish(Summary(ExitCode.DONE, message, further=further))


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


def _confirm(question: str, *, yes: bool) -> None:
    """Ask a person to confirm: at a terminal by an answer, otherwise by --yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        what = "this is the newest copy" if question == _QUESTION else "this host is gone"
        raise UsageError(
            f"Nobody can be asked here whether {what}: nothing was changed.",
            hint="Run the command at a terminal, or say so with --yes.",
        )
    if not click.confirm(question, err=True):
        if question == _QUESTION:
            raise JournalNotAdopted("The journal was not adopted: nothing was changed.")
        raise UsageError("The host was not retired: nothing was changed.")
