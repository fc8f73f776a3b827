"""Finds rows that repeat each other: with the same order id in any spelling, or with payments that look alike."""

import polars as pl

from paygw_batch.core.text import spelled_alike, without_damage
from paygw_batch.sheet.amounts import readable_amount
from paygw_batch.sheet.findings import defects_of, no_defects, shown, worded
from paygw_batch.sheet.instructions import payee_of

_ROWS_NAMED = 6


def occurring_twice(hashes: pl.DataFrame) -> pl.Series:
    """Return the `row` of each `hash` that occurs twice.

    These are all rows that repeat each other, and hardly any others. Sorting 64-bit hashes and comparing neighbours is
    much cheaper than comparing texts.
    """
    ordered = hashes["hash"].sort()
    following = ordered.slice(1)  # a slice, because a copy of ten million rows takes 80 MB
    twice = following.filter(following == ordered.head(following.len())).unique()
    return hashes.filter(pl.col("hash").is_in(twice.implode()))["row"] if twice.len() else hashes["row"].clear()


def worth_comparing(payees: pl.DataFrame) -> pl.Series:
    """Return the `row` of all rows that repeat a payee with the same amount or under another name, and of few others.

    `payees` has `row`, and as hashes the payee (`hash`), `amount` and `name` (null: no name). That a payee is paid
    several times is no reason to compare the rows: in some sheets every payee is.
    """
    of_several = payees.filter(pl.col("row").is_in(occurring_twice(payees).implode()))
    alike = occurring_twice(of_several.select("row", hash=pl.col("hash") ^ pl.col("amount")))
    # If the names of one payee differ, at least two neighbours differ.
    with_names = of_several.select("hash", "name").drop_nulls().sort("hash")
    is_other = (pl.col("hash") == pl.col("hash").shift(1)) & (pl.col("name") != pl.col("name").shift(1))
    payees_with_names = with_names.filter(is_other)["hash"].unique()
    under_names = of_several.filter(pl.col("hash").is_in(payees_with_names.implode()))["row"]
    return pl.concat([alike, under_names]).unique()


