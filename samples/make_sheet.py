"""Write a payout sheet of any size, the same one for the same arguments.

    python samples/make_sheet.py --rows 10000 --out payroll.csv
    python samples/make_sheet.py --rows 1000000 --out big.parquet --seed 7 --bad-share 0.01

The ending of --out decides the format: .csv or .parquet. Every column is text. People, numbers and amounts are made up;
the numbers are of the right form for their country and may belong to somebody, so a sheet is for the sandbox alone.
Amounts keep clear of 9000 to 9099, whose whole part tells the sandbox to misbehave.
"""
# ruff: noqa: INP001  (scripts beside data, no package)

import argparse
import hashlib
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

CONFIG = Path(__file__).resolve().parents[1] / "config"
PRIME = 2**31 - 1
"""Draws are computed modulo this prime: exact in 64 bits, and the same in every version of every library."""
DEFECTS = ("comma", "zero", "decimals", "cut number", "no name", "no country")
"""What is wrong with the rows of --bad-share, one thing each."""
DEPARTMENTS = ("Field work", "Harvest", "Logistics", "Office", "Repairs", "Training")


@dataclass(frozen=True)
class People:
    """What a country's rows are drawn from. `weight`: its share of the rows; `whole`: smallest and largest amount."""

    weight: int
    whole: tuple[int, int]
    mobile_starts: Sequence[str]
    first_names: Sequence[str]
    last_names: Sequence[str]
    street: str
    city: str
    zip_code: str


_DATA: dict[str, Any] = tomllib.loads((Path(__file__).parent / "people.toml").read_text(encoding="utf-8"))
MIXED: tuple[str, ...] = tuple(_DATA.pop("mixed"))
PEOPLE = {code: People(**said) for code, said in _DATA.items()}
NAMES = 8
"""First names, and last names, of each country."""


def make_sheet(
    rows: int, *, seed: int = 1, bad_share: float = 0.0, countries: Sequence[str] = MIXED, prefix: str = ""
) -> pl.DataFrame:
    """Return a sheet of `rows` rows, all String; about `bad_share` of them have a defect. Order ids begin `prefix`-."""
    index = pl.int_range(1, rows + 1, dtype=pl.UInt64, eager=True)
    draws = pl.DataFrame({name: _draw(index, seed, name) for name in _DRAWS})
    drawn_from = [place for place, code in enumerate(countries) for _ in range(PEOPLE[code].weight)]
    place = pl.Series(drawn_from, dtype=pl.UInt32).gather(draws["country"] % len(drawn_from))
    facts = _country_facts(countries)
    frame = pl.concat([draws.drop("country"), facts[place]], how="horizontal").with_columns(
        index.cast(pl.String).str.zfill(7).alias("number"), place.alias("place")
    )
    people = [PEOPLE[code] for code in countries]
    frame = frame.with_columns(
        first=_pick([p.first_names for p in people], NAMES, "first_name"),
        last=_pick([p.last_names for p in people], NAMES, "last_name"),
        start=_pick([p.mobile_starts for p in people], 3, "start"),
        whole=pl.col("low") + pl.col("amount") % pl.col("span"),
    )
    frame = frame.with_columns(mobile=_mobile(), text=_amount())
    return _columns(frame, prefix or f"S{seed}", bad_share)


_DRAWS = ("country", "first_name", "last_name", "start", "amount", "cents", "style", "department", "bad", "bad_kind")


def _draw(index: pl.Series, seed: int, name: str) -> pl.Series:
    """Return a number below `PRIME` for every row: a parabola modulo a prime, its coefficients hashed from the seed."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    slope, offset = (1 + int.from_bytes(part) % (PRIME - 1) for part in (digest[:8], digest[8:16]))
    line = (index * slope + offset) % PRIME
    return (line * line % PRIME).alias(name)


def _country_facts(countries: Sequence[str]) -> pl.DataFrame:
    """Return one line per country: what the program's own data files say of it, and the span of its amounts."""
    numbers: dict[str, Any] = tomllib.loads((CONFIG / "mobile-numbers.toml").read_text(encoding="utf-8"))
    lines = []
    for code in countries:
        country = tomllib.loads((CONFIG / f"countries/{code}.toml").read_text(encoding="utf-8"))
        low, high = PEOPLE[code].whole
        lines.append(
            {
                "code": code,
                "currency": country["currency"],
                "minor_units": country["minor_units"],
                "receiver": country["operations"].get("payout", {}).get("form") == "receiver",
                "dialling": numbers[code]["dialling_code"],
                "trunk": numbers[code]["trunk_prefix"],
                "length": numbers[code]["national_lengths"][0],
                "low": low,
                "span": high - low + 1,
            }
        )
    return pl.DataFrame(lines, schema_overrides=dict.fromkeys(("low", "span", "length"), pl.UInt64))


def _pick(tables: Sequence[Sequence[str]], size: int, draw: str) -> pl.Expr:
    """Return an expression that picks from the row's country's table, by a draw."""
    flat = pl.Series([word for table in tables for word in table])
    return pl.lit(flat).gather(pl.col("place") * size + (pl.col(draw) % size).cast(pl.UInt32))


