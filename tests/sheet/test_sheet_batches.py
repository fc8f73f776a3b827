"""The identity of a batch: its id, derived order ids, and rows that repeat each other."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paygw_batch.core.text import normalise_spelling
from paygw_batch.countries.rules import Rules
from paygw_batch.errors import InternalError, SheetError, UsageError
from paygw_batch.sheet.check.repeats import find_duplicate_ids, find_look_alike_ids, normalise_ids
from paygw_batch.sheet.check.validate import validate, with_defects, with_warnings
from paygw_batch.sheet.findings import DEFECT_SCHEMA
from paygw_batch.sheet.instructions import ROWS_PER_PAGE, from_pages, to_pages
from paygw_batch.sheet.model import Sheet
from tests.support.long_part import example_count
from tests.support.sheet_values import GOOD, HEADER, KENYAN, TANZANIAN, MakeSheet, build_sheet, codes, lines

NO_IDS = {name: value for name, value in KENYAN.items() if name != "client_orderid"}


def frame_of_ids(ids: list[str | None]) -> pl.DataFrame:
    return pl.DataFrame({"client_orderid": ids}, schema={"client_orderid": pl.String}).with_row_index("row")


def rows_with_ids(*ids: str) -> Sheet:
    return build_sheet(*({**KENYAN, "client_orderid": one} for one in ids))


def batch_id(rules: Rules, *rows: Mapping[str, str | None]) -> str:
    return validate(build_sheet(*rows), rules).batch


def test_batch_id_changes_with_content_order_and_headings(rules: Rules) -> None:
    kenyan = ({"amount": "1500.5"}, {"client_orderid": "A-7"}, {"account_name": "Wanjiru Kamau N."}, {"phone": "0712"})
    more = ({"phone": "+254722345678"}, {"department": "Sales"}, {"team": "x"}, {"unit": "x"})
    tanzanian = ({"receiver_email": "x@example.com"}, {"ipaddress": "192.0.2.9"}, {"order_desc": "Bonus"})
    other = {**KENYAN, "client_orderid": "A-9", "amount": "20"}
    sheets: list[list[dict[str, str]]] = [
        *([{**KENYAN, **change}] for change in ({}, *kenyan, *more)),
        *([{**TANZANIAN, **change}] for change in ({}, *tanzanian)),
        *([KENYAN, other], [other, KENYAN]),
    ]
    assert len({batch_id(rules, *rows) for rows in sheets}) == len(sheets)


def test_batch_id_is_stable_and_ignores_spelling(rules: Rules, sheet: MakeSheet) -> None:
    assert batch_id(rules, KENYAN, TANZANIAN) == "3e0a80d2322f711c"
    assert batch_id(rules, KENYAN) == batch_id(rules, {**KENYAN, "phone": "0712 345 678", "currency": "KES"})
    assert batch_id(rules, KENYAN) == batch_id(rules, dict(reversed(KENYAN.items())))
    read = sheet(lines(GOOD))
    renamed = replace(read, name="other.csv", sha256="1" * 64)
    other = {code: replace(rule, purpose="OTHER") for code, rule in rules.items()}
    assert validate(read, rules).batch == validate(renamed, other).batch


def test_duplicate_id_is_reported_on_every_row(rules: Rules) -> None:
    defects = validate(rows_with_ids("A", "B", " A ", "C", "A"), rules).defects
    assert codes(defects) == [(row, "client_orderid.duplicate") for row in (2, 4, 6)]
    assert set(defects["message"]) == {"A is used in 3 rows (2, 4, 6). Give each row its own id."}
    defects = validate(build_sheet(*[KENYAN] * 500), rules).defects
    assert defects.height == 500
    assert defects["message"][499] == "A-1 is used in 500 rows (2, 3, 4, 5, 6, 7, ...). Give each row its own id."


SPELLINGS = ["José-1", "Jose\u0301-1", "JOSÉ-1", "José\u20101", "\uff2aosé-1"]
"""Ids that people read as one: they differ in Unicode form, case, hyphen or width."""


def test_defect_of_similar_id_names_other_row(rules: Rules) -> None:
    validated = validate(rows_with_ids(*SPELLINGS, "José-2"), rules)
    assert codes(validated.defects) == [(row, "client_orderid.look_alike") for row in range(2, 7)]
    first, *others = validated.defects["message"].to_list()[:5]
    assert first.startswith("José-1 differs only in spelling from Jose\u0301-1 in row 3")
    assert all("from José-1 in row 2" in message for message in others)
    assert validated.instructions["client_orderid"].to_list() == ["José-2"]
    defects = validate(rows_with_ids("A-1", "A-1", "a-1"), rules).defects
    twice, look_alike = "client_orderid.duplicate", "client_orderid.look_alike"
    assert sorted(codes(defects)) == [*((row, code) for row in (2, 3) for code in (twice, look_alike)), (4, look_alike)]


@settings(deadline=None, max_examples=example_count(60))
@given(st.lists(st.none() | st.sampled_from([*"aAbBéÉ", "E\u0301"]) | st.text(max_size=6), max_size=40))
def test_every_repeated_or_similar_id_is_found(ids: list[str | None]) -> None:
    twice = [row for row, name in enumerate(ids) if name is not None and ids.count(name) > 1]
    assert sorted(find_duplicate_ids(frame_of_ids(ids))["row"]) == twice
    spelt = [None if one is None else normalise_spelling(one) for one in ids]
    alike = {one: {other for other in ids if other and normalise_spelling(other) == one} for one in {*spelt} - {None}}
    expected = [row for row, name in enumerate(ids) if name and len(alike[normalise_spelling(name)]) > 1]
    assert sorted(find_look_alike_ids(frame_of_ids(ids))["row"]) == expected
    assert normalise_ids(pl.Series("id", ids, dtype=pl.String)).to_list() == spelt


def test_rewritten_id_of_valid_row_is_refused(rules: Rules) -> None:
    validated = validate(rows_with_ids("00001", "2", "1", "1.0"), rules)
    assert codes(validated.defects) == [(row, "client_orderid.rewritten") for row in (2, 4, 5)]
    assert ["from row 4" in one for one in validated.defects["message"]] == [True, False, False]
    assert validated.instructions["client_orderid"].to_list() == ["2"]
    other = {**KENYAN, "client_orderid": "1", "amount": "1,5"}
    sheet = build_sheet({**KENYAN, "client_orderid": "00001"}, other)
    assert codes(validate(sheet, rules).defects) == [(3, "amount.format")]
    for change in ({"amount": "750"}, {"account_number": "254712345999"}):  # the payments are different
        other = {**KENYAN, "client_orderid": "PAY-007", **change}
        assert validate(build_sheet({**KENYAN, "client_orderid": "PAY-7"}, other), rules).payable_count == 2


def test_warning_about_repeated_payment_names_both_ids(rules: Rules) -> None:
    twice = {**KENYAN, "client_orderid": "A-2", "account_number": "0712345678"}
    validated = validate(build_sheet(KENYAN, twice, TANZANIAN | {"client_orderid": "A-3"}), rules)
    assert codes(validated.warnings) == [(2, "row.look_alike"), (3, "row.look_alike")]
    first, second = validated.warnings["message"]
    assert first.startswith("A-1 has the same account and amount as A-2")
    assert second.startswith("A-2 has the same account and amount as A-1")
    assert validated.rows["valid"].all()


# Order ids from a reference
def test_sheet_needs_own_ids_or_reference(rules: Rules) -> None:
    with pytest.raises(SheetError, match="no order ids") as refused:
        validate(build_sheet(NO_IDS), rules)
    assert "--reference" in refused.value.hint
    sheet = build_sheet(KENYAN, {**KENYAN, "client_orderid": None, "amount": "77"})
    validated = validate(sheet, rules, reference="payroll-2026-11")
    assert validated.rows["client_orderid"].to_list() == ["A-1", None]
    assert codes(validated.defects) == [(3, "client_orderid.missing")]
    assert [note for note in validated.sheet.notes if "payroll-2026-11 is not used" in note]
    assert not validate(build_sheet(KENYAN), rules).sheet.notes


def test_derived_ids_ignore_other_payees(rules: Rules) -> None:
    others = [{**NO_IDS, "account_number": f"2547123450{n}"} for n in range(10, 20)]
    alone = validate(build_sheet(NO_IDS), rules, reference="payroll-2026-11").rows["client_orderid"][0]
    among = validate(build_sheet(*others, NO_IDS), rules, reference="payroll-2026-11")
    assert among.rows["client_orderid"][10] == alone
    assert among.instructions["client_orderid"][10] == alone
    assert among.instructions["client_orderid"].n_unique() == 11
    assert alone.startswith("payroll-2026-11-")
    assert alone.endswith("-1")
    bad = {**NO_IDS, "amount": "0"}
    sheet = build_sheet(NO_IDS, bad, NO_IDS, {**NO_IDS, "phone": "0712345678"})
    ids = validate(sheet, rules, reference="R").rows["client_orderid"]
    assert ids[1] is None
    assert sorted(name.rsplit("-", 1)[1] for name in (ids[0], ids[2], ids[3])) == ["1", "2", "3"]
    digest = hashlib.sha256(b"KE 254712345678").hexdigest()[:16]
    mark = digest + hashlib.sha256(f"R-{digest}".encode()).hexdigest()[:8]
    other = {**NO_IDS, "amount": "2000.75", "account_name": "WANJIRU  K."}
    for rows in ([NO_IDS, NO_IDS], [NO_IDS, other], [other, NO_IDS]):
        validated = validate(build_sheet(*rows), rules, reference="R")
        assert sorted(validated.rows["client_orderid"]) == [f"R-{mark}-1", f"R-{mark}-2"]


@pytest.mark.parametrize("reference", ["", " x", "x ", "a\nb", "é", "x" * 91])
def test_invalid_reference_is_refused(rules: Rules, reference: str) -> None:
    with pytest.raises(UsageError, match="1 to 90 printable"):
        validate(build_sheet(NO_IDS), rules, reference=reference)


# Findings added later
def new_finding(row: int, code: str = "client_orderid.conflict") -> pl.DataFrame:
    line = (row, "client_orderid", "A-1", code, "Used before.", None)
    return pl.DataFrame([line], schema=DEFECT_SCHEMA, orient="row")


def test_added_defects_invalidate_rows_and_change_batch(rules: Rules) -> None:
    before = validate(build_sheet(KENYAN, {**TANZANIAN, "amount": "0"}, {**KENYAN, "client_orderid": "A-3"}), rules)
    after = with_defects(before, new_finding(2))
    assert after.rows["valid"].to_list() == [False, False, True]
    assert after.rows["error_code"].to_list() == ["client_orderid.conflict", "amount.zero", None]
    assert after.instructions["row"].to_list() == [4]
    assert codes(after.defects) == [(2, "client_orderid.conflict"), (3, "amount.zero")]
    assert after.batch != before.batch
    assert after.batch == with_defects(before, new_finding(2)).batch
    assert after.totals == before.totals
    before = validate(build_sheet({**KENYAN, "amount": "0"}), rules)
    after = with_defects(before, new_finding(2))
    assert codes(after.defects) == [(2, "client_orderid.conflict"), (2, "amount.zero")]
    assert after.rows["message"][0] == "Used before. 0: the amount must be greater than zero."
    before = validate(build_sheet(KENYAN), rules)
    after = with_warnings(before, new_finding(2, "row.look_alike"))
    assert codes(after.warnings) == [(2, "row.look_alike")]
    assert (after.batch, after.rows["valid"].to_list()) == (before.batch, [True])


def test_pages_restore_rows_with_bounded_size(rules: Rules) -> None:
    one, count = validate(build_sheet(KENYAN), rules).rows, ROWS_PER_PAGE * 2 + 1
    rows = one.select(pl.all().repeat_by(count).explode()).with_columns(row=pl.int_range(count, dtype=pl.UInt32))
    pages = list(to_pages(rows))
    assert len(pages) == 3
    assert from_pages(pages).equals(rows)
    assert from_pages(to_pages(rows.clear())).equals(rows.clear())
    with pytest.raises(InternalError):
        from_pages([])


def test_sender_headings_do_not_overwrite_result_columns(sheet: MakeSheet, rules: Rules) -> None:
    content = lines(GOOD + ",7,yes,old", header=HEADER + ",row,valid,message")
    rows = validate(sheet(content), rules).rows
    assert rows.select("row (sheet)", "valid (sheet)", "message (sheet)", "row", "valid", "message").rows() == [
        ("7", "yes", "old", 2, True, None)
    ]
