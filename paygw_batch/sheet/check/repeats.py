"""Finds rows that repeat each other, by the same order id in any spelling or by similar payments."""

import polars as pl

from paygw_batch.core.text import normalise_spelling, repair_order_id
from paygw_batch.sheet.amounts import readable_amount
from paygw_batch.sheet.findings import build_message, empty_findings, findings_for_rows, shortened_value
from paygw_batch.sheet.instructions import payee_column

_MAX_ROWS_NAMED = 6


def rows_with_repeated_hash(hashes: pl.DataFrame) -> pl.Series:
    """Return the `row` of each `hash` that occurs more than once.

    Identical values always have the same hash, and different ones rarely do. Sorting 64-bit hashes and comparing
    neighbours is much cheaper than comparing strings.
    """
    sorted_hashes = hashes["hash"].sort()
    next_hashes = sorted_hashes.slice(1)  # a slice, because a copy of ten million hashes takes 80 MB
    repeated = next_hashes.filter(next_hashes == sorted_hashes.head(next_hashes.len())).unique()
    return hashes.filter(pl.col("hash").is_in(repeated.implode()))["row"] if repeated.len() else hashes["row"].clear()


def rows_to_compare(payees: pl.DataFrame) -> pl.Series:
    """Return the `row` of each row that may repeat a payee with the same amount or under another name.

    `payees` has `row`, and hashes of the payee (`hash`), `amount` and `name` (null if missing). Rows that share only
    the payee are excluded, because some sheets pay everyone several times.
    """
    repeated = payees.filter(pl.col("row").is_in(rows_with_repeated_hash(payees).implode()))
    same_amount = rows_with_repeated_hash(repeated.select("row", hash=pl.col("hash") ^ pl.col("amount")))
    # If a payee has several names, at least two neighbouring rows differ.
    with_names = repeated.select("hash", "name").drop_nulls().sort("hash")
    is_different = (pl.col("hash") == pl.col("hash").shift(1)) & (pl.col("name") != pl.col("name").shift(1))
    payees_with_two_names = with_names.filter(is_different)["hash"].unique()
    different_name = repeated.filter(pl.col("hash").is_in(payees_with_two_names.implode()))["row"]
    return pl.concat([same_amount, different_name]).unique()


