"""Builds the frozen values of `rules` from the files under config/ and from the operator's terms."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any

from paygw_batch.countries import data as files
from paygw_batch.countries.data import nearest
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

_NO_TERMS = OperatorTerms()
_ONE_LINE = mark("this must be one line of text, not blank, with no space at either end.")
_NO_IPV4 = mark("{value!r} is not an IPv4 address.")
_MAY_BE_FILLED_IN = {
    FieldKind.TEXT: "",
    FieldKind.EMAIL: mark("{value!r} is not an e-mail address."),
    FieldKind.IPV4: _NO_IPV4,
    FieldKind.POSTAL_CODE: mark("{value!r} is not a postal code."),
}
"""The kinds of fields that may have a default, and the sentence about a default that the kind's pattern refuses."""
_NEVER_OPTIONAL = frozenset(
    {
        FieldKind.ORDER_ID,
        FieldKind.AMOUNT,
        FieldKind.CURRENCY,
        FieldKind.CONTROL,
        FieldKind.WALLET,
        FieldKind.LOCAL_PHONE,
    }
)
"""The kinds of fields without which nobody is paid: order id, amount, currency, control and payee."""


def load_operation(operation: str, *, data: Path | None = None) -> Operation:
    """Return the operation with that name from the data files in `data` (None: the program's own).

    Raises `ConfigurationError` for an unknown name, and for a file that cannot be used.
    """
    read = files.read_operation(data or files.config_dir(), operation)
    names: dict[str, Any] = {
        key.removeprefix("echo_").removesuffix("_fields"): (value,) if isinstance(value, str) else tuple(value)
        for key, value in read.reply
    }
    return Operation(
        name=operation,
        command=read.command,
        verb=read.verb,
        path=read.path,
        columns=tuple(read.columns),
        amount_forms=tuple(read.amount_forms),
        reply=ReplyNames(**names),
    )


def load_enquiry(profile: str, operation: Operation, *, data: Path | None = None) -> Operation:
    """Return the operation that asks about orders of `operation`, with another path and replies that are read alike."""
    return replace(operation, name="enquiry", path=files.read_enquiry(data or files.config_dir(), profile).path)


def operation_names(*, data: Path | None = None) -> tuple[str, ...]:
    """Return the names of all operations, the one that sends money first."""
    return tuple(sorted(files.operations(data or files.config_dir()), reverse=True))


def minor_units_by_currency(*, data: Path | None = None) -> Mapping[str, int]:
    """Return the number of decimals of each currency, which no operator can change."""
    countries = files.read_countries(data or files.config_dir())
    return {country.currency: country.minor_units for country in countries.values()}


def load_rules(operation: str, terms: Mapping[str, OperatorTerms], *, data: Path | None = None) -> Rules:
    """Return the rule for `operation` of each country that has it, with the operator's `terms` (by code) merged in.

    The result also has countries whose terms are incomplete: `missing_terms` names the absent keys, and `unusable` says
    why the operation cannot be used. Raises `ConfigurationError` for terms that make no sense (an unknown country or
    form, a smallest amount above the largest, a value for a field that is never sent), with all of them at once, and
    for data files that cannot be used.
    """
    root = data or files.config_dir()
    read = files.read_operation(root, operation)
    forms, countries, numbers = files.read_forms(root), files.read_countries(root), files.read_numbers(root)
    operators = files.read_operators(root)
    problems = [_unknown_country(code, countries) for code in terms if code not in countries]
    rules: dict[str, CountryRule] = {}
    for code, country in countries.items():
        if code not in numbers:
            raise ConfigurationError(say("config: {code} lacks its mobile numbers.", code=code))
        if operation not in country.operations:
            if terms.get(code, _NO_TERMS) != _NO_TERMS:
                key = f"countries.{code}.{operation}"
                problems.append(say("{key}: the gateway does not offer this there; remove it.", key=key))
            continue
        case = _Case(code, country, operation, read, forms, operators.get(code, {}), terms.get(code, _NO_TERMS))
        case.check_data()
        problems += [*_wrong_terms(case), *_wrong_numbers(case, numbers[code])]
        rules[code] = _rule(case, numbers[code])
    problems += _several_purposes(operation, read, rules)
    if problems:
        raise ConfigurationError("\n".join(problems), hint=say("Correct these keys in the configuration file."))
    return MappingProxyType(rules)


