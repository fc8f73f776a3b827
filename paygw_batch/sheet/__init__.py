"""Read sheets as exact text (`read`), check them against the rules (`check`), and write rows to files (`write`).

`read_sheet(path, options) -> Sheet` comes first, then `validate(sheet, rules) -> Validated`. `model` describes both. A
country whose rule has `missing_terms` is validated like any other; only a run refuses to send to it.
"""
