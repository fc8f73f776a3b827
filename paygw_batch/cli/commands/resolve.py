"""`paygw-batch resolve`: a person settles rows in doubt, one by one or from one of the gateway's statements."""

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import click

from paygw_batch.actions.approvals import needs_order
from paygw_batch.actions.batch_status import batch_summary
from paygw_batch.actions.run_report import RunReport
from paygw_batch.actions.settle_rows import (
    AskedStatement,
    OrderNeeded,
    as_of_time,
    carry_out_order,
    carry_out_statement,
    compare_statement,
    needs_order_sentence,
    prepare_order,
    settle_by_word,
)
from paygw_batch.cli.help_texts import HelpGroup
from paygw_batch.cli.invocation import Invocation, NamedFile, WholeNumber
from paygw_batch.cli.options import by_option, complete_batches, guard_of, settings_of, wait_option
from paygw_batch.cli.screen.approval_plan import (
    SHOWN_LINES,
    differences_counted,
    document_told,
    own_key,
    show_content,
    show_held,
    show_matched,
    show_signatures,
)
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.cli.send_batch import reported
from paygw_batch.clock import utc_now
from paygw_batch.core.lifecycle import Basis, Resolution
from paygw_batch.countries.load import minor_units_by_currency
from paygw_batch.errors import UsageError
from paygw_batch.journal import BatchRecord, Journal, JournalReader
from paygw_batch.language import mark, mark_count, say, say_count
from paygw_batch.report.summary import ExitCode, Summary, worst
from paygw_batch.run.match_statement import Matched
from paygw_batch.run.quarantine_clock import JournalClock
from paygw_batch.run.resolve import Settlement
from paygw_batch.run.settlement_order import SettlementOrder
from paygw_batch.run.signed_document import read_document, write_document
from paygw_batch.settings.configuration import Settings
from paygw_batch.statement.proof import proof_sentence
from paygw_batch.statement.read import Statement
from paygw_batch.wiring.approvals import person, required_line, required_policy
from paygw_batch.wiring.journal import find_batch, journal_to_read, run_journal
from paygw_batch.wiring.outputs import OutputGuard, OutputKind, RequestedOutput
from paygw_batch.wiring.statements import statement_in


@dataclass(frozen=True, slots=True)
class _OrderFile:
    """The path for an order, and its maker's key."""

    out: Path
    key: Path


_RESOLVED = {
    Resolution.PAID: mark_count("{count:,} paid"),
    Resolution.REJECTED: mark_count("{count:,} rejected"),
    Resolution.NOT_RECEIVED: mark_count("{count:,} not received"),
}


_EVIDENCE = mark("Your evidence: who confirmed it, when, and the ticket.")
_out_option = click.option("--out", type=NamedFile(), help="Write an order for a second person, and settle nothing.")
_key_option = click.option("--key", type=NamedFile(), help="With --out: your private key (Ed25519, PEM).")


@click.group("resolve", cls=HelpGroup)
def command() -> None:
    """Settle rows that are in doubt, held, or accepted but never answered, with evidence.

    Rows are settled on a person's word, by a statement from the gateway, or by an order that two people signed.
    """


@command.command("row", short_help="Settle rows on your word.")
@click.argument("batch", shell_complete=complete_batches)
@click.argument("rows", metavar="ROW...", type=WholeNumber(1), nargs=-1, required=True)
@click.option(
    "--as",
    "said",
    type=click.Choice([one.value for one in Resolution]),
    required=True,
    help="What happened to it.",
)
@click.option("--evidence", metavar="TEXT", required=True, help=_EVIDENCE)
@_out_option
@_key_option
@by_option
@wait_option
@click.pass_obj
def row(
    invocation: Invocation,
    *,
    batch: str,
    rows: tuple[int, ...],
    said: str,
    evidence: str,
    out: Path | None,
    key: Path | None,
    by: str | None,
    wait: bool,
) -> None:
    """Settle each ROW of BATCH on your word: all of them, or none.

    A row called rejected or not received can be paid again only after quarantine_h, and stays marked as a possible
    duplicate. With --out an order is written for another person to approve.
    """
    screen, who = Screen(invocation), person(by)
    words = required_line(evidence, "--evidence")
    settings = settings_of(invocation)
    to_order = _order_file(guard_of(invocation, settings), out, key, None)
    settlements = [Settlement(one, Resolution(said), words) for one in sorted(set(rows))]
    screen.finish(_by_hand(settings, screen, batch, settlements, who, to_order, wait=wait))


