"""Checks the approvals that a batch or an order needs, and withdraws signed documents."""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from paygw_batch.approval.order import require_unchanged
from paygw_batch.approval.plan_document import (
    NO_APPROVAL,
    PlanApproval,
    PlanContent,
    PlanDocument,
    check_plan,
    needs_approval,
    payments_sha256,
    payout_code,
    require_same_content,
)
from paygw_batch.approval.policy import approval_policy
from paygw_batch.approval.signed_document import (
    ApprovalPolicy,
    SignedDocument,
    read_document,
    require_journal_id,
    require_not_withdrawn,
    verify_signatures,
)
from paygw_batch.clock import utc_now
from paygw_batch.errors import ApprovalError, JournalError
from paygw_batch.journal import JournalReader, StoredPlan, Withdrawal
from paygw_batch.language import say
from paygw_batch.opening.open_journal import Echo, database_location, journal_location, open_journal_to_read
from paygw_batch.settings.configuration import Settings
from paygw_batch.settle.kept_documents import require_unused
from paygw_batch.settle.row_order import RowOrder, current_content, find_order_batch
from paygw_batch.submit.notices import add_notices, discard_message, plan_notices
from paygw_batch.submit.plan import Plan
from paygw_batch.submit.submission import Submission, planned_content, require_current_findings


def invalid_order_reason(settings: Settings, journal: JournalReader, order: RowOrder) -> str:
    """Return why a row order is no longer valid, or an empty string if it is valid. Does not check signatures."""
    try:
        endpoint = settings.endpoint()
        require_unchanged(order, current_content(order, journal, find_order_batch(order, journal, endpoint), endpoint))
    except ApprovalError as error:
        return error.message
    return ""


def named_plan(submission: Submission) -> PlanDocument | None:
    """Return the plan named by the user, if any. Raises `ApprovalError` if it cannot be read or used."""
    settings, file = submission.source.settings, submission.plan
    if not submission.choices.is_plan_named:
        return None
    if approval_policy(settings) is None:
        raise ApprovalError(
            say("{file} was given as the approved plan, but the configuration has no [approval] section.", file=file),
            hint=say(
                "Nothing was sent. Use the configuration that has an [approval] section, or submit without a plan."
            ),
        )
    if (code := parse_plan_code(settings, file)) is not None:
        return load_plan_by_code(settings, code).document
    return read_document(file, PlanDocument)


def require_same_batch(document: PlanDocument, plan: Plan) -> None:
    """Raise `ApprovalError` if a plan document is for another batch than `plan`."""
    if document.content.batch != plan.validated.batch:
        raise ApprovalError(
            say("The plan is for another sheet, or this sheet has changed since."),
            hint=say("Nothing was sent. Make a new plan for this sheet and have it approved."),
        )


def require_approval(submission: Submission, plan: Plan, journal: JournalReader) -> PlanApproval:
    """Return the approval for opening the batch of `plan`, or `NO_APPROVAL` if none is needed.

    A batch that is already in the journal needs none. Raises `ApprovalError` if the plan document lacks
    valid approvals for exactly this content, if its findings differ from the sheet's, or if it has already been used.

    A plan named by the user is checked even if no approval is needed. A withdrawn plan never opens a batch.
    """
    if (policy := approval_policy(submission.source.settings)) is None:
        return NO_APPROVAL
    now, withdrawals = utc_now(), journal.withdrawals()
    withdrawn_digests = {withdrawal.sha256 for withdrawal in withdrawals}
    if plan.existing is not None:
        if (named := named_plan(submission)) is not None:
            require_not_withdrawn(named, withdrawals)
        return NO_APPROVAL
    content, _ = planned_content(submission, plan, journal)
    if not needs_approval(content, policy):
        named = named_plan(submission)
        if (document := named or _find_readable_plan(submission, content, policy, now, withdrawn_digests)) is not None:
            require_not_withdrawn(document, withdrawals)
        if named is None:
            return NO_APPROVAL
        require_same_content(named, content)
        verify_signatures(named, policy, now)
        require_current_findings(named, submission, journal)
        return replace(NO_APPROVAL, answered=tuple(named.answered))
    document = _find_best_plan(submission, content, policy, now, withdrawn_digests)
    if document is None:
        raise ApprovalError(
            say("This sheet needs an approved plan, but there is none at {file}.", file=submission.plan),
            hint=say(
                "Nothing was sent. To make one, run `paygw-batch plan SHEET --out PLAN --key KEY`. Then another person "
                "approves it."
            ),
        )
    require_not_withdrawn(document, withdrawals)
    batch = next(iter(journal.batches(plan_sha256=document.digest())), None)
    approval = check_plan(document, content, policy, now, opened_batch=batch)
    require_current_findings(document, submission, journal)
    return approval


