"""Compares a sheet with earlier payments: changed accounts, unusual amounts, people who are new or missing.

Each person is compared with the last similar batch that paid that person, however many other batches were opened since
(docs/decisions/0206). Findings are values, which are turned into sentences when they are shown.
"""

import io
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType

import polars as pl

from paygw_batch.approval.approval_keys import normalise_name
from paygw_batch.core.lifecycle import State
from paygw_batch.countries.form_columns import STAFF_NUMBER
from paygw_batch.journal import BatchRecord, JournalReader
from paygw_batch.sheet.amounts import readable_amount
from paygw_batch.show.totals import amount_text

CHANGED_ACCOUNT = "payee.account"
AMOUNT_OFF = "payee.amount"
NEW_PAYEE = "payee.new"
PAYEE_GONE = "payee.gone"
DANGER: Mapping[str, int] = MappingProxyType(
    {code: rank for rank, code in enumerate((CHANGED_ACCOUNT, AMOUNT_OFF, NEW_PAYEE, PAYEE_GONE))}
)
"""The rank of each kind of change, most dangerous first (docs/decisions/0206)."""

_MAX_RATIO = 2.0
"""A batch resembles the sheet if the median ratio of its payments to the sheet's, either way, is at most this."""
_MAY_HAVE_PAID = frozenset({State.PAID, State.ACCEPTED, State.IN_FLIGHT, State.IN_DOUBT})
"""The states in which a row has paid its payee, or may have."""
_PAGE_COLUMNS = ("row", "valid", "country", "currency", "amount", "account_name", "account_number", "phone")
_EVERY_ROW = pl.lit(value=True)
_NO_HOMONYMS = pl.Series([], dtype=pl.String)
_EMPTY_PAGE = pl.DataFrame(schema=dict.fromkeys(_PAGE_COLUMNS, pl.String) | {"row": pl.UInt32, "valid": pl.Boolean})
_OLD_ACCOUNTS = {"row": pl.Int64, "account": pl.String}
_NO_BATCHES = pl.DataFrame(
    schema={"batch": pl.Int64, "overlap": pl.UInt32, "distance": pl.Float64, "is_approved": pl.Boolean}
)


@dataclass(frozen=True, slots=True)
class Payment:
    """An earlier payment: the sum that one batch paid to an account. `amount` is empty if the batch paid none."""

    account: str
    amount: str
    batch: str
    sheet: str
    at: str


NO_PAYMENT = Payment("", "", "", "", "")


@dataclass(frozen=True, slots=True)
class Change:
    """A difference between a payee's payment and earlier payments.

    - `amount`: the sum that this sheet pays to `account`, or empty for a payee only in an earlier batch (row 0).
    - `before`: the payment that this one is compared with. `first`: the first payment ever to the account, under any
      name.
    - `shared_with`: another name paid into the account. `stake`: the money at stake.
    """

    row: int
    code: str
    name: str
    account: str
    currency: str
    amount: str
    stake: Decimal
    before: Payment = NO_PAYMENT
    first: Payment = NO_PAYMENT
    shared_with: str = ""


@dataclass(frozen=True, slots=True)
class Overlap:
    """The number of a sheet's people paid by one earlier batch (`found`) and by any batch (`paid_before`)."""

    batch: BatchRecord
    found: int
    paid_before: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """The differences of a sheet from earlier payments, most dangerous first.

    `people` is the number of people in the sheet. `overlap` names the batch that shares most of them, or the newest
    batch if none shares any. If any batch was approved by others, it is an approved one. `known_since` has the date on
    which each row's account was first paid. A row without a date has a new account.
    """

    changes: Sequence[Change]
    people: int
    overlap: Overlap | None
    known_since: Mapping[int, str]