def _unknown_country(code: str, countries: Mapping[str, files.CountryData]) -> str:
    for country in countries.values():
        if code in country.confused_codes:
            return f"countries.{code}: {say(country.confused_codes[code])}"
    near = files.nearest(code, countries)
    return say("countries.{code}: there is no such country; {nearest}", code=code, nearest=near)


@dataclass(frozen=True, slots=True)
class _Case:
    code: str
    country: files.CountryData
    operation: str
    read: files.OperationData
    forms: Mapping[str, files.FormData]
    operators: Mapping[str, list[str]]
    """Mobile operators -> the beginnings of their numbers."""
    terms: OperatorTerms

    @property
    def key(self) -> str:
        """The table of the operator's configuration that has these terms."""
        return f"countries.{self.code}.{self.operation}"

    @property
    def asks(self) -> files.CountryOperationData:
        return self.country.operations[self.operation]

    @property
    def documented_form(self) -> str | None:
        """The form that the interface shows for this country, or None."""
        return None if self.asks.unusable else self.asks.form or self.read.default_form

    @property
    def form_name(self) -> str:
        return self.documented_form or self.terms.form or ""

    @property
    def omitted(self) -> frozenset[str]:
        fields = self.forms[self.form_name].fields if self.form_name in self.forms else []
        not_asked = {field.name for field in fields if not field.everywhere} - {*self.asks.fields, *self.terms.also}
        return frozenset(not_asked) | self.called("never")

    def called(self, word: str) -> frozenset[str]:
        return frozenset(name for name, usage in self.asks.fields.items() if usage == word)

    @property
    def sent(self) -> Mapping[str, files.FieldData]:
        if self.form_name not in self.forms:
            return {}
        omitted = self.omitted
        return {field.name: field for field in self.fields if field.name not in omitted}

    @property
    def fields(self) -> tuple[files.FieldData, ...]:
        """The form's fields, and the fields that the operator wants to be sent as well."""
        own = tuple(self.forms[self.form_name].fields) if self.form_name in self.forms else ()
        have = {field.name for field in own}
        return (*own, *(self.addable[name] for name in self.terms.also if name in self.addable and name not in have))

    @property
    def addable(self) -> Mapping[str, files.FieldData]:
        """The fields of all forms that could be sent as well, because a sheet or the configuration may have them.

        If several forms have a field of that name, the operation's default form determines its kind.
        """
        fields = [field for form in self.forms.values() for field in form.fields]
        usual = self.forms[self.read.default_form].fields
        by_name = {field.name: field for field in (*fields, *usual)}
        columns = {*self.read.columns, "server_callback_url"}
        return {name: field for name, field in by_name.items() if name in columns}

    @property
    def not_required(self) -> frozenset[str]:
        names = {*self.terms.optional, *self.terms.also}
        sent = self.sent
        return self.called("optional") | {name for name in names if name in sent and sent[name].from_sheet}

    def kinds_of(self, name: str) -> set[FieldKind]:
        return {field.kind for form in self.forms.values() for field in form.fields if field.name == name}

    @property
    def supplied(self) -> Mapping[str, str]:
        values = {name: getattr(self.terms, name) for name in files.SUPPLIED_NAMES}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def decimals(self) -> int:
        return self.country.minor_units if self.terms.decimals is None else self.terms.decimals

    @property
    def missing(self) -> tuple[str, ...]:
        sent = self.sent
        supplies = [name for name in self.read.operator_supplies if not sent or name in sent]
        provided = {*self.supplied, *(("purpose",) if self.terms.purposes else ())}
        absent = [name for name in supplies if name not in {*self.called("optional"), *self.terms.optional, *provided}]
        return (*([] if self.form_name else ["form"]), *absent)

    def check_data(self) -> None:
        form = self.documented_form
        if form is not None and form not in self.forms:
            raise ConfigurationError(
                say("config: no form is called {form!r}; {nearest}", form=form, nearest=files.nearest(form, self.forms))
            )
        if self.form_name in self.forms:
            have = {field.name: KINDS[field.kind].checking for field in self.forms[self.form_name].fields}
            for name in (*self.asks.fields, *self.asks.max_characters):
                if name not in have:
                    raise ConfigurationError(
                        say(
                            "config/countries/{code}.toml: the {form_name} form has no field {name!r}; {nearest}",
                            code=self.code,
                            form_name=self.form_name,
                            name=name,
                            nearest=files.nearest(name, have),
                        )
                    )
            for name in self.asks.max_characters:
                if have[name] is not Checking.TEXT:
                    problem = say("config/countries/{code}.toml: {name} is not a text.", code=self.code, name=name)
                    raise ConfigurationError(problem)