def _mobile() -> pl.Expr:
    """Return national numbers, all different within a country until its digits are used up."""
    width = pl.col("length") - pl.col("start").str.len_bytes()
    nth = pl.int_range(pl.len(), dtype=pl.UInt64).over("code")
    # 7919 has no factor in common with 10: it walks through every number of `width` digits before one comes again.
    serial = (nth * 7919 + 104_729) % pl.lit(10, dtype=pl.UInt64).pow(width)
    return pl.col("start") + serial.cast(pl.String).str.zfill(width)


def _amount() -> pl.Expr:
    """Return amounts as people write them: mostly with two decimals where the currency has them, some with none."""
    whole, cents = pl.col("whole").cast(pl.String), pl.col("cents") % 100
    with_cents = whole + "." + cents.cast(pl.String).str.zfill(2)
    return pl.when((pl.col("minor_units") == 0) | (cents % 4 == 0)).then(whole).otherwise(with_cents)


def _columns(frame: pl.DataFrame, prefix: str, bad_share: float) -> pl.DataFrame:
    """Return the columns of the sheet, some rows spoilt. Rows of the receiver form leave the account columns blank."""
    bad = pl.col("bad") % 1_000_000 < round(bad_share * 1_000_000)
    kind = pl.lit(pl.Series(DEFECTS)).gather(pl.col("bad_kind") % len(DEFECTS))
    frame = frame.with_columns(defect=pl.when(bad).then(kind))
    mobile, receiver = pl.col("mobile"), pl.col("receiver")
    spoilt_amount = pl.col("defect").replace_strict(
        {"comma": "1,250.00", "zero": "0", "decimals": "100.1055"}, default=None
    )
    written = _written(pl.when(pl.col("defect") == "cut number").then(mobile.str.head(4)).otherwise(mobile))
    name = pl.when(pl.col("defect").ne_missing(pl.lit("no name")))
    return frame.select(
        country=pl.when(pl.col("defect") == "no country").then(pl.lit("XX")).otherwise("code"),
        client_orderid=pl.lit(f"{prefix}-") + pl.col("number"),
        amount=pl.coalesce(spoilt_amount, "text"),
        currency="currency",
        account_name=name.then(pl.when(~receiver).then(pl.format("{} {}", "first", "last"))),
        account_number=pl.when(~receiver).then(pl.col("dialling") + written["bare"]),
        phone=pl.when(~receiver).then(written["phone"]),
        receiver_first_name=name.then(pl.when(receiver).then("first")),
        receiver_last_name=pl.when(receiver).then("last"),
        receiver_phone=pl.when(receiver).then(written["local"]),
        receiver_email=pl.when(receiver).then(
            pl.format("{}.{}.{}@example.com", "first", "last", "number").str.to_lowercase()
        ),
        department=pl.lit(pl.Series(DEPARTMENTS)).gather(pl.col("department") % len(DEPARTMENTS)),
    )


def _written(mobile: pl.Expr) -> dict[str, pl.Expr]:
    """Return a number as it stands in `account_number`, `phone` and `receiver_phone`, in the ways people write it."""
    local = pl.col("trunk") + mobile
    spaced = pl.format("+{} {} {}", "dialling", mobile.str.head(3), mobile.str.slice(3))
    style = pl.col("style") % 8
    plus = pl.format("+{}{}", "dialling", mobile)
    return {
        "bare": mobile,
        "phone": pl.when(style == 0).then(local).when(style == 1).then(spaced).otherwise(plus),
        "local": pl.when(style == 0).then(plus).when(style == 1).then(spaced).otherwise(local),
    }


def write(sheet: pl.DataFrame, out: Path) -> None:
    """Write a sheet in the format that the ending of `out` names."""
    if out.suffix == ".parquet":
        sheet.write_parquet(out)
    elif out.suffix == ".csv":
        sheet.write_csv(out)
    else:
        raise SystemExit(f"{out.name}: the name must end in .csv or .parquet")


def main() -> None:
    """Write the sheet that the command line asks for."""
    parser = argparse.ArgumentParser(
        description="Write a payout sheet of any size; the same arguments, the same sheet."
    )
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True, help="a name that ends in .csv or .parquet")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bad-share", type=float, default=0.0, help="share of rows with a defect, 0 to 1")
    parser.add_argument("--countries", default=",".join(MIXED), help="codes with commas between them")
    parser.add_argument("--prefix", default="", help="what order ids begin with (default: S and the seed)")
    told = parser.parse_args()
    countries = told.countries.split(",")
    if unknown := sorted(set(countries) - set(PEOPLE)):
        parser.error(f"unknown country {', '.join(unknown)}; known: {', '.join(PEOPLE)}")
    sheet = make_sheet(told.rows, seed=told.seed, bad_share=told.bad_share, countries=countries, prefix=told.prefix)
    write(sheet, told.out)


if __name__ == "__main__":
    main()
