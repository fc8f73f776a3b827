"""The commands for journals: `journal`, `verify` and `backup`."""

import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paygw_batch.approval.policy import identify_person
from paygw_batch.cli.help_texts import HelpCommand, HelpGroup
from paygw_batch.cli.invocation import Invocation, NamedFile
from paygw_batch.cli.options import by_option, output_guard, settings_for
from paygw_batch.cli.screen.progress_bar import show_bar
from paygw_batch.cli.screen.screen import Screen, ask_to_confirm
from paygw_batch.core.shown_states import state_label
from paygw_batch.errors import JournalError, JournalNotAdopted, OpenRollCall, OutputError, UsageError
from paygw_batch.extras import extra
from paygw_batch.journal import AcceptedRows
from paygw_batch.journal.adopt import Adoption
from paygw_batch.language import mark, mark_all, say, say_count
from paygw_batch.opening.given_sheet import require_endpoint
from paygw_batch.opening.open_journal import (
    database_location,
    file_location,
    journal_location,
    open_journal_to_read,
    report_notes,
    require_database,
)
from paygw_batch.processes import gc_paused
from paygw_batch.settings.configuration import Settings
from paygw_batch.settle.kept_documents import check_recorded_orders, check_recorded_withdrawals
from paygw_batch.show.outputs import OutputKind, RequestedOutput
from paygw_batch.show.summary import ExitCode, Summary

