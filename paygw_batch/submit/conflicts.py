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
from paygw_batch.sheet.model import Sheet, Validated
from paygw_batch.show.remittance import build_payee
from paygw_batch.submit.compare_sheet import select_rows
from paygw_batch.submit.open_questions import RepeatedRow, share_workbook

CONFLICT = "client_orderid.conflict"
_HELD, _AMEND_READY, _AMEND_REJECTED, _FORGOTTEN = "held", "amend ready", "amend rejected", "forgotten"
_RESTORE = mark("Restore this row.")
_SETTLE = mark(
    "The earlier payment may have been made. Settle it first: the status of its batch shows how. Until then, do not "
    "pay this row in any other way, such as under another id or in another payment run."
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
            "The earlier payment will still be sent as it was, and this row cannot replace it. Restore this row."
        ),
        State.REJECTED: mark(
            "The earlier payment can be sent again as it was, but this row cannot replace it. Restore this row."
        ),
        State.RETURNED: mark("The money came back. Restore this row, and pay the person in a separate payment."),
        _AMEND_READY: mark(
            "The earlier payment will still be sent as it was. Restore this row, or submit the sheet with the option "
            "'amend', so that this row replaces it."
        ),
        _AMEND_REJECTED: mark(
            "Restore this row, or submit the sheet with the option 'amend', so that this row replaces the earlier "
            "payment."
        ),
        _FORGOTTEN: mark(
            "The person in the earlier payment was forgotten, so this row can't be compared with it. If this row pays "
            "the same person, delete it."
        ),
    }
)
"""What to do about a conflict, by the state of the earlier payment or by another case above."""
_OTHER_WORKSHEET = mark(
    "The earlier payment is on another worksheet. If this row is the same payment, delete it. If not, pay it in a "
    "separate payment run."
)
_UNPAID_OTHER_WORKSHEET: Mapping[str, str] = MappingProxyType(
    {
        State.READY: mark(
            "The earlier payment is on another worksheet, and will still be sent as it was. If this row is the same "
            "payment, delete it. If not, pay it in a separate payment run."
        ),
        State.REJECTED: mark(
            "The earlier payment is on another worksheet, and was rejected. If this row is the same payment, delete "
            "it, and retry the earlier one or amend it on its own worksheet. If not, pay it in a separate payment run."
        ),
        State.RETURNED: mark(
            "The earlier payment is on another worksheet, and the money came back. Delete this row, and pay the "
            "person in a separate payment run."
        ),
    }
)
"""What to do if the earlier payment was not made and is on another worksheet, by its state."""
_MAY_PAY_MORE = frozenset({State.PAID, State.ACCEPTED, State.READY})
"""The states in which a higher amount may be paid by an additional payment."""


