"""Settling by two people: `resolve --out` writes an order instead of acting, `resolve --order` carries one out."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paygw_batch.cli.screen.approval_plan import document_told, own_key, show_content, show_signatures
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.clock import utc_now
from paygw_batch.compose.approvals import known_maker, needs_order, required_policy
from paygw_batch.compose.journal import find_batch
from paygw_batch.compose.outputs import OutputGuard, OutputKind, Wanted
from paygw_batch.compose.run_journal import run_journal
from paygw_batch.countries.load import minor_units_by_currency
from paygw_batch.errors import ApprovalError, UsageError
from paygw_batch.journal import BatchRecord, JournalReader
from paygw_batch.report.batch_states import batch_summary
from paygw_batch.report.summary import ExitCode, Summary
from paygw_batch.run.resolve import Settlement, check_settlements, settle
from paygw_batch.run.settlement_order import SettlementOrder, make_order, order_content, order_in_force
from paygw_batch.run.signed_document import read_document, write_document
from paygw_batch.settings.configuration import Settings
from paygw_batch.statement.read import Statement


@dataclass(frozen=True, slots=True)
class OrderFile:
    """Where an order is to be written, and the key of its maker."""

    out: Path
    key: Path


def order_file(guard: OutputGuard, out: Path | None, key: Path | None, statement: Path | None) -> OrderFile | None:
    """Return what `--out` and `--key` say.

    Raises `UsageError` when only one of them is given, and `OutputError` when the order must not be written there.
    """
    if out is None and key is None:
        return None
    if out is None or key is None:
        raise UsageError("--out ORDER.json and --key KEY belong together: they write an order for a second person.")
    if out.suffix.lower() != ".json":
        raise UsageError(f"{out} does not end in .json.", hint="An order must not take the place of another file.")
    guard.check(Wanted("--out", out, OutputKind.ORDER), inputs={"the statement": statement, "a key": key})
    return OrderFile(out, key)


def write_order(
    settings: Settings,
    screen: Screen,
    journal: JournalReader,
    record: BatchRecord,
    settlements: Sequence[Settlement],
    file: OrderFile,
    *,
    statement: Statement | None = None,
) -> Summary:
    """Write the order to make `settlements`, signed by its maker. Nothing is changed."""
    policy = required_policy(settings)
    key = own_key(file.key)
    known_maker(key, policy, "No order was written.")
    if not settlements:
        raise UsageError("There is nothing to settle: no order was written.")
    quarantine_h = settings.submission.quarantine_h
    check_settlements(journal, record, settlements, quarantine_h=quarantine_h, now=utc_now)
    content = order_content(
        journal,
        record,
        settlements,
        endpoint=settings.endpoint(),
        minor_units=minor_units_by_currency(),
        statement=statement,
    )
    document = make_order(content, key, utc_now())
    write_document(document, file.out)
    show_content(screen, document, policy)
    show_signatures(screen, document, policy)
    asks = f"{policy.needed} other {'person has' if policy.needed == 1 else 'people have'} to approve it"
    return Summary(
        ExitCode.DONE,
        f"Nothing was changed. The order is in {file.out}; {asks}: `paygw-batch approve {file.out} --key KEY`. Then "
        f"`paygw-batch resolve --order {file.out}` carries it out.",
        batch=record.batch,
        sheet=record.sheet_name,
        rows=len(settlements),
        further=document_told(document, policy),
    )


def carry_out_order(
    settings: Settings, screen: Screen, path: Path, batch: str | None, who: str, *, wait: bool
) -> tuple[Summary, Sequence[Settlement], str]:
    """Carry an order out, once, under the journal's lock; return the batch's summary, what was settled, and by whom."""
    policy = required_policy(settings)
    order = read_document(path, SettlementOrder)
    units = minor_units_by_currency()
    with run_journal(settings, "resolve", screen.say, wait=wait) as journal:
        if batch is not None and find_batch(journal, batch).batch != order.content.batch:
            raise UsageError(f"The order is about batch {order.content.batch}, and not about {batch}.")
        found = order_in_force(order, journal, policy, utc_now(), endpoint=settings.endpoint(), minor_units=units)
        quarantine_h = settings.submission.quarantine_h
        check_settlements(journal, found.batch, found.settlements, quarantine_h=quarantine_h, now=utc_now)
        by = f"{who}, {found.decided}"
        settle(journal, found.batch, found.settlements, by=by, now=utc_now, carried_out=found.carried_out(by))
        return batch_summary(journal, found.batch, units), found.settlements, by


def refuse_alone(
    settings: Settings, journal: JournalReader, record: BatchRecord, settlements: Sequence[Settlement], options: str
) -> None:
    """Raise `ApprovalError` when one person may not make `settlements` alone. `options` are those of the command."""
    rows = needs_order(settings, journal, record, settlements)
    if rows:
        raise ApprovalError(
            f"{needs_order_sentence(rows)} Nothing was settled.",
            hint=f"`paygw-batch resolve {record.batch} {options} --out ORDER.json --key KEY` writes an order; another "
            "person approves it (`paygw-batch approve ORDER.json --key KEY`); `paygw-batch resolve --order ORDER.json` "
            "carries it out.",
        )


def needs_order_sentence(rows: Sequence[int]) -> str:
    """Return why settling `rows` needs two people."""
    named = f"row {rows[0]}" if len(rows) == 1 else f"{len(rows):,} rows, the first of them row {rows[0]},"
    return f"This would let {named} be paid again, so two people have to say so."
