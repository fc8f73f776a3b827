"""Makes text from outside safe to show on a terminal.

File names, cells, words of the gateway and values of the environment can hold characters that a terminal obeys and does
not show: they move the cursor, delete lines, set the window's title or turn the order of what is read around.
"""

import re

_OBEYED = (
    "\x00-\x1f\x7f-\x9f"  # controls: of ASCII and of C1, newline and tab among them
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # direction of text
    "\u2028\u2029"  # ends of lines and paragraphs
    "\u00ad\u180e\u200b\u2060-\u2065\u206a-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"  # invisible
    "\ud800-\udfff"  # bytes of a file name that are no text
)
_UNFIT = re.compile(f"[{_OBEYED}]")
_UNFIT_IN_PRINT = re.compile(rf"(\x1b\[[0-9;?]*[A-Za-z]|[\n\t\r])|([{_OBEYED}])")
"""Matches the layout of a library (colours, cursor moves, ends of lines) as group 1, unfit characters as group 2."""


def fit_for_terminal(text: str) -> str:
    r"""Return one line of text with every character that a terminal would obey, or hide, as an escape (`\x1b`).

    Letters of all scripts stay, with the joiners that some of them need.
    """
    return _UNFIT.sub(lambda found: escaped(found[0]), text)


def fit_in_print(text: str) -> str:
    """Return text that a library laid out from fit parts, with each character that no layout has as an escape."""
    return _UNFIT_IN_PRINT.sub(lambda found: found[1] or escaped(found[2]), text)


def fit_in_json(text: str) -> str:
    """Return JSON in which the same characters are JSON's own escapes: it says the same, and can be printed."""
    return _UNFIT.sub(lambda found: found[0] if found[0] in "\n\t" else _escaped_in_json(found[0]), text)


def escaped(character: str) -> str:
    r"""Return a character as an escape of Python's: `\x1b`, `\u202e`."""
    return character.encode("unicode_escape").decode("ascii")


def _escaped_in_json(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
