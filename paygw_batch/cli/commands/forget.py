"""`paygw-batch forget`: forget people whom the journal paid, and keep the books."""

import shlex
from pathlib import Path
from typing import assert_never

import click

from paygw_batch.actions.forget_people import (
    Forgotten,
    choose,
    files_elsewhere,
    forget_by_order,
    forget_by_word,
    prepare_forget_order,
)
from paygw_batch.cli.help_texts import HelpCommand
from paygw_batch.cli.invocation import Invocation, NamedFile
from paygw_batch.cli.options import guard_of, settings_of, wait_option
from paygw_batch.cli.screen.approval_plan import document_told, own_key, show_content, show_signatures
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.cli.send_batch import reported
from paygw_batch.errors import UsageError
from paygw_batch.journal import Forgettable, JournalReader, OldPages
from paygw_batch.language import mark_all, say, say_count
from paygw_batch.report.summary import ExitCode, Summary
from paygw_batch.run.forget_order import ForgetOrder
from paygw_batch.run.signed_document import read_document, write_document
from paygw_batch.settings.configuration import Settings
from paygw_batch.wiring.approvals import person as operator
from paygw_batch.wiring.approvals import required_policy
from paygw_batch.wiring.journal import journal_to_read, run_journal
from paygw_batch.wiring.outputs import OutputKind, RequestedOutput

_COMMAND = "forget"


@click.command(_COMMAND, cls=HelpCommand)
@click.option("--before", metavar="DATE", help="Forget everyone whose batch was over before this date.")
@click.option("--person", metavar="TEXT", help="Forget one person: the exact name, account or phone number.")
@click.option("--dry-run", is_flag=True, help="Show what would be forgotten, and change nothing. The default.")
@click.option("--yes", is_flag=True, help="Forget them now, on your word.")
@click.option("--by", metavar="NAME", help="With --yes or --order: who decides this.")
@click.option("--out", type=NamedFile(), help="Write an order for a second person, and forget nobody.")
@click.option("--key", type=NamedFile(), help="With --out: your private key (Ed25519, PEM).")
@click.option("--order", type=NamedFile(), help="Carry out an order that another person approved.")
@wait_option
@click.pass_obj
def command(
    invocation: Invocation,
    *,
    before: str | None,
    person: str | None,
    dry_run: bool,
    yes: bool,
    by: str | None,
    out: Path | None,
    key: Path | None,
    order: Path | None,
    wait: bool,
) -> None:
    """Forget people's names, accounts, phones, sheets and messages; keep ids, sums, states and times.

    A batch is forgotten when it is over: nothing in it is ready, in doubt, accepted, in quarantine or contradicted.
    Without --before and --person, [retention] years in the configuration says the date.
    """
    screen, settings = Screen(invocation), settings_of(invocation)
    _check_choice(before, person, by, order, yes=yes, dry_run=dry_run, out=out, key=key)
    guard_of(invocation, settings).check(
        RequestedOutput("--out", out, OutputKind.ORDER),
        inputs={say("the order"): order, say("a key"): key},
        reporting=yes or order is not None,
    )
    if order is not None or yes:
        found = None if order is None else read_document(order, ForgetOrder)
        with (
            reported(settings, _COMMAND, screen) as report,
            run_journal(settings, _COMMAND, screen.say, wait=wait) as journal,
        ):
            done = (
                forget_by_word(settings, journal, choose(settings, journal, before=before, person=person), operator(by))
                if found is None
                else forget_by_order(settings, journal, found, operator(by))
            )
            report.summary = _done(screen, journal, done)
        screen.finish(report.summary)
        return
    with journal_to_read(settings, screen.say) as reader:
        chosen = choose(settings, reader, before=before, person=person)
        _show(screen, reader, chosen)
        screen.finish(
            _preview(reader, chosen)
            if out is None or key is None
            else _written(settings, screen, reader, chosen, out, key)
        )


def _check_choice(
    before: str | None,
    person: str | None,
    by: str | None,
    order: Path | None,
    *,
    yes: bool,
    dry_run: bool,
    out: Path | None,
    key: Path | None,
) -> None:
    """Raise `UsageError` for options that do not belong together."""
    if before is not None and person is not None:
        raise UsageError(say("--before and --person cannot be combined: choose one."))
    if (out is None) != (key is None):
        raise UsageError(
            say("--out ORDER.json and --key KEY belong together: they write an order for a second person.")
        )
    if sum((yes, dry_run, out is not None, order is not None)) > 1:
        raise UsageError(say("--dry-run, --yes, --out and --order cannot be combined: choose one."))
    if order is not None and (before is not None or person is not None):
        raise UsageError(say("The order says who is forgotten: leave --before and --person out."))
    if yes and by is None:
        raise UsageError(say("--yes needs --by NAME: forgetting cannot be undone, and the journal records who did it."))


