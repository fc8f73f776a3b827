"""The screens of approvers, and the judge who compares payments with them.

The judge reads the lines of the screen as a person does, and knows the payments from the scenario's own record. It does
not ask the program for a plan's digest, its approvers, or the differences from the past.
"""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, cast

from paygw_batch.approval.plan_document import PlanDocument
from paygw_batch.cli.screen import approval_plan
from paygw_batch.cli.screen.screen import Screen
from tests.promise.simulation.judge import Violation

SHARE = Decimal("0.25")  # the change of an amount above which an approver must see it
_HEADINGS: Mapping[str, re.Pattern[str]] = {
    "account": re.compile(r"[\d,]+ changed accounts?:"),
    "amount": re.compile(r"[\d,]+ amounts? differs?:"),
    "new": re.compile(r"[\d,]+ new (person|people):"),
    "gone": re.compile(r"[\d,]+ (person|people) missing:"),
    "people": re.compile(r"[\d,]+ payments? in all:"),
}
_EARLIER = re.compile(
    r" paid to another account before: KES (?P<amount>[\d,.]+) in \S+ \((?P<day>[\d-]+)\); this account (has never "
    r"been paid before|was first paid on [\d-]+: KES (?P<first>[\d,.]+) in \S+)(; this account was paid under .*)?"
)
_FIRST_RUN = "There is no earlier payment to compare with."
_LISTED = re.compile(
    r"- Row (\d+), (?P<name>[^,]*), (?P<account>[^,]*), KES (?P<amount>[\d,.]+), "
    r"(first paid on (?P<since>[\d-]+)|new account)( \(.*\))?"
)


@dataclass(frozen=True, slots=True)
class Payment:
    name: str
    account: str
    amount: Decimal


@dataclass(frozen=True, slots=True)
class EarlierPayment:
    """The earlier payment shown with a changed account: date, account and sum, and the first sum of the new account."""

    day: str
    account: str
    amount: Decimal
    first: Decimal


@dataclass(frozen=True, slots=True)
class PaidBatch:
    """The payments of one batch. `is_approved` is set if someone other than its maker had to review it."""

    batch: str
    at: datetime
    is_approved: bool
    payments: Sequence[Payment]


@dataclass(frozen=True, slots=True)
class Review:
    """A person's review of a screen, followed by the approval of the document with this text."""

    person: str
    at: datetime
    signed: str
    lines: Sequence[str]


def render_screen(document: PlanDocument) -> Sequence[str]:
    lines: list[str] = []
    screen = cast(Screen, SimpleNamespace(as_json=False, print_pages=lines.extend))
    approval_plan._show_plan(screen, document, with_people=True)
    return lines


def text_sha256(file: str) -> str:
    values = {name: value for name, value in json.loads(file).items() if name not in {"signature", "approvals"}}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


class ScreenLines:
    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = lines
        self.sections: dict[str, list[str]] = defaultdict(list)
        heading = ""
        for line in lines:
            if not line.startswith(("- ", "  ")):
                heading = next((name for name, pattern in _HEADINGS.items() if pattern.fullmatch(line)), "")
            elif heading:
                self.sections[heading].append(line)

    def listed(self) -> Sequence[tuple[Payment, str]]:
        """Return everybody who is listed, with the date since which the account is known, or an empty string."""
        matches = filter(None, map(_LISTED.fullmatch, self.sections["people"]))
        return [(Payment(one["name"], one["account"], _number(one["amount"])), one["since"] or "") for one in matches]

    def names(self, kind: str, one: Payment, total: Decimal) -> bool:
        """Return whether a danger names a payment. For a new name, the shown amount is its account's `total`."""
        named = (line.partition(":")[0] for line in self.sections[kind])
        amounts = (one.amount, total) if kind == "amount" else (one.amount,)
        return any(one.name in where and any(_money(amount) in where for amount in amounts) for where in named)

    def earlier(self, one: Payment) -> EarlierPayment | None:
        """Return the earlier payment shown with a changed account, or None."""
        lines = self.sections["account"]
        for line, before, now in zip(lines, lines[1:], lines[2:], strict=False):
            where, _, text = line.partition(":")
            matches = _EARLIER.fullmatch(text)
            is_this = one.name in where and _money(one.amount) in where and now.split() == ["now", one.account]
            if is_this and matches is not None and before.split()[0] == "before":
                first = _number(matches["first"] or "0")
                return EarlierPayment(matches["day"], before.split()[1], _number(matches["amount"]), first)
        return None

    def names_missing(self, name: str) -> bool:
        return any(line.startswith(f"- {name}, ") for line in self.sections["gone"])

    def names_repeat(self, batch: str, count: int) -> bool:
        """Return whether a line says that the sheet repeats a batch, with the number of rows."""
        lines = [line for line in self.lines if " people are in " not in line and batch in line and "payroll" in line]
        return any(line.strip().removeprefix("- ").startswith(f"{count} of ") for line in lines)


