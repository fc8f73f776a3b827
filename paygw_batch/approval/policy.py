"""Determines from the settings who may prepare and who may approve, and identifies the person giving a command."""

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
    """Return the approval policy, or None if the configuration requires no approval.

    Raises `ConfigurationError` if people cannot be distinguished, or if nothing could ever be approved.
    """
    section = settings.approval
    if not section.approvers:
        return None
    people = build_people(section.makers, section.approvers)
    policy = ApprovalPolicy(section.needed, section.from_amount, section.expires_h, people, relying_party(settings))
    require_reachable_approval(policy)
    return policy


def relying_party(settings: Settings) -> RelyingParty | None:
    """Return the console's relying party, or None if the configuration has no address of the console."""
    return None if settings.console.origin is None else RelyingParty(settings.console.origin)


def require_policy(settings: Settings) -> ApprovalPolicy:
    """Return the approval policy. Raises `ConfigurationError` if the configuration has none."""
    policy = approval_policy(settings)
    if policy is None:
        raise ConfigurationError(
            say("The configuration has no [approval]."),
            hint=say("It lists who may prepare and who may approve, with their keys."),
        )
    return policy


def configured_people(settings: Settings) -> People:
    """Return all configured makers and approvers, even if nothing could be approved yet.

    Raises `ConfigurationError` if the configuration names nobody, or if people cannot be distinguished.
    """
    section = settings.approval
    return build_people(section.makers, section.approvers) if section.approvers else require_policy(settings).people


def require_maker(key: PublicKey, policy: ApprovalPolicy, nothing_made: str) -> Person:
    """Return the person who prepares with `key`. Raises `ApprovalError` if the policy has no such person."""
    maker = policy.people.maker_with(key)
    if maker is None:
        raise ApprovalError(say("The configuration does not list this key under makers."), hint=nothing_made)
    return maker


def default_plan_path(sheet: Path) -> Path:
    """Return the default path of a sheet's plan, next to the sheet."""
    return sheet.parent / f"{sheet.stem}.plan.json"


MAX_WORDS = 2_000
"""The maximum number of characters of evidence or of a name."""


def identify_person(name: str | None) -> str:
    """Return who decides: this process's login, which the environment cannot change, and the given name, if any.

    The login is that of the account. People who share an account are distinguished only by their --by names.
    """
    try:
        login = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        login = f"uid {os.getuid()}"
    return login if name is None else f"{require_line(name, '--by')}{LOGIN}{login})"


def require_line(text: str, name: str) -> str:
    """Return a person's text without surrounding spaces. Raises `UsageError` unless it is one line."""
    words = text.strip()
    if not words or not words.isprintable() or len(words) > MAX_WORDS:
        raise UsageError(
            say("{what} must be one line of text, of at most {max_words:,} characters.", what=name, max_words=MAX_WORDS)
        )
    return words


def load_sandbox_key(settings: Settings, name: str) -> ApprovalKey | None:
    """Return a person's private key in the sandbox, or None if the gateway is real or the person has no key."""
    folder = settings.console.sandbox_keys
    if folder is None or not settings.uses_sandbox:
        return None
    path = folder / f"{name}.pem"
    if path.parent != folder or not path.exists():
        return None
    return load_approval_key(path, None)
