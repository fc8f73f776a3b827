"""Builds the rules from the files under config/ and the operator's terms."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any

from paygw_batch.countries import data as files
from paygw_batch.countries.kinds import KINDS, Checking
from paygw_batch.countries.rules import (
    CountryRule,
    FieldKind,
    Form,
    FormField,
    MobileNumbers,
    Operation,
    OperatorTerms,
    PurposeTerms,
    Renumbering,
    ReplyNames,
    Rules,
    fold_word,
)
from paygw_batch.errors import ConfigurationError, UsageError
from paygw_batch.language import mark, say

_DEFAULT_TERMS = OperatorTerms()
_ONE_LINE_MESSAGE = mark("this must be one non-empty line of text, without leading or trailing spaces.")
_IPV4_MESSAGE = mark("{value!r} is not an IPv4 address.")
_DEFAULT_MESSAGES = {
    FieldKind.TEXT: "",
    FieldKind.EMAIL: mark("{value!r} is not an e-mail address."),
    FieldKind.IPV4: _IPV4_MESSAGE,
    FieldKind.POSTAL_CODE: mark("{value!r} is not a postal code."),
}
"""Maps the kinds of fields that may have a default to messages about an invalid one."""
_ALWAYS_REQUIRED = frozenset(
    {
        FieldKind.ORDER_ID,
        FieldKind.AMOUNT,
        FieldKind.CURRENCY,
        FieldKind.CONTROL,
        FieldKind.WALLET,
        FieldKind.LOCAL_PHONE,
    }
)
"""The kinds of fields that every payment needs."""


def load_operation(operation: str, *, data: Path | None = None) -> Operation:
    """Load an operation by name. Raises `ConfigurationError` for an unknown name or an invalid file."""
    operation_data = files.read_operation(data or files.config_dir(), operation)
    names: dict[str, Any] = {
        key.removeprefix("echo_").removesuffix("_fields"): (value,) if isinstance(value, str) else tuple(value)
        for key, value in operation_data.reply
    }
    return Operation(
        name=operation,
        command=operation_data.command,
        verb=operation_data.verb,
        path=operation_data.path,
        columns=tuple(operation_data.columns),
        amount_forms=tuple(operation_data.amount_forms),
        reply=ReplyNames(**names),
    )


def load_enquiry(profile: str, operation: Operation) -> Operation:
    """Load the enquiry about orders of `operation`, whose replies have the same format as the operation's own."""
    return replace(operation, name="enquiry", path=files.read_enquiry(files.config_dir(), profile).path)


def operation_names() -> tuple[str, ...]:
    """Return the names of all operations, payouts first."""
    return tuple(sorted(files.list_operations(files.config_dir()), reverse=True))


def minor_units_by_currency() -> Mapping[str, int]:
    """Return the number of decimals of each currency."""
    countries = files.read_countries(files.config_dir())
    return {country.currency: country.minor_units for country in countries.values()}


def load_rules(operation: str, terms: Mapping[str, OperatorTerms], *, data: Path | None = None) -> Rules:
    """Load all countries' rules for an operation, merged with the operator's `terms` (by country code).

    Countries with incomplete terms are included: `missing_terms` lists the missing keys, and `unusable` says why.
    Raises one `ConfigurationError` for all invalid terms (an unknown country or form, a minimum amount above the
    maximum, a value for a field that is never sent), and also for invalid data files.
    """
    root = data or files.config_dir()
    operation_data = files.read_operation(root, operation)
    forms, countries, numbers = files.read_forms(root), files.read_countries(root), files.read_numbers(root)
    operators = files.read_operators(root)
    problems = [_unknown_country_message(code, countries) for code in terms if code not in countries]
    rules: dict[str, CountryRule] = {}
    for code, country in countries.items():
        if code not in numbers:
            raise ConfigurationError(say("config: there are no mobile numbers for {code}.", code=code))
        country_terms = terms.get(code, _DEFAULT_TERMS)
        if operation not in country.operations:
            if country_terms != _DEFAULT_TERMS:
                key = f"countries.{code}.{operation}"
                problems.append(
                    say(
                        "{key}: the gateway does not offer this operation in this country. Remove this setting.",
                        key=key,
                    )
                )
            continue
        case = _CountryCase(code, country, operation, operation_data, forms, operators.get(code, {}), country_terms)
        case.check_data_files()
        problems += [*_term_problems(case), *_number_problems(case, numbers[code])]
        rules[code] = _build_rule(case, numbers[code])
    problems += _shared_purpose_problems(operation, operation_data, rules)
    if problems:
        raise ConfigurationError("\n".join(problems), hint=say("Correct these keys in the configuration file."))
    return MappingProxyType(rules)


