"""Decides who may do which actions on the pages: a table allows some, and all others are refused."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from paygw_batch.approval.approval_keys import plain_name
from paygw_batch.approval.policy import listed_people
from paygw_batch.errors import ConfigurationError
from paygw_batch.language import mark, say
from paygw_batch.settings.configuration import Settings
from paygw_batch.settings.sections import Keys


class Role(StrEnum):
    """The role of a person on these pages."""

    MAKER = mark("maker")
    APPROVER = mark("approver")
    AUDITOR = mark("auditor")
    ADMINISTRATOR = mark("administrator")

    @property
    def shown(self) -> str:
        return say(self.value)


@dataclass(frozen=True, slots=True)
class Member:
    """A person who may use the pages. A member is one person, even with several keys."""

    name: str
    roles: frozenset[Role]

    @property
    def is_masked(self) -> bool:
        """Whether this person sees only the last digits of account numbers."""
        return not self.roles & {Role.MAKER, Role.APPROVER}


def console_lists(settings: Settings) -> list[tuple[Role, Mapping[str, Keys]]]:
    """Return each role that has a list of people in `[console]`, with the list."""
    return [(role, people) for role in Role if (people := getattr(settings.console, f"{role}s", None)) is not None]


def members_of(settings: Settings) -> tuple[Member, ...]:
    """Return all who may use the pages. Raises `ConfigurationError` if the lists are empty or contradictory."""
    people = listed_people(settings).listed
    members = {
        plain_name(person.name): Member(
            person.name,
            frozenset(
                role for role, is_one in ((Role.MAKER, person.is_maker), (Role.APPROVER, person.is_approver)) if is_one
            ),
        )
        for person in people
    }
    for role, names in console_lists(settings):
        for name in names:
            if members.setdefault(plain_name(name), Member(name.strip(), frozenset({role}))).roles != {role}:
                raise ConfigurationError(
                    say("{name} is listed as {role} and in another role.", name=name, role=role),
                    hint=say(
                        "People who prepare or approve payouts can't audit or administer them. Name each person once."
                    ),
                )
    return tuple(sorted(members.values(), key=lambda member: member.name.casefold()))


class Act(StrEnum):
    """The action that a request asks for."""

    LOOK = "look"
    """Look at payouts, rows and sheets in preparation."""
    SEE_SHEET = "see_sheet"
    """See a sheet in preparation with its payees' accounts."""
    PREPARE = "prepare"
    """Upload a sheet."""
    MEND = "mend"
    """Change a sheet in preparation: correct a cell, leave a row out, sign the plan, or withdraw it."""
    APPROVE = "approve"
    """Approve a payout that another person signed, or send it back."""
    START = "start"
    """Start, continue or pause the sending of an approved payout."""
    SETTLE = "settle"
    """Settle a row as paid, read a statement of the gateway, or carry out an order that two people agreed to."""
    ORDER = "order"
    """Draft, sign or take back an order that lets rows be sent again."""
    AGREE = "agree"
    """Agree to an order that another person signed, or send it back."""
    DOWNLOAD = "download"
    """Download files that name payees with their accounts."""
    STAY = "stay"
    """Stay signed in, and sign out."""
    ADMINISTER = "administer"
    """See people, keys and the health of the program."""
    CHECK = "check"
    """Have the program check itself."""


_ROLES: Mapping[Act, frozenset[Role]] = MappingProxyType(
    {
        Act.LOOK: frozenset({Role.MAKER, Role.APPROVER, Role.AUDITOR}),
        Act.SEE_SHEET: frozenset({Role.MAKER, Role.APPROVER}),
        Act.PREPARE: frozenset({Role.MAKER}),
        Act.MEND: frozenset({Role.MAKER}),
        Act.APPROVE: frozenset({Role.APPROVER}),
        Act.START: frozenset({Role.MAKER, Role.APPROVER}),
        Act.SETTLE: frozenset({Role.MAKER, Role.APPROVER}),
        Act.ORDER: frozenset({Role.MAKER}),
        Act.AGREE: frozenset({Role.APPROVER}),
        Act.DOWNLOAD: frozenset({Role.MAKER, Role.APPROVER}),
        Act.CHECK: frozenset({Role.MAKER, Role.APPROVER, Role.ADMINISTRATOR}),
        Act.STAY: frozenset(Role),
        Act.ADMINISTER: frozenset({Role.MAKER, Role.APPROVER, Role.AUDITOR, Role.ADMINISTRATOR}),
    }
)
"""The roles that may do each action. Any other action or role is refused."""


def may(member: Member, act: Act, maker: str | None = None) -> bool:
    """Return whether a person may do an action. `maker` prepared the payout or order that the action is about, if any.

    Each payout or order has one maker, who must not approve it. Nobody else may change it.
    """
    if not member.roles & _ROLES.get(act, frozenset()):
        return False
    if maker is None:
        return True
    match act:
        case Act.MEND | Act.ORDER:
            return member.name == maker
        case Act.APPROVE | Act.AGREE:
            return member.name != maker
        case _:
            return True
