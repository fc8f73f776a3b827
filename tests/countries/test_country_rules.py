"""Country rules, from the gateway's interface, the operator's terms, and the data files."""

import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paygw_batch.countries import data as data_files
from paygw_batch.countries.data import config_dir
from paygw_batch.countries.load import load_operation, load_rules
from paygw_batch.countries.rules import FieldKind, Form, FormField, OperatorTerms, Rules
from paygw_batch.errors import ConfigurationError


# These come from the gateway's interface (sections 1, 2.2, 2.4) and ISO 4217, deliberately not from the data files.
def from_sheet(**kinds: FieldKind) -> tuple[FormField, ...]:
    return tuple(FormField(name, kind, from_sheet=True) for name, kind in kinds.items())


SENT = {"amount": FieldKind.AMOUNT, "client_orderid": FieldKind.ORDER_ID, "currency": FieldKind.CURRENCY}
ACCOUNT = Form(
    "account",
    (
        *from_sheet(account_name=FieldKind.TEXT, account_number=FieldKind.WALLET, **SENT),
        *from_sheet(phone=FieldKind.INTERNATIONAL_PHONE, purpose=FieldKind.PURPOSE),
        FormField("server_callback_url", FieldKind.OPERATOR_URL, from_sheet=False),
    ),
)
RECEIVER = Form(
    "receiver",
    (
        *from_sheet(**SENT, ipaddress=FieldKind.IPV4, order_desc=FieldKind.TEXT, purpose=FieldKind.PURPOSE),
        *from_sheet(receiver_country_code=FieldKind.COUNTRY, receiver_email=FieldKind.EMAIL),
        *from_sheet(receiver_first_name=FieldKind.TEXT, receiver_last_name=FieldKind.TEXT),
        *from_sheet(receiver_phone=FieldKind.LOCAL_PHONE),
    ),
    (("account_name", ("receiver_first_name", "receiver_last_name")), ("phone", ("receiver_phone",))),
)


class Facts(NamedTuple):
    """The facts about one country from the interface and the numbering plan."""

    name: str
    currency: str
    minor_units: int
    form: Form | None
    dialling_code: str
    trunk_prefix: str = "0"
    keeps_zero: bool = False
    omitted: frozenset[str] = frozenset()


FACTS = {
    "KE": Facts("Kenya", "KES", 2, ACCOUNT, "254"),
    "TZ": Facts("Tanzania", "TZS", 2, RECEIVER, "255"),
    "UG": Facts("Uganda", "UGX", 0, ACCOUNT, "256"),
    "GH": Facts("Ghana", "GHS", 2, ACCOUNT, "233"),
    "NG": Facts("Nigeria", "NGN", 2, ACCOUNT, "234"),
    "ZM": Facts("Zambia", "ZMW", 2, ACCOUNT, "260"),
    "RW": Facts("Rwanda", "RWF", 0, ACCOUNT, "250"),
    "EG": Facts("Egypt", "EGP", 2, ACCOUNT, "20"),
    "ZA": Facts("South Africa", "ZAR", 2, ACCOUNT, "27", omitted=frozenset({"purpose"})),
    "BF": Facts("Burkina Faso", "XOF", 0, None, "226", "", keeps_zero=True),
    "CI": Facts("Cote d'Ivoire", "XOF", 0, None, "225", "", keeps_zero=True),
    "SN": Facts("Senegal", "XOF", 0, None, "221", ""),
    "GN": Facts("Guinea", "XOF", 0, None, "224", ""),
    "BN": Facts("Benin", "XOF", 0, None, "229", "", keeps_zero=True),
}
XOF_ZONE = [code for code, facts in FACTS.items() if facts.currency == "XOF"]
COUNTRIES = sorted(FACTS)
ASK_FOR_PURPOSE = sorted(FACTS.keys() - {"ZA", *XOF_ZONE})


def load_or_message(terms: Mapping[str, OperatorTerms]) -> tuple[Rules, str]:
    try:
        return load_rules("payout", terms), ""
    except ConfigurationError as refused:
        return {}, refused.message


@pytest.mark.parametrize("code", COUNTRIES)
def test_country_rule_matches_interface(code: str) -> None:
    rules = load_rules("payout", {})
    rule, facts, numbers = rules[code], FACTS[code], rules[code].numbers
    assert sorted(rules) == COUNTRIES
    assert (rule.code, rule.name, rule.currency) == (code, facts.name, facts.currency)
    assert (rule.minor_units, rule.form, rule.omitted) == (facts.minor_units, facts.form, facts.omitted)
    assert (numbers.dialling_code, numbers.trunk_prefix) == (facts.dialling_code, facts.trunk_prefix)
    assert numbers.keeps_zero == facts.keeps_zero
    assert rule.demonym
    shown = {field.name for field in rule.form.fields} if rule.form else set()
    assert rule.required == shown - rule.omitted


