"""Writes a statement that was read as JSON text, and reads it again: it is read once, where limits hold."""

import json
from dataclasses import asdict
from decimal import Decimal

from paygw_batch.statement.read import Statement, StatementLine


def statement_as_json(statement: Statement) -> str:
    """Return a statement as text."""
    lines = [asdict(line) | {"amount": None if line.amount is None else str(line.amount)} for line in statement.lines]
    return json.dumps({"name": statement.name, "sha256": statement.sha256, "lines": lines}, ensure_ascii=False)


def statement_of_json(text: str) -> Statement:
    """Return the statement that `statement_as_json` made the text of."""
    found = json.loads(text)
    lines = [
        StatementLine(**{**line, "amount": None if line["amount"] is None else Decimal(line["amount"])})
        for line in found["lines"]
    ]
    return Statement(found["name"], found["sha256"], lines)
