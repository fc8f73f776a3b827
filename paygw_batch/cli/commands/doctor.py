"""`paygw-batch doctor`: checks whether everything is ready for sending. Nothing is sent.

The command writes only a sandbox's key, and notices about a full disk or an expiring key.
"""

import asyncio
import base64
import os
import platform
import statistics
import timeit
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import assert_never

import click

from paygw_batch.approval.policy import policy_of
from paygw_batch.cli.commands.sign import STALE_NONCE, STALE_TIMESTAMP_S, show_steps
from paygw_batch.cli.help_texts import HelpCommand
from paygw_batch.cli.invocation import Invocation
from paygw_batch.cli.options import settings_of
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.clock import elapsed_s, timestamp, utc_now
from paygw_batch.core.batch import PAYIN, PAYOUT, Instruction
from paygw_batch.countries.load import load_operation
from paygw_batch.countries.rules import AmountUnit, CountryRule, FieldKind, ReplyNames, Rules
from paygw_batch.engine.quarantine import JournalClock
from paygw_batch.errors import ConfigurationError, PaygwError
from paygw_batch.extras import HEALTH, extra, extras
from paygw_batch.gateway.address import operation_url
from paygw_batch.gateway.signing.key import EXPIRY_WARNING_DAYS, Custody, KeyKind, KeyTrouble, KeyUnusable, SigningKey
from paygw_batch.journal import TallyKind
from paygw_batch.language import mark, mark_all, say
from paygw_batch.opening.gateway_access import (
    TOKEN,
    Signing,
    authenticity,
    field_names,
    gateway_of,
    listener_path,
    signer_key,
    signing_of,
)
from paygw_batch.opening.given_sheet import as_answered, filled_in, operation_of, rules_of
from paygw_batch.opening.open_journal import Tell, journal_to_read, place_of
from paygw_batch.processes import processor, python_build
from paygw_batch.settings.configuration import Settings, unknown_variables
from paygw_batch.settings.sections import PayinSection, PayinTermsSection
from paygw_batch.settle.statement import SignedStatements, TransferFolder, statement_key, statement_rule
from paygw_batch.sheet.read.profiles import known_headings
from paygw_batch.show.health import Health, HealthCheck
from paygw_batch.show.summary import ExitCode, Summary, worst
from paygw_batch.submit.notices import tell_of_disk, tell_of_key
from paygw_batch.submit.send import free_bytes, lacking_room

_TEST_TEXT = "a test of paygw-batch doctor: no payment"
_CONFIGURATION = mark("configuration")
_CONFIGURATION_FILE = mark("configuration file")
_PAYOUT_ADDRESS = mark("address of a payout")
_COLLECTIONS = mark("collections")
_APPROVAL = mark("approval")
_STATEMENTS = mark("statements")
_NOTIFICATIONS = mark("notifications")
_JOURNAL = mark("journal")
_CLOCK = mark("clock")
_GATEWAY = mark("gateway")
_PRIVATE_KEY = mark("private key")
_KEY_PLACE = mark("where the key is")
_KEY_END = mark("end of the key")
_SPEED = mark("speed")
_SIGNATURES = 20


