"""The commands for journals: `journal`, `verify` and `backup`."""

import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paygw_batch.approval.policy import identify_person
from paygw_batch.cli.help_texts import HelpCommand, HelpGroup
from paygw_batch.cli.invocation import Invocation, PathType
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
from paygw_batch.processes import gc_relaxed
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
    "notifications_waiting": mark("waiting notifications"),
    "signed_orders": mark("signed orders"),
    "withdrawals": mark("withdrawals"),
    "audit_entries": mark("audit trail entries"),
}
"""The labels of counts that `verify` shows. Row states have their own labels."""


@click.command("verify", cls=HelpCommand)
@click.pass_obj
def verify_command(invocation: Invocation) -> None:
    """Replay the whole journal: hash chains, states, totals, signed orders, and the audit trail.

    If something is damaged, the command shows where and ends with exit code 7.
    """
    screen, settings = Screen(invocation, is_read_only=True), settings_for(invocation)
    with open_journal_to_read(settings, screen.say) as journal:
        with show_bar(screen.err, say("Checking")) as progress, gc_relaxed():
            counts = dict(journal.verify(progress))
        order_count = check_recorded_orders(journal)
        withdrawal_count = check_recorded_withdrawals(journal)
        entries = journal.audit_entries(limit=1) if counts.get("audit_entries") else ()
        contradiction_count = len(journal.messages().contradictions)
    message = say("The journal is sound: its chain of facts is intact, and its states and totals agree with it.")
    if order_count:
        counts["signed_orders"] = order_count
    if withdrawal_count:
        counts["withdrawals"] = withdrawal_count
    for entry in entries:
        trail_end = {"number": entry.number, "hash": entry.hash[:16]}
        message += say(" The audit trail is intact and ends with entry {number}, {hash}.", **trail_end)
    if contradiction_count:
        message += say_count(
            contradiction_count,
            " {count:,} message contradicts it. To see this message, run `paygw-batch status`.",
            " {count:,} messages contradict it. To see these messages, run `paygw-batch status`.",
        )
    labels = {kind: say(label) for kind, label in _COUNT_LABELS.items()}
    lines = [(labels.get(kind) or state_label(kind), count) for kind, count in counts.items()]
    screen.table("", mark_all("checked", "count"), lines)
    code = ExitCode.PERSON_NEEDED if contradiction_count else ExitCode.DONE
    screen.finish(Summary(code, message, extra={"checked": counts}))


@click.command("backup", cls=HelpCommand)
@click.argument("file", type=PathType())
@click.pass_obj
def backup_command(invocation: Invocation, *, file: Path) -> None:
    """Copy the journal to a new FILE, as one consistent snapshot, even during a run.

    A journal in PostgreSQL is copied by pg_dump, in the format that pg_restore reads.

    The copy is a backup. To prevent double payments, runs cannot send from it while the original exists, or if the
    original has been used since.
    """
    screen, settings = Screen(invocation), settings_for(invocation)
    output_guard(invocation, settings).check(RequestedOutput("FILE", file, OutputKind.NEW))
    if (database := database_location(settings)) is not None:
        with closing(database.open_to_read()) as journal:
            fact_count = journal.head().seq
        database.dump(file)
        message = say_count(
            fact_count,
            "The journal (at least {count:,} fact) was copied to {file}.",
            "The journal (at least {count:,} facts) was copied to {file}.",
            file=file,
        )
        screen.finish(Summary(ExitCode.DONE, message))
    journal_file = file_location(settings)
    with closing(journal_file.open_to_read()) as journal:
        report_notes(journal, screen.say)
        fact_count = journal.head().seq
        journal.backup(file)
    try:
        journal_file.record_backup()
    except OutputError as error:
        screen.say(say("The copy is complete, but the console cannot show it: {reason}", reason=error.message))
    message = say_count(
        fact_count,
        "The journal ({count:,} fact) was copied to {file}.",
        "The journal ({count:,} facts) was copied to {file}.",
        file=file,
    )
    screen.finish(Summary(ExitCode.DONE, message))


