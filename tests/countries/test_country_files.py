"""The data files are read strictly: errors name the file and the key."""

import re
import shutil
from pathlib import Path

import pytest

from paygw_batch.countries import data as data_files
from paygw_batch.countries.data import config_dir
from paygw_batch.countries.load import load_operation, load_rules
from paygw_batch.countries.rules import OperatorTerms
from paygw_batch.errors import ConfigurationError


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a copy of the program's own data files, for a test to change."""
    return shutil.copytree(config_dir(), tmp_path / "config")


def test_country_file_changes_fields_of_its_forms(data: Path) -> None:
    assert load_rules("payout", {}, data=data) == load_rules("payout", {})
    with (data / "countries/KE.toml").open("a", encoding="utf-8") as file:
        file.write('fields = { phone = "optional", purpose = "optional" }\n')
    rule = load_rules("payout", {}, data=data)["KE"]
    assert not {"phone", "purpose"} & rule.required
    assert (rule.omitted, rule.missing_terms) == (frozenset(), ())
    path = data / "countries/TZ.toml"
    path.write_text(path.read_text(encoding="utf-8") + "max_characters = { order_desc = 5 }\n", encoding="utf-8")
    assert load_rules("payout", {}, data=data)["TZ"].max_characters == {"order_desc": 5}
    for terms in (OperatorTerms(order_desc="Salary"), OperatorTerms(defaults={"order_desc": "Salary"})):
        with pytest.raises(ConfigurationError, match="Salary: write at most 5 characters"):
            load_rules("payout", {"TZ": terms}, data=data)
    path = data / "countries/CI.toml"
    path.write_text(path.read_text(encoding="utf-8") + 'fields = { phone = "never" }\n', encoding="utf-8")
    usable = load_rules("payout", {"CI": OperatorTerms(form="account", purpose="X")}, data=data)["CI"]
    assert "phone" not in usable.required
    with pytest.raises(ConfigurationError, match="the receiver form has no field 'phone'"):
        load_rules("payout", {"CI": OperatorTerms(form="receiver", purpose="X")}, data=data)


@pytest.mark.parametrize(
    ("file", "old", "new", "says"),
    [
        ("countries/KE", "currency", "curency", r"KE\.toml: .*currency: Field required.*curency: Extra"),
        ("countries/KE", '"KES"', '"kes"', r"KE\.toml: currency: String should match"),
        ("countries/KE", "minor_units = 2", 'minor_units = "2"', r"minor_units: Input should be a valid int"),
        ("countries/KE", "minor_units = 2", "minor_units = true", r"minor_units: Input should be a valid int"),
        ("countries/KE", "minor_units = 2", "minor_units = 7", r"minor_units: Input should be less than"),
        ("countries/KE", "operations.payout", "operations.paiout", r"KE\.toml: There is no operation 'paiout'\. Did"),
        ("countries/KE", "=", "", r"config/countries/KE\.toml cannot be read: "),
        ("countries/KE", "$", 'form = "acount"', r"there is no form 'acount'\. Did you mean account\?"),
        ("countries/KE", "$", 'omited = ["purpose"]', r"KE\.toml: operations\.payout\.omited: Extra"),
        (
            "countries/KE",
            "$",
            'fields = { purpse = "never" }',
            r"KE\.toml: the account form has no field 'purpse'\. Did",
        ),
        ("countries/KE", "$", "max_characters = { phone = 9 }", r"KE\.toml: phone is not text"),
        ("countries/KE", "$", "max_characters = { account_name = 257 }", r"max_characters\.account_name: Input"),
        ("countries/RW", '"required"', '"needed"', r"RW\.toml: .*fields\.account_name: Input should be"),
        ("countries/CI", "$", 'form = "account"', r"CI\.toml: .*write either a form or `unusable`, but not both"),
        ("countries/CI", "[0-3]", r"\\d", r"CI\.toml: former_numbers: .*cannot be used in this pattern"),
        ("countries/CI", "Cote", "C\udcf4te", r"config/countries/CI\.toml cannot be read"),  # a byte of cp1252
        ("countries/BN", "BJ =", "KE =", r"BN\.toml: confused_codes must not contain KE"),
        ("countries/BN", '"95123456"', '"9512345"', r"BN\.toml: former_numbers: .*the example does not"),
        ("countries/BN", "2024-11-30", '"soon"', r"BN\.toml: former_numbers\.changed: "),
        ("forms/account", '"wallet"', '"walet"', r"account\.toml: fields\.1\.kind: Input should be"),
        ("forms/account", 'name = "phone"', 'name = "amount"', r".*a field is listed twice"),
        ("operations/payout", "{endpoint_id}", "1234", r"payout\.toml: path: String should match"),
        ("operations/payout", '["purpose"]', '["porpoise"]', r"payout\.toml: operator_supplies\.0"),
        ("operations/payout", "[reply]", "[replies]", r"payout\.toml: reply: Field required; replies: Extra"),
        ("mobile-numbers", "[KE]", "[KX]", r"no mobile numbers for KE"),
        ("mobile-numbers", "70123456", "7012345", r"mobile-numbers\.toml: BF: .*the example does not match"),
        ("mobile-numbers", "0[1-7]|", r"0\d|", r"BF: .*cannot be used in this pattern"),
        ("mobile-numbers", 'trunk_prefix = ""', 'trunk_prefix = "0"', r"BF: .*keeps its zero cannot have a trunk"),
    ],
)
def test_invalid_data_file_error_shows_problem(data: Path, file: str, old: str, new: str, says: str) -> None:
    """Text `old` is replaced by `new`, or `new` is appended."""
    path = data / f"{file}.toml"
    text = path.read_text(encoding="utf-8") + "$"
    assert old in text
    text = text.replace(old, new, 1).removesuffix("$")
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigurationError) as refused:
        load_rules("payout", {}, data=data)
    assert re.search(says, refused.value.message)