def _show(screen: Screen, journal: JournalReader, chosen: Forgettable) -> None:
    records = {one.number: one for one in journal.batches()}
    screen.table(
        "",
        mark_all("batch", "sheet", "opened at", "rows"),
        [
            (records[batch].batch, records[batch].sheet_name, records[batch].opened_at, len(numbers))
            for batch, numbers in chosen.batches.items()
        ],
    )
    for batch in chosen.waiting:
        screen.say(
            say(
                "Batch {batch} is not over: a row is ready, in doubt, accepted or in quarantine, a message waits, or "
                "it is so new that sheets are still compared with it. No one in it can be forgotten yet.",
                batch=records[batch].batch,
            )
        )


def _counted(chosen: Forgettable) -> str:
    rows = say_count(chosen.instructions, "{count:,} payment", "{count:,} payments")
    batches = say_count(len(chosen.batches), "{count:,} batch", "{count:,} batches")
    return say("{rows} in {batches}", rows=rows, batches=batches)


def _told(journal: JournalReader, chosen: Forgettable) -> dict[str, object]:
    names = {one.number: one.batch for one in journal.batches()}
    return {
        "before": chosen.before,
        "payments": chosen.instructions,
        "batches": [names[batch] for batch in chosen.batches],
        "waiting": [names[batch] for batch in chosen.waiting],
        "files": [str(path) for path in files_elsewhere(journal, chosen)],
    }


def _preview(journal: JournalReader, chosen: Forgettable) -> Summary:
    message = say(
        "The payees of {payments} would be forgotten. Nothing was changed: --yes --by NAME forgets them, or with "
        "[approval] an order of two people (--out ORDER --key KEY).",
        payments=_counted(chosen),
    )
    return Summary(ExitCode.DONE, message, rows=chosen.instructions, further=_told(journal, chosen))


def _written(
    settings: Settings, screen: Screen, journal: JournalReader, chosen: Forgettable, out: Path, key: Path
) -> Summary:
    """Write the order to forget people, signed by its maker. Nothing else changes."""
    if out.suffix.lower() != ".json":
        raise UsageError(
            say("{out} does not end in .json.", out=out), hint=say("An order must not overwrite another file.")
        )
    policy = required_policy(settings)
    document = prepare_forget_order(settings, journal, chosen, own_key(key))
    write_document(document, out)
    show_content(screen, document, policy, settings.submission.quarantine_h)
    show_signatures(screen, document, policy)
    asks = say_count(policy.needed, "{count} other person must approve it", "{count} other people must approve it")
    message = say(
        "Nothing was changed. The order is in {out}; {asks}: `paygw-batch approve {out} --key KEY`. Then "
        "`paygw-batch forget --order {out}` carries it out.",
        out=shlex.quote(str(out)),
        asks=asks,
    )
    further = _told(journal, chosen) | document_told(document, policy)
    return Summary(ExitCode.DONE, message, rows=chosen.instructions, further=further)


def _done(screen: Screen, journal: JournalReader, done: Forgotten) -> Summary:
    chosen = done.chosen
    _show(screen, journal, chosen)
    told = _told(journal, chosen)
    for path in files_elsewhere(journal, chosen):
        screen.say(say("This file may name them. Remove it yourself: {path}", path=path))
    if chosen.batches:
        screen.say(say("Also remove backups of the journal and files that were written elsewhere."))
    message = say("The payees of {payments} were forgotten.", payments=_counted(chosen))
    match done.old_pages:
        case OldPages.NOWHERE:
            return Summary(ExitCode.DONE, message, rows=chosen.instructions, further=told)
        case OldPages.IN_DATABASE:
            screen.say(
                say(
                    "The server keeps the old data until the owner of the database runs ANALYZE, VACUUM FULL "
                    "and CHECKPOINT. No one can use the journal meanwhile, so run them when nothing is being sent."
                )
            )
            return Summary(ExitCode.DONE, message, rows=chosen.instructions, further=told)
        case OldPages.IN_LOG:
            message += " " + say(
                "Another program is reading the journal, so its log still contains them. Close that program, "
                "then run this command again."
            )
            return Summary(ExitCode.STOPPED_EARLY, message, rows=chosen.instructions, further=told)
        case _:
            assert_never(done.old_pages)
