"""Column profiles: valid data, and the precedence of headings."""

import csv
import io

import pytest

from paygw_batch.errors import ConfigurationError, SheetError
from paygw_batch.sheet.columns import REQUIRED_COLUMNS, known_columns
from paygw_batch.sheet.read.headings import fold_heading
from paygw_batch.sheet.read.profiles import merge_headings, profile_names, read_profile
from tests.support.sheet_values import GOOD, HEADER, MakeSheet, lines

PAYROLLS = {
    "payroll-english": "Country Code,Payment Reference,Net Pay,Currency Code,Employee Name,Account No.,Mobile No",
    "payroll-french": "Pays,Référence de paiement,Net à payer,Devise,Nom et prénoms,N° de compte,Téléphone",
    "payroll-arabic": "الدولة,client_orderid,المبلغ,العملة,اسم الموظف,رقم الحساب,رقم الهاتف",
}


def test_every_profile_is_tested() -> None:
    assert profile_names() == sorted(PAYROLLS)


@pytest.mark.parametrize("name", sorted(PAYROLLS))
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


@pytest.mark.parametrize("name", profile_names())
def test_profile_never_reads_employee_number_as_id(name: str) -> None:
    ids = [heading for heading, column in read_profile(name).items() if column == "client_orderid"]
    assert not [heading for heading in ids if any(word in heading.lower() for word in ("employ", "staff", "matric"))]


def test_unknown_profile_error_suggests_nearest() -> None:
    with pytest.raises(ConfigurationError, match="did you mean payroll-english"):
        merge_headings("payrol-english", {})
    with pytest.raises(ConfigurationError, match=r"column_profile: no profile is called '\.\./forms/account'"):
        merge_headings("../forms/account", {})


def test_configuration_overrides_profile_and_removes_headings(sheet: MakeSheet) -> None:
    headings = merge_headings("payroll-english", {"net pay": "order_desc", "MOBILE": "", "Somme": "amount"})
    assert {fold_heading(heading): column for heading, column in headings.items()}["netpay"] == "order_desc"
    assert "mobile" not in {fold_heading(heading) for heading in headings}
    assert headings["Somme"] == "amount"
    read = sheet(lines(GOOD + ",old", header=HEADER + ",Mobile"), aliases=headings)
    assert read.unknown == ("Mobile",)


def test_two_columns_of_same_meaning_refuse_sheet(sheet: MakeSheet) -> None:
    with pytest.raises(SheetError, match="'amount' and 'Net Pay' name the same column"):
        sheet(lines(GOOD + ",9", header=HEADER + ",Net Pay"), aliases=merge_headings("payroll-english", {}))


def test_heading_with_two_configured_meanings_is_refused() -> None:
    assert merge_headings(None, {"Net Pay": "amount", "net-pay": "amount"})
    with pytest.raises(ConfigurationError, match=r"'Net Pay' and 'NET_PAY' are the same heading"):
        merge_headings(None, {"Net Pay": "amount", "NET_PAY": "order_desc"})
