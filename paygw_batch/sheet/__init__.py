"""Reads sheets as exact text (`read`), holds them against the rules (`check`), writes their rows to files (`write`).

`read_sheet(path, options) -> Sheet`, then `validate(sheet, rules) -> Validated`; `model` describes both. A country
whose rule has `missing_terms` validates like any other: whether something may be sent to it is the run's question.
"""
