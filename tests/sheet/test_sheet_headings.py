"""Headings: suggestions by names, words and cells, and column profiles with their precedence."""

import csv
import io
from pathlib import Path

import pytest

from paygw_batch.errors import ConfigurationError, SheetError
from paygw_batch.sheet.columns import REQUIRED_COLUMNS, column_label, known_columns, operation_columns
from paygw_batch.sheet.read.guesses import suggest_columns
from paygw_batch.sheet.read.headings import MAX_SAMPLES, FileHeading, ReadOptions, fold_heading
from paygw_batch.sheet.read.profiles import merge_headings, profile_names, read_profile
from paygw_batch.sheet.read.sheet_file import read_headings
from tests.support.sheet_values import GOOD, HEADER, MakeSheet, lines

PAYOUT = operation_columns("payout")


def suggested_columns(**headings: tuple[str, ...]) -> list[str]:
    seen = [FileHeading(heading.replace("_", " "), None, samples) for heading, samples in headings.items()]
    return [one.column for one in suggest_columns(seen, PAYOUT)]


def test_columns_are_suggested_once_by_heading_and_cells() -> None:
    named = suggested_columns(
        Employee_Name=("Jane Wanjiku",), Country=("KE",), Mobile_Number=("0712345678",), Net_Pay=("1500",), Ccy=("KES",)
    )
    assert named == ["account_name", "country", "phone", "amount", "currency"]
    by_cells = suggested_columns(Where=("KE", "UG"), Line=("254712345678", "0712 345 679"), Money=("KES", "UGX"))
    assert by_cells == ["country", "phone", "currency"]
    assert suggested_columns(Where=("KE", "Nairobi")) == suggested_columns(Where=()) == [""]
    seen = [FileHeading("Mobile", None), FileHeading("phone", "phone"), FileHeading("Portable", None)]
    suggested = [(one.column, one.other) for one in suggest_columns(seen, PAYOUT)]
    assert suggested == [("", "phone"), ("phone", ""), ("", "phone")]


@pytest.mark.parametrize(
    ("heading", "column"),
    [
        *(("Nom de l'employé", "account_name"), ("Salaire net à payer (XOF)", "amount"), ("N° Tél", "phone")),
        *(("Compte mobile", "account_number"), ("Réseau", "purpose"), ("Net Salary (KES)", "amount")),
        ("MSISDN", "phone"),
        *((heading, "staff_number") for heading in ("Staff No", "Employee ID", "Matricule")),
        *((heading, "") for heading in ("Gross Pay", "Bank Name", "Staff Bank", "Basic Salary", "Pay Date")),
    ],
)
def test_english_and_french_headings_get_suggestions(heading: str, column: str) -> None:
    (result,) = suggest_columns([FileHeading(heading, None, ("0012",))], PAYOUT)
    assert (result.column, result.is_known) == (column, False)


@pytest.mark.parametrize("header", ["Who;Net;Where", "country;amount;Who"])
def test_three_samples_of_each_column_are_shown(tmp_path: Path, header: str) -> None:
    path = tmp_path / "pay.csv"
    path.write_text("\n".join([header, *(f"KE;{n};Jane {n}" for n in range(1, 6))]) + "\n")
    result = suggest_columns(read_headings(path, ReadOptions()), PAYOUT)
    assert [one.samples[:2] for one in result] == [("KE", "KE"), ("1", "2"), ("Jane 1", "Jane 2")]
    assert {len(one.samples) for one in result} == {MAX_SAMPLES}


def test_every_column_has_readable_name() -> None:
    assert all(column_label(name) != name and column_label(name)[0].isupper() for name in known_columns())


PAYROLLS = {
    "payroll-english": "Country Code,Payment Reference,Net Pay,Currency Code,Employee Name,Account No.,Mobile No",
    "payroll-french": "Pays,Référence de paiement,Net à payer,Devise,Nom et prénoms,N° de compte,Téléphone",
    "payroll-arabic": "الدولة,client_orderid,المبلغ,العملة,اسم الموظف,رقم الحساب,رقم الهاتف",
}


@pytest.mark.parametrize("name", profile_names())
def test_payroll_with_profile_headings_reads_like_sheet(sheet: MakeSheet, name: str) -> None:
    ours = sheet(lines(GOOD))
    theirs = sheet(lines(GOOD, header=PAYROLLS[name]), aliases=merge_headings(name, {}))
    assert theirs.frame.equals(ours.frame)
    assert list(theirs.headers.values()) == next(csv.reader(io.StringIO(PAYROLLS[name])))


@pytest.mark.parametrize("name", profile_names())
def test_profile_headings_are_unambiguous_and_avoid_column_names(name: str) -> None:
    profile = read_profile(name)
    folded = [fold_heading(heading) for heading in profile]
    assert len(set(folded)) == len(folded)
    assert set(folded).isdisjoint({fold_heading(column) for column in known_columns()})
    assert set(REQUIRED_COLUMNS) <= set(profile.values()) <= set(known_columns())
    ids = [heading for heading, column in profile.items() if column == "client_orderid"]
    assert not [heading for heading in ids if any(word in heading.lower() for word in ("employ", "staff", "matric"))]


def test_ambiguous_headings_and_unknown_profiles_are_refused(sheet: MakeSheet) -> None:
    with pytest.raises(ConfigurationError, match="Did you mean payroll-english"):
        merge_headings("payrol-english", {})
    with pytest.raises(ConfigurationError, match=r"column_profile: there is no profile '\.\./forms/account'"):
        merge_headings("../forms/account", {})
    with pytest.raises(SheetError, match="'amount' and 'Net Pay' mean the same column"):
        sheet(lines(GOOD + ",9", header=HEADER + ",Net Pay"), aliases=merge_headings("payroll-english", {}))
    assert merge_headings(None, {"Net Pay": "amount", "net-pay": "amount"})
    with pytest.raises(ConfigurationError, match=r"'Net Pay' and 'NET_PAY' count as the same heading"):
        merge_headings(None, {"Net Pay": "amount", "NET_PAY": "order_desc"})


def test_configuration_overrides_profile_and_removes_headings(sheet: MakeSheet) -> None:
    headings = merge_headings("payroll-english", {"net pay": "order_desc", "MOBILE": "", "Somme": "amount"})
    assert {fold_heading(heading): column for heading, column in headings.items()}["netpay"] == "order_desc"
    assert "mobile" not in {fold_heading(heading) for heading in headings}
    assert headings["Somme"] == "amount"
    read = sheet(lines(GOOD + ",old", header=HEADER + ",Mobile"), aliases=headings)
    assert read.unknown == ("Mobile",)
