"""The commands about a journal: `journal`, which creates, moves or adopts one, `verify` and `backup`."""

import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paygw_batch.approval.policy import person
from paygw_batch.cli.help_texts import HelpCommand, HelpGroup
from paygw_batch.cli.invocation import Invocation, NamedFile
from paygw_batch.cli.options import by_option, guard_of, settings_of
from paygw_batch.cli.screen.progress_bar import bar_on
from paygw_batch.cli.screen.screen import Screen, confirmed
from paygw_batch.core.shown_states import state_words
from paygw_batch.errors import JournalError, JournalNotAdopted, OutputError, RollCallOpen, UsageError
from paygw_batch.extras import extra
from paygw_batch.journal import AcceptedRows
from paygw_batch.journal.adopt import Adoption
from paygw_batch.language import mark, mark_all, say, say_count
from paygw_batch.opening.given_sheet import require_endpoint
from paygw_batch.opening.open_journal import (
    database_of,
    file_of,
    journal_to_read,
    place_of,
    require_database,
    tell_notes,
)
from paygw_batch.processes import gc_paused
from paygw_batch.settings.configuration import Settings
from paygw_batch.settle.kept_documents import check_kept_orders, check_kept_withdrawals
from paygw_batch.show.outputs import OutputKind, RequestedOutput
from paygw_batch.show.summary import ExitCode, Summary

_COUNTED = {
    "instructions": mark("instructions"),
    "order_ids": mark("order ids"),
    "contradictions": mark("contradictions"),
    "batches": mark("batches"),
    "pages": mark("pages"),
    "facts": mark("facts"),
    "evidence": mark("evidence"),
    "notifications_waiting": mark("notifications waiting"),
    "signed_orders": mark("signed orders"),
    "withdrawals": mark("withdrawals"),
    "audit_entries": mark("entries of the audit trail"),
}
"""The names of the counts that `verify` shows besides the rows in each state."""


@click.command("verify", cls=HelpCommand)
@click.pass_obj
def verify_command(invocation: Invocation) -> None:
    """Replay the whole journal: hash chains, states, totals, signed orders, and the audit trail.

    If something is damaged, the command says where and ends with exit code 7.
    """
    screen, settings = Screen(invocation, only_shows=True), settings_of(invocation)
    with journal_to_read(settings, screen.say) as journal:
        with bar_on(screen.err, say("Checking")) as progress, gc_paused():
            counted = dict(journal.verify(progress))
        signed_orders = check_kept_orders(journal)
        withdrawals = check_kept_withdrawals(journal)
        entries = journal.acts(limit=1) if counted.get("audit_entries") else ()
        contradictions = len(journal.messages().contradictions)
    message = say("The journal is sound: its chain of facts is intact, and states and totals follow from it.")
    if signed_orders:
        counted["signed_orders"] = signed_orders
    if withdrawals:
        counted["withdrawals"] = withdrawals
    for newest in entries:
        end = {"number": newest.number, "hash": newest.hash[:16]}
        message += say(" The audit trail is intact; it ends with entry {number}, {hash}.", **end)
    if contradictions:
        message += say_count(
            contradictions,
            " It holds {count:,} contradicting message: `paygw-batch status` shows it.",
            " It holds {count:,} contradicting messages: `paygw-batch status` shows them.",
        )
    lines = [(say(_COUNTED[kind]) if kind in _COUNTED else state_words(kind), count) for kind, count in counted.items()]
    screen.table("", mark_all("checked", "count"), lines)
    code = ExitCode.PERSON_NEEDED if contradictions else ExitCode.DONE
    screen.finish(Summary(code, message, further={"checked": counted}))


