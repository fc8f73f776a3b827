"""Decides who may do which action in the console. Any action that the table does not allow is refused."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from paygw_batch.approval.approval_keys import normalise_name
from paygw_batch.approval.policy import configured_people
from paygw_batch.errors import ConfigurationError
from paygw_batch.language import mark, say
from paygw_batch.settings.configuration import Settings
from paygw_batch.settings.sections import Keys


class Role(StrEnum):
    """A person's role in the console."""

    MAKER = mark("maker")
    APPROVER = mark("approver")
    AUDITOR = mark("auditor")
    ADMINISTRATOR = mark("administrator")

    @property
    def label(self) -> str:
        return say(self.value)


@dataclass(frozen=True, slots=True)
class Member:
    """A person who may use the console. A person with several keys is one member."""

    name: str
    roles: frozenset[Role]

    @property
    def sees_only_last_digits(self) -> bool:
        """Whether the person sees only the last digits of account numbers."""
        return not self.roles & {Role.MAKER, Role.APPROVER}


def role_lists(settings: Settings) -> list[tuple[Role, Mapping[str, Keys]]]:
    """Return the roles that `[console]` assigns, each with its people's keys."""
    return [(role, people) for role in Role if (people := getattr(settings.console, f"{role}s", None)) is not None]


def load_members(settings: Settings) -> tuple[Member, ...]:
    """Return everyone who may use the console. Raises `ConfigurationError` if nobody may, or if roles conflict."""
    people = configured_people(settings).listed
    members = {
        normalise_name(person.name): Member(
            person.name,
            frozenset(
                role for role, holds in ((Role.MAKER, person.is_maker), (Role.APPROVER, person.is_approver)) if holds
            ),
        )
        for person in people
    }
    for role, names in role_lists(settings):
        for name in names:
            if members.setdefault(normalise_name(name), Member(name.strip(), frozenset({role}))).roles != {role}:
                raise ConfigurationError(
                    say("{name} is listed as {role} and also in another role.", name=name, role=role),
                    hint=say(
                        "People who prepare or approve payouts cannot audit or administer them. List each person only "
                        "once."
                    ),
                )
    return tuple(sorted(members.values(), key=lambda member: member.name.casefold()))


class Action(StrEnum):
    """An action in the console that needs permission."""

    LOOK = "look"
    """View payouts, rows and sheets in preparation."""
    SEE_SHEET = "see_sheet"
    """View a sheet in preparation with its payees' accounts."""
    PREPARE = "prepare"
    """Upload a sheet."""
    CORRECT = "mend"
    """Change a sheet in preparation: correct a cell, leave a row out, sign the plan, or withdraw it."""
    APPROVE = "approve"
    """Approve a payout that another person signed, or send it back."""
    START = "start"
    """Start, continue or pause the sending of an approved payout."""
    SETTLE = "settle"
    """Settle a row as paid, read a statement of the gateway, or carry out an order that two people agreed to."""
    ORDER = "order"
    """Draft, sign or withdraw an order that lets rows be sent again."""
    AGREE = "agree"
    """Agree to an order that another person signed, or send it back."""
    DOWNLOAD = "download"
    """Download files with the names and accounts of payees."""
    STAY = "stay"
    """Stay signed in and sign out."""
    ADMINISTER = "administer"
    """View people, keys and the health of the program."""
    CHECK = "check"
    """Start a check of the program."""


_ROLES: Mapping[Action, frozenset[Role]] = MappingProxyType(
    {
        Action.LOOK: frozenset({Role.MAKER, Role.APPROVER, Role.AUDITOR}),
        Action.SEE_SHEET: frozenset({Role.MAKER, Role.APPROVER}),
        Action.PREPARE: frozenset({Role.MAKER}),
        Action.CORRECT: frozenset({Role.MAKER}),
        Action.APPROVE: frozenset({Role.APPROVER}),
        Action.START: frozenset({Role.MAKER, Role.APPROVER}),
        Action.SETTLE: frozenset({Role.MAKER, Role.APPROVER}),
        Action.ORDER: frozenset({Role.MAKER}),
        Action.AGREE: frozenset({Role.APPROVER}),
        Action.DOWNLOAD: frozenset({Role.MAKER, Role.APPROVER}),
        Action.CHECK: frozenset({Role.MAKER, Role.APPROVER, Role.ADMINISTRATOR}),
        Action.STAY: frozenset(Role),
        Action.ADMINISTER: frozenset({Role.MAKER, Role.APPROVER, Role.AUDITOR, Role.ADMINISTRATOR}),
    }
)
"""The roles that may do each action. Anything else is refused."""


def may(member: Member, action: Action, maker: str | None = None) -> bool:
    """Return whether a person may do an action. `maker` is who prepared the payout or order, if any.

    Only the maker may change a payout or order, and only other people may approve it.
    """
    if not member.roles & _ROLES.get(action, frozenset()):
        return False
    if maker is None:
        return True
    match action:
        case Action.CORRECT | Action.ORDER:
            return member.name == maker
        case Action.APPROVE | Action.AGREE:
            return member.name != maker
        case _:
            return True
