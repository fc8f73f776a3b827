"""Fixtures: rules with sample terms, and sheets from bytes."""

from decimal import Decimal
from pathlib import Path

import pytest

from paygw_batch.countries.rules import OperatorTerms, Rules
from paygw_batch.sheet.model import Sheet
from paygw_batch.sheet.read.headings import ReadOptions
from paygw_batch.sheet.read.sheet_file import read_sheet
from tests.support.operator_terms import complete_rules
from tests.support.sheet_values import MakeSheet


@pytest.fixture(scope="session")
def rules() -> Rules:
    """The payout rules of all countries, with limits for Kenya and bank accounts for Nigeria."""
    return complete_rules(
        "WALLET",
        KE=OperatorTerms(purpose="WALLET-KE", min_amount=Decimal(10), max_amount=Decimal(250000)),
        NG=OperatorTerms(purpose="A/B/C", bank_account_pattern="[0-9]{10}"),
    )


@pytest.fixture
def sheet(tmp_path: Path) -> MakeSheet:
    def make(content: bytes | str, name: str = "pay.csv", **options: object) -> Sheet:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_sheet(path, ReadOptions(**options))  # type: ignore[arg-type]

    return make
