"""Reads sheets as exact text (`read`), checks them against the rules (`check`), and writes rows to files (`write`).

`read_sheet(path, options) -> Sheet` comes first, then `validate(sheet, rules) -> Validated`. `model` defines both. A
country with `missing_terms` is validated like any other, but a run refuses to send to it.
"""
