"""Determines who may prepare and approve, and identifies the person who runs a command."""

import os
import pwd
from pathlib import Path

from paygw_batch.approval.approval_keys import (
    ApprovalKey,
    People,
    Person,
    PublicKey,
    RelyingParty,
    build_people,
    load_approval_key,
)
from paygw_batch.approval.signed_document import ApprovalPolicy, require_reachable_approval
from paygw_batch.core.shown_states import LOGIN
from paygw_batch.errors import ApprovalError, ConfigurationError, UsageError
from paygw_batch.language import say
from paygw_batch.settings.configuration import Settings


def approval_policy(settings: Settings) -> ApprovalPolicy | None:
    """Return the approval policy, if any. Raises `ConfigurationError` if people conflict or no approval is possible."""
    section = settings.approval
    if not section.approvers:
        return None
    people = build_people(section.makers, section.approvers)
    policy = ApprovalPolicy(section.needed, section.from_amount, section.expires_h, people, relying_party(settings))
    require_reachable_approval(policy)
    return policy


def relying_party(settings: Settings) -> RelyingParty | None:
    """Return the console as a relying party, or None if its address is not configured."""
    return None if settings.console.origin is None else RelyingParty(settings.console.origin)


def require_policy(settings: Settings) -> ApprovalPolicy:
    """Return the approval policy. Raises `ConfigurationError` if no approvals are configured."""
    if (policy := approval_policy(settings)) is None:
        raise ConfigurationError(
            say("The configuration has no [approval] section."),
            hint=say("It lists who may prepare and who may approve, with their keys."),
        )
    return policy


def configured_people(settings: Settings) -> People:
    """Return all makers and approvers. Raises `ConfigurationError` if there are none or their keys conflict."""
    section = settings.approval
    return build_people(section.makers, section.approvers) if section.approvers else require_policy(settings).people


def require_maker(key: PublicKey, policy: ApprovalPolicy, hint: str) -> Person:
    """Return the maker who holds `key`. Raises `ApprovalError` if there is none."""
    if (maker := policy.people.find_maker(key)) is None:
        raise ApprovalError(say("The configuration does not list this key under makers."), hint=hint)
    return maker


def default_plan_path(sheet: Path) -> Path:
    """Return the default path of a sheet's plan, next to the sheet."""
    return sheet.parent / f"{sheet.stem}.plan.json"


MAX_CHARS = 2_000
"""The maximum length of evidence or of a name."""


def identify_person(name: str | None) -> str:
    """Return the login name of this process's user (not from the environment), after any `name`."""
    try:
        login = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        login = f"uid {os.getuid()}"
    return login if name is None else f"{require_line(name, '--by')}{LOGIN}{login})"


def require_line(text: str, name: str) -> str:
    """Return `text` without surrounding spaces. Raises `UsageError` if it is empty, too long or has several lines."""
    line = text.strip()
    if not line or not line.isprintable() or len(line) > MAX_CHARS:
        raise UsageError(
            say(
                "{what} must be one line of at most {max_words:,} characters.",
                what=name,
                max_words=MAX_CHARS,
            )
        )
    return line


def load_sandbox_key(settings: Settings, name: str) -> ApprovalKey | None:
    """Return a person's sandbox key, if there is one and the gateway is the sandbox."""
    folder = settings.console.sandbox_keys
    if folder is None or not settings.uses_sandbox:
        return None
    path = folder / f"{name}.pem"
    return load_approval_key(path, None) if path.parent == folder and path.exists() else None
