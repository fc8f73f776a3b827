"""Invented terms of an operator, for every country in the data."""

from paygw_batch.countries.data import config_dir, read_operation
from paygw_batch.countries.load import load_rules
from paygw_batch.countries.rules import OperatorTerms, Rules


def invented_terms(word: str, operation: str = "payout", **own: OperatorTerms) -> dict[str, OperatorTerms]:
    """Return invented terms for each country that needs some, such as the purpose `WORD-KE`. `own` terms are kept."""
    zones = read_operation(config_dir(), operation).one_purpose
    result = {}
    for code, rule in load_rules(operation, {}).items():
        lacking = {key.rpartition(".")[2] for key in rule.missing_terms}
        purpose = f"{word}-{rule.currency if rule.currency in zones else code}" if "purpose" in lacking else None
        result[code] = OperatorTerms(purpose=purpose, form="account" if "form" in lacking else None)
    return result | own


def complete_rules(word: str, operation: str = "payout", **own: OperatorTerms) -> Rules:
    return load_rules(operation, invented_terms(word, operation, **own))
