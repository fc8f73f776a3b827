"""Shows signed documents, and loads a person's key: for plan, approve and resolve."""

import os
from collections import defaultdict
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

from paygw_batch.cli.screen.screen import Screen
from paygw_batch.clock import utc_now
from paygw_batch.core.batch import PAYIN
from paygw_batch.core.money import with_separators
from paygw_batch.files import write_whole
from paygw_batch.language import mark_all, say, say_count
from paygw_batch.report.plan_page import plan_lines, plan_page
from paygw_batch.run.approval import PlanDocument
from paygw_batch.run.approval_keys import ApprovalKey, load_approval_key
from paygw_batch.run.orders.release_order import ReleaseContent, ReleaseOrder
from paygw_batch.run.orders.settlement_order import OrderContent, SettlementOrder
from paygw_batch.run.signed_document import ApprovalPolicy, Signatures, SignedDocument, signatures_of

PASSPHRASE = "PAYGW_APPROVAL_PASSPHRASE"  # noqa: S105 (the name of a variable, not a secret)


def own_key(path: Path) -> ApprovalKey:
    """Return the key of the person who runs this command."""
    passphrase = os.environ.get(PASSPHRASE)
    return load_approval_key(path, None if passphrase is None else passphrase.encode())


def show_content(screen: Screen, document: SignedDocument, policy: ApprovalPolicy) -> None:
    """Show the content of a plan or of a settlement order.

    Raises `ApprovalError` for a document that was changed, or whose maker the policy does not know.
    """
    signatures_of(document, policy, utc_now())
    if isinstance(document, PlanDocument):
        _show_plan(screen, document)
    if isinstance(document, SettlementOrder):
        _show_order(screen, document.content)
    if isinstance(document, ReleaseOrder):
        _show_release(screen, document.content)


def show_signatures(screen: Screen, document: SignedDocument, policy: ApprovalPolicy) -> None:
    """Show by name who made a document, who approves of it now, and which approvals do not count."""
    found = signatures_of(document, policy, utc_now())
    for sentence in _signature_sentences(document, found):
        screen.say(sentence)


def _signature_sentences(document: SignedDocument, found: Signatures) -> Sequence[str]:
    return [
        say(
            "The code of this {noun} is {code}: by phone, its maker reads out the same.",
            noun=say(document.noun),
            code=document.code,
        ),
        say("Prepared by {name} at {made_at}.", name=found.maker.name, made_at=document.made_at),
        *(
            say("Approved by {name} at {approved_at}.", name=person.name, approved_at=approval.approved_at)
            for person, approval in found.valid.items()
        ),
        *(say("An approval that does not count: {problem}.", problem=problem) for problem in found.wrong),
    ]


def write_plan_page(document: PlanDocument, policy: ApprovalPolicy, path: Path) -> None:
    """Write a plan as a page to look at, with who made it and who approves of it now."""
    signatures = _signature_sentences(document, signatures_of(document, policy, utc_now()))
    write_whole(path, plan_page(document, _headline(document), signatures).encode())


def _headline(document: PlanDocument) -> str:
    content = document.content
    rows = say_count(content.rows, "{count:,} row", "{count:,} rows")
    if content.invalid:
        rows += say_count(content.invalid, ", {count:,} of them left out")
    if content.amended:
        rows += say_count(content.amended, ", {count:,} of them replacing earlier payments")
    about = {
        "sheet": content.sheet,
        "rows": rows,
        "endpoint": content.endpoint,
        "journal": content.journal[:8],
    }
    if content.operation == PAYIN:
        return say("{sheet}: {rows}, to collect from customers at {endpoint}, from the journal {journal}.", **about)
    return say("{sheet}: {rows}, to pay out at {endpoint}, from the journal {journal}.", **about)


def _show_plan(screen: Screen, document: PlanDocument) -> None:
    """Show the sums and every difference from the last run; who approves the plan vouches for each."""
    sums = ", ".join(f"{currency} {with_separators(amount)}" for currency, amount in document.content.totals.items())
    screen.pages([_headline(document), say("In all: {sums}.", sums=sums or say("nothing")), *plan_lines(document)])


def _show_order(screen: Screen, content: OrderContent) -> None:
    """Show every row of an order: who approves it vouches for each."""
    count = len(content.rows)
    screen.say(
        say_count(
            count,
            "An order to settle {count:,} row of batch {batch} ({sheet}) at {endpoint}, in the journal {journal}.",
            "An order to settle {count:,} rows of batch {batch} ({sheet}) at {endpoint}, in the journal {journal}.",
            batch=content.batch,
            sheet=content.sheet,
            endpoint=content.endpoint,
            journal=content.journal[:8],
        )
    )
    screen.table(
        "",
        mark_all("row", "order id", "attempt", "state", "becomes", "currency", "sum", "evidence"),
        [
            (
                one.row,
                one.order_id or one.client_orderid,
                one.attempt,
                say("{state}, held", state=say(one.state.value)) if one.hold else one.state.value,
                one.resolution.value,
                one.currency,
                one.amount,
                one.evidence,
            )
            for one in content.rows
        ],
    )
    sums: dict[tuple[str, str], list[Decimal]] = defaultdict(list)
    for one in content.rows:
        sums[one.resolution.value, one.currency].append(Decimal(one.amount))
    lines = [(becomes, currency, len(all_of), f"{sum(all_of):f}") for (becomes, currency), all_of in sums.items()]
    screen.table("", mark_all("becomes", "currency", "rows", "sum"), lines)


def _show_release(screen: Screen, content: ReleaseContent) -> None:
    """Show every row of an order to release: who approves it vouches for each."""
    count = len(content.rows)
    screen.say(
        say_count(
            count,
            "An order to send {count:,} rejected row of batch {batch} ({sheet}) again, at {endpoint}, in the journal "
            "{journal}: {evidence}",
            "An order to send {count:,} rejected rows of batch {batch} ({sheet}) again, at {endpoint}, in the journal "
            "{journal}: {evidence}",
            batch=content.batch,
            sheet=content.sheet,
            endpoint=content.endpoint,
            journal=content.journal[:8],
            evidence=content.evidence,
        )
    )
    screen.table(
        "",
        mark_all("row", "rejected as", "attempt", "currency", "sum"),
        [(one.row, one.order_id or one.client_orderid, one.attempt, one.currency, one.amount) for one in content.rows],
    )


def document_told(document: SignedDocument, policy: ApprovalPolicy) -> dict[str, object]:
    """Return the members of the JSON summary about a document: its kind, its maker, and who approves of it now."""
    found = signatures_of(document, policy, utc_now())
    told: dict[str, object] = {
        "document": document.noun,
        "operation": document.content.operation,
        "journal": document.content.journal,
        "maker": found.maker.name,
        "approvals": len(found.valid),
        "approvers": [person.name for person in found.valid],
        "needed": policy.needed,
    }
    if isinstance(document, PlanDocument):
        told |= {"plan_sha256": document.digest(), "findings": [one.model_dump() for one in document.findings]}
    if isinstance(document, SettlementOrder):
        rows = [one.model_dump(mode="json") for one in document.content.rows]
        told |= {"order_sha256": document.digest(), "settlements": rows}
    if isinstance(document, ReleaseOrder):
        rows = [one.model_dump(mode="json") for one in document.content.rows]
        told |= {"order_sha256": document.digest(), "releases": rows}
    return told