@click.command("doctor", cls=HelpCommand)
@click.pass_obj
def doctor_command(invocation: Invocation) -> None:
    """Check configuration, key, clock, journal and connection, and show a sample signature. No payout is sent."""
    screen = Screen(invocation, only_shows=True)
    distrusts: list[ConfigurationError] = []
    settings = settings_of(invocation, distrusts=distrusts)
    payout, payin = rules_of(settings, PAYOUT), rules_of(settings, PAYIN)
    key, problem = _tried_key(settings, os.environ)
    lacking = say("There is no configuration: `paygw-batch init` writes one.")
    is_lacking = invocation.config is None and settings.missing_to_send()
    checks = [
        *((HealthCheck(_CONFIGURATION_FILE, Health.BAD, lacking),) if is_lacking else ()),
        *[HealthCheck.failed(_CONFIGURATION_FILE, error) for error in distrusts],
        *_configuration(settings),
        *_countries(settings, payout, payin),
        *_environment(settings, os.environ),
        _statements(settings),
        *_key(key, problem, is_sandbox=settings.uses_sandbox),
        *_notifications(settings, os.environ),
        *_journal_and_clock(settings, screen.note_aside),
        *(check for module in extras(HEALTH) for check in module.checks(settings, os.environ)),
        _speed(key),
    ]
    if key is not None:
        tell_of_key(settings, key, screen.note_aside)
    usable: list[Rules] = []
    if not any(check.health is Health.BAD and check.code is ExitCode.USAGE for check in checks):
        usable = [rules for rules in (payout, payin) if _ready(settings, rules)]
        checks.append(_gateway(settings, usable[0]))
    lines = [(f"{say(check.what)} {check.of}".strip(), say(check.health.value), check.found) for check in checks]
    screen.table("", mark_all("check", "state", "found"), lines)
    for rules in usable:
        _show_sample(signing_of(settings, rules, os.environ), rules[_ready(settings, rules)[0]], screen)
    codes = {check.code for check in checks if check.health is Health.BAD}
    failed = sum(check.health is Health.BAD for check in checks)
    as_json = [
        {"check": f"{check.what} {check.of}".strip(), "state": check.health.value, "found": check.found}
        for check in checks
    ]
    screen.finish(
        Summary(
            worst(codes) if codes else ExitCode.DONE,
            say("{failed} of {count} checks failed.", failed=failed, count=len(checks))
            if failed
            else say("Everything is in place."),
            further={"checks": as_json, "key": None if key is None else _key_as_json(key)},
        )
    )


def _configuration(settings: Settings) -> Iterator[HealthCheck]:
    missing, gateway, payout = settings.missing_to_send(), settings.gateway, load_operation(PAYOUT)
    if missing:
        yield HealthCheck(_CONFIGURATION, Health.BAD, _missing(missing))
    else:
        sentence = say("complete, except for settings of individual countries")
        yield HealthCheck(_CONFIGURATION, Health.GOOD, sentence)
    if not missing and not settings.uses_sandbox:
        try:
            # The full address of a payout is shown, so that a wrong address is noticed before money is sent to it.
            url = operation_url(gateway.base_url or "", payout, gateway.endpoint_id or "")
            yield HealthCheck(_PAYOUT_ADDRESS, Health.GOOD, url)
        except PaygwError as error:
            yield HealthCheck.failed(_PAYOUT_ADDRESS, error)
    yield HealthCheck(mark("replies"), Health.GOOD, _names_of_replies(as_answered(settings, payout).reply))
    yield _columns(settings)
    yield from _approval(settings)


def _missing(keys: Sequence[str]) -> str:
    return say("missing: {keys}", keys=", ".join(keys))


_AMOUNT = {
    AmountUnit.MAJOR: mark("amount, as it is sent"),
    AmountUnit.MINOR: mark("amount, in the smallest unit"),
    AmountUnit.UNCHECKED: mark("amount, not compared"),
}


def _names_of_replies(names: ReplyNames) -> str:
    fields = (
        (say("order id"), names.order_id),
        (say(_AMOUNT[names.amount_unit]), names.amount),
        (say("currency"), names.currency),
        (say("reference"), names.reference),
        (say("error code"), names.error_code),
        (say("message"), names.message),
    )
    return "; ".join(say("{field}: {names}", field=field, names=", ".join(paths)) for field, paths in fields)


def _ready(settings: Settings, rules: Rules) -> list[str]:
    if settings.missing_for(operation_of(rules).name):
        return []
    return [code for code, rule in rules.items() if rule.form is not None and not rule.missing_terms]


def _countries(settings: Settings, payout: Rules, payin: Rules) -> Iterator[HealthCheck]:
    paid, collected = _ready(settings, payout), _ready(settings, payin)
    none = Health.WARNING if collected else Health.BAD
    sentence = say("can be paid: {countries}", countries=", ".join(paid)) if paid else say("none can be paid")
    yield HealthCheck(mark("countries"), Health.GOOD if paid else none, sentence)
    yield from _of_each_country(mark("country"), payout)
    missing = settings.missing_for(PAYIN)
    begun = settings.payin != PayinSection() or any(
        country.payin != PayinTermsSection() for country in settings.countries.values()
    )
    if missing:
        health = Health.BAD if begun else Health.WARNING
        yield HealthCheck(_COLLECTIONS, health, _missing(missing))
    elif collected:
        sentence = say("can be collected from: {countries}", countries=", ".join(collected))
        yield HealthCheck(_COLLECTIONS, Health.GOOD, sentence)
    else:
        yield HealthCheck(_COLLECTIONS, Health.BAD, say("no country can be collected from"))
    if begun:
        yield from _of_each_country(_COLLECTIONS, payin)


