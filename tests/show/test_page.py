"""Tests the contrast of colours (WCAG AA) and the templates of static pages."""

import re
from typing import Any

import pytest
from jinja2 import UndefinedError

from paygw_batch.core.generator_marks import PageKind
from paygw_batch.show.page import page, template_environment
from paygw_batch.show.remittance import remittance_page
from paygw_batch.show.totals import STATE_COLOURS
from tests.support.checkout import ROOT

AA = 4.5
STYLE_SHEET = (ROOT / "paygw_batch/show/static/pages.css").read_text(encoding="utf-8")
PARTS: Any = template_environment().get_template("parts.html").module


def luminance(colour: str) -> float:
    digits = colour.lstrip("#")
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)] if len(digits) == 6 else []
    parts = parts or [int(digit * 2, 16) / 255 for digit in digits]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: str, second: str) -> float:
    darker, lighter = sorted((luminance(first), luminance(second)))
    return (lighter + 0.05) / (darker + 0.05)


def colours() -> list[dict[str, str]]:
    """Return the style sheet's colours by name for the light and the dark mode."""
    light, dark = (
        dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", root))
        for root in re.findall(r":root \{(.*?)\}", STYLE_SHEET, re.DOTALL)
    )
    return [light, light | dark]


@pytest.mark.parametrize("state", STATE_COLOURS)
def test_workbook_state_colours_have_sufficient_contrast(state: str) -> None:
    assert contrast(*STATE_COLOURS[state]) >= AA


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_page_colours_have_sufficient_contrast(mode: int) -> None:
    palette = colours()[mode]
    pairs = [(ink, f"{ink}-fill") for ink in ("good", "bad", "warn", "info")]
    pairs += [(ink, ground) for ink in ("ink", "ink-soft", "link") for ground in ("paper", "ground")]
    assert [(ink, ground) for ink, ground in pairs if contrast(palette[ink], palette[ground]) < AA] == []


def test_style_sheet_covers_states_and_darkens_only_screens() -> None:
    assert [state for state in STATE_COLOURS if f".{state} {{ --state: var(--{state});" not in STYLE_SHEET] == []
    assert re.findall("@media.*dark.*", STYLE_SHEET) == ["@media screen and (prefers-color-scheme: dark) {"]


def test_pages_are_self_contained_and_require_all_values() -> None:
    text = remittance_page([], None)
    assert "default-src 'none'; style-src 'unsafe-inline'" in text
    assert STYLE_SHEET in text
    assert not re.search(r"<(a|link|script|img)\b|url\(|@import", text)
    assert str(PARTS.sentence("Run `a <b>` now & then")) == "<p>Run <code>a &lt;b&gt;</code> now &amp; then</p>"
    with pytest.raises(UndefinedError, match="advices"):
        page(PageKind.REMITTANCE)