def test_country_special_cases_have_rules() -> None:
    rules = load_rules("payout", {})
    assert any("cash only" in note for note in rules["EG"].notes)
    confused = {code: rule.confused_codes for code, rule in rules.items() if rule.confused_codes}
    assert confused == {"BN": {"BJ": "The gateway's code for Benin is BN, not BJ."}}
    defaults = {code: rule.defaults for code, rule in rules.items() if rule.defaults}
    assert defaults == {"TZ": {"ipaddress": "127.0.0.1", "order_desc": "Payout"}}
    assert (rules["ZA"].missing_terms, rules["ZA"].unusable, rules["ZA"].purpose) == ((), "", None)


@pytest.mark.parametrize("code", ASK_FOR_PURPOSE)
def test_country_without_purpose_reports_missing_setting(code: str) -> None:
    without = load_rules("payout", {})[code]
    assert (without.purpose, without.missing_terms) == (None, (f"countries.{code}.payout.purpose",))
    assert without.unusable == ""
    given_one = load_rules("payout", {code: OperatorTerms(purpose="INVENTED-WALLET")})[code]
    assert (given_one.purpose, given_one.missing_terms) == ("INVENTED-WALLET", ())


@pytest.mark.parametrize("code", XOF_ZONE)
def test_xof_country_needs_form_and_purpose(code: str) -> None:
    cases: Any = (({}, ["form", "purpose"]), ({"form": "account"}, ["purpose"]), ({"purpose": "INVENTED"}, ["form"]))
    for terms, missing in cases:
        rule = load_rules("payout", {code: OperatorTerms(**terms)})[code]
        assert (rule.form, rule.required) == (None, frozenset())
        assert FACTS[code].name in rule.unusable
        assert "does not cover payouts" in rule.unusable
        assert rule.missing_terms == tuple(f"countries.{code}.payout.{name}" for name in missing)
    for form in (ACCOUNT, RECEIVER):
        rule = load_rules("payout", {code: OperatorTerms(form=form.name, purpose="INVENTED")})[code]
        assert (rule.form, rule.unusable, rule.missing_terms) == (form, "", ())
        assert rule.required == {field.name for field in form.fields}


def test_operator_terms_override_rule_defaults() -> None:
    terms = {
        "TZ": OperatorTerms(purpose="INVENTED", ipaddress="192.0.2.7", order_desc="Wages"),
        "KE": OperatorTerms(purpose="INVENTED", min_amount=Decimal(10), max_amount=Decimal("10.00")),
    }
    rules = load_rules("payout", terms)
    assert rules["TZ"].defaults == {"ipaddress": "192.0.2.7", "order_desc": "Wages"}
    assert (rules["KE"].min_amount, rules["KE"].max_amount) == (Decimal(10), Decimal("10.00"))
    banked = OperatorTerms(purpose="INVENTED", bank_account_pattern="[0-9]{10}|[0-9]{13}")
    pattern = f"^{load_rules('payout', {'KE': banked})['KE'].bank_account_pattern}$"
    assert re.search(pattern, "0123456789")
    assert re.search(pattern, "0123456789012")
    assert not re.search(pattern, "0123456789x")
    assert not re.search(pattern, "x0123456789012")


@pytest.mark.parametrize(
    ("code", "terms", "sentence"),
    [
        ("KR", {}, r"countries\.KR: there is no such country\. Did you mean"),
        ("ke", {}, r"countries\.ke: there is no such country\. Did you mean KE\?"),
        ("BJ", {}, r"countries\.BJ: The gateway's code for Benin is BN"),
        ("BF", {"form": "acount"}, r"countries\.BF\.payout\.form: .*'acount'\. Did you mean account\?"),
        ("KE", {"form": "receiver"}, r"countries\.KE\.payout\.form: remove this setting"),
        ("ZA", {"purpose": "X"}, r"countries\.ZA\.payout\.purpose: purpose is never sent for South Africa"),
        ("KE", {"order_desc": "X"}, r"countries\.KE\.payout\.order_desc: the account form has no order_desc"),
        ("KE", {"purpose": " "}, r"countries\.KE\.payout\.purpose: this must be one non-empty line"),
        ("KE", {"purpose": "A\nB"}, r"countries\.KE\.payout\.purpose: this must be one non-empty line"),
        ("TZ", {"ipaddress": "10.0.0.256"}, r"countries\.TZ\.payout\.ipaddress: '10.0.0.256' is not an"),
        ("KE", {"min_amount": 20, "max_amount": 10}, r"countries\.KE\.payout: min_amount 20 is above max_amount 10"),
        ("UG", {"min_amount": "10.5"}, r"countries\.UG\.payout\.min_amount: 10.5 is not a valid UGX amount"),
        ("KE", {"max_amount": "NaN"}, r"countries\.KE\.payout\.max_amount: NaN is not a valid KES amount"),
        ("KE", {"max_amount": 0}, r"countries\.KE\.payout\.max_amount: 0 is not a valid KES amount"),
        ("KE", {"bank_account_pattern": "[0-9"}, r"bank_account_pattern: the pattern cannot be read"),
        ("KE", {"bank_account_pattern": r"\d+"}, r"bank_account_pattern: .* digits as \[0-9\]"),
        ("KE", {"bank_account_pattern": "(?=1)1"}, r"bank_account_pattern: '\(\?=' cannot be used"),
        ("KE", {"bank_account_pattern": "[0-9]*"}, r"bank_account_pattern: .* must not accept an empty account"),
        ("TZ", {"bank_account_pattern": "[0-9]+"}, r"the receiver form has no account number"),
    ],
)
def test_error_about_impossible_terms_names_setting(code: str, terms: dict[str, Any], sentence: str) -> None:
    exact: dict[str, Any] = {key: Decimal(value) if key.endswith("_amount") else value for key, value in terms.items()}
    assert re.search(sentence, load_or_message({code: OperatorTerms(**exact)})[1])


