"""Finds rows that repeat each other: the same order id in any spelling, or similar payments."""

import polars as pl

from paygw_batch.core.text import normalise_spelling, repair_order_id
from paygw_batch.sheet.amounts import readable_amount
from paygw_batch.sheet.findings import build_message, defects_for_rows, empty_findings, shortened_value
from paygw_batch.sheet.instructions import payee_column

_MAX_ROWS_NAMED = 6


def rows_with_repeated_hash(hashes: pl.DataFrame) -> pl.Series:
    """Return the `row` of each `hash` that occurs more than once.

    These include all duplicate rows and very few others. Sorting 64-bit hashes and comparing neighbours
    is much cheaper than comparing strings.
    """
    ordered = hashes["hash"].sort()
    next_rows = ordered.slice(1)  # a slice, because a copy of ten million rows takes 80 MB
    repeated = next_rows.filter(next_rows == ordered.head(next_rows.len())).unique()
    return hashes.filter(pl.col("hash").is_in(repeated.implode()))["row"] if repeated.len() else hashes["row"].clear()


def rows_to_compare(payees: pl.DataFrame) -> pl.Series:
    """Return the `row` of rows that repeat a payee with the same amount or under another name.

    The result may have a few other rows. `payees` has `row`, and hashes of the payee (`hash`), `amount` and `name`
    (null without a name). Several payments to a payee are not enough, because in some sheets every payee has several.
    """
    repeated = payees.filter(pl.col("row").is_in(rows_with_repeated_hash(payees).implode()))
    same_amount = rows_with_repeated_hash(repeated.select("row", hash=pl.col("hash") ^ pl.col("amount")))
    # If the names of one payee differ, at least two neighbours differ.
    with_names = repeated.select("hash", "name").drop_nulls().sort("hash")
    is_other = (pl.col("hash") == pl.col("hash").shift(1)) & (pl.col("name") != pl.col("name").shift(1))
    payees_with_names = with_names.filter(is_other)["hash"].unique()
    other_name = repeated.filter(pl.col("hash").is_in(payees_with_names.implode()))["row"]
    return pl.concat([same_amount, other_name]).unique()