@command.command("statement", short_help="Settle rows by a statement.")
@click.argument("batch", shell_complete=complete_batches)
@click.argument("file", type=NamedFile())
@click.option("--yes", is_flag=True, help="Apply what the preview shows.")
@click.option("--matching-only", is_flag=True, help="Settle the lines that match, even if others do not.")
@click.option("--as-of", metavar="TIME", help="The time of the statement, for lines without a time.")
@click.option("--again", is_flag=True, help="Allow a file that was already applied to this batch.")
@click.option("--evidence", metavar="TEXT", help=_EVIDENCE)
@_out_option
@_key_option
@by_option
@wait_option
@click.pass_obj
def statement(
    invocation: Invocation,
    *,
    batch: str,
    file: Path,
    yes: bool,
    matching_only: bool,
    as_of: str | None,
    again: bool,
    evidence: str | None,
    out: Path | None,
    key: Path | None,
    by: str | None,
    wait: bool,
) -> None:
    """Settle rows of BATCH by a statement: FILE, a CSV or .xlsx file with one order a line.

    Without --yes it is only compared with the journal, and nothing changes. A statement counts as your word unless
    [evidence] in the configuration says what proves that it comes from the gateway.
    """
    screen, who = Screen(invocation), person(by)
    words = None if evidence is None else required_line(evidence, "--evidence")
    settings = settings_of(invocation)
    guard = guard_of(invocation, settings)
    guard.check(inputs={say("the statement"): file}, reporting=True)
    to_order = _order_file(guard, out, key, file)
    if yes and to_order:
        raise UsageError(say("--yes settles rows, and --out writes an order instead: choose one."))
    true_at = None if as_of is None else as_of_time(as_of)
    asked = AskedStatement(statement_in(settings, file), who, words, true_at, matching_only, again)
    screen.finish(
        _by_statement(settings, screen, batch, asked, file, wait=wait)
        if yes
        else _previewed(settings, screen, batch, asked, to_order)
    )


@command.command("order", short_help="Carry out an approved order.")
@click.argument("file", metavar="ORDER", type=NamedFile())
@click.option("--batch", shell_complete=complete_batches, help="Refuse ORDER unless it is about this batch.")
@click.option(
    "--statement",
    "statement_file",
    type=NamedFile(),
    help="The statement that it names. Default: the file of that name beside ORDER.",
)
@by_option
@wait_option
@click.pass_obj
def order(
    invocation: Invocation,
    *,
    file: Path,
    batch: str | None,
    statement_file: Path | None,
    by: str | None,
    wait: bool,
) -> None:
    """Carry out ORDER, which another person approved. An order is carried out once.

    If it gives the gateway's word, the statement that it names is read, and its proof is checked again.
    """
    screen, who = Screen(invocation), person(by)
    settings = settings_of(invocation)
    guard_of(invocation, settings).check(
        inputs={say("the order"): file, say("the statement"): statement_file}, reporting=True
    )
    required_policy(settings)
    found = read_document(file, SettlementOrder)
    folder = file.parent if statement_file is None else statement_file.parent
    with _settling(settings, screen, wait=wait) as (journal, report):
        done = carry_out_order(settings, journal, found, batch, who, folders=[folder])
        screen.say(_settled_sentence(done.settled, done.by))
        report.summary = _after(journal, done.batch, {"resolved": len(done.settled)})
    screen.finish(report.summary)


@contextmanager
def _settling(settings: Settings, screen: Screen, *, wait: bool) -> Iterator[tuple[Journal, RunReport]]:
    """Hold the journal to settle rows, and report the result."""
    with (
        reported(settings, "resolve", screen) as report,
        run_journal(settings, "resolve", screen.say, wait=wait) as journal,
    ):
        yield journal, report