def _mobile_numbers(case: _Case, read: files.NumbersData) -> MobileNumbers:
    operators = {start: name for name, starts in case.operators.items() for start in starts}
    values = read.model_dump() | {"national_lengths": tuple(read.national_lengths)}
    numbers = MobileNumbers(**values, operators=MappingProxyType(operators))
    if (former := case.country.former_numbers) is not None:
        ways = tuple((f"({pattern})", front) for front, pattern in former.in_front.items())
        numbers = replace(numbers, renumbering=Renumbering(former.changed, ways))
        if case.terms.former_numbers:
            numbers = replace(
                numbers,
                pattern=former.pattern,
                national_lengths=(len(former.example),),
                example=former.example,
                operators=MappingProxyType({}),  # the known beginnings are those of new numbers
                renumbering=Renumbering(
                    former.changed, tuple((front + way, "") for way, front in ways), to_former=True
                ),
            )
    lengths, starts = numbers.national_lengths, case.terms.also_numbers
    further = [f"{start}[0-9]{{{length - len(start)}}}" for start in starts for length in lengths]
    return replace(numbers, pattern=f"(?:{'|'.join((numbers.pattern, *further))})") if further else numbers


def _rule(case: _Case, numbers: files.NumbersData) -> CountryRule:
    usable = bool(case.form_name) and not (case.asks.unusable and case.missing)
    form = _form(case) if usable and case.form_name in case.forms else None
    sent = case.sent if form is not None else {}
    defaults = {name: field.default for name, field in sent.items() if field.default is not None}
    defaults |= {name: value for name, value in case.supplied.items() if name in sent and name != "purpose"}
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
        numbers=_mobile_numbers(case, numbers),
        form=form,
        unusable="" if usable else case.asks.unusable,
        required=frozenset(sent) - case.not_required,
        omitted=case.omitted,
        purpose=case.terms.purpose,
        operator=case.terms.operator,
        missing_terms=tuple(f"{case.key}.{name}" for name in case.missing),
        defaults=MappingProxyType(defaults),
        min_amount=case.terms.min_amount,
        max_amount=case.terms.max_amount,
        # The pattern is grouped, so that an anchor applies to every alternative.
        bank_account_pattern=None if pattern is None else f"(?:{pattern})",
        max_characters=MappingProxyType(dict(case.asks.max_characters)),
        notes=(*case.country.notes, *case.asks.notes),
        confused_codes=MappingProxyType(dict(case.country.confused_codes)),
        purposes=_purposes(case),
        phone_as_account=_phone_as_account(case) if form is not None else "",
    )


