"""The values of health checks, which each folder and each extra makes for `doctor`."""

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
    """One check of `doctor` and its result.

    `what` is the check's name, marked for the catalogue, and `of` its subject: a country or a person. `found` is a
    sentence about the result. `code` is the exit code if the check fails.
    """

    what: str
    health: Health
    found: str
    code: ExitCode = ExitCode.USAGE
    of: str = ""

    @classmethod
    def failed(cls, what: str, error: PaygwError, code: ExitCode = ExitCode.USAGE) -> "HealthCheck":
        """Return a failed check for an error. Its sentence is the error's message and hint."""
        hint = "" if error.hint == say(ConfigurationError.default_hint) else error.hint  # it names `doctor`
        return cls(what, Health.BAD, f"{error.message} {hint}".strip(), code)
