"""Loads the rules of an operation from the settings, and names the keys still missing to send."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from paygw_batch.core.batch import PAYOUT
from paygw_batch.countries.load import load_operation, load_rules, minor_units_by_currency
from paygw_batch.countries.rules import AmountUnit, CountryRule, Operation, Rules
from paygw_batch.errors import ConfigurationError
from paygw_batch.language import say
from paygw_batch.settings.configuration import Settings


def rules_of(settings: Settings, operation: str) -> Rules:
    """Return the rules of every country for an operation, with the operator's terms."""
    return load_rules(operation, settings.terms(operation))


def operation_of(rules: Rules) -> Operation:
    """Return the operation that rules are for."""
    return load_operation(next(iter(rules.values())).operation)


def as_answered(settings: Settings, operation: Operation) -> Operation:
    """Return the operation with the names that `[reply]` gives to the fields of a reply."""
    section = settings.reply
    named = {name: tuple(paths) for name, paths in section if isinstance(paths, list)}
    unit, minor_units = AmountUnit(section.amount_unit), minor_units_by_currency()
    return replace(operation, reply=replace(operation.reply, **named, amount_unit=unit, minor_units=minor_units))


def minor_units_of(rules: Rules) -> Mapping[str, int]:
    """Return how many decimals each currency has."""
    return {rule.currency: rule.minor_units for rule in rules.values()}


def require_gateway(settings: Settings) -> None:
    """Raise `ConfigurationError` naming every key that sending anything at all still needs."""
    _require(settings.missing_to_send())


def require_complete(settings: Settings, rules: Rules, countries: set[str]) -> None:
    """Raise `ConfigurationError` naming every key that sending to `countries` still needs."""
    used = [rules[code] for code in sorted(countries) if code in rules]
    of_countries = [key for rule in used if rule.form is not None for key in rule.missing_terms]
    _require([*settings.missing_to_send(), *settings.missing_for(operation_of(rules).name), *of_countries])


def require_endpoint(settings: Settings) -> None:
    """Raise `ConfigurationError` naming every key that still needs saying which endpoint a journal is for.

    So it does for an address at which no payout could ever be made.
    """
    keys = {"gateway.base_url", "gateway.endpoint_id", "gateway.consumer_key"}
    _require([key for key in settings.missing_to_send() if key in keys])
    if not settings.uses_sandbox:
        gateway = settings.gateway
        from paygw_batch.gateway.address import operation_url  # noqa: PLC0415 (a check of a sheet needs no gateway)

        operation_url(gateway.base_url or "", load_operation(PAYOUT), gateway.endpoint_id or "")


def _require(missing: Sequence[str]) -> None:
    if missing:
        raise ConfigurationError(
            say("The configuration does not set {missing}.", missing=", ".join(missing)),
            hint=say(
                "The gateway's interface leaves these open, so there is no default. Set them in the file that "
                "--config names; `paygw-batch doctor` lists everything that is missing."
            ),
        )


def filled_in(rule: CountryRule) -> str:
    """Return the values for a country's rows where the sheet says nothing, as `name = "value"`; empty for none."""
    return ", ".join(f'{name} = "{value}"' for name, value in sorted(rule.defaults.items()))


def filled_in_notes(rules: Rules, countries: Iterable[str], columns: Collection[str]) -> list[str]:
    """Return a sentence for each country of a sheet about the filled-in values, if the sheet lacks a whole column.

    A column that the sheet has can have empty cells: what fills those is said as well.
    """
    notes = []
    for code in sorted(set(countries) & set(rules)):
        filled = sorted(rules[code].defaults.items())
        absent = [f'{name} = "{value}"' for name, value in filled if name not in columns]
        empty = [f'{name} = "{value}"' for name, value in filled if name in columns]
        if absent:
            notes.append(
                say(
                    "{code}: the sheet does not say these, so they are filled in: {absent}.",
                    code=code,
                    absent=", ".join(absent),
                )
            )
        if empty:
            notes.append(say("{code}: empty cells are filled in: {empty}.", code=code, empty=", ".join(empty)))
    return notes
