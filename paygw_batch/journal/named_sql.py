"""Reads named SQL from a file of a store.

`-- name: NAME` begins a statement and `-- part: NAME` a text that later ones use as `{NAME}`; the comment after it says
what it finds. Values are written `:name` in every store, so that each statement can be pasted into EXPLAIN.
"""

import re
from collections.abc import Mapping
from importlib import resources

_HEAD = re.compile(r"^-- (name|part): (\w+)\n", re.MULTILINE)
_COMMENT = re.compile(r"^--.*\n", re.MULTILINE)
VALUE = re.compile(r"(?<!:):([a-z][a-z0-9_]*)")
"""The place of a value in a statement."""


def named_sql(package: str, file: str, parts: Mapping[str, str], *, is_psycopg: bool = False) -> dict[str, str]:
    """Return the statements and parts of a file by name; for psycopg, values are written as it takes them."""
    _, *texts = _HEAD.split(resources.files(package).joinpath(file).read_text(encoding="utf-8"))
    found: dict[str, str] = {}
    known = dict(parts)
    for kind, name, commented in zip(texts[::3], texts[1::3], texts[2::3], strict=True):
        text = _COMMENT.sub("", commented).strip()
        for part, inner in known.items():
            text = text.replace(f"{{{part}}}", inner)
        found[name] = text
        known |= {name: text} if kind == "part" else {}
    if not is_psycopg:
        return found
    return {name: _as_psycopg_takes_it(text) for name, text in found.items()}


def _as_psycopg_takes_it(text: str) -> str:
    return VALUE.sub(r"%(\1)s", text.replace("%", "%%")) if VALUE.search(text) else text
