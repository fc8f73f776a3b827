"""docs/countries.md agrees with the data."""

from paygw_batch.countries.load import load_rules
from tests.support.checkout import ROOT, import_script

SCRIPT = import_script("tooling/country_table.py")


def test_country_document_matches_script() -> None:
    document = (ROOT / "docs/countries.md").read_text(encoding="utf-8")
    assert SCRIPT.render_document() == document
    for code, rule in load_rules("payout", {}).items():
        assert f"| `{code}` | {rule.name} | {rule.currency} | {rule.minor_units} |" in document
    assert "- `EG`: Egypt pays out in cash only." in document
