"""A field that only data adds to a form is read, cleaned, checked, sent and shown."""

import ast
import json
import shutil
from pathlib import Path

import apsw
import pytest

from paygw_batch.countries import data as data_files
from paygw_batch.countries.form_columns import COMMON_COLUMNS, sheet_columns
from paygw_batch.countries.rules import FieldKind
from paygw_batch.errors import ConfigurationError
from paygw_batch.sheet.columns import RECONCILIATION_COLUMNS
from tests.cli.sheets import fill_worksheet, help_examples
from tests.support.program import HEADING, KENYAN, ROOT, Program, read_csv

FIELD = "further_field"


ERROR, OTHER_PHONE = ("#N/A", "error_mark"), ("+255621234567", "country")
OF_A_SHEET = {
    FieldKind.TEXT: ("  Kilimani\u200b ", "Kilimani", *ERROR),
    FieldKind.INTERNATIONAL_PHONE: ("0712 345-678", "+254712345678", *OTHER_PHONE),
    FieldKind.MASKED_PHONE: ("0712 345-678", "+254712345678", *OTHER_PHONE),
    FieldKind.LOCAL_PHONE: ("+254 712 345 678", "0712345678", *OTHER_PHONE),
    FieldKind.WALLET: ("(0712) 345 678", "254712345678", *OTHER_PHONE),
    FieldKind.COUNTRY: (" ke", "KE", "TZ", "mismatch"),
    FieldKind.EMAIL: (" jane@example.com ", "jane@example.com", "jane", "format"),
    FieldKind.IPV4: (" 192.0.2.7", "192.0.2.7", "192.0.2.300", "format"),
    FieldKind.POSTAL_CODE: ("00100 ", "00100", "00/100", "format"),
}
"""The text in a new column, the value that is sent for it, and a refused text with its code."""
OF_EVERY_ROW = (
    *(FieldKind.ORDER_ID, FieldKind.AMOUNT, FieldKind.CURRENCY, FieldKind.PURPOSE, FieldKind.COUNTRY),
    FieldKind.OPERATOR_URL,
)
"""Kinds that a form can have twice without a column."""
TYPED_BY_NECESSITY = {"core/batch.py", "countries/data.py", "countries/rules.py"}
"""Names that code must contain: keys of an operator's terms, the field kind `email`, and an ending of payee fields."""


