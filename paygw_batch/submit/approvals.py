"""Checks the approvals that a batch or an order needs, and withdraws signed documents."""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from paygw_batch.approval.order import require_true
from paygw_batch.approval.plan_document import (
    NOT_ASKED_FOR,
    Approved,
    Content,
    PlanDocument,
    check_plan,
    needs_approval,
    payments_sha256,
    payout_code,
    require_same_content,
)
from paygw_batch.approval.policy import policy_of
from paygw_batch.approval.signed_document import (
    ApprovalPolicy,
    SignedDocument,
    read_document,
    require_journal,
    require_not_withdrawn,
    signatures_of,
)
from paygw_batch.clock import utc_now
from paygw_batch.errors import ApprovalError, JournalError
from paygw_batch.journal import JournalReader, KeptPlan, Withdrawal
from paygw_batch.language import say
from paygw_batch.opening.open_journal import Tell, database_of, journal_to_read, place_of
from paygw_batch.settings.configuration import Settings
from paygw_batch.settle.kept_documents import require_unused
from paygw_batch.settle.row_order import RowOrder, batch_of_order, content_now
from paygw_batch.submit.notices import add_notices, plan_notices, unheard
from paygw_batch.submit.plan import Plan
from paygw_batch.submit.submission import Submission, planned_content, require_true_findings


def order_problem(settings: Settings, journal: JournalReader, order: RowOrder) -> str:
    """Return why an order about rows is no longer valid, or an empty text. Signatures are not checked."""
    try:
        endpoint = settings.endpoint()
        require_true(order, content_now(order, journal, batch_of_order(order, journal, endpoint), endpoint))
    except ApprovalError as error:
        return error.message
    return ""


def named_plan(submission: Submission) -> PlanDocument | None:
    """Return the plan that a person named, or None if nobody named a plan.

    Raises `ApprovalError` if no policy asks for a plan, or if the plan cannot be read.
    """
    settings, file = submission.given.settings, submission.plan
    if not submission.choices.is_plan_named:
        return None
    if policy_of(settings) is None:
        raise ApprovalError(
            say("{file} is named as the approved plan, but the configuration has no [approval].", file=file),
            hint=say("Nothing was sent. Use the configuration that has [approval], or submit without a plan."),
        )
    if (code := code_in(settings, file)) is not None:
        return required_plan(settings, code).document
    return read_document(file, PlanDocument)


def require_about(document: PlanDocument, planned: Plan) -> None:
    """Raise `ApprovalError` unless a plan is for this sheet's batch."""
    if document.content.batch != planned.validated.batch:
        raise ApprovalError(
            say("The plan is for another sheet, or this sheet has changed since."),
            hint=say("Nothing was sent. Make a new plan of this sheet, and have it approved."),
        )


def require_approval(submission: Submission, planned: Plan, journal: JournalReader) -> Approved:
    """Return who prepared and approved the batch that `planned` would open in `journal`, if it needs approval.

    A batch already in the journal was approved when it was opened. Raises `ApprovalError` if the plan lacks valid
    approvals for exactly this content, has other findings than the sheet, or has opened another batch.

    If no approvals are needed, a plan that a person named is still checked for the rest. A withdrawn plan never opens a
    batch, even if nobody named it.
    """
    policy = policy_of(submission.given.settings)
    if policy is None:
        return NOT_ASKED_FOR
    now, withdrawn = utc_now(), journal.withdrawals()
    dead = {withdrawal.sha256 for withdrawal in withdrawn}
    if planned.existing is not None:
        if (named := named_plan(submission)) is not None:
            require_not_withdrawn(named, withdrawn)
        return NOT_ASKED_FOR
    content, _ = planned_content(submission, planned, journal)
    if not needs_approval(content, policy):
        named = named_plan(submission)
        if (at_hand := named or _plan_at_hand(submission, content, policy, now, dead)) is not None:
            require_not_withdrawn(at_hand, withdrawn)
        if named is None:
            return NOT_ASKED_FOR
        require_same_content(named, content)
        signatures_of(named, policy, now)
        require_true_findings(named, submission, journal)
        return replace(NOT_ASKED_FOR, answered=tuple(named.answered))
    document = _best_plan(submission, content, policy, now, dead)
    if document is None:
        raise ApprovalError(
            say("This sheet needs an approved plan, but there is none at {file}.", file=submission.plan),
            hint=say(
                "Nothing was sent. `paygw-batch plan SHEET --out PLAN --key KEY` makes one; another person approves."
            ),
        )
    require_not_withdrawn(document, withdrawn)
    opened = next(iter(journal.batches(plan_sha256=document.digest())), None)
    approved = check_plan(document, content, policy, now, used=opened)
    require_true_findings(document, submission, journal)
    return approved


