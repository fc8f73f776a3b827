"""Collections as sent: golden requests of every country, the control hash, and the customer's page."""

import hashlib
import hmac
import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.countries.load import load_operation
from paygw_batch.countries.rules import AmountForm
from paygw_batch.errors import InternalError
from paygw_batch.gateway.classify import MAX_URL_CHARACTERS, classify
from paygw_batch.gateway.encode import ControlAlgorithm, ControlAmount, ControlPart, ControlProfile, encode_body
from paygw_batch.gateway.message import ExpectedReply, RawReply
from paygw_batch.gateway.signing.key import PrivateKey
from paygw_batch.sandbox.form import ControlRule, has_valid_control
from tests.gateway import collection_cases as cases
from tests.support.gateway_cases import GOLDEN, request_bytes, split_request

OPERATION, RULES, URLS = cases.OPERATION, cases.RULES, cases.URLS
WORDS = {"approved": OutcomeKind.PAID}
EXPECTED = ExpectedReply("COL-1", Decimal("1500.5"), "KES", tuple(URLS.values()))


# Section 2.4, rule 5 of the gateway's interface, in the order of the table in 2.1.
EVERYWHERE = [
    *("address1", "amount", "cell_phone", "city", "client_orderid", "control", "country", "currency", "email"),
    *("first_name", "last_name", "ipaddress", "order_desc", "phone", "purpose", "redirect_url"),
    *("server_callback_url", "site_url", "zip_code"),
]


@pytest.mark.parametrize("path", cases.EVERY_REQUEST, ids=lambda path: path.name)
def test_golden_collection_has_fields_and_control_hash(key: PrivateKey, path: Path) -> None:
    profile, country, form = cases.EVERY_REQUEST[path]
    request = request_bytes(cases.prepare_golden_request(key, profile, country, form))
    assert request == path.read_bytes()
    first, _, body = split_request(request)
    assert first == "POST /paynet/api/v2/sale-form/1234 HTTP/1.1"
    pairs: list[tuple[str, Any]] = json.loads(body, object_pairs_hook=list, parse_int=Decimal, parse_float=Decimal)
    never = {"KE": "cell_phone", "ZA": "purpose"}.get(country)
    more = {"KE": ["merchant_data"], "RW": ["account_name"]}.get(country, [])
    assert [name for name, _ in pairs] == [name for name in EVERYWHERE if name != never] + more
    values = dict(pairs)
    amount = f"{Decimal(cases.sample_amount(country)):.2f}"
    assert values["amount"] == (amount if form is AmountForm.TWO_DECIMALS else Decimal(cases.sample_amount(country)))
    hashed = f"COL-{country}-0001|{amount}|{values['currency']}|a secret of the tests"
    assert values["control"] == hashlib.sha256(hashed.encode()).hexdigest()
    assert values.get("purpose") == RULES[country].purpose
    assert {name: values[name] for name in URLS} == URLS
    assert values["country"] == country
    assert b"a secret of the tests" not in body


def test_every_country_has_golden_collection_request() -> None:
    assert {*(GOLDEN / "payin").glob("*.http")} == {*cases.EVERY_REQUEST}


