"""The checks of `doctor`: each room and each extra makes its own."""

from dataclasses import dataclass
from enum import StrEnum

from paygw_batch.errors import ConfigurationError, PaygwError
from paygw_batch.language import mark, say
from paygw_batch.show.summary import ExitCode


class Health(StrEnum):
    """The result of a check."""

    GOOD = mark("ok")
    WARNING = mark("look")
    BAD = mark("wrong")


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """One check and its result.

    `what` is a marked name, and `of` its subject: a country, a person. `code` is the exit code if the check fails.
    """

    what: str
    health: Health
    found: str
    code: ExitCode = ExitCode.USAGE
    of: str = ""

    @classmethod
    def failed(cls, what: str, error: PaygwError, code: ExitCode = ExitCode.USAGE) -> "HealthCheck":
        """Return the failed check for an error, with its hint."""
        hint = "" if error.hint == say(ConfigurationError.default_hint) else error.hint  # it names this very command
        return cls(what, Health.BAD, f"{error.message} {hint}".strip(), code)
