"""A planted bug of validation is detected."""

from typing import Any

import pandera.polars as pa
import polars as pl
import pytest
from pandera.config import ValidationDepth, config_context

from paygw_batch.countries.rules import Rules
from paygw_batch.sheet.check.contract import find_breaches
from tests.support.sheet_values import KENYAN, build_sheet


def defect_codes(rules: Rules) -> list[tuple[int, str]]:
    return find_breaches(build_sheet(KENYAN, {**KENYAN, "client_orderid": "A-2", "amount": "-5"}).frame, rules).rows()


def test_validation_of_lazy_frame_is_detected(rules: Rules, monkeypatch: pytest.MonkeyPatch) -> None:
    assert defect_codes(rules) == [(3, "amount")]
    validate = pa.DataFrameSchema.validate

    def validate_lazily(schema: pa.DataFrameSchema, frame: pl.DataFrame, **options: Any) -> Any:
        with config_context(validation_depth=ValidationDepth.SCHEMA_ONLY):
            return validate(schema, frame.lazy(), **options)

    monkeypatch.setattr(pa.DataFrameSchema, "validate", validate_lazily)
    assert defect_codes(rules) == []