def _unknown_country_message(code: str, countries: Mapping[str, files.CountryData]) -> str:
    for country in countries.values():
        if code in country.confused_codes:
            return f"countries.{code}: {say(country.confused_codes[code])}"
    suggestion = files.nearest(code, countries)
    return say("countries.{code}: there is no such country. {nearest}", code=code, nearest=suggestion)


@dataclass(frozen=True, slots=True)
class _CountryCase:
    """The data files and the operator's terms for one country and operation."""

    code: str
    country: files.CountryData
    operation: str
    operation_data: files.OperationData
    forms: Mapping[str, files.FormData]
    operators: Mapping[str, list[str]]
    """Maps mobile operators to their number prefixes."""
    terms: OperatorTerms

    @property
    def key(self) -> str:
        return f"countries.{self.code}.{self.operation}"

    @property
    def country_operation(self) -> files.CountryOperationData:
        return self.country.operations[self.operation]

    @property
    def documented_form(self) -> str | None:
        operation = self.country_operation
        return None if operation.unusable else operation.form or self.operation_data.default_form

    @property
    def form_name(self) -> str:
        return self.documented_form or self.terms.form or ""

    @property
    def omitted_fields(self) -> frozenset[str]:
        fields = self.forms[self.form_name].fields if self.form_name in self.forms else []
        requested = {*self.country_operation.fields, *self.terms.also}
        unrequested = {field.name for field in fields if not field.everywhere} - requested
        return frozenset(unrequested) | self.fields_marked("never")

    def fields_marked(self, usage: str) -> frozenset[str]:
        return frozenset(name for name, field_usage in self.country_operation.fields.items() if field_usage == usage)

    @property
    def sent_fields(self) -> Mapping[str, files.FieldData]:
        if self.form_name not in self.forms:
            return {}
        omitted = self.omitted_fields
        return {field.name: field for field in self.fields if field.name not in omitted}

    @property
    def fields(self) -> tuple[files.FieldData, ...]:
        fields = tuple(self.forms[self.form_name].fields) if self.form_name in self.forms else ()
        names = {field.name for field in fields}
        extras = self.extra_fields
        return (*fields, *(extras[name] for name in self.terms.also if name in extras and name not in names))

    @property
    def extra_fields(self) -> Mapping[str, files.FieldData]:
        """The fields of any form that `also` can add to this country's form.

        If several forms have a field with the same name, the operation's default form takes precedence.
        """
        fields = [field for form in self.forms.values() for field in form.fields]
        default_fields = self.forms[self.operation_data.default_form].fields
        by_name = {field.name: field for field in (*fields, *default_fields)}
        columns = {*self.operation_data.columns, "server_callback_url"}
        return {name: field for name, field in by_name.items() if name in columns}

    @property
    def optional_fields(self) -> frozenset[str]:
        names = {*self.terms.optional, *self.terms.also}
        sent = self.sent_fields
        return self.fields_marked("optional") | {name for name in names if name in sent and sent[name].from_sheet}

    def field_kinds(self, name: str) -> set[FieldKind]:
        return {field.kind for form in self.forms.values() for field in form.fields if field.name == name}

    @property
    def supplied_values(self) -> Mapping[str, str]:
        values = {name: getattr(self.terms, name) for name in files.SUPPLIED_NAMES}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def decimals(self) -> int:
        return self.country.minor_units if self.terms.decimals is None else self.terms.decimals

    @property
    def missing_terms(self) -> tuple[str, ...]:
        sent = self.sent_fields
        names = [name for name in self.operation_data.operator_supplies if not sent or name in sent]
        given = {*self.supplied_values, *(("purpose",) if self.terms.purposes else ())}
        missing = [key for key in names if key not in {*self.fields_marked("optional"), *self.terms.optional, *given}]
        return (*([] if self.form_name else ["form"]), *missing)

    def check_data_files(self) -> None:
        form = self.documented_form
        if form is not None and form not in self.forms:
            raise ConfigurationError(
                say("config: there is no form {form!r}. {nearest}", form=form, nearest=files.nearest(form, self.forms))
            )
        if self.form_name in self.forms:
            checking_by_field = {field.name: KINDS[field.kind].checking for field in self.forms[self.form_name].fields}
            for name in (*self.country_operation.fields, *self.country_operation.max_characters):
                if name not in checking_by_field:
                    raise ConfigurationError(
                        say(
                            "config/countries/{code}.toml: the {form_name} form has no field {name!r}. {nearest}",
                            code=self.code,
                            form_name=self.form_name,
                            name=name,
                            nearest=files.nearest(name, checking_by_field),
                        )
                    )
            for name in self.country_operation.max_characters:
                if checking_by_field[name] is not Checking.TEXT:
                    message = say("config/countries/{code}.toml: {name} is not text.", code=self.code, name=name)
                    raise ConfigurationError(message)


