"""Sheets of customers to collect from, made from the payout sheets of `make_sheet`: the same people, the other way."""
# ruff: noqa: INP001  (scripts beside data, no package)

from collections.abc import Sequence

import polars as pl
from make_sheet import MIXED, PEOPLE, make_sheet

ORDERS = ("School fees", "Solar lamp", "Water bill", "Seed and fertiliser")
_FIRST_VISIBLE, _LAST_VISIBLE = 7, 3
"""How much of a masked phone is still shown: the start with its `+`, and the end."""


def make_collections(rows: int, *, seed: int, prefix: str, countries: Sequence[str] = MIXED) -> pl.DataFrame:
    """Return a sheet of `rows` customers, all String, no row with a defect; every third phone is partly masked."""
    sheet = make_sheet(rows, seed=seed, countries=countries, prefix=prefix)
    code, number = pl.col("country"), pl.int_range(1, pl.len() + 1)
    names = pl.col("account_name").str.splitn(" ", 2)
    first = pl.coalesce("receiver_first_name", names.struct.field("field_0"))
    last = pl.coalesce("receiver_last_name", names.struct.field("field_1"))
    mobile = pl.coalesce("account_number", "receiver_phone")
    phone = pl.coalesce("phone", "receiver_phone")
    hidden = pl.lit("*").repeat_by(phone.str.len_chars() - _FIRST_VISIBLE - _LAST_VISIBLE).list.join("")
    masked = phone.str.head(_FIRST_VISIBLE) + hidden + phone.str.tail(_LAST_VISIBLE)
    parts = ("street", "city", "zip_code")
    places = {part: {one: getattr(people, part) for one, people in PEOPLE.items()} for part in parts}
    return sheet.select(
        "country",
        "client_orderid",
        "amount",
        "currency",
        first_name=first,
        last_name=last,
        account_name=pl.when(code == "RW").then(first + " " + last),
        cell_phone=pl.when(code != "KE").then(mobile),
        phone=pl.when((number % 3 == 0) & phone.str.starts_with("+") & ~phone.str.contains(" "))
        .then(masked)
        .otherwise(phone),
        email=pl.format("customer.{}@example.com", pl.col("client_orderid").str.to_lowercase()),
        address1=pl.format("{} {}", number, code.replace_strict(places["street"])),
        city=code.replace_strict(places["city"]),
        zip_code=code.replace_strict(places["zip_code"]),
        ipaddress=pl.format("192.0.2.{}", number % 254 + 1),
        order_desc=pl.lit(pl.Series(ORDERS)).gather(number % len(ORDERS)),
        merchant_data=pl.when(code == "KE").then(pl.lit("autumn-2026")),
    )