@given(
    order=st.permutations(list(ControlPart)).map(tuple),
    separator=st.text(max_size=3),
    form=st.sampled_from(AmountForm),
    control_amount=st.sampled_from(ControlAmount),
    secret=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20),
    country=st.sampled_from(sorted(RULES)),
    cents=st.integers(1, 10**9),
    algorithm=st.sampled_from(ControlAlgorithm),
)
def test_sandbox_computes_same_control_hash(
    order: tuple[ControlPart, ...],
    separator: str,
    form: AmountForm,
    control_amount: ControlAmount,
    secret: str,
    country: str,
    cents: int,
    algorithm: ControlAlgorithm,
) -> None:
    units = RULES[country].minor_units
    amount = str(cents) if units == 0 else f"{cents // 100}.{cents % 100:02}"
    profile = ControlProfile(order, separator.encode("utf-8", "replace").decode(), control_amount, secret, algorithm)
    instruction = cases.instruction_for(country, amount)
    sent = cases.constants(form, profile)
    encoded = encode_body(RULES[country], instruction, order_id=instruction.client_orderid, constants=sent)
    fields = dict(encoded.params)
    keyed = algorithm is ControlAlgorithm.HMAC_SHA256
    rule = ControlRule(tuple(part.value for part in order), profile.separator, control_amount.value, secret, keyed)
    assert has_valid_control(rule, fields, minor_units=units)
    assert not has_valid_control(rule, {**fields, "client_orderid": fields["client_orderid"] + "0"}, minor_units=units)
    assert not has_valid_control(replace(rule, secret=secret + "x"), fields, minor_units=units)
    assert not has_valid_control(replace(rule, is_keyed=not keyed), fields, minor_units=units)


@pytest.mark.parametrize(
    ("control_amount", "text"),
    [
        (ControlAmount.AS_SENT, "COL-1,1500.5,KES"),
        (ControlAmount.TWO_DECIMALS, "COL-1,1500.50,KES"),
        (ControlAmount.MINOR_UNITS, "COL-1,150050,KES"),
    ],
)
def test_control_hash_covers_amount_in_configured_format(control_amount: ControlAmount, text: str) -> None:
    order = (ControlPart.ORDER_ID, ControlPart.AMOUNT, ControlPart.CURRENCY)
    profile, instruction = ControlProfile(order, ",", control_amount), cases.instruction_for("KE", "1500.5")
    given_parts: dict[str, Any] = {"order_id": "COL-1", "amount_sent": "1500.5", "minor_units": 2}
    assert profile.text(instruction, **given_parts) == text
    assert profile.control(instruction, **given_parts) == hashlib.sha256(text.encode()).hexdigest()
    keyed = ControlProfile(order, ",", control_amount, "Jefe", ControlAlgorithm.HMAC_SHA256)
    assert keyed.control(instruction, **given_parts) == hmac.new(b"Jefe", text.encode(), "sha256").hexdigest()
    assert "Jefe" not in repr(keyed)


def test_collection_hides_secret_and_refuses_extra_decimals() -> None:
    assert "a secret of the tests" not in repr(cases.PROFILE)
    assert "a secret of the tests" not in repr(cases.constants())
    three_decimals, sent = cases.instruction_for("KE", "1.005"), cases.constants(AmountForm.TWO_DECIMALS)
    with pytest.raises(InternalError):
        encode_body(RULES["KE"], three_decimals, order_id="COL-1", constants=sent)


@pytest.mark.parametrize(
    ("members", "url"),
    [
        *(({name: "https://pay.example/f?1"}, "https://pay.example/f?1") for name in OPERATION.reply.customer_url),
        *(({"redirect_url": value}, None) for value in (None, 7, "", "javascript:alert(1)", "=HYPERLINK()")),
        *(({"redirect_url": value}, None) for value in ("https://pay.example/a b", "https://pay.example/\n")),
        *(({"redirect_url": value}, None) for value in ("https://" + "a" * MAX_URL_CHARACTERS, URLS["redirect_url"])),
        ({"redirect_url": URLS["site_url"]}, None),
        ({"redirect-url": URLS["redirect_url"], "url": "https://pay.example/1"}, "https://pay.example/1"),
        ({"client_orderid": "COL-2", "redirect_url": "https://pay.example/1"}, None),
    ],
)
def test_only_valid_customer_url_is_read_from_reply(members: dict[str, object], url: str | None) -> None:
    reply = RawReply(200, (), json.dumps({"status": "approved", **members}).encode())
    assert classify(reply, EXPECTED, WORDS, OPERATION).outcome.customer_url == url
    assert classify(reply, EXPECTED, WORDS, load_operation("payout")).outcome.customer_url is None