def _of_each_country(check: str, rules: Rules) -> Iterator[HealthCheck]:
    for code, rule in rules.items():
        if rule.missing_terms:
            yield HealthCheck(check, Health.WARNING, _missing(rule.missing_terms), of=code)
        elif rule.form is None:
            yield HealthCheck(check, Health.WARNING, say(rule.unusable), of=code)
        elif values := filled_in(rule):
            sentence = say("sent if a sheet gives no value: {values}", values=values)
            yield HealthCheck(check, Health.GOOD, sentence, of=code)


def _columns(settings: Settings) -> HealthCheck:
    profile = settings.sheet.column_profile
    try:
        headings = known_headings(profile, settings.columns)
    except PaygwError as error:
        return HealthCheck.failed(mark("columns"), error)
    profile_text = say("profile {profile}", profile=profile) if profile else say("no profile")
    count_text = say("{count} further headings are known", count=len(headings))
    return HealthCheck(mark("columns"), Health.GOOD, f"{profile_text}; {count_text}")


def _approval(settings: Settings) -> Iterator[HealthCheck]:
    """Yield the people who may prepare and approve, with their keys, and warn of makers with too few approvers."""
    try:
        policy = policy_of(settings)
    except PaygwError as error:
        yield HealthCheck.failed(_APPROVAL, error)
        return
    if policy is None:
        yield HealthCheck(_APPROVAL, Health.GOOD, say("not required"))
        return
    people = policy.people.listed
    makers, approvers = len(policy.people.makers), sum(bool(person.approver_keys) for person in people)
    sentence = say(
        "{needed} needed; {makers} may prepare and {approvers} may approve",
        needed=policy.needed,
        makers=makers,
        approvers=approvers,
    )
    yield HealthCheck(_APPROVAL, Health.GOOD, sentence)
    for person in people:
        if policy.passkeys is None and (passkeys := [key for key in person.keys if not key.is_file_key]):
            sentence = say(
                "if the key {fingerprint} is a passkey, it cannot be used: [console] origin, the address of the pages, "
                "is not set",
                fingerprint=passkeys[0].fingerprint,
            )
            yield HealthCheck(_APPROVAL, Health.WARNING, sentence, of=person.name)
        is_stuck = bool(person.maker_keys) and len(policy.people.approvers_for(person)) < policy.needed
        maker, approver = (
            ", ".join(key.fingerprint for key in keys) for keys in (person.maker_keys, person.approver_keys)
        )
        permissions = [
            *([say("may prepare with {keys}", keys=maker)] if maker else []),
            *([say("may approve with {keys}", keys=approver)] if approver else []),
            *([say("too few others may approve what this person prepares")] if is_stuck else []),
        ]
        health = Health.WARNING if is_stuck else Health.GOOD
        yield HealthCheck(_APPROVAL, health, "; ".join(permissions), of=person.name)


def _statements(settings: Settings) -> HealthCheck:
    try:
        rule = statement_rule(settings)
    except PaygwError as error:
        return HealthCheck.failed(_STATEMENTS, error)
    match rule:
        case None:
            return HealthCheck(
                _STATEMENTS, Health.GOOD, say("not proven: each counts as the word of the person who brings it")
            )
        case SignedStatements():
            sentence = say(
                "proven by a signature file beside it, made with the key {fingerprint}",
                fingerprint=statement_key(settings).fingerprint,
            )
            return HealthCheck(_STATEMENTS, Health.GOOD, sentence)
        case TransferFolder(path=path) if (problem := rule.problem()) is not None:
            return HealthCheck(_STATEMENTS, Health.BAD, problem)
        case TransferFolder(path=path) if rule.is_ours:
            sentence = say(
                "proven by the folder {path}, which belongs to this account, so its users can put files there",
                path=path,
            )
            return HealthCheck(_STATEMENTS, Health.WARNING, sentence)
        case TransferFolder(path=path):
            return HealthCheck(_STATEMENTS, Health.GOOD, say("proven by the folder {path}", path=path))
        case _:
            assert_never(rule)


def _environment(settings: Settings, environ: Mapping[str, str]) -> Iterator[HealthCheck]:
    for name in unknown_variables(environ, settings):
        sentence = say("{name} sets nothing; is it misspelt?", name=name)
        yield HealthCheck(mark("environment"), Health.WARNING, sentence)


