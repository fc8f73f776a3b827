"""Builds the frozen values of `rules` from the files under config/ and the operator's terms."""

import ipaddress
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType

from paygw_batch.countries import data as files
from paygw_batch.countries.rules import (
    CountryRule,
    FieldKind,
    Form,
    FormField,
    MobileNumbers,
    Operation,
    OperatorTerms,
    ReplyNames,
    Rules,
)
from paygw_batch.errors import ConfigurationError

_NO_TERMS = OperatorTerms()


def config_dir() -> Path:
    """Return the folder of the data files: inside the package where it is installed, the top folder of a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "config"
    return installed if installed.is_dir() else package.parent / "config"


def load_operation(operation: str, *, data: Path | None = None) -> Operation:
    """Return the operation of that name from the data files in `data` (None: the program's own).

    Raises `ConfigurationError` for an unknown name and for a file that cannot be used.
    """
    read = files.read_operation(data or config_dir(), operation)
    return Operation(
        name=operation,
        command=read.command,
        verb=read.verb,
        path=read.path,
        columns=tuple(read.columns),
        amount_forms=tuple(read.amount_forms),
        reply=ReplyNames(
            order_id=(read.reply.echo_order_id,),
            amount=(read.reply.echo_amount,),
            currency=(read.reply.echo_currency,),
            reference=tuple(read.reply.reference_fields),
            error_code=tuple(read.reply.error_code_fields),
            message=tuple(read.reply.message_fields),
            customer_url=tuple(read.reply.customer_url_fields),
        ),
    )


def load_enquiry(profile: str, operation: Operation, *, data: Path | None = None) -> Operation:
    """Return how to ask about orders of `operation`: at another path, with replies read like the operation's."""
    return replace(operation, name="enquiry", path=files.read_enquiry(data or config_dir(), profile).path)


def operation_names(*, data: Path | None = None) -> tuple[str, ...]:
    """Return the names of all operations, the one that sends money first."""
    return tuple(sorted(files.operations(data or config_dir()), reverse=True))


def minor_units_by_currency(*, data: Path | None = None) -> Mapping[str, int]:
    """Return how many decimals each currency has: nothing that an operator could change."""
    countries = files.read_countries(data or config_dir())
    return {country.currency: country.minor_units for country in countries.values()}


def load_rules(operation: str, terms: Mapping[str, OperatorTerms], *, data: Path | None = None) -> Rules:
    """Return what every country asks of `operation`, with the operator's `terms` (by country code) merged in.

    A country whose terms are incomplete is in the result all the same: `missing_terms` names the absent keys, and
    `unusable` speaks where the interface shows nothing to go by. Raises `ConfigurationError` for terms that cannot be
    meant (an unknown country or form, a smallest amount above the largest, a value for a field that is never sent),
    telling all of them at once, and for data files that cannot be used.
    """
    root = data or config_dir()
    read = files.read_operation(root, operation)
    forms, countries, numbers = files.read_forms(root), files.read_countries(root), files.read_numbers(root)
    operators = files.read_operators(root)
    problems = [_unknown_country(code, countries) for code in terms if code not in countries]
    rules: dict[str, CountryRule] = {}
    for code, country in countries.items():
        if operation not in country.operations or code not in numbers:
            raise ConfigurationError(f"config: {code} lacks its {operation} table or its mobile numbers.")
        case = _Case(code, country, operation, read, forms, operators.get(code, {}), terms.get(code, _NO_TERMS))
        case.check_data()
        problems += _wrong_terms(case)
        rules[code] = _rule(case, numbers[code])
    problems += _several_purposes(operation, read, rules)
    if problems:
        raise ConfigurationError("\n".join(problems), hint="Correct these keys in the configuration file.")
    return MappingProxyType(rules)


def _unknown_country(code: str, countries: Mapping[str, files.CountryData]) -> str:
    for country in countries.values():
        if code in country.confused_codes:
            return f"countries.{code}: {country.confused_codes[code]}"
    return f"countries.{code}: there is no such country; {files.nearest(code, countries)}"


@dataclass(frozen=True, slots=True)
class _Case:
    """One country, one operation and the operator's terms: what a rule is made from."""

    code: str
    country: files.CountryData
    operation: str
    read: files.OperationData
    forms: Mapping[str, files.FormData]
    operators: Mapping[str, list[str]]
    """Mobile operators, and how their numbers begin."""
    terms: OperatorTerms

    @property
    def key(self) -> str:
        """The table of the operator's configuration that holds these terms."""
        return f"countries.{self.code}.{self.operation}"

    @property
    def asks(self) -> files.CountryOperationData:
        """The part about the operation in the country's own file."""
        return self.country.operations[self.operation]

    @property
    def documented_form(self) -> str | None:
        """The form that the interface shows for this country, if it shows one."""
        return None if self.asks.unusable else self.asks.form or self.read.default_form

    @property
    def form_name(self) -> str:
        """The form that counts; empty while there is none."""
        return self.documented_form or self.terms.form or ""

    @property
    def omitted(self) -> frozenset[str]:
        """The fields of the form that are never sent for this country."""
        fields = self.forms[self.form_name].fields if self.form_name in self.forms else []
        not_asked = {field.name for field in fields if not field.everywhere} - set(self.asks.further)
        return frozenset(not_asked) | frozenset(self.asks.omitted)

    @property
    def sent(self) -> Mapping[str, files.FieldData]:
        """The fields that are sent for this country, by name; none while there is no form."""
        if self.form_name not in self.forms:
            return {}
        return {field.name: field for field in self.forms[self.form_name].fields if field.name not in self.omitted}

    @property
    def supplied(self) -> Mapping[str, str]:
        """The values of fields that the operator's terms hold."""
        values = {name: getattr(self.terms, name) for name in files.SUPPLIED_NAMES}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def missing(self) -> tuple[str, ...]:
        """The names of the terms that are needed and absent."""
        supplies = [name for name in self.read.operator_supplies if not self.sent or name in self.sent]
        absent = [name for name in supplies if name not in {*self.asks.relaxed, *self.supplied}]
        return (*([] if self.form_name else ["form"]), *absent)

    def check_data(self) -> None:
        """Raise `ConfigurationError` where the country's file names a form or a field that does not exist."""
        form = self.documented_form
        if form is not None and form not in self.forms:
            raise ConfigurationError(f"config: no form is called {form!r}; {files.nearest(form, self.forms)}")
        if self.form_name in self.forms:
            have = {field.name for field in self.forms[self.form_name].fields}
            for name in (*self.asks.required, *self.asks.further, *self.asks.omitted, *self.asks.relaxed):
                if name not in have:
                    raise ConfigurationError(
                        f"config/countries/{self.code}.toml: the {self.form_name} form has no field {name!r}; "
                        f"{files.nearest(name, have)}"
                    )


def _rule(case: _Case, numbers: files.NumbersData) -> CountryRule:
    usable = bool(case.form_name) and not (case.asks.unusable and case.missing)
    form = _form(case.form_name, case.forms[case.form_name]) if usable and case.form_name in case.forms else None
    sent = case.sent if form is not None else {}
    defaults = {name: field.default for name, field in sent.items() if field.default is not None}
    defaults |= {name: value for name, value in case.supplied.items() if name in sent and name != "purpose"}
    pattern = case.terms.bank_account_pattern
    return CountryRule(
        operation=case.operation,
        code=case.code,
        name=case.country.name,
        demonym=case.country.demonym,
        currency=case.country.currency,
        minor_units=case.country.minor_units,
        numbers=MobileNumbers(
            dialling_code=numbers.dialling_code,
            trunk_prefix=numbers.trunk_prefix,
            keeps_zero=numbers.keeps_zero,
            pattern=numbers.pattern,
            national_lengths=tuple(numbers.national_lengths),
            example=numbers.example,
            operators=MappingProxyType({start: name for name, starts in case.operators.items() for start in starts}),
        ),
        form=form,
        unusable="" if usable else case.asks.unusable,
        required=frozenset(sent) - frozenset(case.asks.relaxed),
        omitted=case.omitted,
        purpose=case.terms.purpose,
        operator=case.terms.operator,
        missing_terms=tuple(f"{case.key}.{name}" for name in case.missing),
        defaults=MappingProxyType(defaults),
        min_amount=case.terms.min_amount,
        max_amount=case.terms.max_amount,
        # Grouped, so that whoever anchors it anchors every alternative.
        bank_account_pattern=None if pattern is None else f"(?:{pattern})",
        notes=(*case.country.notes, *case.asks.notes),
        confused_codes=MappingProxyType(dict(case.country.confused_codes)),
    )


def _form(name: str, read: files.FormData) -> Form:
    fields = tuple(FormField(field.name, field.kind, field.from_sheet) for field in read.fields)
    return Form(name, fields, tuple((column, tuple(names)) for column, names in read.shown.items()))


def _several_purposes(operation: str, read: files.OperationData, rules: Rules) -> Iterator[str]:
    """Yield a sentence for each currency whose countries must have one purpose, and were given several."""
    for currency in read.one_purpose:
        given = {code: rule.purpose for code, rule in rules.items() if rule.currency == currency and rule.purpose}
        if len(set(given.values())) > 1:
            keys = ", ".join(f"countries.{code}.{operation}.purpose" for code in given)
            yield f"{keys}: the gateway has one code for all countries that use {currency}; write the same in each."


def _wrong_terms(case: _Case) -> Iterator[str]:
    """Yield a sentence for each of the operator's terms that cannot be meant, beginning with its key."""
    yield from _wrong_form(case)
    yield from _wrong_values(case)
    yield from _wrong_amounts(case)
    yield from _wrong_operator(case)
    pattern = case.terms.bank_account_pattern
    if pattern is not None:
        key = f"{case.key}.bank_account_pattern"
        if problem := files.pattern_problem(pattern):
            yield f"{key}: {problem}"
        elif re.fullmatch(pattern, ""):
            yield f"{key}: the pattern lets an empty account number pass."
        if case.sent and not any(field.kind is FieldKind.WALLET for field in case.sent.values()):
            yield f"{key}: the {case.form_name} form has no account number; remove it."


def _wrong_form(case: _Case) -> Iterator[str]:
    form, documented = case.terms.form, case.documented_form
    if form is None:
        return
    if form not in case.forms:
        yield f"{case.key}.form: no form is called {form!r}; {files.nearest(form, case.forms)}"
    elif documented not in {None, form}:
        yield f"{case.key}.form: the gateway documents the {documented} form for {case.country.name}; remove it."


def _wrong_values(case: _Case) -> Iterator[str]:
    for name, value in case.supplied.items():
        key = f"{case.key}.{name}"
        if name in case.omitted:
            yield f"{key}: {name} is never sent for {case.country.name}; remove it."
        elif case.sent and name not in case.sent:
            yield f"{key}: the {case.form_name} form has no {name}; remove it."
        if not value.strip() or value != value.strip() or not value.isprintable():
            yield f"{key}: must be a text of one line that neither is blank nor begins or ends with a blank."
        elif name == "ipaddress" and not _is_ipv4(value):
            yield f"{key}: {value!r} is no IPv4 address."


def _wrong_operator(case: _Case) -> Iterator[str]:
    operator = case.terms.operator
    if operator is None:
        return
    if "purpose" in case.asks.omitted:
        yield f"{case.key}.operator: {case.country.name} takes no purpose that could stand for an operator; remove it."
    elif operator not in case.operators:
        yield f"{case.key}.operator: no operator is called {operator!r}; {files.nearest(operator, case.operators)}"


def _wrong_amounts(case: _Case) -> Iterator[str]:
    low, high, decimals = case.terms.min_amount, case.terms.max_amount, case.country.minor_units
    fine = True
    for name, amount in (("min_amount", low), ("max_amount", high)):
        if amount is not None and not _is_amount(amount, decimals):
            fine = False
            yield f"{case.key}.{name}: {amount} is no {case.country.currency} amount above 0 with {decimals} decimals."
    if fine and low is not None and high is not None and low > high:
        yield f"{case.key}: min_amount {low} is above max_amount {high}."


def _is_amount(amount: Decimal, decimals: int) -> bool:
    if not amount.is_finite() or amount <= 0:
        return False
    exponent = amount.as_tuple().exponent
    return isinstance(exponent, int) and -exponent <= decimals


def _is_ipv4(text: str) -> bool:
    try:
        ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return True
