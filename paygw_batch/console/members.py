"""Lists who may use the pages, in which role: makers and approvers of `[approval]`, and those of `[console]`."""

from dataclasses import dataclass
from enum import StrEnum

from paygw_batch.errors import ConfigurationError
from paygw_batch.language import mark, say
from paygw_batch.run.approval_keys import plain_name
from paygw_batch.settings.configuration import Settings
from paygw_batch.wiring.approvals import listed_people


class Role(StrEnum):
    """The role of a person on these pages."""

    MAKER = mark("maker")
    APPROVER = mark("approver")
    AUDITOR = mark("auditor")
    ADMINISTRATOR = mark("administrator")

    @property
    def shown(self) -> str:
        """The name of the role, for people."""
        return say(self.value)


@dataclass(frozen=True, slots=True)
class Member:
    """A person who may use the pages. The identity is the person, and not a key."""

    name: str
    roles: frozenset[Role]

    @property
    def is_masked(self) -> bool:
        """Whether account numbers are shown to this person by their last digits alone."""
        return not self.roles & {Role.MAKER, Role.APPROVER}


def members_of(settings: Settings) -> tuple[Member, ...]:
    """Return everyone who may use the pages. Raises `ConfigurationError` if two lists contradict each other."""
    people = listed_people(settings).listed
    found = {
        plain_name(person.name): Member(
            person.name,
            frozenset(
                role for role, is_one in ((Role.MAKER, person.is_maker), (Role.APPROVER, person.is_approver)) if is_one
            ),
        )
        for person in people
    }
    listed = ((Role.AUDITOR, settings.console.auditors), (Role.ADMINISTRATOR, settings.console.administrators))
    for role, names in listed:
        for name in names:
            if found.setdefault(plain_name(name), Member(name.strip(), frozenset({role}))).roles != {role}:
                raise ConfigurationError(
                    say("{name} is listed as {role} and in another role.", name=name, role=role),
                    hint=say(
                        "People who prepare or approve payouts can't audit or administer them. Name each person once."
                    ),
                )
    return tuple(sorted(found.values(), key=lambda member: member.name.casefold()))
