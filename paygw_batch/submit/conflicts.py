"""Finds the defect of each row that would change an earlier payment, or repeat one under a new order id.

What a person should do depends on the state of the earlier payment. Nobody is told to pay a row under another id while
the earlier payment may have been made, or may still be sent.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType

from paygw_batch.clock import timestamp
from paygw_batch.core.batch import Instruction
from paygw_batch.core.lifecycle import State
from paygw_batch.core.money import format_amount
from paygw_batch.core.shown_states import state_label
from paygw_batch.countries.form_columns import STAFF_NUMBER
from paygw_batch.engine.quarantine import Quarantine
from paygw_batch.journal import Clash, FoundPayment, JournalReader
from paygw_batch.language import mark, say
from paygw_batch.sheet.columns import column_label
from paygw_batch.sheet.model import Validated
from paygw_batch.show.remittance import build_payee
from paygw_batch.submit.compare_sheet import select_rows
from paygw_batch.submit.open_questions import RepeatedRow, share_workbook

CONFLICT = "client_orderid.conflict"
_HELD, _AMEND_READY, _AMEND_REJECTED, _WORKSHEET = "held", "amend ready", "amend rejected", "worksheet"
_RESTORE = mark("Restore this row.")
_SETTLE = mark(
    "The earlier payment may have been made. Settle it first: the status of its batch shows how. Until then, don't pay "
    "this row in any other way, such as under another id or in another payment run."
)
_REMEDIES: Mapping[str, str] = MappingProxyType(
    {
        State.PAID: _RESTORE,
        State.ACCEPTED: _RESTORE,
        State.REPLACED: _RESTORE,
        State.IN_FLIGHT: _SETTLE,
        State.IN_DOUBT: _SETTLE,
        _HELD: _SETTLE,
        State.READY: mark(
            "The earlier payment will still be sent as it was, and this row can't replace it. Restore this row."
        ),
        State.REJECTED: mark(
            "The earlier payment can be sent again as it was, but this row can't replace it. Restore this row."
        ),
        State.RETURNED: mark("The money came back. Restore this row, and pay the person in a separate payment."),
        _AMEND_READY: mark(
            "The earlier payment will still be sent as it was. Restore this row, or amend the earlier payment, so that "
            "this row replaces it."
        ),
        _AMEND_REJECTED: mark("Restore this row, or amend the earlier payment, so that this row replaces it."),
        _WORKSHEET: mark(
            "The earlier payment is on another worksheet. If this row is the same payment, delete it. If not, pay it "
            "in a separate payment run."
        ),
    }
)
"""What to do about a conflict, by the state of the earlier payment or by what is known of it."""
_TAKES_MORE = frozenset({State.PAID, State.ACCEPTED, State.READY})
"""The remedies after which a difference may be paid in addition."""


@dataclass(frozen=True, slots=True)
class _Conflict:
    """A row that pays `now`, and the earlier payment `before`. `clash` is None if the row has a new order id.

    `can_amend` is whether the row may replace the earlier payment, at least after a quarantine.
    """

    now: Instruction
    before: FoundPayment
    clash: Clash | None
    repeat: RepeatedRow | None
    is_held: bool
    can_amend: bool
    sheet_name: str
    headers: Mapping[str, str]

    @property
    def has_own_id(self) -> bool:
        return "client_orderid" in self.headers

    def finding(self, row: int, cutoff: str, quarantine: Quarantine) -> tuple[int, str, str, str, str]:
        """Return the defect, in the column that differs or, if the sheet has order ids, in theirs."""
        differences = self._differences()
        column, value = "client_orderid", self.now.client_orderid
        if not self.has_own_id:
            column, value = next(((name, new) for name, _, new in differences), ("amount", self.now.amount))
        changes = (
            say(
                "{column} was {was} and is now {now}.",
                column=self.headers.get(name) or column_label(name),
                was=was or say("empty"),
                now=new or say("empty"),
            )
            for name, was, new in differences
        )
        remedies = self._quarantine_text(cutoff, quarantine) or self._remedies()
        return row, column, value, CONFLICT, " ".join([self._earlier_text(), *changes, *remedies])

    def _differences(self) -> Sequence[tuple[str, str, str]]:
        """Return the columns that differ from the earlier payment, with the values before and now.

        Columns that the sheet does not have are returned only if no others differ.
        """
        if not self.before.fields:  # The person was forgotten.
            return ()
        old, new = ({"amount": one.amount, "country": one.country, **one.fields} for one in (self.before, self.now))
        if Decimal(self.before.amount) == Decimal(self.now.amount):
            new["amount"] = old["amount"]
        if self.repeat is not None:
            old[STAFF_NUMBER], new[STAFF_NUMBER] = self.repeat.staff_before, self.repeat.staff
        names = [name for name in old | new if old.get(name, "") != new.get(name, "")]
        in_sheet = [name for name in names if name in self.headers]
        return [(name, old.get(name, ""), new.get(name, "")) for name in in_sheet or names]

    def _earlier_text(self) -> str:
        before, payee = self.before, build_payee(self.before.form, self.before.fields)
        values = {"order_id": before.client_orderid, "day": before.opened_at[:10], "batch": before.batch}
        values |= {"row": str(before.row), "state": state_label(_HELD if self.is_held else before.state.value)}
        payment = {"currency": before.currency, "amount": before.amount, "account": payee.number}
        if not self.has_own_id and before.fields:
            return say(
                "{name} is already in this payment run: {before_name}, {currency} {amount} to {account}, on {day} "
                "(order {order_id}, row {row} of batch {batch}, now {state}).",
                name=build_payee(self.now.form, self.now.fields).name,
                before_name=payee.name,
                **payment,
                **values,
            )
        values["order_id"] = self.now.client_orderid
        paid = say(" ({name}: {currency} {amount} to {account})", name=payee.name, **payment) if before.fields else ""
        return say(
            "{order_id} was used on {day} for another payment{paid} (batch {batch}, row {row}, now {state}).",
            **values,
            paid=paid,
        )

    def _quarantine_text(self, cutoff: str, quarantine: Quarantine) -> Sequence[str]:
        """Return why the row cannot replace the earlier payment yet, or nothing if it can now or never."""
        clash = self.clash
        if clash is None or clash.quarantined_since is None or not self.can_amend or clash.is_replaceable(cutoff):
            return ()
        text = say(
            "A person, not the gateway, reported the earlier payment as rejected. It was sent at {time} and could "
            "still be paid. This row can replace it from {opens} ({quarantine}). Until then, don't pay it in any other "
            "way.",
            time=clash.quarantined_since,
            opens=timestamp(quarantine.ends_at(clash.quarantined_since)),
            quarantine=quarantine,
        )
        return (text,)

    def _remedies(self) -> Iterator[str]:
        """Yield what to do, also if more is to be paid, or if the row may be for somebody else."""
        before, now, case = self.before, self.now, str(self.before.state)
        if not self.has_own_id and share_workbook(before.sheet_name, self.sheet_name):
            case = _WORKSHEET
        elif self.is_held:
            case = _HELD
        elif self.can_amend:
            case = _AMEND_READY if before.state is State.READY else _AMEND_REJECTED
        yield say(_REMEDIES[case])
        more = Decimal(now.amount) - Decimal(before.amount)
        if case in _TAKES_MORE and more > 0 and before.currency == now.currency:
            template = (
                mark("To pay {currency} {more} more, add a row for that amount with its own id.")
                if self.has_own_id
                else mark("To pay {currency} {more} more, pay that amount in a separate payment run.")
            )
            yield say(template, currency=now.currency, more=format_amount(f"{more:f}"))
        person, other = (build_payee(one.form, one.fields).person for one in (now, before))
        if self.has_own_id and all(mine != theirs for mine, theirs in zip(person, other, strict=True)):
            yield say("Only if this row pays another person altogether, give it its own id instead.")


def conflict_findings(
    clashes: Mapping[int, tuple[Clash, bool]],
    repeats: Mapping[int, RepeatedRow],
    validated: Validated,
    journal: JournalReader,
    cutoff: str,
    quarantine: Quarantine,
) -> Iterator[tuple[int, str, str, str, str]]:
    """Yield the defects of all conflicts, for `build_findings`.

    `clashes` also says whether the payee has no other row, because only then may the row replace the earlier payment.
    """
    places = {row: (clash.batch, clash.sheet_row) for row, (clash, _) in clashes.items()}
    places |= {row: (repeat.batch, repeat.sheet_row) for row, repeat in repeats.items()}
    earlier: dict[tuple[str, int], tuple[FoundPayment, bool]] = {}
    for batch in {batch for batch, _ in places.values()}:
        if (record := journal.batch(batch)) is not None:
            rows, holds = [row for name, row in places.values() if name == batch], journal.holds(record.number)
            payments = journal.payments(record.number, rows)
            earlier |= {(batch, row): (payment, row in holds) for row, payment in payments.items()}
    columns = ("row", "client_orderid", "country", "currency", "amount", "form", "fields")
    for part in validated.parts() if places else ():
        lines = select_rows(part.instructions, list(places)).select(columns)
        for row, order_id, country, currency, amount, form, fields in lines.iter_rows():
            (clash, is_only), (before, is_held) = clashes.get(row, (None, False)), earlier[places[row]]
            can_amend = clash is not None and clash.is_amendable and is_only
            conflict = _Conflict(
                Instruction(order_id, country, currency, amount, form, json.loads(fields)),
                before,
                clash,
                repeats.get(row),
                is_held,
                can_amend,
                validated.sheet.name,
                validated.sheet.headers,
            )
            yield conflict.finding(row, cutoff, quarantine)
