"""The health checks of `doctor`, contributed by packages and extras."""

from dataclasses import dataclass
from enum import StrEnum

from paygw_batch.errors import ConfigurationError, PaygwError
from paygw_batch.language import mark, say
from paygw_batch.show.summary import ExitCode


class Health(StrEnum):
    """The result of a check."""

    GOOD = mark("ok")
    WARNING = mark("warning")
    BAD = mark("wrong")


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """A check by `doctor` and its result.

    `name` is translated when it is shown. `subject` is a country or person, if any. `message` describes the result, and
    `code` is the exit code if the check fails.
    """

    name: str
    health: Health
    message: str
    code: ExitCode = ExitCode.USAGE
    subject: str = ""

    @classmethod
    def failed(cls, name: str, error: PaygwError, code: ExitCode = ExitCode.USAGE) -> "HealthCheck":
        """Return a failed check with an error's message and hint."""
        # Leave out the default hint, which says to run `doctor`.
        hint = "" if error.hint == say(ConfigurationError.default_hint) else error.hint
        return cls(name, Health.BAD, f"{error.message} {hint}".strip(), code)