def test_country_without_operations_or_misnamed_is_refused(data: Path) -> None:
    path = data / "countries/KE.toml"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.partition("[operations")[0], encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"KE\.toml: operations: Field required"):
        load_rules("payout", {}, data=data)
    path.write_text(text, encoding="utf-8")
    misnamed = path.rename(data / "countries/kenya.toml")
    with pytest.raises(ConfigurationError, match=r"kenya\.toml: a country code must be two capital letters"):
        load_rules("payout", {}, data=data)
    misnamed.rename(path)
    (data / "mobile-numbers.toml").unlink()
    with pytest.raises(ConfigurationError, match=r"config/mobile-numbers\.toml cannot be read"):
        load_rules("payout", {}, data=data)


def test_country_may_lack_an_operation(data: Path) -> None:
    path = data / "countries/KE.toml"
    path.write_text(re.sub(r"\[operations.payin\]\n.*\n", "", path.read_text(encoding="utf-8")), encoding="utf-8")
    assert load_rules("payout", {}, data=data) == load_rules("payout", {})
    assert load_rules("payin", {}, data=data).keys() == load_rules("payin", {}).keys() - {"KE"}
    with pytest.raises(ConfigurationError, match=r"countries\.KE\.payin: the gateway does not offer this operation"):
        load_rules("payin", {"KE": OperatorTerms(purpose="X")}, data=data)


def test_new_operation_needs_only_data_files(data: Path) -> None:
    """A collection reduced to three fields works without any code for it."""
    fields = (("amount", "amount"), ("client_orderid", "order_id"), ("purpose", "purpose"))
    form = "".join(f'[[fields]]\nname = "{name}"\nkind = "{kind}"\n' for name, kind in fields)
    (data / "forms/sale.toml").write_text(form, encoding="utf-8")
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
    assert (rules["KE"].missing_terms, rules["UG"].missing_terms) == ((), ("countries.UG.sale.purpose",))
    assert load_rules("payout", {}, data=data) == load_rules("payout", {})


def test_packaged_data_folder_is_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "_PACKAGE", tmp_path / "paygw_batch")
    beside, inside = tmp_path / "config", tmp_path / "paygw_batch/config"
    beside.mkdir(parents=True)
    assert config_dir() == beside
    inside.mkdir(parents=True)
    assert config_dir() == inside
