"""Tells from which fields of a form a payee's name and numbers are shown."""

from paygw_batch.countries.data import read_forms
from paygw_batch.countries.load import config_dir


def shown_fields(form: str, column: str) -> tuple[str, ...]:
    """Return the fields of `form` that are shown in `column` of the reconciliation: those it names, else its own."""
    forms = read_forms(config_dir())
    named = forms[form].shown.items() if form in forms else ()
    return next((tuple(fields) for name, fields in named if name == column), (column,))
