"""What an approver's screen showed, and the judge who holds what is paid against it.

The judge reads the lines of the screen as a person does, and knows what was paid from the world's own record. It asks
the program nothing: neither what a plan's digest is, nor who approved it, nor how a sheet differs from the past.
"""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, ClassVar, cast

from paygw_batch.approval.plan_document import PlanDocument
from paygw_batch.cli.screen import approval_plan
from paygw_batch.cli.screen.screen import Screen
from tests.promise.simulation.judge import Violation

SHARE = Decimal("0.25")
"""How far an amount may be from the last one before an approver has to see it."""
REPEATED_WITHIN = timedelta(days=5)
"""How long a sheet that pays the same again is taken for a repeat."""
_HEADINGS: Mapping[str, re.Pattern[str]] = {
    "account": re.compile(r"[\d,]+ changed accounts?:"),
    "amount": re.compile(r"[\d,]+ amounts? differs?:"),
    "new": re.compile(r"[\d,]+ new (person|people):"),
    "gone": re.compile(r"[\d,]+ (person|people) missing:"),
    "people": re.compile(r"[\d,]+ payments? in all:"),
}
_EARLIER = re.compile(
    r" paid to another account before: KES (?P<amount>[\d,.]+) in \S+ \((?P<day>[\d-]+)\); this account was "
    r"(never paid before|first paid on [\d-]+: KES (?P<first>[\d,.]+) in \S+)(; this account was paid under .*)?"
)
_FIRST_RUN = "There is no earlier payment to compare with."
_LISTED = re.compile(
    r"- Row (\d+), (?P<name>[^,]*), (?P<account>[^,]*), KES (?P<amount>[\d,.]+), "
    r"(known since (?P<since>[\d-]+)|new account)( \(.*\))?"
)


@dataclass(frozen=True, slots=True)
class Payment:
    """One payment, as it leaves or as a person means it."""

    name: str
    account: str
    amount: Decimal


@dataclass(frozen=True, slots=True)
class Earlier:
    """What a changed account is shown beside: a day, the account and the sum of then, and the first sum of this one."""

    day: str
    account: str
    amount: Decimal
    first: Decimal


@dataclass(frozen=True, slots=True)
class PaidBatch:
    """What one batch has paid. `is_approved`: another person than its maker had to look at it."""

    batch: str
    at: datetime
    is_approved: bool
    payments: Sequence[Payment]


@dataclass(frozen=True, slots=True)
class Look:
    """A person looked at a screen, and then approved the document that has this text."""

    person: str
    at: datetime
    signed: str
    lines: Sequence[str]


@dataclass(slots=True)
class _Captured:
    """The terminal of an approver, with as many lines as there are."""

    lines: list[str] = field(default_factory=list)
    as_json: ClassVar[bool] = False

    def pages(self, lines: Sequence[str]) -> None:
        """Show lines, page by page."""
        self.lines += lines


def screen_of(document: PlanDocument) -> Sequence[str]:
    """Return what `approve --list` shows of a plan."""
    captured = _Captured()
    approval_plan._show_plan(cast(Screen, captured), document, with_people=True)
    return captured.lines


def text_sha256(file: str) -> str:
    """Return a digest of what the maker of a plan wrote: all of its file but the signatures."""
    values = {name: value for name, value in json.loads(file).items() if name not in {"signature", "approvals"}}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


