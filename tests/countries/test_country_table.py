"""docs/countries.md says what the data says."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from paygw_batch.countries.load import load_rules

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = (ROOT / "docs/countries.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """Return the script that writes the document, as a module."""
    spec = importlib.util.spec_from_file_location("country_table", ROOT / "tooling/country_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_country_document_matches_script(script: ModuleType) -> None:
    assert script.document() == DOCUMENT


@pytest.mark.parametrize("code", sorted(load_rules("payout", {})))
def test_document_lists_each_country_with_currency(code: str) -> None:
    rule = load_rules("payout", {})[code]
    assert f"| `{code}` | {rule.name} | {rule.currency} | {rule.minor_units} |" in DOCUMENT


def test_document_tells_notes_in_sentences() -> None:
    assert "- `EG`: Egypt pays out in cash only." in DOCUMENT
    assert "- `BN`: Benin is written BN at this gateway, not BJ." in DOCUMENT