def _purposes(case: _Case) -> Mapping[str, PurposeTerms]:
    """Return the purposes that a row may choose, by the senders' words and by the codes themselves."""
    chosen = case.terms.purposes
    default = [] if case.terms.purpose is None else [PurposeTerms(case.terms.purpose, case.terms.operator)]
    by_code = {fold_word(terms.purpose): terms for terms in (*chosen.values(), *default)} if chosen else {}
    return MappingProxyType(by_code | {fold_word(word): replace(terms, word=word) for word, terms in chosen.items()})


def _phone_as_account(case: _Case) -> str:
    """Return the field that serves as the account in a sheet without accounts, or the empty text.

    If banks are paid as well, a phone may be no account at all. Then only the configuration can say that it is one.
    """
    kinds = {field.kind: name for name, field in case.sent.items()}
    phone = kinds.get(FieldKind.INTERNATIONAL_PHONE, "") if FieldKind.WALLET in kinds else ""
    is_meant = case.terms.phone_is_account
    return phone if is_meant or (is_meant is None and case.terms.bank_account_pattern is None) else ""


def _form(case: _Case) -> Form:
    fields = tuple(FormField(field.name, field.kind, field.from_sheet) for field in case.fields)
    shown = case.forms[case.form_name].shown
    return Form(case.form_name, fields, tuple((column, tuple(names)) for column, names in shown.items()))


def _several_purposes(operation: str, read: files.OperationData, rules: Rules) -> Iterator[str]:
    """Yield a sentence for each currency whose countries must have one purpose, but have several."""
    for currency in read.one_purpose:
        purposes = {code: rule.purpose for code, rule in rules.items() if rule.currency == currency and rule.purpose}
        if len(set(purposes.values())) > 1:
            keys = ", ".join(f"countries.{code}.{operation}.purpose" for code in purposes)
            yield say(
                "{keys}: the gateway has one code for all countries that use {currency}; write the same in each.",
                keys=keys,
                currency=currency,
            )


def _wrong_terms(case: _Case) -> Iterator[str]:
    yield from _wrong_form(case)
    yield from _wrong_values(case)
    yield from _wrong_amounts(case)
    yield from _wrong_operator(case)
    yield from _wrong_purposes(case)
    yield from _wrong_fields(case)
    pattern = case.terms.bank_account_pattern
    if pattern is not None:
        key = f"{case.key}.bank_account_pattern"
        if problem := files.pattern_problem(pattern):
            yield f"{key}: {problem}"
        elif re.fullmatch(pattern, ""):
            yield say("{key}: the pattern accepts an empty account number.", key=key)
        if case.sent and not any(field.kind is FieldKind.WALLET for field in case.sent.values()):
            yield say("{key}: the {form} form has no account number; remove it.", key=key, form=case.form_name)


def _wrong_form(case: _Case) -> Iterator[str]:
    form, documented = case.terms.form, case.documented_form
    if form is None:
        return
    if form not in case.forms:
        near = files.nearest(form, case.forms)
        yield say("{key}.form: no form is called {form!r}; {nearest}", key=case.key, form=form, nearest=near)
    elif documented not in {None, form}:
        yield say(
            "{key}.form: the gateway documents the {form} form for {country}; remove it.",
            key=case.key,
            form=documented,
            country=say(case.country.name),
        )


def _wrong_values(case: _Case) -> Iterator[str]:
    for name, value in case.supplied.items():
        key = f"{case.key}.{name}"
        if name in case.omitted:
            yield _never_sent(case, key, name)
        elif case.sent and name not in case.sent:
            yield say("{key}: the {form} form has no {name}; remove it.", key=key, form=case.form_name, name=name)
        if problem := _wrong_text(case, name, value):
            yield f"{key}: {problem}"
        elif FieldKind.IPV4 in case.kinds_of(name) and not _fits(FieldKind.IPV4, value):
            yield f"{key}: {say(_NO_IPV4, value=value)}"


def _never_sent(case: _Case, key: str, name: str) -> str:
    country = say(case.country.name)
    return say("{key}: {name} is never sent for {country}; remove it.", key=key, name=name, country=country)


