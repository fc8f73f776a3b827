"""A person's answers to the open questions of a sheet."""

from dataclasses import dataclass, replace

from paygw_batch.errors import Asked


@dataclass(frozen=True, slots=True)
class SheetAnswers:
    """The answers, each by the name of its question (`errors.Asked`); None: not asked."""

    reference: str | None = None
    worksheet: str | None = None
    encoding: str | None = None

    def to(self, asks: Asked, answer: str) -> "SheetAnswers":
        """Return the answers with one more."""
        return replace(self, **{asks.value: answer})


NO_ANSWERS = SheetAnswers()
