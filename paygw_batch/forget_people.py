"""Forgets the personal data in old payments or about one person, as decided by a person or a signed order."""

import glob
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from paygw_batch.approval.approval_keys import PublicKey
from paygw_batch.approval.order import NOTHING_FORGOTTEN, ForgetOrder, build_forget_order, verify_forget_order
from paygw_batch.approval.policy import approval_policy, require_maker, require_policy
from paygw_batch.clock import timestamp, utc_now
from paygw_batch.core.batch import PAYOUT
from paygw_batch.engine.quarantine import JournalClock
from paygw_batch.errors import ApprovalError, InternalError, UsageError
from paygw_batch.journal import FoundPayment, Journal, JournalReader, PaymentsToForget, RemainingData
from paygw_batch.language import say, say_count
from paygw_batch.opening.given_sheet import rules_for
from paygw_batch.settings.configuration import Settings
from paygw_batch.settle.kept_documents import is_recorded
from paygw_batch.show.batch_status import is_number, number_forms, parse_payment_search
from paygw_batch.show.next_step import order_steps
from paygw_batch.show.remittance import build_payee

_MAX_PAYMENTS = 100_000
"""The maximum number of payments found for one person."""


@dataclass(frozen=True, slots=True)
class ForgetResult:
    """The payments whose payees were forgotten, and where the journal may still contain their personal data."""

    selection: PaymentsToForget
    remaining_data: RemainingData


def forget_cutoff(settings: Settings, date_text: str | None) -> str:
    """Return the date before which people are forgotten, either as given or from `[retention] years`.

    Raises `UsageError` if there is neither, or if the text is not a date in the past.
    """
    today = utc_now().date()
    if date_text is None:
        if (years := settings.retention.years) is None:
            raise UsageError(
                say("Choose who should be forgotten."),
                hint=say("Use --before DATE or --person TEXT, or set [retention] years in the configuration."),
                for_terminal=True,
            )
        day_of_month = min(today.day, 28) if today.month == 2 else today.day  # noqa: PLR2004 (February)
        return date(today.year - years, today.month, day_of_month).isoformat()
    try:
        cutoff_date = date.fromisoformat(date_text)
    except ValueError:
        raise UsageError(
            say("{text!r} is not a date.", text=date_text),
            hint=say("Write the date as year, month and day: 2019-12-31."),
        ) from None
    if cutoff_date > today:
        raise UsageError(say("{text} is in the future.", text=date_text), hint=say("Choose a date in the past."))
    return cutoff_date.isoformat()


def choose_payments(
    settings: Settings, journal: JournalReader, *, before: str | None, person: str | None
) -> PaymentsToForget:
    """Return the payments before a date, or to one person, whose payees may be forgotten now."""
    cutoff, recent = _quarantine_bounds(settings, journal)
    if person is None:
        return journal.payments_to_forget(before=forget_cutoff(settings, before), cutoff=cutoff, recent=recent)
    return journal.payments_to_forget(_payments_to_person(settings, journal, person), cutoff=cutoff, recent=recent)


def _quarantine_bounds(settings: Settings, journal: JournalReader) -> tuple[str, str]:
    """Return the quarantine cutoff, and the time since which payments are compared with new sheets."""
    clock = JournalClock.read(journal, utc_now())
    clock.require_plausible()
    recent = clock.days_ago(max(settings.sheet.repeat_days, settings.sheet.look_alike_days))
    return clock.quarantine(settings.submission.quarantine_h).cutoff(clock.now), recent


def forget_by_one_person(settings: Settings, journal: Journal, payments: PaymentsToForget, by: str) -> ForgetResult:
    """Forget people on one person's decision. Raises `ApprovalError` if two people must decide."""
    if approval_policy(settings) is not None:
        raise ApprovalError(
            say("[approval] is configured, so two people must decide who is forgotten."),
            hint=f"{say(NOTHING_FORGOTTEN)} {order_steps('forget')}",
        )
    return ForgetResult(payments, journal.forget(payments, by=by, at=timestamp(utc_now())))