def compare_with_past(
    rows: pl.DataFrame,
    journal: JournalReader,
    batches: Sequence[BatchRecord],
    *,
    against: BatchRecord | None = None,
    share: Decimal,
    minor_units: Mapping[str, int],
) -> Comparison:
    """Return the differences of a sheet's rows (`Validated.rows`) from the payments of `batches`, oldest first.

    `against` adds the differences from another batch, without removing any. People count as missing only if they were
    paid in the sheet's countries, by `against` or by a batch with half of the sheet's people.
    """
    payments = payment_rows(rows)
    homonyms = _homonyms(payments)
    units = _group_units(_split_homonyms(payments, homonyms))
    past = _PastPayments.read(journal, batches, units, homonyms)
    sheet = _CurrentSheet(units, past, share, minor_units)
    base = _find_base_batch(journal, batches, past)
    changed_accounts = sheet.changed_accounts(None)
    # An extra batch must hide nothing, so an unusual amount is listed even if only that batch shows a changed account.
    all_changed = changed_accounts if against is None else sheet.changed_accounts(against)
    people = units.select("payee", "person").unique().height
    compared: list[tuple[BatchRecord, Sequence[Change]]] = []
    if base is not None and past.overlap_size(base) * 2 >= people:
        compared.append((base, changed_accounts))
    if against is not None and against not in dict(compared):
        compared.append((against, all_changed))
    in_countries = pl.col("country").is_in(rows["country"].unique().implode())
    changes = [
        *all_changed,
        *sheet.unusual_amounts({(change.row, change.currency) for change in changed_accounts}, against),
        *sheet.new_payees(),
        *(
            change
            for batch, changed_here in compared
            for change in sheet.missing_payees(_paid_rows(journal, batch, in_countries, homonyms), batch, changed_here)
        ),
    ]
    # If nobody was paid before, the newest batch is left out: paying another sheet must not make a plan invalid.
    paid_before = past.touched["unit"].n_unique()
    overlap = None if base is None or not paid_before else Overlap(base, past.overlap_size(base), paid_before)
    return Comparison(_sort_by_danger(changes, sheet.median_sums()), people, overlap, sheet.known_since(rows))


