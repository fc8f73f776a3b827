"""Finds the payee of a payment in the fields of its form."""

from collections.abc import Mapping
from dataclasses import dataclass

from paygw_batch.countries.data import read_forms
from paygw_batch.countries.load import config_dir


@dataclass(frozen=True, slots=True)
class Payee:
    """Whom a payment is to: name and account or phone number, as the reconciliation shows them."""

    name: str
    number: str

    @property
    def person(self) -> tuple[str, str]:
        """The key of one person's payments: the number, and the name without regard to case."""
        return self.number, " ".join(self.name.casefold().split())


def payee_of(form: str, fields: Mapping[str, str]) -> Payee:
    """Return whom the fields of a form name. The account counts, or the phone of a form that has no account."""
    name, account, phone = (
        " ".join(fields[name] for name in shown_fields(form, column) if fields.get(name))
        for column in ("account_name", "account_number", "phone")
    )
    return Payee(name, account or phone)


def shown_fields(form: str, column: str) -> tuple[str, ...]:
    """Return the fields of `form` that are shown in `column` of the reconciliation: those it names, else its own."""
    forms = read_forms(config_dir())
    named = forms[form].shown.items() if form in forms else ()
    return next((tuple(fields) for name, fields in named if name == column), (column,))