def _groups(repeated: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """Return the rows that share all `keys` with others, with their `count`, and `rows`, a text naming the first."""
    text = pl.col("row").cast(pl.String)
    groups = repeated.group_by(keys).agg(count=pl.len(), rows=text.head(_ROWS_NAMED).str.join(", "))
    return repeated.join(groups.filter(pl.col("count") > 1), on=keys, how="inner", maintain_order="left").rechunk()


def repeated_ids(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a defect for each row whose `client_orderid` another row has too. `frame` has the `row`."""
    name = "client_orderid"
    more = pl.when(pl.col("count") > _ROWS_NAMED).then(pl.lit(", ...")).otherwise(pl.lit(""))
    message = worded(
        "{value} is used in {count} rows ({rows}{more}). Give each row its own id.",
        value=shown(name),
        count=pl.col("count"),
        rows=pl.col("rows"),
        more=more,
    )
    repeated = _groups(frame.select("row", name).drop_nulls(), [name])
    return defects_of(repeated, name, "client_orderid.duplicate", message)


def payees_of(lines: pl.DataFrame) -> pl.DataFrame:
    """Return the valid lines with their `payee`, and without the columns that no comparison needs."""
    valid = lines if lines["valid"].all() else lines.filter("valid")
    return valid.select("row", "client_orderid", "currency", "amount", "account_name", payee_of(valid))


def payee_hashes(lines: pl.DataFrame) -> pl.DataFrame:
    """Return the hashes of each valid line that `worth_comparing` compares.

    Nothing else is kept of a row. Amounts and names are compared only within one payee, so 32 bits are enough for them.
    """
    paid = payees_of(lines)
    return paid.select(
        "row",
        hash=paid.select("currency", "payee").hash_rows(),
        amount=_half(paid["amount"].cast(pl.Float64, strict=False).hash()),  # 5 and 5.00 are one amount
        name=_half(paid["account_name"].hash()).set(paid["account_name"].is_null(), None),
    )


def _half(hashes: pl.Series) -> pl.Series:
    return (hashes & 0xFFFF_FFFF).cast(pl.UInt32)


def doubtful_payees(lines: pl.DataFrame) -> pl.DataFrame:
    """Return a warning for every valid line that is like another one, or pays the same account under another name.

    `lines` may leave out lines that are not `worth_comparing`.
    """
    paid = payees_of(lines).with_columns(value=readable_amount("amount"))
    if not paid.height:
        return no_defects()
    keys = ["currency", "payee"]
    return pl.concat([_look_alikes(paid, [*keys, "value"]), _two_names(paid, keys)])


def _two_names(paid: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    # Names that differ only in case, accents, blanks, punctuation or order count as the same name.
    letters = pl.col("account_name").str.normalize("NFKD").str.replace_all(r"\p{M}", "").str.to_lowercase()
    with_names = paid.drop_nulls("account_name").with_columns(
        name=letters.str.extract_all(r"[\pL\pN]+").list.sort().list.join(" ")
    )
    groups = with_names.group_by(keys).agg(
        names=pl.col("name").n_unique(), rows=pl.col("row").cast(pl.String).head(_ROWS_NAMED).str.join(", ")
    )
    several = with_names.join(groups.filter(pl.col("names") > 1), on=keys, how="inner", maintain_order="left").rechunk()
    message = worded(
        "{value}: the same account has {names} different names (rows {rows}). Check whose it is.",
        value=shown("account_name"),
        names=pl.col("names"),
        rows=pl.col("rows"),
    )
    return defects_of(several, "account_name", "account_name.two_names", message)


def _look_alikes(paid: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    order_id = pl.col("client_orderid")
    other_id = (
        pl.when(pl.int_range(pl.len()).over(keys) == 0)
        .then(order_id.get(1).over(keys))
        .otherwise(order_id.first().over(keys))
    )
    message = worded(
        "{value} has the same account and the same amount as {other} ({count} such rows: {rows}). Check that all are "
        "meant.",
        value=shown("client_orderid"),
        other=shown("other"),
        count=pl.col("count"),
        rows=pl.col("rows"),
    )
    groups = _groups(paid, keys)
    return defects_of(
        groups.with_columns(other=other_id) if groups.height else groups, "client_orderid", "row.look_alike", message
    )


LOOK_ALIKE = "client_orderid.look_alike"
REWRITTEN = "client_orderid.rewritten"


def in_one_spelling(text: pl.Series) -> pl.Series:
    """Return `core.text.spelled_alike` of every value; null stays null.

    Most order ids are ASCII and are converted as a column. Only the others are converted one by one.
    """
    folded = text.str.to_lowercase()
    at = (text.str.len_bytes() != text.str.len_chars()).fill_null(value=False).arg_true()
    if not at.len():
        return folded
    return folded.scatter(at, pl.Series([spelled_alike(value) for value in text.gather(at)], dtype=pl.String))


def ids_spelled_alike(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a defect for every row whose `client_orderid` is that of another row in another spelling.

    `frame` has `row`. Each defect names the first row with another spelling of the id.
    """
    order_ids = frame.select("row", "client_orderid").drop_nulls()
    ids = order_ids.with_columns(folded=in_one_spelling(order_ids["client_orderid"]))
    message = worded(
        "{value} differs only in its spelling from {other} of row {row}. If they are the same payment, delete "
        "one row. If not, give one an id that differs in more than case, width or hyphens.",
        value=shown("client_orderid"),
        other=shown("other"),
        row=pl.col("other_row"),
    )
    return defects_of(_with_another(ids, ["folded"], "client_orderid"), "client_orderid", LOOK_ALIKE, message)


def ids_rewritten(lines: pl.DataFrame) -> pl.DataFrame:
    """Return a defect for every valid line that may repeat another one under an id that a program has rewritten.

    Ids that differ only in spelling are left to `ids_spelled_alike`. `lines` may leave out lines that are not
    `worth_comparing`.
    """
    paid = payees_of(lines).drop_nulls("client_orderid").with_columns(value=readable_amount("amount"))
    payment = ["currency", "payee", "value"]
    several = paid.filter(pl.len().over(payment) > 1) if paid.height else paid
    ids = several["client_orderid"]
    rewritten = several.with_columns(
        folded=in_one_spelling(ids), repaired=pl.Series(map(without_damage, ids), dtype=pl.String)
    )
    message = worded(
        "{value} may be {other} of row {row}, changed by a spreadsheet: both rows pay the same account the same "
        "amount. If they are the same payment, delete one row. If not, give one a clearly different id.",
        value=shown("client_orderid"),
        other=shown("other"),
        row=pl.col("other_row"),
    )
    return defects_of(_with_another(rewritten, [*payment, "repaired"], "folded"), "client_orderid", REWRITTEN, message)


def _with_another(ids: pl.DataFrame, keys: list[str], text: str) -> pl.DataFrame:
    """Return the rows that share all `keys` with a row of another `text`, whose id is `other` in row `other_row`."""
    order_id, row, is_other = pl.col("client_orderid"), pl.col("row"), pl.col(text) != pl.col(text).first()
    groups = ids.group_by(keys).agg(
        text_of_first=pl.col(text).first(),
        first=order_id.first(),
        first_row=row.first(),
        second=order_id.filter(is_other).first(),
        second_row=row.filter(is_other).first(),
    )
    alike = ids.join(groups.drop_nulls("second"), on=keys, how="inner", maintain_order="left").rechunk()
    is_first = pl.col(text) == pl.col("text_of_first")
    return alike.with_columns(
        other=pl.when(is_first).then("second").otherwise("first"),
        other_row=pl.when(is_first).then("second_row").otherwise("first_row"),
    )
