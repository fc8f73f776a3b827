"""`paygw-batch doctor`: checks whether everything is ready for sending.

Nothing is sent. The command writes only the sandbox's key, and notices about a full disk or an expiring key.
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

from paygw_batch.approval.policy import approval_policy
from paygw_batch.cli.commands.sign import STALE_NONCE, STALE_TIMESTAMP_S, show_steps
from paygw_batch.cli.help_texts import HelpCommand
from paygw_batch.cli.invocation import Invocation
from paygw_batch.cli.options import settings_for
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.clock import elapsed_s, timestamp, utc_now
from paygw_batch.core.batch import PAYIN, PAYOUT, Instruction
from paygw_batch.countries.load import load_operation
from paygw_batch.countries.rules import AmountUnit, CountryRule, FieldKind, ReplyNames, Rules
from paygw_batch.engine.quarantine import JournalClock
from paygw_batch.errors import ConfigurationError, PaygwError
from paygw_batch.extras import HEALTH_MODULES, extra, extras
from paygw_batch.gateway.address import operation_url
from paygw_batch.gateway.signing.key import EXPIRY_WARNING_DAYS, Custody, KeyKind, KeyProblem, KeyUnusable, SigningKey
from paygw_batch.journal import TallyKind
from paygw_batch.language import mark, mark_all, say
from paygw_batch.opening.gateway_access import (
    TOKEN_PLACEHOLDER,
    RequestSigning,
    build_authenticity_check,
    build_signing,
    listener_path,
    load_signing_key,
    notification_fields,
    open_gateway,
)
from paygw_batch.opening.given_sheet import format_defaults, operation_of, rules_for, with_reply_names
from paygw_batch.opening.open_journal import Echo, journal_location, open_journal_to_read
from paygw_batch.processes import processor_name, python_build
from paygw_batch.settings.configuration import Settings, unknown_variables
from paygw_batch.settings.sections import PayinSection, PayinTermsSection
from paygw_batch.settle.statement import SignedStatements, TransferFolder, statement_key, statement_rule
from paygw_batch.sheet.read.profiles import merge_headings
from paygw_batch.show.health import Health, HealthCheck
from paygw_batch.show.summary import ExitCode, Summary, worst_code
from paygw_batch.submit.notices import add_disk_notice, add_key_expiry_notice
from paygw_batch.submit.send import disk_space_problem, free_bytes

_TEST_TEXT = "a test of paygw-batch doctor: no payment"
_CONFIGURATION = mark("configuration")
_CONFIGURATION_FILE = mark("configuration file")
_PAYOUT_ADDRESS = mark("payout address")
_COLLECTIONS = mark("collections")
_APPROVAL = mark("approval")
_STATEMENTS = mark("statements")
_NOTIFICATIONS = mark("notifications")
_JOURNAL = mark("journal")
_CLOCK = mark("clock")
_GATEWAY = mark("gateway")
_PRIVATE_KEY = mark("private key")
_KEY_LOCATION = mark("key location")
_KEY_EXPIRY = mark("key expiry")
_SPEED = mark("speed")
_SIGNATURE_REPEATS = 20


@click.command("doctor", cls=HelpCommand)
@click.pass_obj
def doctor_command(invocation: Invocation) -> None:
    """Check the configuration, key, clock, journal and connection, and show a sample signature. No payout is sent."""
    screen = Screen(invocation, is_read_only=True)
    trust_errors: list[ConfigurationError] = []
    settings = settings_for(invocation, trust_errors=trust_errors)
    payout_rules, payin_rules = rules_for(settings, PAYOUT), rules_for(settings, PAYIN)
    key, key_error = _load_working_key(settings, os.environ)
    no_configuration = say("There is no configuration. To create one, run `paygw-batch init`.")
    is_configuration_missing = invocation.config is None and settings.missing_for_sending()
    checks = [
        *((HealthCheck(_CONFIGURATION_FILE, Health.BAD, no_configuration),) if is_configuration_missing else ()),
        *[HealthCheck.failed(_CONFIGURATION_FILE, error) for error in trust_errors],
        *_check_configuration(settings),
        *_check_countries(settings, payout_rules, payin_rules),
        *_check_environment(settings, os.environ),
        _check_statements(settings),
        *_check_key(key, key_error, is_sandbox=settings.uses_sandbox),
        *_check_notifications(settings, os.environ),
        *_check_journal_and_clock(settings, screen.note_on_stderr),
        *(check for module in extras(HEALTH_MODULES) for check in module.checks(settings, os.environ)),
        _check_speed(key),
    ]
    if key is not None:
        add_key_expiry_notice(settings, key, screen.note_on_stderr)
    usable_rules: list[Rules] = []
    if not any(check.health is Health.BAD and check.code is ExitCode.USAGE for check in checks):
        usable_rules = [rules for rules in (payout_rules, payin_rules) if _usable_countries(settings, rules)]
        checks.append(_check_gateway(settings, usable_rules[0]))
    lines = [(f"{say(check.name)} {check.subject}".strip(), say(check.health.value), check.message) for check in checks]
    screen.table("", mark_all("check", "state", "found"), lines)
    for rules in usable_rules:
        _show_sample(build_signing(settings, rules, os.environ), rules[_usable_countries(settings, rules)[0]], screen)
    failed = [check for check in checks if check.health is Health.BAD]
    checks_as_json = [
        {"check": f"{check.name} {check.subject}".strip(), "state": check.health.value, "found": check.message}
        for check in checks
    ]
    screen.finish(
        Summary(
            worst_code({check.code for check in failed}),
            say("{failed} of {count} checks failed.", failed=len(failed), count=len(checks))
            if failed
            else say("All checks passed."),
            extra={"checks": checks_as_json, "key": None if key is None else _key_as_json(key)},
        )
    )


def _check_configuration(settings: Settings) -> Iterator[HealthCheck]:
    missing, gateway, operation = settings.missing_for_sending(), settings.gateway, load_operation(PAYOUT)
    if missing:
        yield HealthCheck(_CONFIGURATION, Health.BAD, _missing_settings_text(missing))
    else:
        message = say("complete (the settings of each country are checked separately)")
        yield HealthCheck(_CONFIGURATION, Health.GOOD, message)
    if not missing and not settings.uses_sandbox:
        try:
            # The full payout URL is shown, so that a wrong one is noticed before money is sent to it.
            url = operation_url(gateway.base_url or "", operation, gateway.endpoint_id or "")
            yield HealthCheck(_PAYOUT_ADDRESS, Health.GOOD, url)
        except PaygwError as error:
            yield HealthCheck.failed(_PAYOUT_ADDRESS, error)
    yield HealthCheck(mark("replies"), Health.GOOD, _format_reply_names(with_reply_names(settings, operation).reply))
    yield _check_columns(settings)
    yield from _check_approval(settings)


def _missing_settings_text(names: Sequence[str]) -> str:
    return say("missing: {keys}", keys=", ".join(names))


_AMOUNT_LABELS = {
    AmountUnit.MAJOR: mark("amount (in the unit that we send)"),
    AmountUnit.MINOR: mark("amount (in the smallest unit)"),
    AmountUnit.UNCHECKED: mark("amount (not compared)"),
}


def _format_reply_names(names: ReplyNames) -> str:
    fields = (
        (say("order id"), names.order_id),
        (say(_AMOUNT_LABELS[names.amount_unit]), names.amount),
        (say("currency"), names.currency),
        (say("reference"), names.reference),
        (say("error code"), names.error_code),
        (say("message"), names.message),
    )
    return "; ".join(say("{field}: {names}", field=field, names=", ".join(paths)) for field, paths in fields)


def _usable_countries(settings: Settings, rules: Rules) -> list[str]:
    if settings.missing_for(operation_of(rules).name):
        return []
    return [code for code, rule in rules.items() if rule.form is not None and not rule.missing_terms]


def _check_countries(settings: Settings, payout_rules: Rules, payin_rules: Rules) -> Iterator[HealthCheck]:
    payable, collectable = _usable_countries(settings, payout_rules), _usable_countries(settings, payin_rules)
    health_if_none = Health.WARNING if collectable else Health.BAD
    text = say("payouts to: {countries}", countries=", ".join(payable)) if payable else say("no payouts possible")
    yield HealthCheck(mark("countries"), Health.GOOD if payable else health_if_none, text)
    yield from _check_each_country(mark("country"), payout_rules)
    missing_settings = settings.missing_for(PAYIN)
    is_payin_configured = settings.payin != PayinSection() or any(
        country.payin != PayinTermsSection() for country in settings.countries.values()
    )
    if missing_settings:
        health = Health.BAD if is_payin_configured else Health.WARNING
        yield HealthCheck(_COLLECTIONS, health, _missing_settings_text(missing_settings))
    elif collectable:
        text = say("collections from: {countries}", countries=", ".join(collectable))
        yield HealthCheck(_COLLECTIONS, Health.GOOD, text)
    else:
        yield HealthCheck(_COLLECTIONS, Health.BAD, say("no collections possible"))
    if is_payin_configured:
        yield from _check_each_country(_COLLECTIONS, payin_rules)


def _check_each_country(name: str, rules: Rules) -> Iterator[HealthCheck]:
    for code, rule in rules.items():
        if rule.missing_terms:
            yield HealthCheck(name, Health.WARNING, _missing_settings_text(rule.missing_terms), subject=code)
        elif rule.form is None:
            yield HealthCheck(name, Health.WARNING, say(rule.unusable), subject=code)
        elif values := format_defaults(rule):
            message = say("values sent if the sheet has none: {values}", values=values)
            yield HealthCheck(name, Health.GOOD, message, subject=code)


def _check_columns(settings: Settings) -> HealthCheck:
    profile = settings.sheet.column_profile
    try:
        headings = merge_headings(profile, settings.columns)
    except PaygwError as error:
        return HealthCheck.failed(mark("columns"), error)
    profile_text = say("profile {profile}", profile=profile) if profile else say("no profile")
    count_text = say("additional headings recognised: {count}", count=len(headings))
    return HealthCheck(mark("columns"), Health.GOOD, f"{profile_text}; {count_text}")


def _check_approval(settings: Settings) -> Iterator[HealthCheck]:
    try:
        policy = approval_policy(settings)
    except PaygwError as error:
        yield HealthCheck.failed(_APPROVAL, error)
        return
    if policy is None:
        yield HealthCheck(_APPROVAL, Health.GOOD, say("not required"))
        return
    people = policy.people.listed
    maker_count, approver_count = len(policy.people.makers), sum(bool(person.approver_keys) for person in people)
    message = say(
        "approvals needed: {needed}; people who can prepare: {makers}; people who can approve: {approvers}",
        needed=policy.needed,
        makers=maker_count,
        approvers=approver_count,
    )
    yield HealthCheck(_APPROVAL, Health.GOOD, message)
    for person in people:
        if policy.passkeys is None and (passkeys := [key for key in person.keys if not key.is_file_key]):
            message = say(
                "the key {fingerprint} cannot be used if it is a passkey, because [console] origin (the address of "
                "the pages) is not set",
                fingerprint=passkeys[0].fingerprint,
            )
            yield HealthCheck(_APPROVAL, Health.WARNING, message, subject=person.name)
        lacks_approvers = bool(person.maker_keys) and len(policy.people.approvers_for(person)) < policy.needed
        maker_keys, approver_keys = (
            ", ".join(key.fingerprint for key in keys) for keys in (person.maker_keys, person.approver_keys)
        )
        permissions = [
            *([say("can prepare with {keys}", keys=maker_keys)] if maker_keys else []),
            *([say("can approve with {keys}", keys=approver_keys)] if approver_keys else []),
            *([say("not enough other people can approve what this person prepares")] if lacks_approvers else []),
        ]
        health = Health.WARNING if lacks_approvers else Health.GOOD
        yield HealthCheck(_APPROVAL, health, "; ".join(permissions), subject=person.name)


def _check_statements(settings: Settings) -> HealthCheck:
    try:
        rule = statement_rule(settings)
    except PaygwError as error:
        return HealthCheck.failed(_STATEMENTS, error)
    match rule:
        case None:
            return HealthCheck(
                _STATEMENTS, Health.GOOD, say("not proven: a statement counts as the word of the person who applies it")
            )
        case SignedStatements():
            message = say(
                "proven by a signature file next to each statement, made with the key {fingerprint}",
                fingerprint=statement_key(settings).fingerprint,
            )
            return HealthCheck(_STATEMENTS, Health.GOOD, message)
        case TransferFolder() if (problem := rule.problem()) is not None:
            return HealthCheck(_STATEMENTS, Health.BAD, problem)
        case TransferFolder(path=path) if rule.is_ours:
            message = say(
                "proven by the folder {path}, but this account owns it, so its users can put files there",
                path=path,
            )
            return HealthCheck(_STATEMENTS, Health.WARNING, message)
        case TransferFolder(path=path):
            return HealthCheck(_STATEMENTS, Health.GOOD, say("proven by the folder {path}", path=path))
        case _:
            assert_never(rule)


def _check_environment(settings: Settings, environ: Mapping[str, str]) -> Iterator[HealthCheck]:
    for name in unknown_variables(environ, settings):
        message = say("{name} is not a known setting. Check its spelling.", name=name)
        yield HealthCheck(mark("environment"), Health.WARNING, message)


def _check_notifications(settings: Settings, environ: Mapping[str, str]) -> Iterator[HealthCheck]:
    if TOKEN_PLACEHOLDER not in (settings.gateway.server_callback_url or ""):
        return
    try:
        listener_path(settings, environ)
        check = build_authenticity_check(settings, notification_fields(settings, load_operation(PAYOUT)), environ)
    except PaygwError as error:
        yield HealthCheck.failed(_NOTIFICATIONS, error)
        return
    if check is not None:
        message = say("checked by {proof}", proof=settings.notifications.authenticity)
        yield HealthCheck(_NOTIFICATIONS, Health.GOOD, message)
        return
    message = say("no authenticity check: a person must confirm each notification")
    if settings.notifications.on_unproven is not None and settings.status_enquiry.profile is not None:
        message = say("no authenticity check: the gateway is asked about each notification")
    yield HealthCheck(_NOTIFICATIONS, Health.WARNING, message)


def _load_working_key(settings: Settings, environ: Mapping[str, str]) -> tuple[SigningKey | None, PaygwError | None]:
    try:
        key = load_signing_key(settings, environ)
        if not key.public.verifies(_TEST_TEXT, base64.b64decode(key.sign(_TEST_TEXT))):
            raise KeyUnusable(key.custody.location, KeyProblem.WRONG_SIGNATURE)
    except PaygwError as error:
        return None, error
    return key, None


def _check_key(key: SigningKey | None, error: PaygwError | None, *, is_sandbox: bool) -> Iterator[HealthCheck]:
    if key is None:
        if error is not None:
            yield HealthCheck.failed(_PRIVATE_KEY, error)
        return
    custody = key.custody
    values = {"bits": key.public.bits, "fingerprint": key.public.fingerprint()}
    message = say("RSA, {bits} bits, fingerprint {fingerprint} (a test signature was verified)", **values)
    yield HealthCheck(_PRIVATE_KEY, Health.GOOD, message)
    match custody.kind:
        case KeyKind.FILE:
            message = say("in a file, which can be copied by anyone who can read it: {place}", place=custody.location)
            yield HealthCheck(_KEY_LOCATION, Health.GOOD if is_sandbox else Health.WARNING, message)
        case KeyKind.PKCS11:
            yield _check_custody(custody, say("in a token: {place}", place=custody.location))
        case KeyKind.AWSKMS:
            yield _check_custody(custody, say("in AWS KMS: {place}", place=custody.location))
        case _:
            assert_never(custody.kind)
    if custody.expires is not None:
        days_left = custody.days_left(utc_now().date()) or 0
        health = Health.BAD if days_left < 0 else Health.WARNING if days_left < EXPIRY_WARNING_DAYS else Health.GOOD
        yield HealthCheck(_KEY_EXPIRY, health, say("valid until {date}", date=custody.expires.isoformat()))


def _check_custody(custody: Custody, where: str) -> HealthCheck:
    if custody.is_exportable:
        message = say("{where}. The key can be exported. Create one that cannot be exported.", where=where)
        return HealthCheck(_KEY_LOCATION, Health.WARNING, message)
    if custody.was_stored_elsewhere:
        message = say(
            "{where}. The key cannot be exported. It was not created there, so a copy may exist.", where=where
        )
        return HealthCheck(_KEY_LOCATION, Health.WARNING, message)
    return HealthCheck(_KEY_LOCATION, Health.GOOD, say("{where}. The key cannot be exported.", where=where))


def _key_as_json(key: SigningKey) -> dict[str, object]:
    custody = key.custody
    return {
        "kind": custody.kind.value,
        "place": custody.location,
        "bits": key.public.bits,
        "exportable": custody.is_exportable,
        "was_outside": custody.was_stored_elsewhere,
        "expires": None if custody.expires is None else custody.expires.isoformat(),
        "fingerprint": key.public.fingerprint(),
        "public_key": key.public.public_key_pem().decode("ascii"),
    }


def _check_journal_and_clock(settings: Settings, echo: Echo) -> Iterator[HealthCheck]:
    now, clock_problems = utc_now(), list[str]()
    try:
        yield from _check_journal(settings, now, clock_problems, echo)
    except PaygwError as error:
        yield HealthCheck.failed(_JOURNAL, error, ExitCode.JOURNAL)
    if clock_problems:
        message = say("Nothing can be settled, released or replaced until the clock is correct.")
        yield HealthCheck(_CLOCK, Health.BAD, f"{' '.join(clock_problems)} {message}")
    else:
        message = say("it is {time} (the time used in signatures)", time=timestamp(now))
        yield HealthCheck(_CLOCK, Health.GOOD, message)


def _check_journal(settings: Settings, now: datetime, clock_problems: list[str], echo: Echo) -> Iterator[HealthCheck]:
    """Check the journal and the free disk space. Append any problems with the clock to `clock_problems`."""
    path = settings.journal_label()
    if settings.uses_sandbox and not journal_location(settings).may_exist():
        yield HealthCheck(_JOURNAL, Health.GOOD, say("{path} does not exist yet (the first run creates it)", path=path))
        return
    with open_journal_to_read(settings, must_be_known=True) as journal:
        batches = journal.batches()
        clock_problems += JournalClock.read(journal, now).messages()
        message = say(
            "{path} (batches: {batches:,}, facts: {facts:,})", path=path, batches=len(batches), facts=journal.head().seq
        )
        due_count = sum(tally.count for batch in batches for tally in journal.tallies(batch.number, kind=TallyKind.DUE))
    if settings.journal.url is not None:
        yield from extra("cluster.health").checks(settings)  # the caller reports any error
    yield HealthCheck(_JOURNAL, Health.GOOD, message)
    if settings.journal.url is None:
        folder, problem = settings.journal_path().parent, ""
        if not os.access(folder, os.W_OK):
            problem = say(
                "{folder} is not writable. Runs cannot start, because they cannot record what they send.", folder=folder
            )
        elif problem := disk_space_problem(settings, due_count) or "":
            add_disk_notice(settings, free_bytes(settings), echo)
        free = say("{mib:,.0f} MiB free on the journal's disk", mib=free_bytes(settings) / 2**20)
        health = Health.BAD if problem else Health.GOOD
        yield HealthCheck(mark("disk space"), health, problem or free, ExitCode.STOPPED_EARLY)


def _check_speed(key: SigningKey | None) -> HealthCheck:
    """Report the processor and the Python build. Also time a key file, but no other key: using it may cost money."""
    details = say("Python {version}, {processor}", version=platform.python_version(), processor=processor_name())
    if key is not None and key.custody.kind is KeyKind.FILE:
        sign = partial(key.sign, _TEST_TEXT)
        signature_s = statistics.median(timeit.repeat(sign, timer=elapsed_s, repeat=_SIGNATURE_REPEATS, number=1))
        details += "; " + say("a signature takes {ms:.2f} ms", ms=1000 * signature_s)
    if python_build().is_profile_guided is not False:
        return HealthCheck(_SPEED, Health.GOOD, details)
    message = say(
        "{found}. Runs are slower because this Python was built without optimizations. Use your operating system's "
        "Python, or build it with --enable-optimizations.",
        found=details,
    )
    return HealthCheck(_SPEED, Health.WARNING, message)


def _check_gateway(settings: Settings, rules: Rules) -> HealthCheck:
    url = settings.gateway.base_url
    try:
        with open_gateway(settings, rules, os.environ) as gateway:
            fault = asyncio.run(gateway.probe())
    except PaygwError as error:
        return HealthCheck.failed(_GATEWAY, error)
    if fault is None:
        return HealthCheck(_GATEWAY, Health.GOOD, say("{url} can be reached", url=url))
    message = say("{url} cannot be reached ({reason})", url=url, reason=f"{fault.kind.value}: {fault.detail}")
    return HealthCheck(_GATEWAY, Health.BAD, message, ExitCode.STOPPED_EARLY)


def _show_sample(signing: RequestSigning, rule: CountryRule, screen: Screen) -> None:
    """Show how a sample row is signed, for comparison with the gateway's base string."""
    instruction = _build_sample(rule)
    explanation = signing.explain(
        instruction, order_id=instruction.client_orderid, nonce=STALE_NONCE, timestamp_s=STALE_TIMESTAMP_S
    )
    template = mark("A sample payout to an invented person in {country}, explained as in `paygw-batch sign`:")
    if rule.operation == PAYIN:
        template = mark("A sample collection from an invented person in {country}, explained as in `paygw-batch sign`:")
    screen.say(say(template, country=say(rule.name)))
    show_steps(screen, explanation, "base_string", "authorization")


def _build_sample(rule: CountryRule) -> Instruction:
    number = rule.numbers.dialling_code + rule.numbers.example
    local_number = rule.numbers.trunk_prefix + rule.numbers.example
    samples = {
        FieldKind.TEXT: "Sample",
        FieldKind.INTERNATIONAL_PHONE: f"+{number}",
        FieldKind.MASKED_PHONE: f"+{number}",
        FieldKind.LOCAL_PHONE: local_number,
        FieldKind.WALLET: number,
        FieldKind.COUNTRY: rule.code,
        FieldKind.EMAIL: "sample@example.com",
        FieldKind.IPV4: "127.0.0.1",
        FieldKind.POSTAL_CODE: "00100",
    }
    form = rule.form
    fields = {field.name: samples[field.kind] for field in form.fields if field.kind in samples} if form else {}
    return Instruction("SAMPLE-1", rule.code, rule.currency, "1000", form.name if form else "", fields)
