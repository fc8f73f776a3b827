"""Every code of a defect or warning in the source is in the catalogue and in docs/defects.md."""

import ast
import re
from collections.abc import Iterator

import pytest

from paygw_batch.approval.plan_document import NAMED_ENCODING, SPELLED_COLUMN
from paygw_batch.countries.form_columns import sheet_columns
from paygw_batch.sheet.check.catalogue import ANY_COLUMN, DEFECTS, WARNINGS, code_meaning
from paygw_batch.sheet.read.xlsx_cells import Doubt
from tests.support.checkout import ROOT, import_script

ROOMS = ("sheet", "submit")
NO_CODE = re.compile(r".*\.(?:toml|csv|xlsx|parquet|json|xml|rels)")


SCRIPT = import_script("tooling/defect_codes.py")


def typed_codes() -> Iterator[str]:
    """Yield every string of the source that looks like a code, with `*` for a variable column."""
    subjects = {*sheet_columns().cleanings, "row", "sheet"}
    for room in ROOMS:
        for path in (ROOT / "paygw_batch" / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr) and len(node.values) == 2:
                    first, last = node.values
                    if isinstance(last, ast.Constant) and isinstance(first, ast.FormattedValue):
                        code = f"{ANY_COLUMN}{last.value!s}"
                        if re.fullmatch(r"\*\.[a-z_]+", code) and not NO_CODE.fullmatch(code):
                            yield code
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    subject, _, what = node.value.partition(".")
                    if subject in subjects and re.fullmatch("[a-z_]+", what):
                        yield node.value


def test_every_code_in_source_is_catalogued() -> None:
    typed = {*typed_codes(), *(f"{ANY_COLUMN}.{doubt}" for doubt in Doubt)}
    assert {"*.missing", "*.float", "row.fields", "client_orderid.conflict"} <= typed  # the search works
    known = {*DEFECTS, *WARNINGS, NAMED_ENCODING, SPELLED_COLUMN}  # the last two are findings about a plan
    assert [code for code in typed if code not in known and f"{ANY_COLUMN}.{code.partition('.')[2]}" not in known] == []


def test_every_check_code_has_catalogued_meaning() -> None:
    defects, warnings = SCRIPT.collect_codes(SCRIPT.rule_variants())
    for codes, meanings in ((defects, DEFECTS), (warnings, WARNINGS)):
        used = {code if code in meanings else f"{ANY_COLUMN}.{code.partition('.')[2]}" for code in codes}
        assert used == set(meanings)
    assert {"amount.minimum", "amount.maximum", "receiver_email.format", "cell_phone.country"} <= defects
    assert {"account_number.operator", "first_name.placeholder"} <= warnings


def test_meanings_are_complete_and_match_document() -> None:
    for code, meaning in (*DEFECTS.items(), *WARNINGS.items()):
        assert meaning.label, code
        texts = (meaning.label, meaning.sentence, meaning.suggestion)
        assert [text.endswith(".") for text in texts] == [False, True, True], code
    assert code_meaning("receiver_email.missing").label == "receiver_email is missing"
    with pytest.raises(KeyError):
        code_meaning("receiver_email.no_such_code")
    assert SCRIPT.render_document() == (ROOT / "docs/defects.md").read_text(encoding="utf-8")
