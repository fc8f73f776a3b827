"""docs/countries.md agrees with the data."""

import pytest

from paygw_batch.countries.load import load_rules
from tests.support.checkout import ROOT, import_script

DOCUMENT = (ROOT / "docs/countries.md").read_text(encoding="utf-8")


SCRIPT = import_script("tooling/country_table.py")


def test_country_document_matches_script() -> None:
    assert SCRIPT.render_document() == DOCUMENT


@pytest.mark.parametrize("code", sorted(load_rules("payout", {})))
def test_document_lists_each_country_with_currency(code: str) -> None:
    rule = load_rules("payout", {})[code]
    assert f"| `{code}` | {rule.name} | {rule.currency} | {rule.minor_units} |" in DOCUMENT


def test_country_document_explains_special_cases() -> None:
    assert "- `EG`: Egypt pays out in cash only." in DOCUMENT
    assert "- `BN`: Benin is written BN at this gateway, not BJ." in DOCUMENT