def _repeated_groups(frame: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """Return the rows with equal `keys`, with their `count` and the first row numbers (`rows`)."""
    text = pl.col("row").cast(pl.String)
    groups = frame.group_by(keys).agg(count=pl.len(), rows=text.head(_MAX_ROWS_NAMED).str.join(", "))
    return frame.join(groups.filter(pl.col("count") > 1), on=keys, how="inner", maintain_order="left").rechunk()


def duplicate_ids(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a defect for each row whose `client_orderid` occurs in another row."""
    name = "client_orderid"
    ellipsis = pl.when(pl.col("count") > _MAX_ROWS_NAMED).then(pl.lit(", ...")).otherwise(pl.lit(""))
    message = build_message(
        "{value} is used in {count} rows ({rows}{more}). Give each row its own id.",
        value=shortened_value(name),
        count=pl.col("count"),
        rows=pl.col("rows"),
        more=ellipsis,
    )
    repeated = _repeated_groups(frame.select("row", name).drop_nulls(), [name])
    return defects_for_rows(repeated, name, "client_orderid.duplicate", message)


def payment_lines(lines: pl.DataFrame) -> pl.DataFrame:
    """Return the valid lines with `payee` and the columns that comparisons need."""
    valid = lines if lines["valid"].all() else lines.filter("valid")
    return valid.select("row", "client_orderid", "currency", "amount", "account_name", payee_column(valid))


def payee_hashes(lines: pl.DataFrame) -> pl.DataFrame:
    """Return the hashes of valid lines that `rows_to_compare` needs.

    Nothing else of a row is kept. Amounts and names are compared only within one payee, so 32 bits are enough.
    """
    payments = payment_lines(lines)
    return payments.select(
        "row",
        hash=payments.select("currency", "payee").hash_rows(),
        amount=_low_32_bits(payments["amount"].cast(pl.Float64, strict=False).hash()),  # 5 and 5.00 are the same amount
        name=_low_32_bits(payments["account_name"].hash()).set(payments["account_name"].is_null(), None),
    )


def _low_32_bits(hashes: pl.Series) -> pl.Series:
    return (hashes & 0xFFFF_FFFF).cast(pl.UInt32)


def payee_warnings(lines: pl.DataFrame) -> pl.DataFrame:
    """Return a warning for each valid line that resembles another, or pays its account under another name.

    `lines` needs only the `rows_to_compare`.
    """
    payments = payment_lines(lines).with_columns(value=readable_amount("amount"))
    if not payments.height:
        return empty_findings()
    keys = ["currency", "payee"]
    return pl.concat([_look_alike_warnings(payments, [*keys, "value"]), _two_name_warnings(payments, keys)])


def _two_name_warnings(payments: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    # Names that differ only in case, accents, spaces, punctuation or order count as the same name.
    letters = pl.col("account_name").str.normalize("NFKD").str.replace_all(r"\p{M}", "").str.to_lowercase()
    with_names = payments.drop_nulls("account_name").with_columns(
        name=letters.str.extract_all(r"[\pL\pN]+").list.sort().list.join(" ")
    )
    groups = with_names.group_by(keys).agg(
        names=pl.col("name").n_unique(), rows=pl.col("row").cast(pl.String).head(_MAX_ROWS_NAMED).str.join(", ")
    )
    unclear = with_names.join(groups.filter(pl.col("names") > 1), on=keys, how="inner", maintain_order="left").rechunk()
    message = build_message(
        "{value}: the same account has {names} different names (rows {rows}). Check whose it is.",
        value=shortened_value("account_name"),
        names=pl.col("names"),
        rows=pl.col("rows"),
    )
    return defects_for_rows(unclear, "account_name", "account_name.two_names", message)


def _look_alike_warnings(payments: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    order_id = pl.col("client_orderid")
    other_id = (
        pl.when(pl.int_range(pl.len()).over(keys) == 0)
        .then(order_id.get(1).over(keys))
        .otherwise(order_id.first().over(keys))
    )
    message = build_message(
        "{value} has the same account and amount as {other} ({count} such rows: {rows}). Check that all are intended.",
        value=shortened_value("client_orderid"),
        other=shortened_value("other"),
        count=pl.col("count"),
        rows=pl.col("rows"),
    )
    groups = _repeated_groups(payments, keys)
    return defects_for_rows(
        groups.with_columns(other=other_id) if groups.height else groups, "client_orderid", "row.look_alike", message
    )


LOOK_ALIKE = "client_orderid.look_alike"
REWRITTEN = "client_orderid.rewritten"


def normalize_ids(text: pl.Series) -> pl.Series:
    """Apply `core.text.normalise_spelling` to every value except nulls.

    ASCII values, which most order ids are, are converted as a column, and the others one by one.
    """
    folded = text.str.to_lowercase()
    indices = (text.str.len_bytes() != text.str.len_chars()).fill_null(value=False).arg_true()
    if not indices.len():
        return folded
    return folded.scatter(
        indices, pl.Series([normalise_spelling(value) for value in text.gather(indices)], dtype=pl.String)
    )


def look_alike_ids(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a defect for each row whose `client_orderid` is another row's id in a different spelling.

    Each defect names the first row with another spelling.
    """
    order_ids = frame.select("row", "client_orderid").drop_nulls()
    ids = order_ids.with_columns(folded=normalize_ids(order_ids["client_orderid"]))
    message = build_message(
        "{value} differs only in its spelling from {other} of row {row}. If they are the same payment, delete "
        "one row. If not, give one an id that differs in more than case, width or hyphens.",
        value=shortened_value("client_orderid"),
        other=shortened_value("other"),
        row=pl.col("other_row"),
    )
    return defects_for_rows(_pair_rows(ids, ["folded"], "client_orderid"), "client_orderid", LOOK_ALIKE, message)


def rewritten_ids(lines: pl.DataFrame) -> pl.DataFrame:
    """Return a defect for each valid line that may repeat another under a rewritten id.

    Programs rewrite ids, such as 00001 as 1. Ids that differ only in spelling are left to `look_alike_ids`. `lines`
    needs only the `rows_to_compare`.
    """
    payments = payment_lines(lines).drop_nulls("client_orderid").with_columns(value=readable_amount("amount"))
    keys = ["currency", "payee", "value"]
    repeated = payments.filter(pl.len().over(keys) > 1) if payments.height else payments
    ids = repeated["client_orderid"]
    rewritten = repeated.with_columns(
        folded=normalize_ids(ids), repaired=pl.Series(map(repair_order_id, ids), dtype=pl.String)
    )
    message = build_message(
        "{value} may be {other} of row {row}, changed by a spreadsheet: both rows pay the same account the same "
        "amount. If they are the same payment, delete one row. If not, give one a clearly different id.",
        value=shortened_value("client_orderid"),
        other=shortened_value("other"),
        row=pl.col("other_row"),
    )
    return defects_for_rows(_pair_rows(rewritten, [*keys, "repaired"], "folded"), "client_orderid", REWRITTEN, message)


def _pair_rows(ids: pl.DataFrame, keys: list[str], text: str) -> pl.DataFrame:
    """Pair each row with one of equal `keys` but another `text`, whose id is `other` and row `other_row`."""
    order_id, row, is_other = pl.col("client_orderid"), pl.col("row"), pl.col(text) != pl.col(text).first()
    groups = ids.group_by(keys).agg(
        text_of_first=pl.col(text).first(),
        first=order_id.first(),
        first_row=row.first(),
        second=order_id.filter(is_other).first(),
        second_row=row.filter(is_other).first(),
    )
    same_amount = ids.join(groups.drop_nulls("second"), on=keys, how="inner", maintain_order="left").rechunk()
    is_first = pl.col(text) == pl.col("text_of_first")
    return same_amount.with_columns(
        other=pl.when(is_first).then("second").otherwise("first"),
        other_row=pl.when(is_first).then("second_row").otherwise("first_row"),
    )