def _by_hand(
    settings: Settings,
    screen: Screen,
    batch: str,
    settlements: Sequence[Settlement],
    who: str,
    to_order: _OrderFile | None,
    *,
    wait: bool,
) -> Summary:
    if to_order is not None:
        with journal_to_read(settings) as reader:
            return _write_order(settings, screen, reader, find_batch(reader, batch), settlements, to_order)
    with _settling(settings, screen, wait=wait) as (journal, report):
        record = find_batch(journal, batch)
        rows = " ".join(str(one.row) for one in settlements[:SHOWN_LINES])
        with _naming_the_order("row", f"{record.batch} {rows} --as {settlements[0].resolution.value} --evidence TEXT"):
            settle_by_word(settings, journal, record, settlements, who)
        screen.say(_settled_sentence(settlements, who))
        report.summary = _after(journal, record, {"resolved": len(settlements)})
    return report.summary


def _by_statement(
    settings: Settings, screen: Screen, batch: str, asked: AskedStatement, file: Path, *, wait: bool
) -> Summary:
    def show(matched: Matched, held: int) -> None:
        show_matched(screen, matched)
        if matched.contrary:
            show_held(screen, held, asked.by)

    with _settling(settings, screen, wait=wait) as (journal, report):
        record = find_batch(journal, batch)
        with _naming_the_order("statement", f"{record.batch} {shlex.quote(str(file))}"):
            done = carry_out_statement(settings, journal, record, asked, show)
        matched = done.matched
        summary = _after(journal, record, _told(matched, len(done.settled), done.held))
        if asked.is_refused(matched):
            summary = _refused(
                summary, say("Of the statement, {differences}.", differences=differences_counted(matched))
            )
        else:
            screen.say(_settled_sentence(done.settled, asked.by))
            if matched.differences:
                summary = replace(summary, exit_code=worst({summary.exit_code, ExitCode.PERSON_NEEDED}))
        report.summary = summary
    return report.summary


def _previewed(
    settings: Settings, screen: Screen, batch: str, asked: AskedStatement, to_order: _OrderFile | None
) -> Summary:
    """Show the effect of a statement; with `--out`, write it as an order. Nothing else changes."""
    with journal_to_read(settings) as journal:
        return _preview(settings, screen, journal, find_batch(journal, batch), asked, to_order)


def _preview(
    settings: Settings,
    screen: Screen,
    journal: JournalReader,
    record: BatchRecord,
    asked: AskedStatement,
    to_order: _OrderFile | None,
) -> Summary:
    matched = compare_statement(settings, journal, record, asked)
    show_matched(screen, matched)
    done = asked.carried_out_before(journal, record)
    for sentence in (proof_sentence(asked.statement.proof), done, *JournalClock.read(journal, utc_now()).sentences()):
        if sentence:
            screen.say(say("Note: {sentence}", sentence=sentence))
    summary = _after(journal, record, _told(matched, 0, 0))
    does = say_count(len(matched.settlements), "would settle {count:,} row", "would settle {count:,} rows")
    if matched.contrary:
        does += say(
            " and hold {held:,} (--yes holds them even if other lines do not match)", held=len(matched.contrary)
        )
    if asked.is_refused(matched):
        return _refused(
            summary,
            say("The statement {does}, but {differences}.", does=does, differences=differences_counted(matched)),
        )
    if to_order is not None:
        asked.refuse_again(done)
        settlements = asked.settlements(matched)
        return _write_order(settings, screen, journal, record, settlements, to_order, statement=asked.statement)
    message = say("The statement {does}. Nothing was changed: --yes applies it.", does=does)
    if doubtful := needs_order(settings, journal, record, matched.settlements):
        message = say(
            "The statement {does}. Nothing was changed. {needed} --out ORDER.json --key KEY "
            "writes an order for a second person.",
            does=does,
            needed=needs_order_sentence(doubtful),
        )
    return replace(summary, message=message)


def _refused(summary: Summary, said: str) -> Summary:
    hint = say(
        "Nothing was settled. Clear them up with the gateway, or settle the lines that match with --matching-only."
    )
    return replace(summary, exit_code=ExitCode.DEFECTS, message=f"{said} {hint}")