if TYPE_CHECKING:
    from paygw_batch.cluster.database_location import AcceptedLoss, DatabaseLocation, MissingHost

_HOST_GONE_QUESTION = mark("Do you confirm that this host is permanently lost and has stopped sending?")
_LOSS_QUESTION = mark(
    "Do you confirm that the database's newest data is permanently lost, and that nothing is sending from it any more?"
)
_COPY_QUESTION = mark(
    "Do you confirm that this is the newest remaining copy of the journal, and that no other copy is in use?"
)
_other_journal_option = click.option(
    "--beside",
    metavar="JOURNAL_ID",
    help="Id of the merchant's newest other journal, to confirm that you want a second one.",
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
    "last_fact_at": mark("time of last fact"),
}
"""The labels of a journal's properties, by JSON key."""


@click.group("journal", cls=HelpGroup)
def journal_command() -> None:
    """Create a merchant's journal, move it to a database, or adopt a copy as the newest one.

    A merchant has one journal per gateway, for all of its endpoints. A journal contains only the payments sent from it,
    so with two journals the same sheet could be paid twice.
    """


def _prepare_command(invocation: Invocation) -> tuple[Screen, Settings]:
    """Return the screen and the settings. Raises `ConfigurationError` if no endpoint is configured."""
    screen, settings = Screen(invocation), settings_for(invocation)
    require_endpoint(settings)
    return screen, settings


@journal_command.command("new", short_help="Create the journal, once for each merchant.")
@_other_journal_option
@click.option("--roles", is_flag=True, help="Also grant the database roles their permissions.")
@click.pass_obj
def create_journal(invocation: Invocation, *, beside: str | None, roles: bool) -> None:
    """Create the configured merchant's journal, at [journal] path, at --journal or at its default location.

    If your state directory already lists a journal of the merchant, name it with --beside to create another one. With
    --roles, an existing journal is kept and only the permissions are granted.
    """
    screen, settings = _prepare_command(invocation)
    message, hint = say("A journal in a file has no roles."), say("Only its owner can read or change it.")
    database = require_database(settings, message, hint) if roles else None
    identity = journal_location(settings).create("journal new", beside=beside)
    granted_roles = () if database is None else database.grant_rights()
    path = settings.journal_label()
    if identity is None and not granted_roles:
        raise JournalError(
            say("There is already a file at {path}, so no journal was created.", path=path)
            if settings.journal.url is None
            else say("There is already a journal at {path}, so no journal was created.", path=path),
            hint=say(
                "If this is the merchant's journal, you do not need another one. To check it, run `paygw-batch doctor`."
            ),
        )
    sentences, extra = [], dict[str, object]()
    if identity is not None:
        sentence = say(
            "The journal {journal} of {endpoint} was created at {path}. Every run for this merchant must use it, from "
            "every user account.",
            journal=identity.journal_id,
            endpoint=identity.endpoint,
            path=path,
        )
        sentences.append(sentence)
        extra["journal"] = {"id": identity.journal_id, "path": path, "endpoint": identity.endpoint}
    if granted_roles:
        template = mark("Permissions were granted to the roles {roles}. Make each login a member of one.")
        sentences.append(say(template, roles=", ".join(granted_roles)))
        extra["roles"] = granted_roles
    screen.finish(Summary(ExitCode.DONE, " ".join(sentences), extra=extra))


