"""`paygw-batch forget`: erases people's data, and keeps the totals of their payments."""

from typing import assert_never

import click

from paygw_batch.approval.policy import identify_person
from paygw_batch.cli.help_texts import HelpCommand
from paygw_batch.cli.invocation import Invocation
from paygw_batch.cli.options import output_guard, settings_for, wait_option
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.cli.send_batch import lock_journal
from paygw_batch.errors import UsageError
from paygw_batch.forget_people import ForgetResult, choose_payments, forget_by_one_person, remaining_files
from paygw_batch.journal import JournalReader, PaymentsToForget, RemainingData
from paygw_batch.language import mark, mark_all, say, say_count
from paygw_batch.opening.open_journal import open_journal_to_read
from paygw_batch.show.summary import ExitCode, Summary

before_option = click.option("--before", metavar="DATE", help="Forget everyone whose batch ended before this date.")
person_option = click.option(
    "--person", metavar="TEXT", help="Forget one person, by their exact name, account or phone number."
)


@click.command("forget", cls=HelpCommand)
@before_option
@person_option
@click.option("--dry-run", is_flag=True, help="Show who would be forgotten, without changing anything (default).")
@click.option("--yes", is_flag=True, help="Forget the people now, without approval by another person.")
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
    """Forget people's names, accounts, phone numbers, sheets and messages. Ids, totals, states and times are kept.

    People can be forgotten only if nothing in their batch is ready, in doubt, accepted, in quarantine or contradicted,
    no message about it is waiting, and it is too old to be compared with new sheets. Without --before and --person, the
    date is calculated from [retention] years in the configuration.
    """
    screen, settings = Screen(invocation), settings_for(invocation)
    require_single_selector(before, person)
    if yes and dry_run:
        raise UsageError(say("Use either --dry-run or --yes, not both."))
    if yes and by is None:
        raise UsageError(
            say("--yes also requires --by NAME. Forgetting is permanent. The journal records who decided.")
        )
    output_guard(invocation, settings).check(reporting=yes)
    if yes:
        with lock_journal(settings, "forget", screen, wait=wait) as (journal, report):
            selection = choose_payments(settings, journal, before=before, person=person)
            result = forget_by_one_person(settings, journal, selection, identify_person(by))
            report.summary = report_forgotten(screen, journal, result)
        screen.finish(report.summary)
    with open_journal_to_read(settings, screen.say) as reader:
        selection = choose_payments(settings, reader, before=before, person=person)
        show_selection(screen, reader, selection)
        message = say(
            "The payees of {payments} would be forgotten. Nothing was changed. To forget them, add --yes --by NAME. "
            "If [approval] is configured, use `paygw-batch order forget` instead.",
            payments=_describe_selection(selection),
        )
        extra = selection_as_json(reader, selection)
        screen.finish(Summary(ExitCode.DONE, message, rows=selection.instructions, extra=extra))


def require_single_selector(before: str | None, person: str | None) -> None:
    """Raise `UsageError` if both --before and --person are given."""
    if before is not None and person is not None:
        raise UsageError(say("Use either --before or --person, not both."))


def show_selection(screen: Screen, journal: JournalReader, selection: PaymentsToForget) -> None:
    records = {record.number: record for record in journal.batches()}
    lines = [
        (records[number].batch, records[number].sheet_name, records[number].opened_at, len(rows))
        for number, rows in selection.batches.items()
    ]
    screen.table("", mark_all("batch", "sheet", "opened at", "rows"), lines)
    template = mark(
        "No one in batch {batch} can be forgotten yet: a row is ready, in doubt, accepted, in quarantine or "
        "contradicted, a message is waiting, or the batch is so recent that new sheets are still compared with "
        "it."
    )
    for number in selection.waiting:
        screen.say(say(template, batch=records[number].batch))


def _describe_selection(selection: PaymentsToForget) -> str:
    rows = say_count(selection.instructions, "{count:,} payment", "{count:,} payments")
    batches = say_count(len(selection.batches), "{count:,} batch", "{count:,} batches")
    return say("{rows} in {batches}", rows=rows, batches=batches)


def selection_as_json(journal: JournalReader, selection: PaymentsToForget) -> dict[str, object]:
    batch_ids = {record.number: record.batch for record in journal.batches()}
    return {
        "before": selection.before,
        "payments": selection.instructions,
        "batches": [batch_ids[number] for number in selection.batches],
        "waiting": [batch_ids[number] for number in selection.waiting],
        "files": [str(path) for path in remaining_files(journal, selection)],
    }


def report_forgotten(screen: Screen, journal: JournalReader, result: ForgetResult) -> Summary:
    """Show the batches whose payees were forgotten, and files that may still name them. Return the summary."""
    selection = result.selection
    show_selection(screen, journal, selection)
    for path in remaining_files(journal, selection):
        screen.say(say("This file may contain their data. Delete it yourself: {path}", path=path))
    if selection.batches:
        screen.say(say("Also delete backups of the journal and any other copies of its files."))
    message = say("The payees of {payments} have been forgotten.", payments=_describe_selection(selection))
    code = ExitCode.DONE
    match result.remaining_data:
        case RemainingData.NOWHERE:
            pass
        case RemainingData.IN_DATABASE:
            note = say(
                "The server keeps the old data until the owner of the database runs ANALYZE, VACUUM FULL and "
                "CHECKPOINT. The journal cannot be used while they run, so choose a time when nothing is being sent."
            )
            screen.say(note)
        case RemainingData.IN_LOG:
            code = ExitCode.STOPPED_EARLY
            message += " " + say(
                "Another program is reading the journal, so the forgotten data is still in its log. Close that "
                "program, then run this command again."
            )
        case _:
            assert_never(result.remaining_data)
    return Summary(code, message, rows=selection.instructions, extra=selection_as_json(journal, selection))
