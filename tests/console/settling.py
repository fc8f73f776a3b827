"""Settles rows on the pages for tests."""

from collections.abc import Sequence

from tests.support.people import House, Person
from tests.support.program import HEADING

DECLINES = """
[[rule]]
amount_whole = 9001
status = "declined"
message = "The account is closed."
commits = false
[[rule]]
amount_whole = 9002
status = "declined"
message = "The limit of the day is reached."
commits = false
[[rule]]
amount_whole = 9006
fault = "garbage"
[[rule]]
amount_whole = 9008
fault = "drop_before"
"""
TICKET = "Ticket 7 <b>"


def pay_rows(house: House, *amounts: str) -> str:
    """Pay rows without approval and return the batch. The first is row 2."""
    rows = [f"KE,P-{n},{amount},KES,Jane {n},254712345{n:03},+254712345{n:03}" for n, amount in enumerate(amounts, 1)]
    return str(house.program.json("submit", house.program.sheet(rows, "payroll.csv", HEADING))["batch"])


def settle(
    person: Person, batch: str, row: int, said: str, evidence: str = TICKET, attempt: str = "1"
) -> Sequence[str]:
    """Settle a row with the form of its page, and return the status and the redirect."""
    path = f"/payouts/{batch}/rows/{row}/settle"
    answer = person.post(path, said=said, evidence=evidence, attempt=attempt)
    return str(answer.status_code), answer.headers.get("location", answer.text)


def draft_order(person: Person, batch: str, row: int, said: str = "rejected") -> str:
    """Draft an order to settle a row and return its address."""
    status, path = settle(person, batch, row, said)
    assert (status, path.startswith("/orders/")) == ("303", True), path
    return path
