"""`paygw-batch forget`: erases the data of people, and keeps the totals of their payments."""

from typing import assert_never

import click

from paygw_batch.approval.policy import identify_person as operator
from paygw_batch.cli.help_texts import HelpCommand
from paygw_batch.cli.invocation import Invocation
from paygw_batch.cli.options import output_guard, settings_for, wait_option
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.cli.send_batch import hold_journal
from paygw_batch.errors import UsageError
from paygw_batch.forget_people import Forgotten, choose_payments, forget_by_one_person, remaining_files
from paygw_batch.journal import ForgettablePayments, JournalReader, RemainingData
from paygw_batch.language import mark, mark_all, say, say_count
from paygw_batch.opening.open_journal import open_journal_to_read
from paygw_batch.show.summary import ExitCode, Summary

before_option = click.option("--before", metavar="DATE", help="Forget everyone whose batch ended before this date.")
person_option = click.option(
    "--person", metavar="TEXT", help="Forget one person: the exact name, account or phone number."
)


@click.command("forget", cls=HelpCommand)
@before_option
@person_option
@click.option("--dry-run", is_flag=True, help="Show who would be forgotten; change nothing. The default.")
@click.option("--yes", is_flag=True, help="Forget them now, on your decision alone.")
@click.option("--by", metavar="NAME", help="With --yes: your name, for the record.")
@wait_option
@click.pass_obj
def forget_command(
    invocation: Invocation,
    *,
    before: str | None,
    person: str | None,
    dry_run: bool,
    yes: bool,
    by: str | None,
    wait: bool,
) -> None:
    """Forget people's names, accounts, phones, sheets and messages; keep ids, sums, states and times.

    A batch is forgotten when it is over: nothing in it is ready, in doubt, accepted, in quarantine or contradicted, no
    message about it waits, and it is so old that no new sheet is compared with it. Without --before and --person, the
    date follows from [retention] years in the configuration.
    """
    screen, settings = Screen(invocation), settings_for(invocation)
    require_single_selector(before, person)
    if yes and dry_run:
        raise UsageError(say("--dry-run and --yes cannot be combined: choose one."))
    if yes and by is None:
        raise UsageError(say("--yes needs --by NAME: forgetting cannot be undone, and the journal records who did it."))
    output_guard(invocation, settings).check(reporting=yes)
    if yes:
        with hold_journal(settings, "forget", screen, wait=wait) as (journal, report):
            selection = choose_payments(settings, journal, before=before, person=person)
            result = forget_by_one_person(settings, journal, selection, operator(by))
            report.summary = report_forgotten(screen, journal, result)
        screen.finish(report.summary)
        return
    with open_journal_to_read(settings, screen.say) as reader:
        selection = choose_payments(settings, reader, before=before, person=person)
        show_selection(screen, reader, selection)
        message = say(
            "The payees of {payments} would be forgotten. Nothing was changed. To forget them, "
            "add --yes --by NAME or, with [approval], use `paygw-batch order forget`.",
            payments=_selection_size(selection),
        )
        members = selection_as_json(reader, selection)
        screen.finish(Summary(ExitCode.DONE, message, rows=selection.instructions, extra=members))


def require_single_selector(before: str | None, person: str | None) -> None:
    """Raise `UsageError` if both a date and a person are given, because only one can select people."""
    if before is not None and person is not None:
        raise UsageError(say("--before and --person cannot be combined: choose one."))


def show_selection(screen: Screen, journal: JournalReader, selection: ForgettablePayments) -> None:
    records = {record.number: record for record in journal.batches()}
    lines = [
        (records[batch].batch, records[batch].sheet_name, records[batch].opened_at, len(numbers))
        for batch, numbers in selection.batches.items()
    ]
    screen.table("", mark_all("batch", "sheet", "opened at", "rows"), lines)
    waiting_text = mark(
        "Batch {batch} is not over: a row is ready, in doubt, accepted or in quarantine, a message waits, or it is so "
        "new that sheets are still compared with it. No one in it can be forgotten yet."
    )
    for batch in selection.waiting:
        screen.say(say(waiting_text, batch=records[batch].batch))


def _selection_size(selection: ForgettablePayments) -> str:
    rows = say_count(selection.instructions, "{count:,} payment", "{count:,} payments")
    batches = say_count(len(selection.batches), "{count:,} batch", "{count:,} batches")
    return say("{rows} in {batches}", rows=rows, batches=batches)


def selection_as_json(journal: JournalReader, selection: ForgettablePayments) -> dict[str, object]:
    """Return the members of the JSON summary about a selection of people."""
    names = {record.number: record.batch for record in journal.batches()}
    return {
        "before": selection.before,
        "payments": selection.instructions,
        "batches": [names[batch] for batch in selection.batches],
        "waiting": [names[batch] for batch in selection.waiting],
        "files": [str(path) for path in remaining_files(journal, selection)],
    }


def report_forgotten(screen: Screen, journal: JournalReader, result: Forgotten) -> Summary:
    """Show who was forgotten, and the files that may still name them. Return the summary."""
    selection = result.chosen
    show_selection(screen, journal, selection)
    for path in remaining_files(journal, selection):
        screen.say(say("This file may contain their data. Delete it yourself: {path}", path=path))
    if selection.batches:
        screen.say(say("Also delete backups of the journal, and copies of its files in other places."))
    message = say("The payees of {payments} were forgotten.", payments=_selection_size(selection))
    code = ExitCode.DONE
    match result.old_pages:
        case RemainingData.NOWHERE:
            pass
        case RemainingData.IN_DATABASE:
            sentence = say(
                "The server keeps the old data until the owner of the database runs ANALYZE, VACUUM FULL and "
                "CHECKPOINT. No one can use the journal meanwhile, so run them when nothing is being sent."
            )
            screen.say(sentence)
        case RemainingData.IN_LOG:
            code = ExitCode.STOPPED_EARLY
            message += " " + say(
                "Another program is reading the journal, so its log still contains them. Close that program, "
                "then run this command again."
            )
        case _:
            assert_never(result.old_pages)
    return Summary(code, message, rows=selection.instructions, extra=selection_as_json(journal, selection))