@click.command("backup", cls=HelpCommand)
@click.argument("file", type=NamedFile())
@click.pass_obj
def backup_command(invocation: Invocation, *, file: Path) -> None:
    """Copy the journal to FILE, a new file: one consistent snapshot, even during a run.

    A journal in PostgreSQL is copied by pg_dump, in the format that pg_restore reads.

    The copy is for safekeeping. No run sends from it while the original exists, or if the original was used since: rows
    could be paid twice.
    """
    screen, settings = Screen(invocation), settings_of(invocation)
    guard_of(invocation, settings).check(RequestedOutput("FILE", file, OutputKind.NEW))
    if (database := database_of(settings)) is not None:
        with closing(database.open_to_read()) as journal:
            facts = journal.head().seq
        database.dump(file)
        message = say("The journal, {facts:,} facts or more, was copied to {file}.", facts=facts, file=file)
        screen.finish(Summary(ExitCode.DONE, message))
    place = file_of(settings)
    with closing(place.open_to_read()) as journal:
        tell_notes(journal, screen.say)
        facts = journal.head().seq
        journal.backup(file)
    try:
        place.note_copy()
    except OutputError as error:
        screen.say(say("The copy is complete, but the pages can't show it: {reason}", reason=error.message))
    message = say("The journal, {facts:,} facts, was copied to {file}.", facts=facts, file=file)
    screen.finish(Summary(ExitCode.DONE, message))


if TYPE_CHECKING:
    from paygw_batch.cluster.database_place import AcceptedLoss, DatabasePlace, MissingHost

_GONE = mark("Is this host gone for good, and has it stopped sending?")
_LOST = mark("Is the newest data of the database lost for good, and has everyone stopped sending from it?")
_QUESTION = mark("Is this the newest copy of the journal that is left, and is no one sending from another copy?")
_beside_option = click.option(
    "--beside", metavar="JOURNAL_ID", help="The merchant's newest other journal, to confirm that you know of it."
)


_ABOUT = {
    "id": mark("id"),
    "path": mark("path"),
    "endpoint": mark("endpoint"),
    "known_as": mark("known as"),
    "batches": mark("batches"),
    "rows_ready": mark("rows ready"),
    "rows_in_doubt": mark("rows in doubt"),
    "last_fact": mark("last fact"),
    "last_fact_at": mark("last fact at"),
}
"""The labels of a journal's description, by its keys in the JSON."""


@click.group("journal", cls=HelpGroup)
def journal_command() -> None:
    """Create the journal of a merchant, move it to a database, or adopt a copy as the newest one.

    A merchant has one journal at a gateway, whatever its endpoints. A journal knows only what was sent from it, so two
    journals would pay the same sheet twice.
    """


def _of_merchant(invocation: Invocation) -> tuple[Screen, Settings]:
    """Return the screen and the settings. Raises `ConfigurationError` unless the settings name an endpoint."""
    screen, settings = Screen(invocation), settings_of(invocation)
    require_endpoint(settings)
    return screen, settings


@journal_command.command("new", short_help="Create the journal, once for each merchant.")
@_beside_option
@click.option("--roles", is_flag=True, help="Also grant the database roles their permissions.")
@click.pass_obj
def new(invocation: Invocation, *, beside: str | None, roles: bool) -> None:
    """Create the journal of the configured merchant, at [journal] path, --journal or its default place.

    Refused if your state directory already knows a journal of the merchant, unless --beside names it. With --roles an
    existing journal is kept, and only permissions are granted.
    """
    screen, settings = _of_merchant(invocation)
    no_roles, owner_only = say("A journal in a file has no roles."), say("Only its owner may read or change it.")
    database = require_database(settings, no_roles, owner_only) if roles else None
    identity = place_of(settings).make("journal new", beside=beside)
    roles_granted = () if database is None else database.give_rights()
    path = settings.journal_place()
    if identity is None and not roles_granted:
        raise JournalError(
            say("There is already a file at {path}, so no journal was created.", path=path)
            if settings.journal.url is None
            else say("There is already a journal at {path}, so none was created.", path=path),
            hint=say("If it is this merchant's journal, you need no other: `paygw-batch doctor` checks it."),
        )
    sentences, about = [], dict[str, object]()
    if identity is not None:
        created = say(
            "The journal {journal} of {endpoint} was created at {path}. Every run for this merchant must use it, from "
            "every account.",
            journal=identity.journal_id,
            endpoint=identity.endpoint,
            path=path,
        )
        sentences.append(created)
        about["journal"] = {"id": identity.journal_id, "path": path, "endpoint": identity.endpoint}
    if roles_granted:
        granted = mark("The roles {roles} have their permissions. Make each login a member of one of them.")
        sentences.append(say(granted, roles=", ".join(roles_granted)))
        about["roles"] = roles_granted
    screen.finish(Summary(ExitCode.DONE, " ".join(sentences), further=about))


