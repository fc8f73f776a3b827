"""Parses cover notes: small files next to a sheet that set options of `submit`."""

import tomllib
from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import AfterValidator, Field, ValidationError

from paygw_batch.core.batch import ControlTotals
from paygw_batch.countries.data import nearest, validation_message
from paygw_batch.errors import SheetError
from paygw_batch.language import mark, say
from paygw_batch.settings.sections import AmountText, Encoding, Names, Numbers, Section

MAX_NOTE_BYTES = 64 * 1024
_HINT = mark(
    "Nothing was sent. Correct the cover note (docs/cron.md lists its keys), then drop it again with the sheet."
)


def _validate_line(text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise ValueError(say("this must be one line of text"))
    return text


_Text = Annotated[str, Field(min_length=1, max_length=200)]


class CoverNote(Section):
    """The values in a cover note. Each key is an option of `submit`."""

    worksheet: _Text | None = None
    reference: _Text | None = None
    expect_rows: Annotated[int, Field(ge=0)] | None = None
    expect_total: Annotated[
        Mapping[Annotated[str, Field(pattern="^[A-Z]{3}$")], AmountText], Field(min_length=1, validate_default=False)
    ] = Field(default_factory=dict)
    column_profile: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,200}$")] | None = None
    """The name of a profile. It cannot be a path, because the file would be in the drop folder."""
    encoding: Encoding | None = None
    numbers: Numbers | None = None
    names: Names | None = None
    skip_invalid: bool = False
    """If False, the command's own option applies."""
    amend: bool = False
    strict: bool = False
    repeats_meant: bool = False
    new_payees: Sequence[_Text] = ()
    urgent: bool = False
    by: Annotated[str, AfterValidator(_validate_line)] | None = None

    @property
    def totals(self) -> ControlTotals:
        return ControlTotals(self.expect_rows, self.expect_total)


def parse_cover_note(content: bytes, name: str) -> CoverNote:
    """Parse the cover note `name`. Raises `SheetError`, naming all wrong keys."""
    if len(content) > MAX_NOTE_BYTES:
        raise SheetError(say("{name} is too large to be a cover note.", name=name), hint=say(_HINT))
    try:
        values = tomllib.loads(content.decode())
        if not values:
            raise SheetError(say("The cover note {name} is empty.", name=name), hint=say(_HINT))
        return CoverNote.model_validate(values)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SheetError(say("{name} is not valid TOML: {error}.", name=name, error=error), hint=say(_HINT)) from None
    except ValidationError as error:
        messages = []
        for problem in error.errors(include_url=False, include_input=False):
            key = ".".join(str(part) for part in problem["loc"] if part != "[key]")
            if problem["type"] == "extra_forbidden":
                messages.append(
                    say("{key} is not a known key. {nearest}", key=key, nearest=nearest(key, CoverNote.model_fields))
                )
            else:
                messages.append(say("{key}: {problem}.", key=key, problem=validation_message(problem)))
        raise SheetError(say("{name}: {wrong}", name=name, wrong=" ".join(messages)), hint=say(_HINT)) from None
