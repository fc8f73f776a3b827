"""`paygw-batch forget`: forgets people whom the journal paid, and keeps the accounts."""

from typing import assert_never

import click

from paygw_batch.approval.policy import person as operator
from paygw_batch.cli.help_texts import HelpCommand
from paygw_batch.cli.invocation import Invocation
from paygw_batch.cli.options import guard_of, settings_of, wait_option
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.cli.send_batch import held
from paygw_batch.errors import UsageError
from paygw_batch.forget_people import Forgotten, choose, files_elsewhere, forget_by_word
from paygw_batch.journal import Forgettable, JournalReader, OldPages
from paygw_batch.language import mark, mark_all, say, say_count
from paygw_batch.opening.open_journal import journal_to_read
from paygw_batch.show.summary import ExitCode, Summary

before_option = click.option("--before", metavar="DATE", help="Forget everyone whose batch was over before this date.")
person_option = click.option(
    "--person", metavar="TEXT", help="Forget one person: the exact name, account or phone number."
)


@click.command("forget", cls=HelpCommand)
@before_option
@person_option
@click.option("--dry-run", is_flag=True, help="Show what would be forgotten, and change nothing. The default.")
@click.option("--yes", is_flag=True, help="Forget them now, on your word.")
@click.option("--by", metavar="NAME", help="With --yes: who decides this.")
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

    A batch is forgotten when it is over: nothing in it is ready, in doubt, accepted, in quarantine or contradicted.
    Without --before and --person, [retention] years in the configuration says the date.
    """
    screen, settings = Screen(invocation), settings_of(invocation)
    require_one(before, person)
    if yes and dry_run:
        raise UsageError(say("--dry-run and --yes cannot be combined: choose one."))
    if yes and by is None:
        raise UsageError(say("--yes needs --by NAME: forgetting cannot be undone, and the journal records who did it."))
    guard_of(invocation, settings).check(reporting=yes)
    if yes:
        with held(settings, "forget", screen, wait=wait) as (journal, report):
            chosen = choose(settings, journal, before=before, person=person)
            report.summary = forgotten(screen, journal, forget_by_word(settings, journal, chosen, operator(by)))
        screen.finish(report.summary)
        return
    with journal_to_read(settings, screen.say) as reader:
        chosen = choose(settings, reader, before=before, person=person)
        show_chosen(screen, reader, chosen)
        message = say(
            "The payees of {payments} would be forgotten. Nothing was changed: --yes --by NAME forgets them, or with "
            "[approval] two people (`paygw-batch order forget`).",
            payments=_counted(chosen),
        )
        screen.finish(Summary(ExitCode.DONE, message, rows=chosen.instructions, further=chosen_told(reader, chosen)))


def require_one(before: str | None, person: str | None) -> None:
    """Raise `UsageError` if both a date and a person are given."""
    if before is not None and person is not None:
        raise UsageError(say("--before and --person cannot be combined: choose one."))


def show_chosen(screen: Screen, journal: JournalReader, chosen: Forgettable) -> None:
    records = {record.number: record for record in journal.batches()}
    lines = [
        (records[batch].batch, records[batch].sheet_name, records[batch].opened_at, len(numbers))
        for batch, numbers in chosen.batches.items()
    ]
    screen.table("", mark_all("batch", "sheet", "opened at", "rows"), lines)
    waits = mark(
        "Batch {batch} is not over: a row is ready, in doubt, accepted or in quarantine, a message waits, or it is so "
        "new that sheets are still compared with it. No one in it can be forgotten yet."
    )
    for batch in chosen.waiting:
        screen.say(say(waits, batch=records[batch].batch))


def _counted(chosen: Forgettable) -> str:
    rows = say_count(chosen.instructions, "{count:,} payment", "{count:,} payments")
    batches = say_count(len(chosen.batches), "{count:,} batch", "{count:,} batches")
    return say("{rows} in {batches}", rows=rows, batches=batches)


def chosen_told(journal: JournalReader, chosen: Forgettable) -> dict[str, object]:
    """Return the members of the JSON summary about the people who may be forgotten, or were."""
    names = {record.number: record.batch for record in journal.batches()}
    return {
        "before": chosen.before,
        "payments": chosen.instructions,
        "batches": [names[batch] for batch in chosen.batches],
        "waiting": [names[batch] for batch in chosen.waiting],
        "files": [str(path) for path in files_elsewhere(journal, chosen)],
    }


def forgotten(screen: Screen, journal: JournalReader, done: Forgotten) -> Summary:
    """Show who was forgotten, and which files may still name them. Return the summary."""
    chosen = done.chosen
    show_chosen(screen, journal, chosen)
    for path in files_elsewhere(journal, chosen):
        screen.say(say("This file may name them. Remove it yourself: {path}", path=path))
    if chosen.batches:
        screen.say(say("Also remove backups of the journal and files that were written elsewhere."))
    message = say("The payees of {payments} were forgotten.", payments=_counted(chosen))
    code = ExitCode.DONE
    match done.old_pages:
        case OldPages.NOWHERE:
            pass
        case OldPages.IN_DATABASE:
            sentence = say(
                "The server keeps the old data until the owner of the database runs ANALYZE, VACUUM FULL and "
                "CHECKPOINT. No one can use the journal meanwhile, so run them when nothing is being sent."
            )
            screen.say(sentence)
        case OldPages.IN_LOG:
            code = ExitCode.STOPPED_EARLY
            message += " " + say(
                "Another program is reading the journal, so its log still contains them. Close that program, "
                "then run this command again."
            )
        case _:
            assert_never(done.old_pages)
    return Summary(code, message, rows=chosen.instructions, further=chosen_told(journal, chosen))