@journal_command.command("move", short_help="Move a journal from its file to a database.")
@click.argument("file", type=NamedFile(), required=False)
@by_option
@click.pass_obj
def move(invocation: Invocation, *, file: Path | None, by: str | None) -> None:
    """Move the journal in FILE, with everything in it, to the database that [journal] url names.

    Without FILE: the journal at its default place. The file and its copy are both replayed. After that nothing is
    paid from the file: keep it as an archive. If a move was interrupted, the same command continues it.
    """
    screen, settings = _of_merchant(invocation)
    who = person(by)
    database = require_database(
        settings,
        say("[journal] url names no database to move the journal to."),
        say("Write the address of an empty database into [journal] url, and leave path out."),
    )
    moved = extra("cluster.move").move_journal(file_of(settings, file), database, settings.words(), who)
    place, identity = settings.journal_place(), moved.identity
    message = say(
        "The journal {journal_id} is at {place} now, with {facts:,} facts. Every run for this merchant must use it, "
        "from every host. Nothing is paid from the file any more.",
        journal_id=identity.journal_id,
        place=place,
        facts=moved.facts,
    )
    journal = {"id": identity.journal_id, "path": place, "endpoint": identity.endpoint}
    screen.finish(Summary(ExitCode.DONE, message, further={"journal": journal}))


@journal_command.command("upgrade", short_help="Upgrade the tables of a database.")
@click.pass_obj
def upgrade(invocation: Invocation) -> None:
    """Upgrade the tables in PostgreSQL to this version of the program. The role in [journal] url must own them.

    Refused while a process uses the journal. Earlier versions of the program cannot use it after that.
    """
    screen, settings = _of_merchant(invocation)
    database = require_database(
        settings,
        say("A journal in a file is upgraded by the next command that writes to it."),
        say("There is nothing to do."),
    )
    before, now, has_new_jobs = database.upgrade()
    tables = {"place": settings.journal_place(), "before": before, "now": now}
    if before != now:
        message = say(
            "The tables at {place} were upgraded from version {before} to {now}. Every host needs this version of "
            "the program now.",
            **tables,
        )
    elif has_new_jobs:
        message = say("The tables at {place} are already at version {now}. Those of jobs were upgraded.", **tables)
    else:
        message = say("The tables at {place} are already at version {now}. Nothing was changed.", **tables)
    screen.finish(Summary(ExitCode.DONE, message, further={"tables": {"before": before, "now": now}}))


@journal_command.command("adopt", short_help="Adopt a copy of the journal as the newest.")
@by_option
@_beside_option
@click.option("--yes", is_flag=True, help="Don't ask: this is the newest copy.")
@click.pass_obj
def adopt(invocation: Invocation, *, by: str | None, beside: str | None, yes: bool) -> None:
    """Adopt the configured journal as the newest copy, if your state directory has never seen it.

    Also for a journal whose gateway has a new host name, and for an older copy if the newest is lost for good: exactly
    the rows that this computer sent since it was made are put in doubt. The journal is replayed and shown first.
    """
    screen, settings = _of_merchant(invocation)
    who = person(by)
    if settings.journal.url is not None:
        raise UsageError(
            say("A journal in PostgreSQL is not adopted: every host that has its address may use it."),
            hint=say("`paygw-batch doctor` checks it."),
        )
    with closing(Adoption(file_of(settings), beside=beside)) as adoption:
        about = _show(screen, adoption, settings)
        if not adoption.is_needed:
            message = say("Nothing to adopt: runs here use {path}.", path=adoption.path)
            screen.finish(Summary(ExitCode.DONE, message, further=about))
        _confirm(_QUESTION, yes=yes)
        rows = adoption.carry_out(who)
    message = say(
        "{who} adopted the journal {journal}: runs here send from {path} now.",
        who=who,
        journal=adoption.journal_id,
        path=adoption.path,
    )
    if adoption.loss.commits:
        message += " " + _lost(screen, rows)
        about |= {"lost_commits": adoption.loss.commits, **_lost_rows(rows)}
    screen.finish(Summary(ExitCode.DONE, message, further=about))