def _find_readable_plan(
    submission: Submission, content: PlanContent, policy: ApprovalPolicy, now: datetime, withdrawn: Collection[str]
) -> PlanDocument | None:
    """Return the best plan for a batch that needs no approval, or None if none can be read."""
    try:
        plan = _find_best_plan(submission, content, policy, now, withdrawn)
    except ApprovalError:
        return None
    return None if plan is None or plan.content.batch != content.batch else plan


def withdraw_document(settings: Settings, document: SignedDocument, withdrawal: Withdrawal) -> None:
    """Record a withdrawal, even during a run. Raises `ApprovalError` for a used document or another journal."""
    with open_journal_to_read(settings, must_be_known=True) as journal:
        require_journal_id(document, journal.head().journal_id, say("Nothing was withdrawn."))
        require_unused(document, journal)
    journal_location(settings).withdraw(withdrawal)
    # The document may have been used since the first check. Now that it is withdrawn, it can no longer be used.
    with open_journal_to_read(settings, must_be_known=True) as journal:
        require_unused(document, journal)


def require_in_force(settings: Settings, document: SignedDocument) -> None:
    """Raise `DocumentWithdrawn` if the journal records the withdrawal of a document. Does nothing without a journal."""
    try:
        with open_journal_to_read(settings, must_be_known=True) as journal:
            withdrawals = journal.withdrawals()
    except JournalError:
        return
    require_not_withdrawn(document, withdrawals)


@dataclass(frozen=True, slots=True)
class SharedPlan:
    """A plan in the database, with the stored version that it was read from."""

    document: PlanDocument
    stored: StoredPlan


def parse_plan_code(settings: Settings, path: Path) -> str | None:
    """Return the plan code given in place of a path, without spaces or hyphens, or None if it is a path."""
    if settings.journal.url is None:
        return None
    code = re.sub(r"[ -]", "", str(path)).lower()
    return code if re.fullmatch(r"[0-9a-f]{16}", code) and not path.exists() else None


def share_plan(
    settings: Settings, document: PlanDocument, previous: StoredPlan | None = None, *, echo: Echo = discard_message
) -> bool:
    """Store a plan and its notices in the database. Without one, write only the notices and return False.

    Raises `ApprovalError` if the stored version is no longer `previous`, because someone else has signed.
    """
    notices = plan_notices(settings, document)
    if (database := database_location(settings)) is None:
        add_notices(settings, notices, echo)
        return False
    payments, text = payments_sha256(document.content), document.model_dump_json(indent=1)
    if database.store_plan(payout_code(document), text, previous, payments=payments, notices=notices):
        return True
    raise ApprovalError(
        say("Someone else signed at the same time. Nothing was written."), hint=say("Run the same command again.")
    )


def _shared_plans(settings: Settings, content: PlanContent) -> Iterator[SharedPlan]:
    """Yield the plans in the database for the same payments, newest first."""
    database = database_location(settings)
    return map(_parse_stored_plan, () if database is None else database.find_plans(payments_sha256(content)))


def _parse_stored_plan(stored: StoredPlan) -> SharedPlan:
    return SharedPlan(read_document(Path(stored.code), PlanDocument, data=stored.content.encode()), stored)


def newest_shared_plan(settings: Settings, document: PlanDocument) -> SharedPlan | None:
    """Return the newest version of a plan from the database, or None if the database does not have it."""
    for shared in _shared_plans(settings, document.content):
        if shared.document.digest() == document.digest():
            has_more_approvals = len(document.approvals) > len(shared.document.approvals)  # approved on another machine
            return replace(shared, document=document) if has_more_approvals else shared
    return None


def load_plan_by_code(settings: Settings, code: str) -> SharedPlan:
    """Return the newest plan with this code from the database. Raises `ApprovalError` if there is none."""
    database = database_location(settings)
    if database is None or (stored := database.newest_plan(code)) is None:
        raise ApprovalError(
            say("The journal's database has no plan {code}.", code=code),
            hint=say("Nothing was approved. First set [journal] url and make the plan with `paygw-batch plan`."),
        )
    return _parse_stored_plan(stored)


def _find_best_plan(
    submission: Submission, content: PlanContent, policy: ApprovalPolicy, now: datetime, withdrawn: Collection[str]
) -> PlanDocument | None:
    """Return the plan that ranks first: for `content`, not `withdrawn`, and with the most valid approvals."""
    settings, file = submission.source.settings, submission.plan
    if (code := parse_plan_code(settings, file)) is not None:
        return load_plan_by_code(settings, code).document
    plans = [read_document(file, PlanDocument)] if file.exists() else []
    plans += [shared.document for shared in _shared_plans(settings, content)]

    def rank_plan(plan: PlanDocument) -> tuple[bool, bool, int]:
        approval_count = len(verify_signatures(plan, policy, now).valid)
        return plan.content == content, plan.digest() not in withdrawn, approval_count

    return max(plans, key=rank_plan, default=None)