def _build_numbers(case: _CountryCase, numbers_data: files.NumbersData) -> MobileNumbers:
    operators = {prefix: name for name, prefixes in case.operators.items() for prefix in prefixes}
    values = numbers_data.model_dump() | {"national_lengths": tuple(numbers_data.national_lengths)}
    numbers = MobileNumbers(**values, operators=MappingProxyType(operators))
    if (former := case.country.former_numbers) is not None:
        conversions = tuple((f"({pattern})", new_prefix) for new_prefix, pattern in former.in_front.items())
        numbers = replace(numbers, renumbering=Renumbering(former.changed, conversions))
        if case.terms.former_numbers:
            reversed_conversions = tuple((added + group, "") for group, added in conversions)
            numbers = replace(
                numbers,
                pattern=former.pattern,
                national_lengths=(len(former.example),),
                example=former.example,
                operators=MappingProxyType({}),  # the known prefixes are for new numbers
                renumbering=Renumbering(former.changed, reversed_conversions, to_former=True),
            )
    lengths, prefixes = numbers.national_lengths, case.terms.also_numbers
    alternatives = [f"{prefix}[0-9]{{{length - len(prefix)}}}" for prefix in prefixes for length in lengths]
    return replace(numbers, pattern=f"(?:{'|'.join((numbers.pattern, *alternatives))})") if alternatives else numbers


def _build_rule(case: _CountryCase, numbers: files.NumbersData) -> CountryRule:
    is_usable = bool(case.form_name) and not (case.country_operation.unusable and case.missing_terms)
    form = _build_form(case) if is_usable and case.form_name in case.forms else None
    sent = case.sent_fields if form is not None else {}
    defaults = {name: field.default for name, field in sent.items() if field.default is not None}
    defaults |= {name: value for name, value in case.supplied_values.items() if name in sent and name != "purpose"}
    defaults |= {name: value for name, value in case.terms.defaults.items() if name in sent}
    pattern = case.terms.bank_account_pattern
    return CountryRule(
        operation=case.operation,
        code=case.code,
        name=case.country.name,
        demonym=case.country.demonym,
        currency=case.country.currency,
        minor_units=case.country.minor_units,
        decimals=case.decimals,
        numbers=_build_numbers(case, numbers),
        form=form,
        unusable="" if is_usable else case.country_operation.unusable,
        required=frozenset(sent) - case.optional_fields,
        omitted=case.omitted_fields,
        purpose=case.terms.purpose,
        operator=case.terms.operator,
        missing_terms=tuple(f"{case.key}.{name}" for name in case.missing_terms),
        defaults=MappingProxyType(defaults),
        min_amount=case.terms.min_amount,
        max_amount=case.terms.max_amount,
        # Group the pattern, so that anchors apply to every alternative.
        bank_account_pattern=None if pattern is None else f"(?:{pattern})",
        max_characters=MappingProxyType(dict(case.country_operation.max_characters)),
        notes=(*case.country.notes, *case.country_operation.notes),
        confused_codes=MappingProxyType(dict(case.country.confused_codes)),
        purposes=_build_purposes(case),
        phone_as_account=_phone_as_account(case) if form is not None else "",
    )