def test_all_wrong_terms_are_reported_together() -> None:
    wrong = {"XX": OperatorTerms(), "ZA": OperatorTerms(purpose="X")}
    _, message = load_or_message({**wrong, "TZ": OperatorTerms(form="account", ipaddress="here")})
    settings = [line.split(":")[0].removeprefix("countries.") for line in message.splitlines()]
    assert settings == ["XX", "TZ.payout.form", "TZ.payout.ipaddress", "ZA.payout.purpose"]


@pytest.mark.parametrize("load", [load_operation, lambda name: load_rules(name, {})], ids=["operation", "rules"])
def test_error_about_unknown_operation_suggests_nearest(load: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"There is no operation 'payuot'\. Did you mean payout\?"):
        load("payuot")


def test_loaded_rules_cannot_be_changed() -> None:
    rules: Any = load_rules("payout", {})
    with pytest.raises(TypeError):
        rules["KE"] = replace(rules["KE"], currency="USD")
    with pytest.raises(TypeError):
        rules["TZ"].defaults["order_desc"] = "other"


one_line = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=12)
possible_terms = st.builds(
    OperatorTerms,
    purpose=st.none() | one_line,
    form=st.none() | st.sampled_from(["account", "receiver"]),
    order_desc=st.none() | one_line,
    min_amount=st.none() | st.integers(1, 10**6).map(Decimal),
    max_amount=st.none() | st.integers(1, 10**6).map(Decimal),
)


@given(st.dictionaries(st.sampled_from(COUNTRIES), possible_terms, max_size=4))
def test_country_is_payable_or_gives_reason(terms: dict[str, OperatorTerms]) -> None:
    """Any terms are either refused by name, or each country is complete or names what is missing."""
    rules, refusal_message = load_or_message(terms)
    assert all(line.startswith("countries.") for line in refusal_message.splitlines())
    for code, rule in rules.items():
        assert (rule.form is None) == bool(rule.unusable)
        names = {field.name for field in rule.form.fields} if rule.form else set()
        assert rule.required <= names - rule.omitted
        assert rule.defaults.keys() <= names
        if not rule.missing_terms:
            assert rule.form is not None
            assert ("purpose" in rule.required) == (rule.purpose is not None)
        own = terms.get(code, OperatorTerms())
        assert (rule.purpose, rule.min_amount, rule.max_amount) == (own.purpose, own.min_amount, own.max_amount)
        if rule.min_amount is not None and rule.max_amount is not None:
            assert rule.min_amount <= rule.max_amount


# The data files are read strictly: errors name the file and the key.
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
        with pytest.raises(ConfigurationError, match="Salary: enter at most 5 characters"):
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
        ("countries/KE", "$", 'fields = { purpse = "never" }', r"the account form has no field 'purpse'\. Did"),
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
def test_error_about_invalid_data_file_names_problem(data: Path, file: str, old: str, new: str, says: str) -> None:
    """Text `old` is replaced by `new`, or `new` is appended."""
    path = data / f"{file}.toml"
    text = path.read_text(encoding="utf-8") + "$"
    assert old in text
    text = text.replace(old, new, 1).removesuffix("$")
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigurationError) as refused:
        load_rules("payout", {}, data=data)
    assert re.search(says, refused.value.message)


def test_country_may_lack_only_some_operations(data: Path) -> None:
    path = data / "countries/KE.toml"
    path.write_text(re.sub(r"\[operations.payin\]\n.*\n", "", path.read_text(encoding="utf-8")), encoding="utf-8")
    assert load_rules("payout", {}, data=data) == load_rules("payout", {})
    assert load_rules("payin", {}, data=data).keys() == load_rules("payin", {}).keys() - {"KE"}
    with pytest.raises(ConfigurationError, match=r"countries\.KE\.payin: the gateway does not offer this operation"):
        load_rules("payin", {"KE": OperatorTerms(purpose="X")}, data=data)
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
