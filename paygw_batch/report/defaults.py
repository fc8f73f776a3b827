"""Says what a country's rows are sent with where the sheet says nothing."""

from collections.abc import Collection, Iterable

from paygw_batch.countries.rules import CountryRule, Rules


def filled_in(rule: CountryRule) -> str:
    """Return what a country's rows are sent with where the sheet says nothing, as `name = "value"`; empty for none."""
    return ", ".join(f'{name} = "{value}"' for name, value in sorted(rule.defaults.items()))


def filled_in_notes(rules: Rules, countries: Iterable[str], columns: Collection[str]) -> list[str]:
    """Return a sentence for each country of a sheet about what is filled in, where the sheet lacks a whole column.

    A column that the sheet has can have empty cells: what fills those is said as well.
    """
    notes = []
    for code in sorted(set(countries) & set(rules)):
        filled = sorted(rules[code].defaults.items())
        absent = [f'{name} = "{value}"' for name, value in filled if name not in columns]
        empty = [f'{name} = "{value}"' for name, value in filled if name in columns]
        if absent:
            notes.append(f"{code}: the sheet does not say these, so they are filled in: {', '.join(absent)}.")
        if empty:
            notes.append(f"{code}: empty cells are filled in: {', '.join(empty)}.")
    return notes