def _build_purposes(case: _CountryCase) -> Mapping[str, PurposeTerms]:
    purposes = case.terms.purposes
    default = [] if case.terms.purpose is None else [PurposeTerms(case.terms.purpose, case.terms.operator)]
    by_code = {fold_word(terms.purpose): terms for terms in (*purposes.values(), *default)} if purposes else {}
    return MappingProxyType(by_code | {fold_word(word): replace(terms, word=word) for word, terms in purposes.items()})


def _phone_as_account(case: _CountryCase) -> str:
    """Return the field that serves as the account in sheets without accounts, or an empty string.

    If banks are paid too, phone numbers are accounts only if the configuration says so.
    """
    names_by_kind = {field.kind: name for name, field in case.sent_fields.items()}
    phone = names_by_kind.get(FieldKind.INTERNATIONAL_PHONE, "") if FieldKind.WALLET in names_by_kind else ""
    is_account = case.terms.phone_is_account
    return phone if is_account or (is_account is None and case.terms.bank_account_pattern is None) else ""


def _build_form(case: _CountryCase) -> Form:
    fields = tuple(FormField(field.name, field.kind, field.from_sheet) for field in case.fields)
    shown_columns = case.forms[case.form_name].shown
    return Form(case.form_name, fields, tuple((column, tuple(names)) for column, names in shown_columns.items()))


def _shared_purpose_problems(operation: str, operation_data: files.OperationData, rules: Rules) -> Iterator[str]:
    """Yield a message for each currency whose countries must have the same purpose but do not."""
    for currency in operation_data.one_purpose:
        purposes = {code: rule.purpose for code, rule in rules.items() if rule.currency == currency and rule.purpose}
        if len(set(purposes.values())) > 1:
            keys = ", ".join(f"countries.{code}.{operation}.purpose" for code in purposes)
            yield say(
                "{keys}: the gateway has one code for all countries that use {currency}. Use the same code in each.",
                keys=keys,
                currency=currency,
            )


def _term_problems(case: _CountryCase) -> Iterator[str]:
    yield from _form_problems(case)
    yield from _value_problems(case)
    yield from _amount_problems(case)
    yield from _operator_problems(case)
    yield from _purpose_problems(case)
    yield from _field_problems(case)
    pattern = case.terms.bank_account_pattern
    if pattern is not None:
        key = f"{case.key}.bank_account_pattern"
        if problem := files.pattern_problem(pattern):
            yield f"{key}: {problem}"
        elif re.fullmatch(pattern, ""):
            yield say("{key}: the pattern must not accept an empty account number.", key=key)
        if case.sent_fields and not any(field.kind is FieldKind.WALLET for field in case.sent_fields.values()):
            yield say(
                "{key}: the {form} form has no account number. Remove this setting.", key=key, form=case.form_name
            )


def _form_problems(case: _CountryCase) -> Iterator[str]:
    form, documented_form = case.terms.form, case.documented_form
    if form is None:
        return
    if form not in case.forms:
        suggestion = files.nearest(form, case.forms)
        yield say("{key}.form: there is no form {form!r}. {nearest}", key=case.key, form=form, nearest=suggestion)
    elif documented_form not in {None, form}:
        yield say(
            "{key}.form: remove this setting. The gateway's documentation already gives the {form} form for {country}.",
            key=case.key,
            form=documented_form,
            country=say(case.country.name),
        )


def _value_problems(case: _CountryCase) -> Iterator[str]:
    for name, value in case.supplied_values.items():
        key = f"{case.key}.{name}"
        if name in case.omitted_fields:
            yield _never_sent_problem(case, key, name)
        elif case.sent_fields and name not in case.sent_fields:
            yield say(
                "{key}: the {form} form has no {name}. Remove this setting.", key=key, form=case.form_name, name=name
            )
        if problem := _text_problem(case, name, value):
            yield f"{key}: {problem}"
        elif FieldKind.IPV4 in case.field_kinds(name) and not _matches_kind(FieldKind.IPV4, value):
            yield f"{key}: {say(_IPV4_MESSAGE, value=value)}"


