"""Real files, with the expected results in `answers.toml`."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from paygw_batch.countries.rules import Rules
from paygw_batch.errors import PaygwError
from paygw_batch.gateway.signing.key import load_private_key
from paygw_batch.settle.statement import read_statement
from paygw_batch.sheet.check.validate import validate
from paygw_batch.sheet.read.headings import ReadOptions
from paygw_batch.sheet.read.sheet_file import read_sheet
from tests.field.make_files import FILES, MADE

ANSWERS: Mapping[str, Mapping[str, Any]] = tomllib.loads((Path(__file__).parent / "answers.toml").read_text())


def test_every_field_file_has_expected_result() -> None:
    kept = {str(path.relative_to(FILES)) for path in FILES.rglob("*.*")}
    assert kept == set(ANSWERS)
    assert set(MADE) <= kept


@pytest.mark.parametrize("name", [name for name in ANSWERS if name.startswith("sheets/")])
def test_field_sheet_matches_expected_result(name: str, rules: Rules) -> None:
    """Compare messages (`refused`), all findings (`found`: "row code"), and cells (`values`, `proposed`)."""
    answer = ANSWERS[name]
    if "refused" in answer:
        with pytest.raises(PaygwError, match=re.escape(answer["refused"])):
            validate(read_sheet(FILES / name, ReadOptions()), rules)
        return
    validated = validate(read_sheet(FILES / name, ReadOptions()), rules)
    actual = [*validated.defects.iter_rows(named=True), *validated.warnings.iter_rows(named=True)]
    assert sorted(f"{entry['row']} {entry['code']}" for entry in actual) == sorted(answer.get("found", []))
    proposals = validated.defects.filter(pl.col("correction").is_not_null()).select("row", "column", "correction")
    assert {f"{row}.{column}": text for row, column, text in proposals.iter_rows()} == answer.get("proposed", {})
    for place, value in answer.get("values", {}).items():
        row, _, column = place.partition(".")
        read = dict(validated.rows.select("row", column).iter_rows())
        assert read[int(row)] == value


@pytest.mark.parametrize("name", [name for name in ANSWERS if name.startswith("statements/")])
def test_field_statement_matches_expected_result(name: str) -> None:
    """`lines` has the row, order id, amount, currency and status of each line."""
    if "refused" in ANSWERS[name]:
        with pytest.raises(PaygwError, match=re.escape(ANSWERS[name]["refused"])):
            read_statement(FILES / name, {}, encoding=None)
        return
    lines = read_statement(FILES / name, {}, encoding=None).lines
    actual = [f"{entry.line} {entry.order_id} {entry.amount} {entry.currency} {entry.status}" for entry in lines]
    assert actual == ANSWERS[name]["lines"]


@pytest.mark.parametrize("name", [name for name in ANSWERS if name.startswith("keys/")])
def test_field_key_refusal_matches_expected_result(name: str, tmp_path: Path) -> None:
    """`refused` is part of the message, and `command` converts the key."""
    kept = tmp_path / Path(name).name
    kept.write_bytes((FILES / name).read_bytes())
    kept.chmod(0o600)
    with pytest.raises(PaygwError, match=re.escape(ANSWERS[name]["refused"])) as refused:
        load_private_key(kept)
    assert ANSWERS[name]["command"] in (refused.value.hint or "")
