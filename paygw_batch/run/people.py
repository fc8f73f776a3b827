"""Lists who may prepare and who may approve: people, each with one key or several.

A person is a name and every key under it. Names that look the same are one name, and two names cannot share a key.
"""

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from paygw_batch.errors import ConfigurationError
from paygw_batch.run.approval_keys import PublicKey, read_public_key

Listed = Mapping[str, str | Sequence[str]]
"""People as the configuration lists them: name -> public key, or several."""

_HOW_TO_SHOW_ONE = (
    "It is the line between BEGIN and END of `openssl pkey -in approval.pem -pubout`, or the line that the console "
    "shows when a passkey is made."
)
_BLANKS = str.maketrans(dict.fromkeys("\u115f\u1160\u2800", " "))
"""Characters that look like a blank, though Unicode calls them letters or symbols."""
_INVISIBLE = frozenset(
    "\u034f\u17b4\u17b5\u180b\u180c\u180d\u180f" + "".join(map(chr, (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))))
)
"""Marks that show nothing."""


@dataclass(frozen=True, slots=True)
class Person:
    """A person by name, with the keys that may prepare and the keys that may approve."""

    name: str
    maker_keys: tuple[PublicKey, ...]
    approver_keys: tuple[PublicKey, ...]

    @property
    def keys(self) -> frozenset[PublicKey]:
        """All keys of the person."""
        return frozenset((*self.maker_keys, *self.approver_keys))


@dataclass(frozen=True, slots=True)
class People:
    """The people that the configuration names."""

    listed: tuple[Person, ...]

    def owner_of(self, key: PublicKey) -> Person | None:
        """Return the person that a key belongs to."""
        return next((person for person in self.listed if key in person.keys), None)

    def maker_with(self, key: PublicKey) -> Person | None:
        """Return who may prepare with this key."""
        return next((person for person in self.listed if key in person.maker_keys), None)

    def approver_with(self, key: PublicKey) -> Person | None:
        """Return who may approve with this key."""
        return next((person for person in self.listed if key in person.approver_keys), None)

    @property
    def makers(self) -> Sequence[Person]:
        """Everyone who may prepare."""
        return [person for person in self.listed if person.maker_keys]

    def approvers_for(self, maker: Person) -> Sequence[Person]:
        """Return everyone who may approve a document that `maker` prepared: never the maker, under any key."""
        return [person for person in self.listed if person.approver_keys and person != maker]


def plain_name(name: str) -> str:
    """Return the form in which names are compared: two names that a person reads as the same have the same.

    NFKC and case folding, no invisible characters, single blanks.
    """
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold()).translate(_BLANKS)
    shown = [one for one in folded if one.isspace() or not _is_invisible(one)]
    return " ".join(unicodedata.normalize("NFC", "".join(shown)).split())


def _shown(name: str) -> str:
    """Return a name as it is shown and noted: on one line, without unprintable characters."""
    return " ".join("".join(one for one in name if one.isspace() or one.isprintable()).split())


def _is_invisible(one: str) -> bool:
    return one in _INVISIBLE or unicodedata.category(one).startswith("C")


def people_of(makers: Listed, approvers: Listed) -> People:
    """Return the people that a configuration lists.

    Raises `ConfigurationError` for a name or a key that is none, and for two names that share a key.
    """
    names: dict[str, str] = {}
    keys: dict[str, dict[str, list[PublicKey]]] = {}
    for section, listed in (("makers", makers), ("approvers", approvers)):
        for name, texts in listed.items():
            plain = plain_name(name)
            if not plain:
                raise ConfigurationError(f"A name in [approval.{section}] is empty.", hint="Write who has the key.")
            names.setdefault(plain, _shown(name))
            of_person = keys.setdefault(plain, {"makers": [], "approvers": []})
            of_person[section] += _read_keys(section, name, texts)
    people = tuple(
        Person(names[plain], tuple(of_person["makers"]), tuple(of_person["approvers"]))
        for plain, of_person in keys.items()
    )
    _refuse_shared_keys(people)
    return People(people)


def _read_keys(section: str, name: str, texts: str | Sequence[str]) -> Iterator[PublicKey]:
    for text in [texts] if isinstance(texts, str) else texts:
        key = read_public_key(text)
        if key is None:
            raise ConfigurationError(
                f"approval.{section}.{name} is no public key of a person (Ed25519, P-256, or RSA from 2048 bits).",
                hint=_HOW_TO_SHOW_ONE,
            )
        yield key


def _refuse_shared_keys(people: Sequence[Person]) -> None:
    owners: dict[PublicKey, Person] = {}
    for person in people:
        for key in person.keys:
            other = owners.setdefault(key, person)
            if other is not person:
                raise ConfigurationError(
                    f"[approval] lists one key under two names, {other.name} and {person.name} (fingerprint "
                    f"{key.fingerprint}): they would be one person.",
                    hint="List each key under the name of the one person who has it.",
                )