def _wrong_fields(case: _Case) -> Iterator[str]:
    if not case.sent:
        return
    key = f"{case.key}.optional"
    for name in case.terms.optional:
        if name not in case.sent:
            yield f"{key}: {_no_field(case, name)}"
        elif name in case.called("required"):
            country = say(case.country.name)
            yield say(
                "{key}: the gateway's interface requires {name} for {country}; remove it.",
                key=key,
                name=name,
                country=country,
            )
        elif case.sent[name].kind in _NEVER_OPTIONAL or not case.sent[name].from_sheet:
            yield say("{key}: nothing is paid without {name}; remove it.", key=key, name=name)
    yield from _wrong_also(case)
    for name, value in case.terms.defaults.items():
        if problem := _wrong_default(case, name, value):
            yield f"{case.key}.defaults.{name}: {problem}"


def _no_field(case: _Case, name: str) -> str:
    near = files.nearest(name, case.sent)
    return say("the {form} form has no {name}; {nearest}", form=case.form_name, name=name, nearest=near)


def _wrong_also(case: _Case) -> Iterator[str]:
    key = f"{case.key}.also"
    for name in case.terms.also:
        if name not in case.addable:
            near = files.nearest(name, case.addable)
            yield say("{key}: there is no field {name!r}; {nearest}", key=key, name=name, nearest=near)
        elif name in case.called("never"):
            yield _never_sent(case, key, name)


def _wrong_default(case: _Case, name: str, value: str) -> str:
    """Return why `value` cannot be sent in a field, or the empty text."""
    kind = case.sent[name].kind if name in case.sent else None
    supplied = f"{case.key}.{name}"
    wrong = {
        _no_field(case, name): kind is None,
        say("each row has its own {name}; remove it.", name=name): kind is not None and kind not in _MAY_BE_FILLED_IN,
        say("{key} sets it too; remove one of them.", key=supplied): name in case.supplied,
    }
    problem = next((sentence for sentence, is_so in wrong.items() if is_so), "")
    if problem := problem or _wrong_text(case, name, value):
        return problem
    return "" if kind is None or _fits(kind, value) else say(_MAY_BE_FILLED_IN[kind], value=value)


def _wrong_text(case: _Case, name: str, value: str) -> str:
    """Return why no text of a field can be `value`, or the empty text."""
    if not _is_one_line(value):
        return say(_ONE_LINE)
    most = case.asks.max_characters.get(name, len(value))
    too_long = mark("{value}: write at most {characters} characters, on one line, without tabs.")
    return say(too_long, value=value, characters=most) if len(value) > most else ""


def _wrong_operator(case: _Case) -> Iterator[str]:
    operator = case.terms.operator
    if operator is None:
        return
    key = f"{case.key}.operator"
    if "purpose" in case.called("never"):
        yield say(
            "{key}: {country} does not use a purpose that could mean an operator; remove it.",
            key=key,
            country=say(case.country.name),
        )
    elif operator not in case.operators:
        yield _no_operator(case, key, operator)


def _no_operator(case: _Case, key: str, operator: str) -> str:
    near = files.nearest(operator, case.operators)
    return say("{key}: no operator is called {operator!r}; {nearest}", key=key, operator=operator, nearest=near)


def _wrong_purposes(case: _Case) -> Iterator[str]:
    words: dict[str, str] = {}
    for word, terms in case.terms.purposes.items():
        key = f"{case.key}.purposes.{word}"
        if not _is_one_line(word) or not fold_word(word) or not _is_one_line(terms.purpose):
            yield say("{key}: word and purpose must each be one line of text, with no space at either end.", key=key)
        if (other := words.setdefault(fold_word(word), word)) != word:
            yield say(
                "{key}: this is the same word as {other!r}, apart from case, spaces or hyphens; remove one.",
                key=key,
                other=other,
            )
        if terms.operator is not None and terms.operator not in case.operators:
            yield _no_operator(case, key, terms.operator)
    if case.terms.purposes and "purpose" in case.called("never"):
        country = say(case.country.name)
        yield say("{key}: {country} does not use a purpose; remove it.", key=f"{case.key}.purposes", country=country)


