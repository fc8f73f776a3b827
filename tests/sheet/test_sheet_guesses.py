"""What headings may mean: by names, by words, by the cells below them. A guess decides nothing."""

from pathlib import Path

import pytest

from paygw_batch.sheet.columns import columns_of_operation, known_columns, label_of
from paygw_batch.sheet.read.guesses import guessed
from paygw_batch.sheet.read.headings import SAMPLES, ReadOptions, SeenHeading
from paygw_batch.sheet.read.sheet_file import headings_in

PAYOUT = columns_of_operation("payout")


def columns(**headings: tuple[str, ...]) -> list[str]:
    seen = [SeenHeading(heading.replace("_", " "), None, samples) for heading, samples in headings.items()]
    return [one.column for one in guessed(seen, PAYOUT)]


def test_every_column_of_common_payroll_is_guessed() -> None:
    assert columns(
        Employee_Name=("Jane Wanjiku",), Country=("KE",), Mobile_Number=("0712345678",), Net_Pay=("1500",), Ccy=("KES",)
    ) == ["account_name", "country", "phone", "amount", "currency"]


def test_cells_reveal_column_of_unknown_heading() -> None:
    assert columns(Where=("KE", "UG"), Line=("254712345678", "0712 345 679"), Money=("KES", "UGX")) == [
        "country",
        "phone",
        "currency",
    ]
    assert columns(Where=("KE", "Nairobi")) == [""]
    assert columns(Where=()) == [""]


@pytest.mark.parametrize("heading", ["Gross Pay", "Bank Name", "Staff Bank", "Basic Salary", "Pay Date"])
def test_heading_near_column_is_not_guessed(heading: str) -> None:
    (found,) = guessed([SeenHeading(heading, None, ("0012",))], PAYOUT)
    assert found.column == ""


@pytest.mark.parametrize("heading", ["Staff No", "Employee ID", "Matricule"])
def test_staff_number_column_is_guessed(heading: str) -> None:
    (found,) = guessed([SeenHeading(heading, None, ("0012",))], PAYOUT)
    assert (found.column, found.is_known) == ("staff_number", False)


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
def test_english_and_french_headings_are_guessed(heading: str, column: str) -> None:
    assert [one.column for one in guessed([SeenHeading(heading, None)], PAYOUT)] == [column]


def test_guess_repeats_no_column_and_keeps_known_columns() -> None:
    seen = [SeenHeading("Mobile", None), SeenHeading("phone", "phone"), SeenHeading("Portable", None)]
    assert [(one.column, one.other) for one in guessed(seen, PAYOUT)] == [("", "phone"), ("phone", ""), ("", "phone")]


@pytest.mark.parametrize("header", ["Who;Net;Where", "country;amount;Who"])
def test_three_cells_of_each_column_are_shown(tmp_path: Path, header: str) -> None:
    path = tmp_path / "pay.csv"
    path.write_text("\n".join([header, *(f"KE;{n};Jane {n}" for n in range(1, 6))]) + "\n")
    found = guessed(headings_in(path, ReadOptions()), PAYOUT)
    assert [one.samples[:2] for one in found] == [("KE", "KE"), ("1", "2"), ("Jane 1", "Jane 2")]
    assert {len(one.samples) for one in found} == {SAMPLES}


def test_every_column_has_readable_name() -> None:
    assert all(label_of(name) != name and label_of(name)[0].isupper() for name in known_columns())