def draft_forget_order(
    settings: Settings, journal: JournalReader, payments: PaymentsToForget, maker: PublicKey
) -> ForgetOrder:
    require_maker(maker, require_policy(settings), say("No order was written."))
    if not payments.batches:
        raise UsageError(say("There is no one to forget, so no order was written."))
    return build_forget_order(journal, payments, endpoint=settings.endpoint(), maker=maker, now=utc_now())


def forget_by_order(settings: Settings, journal: Journal, order: ForgetOrder, by: str) -> ForgetResult:
    """Forget the people in a signed order, once.

    If the order has already been carried out, only removes their remaining data from the journal's log.
    """
    if is_recorded(journal, order):
        no_payments = PaymentsToForget(order.content.before, {}, ())
        return ForgetResult(no_payments, journal.forget(no_payments, by=by, at=timestamp(utc_now())))
    cutoff, recent = _quarantine_bounds(settings, journal)
    policy, endpoint = require_policy(settings), settings.endpoint()
    payments, decision, signed_order = verify_forget_order(
        order, journal, policy, utc_now(), by=by, endpoint=endpoint, cutoff=cutoff, recent=recent
    )
    at = timestamp(utc_now())
    return ForgetResult(payments, journal.forget(payments, by=decision, at=at, order=signed_order))


def remaining_files(journal: JournalReader, payments: PaymentsToForget) -> Sequence[Path]:
    """Return files that may still name forgotten people: the sheets of their batches, and outputs next to them."""
    paths: dict[Path, None] = {}
    for record in journal.batches():
        if record.number in payments.batches and record.sheet_path:
            sheet = Path(record.sheet_path)
            outputs = sorted(sheet.parent.glob(f"{glob.escape(sheet.stem)}.*")) if sheet.parent.is_dir() else []
            paths |= dict.fromkeys(outputs)
    return list(paths)


def _payments_to_person(settings: Settings, journal: JournalReader, search_text: str) -> Sequence[int]:
    numbers = [rule.numbers for rule in rules_for(settings, PAYOUT).values()]
    search = parse_payment_search(search_text, numbers)
    spellings = frozenset(number_forms(search_text, numbers)) if is_number(search_text) else frozenset[str]()
    payments = journal.find_payments(search, limit=_MAX_PAYMENTS)
    matching = [payment for payment in payments if _is_payment_to(payment, search_text, spellings)]
    payee_numbers = {build_payee(payment.form, payment.fields).number for payment in matching}
    if len(payee_numbers) > 1 and not spellings:
        raise UsageError(
            say_count(
                len(payee_numbers),
                "{count:,} number belongs to the name {typed!r}.",
                "{count:,} numbers belong to the name {typed!r}.",
                typed=search_text,
            ),
            hint=say("{nobody} Enter the account or phone number.", nobody=say(NOTHING_FORGOTTEN)),
        )
    if not matching:
        raise UsageError(
            say("There are no payments to anyone whose name or number is exactly {typed!r}.", typed=search_text),
            hint=say("To see the exact names and numbers, run `paygw-batch find TEXT`."),
            for_terminal=True,
        )
    return sorted(_instruction_number(journal, payment) for payment in matching)


def _is_payment_to(payment: FoundPayment, search_text: str, spellings: frozenset[str]) -> bool:
    if spellings:
        return any(re.sub(r"\D", "", value) in spellings for value in payment.fields.values())
    name = build_payee(payment.form, payment.fields).name
    return _normalise(search_text) in {_normalise(name), *map(_normalise, payment.fields.values())}


def _normalise(text: str) -> str:
    return " ".join(text.casefold().split())


def _instruction_number(journal: JournalReader, payment: FoundPayment) -> int:
    if (record := journal.batch(payment.batch, operation=payment.operation)) is None:
        raise InternalError("a payment was found in a batch that the journal does not have")
    (row,) = journal.rows(record.number, numbers={payment.row})
    return row.instruction