def _never_sent_problem(case: _CountryCase, key: str, name: str) -> str:
    country = say(case.country.name)
    return say("{key}: {name} is never sent for {country}. Remove this setting.", key=key, name=name, country=country)


def _field_problems(case: _CountryCase) -> Iterator[str]:
    if not case.sent_fields:
        return
    key = f"{case.key}.optional"
    for name in case.terms.optional:
        if name not in case.sent_fields:
            yield f"{key}: {_unknown_field_problem(case, name)}"
        elif name in case.fields_marked("required"):
            country = say(case.country.name)
            yield say(
                "{key}: the gateway's interface requires {name} for {country}. Remove this setting.",
                key=key,
                name=name,
                country=country,
            )
        elif case.sent_fields[name].kind in _ALWAYS_REQUIRED or not case.sent_fields[name].from_sheet:
            yield say("{key}: every payment needs {name}. Remove this setting.", key=key, name=name)
    yield from _extra_field_problems(case)
    for name, value in case.terms.defaults.items():
        if problem := _default_problem(case, name, value):
            yield f"{case.key}.defaults.{name}: {problem}"


def _unknown_field_problem(case: _CountryCase, name: str) -> str:
    suggestion = files.nearest(name, case.sent_fields)
    return say("the {form} form has no {name}. {nearest}", form=case.form_name, name=name, nearest=suggestion)


def _extra_field_problems(case: _CountryCase) -> Iterator[str]:
    key = f"{case.key}.also"
    for name in case.terms.also:
        if name not in case.extra_fields:
            suggestion = files.nearest(name, case.extra_fields)
            yield say("{key}: there is no field {name!r}. {nearest}", key=key, name=name, nearest=suggestion)
        elif name in case.fields_marked("never"):
            yield _never_sent_problem(case, key, name)


def _default_problem(case: _CountryCase, name: str, value: str) -> str:
    if name not in case.sent_fields:
        return _unknown_field_problem(case, name)
    kind = case.sent_fields[name].kind
    if kind not in _DEFAULT_MESSAGES:
        return say("each row has its own {name}. Remove this setting.", name=name)
    if name in case.supplied_values:
        return say("{key} also sets this value. Remove one of them.", key=f"{case.key}.{name}")
    if problem := _text_problem(case, name, value):
        return problem
    return "" if _matches_kind(kind, value) else say(_DEFAULT_MESSAGES[kind], value=value)


def _text_problem(case: _CountryCase, name: str, value: str) -> str:
    if not _is_one_line(value):
        return say(_ONE_LINE_MESSAGE)
    max_characters = case.country_operation.max_characters.get(name, len(value))
    template = mark("{value}: enter at most {characters} characters, on one line, without tabs.")
    return say(template, value=value, characters=max_characters) if len(value) > max_characters else ""


def _operator_problems(case: _CountryCase) -> Iterator[str]:
    operator = case.terms.operator
    if operator is None:
        return
    key = f"{case.key}.operator"
    if "purpose" in case.fields_marked("never"):
        yield say(
            "{key}: {country} does not use a purpose that could name an operator. Remove this setting.",
            key=key,
            country=say(case.country.name),
        )
    elif operator not in case.operators:
        yield _unknown_operator_problem(case, key, operator)


def _unknown_operator_problem(case: _CountryCase, key: str, operator: str) -> str:
    suggestion = files.nearest(operator, case.operators)
    return say("{key}: there is no operator {operator!r}. {nearest}", key=key, operator=operator, nearest=suggestion)


def _purpose_problems(case: _CountryCase) -> Iterator[str]:
    words: dict[str, str] = {}
    for word, terms in case.terms.purposes.items():
        key = f"{case.key}.purposes.{word}"
        if not _is_one_line(word) or not fold_word(word) or not _is_one_line(terms.purpose):
            yield say(
                "{key}: word and purpose must each be one line of text, without leading or trailing spaces.", key=key
            )
        if (other := words.setdefault(fold_word(word), word)) != word:
            yield say(
                "{key}: this is the same word as {other!r}, apart from case, spaces or hyphens. Remove one of them.",
                key=key,
                other=other,
            )
        if terms.operator is not None and terms.operator not in case.operators:
            yield _unknown_operator_problem(case, key, terms.operator)
    if case.terms.purposes and "purpose" in case.fields_marked("never"):
        country = say(case.country.name)
        yield say(
            "{key}: {country} does not use a purpose. Remove this setting.", key=f"{case.key}.purposes", country=country
        )


