"""Writes the headings of a sheet to a file in which a person gives each a meaning: an own column profile."""

import json
from collections.abc import Sequence
from pathlib import Path

from paygw_batch.files import write_whole
from paygw_batch.language import say
from paygw_batch.sheet.read.headings import fold
from paygw_batch.sheet.read.profiles import guessed


def write_heading_map(
    path: Path, file: str, headings: Sequence[tuple[str, str | None]], columns: Sequence[str]
) -> None:
    """Write the headings of `file`, each with its column or a suggestion; one that means nothing to us has none.

    No column is suggested twice. Raises `OutputError`.
    """
    lines: dict[str, str] = {}
    for one in guessed(headings, columns):
        remark = "  # " + say("{near}, like another one?", near=one.other) if one.other else ""
        lines.setdefault(fold(one.heading), f"{_quoted(one.heading)} = {_quoted(one.column)}{remark}")
    text = "\n".join(
        [
            say(
                "# The headings of {file}, and the column that each stands for. Look at every line, change",
                file=_one_line(file),
            ),
            say("# what is wrong, and name this file: --column-profile {name}", name=_one_line(path.name)),
            say(
                '# "" is a column that is not used; it comes back in the reconciliation. No column may be there twice.'
            ),
            say("# The columns: {columns}.", columns=", ".join(columns)),
            "",
            "[columns]",
            *lines.values(),
            "",
        ]
    )
    write_whole(path, text.encode())


def _quoted(text: str) -> str:
    """Return a text as a basic string of TOML, which is written as in JSON."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)
