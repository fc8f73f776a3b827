"""Shows plans, orders and statements to the people who decide, and loads their keys."""

import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from paygw_batch.approval.approval_keys import MODULE_VARIABLE, PASSPHRASE_VARIABLE, ApprovalKey, load_person_key
from paygw_batch.approval.order import ForgetOrder
from paygw_batch.approval.plan_document import ACCOUNTS_FIRST_PAID, PlanDocument
from paygw_batch.approval.signed_document import ApprovalPolicy, Signatures, SignedDocument, verify_signatures
from paygw_batch.cli.screen.screen import MAX_SHOWN_LINES, Screen
from paygw_batch.clock import utc_now
from paygw_batch.core.batch import PAYIN
from paygw_batch.core.money import format_amount
from paygw_batch.engine.quarantine import Quarantine
from paygw_batch.files import write_atomically
from paygw_batch.language import mark, mark_all, mark_count, say, say_count
from paygw_batch.settle.match_statement import StatementMatch
from paygw_batch.settle.row_order import RowOrder
from paygw_batch.show.summary import ExitCode, Summary
from paygw_batch.submit.plan_to_approve import finding_sentence, listed_payees, people_lines, plan_lines, plan_page


def load_own_key(path: Path) -> ApprovalKey:
    """Load the private key of the person who runs this command, from a file or a token."""
    passphrase = os.environ.get(PASSPHRASE_VARIABLE)
    return load_person_key(path, None if passphrase is None else passphrase.encode(), os.environ.get(MODULE_VARIABLE))


def show_document(
    screen: Screen,
    document: SignedDocument,
    policy: ApprovalPolicy,
    quarantine_h: float,
    *,
    recomputed_plan: PlanDocument | None = None,
    with_people: bool = False,
) -> None:
    """Show the content of a plan or an order.

    `quarantine_h` applies to the rows of an order. If given, `recomputed_plan`, the approver's own view, is shown
    instead of the plan. If `with_people`, a plan's payees are listed too. Raises `ApprovalError` if the
    document was changed, or if the policy does not list its maker.
    """
    verify_signatures(document, policy, utc_now())
    if isinstance(document, PlanDocument):
        _show_plan(screen, recomputed_plan or document, with_people=with_people)
    if isinstance(document, RowOrder):
        _show_order(screen, document, Quarantine(quarantine_h))
    if isinstance(document, ForgetOrder):
        _show_forget_order(screen, document)


def show_signatures(screen: Screen, document: SignedDocument, policy: ApprovalPolicy) -> None:
    signatures = verify_signatures(document, policy, utc_now())
    for message in _signature_messages(document, signatures):
        screen.say(message)


def _signature_messages(document: SignedDocument, signatures: Signatures) -> Sequence[str]:
    template = mark("The code of this {noun} is {code}. Compare it by phone with the code that its maker sees.")
    return [
        say(template, noun=say(document.noun), code=document.code),
        say("Prepared by {name} at {made_at}.", name=signatures.maker.name, made_at=document.made_at),
        *(
            say("Approved by {name} at {approved_at}.", name=person.name, approved_at=approval.approved_at)
            for person, approval in signatures.valid.items()
        ),
        *(say("One approval does not count: {problem}.", problem=problem) for problem in signatures.problems),
    ]


def write_plan_page(
    document: PlanDocument, policy: ApprovalPolicy, path: Path, *, recomputed_plan: PlanDocument | None = None
) -> None:
    """Write a plan, or `recomputed_plan` if given, as an HTML page that names the maker and approvers."""
    messages = _signature_messages(document, verify_signatures(document, policy, utc_now()))
    write_atomically(path, plan_page(recomputed_plan or document, _plan_headline(document), messages).encode())


def _plan_headline(document: PlanDocument) -> str:
    content = document.content
    rows = say_count(content.rows, "{count:,} row", "{count:,} rows")
    if content.amended:
        rows += say_count(content.amended, ", {count:,} of them replacing earlier payments")
    if content.known:
        rows += say_count(content.known, " ({count:,} more was sent before)", " ({count:,} more were sent before)")
    if content.invalid:
        rows += say_count(content.invalid, " ({count:,} more left out)")
    values = {"sheet": content.sheet, "rows": rows, "endpoint": content.endpoint, "journal": content.journal[:8]}
    if content.operation == PAYIN:
        return say("{sheet}: {rows}, to collect at {endpoint}, from the journal {journal}.", **values)
    return say("{sheet}: {rows}, to pay out at {endpoint}, from the journal {journal}.", **values)


def _show_plan(screen: Screen, document: PlanDocument, *, with_people: bool) -> None:
    sums = ", ".join(f"{currency} {format_amount(amount)}" for currency, amount in document.content.totals.items())
    lines = [_plan_headline(document), say("Total: {sums}.", sums=sums or say("nothing")), *plan_lines(document)]
    screen.print_pages([*lines, *(people_lines(document) if with_people and not screen.as_json else ())])


