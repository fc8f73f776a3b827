"""Writes a settlement order (`resolve --out`), and names the way to one where a person may not act alone."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from paygw_batch.cli.screen.approval_plan import document_told, own_key, show_content, show_signatures
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.compose.actions.settle_rows import OrderNeeded, prepare_order
from paygw_batch.compose.approvals import required_policy
from paygw_batch.compose.outputs import OutputGuard, OutputKind, Wanted
from paygw_batch.errors import UsageError
from paygw_batch.journal import BatchRecord, JournalReader
from paygw_batch.report.summary import ExitCode, Summary
from paygw_batch.run.resolve import Settlement
from paygw_batch.run.signed_document import write_document
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
    document = prepare_order(settings, journal, record, settlements, own_key(file.key), statement=statement)
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


@contextmanager
def naming_the_order(record: BatchRecord, options: str) -> Iterator[None]:
    """Add the commands that make and carry out an order to the refusal of one person. `options` are the command's."""
    try:
        yield
    except OrderNeeded as refusal:
        refusal.hint = (
            f"`paygw-batch resolve {record.batch} {options} --out ORDER.json --key KEY` writes an order; another "
            "person approves it (`paygw-batch approve ORDER.json --key KEY`); `paygw-batch resolve --order ORDER.json` "
            "carries it out."
        )
        raise
