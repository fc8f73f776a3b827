"""Suggestions for headings: by names, by words, and by the cells below them."""

from pathlib import Path

import pytest

from paygw_batch.sheet.columns import column_label, columns_of_operation, known_columns
from paygw_batch.sheet.read.guesses import suggest_columns
from paygw_batch.sheet.read.headings import SAMPLES, FileHeading, ReadOptions
from paygw_batch.sheet.read.sheet_file import read_headings

PAYOUT = columns_of_operation("payout")


def suggested_columns(**headings: tuple[str, ...]) -> list[str]:
    seen = [FileHeading(heading.replace("_", " "), None, samples) for heading, samples in headings.items()]
    return [one.column for one in suggest_columns(seen, PAYOUT)]


def test_every_column_of_common_payroll_is_suggested() -> None:
    assert suggested_columns(
        Employee_Name=("Jane Wanjiku",), Country=("KE",), Mobile_Number=("0712345678",), Net_Pay=("1500",), Ccy=("KES",)
    ) == ["account_name", "country", "phone", "amount", "currency"]


def test_cells_reveal_column_of_unknown_heading() -> None:
    assert suggested_columns(Where=("KE", "UG"), Line=("254712345678", "0712 345 679"), Money=("KES", "UGX")) == [
        "country",
        "phone",
        "currency",
    ]
    assert suggested_columns(Where=("KE", "Nairobi")) == [""]
    assert suggested_columns(Where=()) == [""]


@pytest.mark.parametrize("heading", ["Gross Pay", "Bank Name", "Staff Bank", "Basic Salary", "Pay Date"])
def test_similar_heading_gets_no_suggestion(heading: str) -> None:
    (result,) = suggest_columns([FileHeading(heading, None, ("0012",))], PAYOUT)
    assert result.column == ""


@pytest.mark.parametrize("heading", ["Staff No", "Employee ID", "Matricule"])
def test_staff_number_column_is_suggested(heading: str) -> None:
    (result,) = suggest_columns([FileHeading(heading, None, ("0012",))], PAYOUT)
    assert (result.column, result.is_known) == ("staff_number", False)


@pytest.mark.parametrize(
    ("heading", "column"),
    [
        ("Nom de l'employé", "account_name"),
        ("Salaire net à payer (XOF)", "amount"),
        ("N° Tél", "phone"),
        ("Compte mobile", "account_number"),
        ("Réseau", "purpose"),
        ("Net Salary (KES)", "amount"),
        ("MSISDN", "phone"),
    ],
)
def test_english_and_french_headings_get_suggestions(heading: str, column: str) -> None:
    assert [one.column for one in suggest_columns([FileHeading(heading, None)], PAYOUT)] == [column]


def test_suggestions_repeat_no_column_and_keep_known() -> None:
    seen = [FileHeading("Mobile", None), FileHeading("phone", "phone"), FileHeading("Portable", None)]
    assert [(one.column, one.other) for one in suggest_columns(seen, PAYOUT)] == [
        ("", "phone"),
        ("phone", ""),
        ("", "phone"),
    ]


@pytest.mark.parametrize("header", ["Who;Net;Where", "country;amount;Who"])
def test_three_cells_of_each_column_are_shown(tmp_path: Path, header: str) -> None:
    path = tmp_path / "pay.csv"
    path.write_text("\n".join([header, *(f"KE;{n};Jane {n}" for n in range(1, 6))]) + "\n")
    result = suggest_columns(read_headings(path, ReadOptions()), PAYOUT)
    assert [one.samples[:2] for one in result] == [("KE", "KE"), ("1", "2"), ("Jane 1", "Jane 2")]
    assert {len(one.samples) for one in result} == {SAMPLES}


def test_every_column_has_readable_name() -> None:
    assert all(column_label(name) != name and column_label(name)[0].isupper() for name in known_columns())
