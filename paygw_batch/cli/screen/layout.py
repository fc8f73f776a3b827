"""Fits sentences and tables to the width of a terminal: lines and columns end between words, and no word is broken.

What a person types stays in one piece, so that it can be copied: a terminal continues a line that is too long by
itself.
"""

import re
from collections.abc import Iterator, Sequence

from rich.cells import cell_len

_PIECE = re.compile(r"`[^`]*`\S*|\S*paygw-batch .*$|\S+")
"""A command in quotation marks, or at the end of a sentence; else a word."""
_LIST_MARK = "- "


def wrapped(text: str, width: int) -> str:
    """Return one line of text as several of at most `width` cells, indented like the first."""
    if cell_len(text) <= width:
        return text
    body = text.lstrip(" ")
    first = text[: len(text) - len(body)]
    further = first + "  " if body.startswith(_LIST_MARK) else first
    return "\n".join(_lines(first, further, _PIECE.findall(body), width))


def _lines(first: str, further: str, pieces: Sequence[str], width: int) -> Iterator[str]:
    line, is_empty = first, True
    for piece in pieces:
        if not is_empty and cell_len(line) + 1 + cell_len(piece) > width:
            yield line
            line, is_empty = further, True
        line += piece if is_empty else f" {piece}"
        is_empty = False
    yield line


def column_widths(columns: Sequence[Sequence[str]], whole: Sequence[bool], room: int) -> list[int] | None:
    """Return the width of each column of a table, of its lines of text, that fits into `room`; None if none does.

    A column is never narrower than its longest word; one that is `whole` is never narrower than its longest line.
    """
    natural = [max(map(cell_len, texts), default=0) for texts in columns]
    least = [
        wanted if is_whole else max((cell_len(word) for text in texts for word in text.split()), default=0)
        for texts, wanted, is_whole in zip(columns, natural, whole, strict=True)
    ]
    spare, wanting = room - sum(least), sum(natural) - sum(least)
    if spare < 0:
        return None
    if spare >= wanting:
        return natural
    return [low + spare * (high - low) // wanting for low, high in zip(least, natural, strict=True)]