def _notifications(settings: Settings, environ: Mapping[str, str]) -> Iterator[HealthCheck]:
    """Check the settings and secrets of `listen`, if the callback address has a place for the token."""
    if TOKEN not in (settings.gateway.server_callback_url or ""):
        return
    try:
        listener_path(settings, environ)
        check = authenticity(settings, field_names(settings, load_operation(PAYOUT)), environ)
    except PaygwError as error:
        yield HealthCheck.failed(_NOTIFICATIONS, error)
        return
    if check is not None:
        sentence = say("checked by {proof}", proof=settings.notifications.authenticity)
        yield HealthCheck(_NOTIFICATIONS, Health.GOOD, sentence)
        return
    asks = settings.notifications.on_unproven is not None and settings.status_enquiry.profile is not None
    sentence = say("not proven: the gateway is asked about each") if asks else say("not proven: a person confirms each")
    yield HealthCheck(_NOTIFICATIONS, Health.WARNING, sentence)


def _tried_key(settings: Settings, environ: Mapping[str, str]) -> tuple[SigningKey | None, PaygwError | None]:
    """Return the private key after it has signed a test text, or the error if it cannot sign."""
    try:
        key = signer_key(settings, environ)
        if not key.public.has_signed(_TEST_TEXT, base64.b64decode(key.sign(_TEST_TEXT))):
            raise KeyUnusable(key.custody.place, KeyTrouble.WRONG_SIGNATURE)
    except PaygwError as error:
        return None, error
    return key, None


def _key(key: SigningKey | None, problem: PaygwError | None, *, is_sandbox: bool) -> Iterator[HealthCheck]:
    if key is None:
        if problem is not None:
            yield HealthCheck.failed(_PRIVATE_KEY, problem)
        return
    custody = key.custody
    sentence = say(
        "RSA, {bits} bits, fingerprint {fingerprint}; a test text was signed and verified",
        bits=key.public.bits,
        fingerprint=key.public.fingerprint(),
    )
    yield HealthCheck(_PRIVATE_KEY, Health.GOOD, sentence)
    match custody.kind:
        case KeyKind.FILE:
            sentence = say("in a file, which anyone who can read it can copy: {place}", place=custody.place)
            yield HealthCheck(_KEY_PLACE, Health.GOOD if is_sandbox else Health.WARNING, sentence)
        case KeyKind.PKCS11:
            yield _custody(custody, say("in a token: {place}", place=custody.place))
        case KeyKind.AWSKMS:
            yield _custody(custody, say("in AWS KMS: {place}", place=custody.place))
        case _:
            assert_never(custody.kind)
    if custody.expires is not None:
        days = custody.days_left(utc_now().date()) or 0
        health = Health.BAD if days < 0 else Health.WARNING if days < EXPIRY_WARNING_DAYS else Health.GOOD
        yield HealthCheck(_KEY_END, health, say("it can be used until {date}", date=custody.expires.isoformat()))


def _custody(custody: Custody, where: str) -> HealthCheck:
    if custody.is_exportable:
        sentence = say("{where}; it can be exported: make one that cannot", where=where)
        return HealthCheck(_KEY_PLACE, Health.WARNING, sentence)
    if custody.was_outside:
        sentence = say("{where}; it cannot be exported, but it was once outside, so a copy may exist", where=where)
        return HealthCheck(_KEY_PLACE, Health.WARNING, sentence)
    return HealthCheck(_KEY_PLACE, Health.GOOD, say("{where}; it cannot be exported", where=where))


def _key_as_json(key: SigningKey) -> dict[str, object]:
    custody = key.custody
    return {
        "kind": custody.kind.value,
        "place": custody.place,
        "bits": key.public.bits,
        "exportable": custody.is_exportable,
        "was_outside": custody.was_outside,
        "expires": None if custody.expires is None else custody.expires.isoformat(),
        "fingerprint": key.public.fingerprint(),
        "public_key": key.public.public_key_pem().decode("ascii"),
    }


def _journal_and_clock(settings: Settings, tell: Tell) -> Iterator[HealthCheck]:
    now, wrong = utc_now(), list[str]()
    try:
        yield from _journal(settings, now, wrong, tell)
    except PaygwError as error:
        yield HealthCheck.failed(_JOURNAL, error, ExitCode.JOURNAL)
    if wrong:
        sentence = say("Nothing is settled, released or amended while the clock is wrong.")
        yield HealthCheck(_CLOCK, Health.BAD, f"{' '.join(wrong)} {sentence}")
    else:
        sentence = say("it is {time}; signatures carry this time", time=timestamp(now))
        yield HealthCheck(_CLOCK, Health.GOOD, sentence)