def _plan_at_hand(
    submission: Submission, content: Content, policy: ApprovalPolicy, now: datetime, withdrawn: Collection[str]
) -> PlanDocument | None:
    """Return the plan of a payout that needs no approval, from its file or the database. None: none can be read."""
    try:
        plan = _best_plan(submission, content, policy, now, withdrawn)
    except ApprovalError:
        return None
    return None if plan is None or plan.content.batch != content.batch else plan


def withdraw_document(settings: Settings, document: SignedDocument, withdrawal: Withdrawal) -> None:
    """Record the withdrawal of a signed document in the configured journal, even while a run holds the journal.

    Raises `ApprovalError` if the document is for another journal, or was used already: its run has started.
    """
    with journal_to_read(settings, must_be_known=True) as journal:
        require_journal(document, journal.head().journal_id, say("Nothing was withdrawn."))
        require_unused(document, journal)
    place_of(settings).withdraw(withdrawal)
    # A use from before the withdrawal is in the journal by now, and no use can follow the withdrawal.
    with journal_to_read(settings, must_be_known=True) as journal:
        require_unused(document, journal)


_CODE = re.compile(r"[0-9a-f]{16}")


def require_in_force(settings: Settings, document: SignedDocument) -> None:
    """Raise `DocumentWithdrawn` if the journal on this machine records that the document was withdrawn.

    The machine of an approver may have no journal. `submit` does have the journal, and refuses the document there.
    """
    try:
        with journal_to_read(settings, must_be_known=True) as journal:
            withdrawals = journal.withdrawals()
    except JournalError:
        return
    require_not_withdrawn(document, withdrawals)


@dataclass(frozen=True, slots=True)
class SharedPlan:
    """A plan in the database: the document, and the stored version from which it was read."""

    document: PlanDocument
    kept: KeptPlan


def code_in(settings: Settings, name: Path) -> str | None:
    """Return the plan code that a person typed in place of a file, without blanks and hyphens; None for a file."""
    if settings.journal.url is None:
        return None
    code = re.sub(r"[ -]", "", str(name)).lower()
    return code if _CODE.fullmatch(code) and not name.exists() else None


def share_plan(
    settings: Settings, document: PlanDocument, before: KeptPlan | None = None, *, tell: Tell = unheard
) -> bool:
    """Store a plan in the database as the version after `before`, and return whether there is a database.

    For a new plan, the same transaction writes the notices that it waits for approval. Raises `ApprovalError` if
    someone else has approved the plan since it was read.
    """
    notices = plan_notices(settings, document)
    if (place := database_of(settings)) is None:
        add_notices(settings, notices, tell)
        return False
    payments, text = payments_sha256(document.content), document.model_dump_json(indent=1)
    if place.keep_plan(payout_code(document), text, before, payments=payments, notices=notices):
        return True
    raise ApprovalError(
        say("Another person signed at the same moment. Nothing was written."), hint=say("Run the same command again.")
    )


def _plans_of(settings: Settings, content: Content) -> Iterator[SharedPlan]:
    """Yield the plans of these payments in the database, newest first. Several people may have made a plan."""
    place = database_of(settings)
    return map(_read, () if place is None else place.plans_of(payments_sha256(content)))


def _read(kept: KeptPlan) -> SharedPlan:
    return SharedPlan(read_document(Path(kept.code), PlanDocument, data=kept.content.encode()), kept)


def newest_version(settings: Settings, document: PlanDocument) -> SharedPlan | None:
    """Return a plan with its newest approvals, and its version in the database; None if the database lacks it."""
    for shared in _plans_of(settings, document.content):
        if shared.document.digest() == document.digest():
            has_more = len(document.approvals) > len(shared.document.approvals)  # its file was signed elsewhere
            return replace(shared, document=document) if has_more else shared
    return None


def required_plan(settings: Settings, code: str) -> SharedPlan:
    """Return the newest plan with this code in the database. Raises `ApprovalError` if there is none."""
    place = database_of(settings)
    if place is None or (kept := place.newest_plan(code)) is None:
        raise ApprovalError(
            say("The database of the journal has no plan {code}.", code=code),
            hint=say("Nothing was approved. First prepare the plan with `paygw-batch plan`, with [journal] url set."),
        )
    return _read(kept)


def _best_plan(
    submission: Submission, content: Content, policy: ApprovalPolicy, now: datetime, withdrawn: Collection[str]
) -> PlanDocument | None:
    """Return a payout's plan from its file or the database, whichever has more valid approvals; None if there is none.

    A plan whose digest is in `withdrawn` is chosen only if there is no other.
    """
    settings, file = submission.given.settings, submission.plan
    if (code := code_in(settings, file)) is not None:
        return required_plan(settings, code).document
    plans = [read_document(file, PlanDocument)] if file.exists() else []
    plans += [shared.document for shared in _plans_of(settings, content)]

    def worth(plan: PlanDocument) -> tuple[bool, bool, int]:
        valid = len(signatures_of(plan, policy, now).valid)
        return plan.content == content, plan.digest() not in withdrawn, valid

    return max(plans, key=worth, default=None)