def payment_rows(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the valid rows as `row, name, country, currency, account, value, payee, person, staff`.

    A payee is an account in a country, or a phone if there is no account. A person is a normalised name in a country.
    `staff` is the staff number, if the sheet has one.
    """
    account = pl.coalesce("account_number", "phone")
    valid = rows.filter("valid").select(
        pl.col("row").cast(pl.Int64),
        *("country", "currency"),
        name=pl.col("account_name").fill_null(""),
        account=account,
        value=readable_amount("amount"),
        payee=pl.format("{} {}", "country", account),
        staff=pl.col(STAFF_NUMBER) if STAFF_NUMBER in rows.columns else pl.lit(None, pl.String),
    )
    # A sheet may have hundreds of thousands of names, most of them ASCII. For these, this is a faster `normalise_name`.
    is_plain = pl.col("name").str.contains(r"^[ -~]*$")
    ascii_name = pl.col("name").str.to_lowercase().str.replace_all(r" +", " ").str.strip_chars(" ")
    other_names = valid.filter(~is_plain).select("name").unique()
    other_names = other_names.with_columns(other=pl.col("name").map_elements(normalise_name, pl.String))
    renamed = valid.join(other_names, on="name", how="left", maintain_order="left")
    renamed = renamed.with_columns(plain=pl.when(is_plain).then(ascii_name).otherwise("other"))
    person = pl.when(pl.col("plain") != "").then(pl.format("{} {}", "country", "plain"))
    return renamed.select(*valid.columns, person=person)


def _homonyms(rows: pl.DataFrame) -> pl.Series:
    """Return the people whose name several staff numbers of a sheet share."""
    return rows.group_by("person").agg(pl.col("staff").drop_nulls().n_unique()).filter(pl.col("staff") > 1)["person"]


def _split_homonyms(rows: pl.DataFrame, homonyms: pl.Series) -> pl.DataFrame:
    """Return the rows with homonyms as different people, by staff number or otherwise by account."""
    by_number = pl.when(pl.col("person").is_in(homonyms.implode())).then(pl.format("{} {}", "person", "staff"))
    return rows.with_columns(person=by_number.otherwise("person")) if homonyms.len() else rows


def _group_units(rows: pl.DataFrame) -> pl.DataFrame:
    """Return a sheet's sums by account, name and currency. `unit` numbers the pairs of account and name."""
    sums = rows.group_by("payee", "person", "currency", maintain_order=True).agg(
        pl.col("row", "name", "account").first(), pl.col("value").sum()
    )
    pairs = sums.select("payee", "person").unique(maintain_order=True).with_row_index("unit")
    return sums.join(pairs, on=["payee", "person"], how="left", nulls_equal=True, maintain_order="left")


def _read_pages(journal: JournalReader, batch: BatchRecord, homonyms: pl.Series) -> Iterator[pl.DataFrame]:
    for page in journal.pages(batch.number):
        has_staff = homonyms.len() and STAFF_NUMBER in pl.read_ipc_schema(io.BytesIO(page))
        columns = [*_PAGE_COLUMNS, STAFF_NUMBER] if has_staff else list(_PAGE_COLUMNS)
        yield _split_homonyms(payment_rows(pl.read_ipc(io.BytesIO(page), columns=columns)), homonyms)


def _listed_rows(journal: JournalReader, batch: BatchRecord) -> tuple[Collection[int], bool]:
    """Return some rows of a batch, and whether these are the rows that paid or all others are.

    Only the smaller group is read, because most batches paid every row.
    """
    counts: dict[State, int] = {}
    for tally in journal.tallies(batch.number):
        counts[tally.state] = counts.get(tally.state, 0) + tally.count
    money_left = {state for state in counts if state in _MAY_HAVE_PAID}
    other_states = counts.keys() - money_left
    is_left = sum(counts[state] for state in money_left) < sum(counts[state] for state in other_states)
    selected = money_left if is_left else other_states
    # The journal accepts ready rows only in a separate query.
    groups = [group for group in (selected & {State.READY}, selected - {State.READY}) if group]
    return {row.row for group in groups for row in journal.rows(batch.number, states=group)}, is_left


def _paid_rows(
    journal: JournalReader, batch: BatchRecord, condition: pl.Expr = _EVERY_ROW, homonyms: pl.Series = _NO_HOMONYMS
) -> pl.DataFrame:
    """Return the `payment_rows` of a batch that match `condition` and were paid or may have been."""
    rows, are_paid = _listed_rows(journal, batch)
    is_listed = pl.col("row").is_in(list(rows))
    keep = (is_listed if are_paid else ~is_listed) & condition
    pages = [] if are_paid and not rows else _read_pages(journal, batch, homonyms)
    return pl.concat([payment_rows(_EMPTY_PAGE), *(page.filter(keep) for page in pages)])


def _is_approved(journal: JournalReader, number: int) -> bool:
    return any(entry.kind == "approved" for entry in journal.history(number))


@dataclass(frozen=True, slots=True)
class _PastPayments:
    """The earlier payments to the accounts and names of a sheet.

    - `paid`: sums by `batch, payee, person, currency`, with `name` and `account`.
    - `touched`: each `unit` of the sheet with every `batch` that paid its account or its name (`by_name`).
    - `batches`: each batch's overlap with the sheet, its distance (the factor by which the median person gets more or
      less), and whether others approved it.
    """

    records: Mapping[int, BatchRecord]
    payments: pl.DataFrame
    touched: pl.DataFrame
    batches: pl.DataFrame

    @staticmethod
    def read(
        journal: JournalReader, records: Sequence[BatchRecord], units: pl.DataFrame, homonyms: pl.Series
    ) -> "_PastPayments":
        """Read all batches page by page and keep the payments to the people in the sheet."""
        payees, persons = units["payee"].unique().implode(), units["person"].drop_nulls().unique().implode()
        is_concerned = pl.col("payee").is_in(payees) | pl.col("person").is_in(persons).fill_null(value=False)
        keys = ("batch", "payee", "person", "currency")
        frames = [
            _paid_rows(journal, record, is_concerned, homonyms)
            .with_columns(batch=pl.lit(record.number, pl.Int64))
            .group_by(keys, maintain_order=True)
            .agg(pl.col("value").sum(), pl.col("name", "account").last())
            for record in records
        ]
        empty = payment_rows(_EMPTY_PAGE).with_columns(batch=pl.lit(0, pl.Int64))
        rows = pl.concat([empty.select(*keys, "value", "name", "account"), *frames])
        pairs = units.select("unit", "payee", "person").unique()
        by_name = pairs.join(rows.select("person", "batch").unique(), on="person")
        by_account = pairs.join(rows.select("payee", "batch").unique(), on="payee")
        hits = [by_name.with_columns(by_name=pl.lit(value=True)), by_account.with_columns(by_name=pl.lit(value=False))]
        touched = (
            pl.concat([frame.select("unit", "batch", "by_name") for frame in hits])
            .group_by("unit", "batch")
            .agg(pl.col("by_name").any())
        )
        overlaps = touched.group_by("batch").agg(overlap=pl.len().cast(pl.UInt32))
        approved = {number: _is_approved(journal, number) for number in overlaps["batch"]}
        batches = overlaps.join(_distances(units, touched, rows), on="batch", how="left").with_columns(
            pl.col("distance").fill_null(float("inf")),
            is_approved=pl.col("batch").replace_strict(approved, return_dtype=pl.Boolean)
            if approved
            else pl.lit(value=False),
        )
        return _PastPayments(
            {record.number: record for record in records}, rows, touched, batches.match_to_schema(_NO_BATCHES.schema)
        )

    def overlap_size(self, batch: BatchRecord) -> int:
        """Return the number of people in the sheet that this batch paid."""
        return int(self.batches.filter(batch=batch.number)["overlap"].sum())

    def base_batch(self) -> BatchRecord | None:
        """Return the batch with most of the sheet's people, preferring a similar batch with at least half as many.

        Approved batches come first: a payment that only its maker saw must not hide that someone is missing.
        """
        if self.batches.is_empty():
            return None
        candidates = self.batches.filter(pl.col("is_approved") == pl.col("is_approved").any())
        large = candidates.filter(_is_large())
        similar = large.filter(_is_similar())
        ranked = (
            similar.sort("overlap", "batch", descending=True)
            if similar.height
            else large.sort("overlap", "distance", "batch", descending=[True, False, True])
        )
        return self.records[ranked["batch"][0]]

    def reference_batches(self, candidates: pl.DataFrame, *keys: str) -> pl.DataFrame:
        """Return the batch to compare with (`alike`) and the `latest` batch for each of `keys` among `candidates`.

        Approved batches are preferred to those that only their maker saw, and then batches with at least half as many
        of the sheet's people as the largest one, because a small batch is no measure. `alike` is the newest batch with
        amounts like the sheet's, or otherwise the most similar batch.
        """
        eligible = candidates.join(self.batches, on="batch").filter(
            pl.col("is_approved") == pl.col("is_approved").any().over(keys)
        )
        large = eligible.filter(_is_large(*keys))
        latest = large.group_by(keys).agg(latest=pl.col("batch").max())
        alike = eligible.filter(_is_similar()).filter(_is_large(*keys)).group_by(keys).agg(alike=pl.col("batch").max())
        nearest = (
            large.sort("distance", "batch", descending=[False, True])
            .group_by(keys, maintain_order=True)
            .agg(nearest=pl.col("batch").first())
        )
        return (
            latest.join(alike, on=keys, how="left")
            .join(nearest, on=keys)
            .select(*keys, "latest", alike=pl.coalesce("alike", "nearest"))
        )


def _is_large(*keys: str) -> pl.Expr:
    largest = pl.col("overlap").max()
    return pl.col("overlap") * 2 >= (largest.over(keys) if keys else largest)


def _is_similar() -> pl.Expr:
    return pl.col("distance") <= _MAX_RATIO


def _distances(units: pl.DataFrame, pairs: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the median ratio of each batch's payments to the sheet's, for people in both."""
    lines = pairs.select("unit", "batch").join(units.select("unit", "payee", "person", "currency", "value"), on="unit")
    sums = rows.select("batch", "payee", "person", "currency", before="value")
    frames: list[pl.DataFrame] = []
    for keys in (("payee", "person"), ("person",), ("payee",)):
        columns = ["batch", *keys, "currency"]
        if frames:  # few rows remain by now, so their sums are cheap
            sums = rows.join(lines, on=columns, how="semi").group_by(columns).agg(before=pl.col("value").sum())
        frames.append(lines.join(sums, on=columns).select("batch", "value", "before"))
        lines = lines.join(sums, on=columns, how="anti")
    before = pl.col("before").cast(pl.Float64)
    ratio = (pl.col("value").cast(pl.Float64) / before).filter(before > 0).median()
    middle = pl.concat(frames).group_by("batch").agg(ratio=ratio).filter(pl.col("ratio") > 0)
    return middle.select("batch", distance=pl.max_horizontal(pl.col("ratio"), 1 / pl.col("ratio")))


def _find_base_batch(journal: JournalReader, batches: Sequence[BatchRecord], past: _PastPayments) -> BatchRecord | None:
    """Return the batch whose people the sheet should have: an approved one, if there is any.

    A payment that only its maker saw must not hide that someone is missing, even if no other batch shares people.
    """
    best = past.base_batch()
    if best is not None and _is_approved(journal, best.number):
        return best
    newest = [*reversed(batches)]
    approved = (batch for batch in newest if _is_approved(journal, batch.number))
    return _find_first_paid_batch(journal, approved) or best or _find_first_paid_batch(journal, newest)


def _find_first_paid_batch(journal: JournalReader, batches: Iterable[BatchRecord]) -> BatchRecord | None:
    return next((batch for batch in batches if not _paid_rows(journal, batch).is_empty()), None)


class _CurrentSheet:
    """Compares a sheet with the payments of earlier batches to the same people."""

    def __init__(
        self, units: pl.DataFrame, past: _PastPayments, share: Decimal, minor_units: Mapping[str, int]
    ) -> None:
        self._units, self._past = units, past
        self._share, self._minor_units = share, minor_units
        self._firsts = self._first_payments()

    def changed_accounts(self, against: BatchRecord | None) -> Sequence[Change]:
        """Return the people whom a compared batch paid under the same name but to another account.

        Both the most similar and the latest large batch count, so that a side payment makes no account known.
        """
        past = self._past
        by_name = past.touched.filter("by_name")
        references = past.reference_batches(by_name.select("unit", "batch"), "unit").unpivot(
            ["alike", "latest"], index="unit", variable_name="kind", value_name="batch"
        )
        if against is not None:
            name_matches = by_name.filter(batch=against.number).select("unit", kind=pl.lit("named"), batch="batch")
            references = pl.concat([references, name_matches])
        pairs = past.payments.select("batch", "payee", "person").unique()
        units = self._units.select("unit", "payee", "person").unique()
        unknown = (
            references.join(units, on="unit")
            .join(pairs, on=["batch", "payee", "person"], how="anti")
            .sort("unit", "kind")  # the order is alike, latest, named
            .group_by("unit", maintain_order=True)
            .agg(pl.col("batch").first())
        )
        old = self._old_accounts(unknown.join(units, on="unit"))
        lines = self._units.join(old, on="unit", maintain_order="left")
        lines = lines.join(
            past.payments.select("batch", "person", "currency", before="value", old_payee="payee"),
            on=["batch", "person", "currency", "old_payee"],
            how="left",
            maintain_order="left",
        )
        other_names = self._other_names()
        return [
            self._build_change(
                CHANGED_ACCOUNT,
                line,
                line["value"],
                self._build_payment(line["batch"], line["old_account"], line["currency"], line["before"]),
                other_names.get(line["unit"], ""),
            )
            for line in lines.iter_rows(named=True)
        ]

    def _old_accounts(self, pairs: pl.DataFrame) -> pl.DataFrame:
        """Return the accounts to which the batch paid each name, first those that the sheet lacks, then by sum."""
        rows = self._past.payments.join(pairs, on=["batch", "person"], how="semi", maintain_order="left")
        sums = rows.group_by("batch", "person", "payee").agg(pl.col("value").sum(), pl.col("account").first())
        here = pl.col("old_payee").is_in(self._units["payee"].unique().implode())
        return (
            pairs.drop("payee")
            .join(sums.rename({"payee": "old_payee", "account": "old_account"}), on=["batch", "person"])
            .with_columns(is_here=here)
            .sort("unit", "is_here", "value", "old_payee", descending=[False, False, True, False])
            .group_by("unit", maintain_order=True)
            .agg(pl.col("batch", "old_payee", "old_account").first())
        )

    def unusual_amounts(self, changes: Collection[tuple[int, str]], against: BatchRecord | None) -> Iterator[Change]:
        """Yield the payees whose amount differs by more than the allowed share from the compared batch."""
        past, pair = self._past, ["payee", "person"]
        touched = past.touched.select("unit").unique()
        pairs = past.payments.select("batch", *pair, "currency", before="value")
        units = self._units.join(touched, on="unit", how="semi", maintain_order="left")
        known_pairs = past.payments.select(pair).unique()
        known_payees = units.join(known_pairs, on=pair, how="semi", maintain_order="left", nulls_equal=True)
        # The account is known, but the name is spelled differently. All payments into the account are compared.
        total = self._units.group_by("payee", "currency").agg(total=pl.col("value").sum())
        respelled = (
            units.join(known_pairs, on=pair, how="anti", nulls_equal=True)
            .join(past.payments.select("payee").unique(), on="payee", how="semi")
            .join(total, on=["payee", "currency"])
            .with_columns(value=pl.col("total"))
            .drop("total")
        )
        paid_to_respelled = past.payments.join(respelled, on="payee", how="semi")
        account_sums = paid_to_respelled.group_by("batch", "payee", "currency").agg(before=pl.col("value").sum())
        for part, sums, keys in ((known_payees, pairs, pair), (respelled, account_sums, ["payee"])):
            candidates = part.join(sums, on=[*keys, "currency"], nulls_equal=True)
            batches = past.reference_batches(candidates.select("unit", "currency", "batch"), "unit", "currency")
            references = [batches.select("unit", "currency", batch="alike")]
            if against is not None:
                references.append(candidates.filter(batch=against.number).select("unit", "currency", "batch"))
            reference = pl.concat(references).unique(maintain_order=True)
            lines = part.join(reference, on=["unit", "currency"], how="left", maintain_order="left").join(
                sums, on=["batch", *keys, "currency"], how="left", maintain_order="left", nulls_equal=True
            )
            for line in lines.iter_rows(named=True):
                value, before = line["value"], line["before"]
                is_off = before is None or abs(value - before) > self._share * before
                if is_off and (line["row"], line["currency"]) not in changes:
                    payment = self._build_payment(line["batch"], line["account"], line["currency"], before)
                    yield self._build_change(AMOUNT_OFF, line, value - (before or Decimal(0)), payment)

    def new_payees(self) -> Iterator[Change]:
        """Yield the payees whose account and name no earlier batch paid."""
        lines = self._units.join(self._past.touched, on="unit", how="anti", maintain_order="left")
        for line in lines.iter_rows(named=True):
            yield self._build_change(NEW_PAYEE, line, line["value"], NO_PAYMENT)

    def missing_payees(self, rows: pl.DataFrame, batch: BatchRecord, changes: Sequence[Change]) -> Iterator[Change]:
        """Yield the payees that a batch paid and this sheet does not. A payee with a new account is not missing."""
        sums = rows.group_by("payee", "person", "currency", maintain_order=True).agg(
            pl.col("name", "account").first(), pl.col("value").sum()
        )
        is_in_sheet = pl.col("payee").is_in(self._units["payee"].unique().implode())
        lines = [(move.row, move.before.account) for move in changes]
        old_accounts = pl.DataFrame(lines, schema=_OLD_ACCOUNTS, orient="row")
        moves = old_accounts.join(self._units.select("row", "person"), on="row").select("person", "account").unique()
        # If somebody else has the account now, the person who had it before has not moved to another one.
        people_with_new_account = sums.join(moves, on=["person", "account"], how="semi")
        # A person paid into a third account by this batch can be matched only by name.
        people_with_third_account = moves.join(people_with_new_account, on="person", how="anti")
        missing = (
            sums.filter(~is_in_sheet)
            .join(people_with_new_account, on=["person", "account"], how="anti", maintain_order="left")
            .join(people_with_third_account, on="person", how="anti", maintain_order="left")
        )
        for line in missing.iter_rows(named=True):
            payment = self._build_payment(batch.number, line["account"], line["currency"], line["value"])
            values = (line["name"], line["account"], line["currency"])
            yield Change(0, PAYEE_GONE, *values, "", line["value"], payment)

    def known_since(self, rows: pl.DataFrame) -> Mapping[int, str]:
        """Return the date on which the account of each row was first paid."""
        first = {payee: self._past.records[batch].opened_at[:10] for payee, (batch, _) in self._firsts.items()}
        payees = payment_rows(rows).select("row", "payee").iter_rows()
        return {row: first[payee] for row, payee in payees if payee in first}

    def median_sums(self) -> Mapping[str, float]:
        """Return a payee's median sum in each currency, over earlier batches and this sheet."""
        medians: dict[str, float] = {}
        for frame in (self._past.payments, self._units):
            medians.update(frame.group_by("currency").agg(pl.col("value").cast(pl.Float64).median()).iter_rows())
        return medians

    def _first_payments(self) -> Mapping[str, tuple[int, Mapping[str, Decimal]]]:
        """Return the first batch that paid each account in the sheet, with the sums by currency."""
        payments = self._past.payments.filter(pl.col("payee").is_in(self._units["payee"].unique().implode()))
        first = payments.filter(pl.col("batch") == pl.col("batch").min().over("payee"))
        sums = first.group_by("payee", "batch", "currency").agg(pl.col("value").sum())
        firsts: dict[str, tuple[int, dict[str, Decimal]]] = {}
        for payee, batch, currency, value in sums.iter_rows():
            firsts.setdefault(payee, (batch, {}))[1][currency] = value
        return firsts

    def _other_names(self) -> Mapping[int, str]:
        """Return the latest other name under which each unit's account was paid."""
        units = self._units.select("unit", "payee", "person").unique()
        known = self._past.payments.filter(pl.col("person").is_not_null()).rename(
            {"person": "other", "name": "other_name"}
        )
        pairs = units.join(known, on="payee").filter(pl.col("other") != pl.col("person")).sort("batch")
        return dict(pairs.select("unit", "other_name").iter_rows())

    def _build_payment(self, number: int | None, account: str, currency: str, value: Decimal | None) -> Payment:
        if number is None:
            return Payment(account, "", "", "", "")
        batch = self._past.records[number]
        amount = "" if value is None else amount_text(value, self._minor_units.get(currency))
        return Payment(account, amount, batch.batch, batch.sheet_name, batch.opened_at[:10])

    def _build_change(
        self, code: str, line: Mapping[str, object], stake: Decimal, previous: Payment, shared_with: str = ""
    ) -> Change:
        row, name, account, currency = (
            int(str(line["row"])),
            *(str(line[key]) for key in ("name", "account", "currency")),
        )
        batch, sums = self._firsts.get(str(line["payee"]), (None, {}))
        first = NO_PAYMENT if batch is None else self._build_payment(batch, account, currency, sums.get(currency))
        amount = amount_text(Decimal(str(line["value"])), self._minor_units.get(currency))
        return Change(row, code, name, account, currency, amount, stake, previous, first, shared_with)


def _sort_by_danger(changes: Sequence[Change], median_sums: Mapping[str, float]) -> Sequence[Change]:
    """Sort changes by kind and, within a kind, by the money at stake, largest first.

    Money in several currencies is measured in median payments of each currency. Increases come before decreases. If a
    second batch shows the same change, only that from the first batch is kept.
    """
    unique: dict[tuple[int, str, str, str, str], Change] = {}
    for change in changes:
        unique.setdefault((change.row, change.code, change.name, change.account, change.currency), change)

    def sort_key(change: Change) -> tuple[int, bool, float, int, str]:
        is_decrease = change.code == AMOUNT_OFF and change.stake < 0
        payments = abs(float(change.stake)) / (median_sums.get(change.currency) or 1.0)
        return DANGER[change.code], is_decrease, -payments, change.row, change.account

    return sorted(unique.values(), key=sort_key)
