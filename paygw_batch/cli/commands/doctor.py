"""`paygw-batch doctor`: is everything in place? Nothing is sent, and nothing is written but a sandbox's key."""

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import click

from paygw_batch.cli.commands.sign import STALE_NONCE, STALE_TIMESTAMP_S, show_steps
from paygw_batch.cli.invocation import Invocation
from paygw_batch.cli.options import settings_of
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.clock import timestamp, utc_now
from paygw_batch.compose.approvals import policy_of
from paygw_batch.compose.gateway import GatewayAccess, gateway_of
from paygw_batch.compose.journal import is_there, journal_to_read, role_in_database
from paygw_batch.compose.notifications import TOKEN, authenticity, field_names, listener_path
from paygw_batch.compose.operations import as_answered, filled_in, operation_of, rules_of
from paygw_batch.compose.signing import Signing, signer_key, signing_of
from paygw_batch.core.batch import PAYIN, PAYOUT
from paygw_batch.core.instruction import Instruction
from paygw_batch.countries.load import load_operation
from paygw_batch.countries.rules import AmountUnit, CountryRule, FieldKind, Rules
from paygw_batch.errors import ConfigurationError, PaygwError
from paygw_batch.gateway.http.httpx_transport import GatewayClient
from paygw_batch.gateway.message import TransportFault
from paygw_batch.report.summary import ExitCode, Summary, worst
from paygw_batch.run.quarantine_clock import clock_sentences
from paygw_batch.settings.configuration import Settings, unknown_variables
from paygw_batch.settings.sections import PayinSection, PayinTermsSection
from paygw_batch.sheet.read.profiles import known_headings


class Health(StrEnum):
    """The result of a check."""

    GOOD = "ok"
    WARNING = "look"
    BAD = "wrong"


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """One check and its result. `code` is the exit code of the program when it went wrong."""

    what: str
    health: Health
    told: str
    code: ExitCode = ExitCode.USAGE


_RIGHTS = {
    "owner": "owner: may do everything, and make the tables",
    "desk": "desk: may open batches, send, settle, release and set limits",
    "worker": "worker: may send what is offered, and decide nothing",
    "reader": "reader: may look, and write nothing",
    "none": "none of its own: rights were given by hand",
}
"""The rights of the role in [journal] url, for people."""


@click.command("doctor", short_help="Check that everything is in place.")
@click.pass_obj
def command(invocation: Invocation) -> None:
    """Check configuration, key, clock, journal and reachability, and show a sample signature. No payout is sent."""
    screen = Screen(invocation)
    distrusts: list[ConfigurationError] = []
    settings = settings_of(invocation, distrusts=distrusts)
    payout, payin = rules_of(settings, PAYOUT), rules_of(settings, PAYIN)
    checks = [
        *[HealthCheck("configuration file", Health.BAD, f"{one.message} {one.hint}") for one in distrusts],
        *_configuration(settings),
        *_countries(settings, payout, payin),
        *_environment(settings, os.environ),
        _key(settings, os.environ),
        *_notifications(settings, os.environ),
        *_journal_and_clock(settings),
    ]
    if not any(check.health is Health.BAD and check.code is ExitCode.USAGE for check in checks):
        usable = [rules for rules in (payout, payin) if _ready(settings, rules)]
        checks += _gateway(settings, usable, screen)
    screen.table("", ("check", "state", "what was found"), [(one.what, one.health.value, one.told) for one in checks])
    codes = {check.code for check in checks if check.health is Health.BAD}
    wrong = sum(check.health is Health.BAD for check in checks)
    screen.finish(
        Summary(
            worst(codes) if codes else ExitCode.DONE,
            f"{wrong} of {len(checks)} checks went wrong." if wrong else "Everything is in place.",
            further={"checks": [{"check": one.what, "state": one.health.value, "found": one.told} for one in checks]},
        )
    )


def _configuration(settings: Settings) -> Iterator[HealthCheck]:
    missing = settings.missing_to_send()
    yield HealthCheck(
        "configuration",
        Health.BAD if missing else Health.GOOD,
        f"missing: {', '.join(missing)}" if missing else "complete but for what single countries need",
    )
    yield HealthCheck("replies", Health.GOOD, _names_of_replies(settings))
    yield _columns(settings)
    yield from _approval(settings)


def _names_of_replies(settings: Settings) -> str:
    """Return under which names the replies to payouts are read."""
    names = as_answered(settings, load_operation(PAYOUT)).reply
    unit = {
        AmountUnit.MAJOR: "as it is sent",
        AmountUnit.MINOR: "in the smallest unit",
        AmountUnit.UNCHECKED: "compared with nothing",
    }[names.amount_unit]
    told = (
        ("order id", names.order_id),
        (f"amount, {unit}", names.amount),
        ("currency", names.currency),
        ("reference", names.reference),
        ("error code", names.error_code),
        ("message", names.message),
    )
    return "; ".join(f"{what}: {', '.join(paths)}" for what, paths in told)