@dataclass(frozen=True, slots=True)
class _Conflict:
    """A row that conflicts with the `earlier` payment. `clash` is None if the row has a new order id.

    `is_only` is set if the payee has only this row. `payees` holds the earlier payments of all conflicting rows, by the
    parts of their payees' `person`.
    """

    new: Instruction
    earlier: FoundPayment
    clash: Clash | None
    repeat: RepeatedRow | None
    is_held: bool
    is_only: bool
    payees: Mapping[str, FoundPayment]
    sheet: Sheet
    new_parts: frozenset[str]
    earlier_parts: frozenset[str]

    @property
    def has_own_id(self) -> bool:
        return "client_orderid" in self.sheet.headers

    @property
    def can_amend(self) -> bool:
        """Whether the row may replace the earlier payment, at least after a quarantine."""
        is_amendable = self.clash is not None and self.clash.is_amendable and self.is_only
        return is_amendable and not self.is_on_other_worksheet and self.other_payment is None

    @property
    def is_on_other_worksheet(self) -> bool:
        """Whether the earlier payment is on another worksheet, with which this one shares a payment run."""
        return not self.has_own_id and share_workbook(self.earlier.sheet_name, self.sheet.name)

    @property
    def is_other_person(self) -> bool:
        """Whether neither the number nor the name is that of the earlier payment."""
        return self.new_parts.isdisjoint(self.earlier_parts)

    @property
    def other_payment(self) -> FoundPayment | None:
        """The earlier payment to this row's payee, if another conflicting row has its order id."""
        payments = (self.payees.get(part) for part in self.new_parts if self.is_other_person)
        return next(filter(None, payments), None)

    def defect(self, row: int, cutoff: str, quarantine: Quarantine) -> tuple[int, str, str, str, str]:
        """Return the defect, in the order id if the sheet has one, or else in the first column that differs."""
        differences = self._differences()
        column, value = "client_orderid", self.new.client_orderid
        if not self.has_own_id:
            column, value = next(((name, new) for name, _, new in differences), ("amount", self.new.amount))
        changes = (
            say(
                "{column} was {was} and is now {now}.",
                column=self.sheet.headers.get(name) or column_label(name),
                was=was or say("empty"),
                now=new or say("empty"),
            )
            for name, was, new in differences
        )
        remedies = self._quarantine_text(cutoff, quarantine) or self._remedies()
        return row, column, value, CONFLICT, " ".join([self._earlier_text(), *changes, *remedies])

    def _differences(self) -> Sequence[tuple[str, str, str]]:
        """Return the columns that differ from the earlier payment, with the old and new values.

        Columns that the sheet does not have are returned only if no others differ.
        """
        if not self.earlier.fields:  # The person was forgotten.
            return ()
        old, new = ({"amount": one.amount, "country": one.country, **one.fields} for one in (self.earlier, self.new))
        if Decimal(self.earlier.amount) == Decimal(self.new.amount):
            new["amount"] = old["amount"]
        if self.repeat is not None:
            old[STAFF_NUMBER], new[STAFF_NUMBER] = self.repeat.staff_before, self.repeat.staff
        names = [name for name in old | new if old.get(name, "") != new.get(name, "")]
        in_sheet = [name for name in names if name in self.sheet.headers]
        return [(name, old.get(name, ""), new.get(name, "")) for name in in_sheet or names]

    def _earlier_text(self) -> str:
        earlier, payee = self.earlier, build_payee(self.earlier.form, self.earlier.fields)
        values = {"order_id": earlier.client_orderid, "day": earlier.opened_at[:10], "batch": earlier.batch}
        values |= {"row": str(earlier.row), "state": state_label(_HELD if self.is_held else earlier.state.value)}
        payment = {"currency": earlier.currency, "amount": earlier.amount, "account": payee.number}
        if not self.has_own_id and earlier.fields:
            return say(
                "{name} is already in this payment run: {before_name}, {currency} {amount} to {account}, on {day} "
                "(order {order_id}, row {row} of batch {batch}, now {state}).",
                name=build_payee(self.new.form, self.new.fields).name,
                before_name=payee.name,
                **payment,
                **values,
            )
        values["order_id"] = self.new.client_orderid
        paid = say(" ({name}: {currency} {amount} to {account})", name=payee.name, **payment) if earlier.fields else ""
        return say(
            "{order_id} was used on {day} for an earlier payment{paid} (batch {batch}, row {row}, now {state}).",
            **values,
            paid=paid,
        )

    def _quarantine_text(self, cutoff: str, quarantine: Quarantine) -> Sequence[str]:
        """Return why the row cannot replace the earlier payment yet. Empty if it can now, or never can."""
        clash = self.clash
        if clash is None or clash.quarantined_since is None or not self.can_amend or clash.is_replaceable(cutoff):
            return ()
        text = say(
            "A person, not the gateway, reported the earlier payment as rejected. It was sent at {time} and could "
            "still be paid. This row can replace it from {opens} ({quarantine}). Until then, do not pay it in any "
            "other way.",
            time=clash.quarantined_since,
            opens=timestamp(quarantine.ends_at(clash.quarantined_since)),
            quarantine=quarantine,
        )
        return (text,)

    def _remedies(self) -> Iterator[str]:
        """Yield what to do, including how to pay more or somebody else."""
        earlier, new, case = self.earlier, self.new, str(self.earlier.state)
        if self.is_held:
            case = _HELD
        elif not earlier.fields:
            case = _FORGOTTEN
        elif self.can_amend:
            case = _AMEND_READY if earlier.state is State.READY else _AMEND_REJECTED
        remedy = _REMEDIES[case]
        if self.is_on_other_worksheet and remedy != _SETTLE:
            yield say(_UNPAID_OTHER_WORKSHEET.get(case, _OTHER_WORKSHEET))
            return
        yield say(remedy)
        more = Decimal(new.amount) - Decimal(earlier.amount)
        if self.clash is not None and not self.is_only:
            yield say("This person has several payments in this run. If one of their rows was deleted, restore it.")
        elif case in _MAY_PAY_MORE and more > 0 and earlier.currency == new.currency and not self.is_other_person:
            template = (
                mark("To pay {currency} {more} more, add a row for this amount with its own id.")
                if self.has_own_id
                else mark("To pay {currency} {more} more, pay that amount in a separate payment run.")
            )
            yield say(template, currency=new.currency, more=format_amount(f"{more:f}"))
        if self.has_own_id and (other := self.other_payment) is not None:
            template = mark("The order ids may be in the wrong rows: {order_id} was used for {name}.")
            yield say(template, order_id=other.client_orderid, name=build_payee(other.form, other.fields).name)
        elif self.has_own_id and self.is_other_person and remedy != _SETTLE:
            yield say("Give this row its own id only if it pays a different person.")


