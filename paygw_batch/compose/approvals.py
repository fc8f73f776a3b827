"""Checks that a second person gave each approval that the configuration asks for."""

from collections.abc import Sequence
from pathlib import Path

from paygw_batch.clock import Now
from paygw_batch.compose.operations import minor_units_of
from paygw_batch.compose.shared_plans import best_plan
from paygw_batch.countries.load import minor_units_by_currency
from paygw_batch.countries.rules import Rules
from paygw_batch.errors import ApprovalError, ConfigurationError
from paygw_batch.journal import BatchRecord, JournalReader
from paygw_batch.language import say
from paygw_batch.run.approval import NOT_ASKED_FOR, Approved, check_plan, content_of, needs_approval
from paygw_batch.run.approval_keys import PublicKey
from paygw_batch.run.orders.ordered_batch import RowOrder, batch_of_order, require_true
from paygw_batch.run.passkey import RelyingParty
from paygw_batch.run.people import Person, people_of
from paygw_batch.run.resolve import Settlement, needs_second_person, standings_of
from paygw_batch.run.signed_document import ApprovalPolicy, check_reachable
from paygw_batch.run.submit import Plan
from paygw_batch.settings.configuration import Settings


def policy_of(settings: Settings) -> ApprovalPolicy | None:
    """Return the approval policy, or None where the configuration asks for no approval.

    Raises `ConfigurationError` when the people are not told apart, or nothing could ever be approved.
    """
    section = settings.approval
    if not section.approvers:
        return None
    people = people_of(section.makers, section.approvers)
    policy = ApprovalPolicy(section.needed, section.from_amount, section.expires_h, people, party_of(settings))
    check_reachable(policy)
    return policy


def party_of(settings: Settings) -> RelyingParty | None:
    """Return the console as passkeys know it, or None where the configuration does not say its address."""
    return None if settings.console.origin is None else RelyingParty(settings.console.origin)


def required_policy(settings: Settings) -> ApprovalPolicy:
    """Return the policy. Raises `ConfigurationError` where the configuration has none."""
    policy = policy_of(settings)
    if policy is None:
        raise ConfigurationError(
            say("The configuration has no [approval]."),
            hint=say("It names who may prepare and who may approve, by their keys."),
        )
    return policy


def known_maker(key: PublicKey, policy: ApprovalPolicy, nothing_made: str) -> Person:
    """Return who prepares with `key`. Raises `ApprovalError` when the policy knows nobody who does."""
    maker = policy.people.maker_with(key)
    if maker is None:
        raise ApprovalError(say("This key is not among [approval.makers] of the configuration."), hint=nothing_made)
    return maker


def needs_order(
    settings: Settings, journal: JournalReader, batch: BatchRecord, settlements: Sequence[Settlement]
) -> Sequence[int]:
    """Return the rows that no person may settle so alone. Where approvals are asked for, the sum does not matter."""
    if policy_of(settings) is None:
        return []
    standings = standings_of(journal, batch, {one.row for one in settlements})
    found = ((one, standings.get(one.row)) for one in settlements)
    return [one.row for one, row in found if row is not None and needs_second_person(row.state, one.resolution)]


def order_problem(settings: Settings, journal: JournalReader, order: RowOrder) -> str:
    """Return why an order about rows holds no longer; empty where it does. Signatures are not looked at."""
    try:
        batch = batch_of_order(order, journal, settings.endpoint())
        units = minor_units_by_currency()
        require_true(order, journal, batch, endpoint=settings.endpoint(), minor_units=units)
    except ApprovalError as error:
        return error.message
    return ""


def default_plan(sheet: Path) -> Path:
    """Return where the plan of a sheet is looked for: beside it."""
    return sheet.with_name(f"{sheet.stem}.plan.json")


def require_approval(
    settings: Settings, rules: Rules, planned: Plan, file: Path, journal: JournalReader, now: Now
) -> Approved:
    """Return who prepared and approved the batch that `planned` would open in `journal`, where that needs approval.

    What the journal has already was approved when its batch was opened. Raises `ApprovalError` when the plan in `file`
    has not enough valid approvals over exactly this, or has opened another batch.
    """
    policy = policy_of(settings)
    if policy is None or planned.existing is not None:
        return NOT_ASKED_FOR
    content = content_of(
        planned,
        endpoint=settings.endpoint(),
        journal_id=journal.head().journal_id,
        operation=planned.validated.sheet.operation,
        minor_units=minor_units_of(rules),
    )
    if not needs_approval(content, policy):
        return NOT_ASKED_FOR
    document = best_plan(settings, content, file, policy, now())
    if document is None:
        raise ApprovalError(
            say("This needs approval, and there is no plan at {file}.", file=file),
            hint=say(
                "Nothing was sent. `paygw-batch plan SHEET --out PLAN --key KEY` makes one; another person approves."
            ),
        )
    opened = next(iter(journal.batches(plan_sha256=document.digest())), None)
    return check_plan(document, content, policy, now(), used=opened)