@journal_command.command("move", short_help="Move a journal from its file to a database.")
@click.argument("file", type=PathType(), required=False)
@by_option
@click.pass_obj
def move_to_database(invocation: Invocation, *, file: Path | None, by: str | None) -> None:
    """Move the journal in FILE, with everything in it, to the database that [journal] url names.

    Without FILE, the journal at its default location is moved. Both the file and its copy are replayed. Afterwards,
    nothing is paid from the file: keep it as an archive. To continue an interrupted move, run the same command.
    """
    screen, settings = _prepare_command(invocation)
    actor = identify_person(by)
    database = require_database(
        settings,
        say("[journal] url is not set, so there is no database to move the journal to."),
        say("Set [journal] url to the address of an empty database, and remove path."),
    )
    move = extra("cluster.move").move_journal(file_location(settings, file), database, settings.words(), actor)
    location, identity = settings.journal_label(), move.identity
    message = say(
        "The journal {journal_id} is now at {place}, with {facts:,} facts. Every run for this merchant must use it, "
        "on every host. Nothing is paid from the file any more.",
        journal_id=identity.journal_id,
        place=location,
        facts=move.facts,
    )
    journal = {"id": identity.journal_id, "path": location, "endpoint": identity.endpoint}
    screen.finish(Summary(ExitCode.DONE, message, extra={"journal": journal}))


@journal_command.command("upgrade", short_help="Upgrade the tables of a database.")
@click.pass_obj
def upgrade_tables(invocation: Invocation) -> None:
    """Upgrade the tables in PostgreSQL to this version of the program. The role in [journal] url must own them.

    No process may use the journal during the upgrade. Afterwards, earlier versions of the program cannot use it.
    """
    screen, settings = _prepare_command(invocation)
    database = require_database(
        settings,
        say("A journal in a file is upgraded automatically by the next command that writes to it."),
        say("You do not need to do anything."),
    )
    old_version, new_version, has_new_jobs = database.upgrade()
    values = {"place": settings.journal_label(), "before": old_version, "now": new_version}
    if old_version != new_version:
        message = say(
            "The tables at {place} were upgraded from version {before} to {now}. Every host now needs this version of "
            "the program.",
            **values,
        )
    elif has_new_jobs:
        message = say("The tables at {place} are already at version {now}. The job tables were upgraded.", **values)
    else:
        message = say("The tables at {place} are already at version {now}. Nothing was changed.", **values)
    screen.finish(Summary(ExitCode.DONE, message, extra={"tables": {"before": old_version, "now": new_version}}))


@journal_command.command("adopt", short_help="Adopt a copy of the journal as the newest one.")
@by_option
@_other_journal_option
@click.option("--yes", is_flag=True, help="Confirm, without a prompt, that this is the newest copy.")
@click.pass_obj
def adopt_journal(invocation: Invocation, *, by: str | None, beside: str | None, yes: bool) -> None:
    """Adopt the configured journal as the newest copy, if your state directory does not list it yet.

    Use this command also if the gateway has a new host name, or if the newest copy is permanently lost and you continue
    with an older one. Exactly the rows that this computer has sent since that copy was made are then in doubt. The
    journal is first replayed and shown.
    """
    screen, settings = _prepare_command(invocation)
    actor = identify_person(by)
    if settings.journal.url is not None:
        raise UsageError(
            say("A journal in PostgreSQL does not need to be adopted. Every host that has its address can use it."),
            hint=say("To check it, run `paygw-batch doctor`."),
        )
    with closing(Adoption(file_location(settings), beside=beside)) as adoption:
        extra = _show_adoption(screen, adoption, settings)
        if not adoption.is_needed:
            message = say("Nothing to adopt: runs on this computer already use {path}.", path=adoption.path)
            screen.finish(Summary(ExitCode.DONE, message, extra=extra))
        _require_confirmation(_COPY_QUESTION, yes=yes)
        lost_rows = adoption.carry_out(actor)
    message = say(
        "{who} adopted the journal {journal}. Runs on this computer now send from {path}.",
        who=actor,
        journal=adoption.journal_id,
        path=adoption.path,
    )
    if adoption.loss.commits:
        message += " " + _report_lost_rows(screen, lost_rows)
        extra |= {"lost_commits": adoption.loss.commits, **_lost_rows_as_json(lost_rows)}
    screen.finish(Summary(ExitCode.DONE, message, extra=extra))