def _lost(screen: Screen, rows: AcceptedRows) -> str:
    """Show the orders of an accepted loss that a person must look for. Return sentences about its rows."""
    sentences = say("Of what left by the lost commits, {rows} in doubt. ", rows=_rows(rows.in_doubt))
    if rows.held:
        sentences += say("{rows} held, because decisions about them were lost too. ", rows=_rows(rows.held))
    for orders, title in (
        (rows.unknown_orders, mark("The journal does not know the batch of an order that was sent")),
        (rows.contradictions, mark("An order was sent from here, and finished by another attempt")),
    ):
        if orders:
            screen.table("", (title,), [(order,) for order in orders])
    if rows.unknown_orders:
        sentences += say("If a sheet names such an order again, its row is held until `resolve` settles it. ")
    if rows.unknown_orders or rows.contradictions:
        sentences += say("Check the orders above with the gateway before you submit their sheets again. ")
    return sentences + say("Withdraw again what was withdrawn since then. ")


@journal_command.command("roll-call", short_help="Answer for this host, or accept its loss.")
@click.option("--accept-loss", is_flag=True, help="Accept that the database lacks the last rows of this host.")
@by_option
@click.option("--yes", is_flag=True, help="Don't ask: the newest data of the database is lost for good.")
@click.pass_obj
def call_roll(invocation: Invocation, *, accept_loss: bool, by: str | None, yes: bool) -> None:
    """Compare this host's record of the payments it sent with the database, and list the hosts that have not done so.

    For a journal in PostgreSQL that was restored, or whose standby took over. Each host keeps a record of the payments
    it sent. Nothing is sent until every host of the last 30 days has compared its record, by this command or any other
    that writes.

    --accept-loss is for a host whose last commits are missing in the database: exactly the rows that it sent in them
    are put in doubt, or held; the others do not change. A host that is gone is retired: `journal retire HOST`.
    """
    screen, settings = _of_merchant(invocation)
    if not accept_loss:
        if by is not None or yes:
            raise UsageError(say("--by and --yes need --accept-loss."))
        _finish_roll_call(screen, _place_of_roll(settings).roll_call())
        return
    who = person(by)
    _confirm(_LOST, yes=yes)
    accepted = _place_of_roll(settings).accept_loss(by=who)
    _finish_roll_call(screen, accepted.missing, accepted, who)


def _place_of_roll(settings: Settings) -> "DatabasePlace":
    return require_database(
        settings,
        say("A journal in a file has no other hosts, so it has no roll-call."),
        say("`paygw-batch journal adopt` confirms that a copy of it is the newest."),
    )


def _finish_roll_call(
    screen: Screen, missing: "Sequence[MissingHost]", accepted: "AcceptedLoss | None" = None, who: str = ""
) -> None:
    further: dict[str, object] = {}
    message = ""
    if accepted is not None:
        message = say("Nothing that this host sent is missing: no loss was accepted. ")
        if accepted.commits or accepted.is_guess:
            message = say(
                "{who} accepted the loss of {commits} commits of this host. ", who=who, commits=accepted.commits
            ) + _lost(screen, accepted.rows)
        if accepted.is_guess:
            message += say("This host does not know all of them, so every row that it could have sent is in doubt. ")
        further = {"lost_commits": accepted.commits, **_lost_rows(accepted.rows), "is_guess": accepted.is_guess}
    missing_hosts = [{"host": host.name, "id": host.host_id, "last_seen": host.seen_at} for host in missing]
    further["missing"] = missing_hosts
    if missing:
        lines = [(host.name, host.host_id, host.seen_at) for host in missing]
        screen.table("", mark_all("missing host", "id", "last seen"), lines)
        hosts = say_count(len(missing), "{count:,} host is missing", "{count:,} hosts are missing")
        open_roll = RollCallOpen(message + say("Nothing is sent yet: {hosts} in the roll-call.", hosts=hosts))
        if accepted is None:
            raise open_roll
        screen.finish(Summary(ExitCode.JOURNAL, f"{open_roll.message} {open_roll.hint}", further=further))
        return
    message += say("Every host has answered: nothing else that was sent is missing in the database.")
    screen.finish(Summary(ExitCode.DONE, message, further=further))


