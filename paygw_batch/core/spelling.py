"""Finds texts that differ only in their spelling: a person reads one order id, a computer two."""

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