def _number_problems(case: _CountryCase, numbers: files.NumbersData) -> Iterator[str]:
    for prefix in case.terms.also_numbers:
        is_prefix = re.fullmatch("[0-9]+", prefix) and len(prefix) < min(numbers.national_lengths)
        if not is_prefix or (numbers.trunk_prefix and prefix.startswith(numbers.trunk_prefix)):
            yield say(
                "{key}: {start!r} is not a valid prefix. Write the first digits after the dialling code, such as "
                "{example!r}.",
                key=f"{case.key}.also_numbers",
                start=prefix,
                example=numbers.example[:3],
            )
    if case.terms.former_numbers and case.country.former_numbers is None:
        key, country = f"{case.key}.former_numbers", say(case.country.name)
        yield say("{key}: the numbers of {country} have not changed. Remove this setting.", key=key, country=country)


def _amount_problems(case: _CountryCase) -> Iterator[str]:
    minimum, maximum, decimals = case.terms.min_amount, case.terms.max_amount, case.decimals
    if decimals > case.country.minor_units:
        yield say(
            "{key}: {currency} amounts have at most {units} decimal places. Use a smaller number, or remove this "
            "setting.",
            key=f"{case.key}.decimals",
            currency=case.country.currency,
            units=case.country.minor_units,
        )
    has_valid_limits = True
    for name, amount in (("min_amount", minimum), ("max_amount", maximum)):
        if amount is not None and not _is_valid_amount(amount, decimals):
            has_valid_limits = False
            yield say(
                "{key}: {amount} is not a valid {currency} amount. Write an amount above 0, with at most "
                "{decimals} decimal places.",
                key=f"{case.key}.{name}",
                amount=amount,
                decimals=decimals,
                currency=case.country.currency,
            )
    if has_valid_limits and minimum is not None and maximum is not None and minimum > maximum:
        yield say("{key}: min_amount {low} is above max_amount {high}.", key=case.key, low=minimum, high=maximum)


def _is_valid_amount(amount: Decimal, decimals: int) -> bool:
    if not amount.is_finite() or amount <= 0:
        return False
    return isinstance(exponent := amount.as_tuple().exponent, int) and -exponent <= decimals


def _is_one_line(text: str) -> bool:
    return bool(text) and text == text.strip() and text.isprintable()


def _matches_kind(kind: FieldKind, value: str) -> bool:
    return not KINDS[kind].pattern or re.fullmatch(KINDS[kind].pattern, value) is not None


def select_countries(codes: Iterable[str], rules: Rules) -> list[CountryRule]:
    """Return the rules for `codes`, without duplicates. Raises `UsageError` if a country cannot be used."""
    selected = {rule.code: rule for rule in (find_country(code, rules) for code in codes)}
    for rule in selected.values():
        if rule.form is None:
            raise UsageError(
                say(rule.unusable),
                hint=say("The configuration must set {missing_terms}.", missing_terms=", ".join(rule.missing_terms)),
            )
    return list(selected.values())


def find_country(word: str, rules: Rules) -> CountryRule:
    """Return a country's rule by code. Raises `UsageError` for an unknown code, and suggests the nearest one."""
    code = word.strip().upper()
    if code in rules:
        return rules[code]
    for rule in rules.values():
        if code in rule.confused_codes:
            raise UsageError(say(rule.confused_codes[code]), hint=say("Write {code}.", code=rule.code))
        if code in {rule.name.upper(), say(rule.name).upper()}:
            raise UsageError(
                say("{word}: write {code}.", word=word, code=rule.code), hint=say("Use country codes, not names.")
            )
    suggestion = files.nearest(code, rules)
    raise UsageError(say("{word} is not a known country. {nearest}", word=word, nearest=suggestion), hint="")