def _person_parts(payment: Instruction | FoundPayment) -> frozenset[str]:
    """Return the number and name of a payment's payee. Empty if the person was forgotten."""
    return frozenset(filter(None, build_payee(payment.form, payment.fields).person))


def conflict_defects(
    clashes: Mapping[int, tuple[Clash, bool]],
    amended: Mapping[int, tuple[Clash, bool]],
    repeats: Mapping[int, RepeatedRow],
    validated: Validated,
    journal: JournalReader,
    cutoff: str,
    quarantine: Quarantine,
) -> Iterator[tuple[int, str, str, str, str]]:
    """Yield a defect for each conflict, for `build_findings`.

    `clashes` also tells whether the payee has only this row. If not, it may not replace the earlier payment. Rows in
    `amended` may, unless their payee has the earlier payment of a conflicting row: then their ids were swapped.
    """
    clashes = {**clashes, **amended}
    earlier_rows = {row: (clash.batch, clash.sheet_row) for row, (clash, _) in clashes.items()}
    earlier_rows |= {row: (repeat.batch, repeat.sheet_row) for row, repeat in repeats.items()}
    earlier: dict[tuple[str, int], tuple[FoundPayment, bool]] = {}
    for batch in {batch for batch, _ in earlier_rows.values()}:
        if (record := journal.batch(batch)) is not None:
            rows, holds = [row for name, row in earlier_rows.values() if name == batch], journal.holds(record.number)
            payments = journal.payments(record.number, rows)
            earlier |= {(batch, row): (payment, row in holds) for row, payment in payments.items()}
    conflicting = [earlier[key][0] for row, key in earlier_rows.items() if row not in amended]
    payees = {part: payment for payment in conflicting for part in _person_parts(payment)}
    columns = ("row", "client_orderid", "country", "currency", "amount", "form", "fields")
    for part in validated.parts() if earlier_rows else ():
        lines = select_rows(part.instructions, list(earlier_rows)).select(columns)
        for row, order_id, country, currency, amount, form, fields in lines.iter_rows():
            (clash, is_only), (payment, is_held) = clashes.get(row, (None, False)), earlier[earlier_rows[row]]
            new = Instruction(order_id, country, currency, amount, form, json.loads(fields))
            conflict = _Conflict(
                new,
                payment,
                clash,
                repeats.get(row),
                is_held,
                is_only,
                payees,
                validated.sheet,
                _person_parts(new),
                _person_parts(payment),
            )
            if row not in amended or conflict.other_payment is not None:
                yield conflict.defect(row, cutoff, quarantine)