def _repeated_rows(frame: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """Return the rows with the same `keys` as others, and each group's `count` and first row numbers (`rows`)."""
    row = pl.col("row").cast(pl.String)
    groups = frame.group_by(keys).agg(count=pl.len(), rows=row.head(_MAX_ROWS_NAMED).str.join(", "))
    return frame.join(groups.filter(pl.col("count") > 1), on=keys, how="inner", maintain_order="left").rechunk()


def find_duplicate_ids(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a defect for each row that shares its `client_orderid` with another row."""
    column = "client_orderid"
    more = pl.when(pl.col("count") > _MAX_ROWS_NAMED).then(pl.lit(", ...")).otherwise(pl.lit(""))
    message = build_message(
        "{value} is used in {count} rows ({rows}{more}). Give each row its own id.",
        value=shortened_value(column),
        count=pl.col("count"),
        rows=pl.col("rows"),
        more=more,
    )
    repeated = _repeated_rows(frame.select("row", column).drop_nulls(), [column])
    return findings_for_rows(repeated, column, "client_orderid.duplicate", message)


def payment_lines(lines: pl.DataFrame) -> pl.DataFrame:
    """Return the `payee` of each valid line, and the other columns to compare."""
    valid = lines if lines["valid"].all() else lines.filter("valid")
    return valid.select("row", "client_orderid", "currency", "amount", "account_name", payee_column(valid))


def payee_hashes(lines: pl.DataFrame) -> pl.DataFrame:
    """Return the hashes for `rows_to_compare`. 32 bits suffice to tell a payee's amounts and names apart."""
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
    """Return warnings about similar payments, and about payees with several names."""
    payments = payment_lines(lines).with_columns(value=readable_amount("amount"))
    if not payments.height:
        return empty_findings()
    keys = ["currency", "payee"]
    return pl.concat([_look_alike_warnings(payments, [*keys, "value"]), _two_name_warnings(payments, keys)])


def _two_name_warnings(payments: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    # Names that differ only in case, accents, spaces, punctuation or word order count as the same.
    letters = pl.col("account_name").str.normalize("NFKD").str.replace_all(r"\p{M}", "").str.to_lowercase()
    with_names = payments.drop_nulls("account_name").with_columns(
        name=letters.str.extract_all(r"[\pL\pN]+").list.sort().list.join(" ")
    )
    groups = with_names.group_by(keys).agg(
        names=pl.col("name").n_unique(), rows=pl.col("row").cast(pl.String).head(_MAX_ROWS_NAMED).str.join(", ")
    )
    suspect = with_names.join(groups.filter(pl.col("names") > 1), on=keys, how="inner", maintain_order="left").rechunk()
    message = build_message(
        "{value}: the same account is used with {names} different names (rows {rows}). Check whose account it is.",
        value=shortened_value("account_name"),
        names=pl.col("names"),
        rows=pl.col("rows"),
    )
    return findings_for_rows(suspect, "account_name", "account_name.two_names", message)


def _look_alike_warnings(payments: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    order_id = pl.col("client_orderid")
    first, second = order_id.first().over(keys), order_id.get(1).over(keys)
    other_id = pl.when(pl.int_range(pl.len()).over(keys) == 0).then(second).otherwise(first)
    message = build_message(
        "{value} has the same account and amount as {other} ({count} matching rows: {rows}). Check that you want to "
        "pay all of them.",
        value=shortened_value("client_orderid"),
        other=shortened_value("other"),
        count=pl.col("count"),
        rows=pl.col("rows"),
    )
    repeated = _repeated_rows(payments, keys)
    repeated = repeated.with_columns(other=other_id) if repeated.height else repeated
    return findings_for_rows(repeated, "client_orderid", "row.look_alike", message)


LOOK_ALIKE = "client_orderid.look_alike"
REWRITTEN = "client_orderid.rewritten"


def normalise_ids(text: pl.Series) -> pl.Series:
    """Apply `core.text.normalise_spelling` to each value. For speed, ASCII values are lowercased as a column."""
    folded = text.str.to_lowercase()
    indices = (text.str.len_bytes() != text.str.len_chars()).fill_null(value=False).arg_true()
    if not indices.len():
        return folded
    normalised = pl.Series([normalise_spelling(value) for value in text.gather(indices)], dtype=pl.String)
    return folded.scatter(indices, normalised)


def find_look_alike_ids(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a defect for each row whose `client_orderid` is another row's id spelled differently."""
    order_ids = frame.select("row", "client_orderid").drop_nulls()
    order_ids = order_ids.with_columns(folded=normalise_ids(order_ids["client_orderid"]))
    message = build_message(
        "{value} differs only in spelling from {other} in row {row}. If they are the same payment, delete one row. If "
        "not, give one an id that differs in more than case, width or hyphens.",
        value=shortened_value("client_orderid"),
        other=shortened_value("other"),
        row=pl.col("other_row"),
    )
    pairs = _pair_rows(order_ids, ["folded"], "client_orderid")
    return findings_for_rows(pairs, "client_orderid", LOOK_ALIKE, message)


def find_rewritten_ids(lines: pl.DataFrame) -> pl.DataFrame:
    """Return a defect for each row that may repeat another row, with its order id changed by a spreadsheet."""
    payments = payment_lines(lines).drop_nulls("client_orderid").with_columns(value=readable_amount("amount"))
    keys = ["currency", "payee", "value"]
    repeated = payments.filter(pl.len().over(keys) > 1) if payments.height else payments
    ids = repeated["client_orderid"]
    repaired = pl.Series(map(repair_order_id, ids), dtype=pl.String)
    suspects = repeated.with_columns(folded=normalise_ids(ids), repaired=repaired)
    message = build_message(
        "{value} may be {other} from row {row}, changed by a spreadsheet. Both rows pay the same amount to the same "
        "account. If they are the same payment, delete one row. If not, give one a clearly different id.",
        value=shortened_value("client_orderid"),
        other=shortened_value("other"),
        row=pl.col("other_row"),
    )
    return findings_for_rows(_pair_rows(suspects, [*keys, "repaired"], "folded"), "client_orderid", REWRITTEN, message)


def _pair_rows(rows: pl.DataFrame, keys: list[str], text: str) -> pl.DataFrame:
    """Pair rows that have the same `keys` but differ in the column `text`. Adds the other row's id and number."""
    order_id, row, is_different = pl.col("client_orderid"), pl.col("row"), pl.col(text) != pl.col(text).first()
    groups = rows.group_by(keys).agg(
        text_of_first=pl.col(text).first(),
        first=order_id.first(),
        first_row=row.first(),
        second=order_id.filter(is_different).first(),
        second_row=row.filter(is_different).first(),
    )
    paired = rows.join(groups.drop_nulls("second"), on=keys, how="inner", maintain_order="left").rechunk()
    is_first = pl.col(text) == pl.col("text_of_first")
    return paired.with_columns(
        other=pl.when(is_first).then("second").otherwise("first"),
        other_row=pl.when(is_first).then("second_row").otherwise("first_row"),
    )
