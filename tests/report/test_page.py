"""Pages can be read in light and in dark: every pair of colours has the contrast that WCAG asks of text."""

import re

import pytest

from paygw_batch.report.colours import DARK_STATE_COLOURS, STATE_COLOURS
from paygw_batch.report.page import html_table, page, paragraph

AA = 4.5


def luminance(colour: str) -> float:
    digits = colour.lstrip("#")
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)] if len(digits) == 6 else []
    parts = parts or [int(digit * 2, 16) / 255 for digit in digits]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def variables() -> list[dict[str, str]]:
    """Return the colours of a page by name: of the light one, and of the dark one."""
    return [
        dict(re.findall(r"--([a-z]+): (#[0-9a-f]+)", root))
        for root in re.findall(r":root \{(.*?)\}", page("", []), re.DOTALL)
    ]


@pytest.mark.parametrize("colours", [STATE_COLOURS, DARK_STATE_COLOURS], ids=["light", "dark"])
@pytest.mark.parametrize("state", STATE_COLOURS)
def test_a_state_can_be_read_on_its_colour(colours: dict[str, tuple[str, str]], state: str) -> None:
    assert contrast(*colours[state]) >= AA


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("ink", ["ink", "soft", "link"])
@pytest.mark.parametrize("ground", ["paper", "code"])
def test_text_can_be_read_on_the_page(mode: int, ink: str, ground: str) -> None:
    found = variables()
    assert len(found) == 2
    assert contrast(found[mode][ink], found[mode][ground]) >= AA


def test_the_dark_page_is_for_screens_alone() -> None:
    assert "@media screen and (prefers-color-scheme: dark)" in page("", [])


def test_a_command_in_a_sentence_is_marked_and_nothing_else_is_markup() -> None:
    assert paragraph("Run `a <b>` now & then") == "<p>Run <code>a &lt;b&gt;</code> now &amp; then</p>"


def test_a_table_escapes_what_it_is_given() -> None:
    table = html_table(("<i>",), [("<b>",), (None,)], caption="<u>")
    assert not re.search("<[ibu]>", table)
    assert table.count('scope="row"') == 2
