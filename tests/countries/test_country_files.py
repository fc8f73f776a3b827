"""The data files are read strictly: errors name the file and the key."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from paygw_batch.countries import data as data_files
from paygw_batch.countries.data import config_dir
from paygw_batch.countries.load import load_operation, load_rules
from paygw_batch.countries.rules import OperatorTerms
from paygw_batch.errors import ConfigurationError

Change = Callable[[str], str]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a copy of the program's own data files, for a test to change."""
    copy = tmp_path / "config"
    for part in ("countries", "forms", "operations"):
        shutil.copytree(config_dir() / part, copy / part)
    shutil.copy(config_dir() / "mobile-numbers.toml", copy)
    shutil.copy(config_dir() / "mobile-operators.toml", copy)
    return copy


def replace_text(old: str, new: str) -> Change:
    def change(text: str) -> str:
        assert text.count(old) >= 1
        return text.replace(old, new, 1)

    return change


def append_line(line: str) -> Change:
    return lambda text: text + line + "\n"


def test_copied_data_loads_as_original(data: Path) -> None:
    assert load_rules("payout", {}, data=data) == load_rules("payout", {})


@pytest.mark.parametrize(
    ("file", "change", "says"),
    [
        (
            "countries/KE.toml",
            replace_text("currency", "curency"),
            r"KE\.toml: .*currency: Field required.*curency: Extra",
        ),
        ("countries/KE.toml", replace_text('"KES"', '"kes"'), r"KE\.toml: currency: String should match"),
        (
            "countries/KE.toml",
            replace_text("minor_units = 2", 'minor_units = "2"'),
            r"minor_units: Input should be a valid int",
        ),
        (
            "countries/KE.toml",
            replace_text("minor_units = 2", "minor_units = true"),
            r"minor_units: Input should be a valid int",
        ),
        (
            "countries/KE.toml",
            replace_text("minor_units = 2", "minor_units = 7"),
            r"minor_units: Input should be less than",
        ),
        ("countries/KE.toml", lambda text: text[: text.index("[operations")], r"KE\.toml: operations: Field required"),
        (
            "countries/KE.toml",
            replace_text("operations.payout", "operations.paiout"),
            r"KE\.toml: There is no operation 'paiout'; did you",
        ),
        ("countries/KE.toml", append_line('form = "acount"'), r"no form is called 'acount'; did you mean account\?"),
        ("countries/KE.toml", append_line('omited = ["purpose"]'), r"KE\.toml: operations\.payout\.omited: Extra"),
        (
            "countries/KE.toml",
            append_line('fields = { purpse = "never" }'),
            r"KE\.toml: the account form has no field 'purpse'; did you",
        ),
        ("countries/KE.toml", append_line("max_characters = { phone = 9 }"), r"KE\.toml: phone is not a text"),
        (
            "countries/KE.toml",
            append_line("max_characters = { account_name = 257 }"),
            r"max_characters\.account_name: Input",
        ),
        (
            "countries/RW.toml",
            replace_text('"required"', '"needed"'),
            r"RW\.toml: .*fields\.account_name: Input should be",
        ),
        (
            "countries/CI.toml",
            append_line('form = "account"'),
            r"CI\.toml: .*write either a form or `unusable`, not both",
        ),
        ("countries/BN.toml", replace_text("BJ =", "KE ="), r"BN\.toml: confused_codes: KE is itself a country"),
        (
            "countries/BN.toml",
            replace_text('"95123456"', '"9512345"'),
            r"BN\.toml: former_numbers: .*the example does not",
        ),
        ("countries/BN.toml", replace_text("2024-11-30", '"soon"'), r"BN\.toml: former_numbers\.changed: "),
        (
            "countries/CI.toml",
            replace_text("[0-3]", r"\\d"),
            r"CI\.toml: former_numbers: .*cannot be used in a pattern",
        ),
        ("countries/KE.toml", replace_text("=", ""), r"config/countries/KE\.toml cannot be read: "),
        ("forms/account.toml", replace_text('"wallet"', '"walet"'), r"account\.toml: fields\.1\.kind: Input should be"),
        ("forms/account.toml", replace_text('name = "phone"', 'name = "amount"'), r".*a field is listed twice"),
        ("operations/payout.toml", replace_text("{endpoint_id}", "1234"), r"payout\.toml: path: String should match"),
        ("operations/payout.toml", replace_text('["purpose"]', '["porpoise"]'), r"payout\.toml: operator_supplies\.0"),
        (
            "operations/payout.toml",
            replace_text("[reply]", "[replies]"),
            r"payout\.toml: reply: Field required; replies: Extra",
        ),
        ("mobile-numbers.toml", replace_text("[KE]", "[KX]"), r"no mobile numbers for KE"),
        (
            "mobile-numbers.toml",
            replace_text("70123456", "7012345"),
            r"mobile-numbers\.toml: BF: .*the example does not match",
        ),
        ("mobile-numbers.toml", replace_text("0[1-7]|", r"0\d|"), r"BF: .*cannot be used in a pattern"),
        (
            "mobile-numbers.toml",
            replace_text('trunk_prefix = ""', 'trunk_prefix = "0"'),
            r"BF: .*keeps its zero has no trunk",
        ),
    ],
)
def test_invalid_file_error_names_file_and_problem(data: Path, file: str, change: Change, says: str) -> None:
    path = data / file
    path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")
    with pytest.raises(ConfigurationError) as refused:
        load_rules("payout", {}, data=data)
    assert re.search(says, refused.value.message)