def _report_lost_rows(screen: Screen, rows: AcceptedRows) -> str:
    """Show the orders that a person must check after a loss. Return a message about the lost rows."""
    message = say("Of the rows sent in the lost commits, {rows} in doubt. ", rows=_rows_with_verb(rows.in_doubt))
    if rows.held_order_ids:
        held_rows = _rows_with_verb(len(rows.held_order_ids))
        message += say("{rows} held, because decisions about such rows were lost too. ", rows=held_rows)
    for orders, title in (
        (rows.held_order_ids, mark("Orders sent for rows that are now held")),
        (rows.unknown_order_ids, mark("Orders sent from a batch that is not in the journal")),
        (rows.contradictions, mark("Orders sent from here that were completed by another attempt")),
    ):
        if orders:
            screen.table("", (title,), [(order,) for order in orders])
    if rows.unknown_order_ids:
        message += say("If a sheet contains one of these orders again, its row is held until you `resolve` it. ")
    if rows.unknown_order_ids or rows.contradictions:
        message += say("Check the orders above with the gateway before you submit their sheets again. ")
    return message + say("Repeat any withdrawals made since then. ")


@journal_command.command("roll-call", short_help="Confirm what this host sent, or accept its loss.")
@click.option("--accept-loss", is_flag=True, help="Accept that the database has lost this host's last rows.")
@by_option
@click.option(
    "--yes", is_flag=True, help="Confirm, without a prompt, that the database's newest data is permanently lost."
)
@click.pass_obj
def call_roll(invocation: Invocation, *, accept_loss: bool, by: str | None, yes: bool) -> None:
    """Compare this host's sent payments with the database, and list the hosts that have not done this yet.

    Use this command after a journal in PostgreSQL has been restored or its standby has taken over. Each host keeps a
    record of the payments it sent. Nothing is sent until every host seen in the last 30 days has compared its record,
    with this command or any other that writes.

    Use --accept-loss on a host whose last commits are missing from the database. Exactly the rows that it sent in those
    commits are put in doubt, or held. To retire a host that is permanently lost, use `journal retire HOST`.
    """
    screen, settings = _prepare_command(invocation)
    if not accept_loss:
        if by is not None or yes:
            raise UsageError(say("--by and --yes can be used only with --accept-loss."))
        _finish_roll_call(screen, _require_roll_call_database(settings).roll_call())
        return
    actor = identify_person(by)
    _require_confirmation(_LOSS_QUESTION, yes=yes)
    loss = _require_roll_call_database(settings).accept_loss(by=actor)
    _finish_roll_call(screen, loss.missing, loss, actor)


def _require_roll_call_database(settings: Settings) -> "DatabaseLocation":
    return require_database(
        settings,
        say("A journal in a file is used by only one host, so it has no roll-call."),
        say("To confirm that a copy of it is the newest, run `paygw-batch journal adopt`."),
    )


def _finish_roll_call(
    screen: Screen, missing_hosts: "Sequence[MissingHost]", loss: "AcceptedLoss | None" = None, actor: str = ""
) -> None:
    extra: dict[str, object] = {}
    message = ""
    if loss is not None:
        message = say("Nothing that this host sent is missing, so no loss was accepted. ")
        if loss.commits or loss.is_estimate:
            message = say(
                "{who} accepted a loss. Lost commits from this host: {commits}. ", who=actor, commits=loss.commits
            ) + _report_lost_rows(screen, loss.rows)
        if loss.is_estimate:
            message += say(
                "This host's record of what it sent is incomplete, so every row that it could have sent is in doubt. "
            )
        extra = {"lost_commits": loss.commits, **_lost_rows_as_json(loss.rows), "is_guess": loss.is_estimate}
    hosts_as_json = [{"host": host.name, "id": host.host_id, "last_seen": host.seen_at} for host in missing_hosts]
    extra["missing"] = hosts_as_json
    if missing_hosts:
        lines = [(host.name, host.host_id, host.seen_at) for host in missing_hosts]
        screen.table("", mark_all("missing host", "id", "last seen"), lines)
        hosts = say_count(len(missing_hosts), "{count:,} host is missing", "{count:,} hosts are missing")
        error = OpenRollCall(message + say("Nothing can be sent yet: {hosts} from the roll-call.", hosts=hosts))
        if loss is None:
            raise error
        screen.finish(Summary(ExitCode.JOURNAL, f"{error.message} {error.hint}", extra=extra))
    message += say("Every host has answered. No other payment that was sent is missing from the database.")
    screen.finish(Summary(ExitCode.DONE, message, extra=extra))


