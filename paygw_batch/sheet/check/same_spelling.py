"""Order ids of a sheet that differ only in their spelling."""

import polars as pl

from paygw_batch.core.spelling import spelled_alike
from paygw_batch.sheet.model import defects_of, shown, worded

LOOK_ALIKE = "client_orderid.look_alike"


def in_one_spelling(text: pl.Series) -> pl.Series:
    """Return `core.spelling.spelled_alike` of every value, null of null.

    Most order ids are ASCII, and those are folded as a column; only the others are looked at one by one.
    """
    folded = text.str.to_lowercase()
    at = (text.str.len_bytes() != text.str.len_chars()).fill_null(value=False).arg_true()
    if not at.len():
        return folded
    return folded.scatter(at, pl.Series([spelled_alike(value) for value in text.gather(at)], dtype=pl.String))


def ids_spelled_alike(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a defect for every row whose `client_orderid` is another row's in another spelling. `frame`: with `row`.

    Each names the first row that has another spelling of its id.
    """
    given = frame.select("row", "client_orderid").drop_nulls()
    ids = given.with_columns(folded=in_one_spelling(given["client_orderid"]))
    order_id = pl.col("client_orderid")
    is_other = order_id != order_id.first()
    groups = ids.group_by("folded").agg(
        first=order_id.first(),
        first_row=pl.col("row").first(),
        second=order_id.filter(is_other).first(),
        second_row=pl.col("row").filter(is_other).first(),
    )
    alike = ids.join(groups.drop_nulls("second"), on="folded", how="inner", maintain_order="left").rechunk()
    is_first = order_id == pl.col("first")
    named = alike.with_columns(
        other=pl.when(is_first).then("second").otherwise("first"),
        other_row=pl.when(is_first).then("second_row").otherwise("first_row"),
    )
    message = worded(
        "{value} differs only in its spelling from {other} of row {row}: if both are one payment, delete one of the "
        "rows; if not, give one of them an id that differs in more than case, width or hyphens.",
        value=shown("client_orderid"),
        other=shown("other"),
        row=pl.col("other_row"),
    )
    return defects_of(named, "client_orderid", LOOK_ALIKE, message)
