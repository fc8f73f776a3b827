"""Chooses countries by the codes that a person types."""

from collections.abc import Iterable

from paygw_batch.countries.data import nearest
from paygw_batch.countries.rules import CountryRule, Rules
from paygw_batch.errors import UsageError
from paygw_batch.language import say


def chosen_countries(words: Iterable[str], rules: Rules) -> list[CountryRule]:
    """Return the rules of the countries that `words` name by code, in any case of letters; each once, in that order.

    Raises `UsageError` for a word that is no country's code, telling the nearest, and for a country for which the
    operation cannot be used.
    """
    chosen = {rule.code: rule for rule in (country_named(word, rules) for word in words)}
    for rule in chosen.values():
        if rule.form is None:
            raise UsageError(
                say(rule.unusable),
                hint=say("The configuration must say {missing_terms}.", missing_terms=", ".join(rule.missing_terms)),
            )
    return list(chosen.values())


def country_named(word: str, rules: Rules) -> CountryRule:
    """Return the rule of the country that `word` names by its code. Raises `UsageError`, telling the nearest code."""
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
    raise UsageError(
        say("{word} is no country that is known; {nearest}", word=word, nearest=nearest(code, rules)), hint=""
    )