def _ready(settings: Settings, rules: Rules) -> list[str]:
    """Return the countries in which the operation of `rules` can be used."""
    if settings.missing_for(operation_of(rules).name):
        return []
    return [code for code, rule in rules.items() if rule.form is not None and not rule.missing_terms]


def _countries(settings: Settings, payout: Rules, payin: Rules) -> Iterator[HealthCheck]:
    paid, collected = _ready(settings, payout), _ready(settings, payin)
    none = Health.WARNING if collected else Health.BAD
    told = f"can be paid: {', '.join(paid)}" if paid else "none can be paid"
    yield HealthCheck("countries", Health.GOOD if paid else none, told)
    yield from _of_each_country("country", payout)
    missing = settings.missing_for(PAYIN)
    begun = settings.payin != PayinSection() or any(
        one.payin != PayinTermsSection() for one in settings.countries.values()
    )
    if missing:
        health = Health.BAD if begun else Health.WARNING
        yield HealthCheck("collections", health, f"missing: {', '.join(missing)}")
    else:
        told = f"can be collected from: {', '.join(collected)}" if collected else "no country can be collected from"
        yield HealthCheck("collections", Health.GOOD if collected else Health.BAD, told)
    if begun:
        yield from _of_each_country("collections", payin)


def _of_each_country(what: str, rules: Rules) -> Iterator[HealthCheck]:
    for code, rule in rules.items():
        if rule.missing_terms:
            yield HealthCheck(f"{what} {code}", Health.WARNING, f"missing: {', '.join(rule.missing_terms)}")
        elif rule.form is None:
            yield HealthCheck(f"{what} {code}", Health.WARNING, rule.unusable)
        elif told := filled_in(rule):
            yield HealthCheck(f"{what} {code}", Health.GOOD, f"sent where a sheet says nothing: {told}")


def _columns(settings: Settings) -> HealthCheck:
    profile = settings.sheet.column_profile
    try:
        headings = known_headings(profile, settings.columns)
    except PaygwError as error:
        return HealthCheck("columns", Health.BAD, f"{error.message} {error.hint}".strip())
    named = f"profile {profile}" if profile else "no profile"
    return HealthCheck("columns", Health.GOOD, f"{named}; {len(headings)} headings besides our own are known")


def _approval(settings: Settings) -> Iterator[HealthCheck]:
    """Say who may prepare and who may approve, by name and key, and whose plans nobody could approve."""
    try:
        policy = policy_of(settings)
    except PaygwError as error:
        yield HealthCheck("approval", Health.BAD, f"{error.message} {error.hint}".strip())
        return
    if policy is None:
        yield HealthCheck("approval", Health.GOOD, "none is asked for")
        return
    people = policy.people.listed
    makers, approvers = len(policy.people.makers), sum(bool(person.approver_keys) for person in people)
    told = f"{policy.needed} needed; {makers} may prepare and {approvers} may approve"
    yield HealthCheck("approval", Health.GOOD, told)
    for person in people:
        may = [
            f"may {does} with {', '.join(key.fingerprint for key in keys)}"
            for does, keys in (("prepare", person.maker_keys), ("approve", person.approver_keys))
            if keys
        ]
        if policy.passkeys is None and (passkeys := [key for key in person.keys if not key.may_be_in_a_file]):
            told = (
                f"the passkey {passkeys[0].fingerprint} counts nowhere: [console] origin does not say at which address"
            )
            yield HealthCheck(f"approval {person.name}", Health.WARNING, told)
        is_stuck = bool(person.maker_keys) and len(policy.people.approvers_for(person)) < policy.needed
        stuck = "; too few others may approve what this person prepares" if is_stuck else ""
        yield HealthCheck(
            f"approval {person.name}", Health.WARNING if is_stuck else Health.GOOD, f"{'; '.join(may)}{stuck}"
        )


def _environment(settings: Settings, environ: Mapping[str, str]) -> Iterator[HealthCheck]:
    for name in unknown_variables(environ, settings):
        yield HealthCheck("environment", Health.WARNING, f"{name} sets nothing; is it misspelt?")


