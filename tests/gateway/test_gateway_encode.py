"""An instruction is encoded as the body of its request."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paygw_batch.countries.rules import CountryRule
from paygw_batch.errors import ConfigurationError, InternalError
from paygw_batch.gateway.encode import BodyConstants, EncodedBody, encode_body
from tests.support.gateway_cases import RULES, SUPPLIES, instruction_for, rule_for

AMOUNTS = st.from_regex(r"(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{1,4})?", fullmatch=True)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)


def encode(code: str, rule: CountryRule | None = None, constants: BodyConstants = SUPPLIES, **more: Any) -> EncodedBody:
    instruction = instruction_for(code, **more)
    return encode_body(rule or RULES[code], instruction, order_id=instruction.client_orderid, constants=constants)


def read_body(encoded: EncodedBody) -> list[tuple[str, str]]:
    """Parse a body with the standard library, keeping numbers as their text."""
    pairs: list[tuple[str, str]] = json.loads(
        encoded.body, object_pairs_hook=list, parse_int=lambda digits: f"#{digits}", parse_float=lambda d: f"#{d}"
    )
    return pairs


def test_account_form_has_interface_order_and_required_fields() -> None:
    assert encode("KE").body.decode() == (
        '{"account_name":"Wanjiku Kamau","account_number":"254700123456","amount":1500.50,'
        '"client_orderid":"PAY-KE-0001","currency":"KES","phone":"+254700123456","purpose":"OPERATOR-KE",'
        '"server_callback_url":"https://merchant.example/paygw/callback?from=gateway&n=1"}'
    )
    assert "محمد أحمد".encode() in encode("EG").body
    assert b"\\u" not in encode("EG").body
    rule = rule_for("KE", omitted=frozenset({"phone", "purpose"}))
    kept = ["account_name", "account_number", "amount", "client_orderid", "currency", "server_callback_url"]
    assert [name for name, _ in encode("KE", rule).params] == kept
    assert b"purpose" not in encode("ZA").body
    rule = rule_for("KE", required=RULES["KE"].required - {"phone"})
    fields = {"account_name": "A B", "account_number": "254700123456"}
    assert b"phone" not in encode("KE", rule, fields=fields).body
    assert b"phone" not in encode("KE", rule, fields={**fields, "phone": ""}).body


@given(AMOUNTS)
def test_amount_is_json_number_with_sheet_digits(amount: str) -> None:
    assert dict(read_body(encode("KE", amount=amount)))["amount"] == f"#{amount}"


@pytest.mark.parametrize("amount", ["1e3", "1500.", ".5", "01", "-1", "1,500", "1500 ", "NaN", "", "1.12345", "\u0661"])
def test_amount_without_plain_digits_is_never_encoded(amount: str) -> None:
    with pytest.raises(InternalError):
        encode("KE", amount=amount)


@given(name=TEXTS, order_id=TEXTS)
def test_text_survives_encoding_unchanged(name: str, order_id: str) -> None:
    instruction = instruction_for("KE", fields={**instruction_for("KE").fields, "account_name": name})
    encoded = encode_body(RULES["KE"], instruction, order_id=order_id, constants=SUPPLIES)
    pairs = dict(read_body(encoded))
    assert (pairs["account_name"], pairs["client_orderid"]) == (name, order_id)


@given(amount=AMOUNTS, name=TEXTS, country=st.sampled_from(sorted(RULES)))
def test_signed_pairs_match_body_order(amount: str, name: str, country: str) -> None:
    own = "receiver_first_name" if country == "TZ" else "account_name"
    encoded = encode(country, amount=amount, fields={**instruction_for(country).fields, own: name})
    in_body = [(field, value.removeprefix("#") if field == "amount" else value) for field, value in read_body(encoded)]
    assert list(encoded.params) == in_body


def test_incomplete_instruction_or_settings_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="server_callback_url"):
        encode("KE", constants=BodyConstants({}))
    assert b"callback" not in encode("TZ", constants=BodyConstants({})).body
    with pytest.raises(ConfigurationError, match=r"countries\.KE\.payout\.purpose"):
        encode("KE", rule_for("KE", purpose=None, missing_terms=("countries.KE.payout.purpose",)))
    with pytest.raises(ConfigurationError, match="shows no payout"):
        encode("SN", rule_for("SN", form=None, unusable="The interface shows no payout for Senegal."))
    with pytest.raises(InternalError):
        encode_body(RULES["UG"], instruction_for("KE"), order_id="1", constants=SUPPLIES)
    with pytest.raises(InternalError):
        encode("KE", currency="UGX")
    with pytest.raises(ConfigurationError, match="receiver form") as caught:
        encode("KE", form="receiver")
    assert 'form = "receiver"' in caught.value.hint


@pytest.mark.parametrize(
    "fields",
    [
        *({}, {"account_name": "Wanjiku"}, {"account_name": "", "account_number": "1"}),
        {**instruction_for("KE").fields, "account_name": "Wanjiku \ud800"},
    ],
)
def test_refusal_and_repr_hide_payee(fields: dict[str, str]) -> None:
    with pytest.raises(InternalError) as caught:
        encode("KE", fields=fields)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None or caught.value.__suppress_context__
    assert "Wanjiku" not in str(caught.value)
    assert "Wanjiku" not in repr(encode("KE"))
    assert "254700123456" not in repr(encode("KE"))
