"""A plan that is kept in a database, where people on several hosts approve it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KeptPlan:
    """A plan as it was kept last: the whole document as text, signed. Each approval is a version more."""

    number: int
    version: int
    code: str
    content: str
