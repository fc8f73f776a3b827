"""`paygw-batch order`: write an order for two people to settle rows, to send rows again, or to forget people."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from paygw_batch.actions.continue_batch import releasable_rows
from paygw_batch.actions.forget_people import choose, draft_forget_order
from paygw_batch.actions.settle_rows import draft_order
from paygw_batch.cli.commands.forget import before_option, chosen_told, person_option, require_one, show_chosen
from paygw_batch.cli.commands.resolve import EVIDENCE_HELP, asked_statement, preview_statement, statement_options
from paygw_batch.cli.help_texts import HelpGroup
from paygw_batch.cli.invocation import Invocation, NamedFile, WholeNumber
from paygw_batch.cli.options import complete_batches, guard_of, settings_of
from paygw_batch.cli.screen.approval_plan import document_told, own_key, show_content, show_signatures
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.core.lifecycle import Resolution
from paygw_batch.errors import UsageError
from paygw_batch.language import say, say_count
from paygw_batch.report.summary import ExitCode, Summary
from paygw_batch.run.approval_keys import ApprovalKey
from paygw_batch.run.forget_order import ForgetOrder
from paygw_batch.run.row_order import Decision, RowAct, RowOrder
from paygw_batch.run.signed_document import signed, write_document
from paygw_batch.settings.configuration import Settings
from paygw_batch.wiring.approvals import required_line, required_policy
from paygw_batch.wiring.journal import find_batch, journal_to_read
from paygw_batch.wiring.outputs import OutputKind, RequestedOutput

_out_option = click.option("--out", type=NamedFile(), required=True, help="The file of the order (.json).")
_key_option = click.option("--key", type=NamedFile(), required=True, help="Your private key (Ed25519, PEM).")


@click.group("order", cls=HelpGroup)
def command() -> None:
    """Write an order, and sign it with your key. Nothing else changes.

    Another person approves it (`approve`), and it is carried out once (`carry-out`).
    """


@command.command("settle", short_help="Settle rows that are in doubt, held or accepted.")
@click.argument("batch", shell_complete=complete_batches)
@click.argument("rows", metavar="[ROW...]", type=WholeNumber(1), nargs=-1)
@click.option("--as", "said", type=click.Choice([one.value for one in Resolution]), help="What happened to the rows.")
@click.option("--statement", type=NamedFile(), help="Settle the rows of a statement instead (.csv or .xlsx).")
@statement_options
@click.option("--evidence", metavar="TEXT", help=EVIDENCE_HELP)
@_out_option
@_key_option
@click.pass_obj
def settle(
    invocation: Invocation,
    /,
    *,
    batch: str,
    rows: tuple[int, ...],
    said: str | None,
    statement: Path | None,
    evidence: str | None,
    out: Path,
    key: Path,
    **chosen: Any,
) -> None:
    """Order that rows of BATCH are settled: each ROW as you say, or those that a statement settles.

    With --as a row called rejected or not received can be paid again only after quarantine_h, and stays marked as a
    possible duplicate.
    """
    screen = Screen(invocation)
    if statement is None and (said is None or evidence is None or not rows or any(chosen.values())):
        raise UsageError(say("Name rows with --as and --evidence, or a statement with --statement."))
    if statement is not None and (rows or said):
        raise UsageError(say("A statement says which rows are settled, and how: leave ROW and --as out."))
    settings, maker = _checked(invocation, out, key, statement)
    with journal_to_read(settings) as journal:
        record = find_batch(journal, batch)
        if statement is None:
            words, read = required_line(evidence or "", "--evidence"), None
            decisions = [Decision(row, RowAct(said or ""), words) for row in sorted(set(rows))]
        else:
            asked = asked_statement(settings, statement, "", evidence, **chosen)
            matched, summary = preview_statement(settings, screen, journal, record, asked)
            if asked.is_refused(matched):
                screen.finish(summary)
            asked.refuse_again(journal, record)
            decisions, read = [Decision.of(one) for one in asked.settlements(matched)], asked.statement
        draft = draft_order(settings, journal, record, decisions, maker.public, statement=read)
    screen.finish(_written(settings, screen, draft, maker, out))


@command.command("release", short_help="Send rejected rows again.")
@click.argument("batch", shell_complete=complete_batches)
@click.option("--row", "rows", type=WholeNumber(1), multiple=True, help="Only this row of the sheet. Repeatable.")
@click.option("--evidence", metavar="TEXT", required=True, help="Why they may be sent again.")
@_out_option
@_key_option
@click.pass_obj
def release(invocation: Invocation, *, batch: str, rows: tuple[int, ...], evidence: str, out: Path, key: Path) -> None:
    """Order that the rejected rows of BATCH are sent again: those of --row, or all that may be sent now."""
    screen, words = Screen(invocation), required_line(evidence, "--evidence")
    settings, maker = _checked(invocation, out, key)
    with journal_to_read(settings) as journal:
        record = find_batch(journal, batch)
        named = sorted(set(rows)) or releasable_rows(settings, journal, record)
        decisions = [Decision(row, RowAct.RELEASE, words) for row in named]
        draft = draft_order(settings, journal, record, decisions, maker.public)
    screen.finish(_written(settings, screen, draft, maker, out))


@command.command("forget", short_help="Forget people, and keep the books.")
@before_option
@person_option
@_out_option
@_key_option
@click.pass_obj
def forget(invocation: Invocation, *, before: str | None, person: str | None, out: Path, key: Path) -> None:
    """Order that people are forgotten. The order names payments, and nobody.

    Without --before and --person, [retention] years in the configuration says the date.
    """
    screen = Screen(invocation)
    require_one(before, person)
    settings, maker = _checked(invocation, out, key)
    with journal_to_read(settings, screen.say) as journal:
        chosen = choose(settings, journal, before=before, person=person)
        show_chosen(screen, journal, chosen)
        draft, told = draft_forget_order(settings, journal, chosen, maker.public), chosen_told(journal, chosen)
    summary = _written(settings, screen, draft, maker, out)
    screen.finish(replace(summary, further=told | dict(summary.further)))


def _checked(
    invocation: Invocation, out: Path, key: Path, statement: Path | None = None
) -> tuple[Settings, ApprovalKey]:
    """Return the settings, and the maker's key. Raises `OutputError` if the order must not be written to `out`."""
    if out.suffix.lower() != ".json":
        raise UsageError(
            say("{out} does not end in .json.", out=out), hint=say("An order must not overwrite another file.")
        )
    settings = settings_of(invocation)
    guard_of(invocation, settings).check(
        RequestedOutput("--out", out, OutputKind.ORDER), inputs={say("the statement"): statement, say("a key"): key}
    )
    required_policy(settings)
    return settings, own_key(key)


def _written(
    settings: Settings, screen: Screen, draft: RowOrder | ForgetOrder, maker: ApprovalKey, out: Path
) -> Summary:
    """Write an order, signed by its maker, and show it."""
    policy, document = required_policy(settings), signed(draft, maker)
    write_document(document, out)
    show_content(screen, document, policy, settings.submission.quarantine_h)
    show_signatures(screen, document, policy)
    asks = say_count(policy.needed, "{count} other person must approve it", "{count} other people must approve it")
    message = say(
        "Nothing was changed. The order is in {out}; {asks}: `paygw-batch approve {out} --key KEY`. Then "
        "`paygw-batch carry-out {out}` carries it out.",
        out=shlex.quote(str(out)),
        asks=asks,
    )
    return Summary(
        ExitCode.DONE,
        message,
        batch=document.batch or None,
        sheet=None if isinstance(document, ForgetOrder) else document.content.sheet,
        rows=document.rows,
        further=document_told(document, policy),
    )