def _told(matched: Matched, resolved: int, held: int) -> dict[str, object]:
    return {
        "resolved": resolved,
        "held": held,
        "would_hold": [line.order_id for line in matched.contrary],
        "would_resolve": [{"row": one.row, "as": one.resolution.value} for one in matched.settlements],
        "on_the_gateways_word": [one.row for one in matched.settlements if one.basis is Basis.GATEWAY],
        "differences": [
            {"line": one.line, "order_id": one.order_id, "message": one.sentence} for one in matched.differences
        ],
        "agreeing": matched.agreeing,
        "elsewhere": matched.elsewhere,
        "waiting": matched.waiting,
        "still_in_doubt": [row.row for row in matched.silent],
    }


def _settled_sentence(settlements: Sequence[Settlement], who: str) -> str:
    counts = Counter(one.resolution for one in settlements)
    told = ", ".join(say_count(count, _RESOLVED[one]) for one, count in counts.items()) or say("nothing")
    sentence = say("Resolved by {who}: {counts}.", who=who, counts=told)
    rejected = {one.basis for one in settlements if one.resolution is Resolution.REJECTED}
    if Basis.PERSON in rejected:
        sentence += " " + say(
            "Rows rejected only on a person's word may be sent again only after quarantine_h. They stay marked as "
            "possible duplicates."
        )
    if Basis.GATEWAY in rejected:
        sentence += " " + say(
            "Rows that a proven statement calls rejected may be sent again at once. They stay marked as possible "
            "duplicates."
        )
    if counts[Resolution.NOT_RECEIVED]:
        sentence += " " + say(
            "Rows that were not received are ready again under their old order ids, and stay marked as possible "
            "duplicates; `paygw-batch resume` sends them."
        )
    return sentence


def _after(journal: JournalReader, record: BatchRecord, further: dict[str, object]) -> Summary:
    return replace(batch_summary(journal, record, minor_units_by_currency()), further=further)


def _order_file(guard: OutputGuard, out: Path | None, key: Path | None, statement: Path | None) -> _OrderFile | None:
    """Return the order's file and the maker's key from `--out` and `--key`; None if neither is given.

    Raises `UsageError` if only one of them is given, and `OutputError` if the order must not be written there.
    """
    if out is None and key is None:
        return None
    if out is None or key is None:
        raise UsageError(
            say("--out ORDER.json and --key KEY belong together: they write an order for a second person.")
        )
    if out.suffix.lower() != ".json":
        raise UsageError(
            say("{out} does not end in .json.", out=out), hint=say("An order must not overwrite another file.")
        )
    guard.check(
        RequestedOutput("--out", out, OutputKind.ORDER), inputs={say("the statement"): statement, say("a key"): key}
    )
    return _OrderFile(out, key)


def _write_order(
    settings: Settings,
    screen: Screen,
    journal: JournalReader,
    record: BatchRecord,
    settlements: Sequence[Settlement],
    file: _OrderFile,
    *,
    statement: Statement | None = None,
) -> Summary:
    """Write the order to make `settlements`, signed by its maker. Nothing else changes."""
    policy = required_policy(settings)
    document = prepare_order(settings, journal, record, settlements, own_key(file.key), statement=statement)
    write_document(document, file.out)
    show_content(screen, document, policy, settings.submission.quarantine_h)
    show_signatures(screen, document, policy)
    asks = say_count(policy.needed, "{count} other person must approve it", "{count} other people must approve it")
    return Summary(
        ExitCode.DONE,
        say(
            "Nothing was changed. The order is in {out}; {asks}: `paygw-batch approve {out} --key KEY`. Then "
            "`paygw-batch resolve order {out}` carries it out.",
            out=shlex.quote(str(file.out)),
            asks=asks,
        ),
        batch=record.batch,
        sheet=record.sheet_name,
        rows=len(settlements),
        further=document_told(document, policy),
    )


@contextmanager
def _naming_the_order(name: str, words: str) -> Iterator[None]:
    """Add the commands for an order to the refusal of a single person; `words` are the present command's."""
    try:
        yield
    except OrderNeeded as refusal:
        refusal.hint = say(
            "`paygw-batch resolve {name} {words} --out ORDER.json --key KEY` writes an order; another person approves "
            "it (`paygw-batch approve ORDER.json --key KEY`); `paygw-batch resolve order ORDER.json` carries it out.",
            name=name,
            words=words,
        )
        raise