def _notifications(settings: Settings, environ: Mapping[str, str]) -> Iterator[HealthCheck]:
    """Check the settings and secrets that `listen` needs, if the callback address has a place for its token."""
    if TOKEN not in (settings.gateway.server_callback_url or ""):
        return
    try:
        listener_path(settings, environ)
        check = authenticity(settings, field_names(settings, load_operation(PAYOUT)), environ)
    except PaygwError as error:
        yield HealthCheck("notifications", Health.BAD, f"{error.message} {error.hint}".strip())
        return
    asks = settings.notifications.on_unproven is not None and settings.status_enquiry.profile is not None
    then = "the gateway is asked about each" if asks else "a person confirms each"
    told = f"checked by {settings.notifications.authenticity}" if check is not None else f"nothing proves them: {then}"
    yield HealthCheck("notifications", Health.GOOD if check is not None else Health.WARNING, told)


def _key(settings: Settings, environ: Mapping[str, str]) -> HealthCheck:
    try:
        key = signer_key(settings, environ)
    except PaygwError as error:
        return HealthCheck("private key", Health.BAD, f"{error.message} {error.hint}".strip())
    return HealthCheck("private key", Health.GOOD, f"RSA, {key.bits} bits, fingerprint {key.fingerprint()}")


def _journal_and_clock(settings: Settings) -> Iterator[HealthCheck]:
    path = settings.journal_place()
    now, wrong = utc_now(), list[str]()
    if settings.uses_sandbox and not is_there(settings):
        yield HealthCheck("journal", Health.GOOD, f"{path}: not there yet; the first run makes it")
    else:
        try:
            with journal_to_read(settings, must_be_known=True) as journal:
                records = journal.batches()
                wrong = clock_sentences(journal, now)
                told = f"{path}: {len(records)} batches, {journal.head().seq:,} facts"
            role = role_in_database(settings)
            yield HealthCheck("journal", Health.GOOD, told)
            if role is not None:
                yield HealthCheck("role in the database", Health.GOOD, _RIGHTS[role])
        except PaygwError as error:
            yield HealthCheck("journal", Health.BAD, f"{error.message} {error.hint}".strip(), ExitCode.JOURNAL)
    if wrong:
        yield HealthCheck("clock", Health.BAD, f"{' '.join(wrong)} Nothing is settled, released or amended by it")
    else:
        yield HealthCheck("clock", Health.GOOD, f"it is {timestamp(now)}; signatures carry this time")


def _gateway(settings: Settings, usable: Sequence[Rules], screen: Screen) -> Iterator[HealthCheck]:
    with gateway_of(settings, usable[0], os.environ) as connection:
        fault = asyncio.run(_probe(connection))
        if fault is None:
            yield HealthCheck("gateway", Health.GOOD, f"{settings.gateway.base_url} can be reached")
        else:
            told = f"{settings.gateway.base_url} cannot be reached ({fault.kind.value}: {fault.detail})"
            yield HealthCheck("gateway", Health.BAD, told, ExitCode.STOPPED_EARLY)
    for rules in usable:
        code = _ready(settings, rules)[0]
        _show_sample(signing_of(settings, rules, os.environ), rules[code], screen)


async def _probe(connection: GatewayAccess) -> TransportFault | None:
    async with GatewayClient(connection.transport) as client:
        return await client.unreachable()


def _show_sample(signing: Signing, rule: CountryRule, screen: Screen) -> None:
    """Show how an invented row would be signed. An integrator compares it with the gateway's own base string."""
    instruction = _invented(rule)
    explanation = signing.explain(
        instruction, order_id=instruction.client_orderid, nonce=STALE_NONCE, timestamp_s=STALE_TIMESTAMP_S
    )
    what = "payout to" if rule.operation == PAYOUT else "collection in"
    screen.say(f"A sample {what} {rule.name}, with an invented person, as `paygw-batch sign --explain` shows it:")
    show_steps(screen, explanation, "base_string", "authorization")


def _invented(rule: CountryRule) -> Instruction:
    number = rule.numbers.dialling_code + rule.numbers.example
    local = rule.numbers.trunk_prefix + rule.numbers.example
    invented = {
        FieldKind.TEXT: "Sample",
        FieldKind.INTERNATIONAL_PHONE: f"+{number}",
        FieldKind.MASKED_PHONE: f"+{number}",
        FieldKind.LOCAL_PHONE: local,
        FieldKind.WALLET: number,
        FieldKind.COUNTRY: rule.code,
        FieldKind.EMAIL: "sample@example.com",
        FieldKind.IPV4: "127.0.0.1",
        FieldKind.POSTAL_CODE: "00100",
    }
    form = rule.form
    fields = {field.name: invented[field.kind] for field in form.fields if field.kind in invented} if form else {}
    return Instruction("SAMPLE-1", rule.code, rule.currency, "1000", form.name if form else "", fields)