def _show_order(screen: Screen, order: RowOrder, quarantine: Quarantine) -> None:
    content = order.content
    message = say_count(
        order.row_count,
        "An order for {count:,} row of batch {batch} ({sheet}) at {endpoint}, in the journal {journal}.",
        "An order for {count:,} rows of batch {batch} ({sheet}) at {endpoint}, in the journal {journal}.",
        batch=content.batch,
        sheet=content.sheet,
        endpoint=content.endpoint,
        journal=content.journal[:8],
    )
    screen.say(message)
    if content.statement or content.statement_sha256:
        name, digest = content.statement, content.statement_sha256
        screen.say(say("It is based on the statement {name} (SHA-256 {digest}).", name=name, digest=digest))
    screen.table(
        "",
        mark_all("row", "order id", "attempt", "state", "becomes", "currency", "sum", "evidence"),
        [
            (
                row.row,
                row.order_id or row.client_orderid,
                row.attempt,
                say("{state}, held", state=say(row.state.value)) if row.hold else row.state.value,
                row.act.value,
                row.currency,
                row.amount,
                row.evidence_text,
            )
            for row in content.rows
        ],
    )
    consequences = [(row.row, row.basis_text, row.consequence(quarantine)) for row in content.rows]
    screen.table("", mark_all("row", "on whose word", "what happens next"), consequences)
    screen.table("", mark_all("becomes", "currency", "rows", "sum"), order.sums)


def _show_forget_order(screen: Screen, order: ForgetOrder) -> None:
    content, before = order.content, order.content.before
    rows = say_count(order.row_count, "{count:,} row", "{count:,} rows")
    who = say("everyone whose batch ended before {before}", before=before) if before else say("one person")
    message = say(
        "An order to forget {who}: {rows}, at {endpoint}, in the journal {journal}. This cannot be undone.",
        who=who,
        rows=rows,
        endpoint=content.endpoint,
        journal=content.journal[:8],
    )
    screen.say(message)
    batches = [(batch.batch, batch.sheet, batch.rows) for batch in content.batches]
    screen.table("", mark_all("batch", "sheet", "rows"), batches)


def document_summary(document: SignedDocument, policy: ApprovalPolicy, message: str) -> Summary:
    signatures, summary = verify_signatures(document, policy, utc_now()), Summary(ExitCode.DONE, message)
    extra: dict[str, object] = {
        "document": document.noun,
        "operation": "" if isinstance(document, ForgetOrder) else document.content.operation,
        "journal": document.content.journal,
        "maker": signatures.maker.name,
        "approvals": len(signatures.valid),
        "approvers": [person.name for person in signatures.valid],
        "needed": policy.needed,
    }
    if isinstance(document, PlanDocument):
        content = document.content
        totals = {currency: {"ready": amount} for currency, amount in content.totals.items()}
        summary = replace(summary, batch=content.batch, sheet=content.sheet, rows=content.rows, totals=totals)
        summary = replace(summary, known=content.known, defects=content.invalid)
        extra |= {
            "plan_sha256": document.digest(),
            "findings": [
                {**dict(finding), "message": finding_sentence(finding)}
                for finding in document.findings
                if finding.code != ACCOUNTS_FIRST_PAID
            ],
            "people": [asdict(payee) for payee in listed_payees(document)],
        }
    if isinstance(document, RowOrder):
        summary = replace(summary, batch=document.batch, sheet=document.content.sheet, rows=document.row_count)
        rows = [row.model_dump(mode="json") for row in document.content.rows]
        extra |= {"order_sha256": document.digest(), "releases" if document.is_release else "settlements": rows}
    if isinstance(document, ForgetOrder):
        summary = replace(summary, rows=document.row_count)
        extra |= {"order_sha256": document.digest(), "forgets": document.content.model_dump(mode="json")}
    return replace(summary, extra=extra)


def show_statement_match(screen: Screen, match: StatementMatch) -> None:
    if match.settlements:
        screen.table(
            say("Rows that the statement settles"),
            mark_all("row", "becomes", "evidence"),
            [(entry.row, entry.resolution.value, entry.evidence_text) for entry in match.settlements[:MAX_SHOWN_LINES]],
        )
        screen.say_omitted(len(match.settlements))
    if match.differences:
        screen.table(
            say("Lines that do not match the journal"),
            mark_all("line", "order id", "why"),
            [(line.line, line.order_id, line.sentence) for line in match.differences[:MAX_SHOWN_LINES]],
        )
        screen.say_omitted(len(match.differences))
    parts = [
        (match.agreeing, mark_count("{count:,} line matches the journal", "{count:,} lines match the journal")),
        (
            match.elsewhere,
            mark_count("{count:,} line belongs to another batch", "{count:,} lines belong to other batches"),
        ),
        (match.waiting, mark_count("{count:,} line has no final result", "{count:,} lines have no final result")),
        (len(match.unsettled_rows), mark_count("{count:,} row stays in doubt", "{count:,} rows stay in doubt")),
    ]
    if messages := [say_count(count, template) for count, template in parts if count]:
        screen.say("; ".join(messages) + ".")


def describe_differences(match: StatementMatch) -> str:
    count = len(match.differences)
    return say_count(count, "{count:,} line does not match the journal", "{count:,} lines do not match the journal")