def _wrong_numbers(case: _Case, numbers: files.NumbersData) -> Iterator[str]:
    for start in case.terms.also_numbers:
        is_start = re.fullmatch("[0-9]+", start) and len(start) < min(numbers.national_lengths)
        if not is_start or (numbers.trunk_prefix and start.startswith(numbers.trunk_prefix)):
            yield say(
                "{key}: {start!r} is not how a number begins: write the first digits after the dialling code, as in "
                "{example!r}.",
                key=f"{case.key}.also_numbers",
                start=start,
                example=numbers.example[:3],
            )
    if case.terms.former_numbers and case.country.former_numbers is None:
        key, country = f"{case.key}.former_numbers", say(case.country.name)
        yield say("{key}: the numbers of {country} have not changed; remove it.", key=key, country=country)


def _wrong_amounts(case: _Case) -> Iterator[str]:
    low, high, decimals = case.terms.min_amount, case.terms.max_amount, case.decimals
    if decimals > case.country.minor_units:
        yield say(
            "{key}: {currency} has {units} decimals; write fewer, or remove it.",
            key=f"{case.key}.decimals",
            currency=case.country.currency,
            units=case.country.minor_units,
        )
    fine = True
    for name, amount in (("min_amount", low), ("max_amount", high)):
        if amount is not None and not _is_amount(amount, decimals):
            fine = False
            yield say(
                "{key}: {amount} is not a valid {currency} amount: write one above 0, with at most {decimals} "
                "decimals.",
                key=f"{case.key}.{name}",
                amount=amount,
                decimals=decimals,
                currency=case.country.currency,
            )
    if fine and low is not None and high is not None and low > high:
        yield say("{key}: min_amount {low} is above max_amount {high}.", key=case.key, low=low, high=high)


def _is_amount(amount: Decimal, decimals: int) -> bool:
    if not amount.is_finite() or amount <= 0:
        return False
    return isinstance(exponent := amount.as_tuple().exponent, int) and -exponent <= decimals


def _is_one_line(text: str) -> bool:
    return bool(text) and text == text.strip() and text.isprintable()


def _fits(kind: FieldKind, value: str) -> bool:
    return not KINDS[kind].pattern or re.fullmatch(KINDS[kind].pattern, value) is not None


def chosen_countries(words: Iterable[str], rules: Rules) -> list[CountryRule]:
    """Return the rules of the countries whose codes are `words`, in any case of letters; each once, in that order.

    Raises `UsageError` for a word that is not a country's code, with the nearest code, and for a country in which the
    operation cannot be used.
    """
    chosen = {rule.code: rule for rule in (country_named(word, rules) for word in words)}
    for rule in chosen.values():
        if rule.form is None:
            raise UsageError(
                say(rule.unusable),
                hint=say("The configuration must set {missing_terms}.", missing_terms=", ".join(rule.missing_terms)),
            )
    return list(chosen.values())


def country_named(word: str, rules: Rules) -> CountryRule:
    """Return the rule of the country whose code is `word`. Raises `UsageError`, with the nearest code, for others."""
    code = word.strip().upper()
    if code in rules:
        return rules[code]
    for rule in rules.values():
        if code in rule.confused_codes:
            raise UsageError(say(rule.confused_codes[code]), hint=say("Write {code}.", code=rule.code))
        if code in {rule.name.upper(), say(rule.name).upper()}:
            raise UsageError(
                say("{word}: write {code}.", word=word, code=rule.code), hint=say("Countries are named by their codes.")
            )
    raise UsageError(say("{word} is not a known country; {nearest}", word=word, nearest=nearest(code, rules)), hint="")