def _lost_rows_as_json(rows: AcceptedRows) -> dict[str, object]:
    return {
        "rows_in_doubt": rows.in_doubt,
        "rows_held": len(rows.held_order_ids),
        "held_orders": rows.held_order_ids,
        "rows_not_sent": rows.not_sent,
        "unknown_orders": rows.unknown_order_ids,
        "contradictions": rows.contradictions,
    }


def _rows_with_verb(count: int) -> str:
    return say_count(count, "{count:,} row is", "{count:,} rows are")


@journal_command.command("retire", short_help="Retire a host that is permanently lost.")
@click.argument("host")
@by_option
@click.option("--yes", is_flag=True, help="Confirm, without a prompt, that this host is permanently lost.")
@click.pass_obj
def retire_host(invocation: Invocation, *, host: str, by: str | None, yes: bool) -> None:
    """Retire HOST (its name or id), which is missing from the roll-call and will never return.

    A host that is still running cannot be retired, because it knows which rows it sent. Run `journal roll-call
    --accept-loss` there instead. The database may not have the last rows that HOST sent. So every row that it could
    have sent, ready or in flight, is put in doubt. Check these rows against the gateway's statement, and settle them
    with `resolve`. The last batches that HOST opened may also be missing. Look for their orders at the gateway before
    you submit their sheets again.
    """
    screen, settings = _prepare_command(invocation)
    actor = identify_person(by)
    _require_confirmation(_HOST_GONE_QUESTION, yes=yes)
    retired_host, row_count = _require_roll_call_database(settings).retire(host, by=actor)
    message = say(
        "{who} retired the host {host}. {rows} in doubt, because the host could have sent rows without a record "
        "in the database.",
        who=actor,
        host=retired_host.name,
        rows=_rows_with_verb(row_count),
    )
    extra = {"host": {"name": retired_host.name, "id": retired_host.host_id}, "rows_in_doubt": row_count}
    screen.finish(Summary(ExitCode.DONE, message, extra=extra))


def _show_adoption(screen: Screen, adoption: Adoption, settings: Settings) -> dict[str, object]:
    """Show the journal to adopt, and return its description for the JSON summary."""
    fact_number, time = adoption.last_fact()
    description = {
        "id": adoption.journal_id,
        "path": str(adoption.path),
        "endpoint": settings.endpoint_identity().name,
        "known_as": ", ".join(adoption.hosts),
        "batches": adoption.counts["batches"],
        "rows_ready": adoption.counts["ready"],
        "rows_in_doubt": adoption.counts["in_doubt"] + adoption.counts["in_flight"],
        "last_fact": fact_number,
        "last_fact_at": time,
    }
    lines = [(say(_JOURNAL_LABELS[key]), str(value)) for key, value in description.items()]
    screen.table("", mark_all("journal", "value"), lines)
    screen.say(say("The journal was replayed and is intact. The next run sends the rows that are ready."))
    template = mark("Your state directory also lists the journal {journal_id} of this merchant, at {path}.")
    for known_journal in adoption.other_journals:
        screen.say(say(template, journal_id=known_journal.journal_id, path=known_journal.path))
    return {"journal": description}


def _require_confirmation(question: str, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        message = say(
            "No terminal is available to ask for confirmation. Nothing was changed. {question}", question=say(question)
        )
        raise UsageError(message, hint=say("Run the command at a terminal, or confirm with --yes."))
    if not ask_to_confirm(say(question), err=True):
        if question == _COPY_QUESTION:
            raise JournalNotAdopted(say("The journal was not adopted. Nothing was changed."))
        raise UsageError(
            say("The loss was not accepted. Nothing was changed.")
            if question == _LOSS_QUESTION
            else say("The host was not retired. Nothing was changed.")
        )