def _journal(settings: Settings, now: datetime, wrong: list[str], tell: Tell) -> Iterator[HealthCheck]:
    """Yield the checks of the journal, and add its sentences about the clock to `wrong`."""
    path = settings.journal_place()
    if settings.uses_sandbox and not place_of(settings).may_exist():
        yield HealthCheck(_JOURNAL, Health.GOOD, say("{path}: not there yet; the first run creates it", path=path))
        return
    with journal_to_read(settings, must_be_known=True) as journal:
        records = journal.batches()
        wrong += JournalClock.read(journal, now).sentences()
        sentence = say(
            "{path}: batches: {batches:,}, facts: {facts:,}", path=path, batches=len(records), facts=journal.head().seq
        )
        due = sum(tally.count for record in records for tally in journal.tallies(record.number, kind=TallyKind.DUE))
    if settings.journal.url is not None:
        yield from extra("cluster.health").checks(settings)  # an error raised here is a fault of the journal
    yield HealthCheck(_JOURNAL, Health.GOOD, sentence)
    if settings.journal.url is None:
        folder, lacking = settings.journal_path().parent, ""
        if not os.access(folder, os.W_OK):
            lacking = say(
                "{folder} cannot be written, so no run can record what it sends, and none will start.", folder=folder
            )
        elif lacking := lacking_room(settings, due) or "":
            tell_of_disk(settings, free_bytes(settings), tell)
        room = say("{mib:,.0f} MiB are free on the disk of the journal", mib=free_bytes(settings) / 2**20)
        yield HealthCheck(mark("room"), Health.BAD if lacking else Health.GOOD, lacking or room, ExitCode.STOPPED_EARLY)


def _speed(key: SigningKey | None) -> HealthCheck:
    """Return the limits on the speed of a run: processor, build, signing. Signatures that cost money are not timed."""
    build = say("Python {version}, {processor}", version=platform.python_version(), processor=processor())
    if key is not None and key.custody.kind is KeyKind.FILE:
        sign = partial(key.sign, _TEST_TEXT)
        took_s = statistics.median(timeit.repeat(sign, timer=elapsed_s, repeat=_SIGNATURES, number=1))
        build += "; " + say("a signature takes {ms:.2f} ms", ms=1000 * took_s)
    if python_build().has_profiles is not False:
        return HealthCheck(_SPEED, Health.GOOD, build)
    sentence = say(
        "{found}. This Python was built without optimizations, so runs are slower: use the one of your operating "
        "system, or build it with --enable-optimizations.",
        found=build,
    )
    return HealthCheck(_SPEED, Health.WARNING, sentence)


def _gateway(settings: Settings, rules: Rules) -> HealthCheck:
    """Return whether the gateway can be reached, or why that could not be tried."""
    url = settings.gateway.base_url
    try:
        with gateway_of(settings, rules, os.environ) as connection:
            fault = asyncio.run(connection.probe())
    except PaygwError as error:
        return HealthCheck.failed(_GATEWAY, error)
    if fault is None:
        return HealthCheck(_GATEWAY, Health.GOOD, say("{url} can be reached", url=url))
    sentence = say("{url} cannot be reached ({reason})", url=url, reason=f"{fault.kind.value}: {fault.detail}")
    return HealthCheck(_GATEWAY, Health.BAD, sentence, ExitCode.STOPPED_EARLY)


def _show_sample(signing: Signing, rule: CountryRule, screen: Screen) -> None:
    """Show how an invented row would be signed, so that a person can compare it with the gateway's own base string."""
    instruction = _invented(rule)
    explanation = signing.explain(
        instruction, order_id=instruction.client_orderid, nonce=STALE_NONCE, timestamp_s=STALE_TIMESTAMP_S
    )
    country = say(rule.name)
    screen.say(
        say("A sample payout to {country}, to an invented person, as `paygw-batch sign` explains it:", country=country)
        if rule.operation == PAYOUT
        else say(
            "A sample collection in {country}, from an invented person, as `paygw-batch sign` explains it:",
            country=country,
        )
    )
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