class Seen:
    """The lines of one screen by their headings."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines
        self.sections: dict[str, list[str]] = defaultdict(list)
        heading = ""
        for line in lines:
            if not line.startswith(("- ", "  ")):
                heading = next((name for name, pattern in _HEADINGS.items() if pattern.fullmatch(line)), "")
            elif heading:
                self.sections[heading].append(line)

    def listed(self) -> Sequence[tuple[Payment, str]]:
        """Return everybody who is listed, and since when the account is known (empty: it is new)."""
        found = (_LISTED.fullmatch(line) for line in self.sections["people"])
        return [
            (Payment(one["name"], one["account"], _number(one["amount"])), one["since"] or "")
            for one in found
            if one is not None
        ]

    def names(self, kind: str, one: Payment, total: Decimal) -> bool:
        """Whether a payment is named below the heading of a danger.

        `total` is all that its account gets: of an account that has a new name, that is the amount to see.
        """
        named = (line.partition(":")[0] for line in self.sections[kind])
        amounts = (one.amount, total) if kind == "amount" else (one.amount,)
        return any(one.name in where and any(_money(amount) in where for amount in amounts) for where in named)

    def earlier(self, one: Payment) -> Earlier | None:
        """Return the earlier payment that a payment to a changed account is shown beside; None if it is not shown."""
        lines = self.sections["account"]
        for line, before, now in zip(lines, lines[1:], lines[2:], strict=False):
            where, _, told = line.partition(":")
            found = _EARLIER.fullmatch(told)
            is_this = one.name in where and _money(one.amount) in where and now.split() == ["now", one.account]
            if is_this and found is not None and before.split()[0] == "before":
                first = _number(found["first"] or "0")
                return Earlier(found["day"], before.split()[1], _number(found["amount"]), first)
        return None

    def names_missing(self, name: str) -> bool:
        """Whether somebody is named among the missing."""
        return any(line.startswith(f"- {name}, ") for line in self.sections["gone"])

    def is_first_run(self) -> bool:
        """Whether it says that there is nothing to compare with."""
        return _FIRST_RUN in self._lines

    def sums_up(self, total: Decimal) -> bool:
        """Whether it names the sum of everything."""
        return f"In all: {_money(total)}." in self._lines

    def names_repeat(self, batch: str, count: int) -> bool:
        """Whether a line other than the comparison says that the sheet repeats a batch, and how many rows do."""
        return any(
            line.strip().removeprefix("- ").startswith(f"{count} of ") and batch in line and "payroll" in line
            for line in self._rest()
        )

    def _rest(self) -> Iterator[str]:
        return (line for line in self._lines if " people are in " not in line)


def _number(text: str) -> Decimal:
    return Decimal(text.replace(",", ""))


def _money(amount: Decimal) -> str:
    return f"KES {amount:,.2f}"


@dataclass(frozen=True, slots=True)
class Opening:
    """A batch whose payments are about to leave, and the file of the plan that opened it."""

    batch: str
    at: datetime
    payments: Sequence[Payment]
    file: str


class ScreenJudge:
    """Holds what is paid against the screens of those who approved it."""

    def __init__(self, *, maker: str, needed: int, from_amount: Decimal, expires: timedelta) -> None:
        self._maker, self._needed, self._from_amount, self._expires = maker, needed, from_amount, expires
        self.looks: list[Look] = []
        self.withdrawn: set[str] = set()
        self.paid: list[PaidBatch] = []
        self._used: set[str] = set()
        self.judged = 0
        self.dangers: set[str] = set()
        """The kinds of dangers that were in batches that opened."""

    def needs_approval(self, payments: Collection[Payment]) -> bool:
        """Whether a sum needs the approval of others."""
        return sum(one.amount for one in payments) >= self._from_amount

    def look_at_opened(self, opening: Opening) -> None:
        """What is about to leave was on the screens of enough people, who approved exactly that."""
        if not self.needs_approval(opening.payments):
            return
        self.judged += 1
        signed = text_sha256(opening.file)
        if signed in self.withdrawn:
            raise Violation("I17", f"a withdrawn plan opened batch {opening.batch}")
        if signed in self._used:
            raise Violation("I17", f"a plan opened batch {opening.batch}, and another one before")
        self._used.add(signed)
        counted = [
            look
            for look in self.looks
            if look.signed == signed
            and look.person != self._maker
            and timedelta() <= opening.at - look.at < self._expires
        ]
        if len({look.person for look in counted}) < self._needed:
            raise Violation("I17", f"not enough people approved the plan of batch {opening.batch}")
        problems = {look.person: self._hidden(look, opening) for look in counted}
        sound = [person for person, hidden in problems.items() if not hidden]
        if len(sound) < self._needed:
            raise Violation("I17", f"batch {opening.batch} was opened, and {problems} not shown")

    def _hidden(self, look: Look, opening: Opening) -> str:
        """Return what a screen did not show of a batch; empty for nothing."""
        seen = Seen(look.lines)
        listed = seen.listed()
        if sorted(map(str, (one for one, _ in listed))) != sorted(map(str, opening.payments)):
            return "who is paid, where and how much"
        if not seen.sums_up(sum((one.amount for one in opening.payments), Decimal())):
            return "the sum"
        first_days = self._first_days()
        if any(first_days.get(one.account, "") != since for one, since in listed):
            return "since when an account is known"
        hidden = [
            f"{kind} of {one.name}"
            for one in opening.payments
            if (kind := self.danger_of(one, opening.payments))
            and not self._is_shown(seen, kind, one, opening.payments)
            and not (kind == "new" and not self.paid and seen.is_first_run())
        ]
        hidden += [f"{name} is missing" for name in self._gone(opening.payments) if not seen.names_missing(name)]
        hidden += [
            f"it repeats {batch}" for batch, count in self._repeated(opening) if not seen.names_repeat(batch, count)
        ]
        return ", ".join(hidden)

    def _is_shown(self, seen: Seen, kind: str, one: Payment, payments: Sequence[Payment]) -> bool:
        """Whether a danger can be seen: an amount that is off also beside the one of a changed account.

        A changed account is shown beside a payment that this person truly got. An amount beside it is seen to be off
        only if the sum of then, or the first one of this account, is as far from it.
        """
        if kind != "account" and seen.names(kind, one, _sum(other for other in payments if _is_account(other, one))):
            return True
        earlier = seen.earlier(one) if kind in {"account", "amount"} else None
        if earlier is None or not self._was_paid(one.name, earlier):
            return False
        got = {_sum(other for other in batch.payments if _is_account(other, one)) for batch in self.paid}
        shown = {earlier.amount, *({earlier.first} & got)}
        return kind == "account" or any(abs(one.amount - amount) > SHARE * amount for amount in shown)

    def _was_paid(self, name: str, earlier: Earlier) -> bool:
        """Whether a batch that counts paid a person what is shown."""
        then = Payment(name, earlier.account, earlier.amount)
        return any(
            f"{batch.at:%Y-%m-%d}" == earlier.day
            and _sum(other for other in batch.payments if _is_pair(other, then)) == then.amount
            for batch in self._counting(lambda other: other.name == name)
        )

    def _first_days(self) -> Mapping[str, str]:
        days: dict[str, str] = {}
        for batch in self.paid:
            for one in batch.payments:
                days.setdefault(one.account, f"{batch.at:%Y-%m-%d}")
        return days

    def danger_of(self, one: Payment, payments: Sequence[Payment]) -> str:
        """Return what an approver has to see of one payment, by all that was paid before; empty for nothing."""
        danger = self._danger(one, payments)
        if danger:
            self.dangers.add(danger)
        return danger

    def _danger(self, one: Payment, payments: Sequence[Payment]) -> str:
        by_name = self._counting(lambda other: other.name == one.name)
        if by_name and not any(_is_pair(other, one) for batch in by_name for other in batch.payments):
            return "account"
        by_account = self._counting(lambda other: other.account == one.account)
        if not by_name and not by_account:
            return "new"
        # A known account under a new name: all that it gets is compared with all that it got.
        same = _is_pair if by_name else _is_account
        batches = self._counting(lambda other: same(other, one))
        before = [_sum(other for other in batch.payments if same(other, one)) for batch in batches]
        now = _sum(other for other in payments if same(other, one))
        is_off = before and (now > (1 + SHARE) * max(before) or now < (1 - SHARE) * min(before))
        return "amount" if is_off else ""

    def _counting(self, wanted: Any) -> Sequence[PaidBatch]:
        """Return the batches with a payment like this: those that others approved, if one of them has any."""
        found = [batch for batch in self.paid if any(map(wanted, batch.payments))]
        return [batch for batch in found if batch.is_approved] or found

    def _gone(self, payments: Sequence[Payment]) -> Sequence[str]:
        """Return who was paid by every batch that others approved, and is not paid now."""
        approved = [batch for batch in self.paid if batch.is_approved]
        if not approved:
            return []
        names, accounts = {one.name for one in payments}, {one.account for one in payments}
        always = set.intersection(*({(one.name, one.account) for one in batch.payments} for batch in approved))
        return sorted(name for name, account in always if name not in names and account not in accounts)

    def _repeated(self, opening: Opening) -> Iterator[tuple[str, int]]:
        """Yield the batch of the last days most of whose payments are here again, and how many are."""
        now = {(one.account, one.amount) for one in opening.payments}
        counts: dict[str, int] = {}
        for batch in self.paid:
            if opening.at - batch.at < REPEATED_WITHIN:
                counts[batch.batch] = len(now & {(one.account, one.amount) for one in batch.payments})
        most = max(counts.values(), default=0)
        alike = [batch for batch, count in counts.items() if count == most]
        if most * 2 > len(opening.payments) and len(alike) == 1:
            self.dangers.add("repeat")
            yield alike[0], most


def _is_pair(other: Payment, one: Payment) -> bool:
    return (other.name, other.account) == (one.name, one.account)


def _is_account(other: Payment, one: Payment) -> bool:
    return other.account == one.account


def _sum(payments: Iterator[Payment]) -> Decimal:
    return sum((one.amount for one in payments), Decimal())