def test_country_file_field_missing_in_form_is_refused(data: Path) -> None:
    path = data / "countries/CI.toml"
    path.write_text(path.read_text(encoding="utf-8") + 'fields = { phone = "never" }\n', encoding="utf-8")
    usable = load_rules("payout", {"CI": OperatorTerms(form="account", purpose="X")}, data=data)["CI"]
    assert "phone" not in usable.required
    with pytest.raises(ConfigurationError, match="the receiver form has no field 'phone'"):
        load_rules("payout", {"CI": OperatorTerms(form="receiver", purpose="X")}, data=data)


def test_optional_field_is_sent_and_not_required(data: Path) -> None:
    path = data / "countries/KE.toml"
    path.write_text(
        path.read_text(encoding="utf-8") + 'fields = { phone = "optional", purpose = "optional" }\n', encoding="utf-8"
    )
    rule = load_rules("payout", {}, data=data)["KE"]
    assert not {"phone", "purpose"} & rule.required
    assert not rule.omitted
    assert rule.missing_terms == ()


def test_country_length_limit_applies_to_operator_values(data: Path) -> None:
    path = data / "countries/TZ.toml"
    path.write_text(path.read_text(encoding="utf-8") + "max_characters = { order_desc = 5 }\n", encoding="utf-8")
    assert load_rules("payout", {}, data=data)["TZ"].max_characters == {"order_desc": 5}
    for terms in (OperatorTerms(order_desc="Salary"), OperatorTerms(defaults={"order_desc": "Salary"})):
        with pytest.raises(ConfigurationError, match="Salary: write at most 5 characters"):
            load_rules("payout", {"TZ": terms}, data=data)


def test_country_may_lack_an_operation(data: Path) -> None:
    path = data / "countries/KE.toml"
    path.write_text(re.sub(r"\[operations.payin\]\n.*\n", "", path.read_text(encoding="utf-8")), encoding="utf-8")
    assert load_rules("payout", {}, data=data) == load_rules("payout", {})
    assert load_rules("payin", {}, data=data).keys() == load_rules("payin", {}).keys() - {"KE"}
    with pytest.raises(
        ConfigurationError, match=r"countries\.KE\.payin: the gateway doesn't offer this operation there"
    ):
        load_rules("payin", {"KE": OperatorTerms(purpose="X")}, data=data)


def test_country_file_needs_code_as_name(data: Path) -> None:
    (data / "countries/KE.toml").rename(data / "countries/kenya.toml")
    with pytest.raises(ConfigurationError, match=r"kenya\.toml: a country code is two capital letters"):
        load_rules("payout", {}, data=data)


def test_non_utf_8_file_is_named(data: Path) -> None:
    (data / "countries/CI.toml").write_bytes('name = "Côte d\'Ivoire"'.encode("cp1252"))
    with pytest.raises(ConfigurationError, match=r"config/countries/CI\.toml cannot be read"):
        load_rules("payout", {}, data=data)


def test_missing_mobile_numbers_are_named(data: Path) -> None:
    (data / "mobile-numbers.toml").unlink()
    with pytest.raises(ConfigurationError, match=r"config/mobile-numbers\.toml cannot be read"):
        load_rules("payout", {}, data=data)


def test_a_second_operation_needs_only_data(data: Path) -> None:
    """A collection reduced to three fields works without any code for it."""
    (data / "forms/sale.toml").write_text(
        "".join(
            f'[[fields]]\nname = "{name}"\nkind = "{kind}"\n'
            for name, kind in (("amount", "amount"), ("client_orderid", "order_id"), ("purpose", "purpose"))
        ),
        encoding="utf-8",
    )
    payout = (data / "operations/payout.toml").read_text(encoding="utf-8")
    sale = payout.replace("/api/v4/payout/", "/api/v2/sale-form/").replace('"account"', '"sale"')
    (data / "operations/sale.toml").write_text(sale, encoding="utf-8")
    for path in (data / "countries").glob("*.toml"):
        omitted = 'fields = { purpose = "never" }\n' if path.stem == "ZA" else ""
        path.write_text(path.read_text(encoding="utf-8") + f"[operations.sale]\n{omitted}", encoding="utf-8")
    assert load_operation("sale", data=data).path == "/paynet/api/v2/sale-form/{endpoint_id}"
    rules = load_rules("sale", {"KE": OperatorTerms(purpose="X")}, data=data)
    assert rules["CI"].required == {"amount", "client_orderid", "purpose"}
    assert rules["ZA"].required == {"amount", "client_orderid"}
    assert rules["KE"].missing_terms == ()
    assert rules["UG"].missing_terms == ("countries.UG.sale.purpose",)
    assert load_rules("payout", {}, data=data) == load_rules("payout", {})


def test_packaged_data_folder_is_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "_PACKAGE", tmp_path / "paygw_batch")
    beside, inside = tmp_path / "config", tmp_path / "paygw_batch/config"
    beside.mkdir(parents=True)
    assert config_dir() == beside
    inside.mkdir(parents=True)
    assert config_dir() == inside