def _lost_rows(rows: AcceptedRows) -> dict[str, object]:
    return {
        "rows_in_doubt": rows.in_doubt,
        "rows_held": rows.held,
        "rows_not_sent": rows.not_sent,
        "unknown_orders": rows.unknown_orders,
        "contradictions": rows.contradictions,
    }


def _rows(count: int) -> str:
    return say_count(count, "{count:,} row is", "{count:,} rows are")


@journal_command.command("retire", short_help="Retire a host that is gone for good.")
@click.argument("host")
@by_option
@click.option("--yes", is_flag=True, help="Don't ask: this host is gone for good.")
@click.pass_obj
def retire_one(invocation: Invocation, *, host: str, by: str | None, yes: bool) -> None:
    """Retire HOST, by its name or id: it is missing in the roll-call and will never return.

    A live host is refused: it knows which rows it sent, and reports them by `journal roll-call --accept-loss`. The
    database may lack the last rows that HOST sent. So every row that it could have sent, ready or in flight, is put
    in doubt: check the gateway's statement, and settle them with `resolve`. The last batches that HOST opened may be
    missing too: look for their orders at the gateway before you submit their sheets again.
    """
    screen, settings = _of_merchant(invocation)
    who = person(by)
    _confirm(_GONE, yes=yes)
    retired, rows = _place_of_roll(settings).retire(host, by=who)
    message = say(
        "{who} retired the host {host}: {rows} in doubt that it could have sent.",
        who=who,
        host=retired.name,
        rows=_rows(rows),
    )
    further = {"host": {"name": retired.name, "id": retired.host_id}, "rows_in_doubt": rows}
    screen.finish(Summary(ExitCode.DONE, message, further=further))


def _show(screen: Screen, adoption: Adoption, settings: Settings) -> dict[str, object]:
    """Show the journal that would be adopted, and return its description for the summary."""
    seq, at = adoption.last_fact()
    about = {
        "id": adoption.journal_id,
        "path": str(adoption.path),
        "endpoint": settings.endpoint_identity().name,
        "known_as": ", ".join(adoption.names),
        "batches": adoption.counts["batches"],
        "rows_ready": adoption.counts["ready"],
        "rows_in_doubt": adoption.counts["in_doubt"] + adoption.counts["in_flight"],
        "last_fact": seq,
        "last_fact_at": at,
    }
    lines = [(say(_ABOUT[key]), str(value)) for key, value in about.items()]
    screen.table("", mark_all("journal", "what was found"), lines)
    screen.say(say("It was replayed, and its chain of facts is intact. The next run sends the rows that are ready."))
    remembers = mark("This user's state directory also remembers {journal_id} at {path} for the merchant.")
    for other in adoption.others:
        screen.say(say(remembers, journal_id=other.journal_id, path=other.path))
    return {"journal": about}


def _confirm(question: str, *, yes: bool) -> None:
    """Ask a person to confirm: by an answer at a terminal, or else by --yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(
            say("There is no terminal to ask on. Nothing was changed. {question}", question=say(question)),
            hint=say("Run the command at a terminal, or say so with --yes."),
        )
    if not confirmed(say(question), err=True):
        if question == _QUESTION:
            raise JournalNotAdopted(say("The journal was not adopted: nothing was changed."))
        raise UsageError(
            say("The loss was not accepted: nothing was changed.")
            if question == _LOST
            else say("The host was not retired: nothing was changed.")
        )
