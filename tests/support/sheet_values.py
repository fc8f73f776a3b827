"""Rows and frames for the tests of sheets."""

from collections.abc import Callable, Mapping

import polars as pl

from paygw_batch.sheet.columns import known_columns
from paygw_batch.sheet.model import Sheet

MakeSheet = Callable[..., Sheet]
"""Writes bytes or text to a file, and reads it as a sheet: (content, name, **ReadOptions)."""


HEADER = "country,client_orderid,amount,currency,account_name,account_number,phone"
GOOD = "KE,A-1,1500.50,KES,Wanjiru Kamau,254712345678,+254712345678"

KENYAN = {
    "country": "KE",
    "client_orderid": "A-1",
    "amount": "1500.50",
    "account_name": "Wanjiru Kamau",
    "account_number": "254712345678",
    "phone": "+254712345678",
}
TANZANIAN = {
    "country": "TZ",
    "client_orderid": "A-2",
    "amount": "20000",
    "receiver_first_name": "Asha",
    "receiver_last_name": "Mushi",
    "receiver_phone": "0621234567",
    "receiver_email": "asha@example.com",
}

COLLECTED = {
    "country": "KE",
    "client_orderid": "C-1",
    "amount": "1500.50",
    "first_name": "Jane",
    "last_name": "Wanjiku",
    "phone": "+254712345678",
    "email": "jane@example.com",
    "address1": "1 Moi Avenue",
    "city": "Nairobi",
    "zip_code": "00100",
    "ipaddress": "192.0.2.1",
    "order_desc": "Shoes",
    "merchant_data": "tag",
}
"""A row of a collection."""


def lines(*rows: str, header: str = HEADER) -> str:
    return "\n".join([header, *rows]) + "\n"


def build_sheet(*rows: Mapping[str, str | None]) -> Sheet:
    """Return a sheet with these rows from row 2 on, with every column that a row names."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    frame = pl.DataFrame(
        [{name: row.get(name) for name in names} for row in rows], schema=dict.fromkeys(names, pl.String)
    ).with_row_index("row", offset=2)
    unknown = tuple(name for name in names if name not in known_columns())
    return Sheet("made.csv", sha256="0" * 64, frame=frame, headers={name: name for name in names}, unknown=unknown)


def codes(defects: pl.DataFrame) -> list[tuple[int, str]]:
    return defects.select("row", "code").rows()
