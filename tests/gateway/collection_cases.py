"""One collection for each country, from section 2.1 of the gateway's interface, and its golden request."""

from dataclasses import replace

from paygw_batch.core.batch import Instruction
from paygw_batch.countries.load import load_operation
from paygw_batch.countries.rules import AmountForm
from paygw_batch.gateway.address import operation_url
from paygw_batch.gateway.encode import BodyConstants, ControlAmount, ControlPart, ControlProfile
from paygw_batch.gateway.message import Attempt, PreparedRequest
from paygw_batch.gateway.sign import SignatureProfile
from paygw_batch.gateway.signing.key import PrivateKey
from tests.support import gateway_cases as cases
from tests.support.operator_terms import complete_rules

OPERATION = load_operation("payin")
URL = operation_url(cases.BASE_URL, OPERATION, cases.ENDPOINT_ID)
RULES = complete_rules("PAYIN", "payin", NG=cases.BANK)
PROFILE = ControlProfile(
    (ControlPart.ORDER_ID, ControlPart.AMOUNT, ControlPart.CURRENCY, ControlPart.SECRET),
    "|",
    ControlAmount.TWO_DECIMALS,
    "a secret of the tests",
)
SITE = "https://merchant.example"
URLS = {"redirect_url": f"{SITE}/thanks?a=1&b=2", "server_callback_url": cases.CALLBACK_URL, "site_url": SITE}


def sample_amount(country: str) -> str:
    return "250000" if RULES[country].minor_units == 0 else "1500.5"


def instruction_for(country: str, amount: str | None = None) -> Instruction:
    rule = RULES[country]
    number = f"+{rule.numbers.dialling_code}{rule.numbers.example}"
    fields = {
        "address1": "12, Rue de l'Église",
        "cell_phone": number,
        "city": "Ville & Cité",
        "country": country,
        "email": "jané+pay@example.com",
        "first_name": 'Zoë "Z"',
        "last_name": "O'Brien",
        "ipaddress": "192.0.2.7",
        "order_desc": "Fees 50%: term 1/3",
        "phone": number[:7] + "***" + number[10:],
        "zip_code": "GA-184-0515",
    }
    if country == "KE":
        del fields["cell_phone"]
        fields["merchant_data"] = "tag \\ 1"
    if country == "RW":
        fields["account_name"] = "Keza Gasana"
    amount = amount or sample_amount(country)
    return Instruction(f"COL-{country}-0001", country, rule.currency, amount, "customer", fields)


def constants(form: AmountForm = AmountForm.NUMBER, control: ControlProfile = PROFILE) -> BodyConstants:
    return BodyConstants(URLS, form, control)


def prepare_golden_request(key: PrivateKey, profile: SignatureProfile, code: str, form: AmountForm) -> PreparedRequest:
    signs = replace(cases.signer(key, profile, url=URL), constants=constants(form))
    instruction = instruction_for(code)
    attempt = Attempt(instruction, instruction.client_orderid, cases.NONCE, cases.TIMESTAMP_S)
    return cases.signed(signs, RULES[code], attempt)


EVERY_REQUEST = {
    cases.GOLDEN / "payin" / f"{profile.value}-{form.value}-{country}.http": (profile, country, form)
    for profile, form in (
        (SignatureProfile.JSON_PARAMS, AmountForm.NUMBER),
        (SignatureProfile.RAW_BODY, AmountForm.TWO_DECIMALS),
    )
    for country in RULES
}
"""The file of each golden request."""
