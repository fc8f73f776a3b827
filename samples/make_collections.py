"""Sheets of customers to collect from, made from the payout sheets of `make_sheet`: the same people, the other way."""
# ruff: noqa: INP001  (scripts beside data, no package)

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl
from make_sheet import COUNTRIES, make_sheet


@dataclass(frozen=True)
class Place:
    """Where a country's customers live."""

    street: str
    city: str
    zip_code: str


PLACES = {
    "KE": Place("Moi Avenue", "Nairobi", "00100"),
    "TZ": Place("Samora Avenue", "Dar es Salaam", "11101"),
    "UG": Place("Kampala Road", "Kampala", "P-7062"),
    "GH": Place("Ring Road", "Accra", "GA-184-0515"),
    "NG": Place("Broad Street", "Lagos", "101001"),
    "ZM": Place("Cairo Road", "Lusaka", "10101"),
    "RW": Place("KN 4 Avenue", "Kigali", "KG-11"),
    "EG": Place("Talaat Harb", "Cairo", "11511"),
    "ZA": Place("Long Street", "Cape Town", "8001"),
    "BF": Place("Avenue Kwame Nkrumah", "Ouagadougou", "01"),
    "CI": Place("Boulevard de la République", "Abidjan", "01"),
    "SN": Place("Avenue Pompidou", "Dakar", "12500"),
    "GN": Place("Avenue de la République", "Conakry", "001"),
    "BN": Place("Boulevard Saint-Michel", "Cotonou", "01-BP"),
}
ORDERS = ("School fees", "Solar lamp", "Water bill", "Seed and fertiliser")
_FIRST_VISIBLE, _LAST_VISIBLE = 7, 3
"""How much of a masked phone is still shown: the start with its `+`, and the end."""


def make_collections(rows: int, *, seed: int, prefix: str, countries: Sequence[str] = COUNTRIES) -> pl.DataFrame:
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
    places = {part: {one: getattr(place, part) for one, place in PLACES.items()} for part in Place.__annotations__}
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
