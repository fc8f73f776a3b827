"""What plan and approve share: the policy they need, the key they use, and how a plan is shown."""

import os
from pathlib import Path

from paygw_batch.cli.render import Screen
from paygw_batch.compose.approval import policy_of
from paygw_batch.compose.parts import PAYIN
from paygw_batch.errors import ConfigurationError
from paygw_batch.run.approval import ApprovalPolicy, PlanDocument
from paygw_batch.run.approval_keys import ApprovalKey, load_approval_key
from paygw_batch.settings import Settings

SHOWN_FINDINGS = 20
"""How many findings are listed on a screen."""
PASSPHRASE = "PAYGW_APPROVAL_PASSPHRASE"  # noqa: S105 (the name of a variable, not a secret)


def required_policy(settings: Settings) -> ApprovalPolicy:
    """Return the policy of a configuration that must have one."""
    policy = policy_of(settings)
    if policy is None:
        raise ConfigurationError(
            "The configuration has no [approval].", hint="It names who may prepare and who may approve, by their keys."
        )
    return policy


def own_key(path: Path) -> ApprovalKey:
    """Return the key of whoever runs this command."""
    passphrase = os.environ.get(PASSPHRASE)
    return load_approval_key(path, None if passphrase is None else passphrase.encode())


def show_plan(screen: Screen, document: PlanDocument, settings: Settings) -> None:
    """Show what a plan would pay, what an approver should know, and who has approved it."""
    content = document.content
    people = {key: name for name, key in [*settings.approval.makers.items(), *settings.approval.approvers.items()]}
    left_out = f", {content.invalid:,} of them left out" if content.invalid else ""
    replacing = f", {content.amended:,} of them replacing earlier payments" if content.amended else ""
    does = "to collect from customers" if content.operation == PAYIN else "to pay out"
    screen.say(f"{content.sheet}: {content.rows:,} rows{left_out}{replacing}, {does} at {content.endpoint}.")
    screen.table("", ("currency", "sum"), list(content.totals.items()))
    if document.findings:
        screen.say(f"{len(document.findings):,} things to look at:")
    for finding in document.findings[:SHOWN_FINDINGS]:
        screen.say(f"- {finding.message}")
    if len(document.findings) > SHOWN_FINDINGS:
        screen.say(f"... and {len(document.findings) - SHOWN_FINDINGS:,} more, in the plan.")
    screen.say(f"Prepared by {people.get(document.maker, 'an unknown key')} at {document.made_at}.")
    for approval in document.approvals:
        screen.say(f"Approved by {people.get(approval.key, 'an unknown key')} at {approval.approved_at}.")


def plan_told(document: PlanDocument) -> dict[str, object]:
    """Return what --json tells of a plan."""
    return {
        "operation": document.content.operation,
        "plan_sha256": document.digest(),
        "findings": [finding.model_dump() for finding in document.findings],
        "approvals": len(document.approvals),
    }
