"""Prepares a page of docs/ for the site: mkdocs calls this, as mkdocs.yml says.

Two things are written for those who show the file itself, and are otherwise in Python-Markdown: a diagram in Mermaid,
which the site cannot draw and calls text, and a bar in a command within a table, which needs no backslash there.
"""

import re

_DIAGRAM = re.compile(r"^```mermaid$", flags=re.MULTILINE)
_CAPTION = "*A diagram, as text in the language Mermaid:*\n\n```text"
_TABLE_LINE = re.compile(r"^\|.*$", flags=re.MULTILINE)
_CODE = re.compile(r"`[^`]+`")


def on_page_markdown(markdown: str, **_: object) -> str:
    """Return the page as Python-Markdown needs it."""
    return _TABLE_LINE.sub(_plain_bars, _DIAGRAM.sub(_CAPTION, markdown))


def _plain_bars(line: re.Match[str]) -> str:
    return _CODE.sub(lambda code: code[0].replace(r"\|", "|"), line[0])
