"""Two pairs of eyes: what the configuration asks for, and whether a submission has it."""

from dataclasses import dataclass
from pathlib import Path

from paygw_batch.compose.parts import minor_units_of
from paygw_batch.countries.rules import Rules
from paygw_batch.errors import ApprovalError
from paygw_batch.run.approval import (
    ApprovalPolicy,
    check_approvals,
    check_people,
    content_of,
    needs_approval,
    read_plan,
)
from paygw_batch.run.ports import Now
from paygw_batch.run.submit import Plan
from paygw_batch.settings import Settings


def policy_of(settings: Settings) -> ApprovalPolicy | None:
    """Return who may approve and what needs it, or None where the configuration asks for no second pair of eyes."""
    section = settings.approval
    if not section.approvers:
        return None
    policy = ApprovalPolicy(section.needed, section.from_amount, section.expires_h, section.makers, section.approvers)
    check_people(policy)
    return policy


def default_plan(sheet: Path) -> Path:
    """Return where the plan of a sheet is looked for: beside it."""
    return sheet.with_name(f"{sheet.stem}.plan.json")


@dataclass(frozen=True, slots=True)
class Approved:
    """Who prepared and approved a plan, a sentence for each; empty when it needs no approval.

    `repeats_meant` is the batch that the sheet is meant to repeat, as its maker said and the others approved.
    """

    said: tuple[str, ...] = ()
    repeats_meant: str = ""


def require_approval(settings: Settings, rules: Rules, planned: Plan, file: Path, now: Now) -> Approved:
    """Return who prepared and approved what `planned` would open.

    What the journal has already was approved when its batch was opened. Raises `ApprovalError` when the plan in `file`
    has not enough valid approvals over exactly this.
    """
    policy = policy_of(settings)
    if policy is None or planned.existing is not None:
        return Approved()
    operation = planned.validated.sheet.operation
    content = content_of(planned, endpoint=settings.endpoint(), operation=operation, minor_units=minor_units_of(rules))
    if not needs_approval(content, policy):
        return Approved()
    if not file.exists():
        raise ApprovalError(
            f"This needs approval, and there is no plan at {file}.",
            hint="Nothing was sent. `paygw-batch plan SHEET --out PLAN --key KEY` makes one; another person approves.",
        )
    document = read_plan(file)
    return Approved(tuple(check_approvals(document, content, policy, now())), document.repeats_meant)
