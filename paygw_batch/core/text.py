"""Text from outside: which texts read alike, and which characters are safe to show on a terminal.

File names, cells, words of the gateway and values of the environment can hold characters that a terminal obeys and does
not show: they move the cursor, delete lines, set the window's title or turn the order of what is read around.
"""

import re
import unicodedata

_HYPHENS = frozenset({"Pd"})
"""Unicode's category of hyphens and dashes; the minus sign is in another one."""
_MINUS = "\u2212"
_INVISIBLE = frozenset({"Cf"})
"""Unicode's category of format characters: soft hyphens, joiners, zero-width blanks, marks of direction."""
_FURTHER_INVISIBLE = frozenset(
    map(
        chr,
        (
            0x034F,  # combining grapheme joiner
            *(0x115F, 0x1160, 0x3164, 0xFFA0),  # Hangul fillers
            *(0x17B4, 0x17B5),  # inherent vowels of Khmer
            *range(0x180B, 0x1810),  # selectors and a separator of Mongolian
            *range(0xFE00, 0xFE10),  # variation selectors
            *range(0xE0000, 0xE1000),  # tags and further variation selectors
        ),
    )
)
"""Characters of other categories that Unicode lets a display leave out (Default_Ignorable_Code_Point)."""


def spelled_alike(text: str) -> str:
    """Return one spelling for all texts that differ only in case, Unicode form, width, hyphens or invisible characters.

    Case is folded as `str.casefold` does, and the form is NFKC. The result is for comparing alone: it is never shown
    and never sent. It is its own spelling: `spelled_alike(spelled_alike(text)) == spelled_alike(text)`.
    """
    if text.isascii():
        return text.lower()
    # One step can make room for the next: a letter that case folding takes apart may join the mark that follows.
    while (once := _one_step(text)) != text:
        text = once
    return text


def _one_step(text: str) -> str:
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    return unicodedata.normalize("NFKC", "".join(map(_plain, folded)))


def _plain(character: str) -> str:
    category = unicodedata.category(character)
    if category in _HYPHENS or character == _MINUS:
        return "-"
    return "" if category in _INVISIBLE or character in _FURTHER_INVISIBLE else character


_OBEYED = (
    "\x00-\x1f\x7f-\x9f"  # controls: of ASCII and of C1, newline and tab among them
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # direction of text
    "\u2028\u2029"  # ends of lines and paragraphs
    "\u00ad\u180e\u200b\u2060-\u2065\u206a-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"  # invisible
    "\ud800-\udfff"  # bytes of a file name that are not text
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
    """Return text that a library laid out from clean parts; escape every character that a layout cannot contain."""
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


def is_encoding(name: str) -> bool:
    """Whether `name` is an encoding of texts in which letters, digits and separators are those of ASCII."""
    try:
        return b"a;1\n".decode(name) == "a;1\n"
    except (LookupError, ValueError):
        return False