@pytest.fixture
def data_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copy the data files, and make the program read the copy."""
    copy = tmp_path / "data"
    shutil.copytree(ROOT / "config", copy)
    monkeypatch.setattr(data_files, "config_dir", lambda: copy)
    return copy


def add_field(data: Path, kind: FieldKind, *, name: str = FIELD, further: str = "") -> None:
    with (data / "forms" / "account.toml").open("a", encoding="utf-8") as form:
        form.write(f'\n[[fields]]\nname = "{name}"\nkind = "{kind}"\n{further}')


def write_sheet(program: Program, value: str, name: str = "payroll.csv") -> Path:
    row = KENYAN.format(id="PAY-1", amount="1500.50", n=1)
    return program.sheet([f'{row},"{value}"'], name, f"{HEADING},Further Field")


def test_every_kind_of_field_is_tested() -> None:
    # The control depends on the operator's terms. Only collections have one, and their samples are collected.
    assert {*OF_A_SHEET, *OF_EVERY_ROW, FieldKind.CONTROL} == set(FieldKind)


@pytest.mark.share(3)
@pytest.mark.parametrize("kind", OF_A_SHEET)
def test_new_field_is_cleaned_sent_and_reconciled(program: Program, data_copy: Path, kind: FieldKind) -> None:
    add_field(data_copy, kind)
    written, sent, _, _ = OF_A_SHEET[kind]
    summary = program.json("submit", write_sheet(program, written))
    assert (summary["exit_code"], summary["states"]) == (0, {"paid": 1}), summary["message"]
    with_field = apsw.Connection(str(program.journal)).execute("SELECT fields FROM instruction").get
    assert json.loads(with_field)[FIELD] == sent
    (line,) = read_csv(summary["reconciliation"])
    assert line[FIELD].strip("'") == written, "the reconciliation shows the sheet's own text"


def test_country_file_limits_length_of_text_field(program: Program, data_copy: Path) -> None:
    add_field(data_copy, FieldKind.TEXT)
    with (data_copy / "countries" / "KE.toml").open("a", encoding="utf-8") as country:
        country.write(f"max_characters = {{ {FIELD} = 9 }}\n")
    (defect,) = program.json("validate", write_sheet(program, "Kilimani E"))["defect_list"]
    assert defect["message"] == "Kilimani E: enter at most 9 characters, on one line, without tabs."
    assert program.json("validate", write_sheet(program, "Kilimani"))["defect_list"] == []
    program.json("template", "KE", "--out", program.home / "new.xlsx")
    (row,) = help_examples(program.home / "new.xlsx")
    assert row[FIELD] == "Example P"


@pytest.mark.parametrize("kind", OF_A_SHEET)
def test_new_field_is_checked_and_has_example(program: Program, data_copy: Path, kind: FieldKind) -> None:
    add_field(data_copy, kind)
    _, _, wrong, code = OF_A_SHEET[kind]
    rejects, template = program.home / "rejects.csv", program.home / "new.xlsx"
    (defect,) = program.json("validate", write_sheet(program, wrong), "--rejects", rejects)["defect_list"]
    assert (defect["column"], defect["code"]) == (FIELD, f"{FIELD}.{code}")
    (line,) = read_csv(rejects)
    assert (line["Further Field"].strip("'"), defect["message"] in line["problems"]) == (wrong, True)
    if kind is FieldKind.COUNTRY:
        return  # a sheet has a country already
    program.json("template", "KE", "--out", template)
    (row,) = help_examples(template)
    assert row[FIELD], "the help gives an example"
    fill_worksheet(template, [row])
    assert program.json("validate", template)["defect_list"] == []
    lacking = program.run("validate", program.sheet([KENYAN.format(id="PAY-1", amount="1", n=1)], "lacking.csv"))
    assert f"does not have these columns: {FIELD} (needed for" in lacking.stderr


@pytest.mark.share(3)
@pytest.mark.parametrize("kind", OF_EVERY_ROW)
def test_configured_field_is_sent_for_every_row(program: Program, data_copy: Path, kind: FieldKind) -> None:
    name = "site_url" if kind is FieldKind.OPERATOR_URL else FIELD  # an address is configured by the name of the field
    add_field(data_copy, kind, name=name, further="from_sheet = false\n")
    summary = program.json("submit", program.sheet([KENYAN.format(id="PAY-1", amount="1500.50", n=1)]))
    # The gateway refuses a body without a field of its form, or with another value than the row's.
    assert (summary["exit_code"], summary["states"]) == (0, {"paid": 1}), summary["message"]


def test_operation_field_becomes_sheet_column(data_copy: Path) -> None:
    text = (data_copy / "operations" / "payout.toml").read_text(encoding="utf-8")
    add_field(data_copy, FieldKind.TEXT)
    listed = text.replace('    "phone",\n', f'    "{FIELD}",\n    "phone",\n')
    (data_copy / "operations" / "payout.toml").write_text(listed, encoding="utf-8")
    columns = sheet_columns(data=data_copy).by_operation
    assert columns["payout"].index(FIELD) == columns["payout"].index("phone") - 1
    assert FIELD not in columns["payin"]


@pytest.mark.parametrize(
    ("field", "said"),
    [
        (f'name = "{FIELD}"\nkind = "amount"\n', "write from_sheet = false"),
        (f'name = "{FIELD}"\nkind = "control"\n', "write from_sheet = false"),
        (f'name = "{FIELD}"\nkind = "text"\nfrom_sheet = false\n', "must come from the sheet"),
        ('name = "order_desc"\nkind = "wallet"\n', "cleaned differently"),
    ],
)
def test_invalid_field_definition_is_refused(data_copy: Path, field: str, said: str) -> None:
    with (data_copy / "forms" / "account.toml").open("a", encoding="utf-8") as form:
        form.write(f"\n[[fields]]\n{field}")
    with pytest.raises(ConfigurationError, match=said):
        sheet_columns(data=data_copy)


def test_no_module_names_fields_of_forms() -> None:
    names = set(sheet_columns().cleanings) - {*COMMON_COLUMNS, *RECONCILIATION_COLUMNS}
    package = ROOT / "paygw_batch"
    found = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in names
    }
    assert found == TYPED_BY_NECESSITY
