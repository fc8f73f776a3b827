"""Writes an example sheet: one valid row a country, to be paid in the sandbox."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from paygw_batch.countries.rules import CountryRule
from paygw_batch.files import write_whole
from paygw_batch.sheet.write.guide import columns_of, guides


def write_example(rules: Sequence[CountryRule], path: Path) -> int:
    """Write a CSV sheet with the example of each column for each country to `path`; return how many rows it has.

    Each rule must have a form. Raises `OutputError`.
    """
    every = guides(rules)
    text = io.StringIO()
    lines = csv.DictWriter(text, columns_of(every), restval="", lineterminator="\n")
    lines.writeheader()
    for rule in rules:
        row = {guide.column: guide.example for guide in every if rule.code in guide.countries}
        lines.writerow({**row, "client_orderid": f"EXAMPLE-{rule.code}"})
    write_whole(path, text.getvalue().encode())
    return len(rules)