def _number(text: str) -> Decimal:
    return Decimal(text.replace(",", ""))


def _money(amount: Decimal) -> str:
    return f"KES {amount:,.2f}"


@dataclass(frozen=True, slots=True)
class Opening:
    """A batch that is about to be sent, and the plan's file that opened it."""

    batch: str
    at: datetime
    payments: Sequence[Payment]
    file: str


class ScreenJudge:
    """Compares payments with the screens of their approvers."""

    def __init__(self, *, maker: str, needed: int, from_amount: Decimal, expires: timedelta) -> None:
        self._maker, self._needed, self._from_amount, self._expires = maker, needed, from_amount, expires
        self.looks: list[Review] = []
        self.withdrawn: set[str] = set()
        self.paid: list[PaidBatch] = []
        self._used: set[str] = set()
        self.judged = 0
        self.dangers: set[str] = set()  # the kinds of dangers in opened batches

    def needs_approval(self, payments: Collection[Payment]) -> bool:
        return sum(payment.amount for payment in payments) >= self._from_amount

    def check_opened(self, opening: Opening) -> None:
        """Check that the payments were on the screens of enough people who approved exactly these."""
        if not self.needs_approval(opening.payments):
            return
        self.judged += 1
        signed = text_sha256(opening.file)
        if signed in self.withdrawn:
            raise Violation("I17", f"a withdrawn plan opened batch {opening.batch}")
        if signed in self._used:
            raise Violation("I17", f"a plan opened batch {opening.batch}, and another one before")
        self._used.add(signed)
        looks = [look for look in self.looks if look.signed == signed and look.person != self._maker]
        counted = [look for look in looks if timedelta() <= opening.at - look.at < self._expires]
        if len({look.person for look in counted}) < self._needed:
            raise Violation("I17", f"not enough people approved the plan of batch {opening.batch}")
        problems = {look.person: self._find_hidden(look, opening) for look in counted}
        sound = [person for person, hidden in problems.items() if not hidden]
        if len(sound) < self._needed:
            raise Violation("I17", f"batch {opening.batch} was opened, and {problems} not shown")

    def _find_hidden(self, look: Review, opening: Opening) -> str:
        """Return what a screen did not show of a batch, or an empty result."""
        seen = ScreenLines(look.lines)
        listed = seen.listed()
        if sorted(map(str, (line for line, _ in listed))) != sorted(map(str, opening.payments)):
            return "who is paid, where and how much"
        if f"Total: {_money(_sum(opening.payments))}." not in seen.lines:
            return "the sum"
        first_days = self._first_days()
        if any(first_days.get(line.account, "") != since for line, since in listed):
            return "since when an account is known"
        hidden = [
            f"{kind} of {payment.name}"
            for payment in opening.payments
            if (kind := self.danger_of(payment, opening.payments))
            and not self._is_shown(seen, kind, payment, opening.payments)
            and not (kind == "new" and not self.paid and _FIRST_RUN in seen.lines)
        ]
        gone, repeated = self._missing_payees(opening.payments), self._repeated(opening)
        hidden += [f"{name} is missing" for name in gone if not seen.names_missing(name)]
        hidden += [f"it repeats {batch}" for batch, count in repeated if not seen.names_repeat(batch, count)]
        return ", ".join(hidden)

    def _is_shown(self, seen: ScreenLines, kind: str, one: Payment, payments: Sequence[Payment]) -> bool:
        """Return whether a danger is visible: an unusual amount also next to a changed account.

        A changed account is shown with a payment that this person really got. Next to it, an amount is visibly unusual
        only if the earlier sum, or the first sum of this account, differs as much.
        """
        if kind != "account" and seen.names(kind, one, _sum(other for other in payments if _is_account(other, one))):
            return True
        earlier = seen.earlier(one) if kind in {"account", "amount"} else None
        if earlier is None or not self._was_paid(one.name, earlier):
            return False
        got = {_sum(other for other in batch.payments if _is_account(other, one)) for batch in self.paid}
        shown = {earlier.amount, *({earlier.first} & got)}
        return kind == "account" or any(abs(one.amount - amount) > SHARE * amount for amount in shown)

    def _was_paid(self, name: str, earlier: EarlierPayment) -> bool:
        """Return whether a relevant batch paid a person the shown amount."""
        then = Payment(name, earlier.account, earlier.amount)
        return any(
            f"{batch.at:%Y-%m-%d}" == earlier.day
            and _sum(other for other in batch.payments if _is_pair(other, then)) == then.amount
            for batch in self._relevant_batches(lambda other: other.name == name)
        )

    def _first_days(self) -> Mapping[str, str]:
        days: dict[str, str] = {}
        for batch in self.paid:
            for payment in batch.payments:
                days.setdefault(payment.account, f"{batch.at:%Y-%m-%d}")
        return days

    def danger_of(self, one: Payment, payments: Sequence[Payment]) -> str:
        """Return what an approver must see of a payment because of earlier payments, or an empty string."""
        danger = self._danger(one, payments)
        if danger:
            self.dangers.add(danger)
        return danger

    def _danger(self, one: Payment, payments: Sequence[Payment]) -> str:
        by_name = self._relevant_batches(lambda other: other.name == one.name)
        if by_name and not any(_is_pair(other, one) for batch in by_name for other in batch.payments):
            return "account"
        by_account = self._relevant_batches(lambda other: other.account == one.account)
        if not by_name and not by_account:
            return "new"
        # For a known account with a new name, the account's sums are compared.
        same = _is_pair if by_name else _is_account
        batches = self._relevant_batches(lambda other: same(other, one))
        before = [_sum(other for other in batch.payments if same(other, one)) for batch in batches]
        now = _sum(other for other in payments if same(other, one))
        is_off = before and (now > (1 + SHARE) * max(before) or now < (1 - SHARE) * min(before))
        return "amount" if is_off else ""

    def _relevant_batches(self, wanted: Any) -> Sequence[PaidBatch]:
        """Return the batches with a payment like this: only approved ones if there are any."""
        matches = [batch for batch in self.paid if any(map(wanted, batch.payments))]
        return [batch for batch in matches if batch.is_approved] or matches

    def _missing_payees(self, payments: Sequence[Payment]) -> Sequence[str]:
        """Return the payees of every approved batch who are not paid now."""
        approved = [batch for batch in self.paid if batch.is_approved]
        if not approved:
            return []
        names, accounts = {payment.name for payment in payments}, {payment.account for payment in payments}
        always = set.intersection(*({(one.name, one.account) for one in batch.payments} for batch in approved))
        return sorted(name for name, account in always if name not in names and account not in accounts)

    def _repeated(self, opening: Opening) -> Iterator[tuple[str, int]]:
        """Yield each recent batch most of whose payments are repeated, with their number."""
        now = {(payment.account, payment.amount) for payment in opening.payments}
        counts: dict[str, int] = {}
        for batch in self.paid:
            if opening.at - batch.at < timedelta(days=5):  # the time within which an equal sheet counts as a repeat
                counts[batch.batch] = len(now & {(payment.account, payment.amount) for payment in batch.payments})
        most = max(counts.values(), default=0)
        alike = [batch for batch, count in counts.items() if count == most]
        if most * 2 > len(opening.payments) and len(alike) == 1:
            self.dangers.add("repeat")
            yield alike[0], most


def _is_pair(other: Payment, one: Payment) -> bool:
    return (other.name, other.account) == (one.name, one.account)


def _is_account(other: Payment, one: Payment) -> bool:
    return other.account == one.account


def _sum(payments: Iterable[Payment]) -> Decimal:
    return sum((payment.amount for payment in payments), Decimal())