_COUNT_LABELS = {
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
"""The labels of the counts that `verify` shows besides the states of rows."""


@click.command("verify", cls=HelpCommand)
@click.pass_obj
def verify_command(invocation: Invocation) -> None:
    """Replay the whole journal: hash chains, states, totals, signed orders, and the audit trail.

    If anything is damaged, the command reports where, and ends with exit code 7.
    """
    screen, settings = Screen(invocation, is_read_only=True), settings_for(invocation)
    with open_journal_to_read(settings, screen.say) as journal:
        with show_bar(screen.err, say("Checking")) as progress, gc_paused():
            counts = dict(journal.verify(progress))
        signed_orders = check_recorded_orders(journal)
        withdrawals = check_recorded_withdrawals(journal)
        entries = journal.audit_entries(limit=1) if counts.get("audit_entries") else ()
        contradictions = len(journal.messages().contradictions)
    message = say("The journal is sound: its chain of facts is intact, and states and totals follow from it.")
    if signed_orders:
        counts["signed_orders"] = signed_orders
    if withdrawals:
        counts["withdrawals"] = withdrawals
    for newest in entries:
        trail_end = {"number": newest.number, "hash": newest.hash[:16]}
        message += say(" The audit trail is intact; it ends with entry {number}, {hash}.", **trail_end)
    if contradictions:
        message += say_count(
            contradictions,
            " It has {count:,} contradicting message: `paygw-batch status` shows it.",
            " It has {count:,} contradicting messages: `paygw-batch status` shows them.",
        )
    labels = {kind: say(label) for kind, label in _COUNT_LABELS.items()}
    lines = [(labels.get(kind) or state_label(kind), count) for kind, count in counts.items()]
    screen.table("", mark_all("checked", "count"), lines)
    code = ExitCode.PERSON_NEEDED if contradictions else ExitCode.DONE
    screen.finish(Summary(code, message, extra={"checked": counts}))


@click.command("backup", cls=HelpCommand)
@click.argument("file", type=NamedFile())
@click.pass_obj
def backup_command(invocation: Invocation, *, file: Path) -> None:
    """Copy the journal to a new FILE, as one consistent snapshot, even during a run.

    A journal in PostgreSQL is copied by pg_dump, in the format that pg_restore reads.

    The copy is for safekeeping. No run sends from it while the original exists, or if the original was used since: rows
    could be paid twice.
    """
    screen, settings = Screen(invocation), settings_for(invocation)
    output_guard(invocation, settings).check(RequestedOutput("FILE", file, OutputKind.NEW))
    if (database := database_location(settings)) is not None:
        with closing(database.open_to_read()) as journal:
            facts = journal.head().seq
        database.dump(file)
        message = say_count(
            facts,
            "The journal, {count:,} fact or more, was copied to {file}.",
            "The journal, {count:,} facts or more, was copied to {file}.",
            file=file,
        )
        screen.finish(Summary(ExitCode.DONE, message))
    journal_file = file_location(settings)
    with closing(journal_file.open_to_read()) as journal:
        report_notes(journal, screen.say)
        facts = journal.head().seq
        journal.backup(file)
    try:
        journal_file.record_backup()
    except OutputError as error:
        screen.say(say("The copy is complete, but the pages can't show it: {reason}", reason=error.message))
    message = say_count(
        facts,
        "The journal, {count:,} fact, was copied to {file}.",
        "The journal, {count:,} facts, was copied to {file}.",
        file=file,
    )
    screen.finish(Summary(ExitCode.DONE, message))


if TYPE_CHECKING:
    from paygw_batch.cluster.database_place import AcceptedLoss, DatabasePlace, MissingHost

_HOST_GONE_QUESTION = mark("Is this host gone for good, and has it stopped sending?")
_LOSS_QUESTION = mark("Is the newest data of the database lost for good, and has everyone stopped sending from it?")
_COPY_QUESTION = mark("Is this the newest copy of the journal that is left, and is no one sending from another copy?")
_other_journal_option = click.option(
    "--beside", metavar="JOURNAL_ID", help="Confirm that the merchant has another journal, by naming the newest."
)


_JOURNAL_LABELS = {
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

    A merchant has one journal per gateway, for all of its endpoints. A journal knows only the payments sent from it, so
    two journals would pay the same sheet twice.
    """


def _require_merchant(invocation: Invocation) -> tuple[Screen, Settings]:
    """Return the screen and settings. Raises `ConfigurationError` if no endpoint is configured."""
    screen, settings = Screen(invocation), settings_for(invocation)
    require_endpoint(settings)
    return screen, settings


@journal_command.command("new", short_help="Create the journal, once for each merchant.")
@_other_journal_option
@click.option("--roles", is_flag=True, help="Also grant the database roles their permissions.")
@click.pass_obj
def create_journal(invocation: Invocation, *, beside: str | None, roles: bool) -> None:
    """Create the journal of the configured merchant, at [journal] path, --journal or its default location.

    This is refused if your state directory already lists a journal of the merchant, unless --beside names it. With
    --roles an existing journal is kept, and only permissions are granted.
    """
    screen, settings = _require_merchant(invocation)
    not_supported, owner_only = say("A journal in a file has no roles."), say("Only its owner may read or change it.")
    database = require_database(settings, not_supported, owner_only) if roles else None
    identity = journal_location(settings).make("journal new", beside=beside)
    roles_granted = () if database is None else database.grant_rights()
    path = settings.journal_place()
    if identity is None and not roles_granted:
        raise JournalError(
            say("There is already a file at {path}, so no journal was created.", path=path)
            if settings.journal.url is None
            else say("There is already a journal at {path}, so none was created.", path=path),
            hint=say("If it is this merchant's journal, you don't need another: `paygw-batch doctor` checks it."),
        )
    sentences, members = [], dict[str, object]()
    if identity is not None:
        created = say(
            "The journal {journal} of {endpoint} was created at {path}. Every run for this merchant must use it, from "
            "every account.",
            journal=identity.journal_id,
            endpoint=identity.endpoint,
            path=path,
        )
        sentences.append(created)
        members["journal"] = {"id": identity.journal_id, "path": path, "endpoint": identity.endpoint}
    if roles_granted:
        granted = mark("The roles {roles} have their permissions. Make each login a member of one of them.")
        sentences.append(say(granted, roles=", ".join(roles_granted)))
        members["roles"] = roles_granted
    screen.finish(Summary(ExitCode.DONE, " ".join(sentences), extra=members))


@journal_command.command("move", short_help="Move a journal from its file to a database.")
@click.argument("file", type=NamedFile(), required=False)
@by_option
@click.pass_obj
def move_to_database(invocation: Invocation, *, file: Path | None, by: str | None) -> None:
    """Move the journal in FILE, with everything in it, to the database that [journal] url names.

    Without FILE, it moves the journal at its default location. The file and its copy are both replayed. Afterwards
    nothing is paid from the file: keep it as an archive. If a move was interrupted, the same command continues it.
    """
    screen, settings = _require_merchant(invocation)
    actor = identify_person(by)
    database = require_database(
        settings,
        say("[journal] url names no database to move the journal to."),
        say("Set [journal] url to the address of an empty database, and remove path."),
    )
    move = extra("cluster.move").move_journal(file_location(settings, file), database, settings.words(), actor)
    database_location, identity = settings.journal_place(), move.identity
    message = say(
        "The journal {journal_id} is at {place} now, with {facts:,} facts. Every run for this merchant must use it, "
        "from every host. Nothing is paid from the file any more.",
        journal_id=identity.journal_id,
        place=database_location,
        facts=move.facts,
    )
    journal = {"id": identity.journal_id, "path": database_location, "endpoint": identity.endpoint}
    screen.finish(Summary(ExitCode.DONE, message, extra={"journal": journal}))


@journal_command.command("upgrade", short_help="Upgrade the tables of a database.")
@click.pass_obj
def upgrade_tables(invocation: Invocation) -> None:
    """Upgrade the tables in PostgreSQL to this version of the program. The role in [journal] url must own them.

    This is refused while a process uses the journal. Afterwards earlier versions of the program cannot use it.
    """
    screen, settings = _require_merchant(invocation)
    database = require_database(
        settings,
        say("A journal in a file is upgraded by the next command that writes to it."),
        say("There is nothing to do."),
    )
    old_version, new_version, has_new_jobs = database.upgrade()
    tables = {"place": settings.journal_place(), "before": old_version, "now": new_version}
    if old_version != new_version:
        message = say(
            "The tables at {place} were upgraded from version {before} to {now}. Every host needs this version of "
            "the program now.",
            **tables,
        )
    elif has_new_jobs:
        message = say("The tables at {place} are already at version {now}. The tables of jobs were upgraded.", **tables)
    else:
        message = say("The tables at {place} are already at version {now}. Nothing was changed.", **tables)
    screen.finish(Summary(ExitCode.DONE, message, extra={"tables": {"before": old_version, "now": new_version}}))


@journal_command.command("adopt", short_help="Adopt a copy of the journal as the newest.")
@by_option
@_other_journal_option
@click.option("--yes", is_flag=True, help="Confirm, without a prompt, that this is the newest copy.")
@click.pass_obj
def adopt_journal(invocation: Invocation, *, by: str | None, beside: str | None, yes: bool) -> None:
    """Adopt the configured journal as the newest copy, if your state directory has never seen it.

    Use it also if the gateway has a new host name, and for an older copy if the newest is lost for good: exactly the
    rows that this computer sent since that copy was made are put in doubt. The journal is replayed and shown first.
    """
    screen, settings = _require_merchant(invocation)
    actor = identify_person(by)
    if settings.journal.url is not None:
        raise UsageError(
            say("A journal in PostgreSQL is not adopted: every host that has its address may use it."),
            hint=say("`paygw-batch doctor` checks it."),
        )
    with closing(Adoption(file_location(settings), beside=beside)) as adoption:
        members = _show_adoption(screen, adoption, settings)
        if not adoption.is_needed:
            message = say("Nothing to adopt: runs on this computer already use {path}.", path=adoption.path)
            screen.finish(Summary(ExitCode.DONE, message, extra=members))
        _require_confirmation(_COPY_QUESTION, yes=yes)
        rows = adoption.carry_out(actor)
    message = say(
        "{who} adopted the journal {journal}. Runs on this computer now send from {path}.",
        who=actor,
        journal=adoption.journal_id,
        path=adoption.path,
    )
    if adoption.loss.commits:
        message += " " + _report_lost_rows(screen, rows)
        members |= {"lost_commits": adoption.loss.commits, **_lost_rows_as_json(rows)}
    screen.finish(Summary(ExitCode.DONE, message, extra=members))


def _report_lost_rows(screen: Screen, rows: AcceptedRows) -> str:
    """Show the orders of an accepted loss that a person must check. Return sentences about its rows."""
    sentences = say("Of the rows sent in the lost commits, {rows} in doubt. ", rows=_format_row_count(rows.in_doubt))
    if rows.held:
        sentences += say("{rows} held, because decisions about them were lost too. ", rows=_format_row_count(rows.held))
    for orders, title in (
        (rows.unknown_orders, mark("The journal does not know the batch of an order that was sent")),
        (rows.contradictions, mark("An order that was sent from here was completed by another attempt")),
    ):
        if orders:
            screen.table("", (title,), [(order,) for order in orders])
    if rows.unknown_orders:
        sentences += say("If a sheet names such an order again, its row is held until `resolve` settles it. ")
    if rows.unknown_orders or rows.contradictions:
        sentences += say("Check the orders above with the gateway before you submit their sheets again. ")
    return sentences + say("Repeat the withdrawals made since then. ")


@journal_command.command("roll-call", short_help="Answer for this host, or accept its loss.")
@click.option("--accept-loss", is_flag=True, help="Accept that the database lacks the last rows of this host.")
@by_option
@click.option(
    "--yes", is_flag=True, help="Confirm, without a prompt, that the newest data of the database is lost for good."
)
@click.pass_obj
def call_roll(invocation: Invocation, *, accept_loss: bool, by: str | None, yes: bool) -> None:
    """Compare this host's record of the payments it sent with the database, and list the hosts that have not done so.

    Use it after a journal in PostgreSQL was restored, or its standby took over. Each host keeps a record of the
    payments it sent. Nothing is sent until every host of the last 30 days has compared its record, by this command or
    any other that writes.

    --accept-loss is for a host whose last commits are missing in the database: exactly the rows that it sent in them
    are put in doubt, or held; the others do not change. A host that is gone is retired: `journal retire HOST`.
    """
    screen, settings = _require_merchant(invocation)
    if not accept_loss:
        if by is not None or yes:
            raise UsageError(say("--by and --yes need --accept-loss."))
        _finish_roll_call(screen, _require_roll_call_database(settings).roll_call())
        return
    actor = identify_person(by)
    _require_confirmation(_LOSS_QUESTION, yes=yes)
    loss = _require_roll_call_database(settings).accept_loss(by=actor)
    _finish_roll_call(screen, loss.missing, loss, actor)


def _require_roll_call_database(settings: Settings) -> "DatabasePlace":
    return require_database(
        settings,
        say("A journal in a file has no other hosts, so it has no roll-call."),
        say("`paygw-batch journal adopt` confirms that a copy of it is the newest."),
    )


def _finish_roll_call(
    screen: Screen, missing: "Sequence[MissingHost]", loss: "AcceptedLoss | None" = None, actor: str = ""
) -> None:
    extra: dict[str, object] = {}
    message = ""
    if loss is not None:
        message = say("Nothing that this host sent is missing: no loss was accepted. ")
        if loss.commits or loss.is_guess:
            message = say(
                "{who} accepted the loss of {commits} commits of this host. ", who=actor, commits=loss.commits
            ) + _report_lost_rows(screen, loss.rows)
        if loss.is_guess:
            message += say("This host does not know all of them, so every row that it could have sent is in doubt. ")
        extra = {"lost_commits": loss.commits, **_lost_rows_as_json(loss.rows), "is_guess": loss.is_guess}
    missing_hosts = [{"host": host.name, "id": host.host_id, "last_seen": host.seen_at} for host in missing]
    extra["missing"] = missing_hosts
    if missing:
        lines = [(host.name, host.host_id, host.seen_at) for host in missing]
        screen.table("", mark_all("missing host", "id", "last seen"), lines)
        hosts = say_count(len(missing), "{count:,} host is missing", "{count:,} hosts are missing")
        roll_call_error = OpenRollCall(message + say("Nothing is sent yet: {hosts} in the roll-call.", hosts=hosts))
        if loss is None:
            raise roll_call_error
        screen.finish(Summary(ExitCode.JOURNAL, f"{roll_call_error.message} {roll_call_error.hint}", extra=extra))
        return
    message += say("Every host has answered. No other payment that was sent is missing from the database.")
    screen.finish(Summary(ExitCode.DONE, message, extra=extra))


def _lost_rows_as_json(rows: AcceptedRows) -> dict[str, object]:
    return {
        "rows_in_doubt": rows.in_doubt,
        "rows_held": rows.held,
        "rows_not_sent": rows.not_sent,
        "unknown_orders": rows.unknown_orders,
        "contradictions": rows.contradictions,
    }


def _format_row_count(count: int) -> str:
    return say_count(count, "{count:,} row is", "{count:,} rows are")


@journal_command.command("retire", short_help="Retire a host that is gone for good.")
@click.argument("host")
@by_option
@click.option("--yes", is_flag=True, help="Confirm, without a prompt, that this host is gone for good.")
@click.pass_obj
def retire_host(invocation: Invocation, *, host: str, by: str | None, yes: bool) -> None:
    """Retire HOST, by its name or id: it is missing in the roll-call and will never return.

    A live host is refused: it knows which rows it sent, and reports them by `journal roll-call --accept-loss`. The
    database may lack the last rows that HOST sent. So every row that it could have sent, ready or in flight, is put
    in doubt: check the gateway's statement, and settle them with `resolve`. The last batches that HOST opened may be
    missing too: look for their orders at the gateway before you submit their sheets again.
    """
    screen, settings = _require_merchant(invocation)
    actor = identify_person(by)
    _require_confirmation(_HOST_GONE_QUESTION, yes=yes)
    retired, row_count = _require_roll_call_database(settings).retire(host, by=actor)
    message = say(
        "{who} retired the host {host}: {rows} in doubt because it could have sent them.",
        who=actor,
        host=retired.name,
        rows=_format_row_count(row_count),
    )
    extra = {"host": {"name": retired.name, "id": retired.host_id}, "rows_in_doubt": row_count}
    screen.finish(Summary(ExitCode.DONE, message, extra=extra))


def _show_adoption(screen: Screen, adoption: Adoption, settings: Settings) -> dict[str, object]:
    seq, time = adoption.last_fact()
    description = {
        "id": adoption.journal_id,
        "path": str(adoption.path),
        "endpoint": settings.endpoint_identity().name,
        "known_as": ", ".join(adoption.names),
        "batches": adoption.counts["batches"],
        "rows_ready": adoption.counts["ready"],
        "rows_in_doubt": adoption.counts["in_doubt"] + adoption.counts["in_flight"],
        "last_fact": seq,
        "last_fact_at": time,
    }
    lines = [(say(_JOURNAL_LABELS[key]), str(value)) for key, value in description.items()]
    screen.table("", mark_all("journal", "value"), lines)
    screen.say(say("It was replayed, and its chain of facts is intact. The next run sends the rows that are ready."))
    other_journal = mark("Your state directory also lists {journal_id} at {path} for this merchant.")
    for known_journal in adoption.other_journals:
        screen.say(say(other_journal, journal_id=known_journal.journal_id, path=known_journal.path))
    return {"journal": description}


def _require_confirmation(question: str, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(
            say(
                "No terminal is available to ask for confirmation. Nothing was changed. {question}",
                question=say(question),
            ),
            hint=say("Run the command at a terminal, or confirm with --yes."),
        )
    if not ask_to_confirm(say(question), err=True):
        if question == _COPY_QUESTION:
            raise JournalNotAdopted(say("The journal was not adopted: nothing was changed."))
        raise UsageError(
            say("The loss was not accepted: nothing was changed.")
            if question == _LOSS_QUESTION
            else say("The host was not retired: nothing was changed.")
        )
