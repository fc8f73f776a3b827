"""Why a notice could not be delivered, as a value and as the code that the outbox keeps."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Self


class TroubleKind(StrEnum):
    """The reasons."""

    NOT_REACHED = "not_reached"
    NO_ANSWER = "no_answer"
    UNTRUSTED = "untrusted"
    NOT_ENCRYPTED = "not_encrypted"
    SIGN_IN = "sign_in"
    REFUSED = "refused"
    BROKEN = "broken"
    NOT_CONFIGURED = "not_configured"


@dataclass(frozen=True, slots=True)
class Trouble:
    """A reason, with the code of the server's answer (0: it gave none)."""

    kind: TroubleKind
    answer: int = 0

    @property
    def code(self) -> str:
        """The text that the outbox keeps: `refused 550`. A server's own words never enter the journal."""
        return f"{self.kind} {self.answer}" if self.answer else self.kind.value

    @classmethod
    def of_code(cls, code: str) -> Self:
        """Return the trouble that a code says; one that is not known was broken off."""
        kind, _, answer = code.partition(" ")
        is_known = kind in frozenset(TroubleKind)
        return cls(TroubleKind(kind) if is_known else TroubleKind.BROKEN, int(answer) if answer.isdecimal() else 0)
