"""Shows an order about rows: its maker signs it, another person agrees or sends it back, and it is carried out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from starlette.responses import Response

from paygw_batch.compose.actions.follow_payout import running_now
from paygw_batch.compose.actions.settle_rows import carry_out_order
from paygw_batch.compose.actions.start_run import last_summary, start_run, started_run
from paygw_batch.compose.approvals import order_problem, required_policy
from paygw_batch.compose.journal import journal_to_plan_with
from paygw_batch.compose.operator import in_words, person
from paygw_batch.compose.run_journal import run_journal
from paygw_batch.console.pages.document_signing import (
    approved_by,
    enough_approve,
    form_of_approver,
    form_of_maker,
    has_approved,
    signatures_now,
    signed_by_maker,
    signing_key,
)
from paygw_batch.console.pages.payout_page import payout_record
from paygw_batch.console.pages.preparing import RUNS
from paygw_batch.console.pages.settling.open_orders import (
    OrderStage,
    changing_order,
    order_stage,
    required_order,
    what_is_asked,
)
from paygw_batch.console.pages.settling.order_folder import AnyOrder, OrderFolder
from paygw_batch.console.pages.settling.settle_page import choice_name
from paygw_batch.console.permissions import Act
from paygw_batch.console.visits import Visit
from paygw_batch.core.lifecycle import State
from paygw_batch.core.recorded_words import recorded
from paygw_batch.countries.payees import payee_of
from paygw_batch.errors import JournalHeld, UsageError
from paygw_batch.journal import BatchRecord, JournalReader
from paygw_batch.language import mark, say
from paygw_batch.report.summary import ExitCode
from paygw_batch.run.orders.release_order import ReleaseOrder
from paygw_batch.run.orders.settlement_order import SettlementOrder

ROWS_A_PAGE = 25
_OLD = mark("The page is too old: something was changed since. Open it again, and look once more.")
_REFUSED = frozenset({ExitCode.UNEXPECTED, ExitCode.USAGE, ExitCode.JOURNAL, ExitCode.APPROVAL})
"""The ends of a run that carried nothing out."""


@dataclass(frozen=True, slots=True)
class ShownOrderRow:
    """A row of an order, as its page shows it."""

    row: int
    name: str
    order_id: str
    currency: str
    amount: str
    attempt: int
    becomes: str
    evidence: str


def show_order(visit: Visit) -> Response:
    """Show an order to the person who drafted it, and to the one who agrees to it."""
    found = required_order(visit)
    settings = visit.console.settings
    with journal_to_plan_with(settings) as journal:
        stage = order_stage(visit, journal, found)
        if stage is OrderStage.DONE:
            return visit.go_to(f"/payouts/{found.document.content.batch}")
        document = _document(visit, found, stage)
        record = payout_record(journal, document.content.batch)
        return visit.page("order.html", **_shown(visit, journal, record, found, document, stage))


def sign_order(visit: Visit) -> Response:
    """Sign an order as the person who drafted it."""
    with changing_order(visit) as found:
        _require_own(visit, found)
        if found.order is None:
            document = _document(visit, found, _stage(visit, found, {OrderStage.TO_SIGN}))
            if document.digest() != visit.form.get("digest"):
                raise UsageError(say(_OLD), hint="")
            found.write_order(signed_by_maker(visit, document))
    return visit.go_to(f"/orders/{found.number}")


def agree_to_order(visit: Visit) -> Response:
    """Agree to an order as another person. An order to settle rows is then carried out."""
    with changing_order(visit) as found:
        visit.require(Act.AGREE, found.drafted.by, say("You asked for this: another person has to agree."))
        if _stage(visit, found, {OrderStage.TO_AGREE, OrderStage.AGREED, OrderStage.DONE}) is OrderStage.TO_AGREE:
            order = approved_by(visit, _same_order(visit, found))
            found.write_order(order)
            if isinstance(order, SettlementOrder) and enough_approve(visit, order):
                _settle_if_free(visit, found, order)
    return visit.go_to(f"/orders/{found.number}")


def send_order_back(visit: Visit) -> Response:
    """Send an order back to its maker, with a reason: the signatures count for nothing any more."""
    with changing_order(visit) as found:
        visit.require(Act.AGREE, found.drafted.by, say("You asked for this: take it back, if it is wrong."))
        if (
            _stage(visit, found, {OrderStage.TO_AGREE, OrderStage.AGREED, OrderStage.SENT_BACK})
            is not OrderStage.SENT_BACK
        ):
            _same_order(visit, found)
            reason = in_words(visit.form.get("reason", ""), say("The reason"))
            found.send_back(f"{visit.member.name}: {reason}")
    return visit.go_to("/")


def take_order_back(visit: Visit) -> Response:
    """Remove an order that was not carried out, as the person who drafted it."""
    with changing_order(visit) as found:
        _require_own(visit, found)
        _stage(visit, found, set(OrderStage) - {OrderStage.DONE, OrderStage.STARTING})
        found.remove()
    return visit.go_to("/")


def carry_order_out(visit: Visit) -> Response:
    """Carry out an order that enough people agreed to. Asked twice, it is carried out once."""
    with changing_order(visit) as found:
        stage = _stage(visit, found, {OrderStage.AGREED, OrderStage.STARTING, OrderStage.DONE})
        if stage is OrderStage.AGREED:
            order = _same_order(visit, found)
            if isinstance(order, ReleaseOrder):
                _start(visit, found, order)
            else:
                _settle(visit, found, order)
    return visit.go_to(f"/orders/{found.number}")


def _settle_if_free(visit: Visit, found: OrderFolder, order: SettlementOrder) -> None:
    """Carry an order out, unless a run holds the journal: then it waits for somebody to carry it out later."""
    try:
        _settle(visit, found, order)
    except JournalHeld:
        return


def _settle(visit: Visit, found: OrderFolder, order: SettlementOrder) -> None:
    settings = visit.console.settings
    with run_journal(settings, "console", lambda _sentence: None) as journal:
        carry_out_order(settings, journal, order, None, person(visit.member.name))
    found.put_away()


def _start(visit: Visit, found: OrderFolder, order: ReleaseOrder) -> None:
    """Start the run that releases the rows and sends them, in another process."""
    console, batch = visit.console, order.content.batch
    out = console.directory / RUNS / f"{batch}.reconciliation.csv"
    command = [*console.program, "--json", "retry", batch, "--order", str(found.order_file), "--wait", "--force"]
    command += ["--out", str(out), "--by", visit.member.name]
    start_run(console.directory / RUNS, batch, command, by=visit.member.name, environ=visit.environ)


def _require_own(visit: Visit, found: OrderFolder) -> None:
    visit.require(
        Act.ORDER, found.drafted.by, say("Only {name}, who drafted this, can change it.", name=found.drafted.by)
    )


def _stage(visit: Visit, found: OrderFolder, allowed: set[OrderStage]) -> OrderStage:
    """Return how far an order has come. Raises `UsageError` unless that is one of those `allowed`."""
    with journal_to_plan_with(visit.console.settings) as journal:
        stage = order_stage(visit, journal, found)
        if stage is OrderStage.UNTRUE and stage not in allowed:
            raise UsageError(order_problem(visit.console.settings, journal, found.document), hint="")
    if stage not in allowed:
        raise UsageError(say(_OLD), hint="")
    return stage


def _same_order(visit: Visit, found: OrderFolder) -> AnyOrder:
    """Return the signed order. Raises `UsageError` where it is not the one that the page showed."""
    order = found.order
    if order is None or order.digest() != visit.form.get("digest"):
        raise UsageError(say(_OLD), hint="")
    return order


def _document(visit: Visit, found: OrderFolder, stage: OrderStage) -> AnyOrder:
    """Return the order; one that is yet to be signed as the person at the page makes it, if it is hers."""
    document = found.document
    if stage is OrderStage.TO_SIGN and visit.may(Act.ORDER, found.drafted.by):
        return document.model_copy(update={"maker": signing_key(visit).text})
    return document


def _shown(
    visit: Visit, journal: JournalReader, record: BatchRecord, found: OrderFolder, document: AnyOrder, stage: OrderStage
) -> dict[str, Any]:
    settings, drafted, after = visit.console.settings, found.drafted, visit.query_number("after")
    is_signed = stage in {OrderStage.TO_AGREE, OrderStage.AGREED, OrderStage.STARTING}
    signatures = signatures_now(visit, document) if is_signed else None
    later = [one for one in document.content.rows if one.row > after]
    running = running_now(settings)
    return {
        "record": record,
        "number": found.number,
        "stage": stage.value,
        "drafted": drafted,
        "document": document,
        "what": what_is_asked(document),
        "is_release": isinstance(document, ReleaseOrder),
        "sums": _sums(document),
        "ready": sum(one.count for one in journal.tallies(record.number) if one.state is State.READY),
        "rows": list(_rows(journal, record, document, later[:ROWS_A_PAGE])),
        "after": after,
        "next_after": later[ROWS_A_PAGE - 1].row if len(later) > ROWS_A_PAGE else 0,
        "digest": document.digest(),
        "problem": order_problem(settings, journal, document) if stage is OrderStage.UNTRUE else "",
        "agreed_by": [] if signatures is None else [one.name for one in signatures.valid],
        "does_not_count": is_signed and signatures is None,
        "needed": required_policy(settings).needed,
        "is_own": visit.may(Act.ORDER, drafted.by),
        "can_agree": visit.may(Act.AGREE, drafted.by),
        "has_agreed": is_signed and has_approved(visit, document),
        "passkey": _passkey(visit, document, stage),
        "running_since": "" if running is None else running.since,
        "failure": _failure(visit, document) if stage is OrderStage.AGREED else "",
    }


def _passkey(visit: Visit, document: AnyOrder, stage: OrderStage) -> Mapping[str, str] | None:
    match stage:
        case OrderStage.TO_SIGN:
            return form_of_maker(visit, document)
        case OrderStage.TO_AGREE:
            return form_of_approver(visit, document)
        case _:
            return None


def _rows(
    journal: JournalReader, record: BatchRecord, document: AnyOrder, rows: Sequence[Any]
) -> "list[ShownOrderRow]":
    payments = journal.payments(record.number, [one.row for one in rows])
    shown = []
    for one in rows:
        payment = payments.get(one.row)
        name = "" if payment is None else payee_of(payment.form, payment.fields).name
        becomes, evidence = _becomes(document, one)
        shown.append(
            ShownOrderRow(
                one.row,
                name,
                one.order_id or one.client_orderid,
                one.currency,
                one.amount,
                one.attempt,
                becomes,
                evidence,
            )
        )
    return shown


def _becomes(document: AnyOrder, row: Any) -> tuple[str, str]:
    """Return the state that a row gets by an order, in words, and the evidence for it."""
    if isinstance(document, ReleaseOrder):
        return say("Tried again"), document.content.evidence
    return choice_name(row.resolution), recorded(row.evidence)


def _sums(document: AnyOrder) -> Sequence[tuple[str, str, int, str]]:
    """Return for each word and currency how many rows there are, and their sum."""
    found: dict[tuple[str, str], list[Decimal]] = {}
    for one in document.content.rows:
        becomes, _ = _becomes(document, one)
        found.setdefault((becomes, one.currency), []).append(Decimal(one.amount))
    return [(becomes, currency, len(amounts), f"{sum(amounts):f}") for (becomes, currency), amounts in found.items()]


def _failure(visit: Visit, document: AnyOrder) -> str:
    """Return why the run that was to carry an order out carried nothing out; empty where there was none."""
    runs, batch = visit.console.directory / RUNS, document.content.batch
    run = started_run(runs, batch)
    agreed_at = max((one.approved_at for one in document.approvals), default="")
    if not isinstance(document, ReleaseOrder) or run is None or run.at < agreed_at:
        return ""
    told = last_summary(runs, batch)
    if told is not None and told.get("exit_code") not in _REFUSED:
        return ""
    message = "" if told is None else str(told.get("message", ""))
    return message if message and "`" not in message else say("The run ended before anything was sent.")
