"""Compares a sheet with earlier payments: changed accounts, unusual amounts, people who are new or missing.

Each person is compared with the last similar batch that paid them, even if other batches have been opened since then
(docs/decisions/0206). The results are values, which are turned into sentences when they are shown.
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
UNUSUAL_AMOUNT = "payee.amount"
NEW_PAYEE = "payee.new"
PAYEE_GONE = "payee.gone"
DANGER_RANK: Mapping[str, int] = MappingProxyType(
    {code: rank for rank, code in enumerate((CHANGED_ACCOUNT, UNUSUAL_AMOUNT, NEW_PAYEE, PAYEE_GONE))}
)
"""The rank of each kind of change, most dangerous first (docs/decisions/0206)."""

_MAX_DISTANCE = 2.0
"""The maximum distance (as in `_distances`) of a batch that resembles the sheet."""
_IS_SIMILAR = pl.col("distance") <= _MAX_DISTANCE
_MAY_HAVE_PAID = frozenset({State.PAID, State.ACCEPTED, State.IN_FLIGHT, State.IN_DOUBT})
"""The states of rows that paid their payee, or may have done so."""
_PAGE_COLUMNS = ("row", "valid", "country", "currency", "amount", "account_name", "account_number", "phone")
_EVERY_ROW = pl.lit(value=True)
_NO_NAMESAKES = pl.Series([], dtype=pl.String)
_EMPTY_PAGE = pl.DataFrame(schema=dict.fromkeys(_PAGE_COLUMNS, pl.String) | {"row": pl.UInt32, "valid": pl.Boolean})
_OLD_ACCOUNT_SCHEMA = {"row": pl.Int64, "account": pl.String}
_BATCH_SCHEMA = {"batch": pl.Int64, "overlap": pl.UInt32, "distance": pl.Float64, "is_approved": pl.Boolean}


@dataclass(frozen=True, slots=True)
class Payment:
    """The sum that one earlier batch paid to an account. `amount` is empty if it paid nothing."""

    account: str
    amount: str
    batch: str
    sheet: str
    at: str


NO_PAYMENT = Payment("", "", "", "", "")


@dataclass(frozen=True, slots=True)
class Change:
    """A difference between a payment and earlier payments to the same payee.

    - `amount`: the sum that this sheet pays to `account`. Empty for a payee missing from the sheet (row 0).
    - `before`: the earlier payment for comparison. `first`: the first payment to the account, under any name.
    - `shared_with`: another name under which the account was paid. `stake`: the money at stake.
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
    """How many of a sheet's people were paid by one earlier batch (`found`), and by any (`paid_before`)."""

    batch: BatchRecord
    found: int
    paid_before: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """The differences between a sheet and earlier payments, most dangerous first.

    `people` is the number of people in the sheet. `overlap` describes the batch that paid most of them, or the newest
    batch if none did. Approved batches are preferred. `known_since` maps each row to the date on which its account was
    first paid, and omits rows with new accounts.
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
    sent: Collection[int] = (),
) -> Comparison:
    """Compare a sheet's rows (`Validated.rows`) with the payments of `batches`, listed oldest first.

    Rows in `sent` were sent before, so they cause no changes, but their payees do not count as missing. `against` adds
    the differences from another batch, without removing any. An amount is unusual if it changed by more than `share`.
    Only people paid in the sheet's countries can be missing, and only from `against` or from a batch that paid at least
    half of the sheet's people.
    """
    is_sent = pl.col("row").is_in(list(sent))
    # Unsent rows come first, so that the first row of a unit is one to send, if it has any.
    payments = payment_rows(rows).with_columns(due=pl.when(~is_sent).then("value")).sort(is_sent, maintain_order=True)
    staff_numbers = payments.group_by("person").agg(pl.col("staff").drop_nulls().n_unique())
    namesakes = staff_numbers.filter(pl.col("staff") > 1)["person"]
    units = _group_units(_split_namesakes(payments, namesakes))
    past = _PastPayments.read(journal, batches, units, namesakes)
    finder = _ChangeFinder(units, past, share, minor_units)
    base = _find_base_batch(journal, batches, past)
    changed_accounts = finder.changed_accounts(None)
    # `against` must not hide anything: an unusual amount is listed even if only `against` shows a changed account.
    all_changed = changed_accounts if against is None else finder.changed_accounts(against)
    people = units.select("payee", "person").unique().height
    compared: list[tuple[BatchRecord, Sequence[Change]]] = []
    if base is not None and past.overlap_size(base) * 2 >= people:
        compared.append((base, changed_accounts))
    if against is not None and against not in dict(compared):
        compared.append((against, all_changed))
    in_countries = pl.col("country").is_in(rows["country"].unique().implode())
    changes = [
        *all_changed,
        *finder.unusual_amounts({(change.row, change.currency) for change in changed_accounts}, against),
        *finder.new_payees(),
        *(
            change
            for batch, changed in compared
            for change in finder.missing_payees(_paid_rows(journal, batch, in_countries, namesakes), batch, changed)
        ),
    ]
    unsent = [change for change in changes if change.row not in sent]
    # If nobody was paid before, no batch is named, because opening another batch must not make the plan invalid.
    paid_before = past.matches["unit"].n_unique()
    overlap = None if base is None or not paid_before else Overlap(base, past.overlap_size(base), paid_before)
    return Comparison(_sort_by_danger(unsent, finder.median_sums()), people, overlap, finder.known_since(rows))


def payment_rows(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the valid rows with the columns that comparisons need.

    `payee` is the country with the account, or with the phone if there is no account. `person` is the country with the
    normalised name. `staff` is the staff number, if any.
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
    # A sheet may have hundreds of thousands of names. For ASCII names, this is equivalent to `normalise_name`.
    is_ascii = pl.col("name").str.contains(r"^[ -~]*$")
    ascii_name = pl.col("name").str.to_lowercase().str.replace_all(r" +", " ").str.strip_chars(" ")
    other_names = valid.filter(~is_ascii).select("name").unique()
    other_names = other_names.with_columns(other=pl.col("name").map_elements(normalise_name, pl.String))
    with_names = valid.join(other_names, on="name", how="left", maintain_order="left")
    with_names = with_names.with_columns(plain=pl.when(is_ascii).then(ascii_name).otherwise("other"))
    person = pl.when(pl.col("plain") != "").then(pl.format("{} {}", "country", "plain"))
    return with_names.select(*valid.columns, person=person)


def _split_namesakes(rows: pl.DataFrame, namesakes: pl.Series) -> pl.DataFrame:
    """Distinguish people with the same name by staff number, or by account if they have none."""
    by_number = pl.when(pl.col("person").is_in(namesakes.implode())).then(pl.format("{} {}", "person", "staff"))
    return rows.with_columns(person=by_number.otherwise("person")) if namesakes.len() else rows


def _group_units(rows: pl.DataFrame) -> pl.DataFrame:
    """Sum a sheet's payments by account, name and currency, and number each pair of account and name (`unit`).

    `due` is the sum of the rows to send, `value` that of all rows.
    """
    sums = rows.group_by("payee", "person", "currency", maintain_order=True).agg(
        pl.col("row", "name", "account").first(), pl.col("value", "due").sum()
    )
    pairs = sums.select("payee", "person").unique(maintain_order=True).with_row_index("unit")
    return sums.join(pairs, on=["payee", "person"], how="left", nulls_equal=True, maintain_order="left")


def _payment_pages(journal: JournalReader, batch: BatchRecord, namesakes: pl.Series) -> Iterator[pl.DataFrame]:
    for page in journal.pages(batch.number):
        has_staff = namesakes.len() and STAFF_NUMBER in pl.read_ipc_schema(io.BytesIO(page))
        columns = [*_PAGE_COLUMNS, STAFF_NUMBER] if has_staff else list(_PAGE_COLUMNS)
        yield _split_namesakes(payment_rows(pl.read_ipc(io.BytesIO(page), columns=columns)), namesakes)


def _paid_or_unpaid_rows(journal: JournalReader, batch: BatchRecord) -> tuple[Collection[int], bool]:
    """Return either the paid or the unpaid rows, whichever are fewer, and whether they are the paid ones."""
    counts: dict[State, int] = {}
    for tally in journal.tallies(batch.number):
        counts[tally.state] = counts.get(tally.state, 0) + tally.count
    paid_states = {state for state in counts if state in _MAY_HAVE_PAID}
    unpaid_states = counts.keys() - paid_states
    are_paid = sum(counts[state] for state in paid_states) < sum(counts[state] for state in unpaid_states)
    states = paid_states if are_paid else unpaid_states
    # Ready rows can be queried only separately.
    groups = [group for group in (states & {State.READY}, states - {State.READY}) if group]
    return {row.row for group in groups for row in journal.rows(batch.number, states=group)}, are_paid


def _paid_rows(
    journal: JournalReader, batch: BatchRecord, condition: pl.Expr = _EVERY_ROW, namesakes: pl.Series = _NO_NAMESAKES
) -> pl.DataFrame:
    """Return the `payment_rows` of a batch that match `condition` and were or may have been paid."""
    rows, are_paid = _paid_or_unpaid_rows(journal, batch)
    is_listed = pl.col("row").is_in(list(rows))
    is_wanted = (is_listed if are_paid else ~is_listed) & condition
    pages = [] if are_paid and not rows else _payment_pages(journal, batch, namesakes)
    return pl.concat([payment_rows(_EMPTY_PAGE), *(page.filter(is_wanted) for page in pages)])


def _is_approved(journal: JournalReader, number: int) -> bool:
    return any(entry.kind == "approved" for entry in journal.history(number))


@dataclass(frozen=True, slots=True)
class _PastPayments:
    """The earlier payments to the accounts and names in a sheet.

    - `payments`: sums by `batch, payee, person, currency`, with `name` and `account`.
    - `matches`: each `unit` of the sheet with every `batch` that paid its account or its name (`by_name`).
    - `batches`: each batch's overlap with the sheet, its distance (the factor between their median payments), and
      whether it was approved.
    """

    records: Mapping[int, BatchRecord]
    payments: pl.DataFrame
    matches: pl.DataFrame
    batches: pl.DataFrame

    @staticmethod
    def read(
        journal: JournalReader, records: Sequence[BatchRecord], units: pl.DataFrame, namesakes: pl.Series
    ) -> "_PastPayments":
        """Read the payments to the sheet's people from all batches, page by page."""
        payees, persons = units["payee"].unique().implode(), units["person"].drop_nulls().unique().implode()
        is_in_sheet = pl.col("payee").is_in(payees) | pl.col("person").is_in(persons).fill_null(value=False)
        keys = ("batch", "payee", "person", "currency")
        frames = [
            _paid_rows(journal, record, is_in_sheet, namesakes)
            .with_columns(batch=pl.lit(record.number, pl.Int64))
            .group_by(keys, maintain_order=True)
            .agg(pl.col("value").sum(), pl.col("name", "account").last())
            for record in records
        ]
        empty = payment_rows(_EMPTY_PAGE).with_columns(batch=pl.lit(0, pl.Int64))
        rows = pl.concat([empty.select(*keys, "value", "name", "account"), *frames])
        pairs = units.select("unit", "payee", "person").unique()
        by_name = pairs.join(rows.select("person", "batch").unique(), on="person").select("unit", "batch", by_name=True)
        by_account = pairs.join(rows.select("payee", "batch").unique(), on="payee").select(
            "unit", "batch", by_name=False
        )
        matches = pl.concat([by_name, by_account]).group_by("unit", "batch").agg(pl.col("by_name").any())
        overlaps = matches.group_by("batch").agg(overlap=pl.len().cast(pl.UInt32))
        approved = [number for number in overlaps["batch"] if _is_approved(journal, number)]
        batches = overlaps.join(_distances(units, matches, rows), on="batch", how="left").with_columns(
            pl.col("distance").fill_null(float("inf")), is_approved=pl.col("batch").is_in(approved)
        )
        return _PastPayments(
            {record.number: record for record in records}, rows, matches, batches.match_to_schema(_BATCH_SCHEMA)
        )

    def overlap_size(self, batch: BatchRecord) -> int:
        """Return how many of the sheet's people were paid by a batch."""
        return int(self.batches.filter(batch=batch.number)["overlap"].sum())

    def best_batch(self) -> BatchRecord | None:
        """Return the batch that paid most of the sheet's people, or a similar one that paid at least half as many.

        Approved batches are preferred, because a payment seen only by its maker must not hide that someone is missing.
        """
        if self.batches.is_empty():
            return None
        candidates = self.batches.filter(pl.col("is_approved") == pl.col("is_approved").any())
        large = candidates.filter(_is_large())
        similar = large.filter(_IS_SIMILAR)
        ranked = (
            similar.sort("overlap", "batch", descending=True)
            if similar.height
            else large.sort("overlap", "distance", "batch", descending=[True, False, True])
        )
        return self.records[ranked["batch"][0]]

    def reference_batches(self, candidates: pl.DataFrame, *keys: str) -> pl.DataFrame:
        """Return the most similar (`alike`) and the `latest` of the `candidates` for each of `keys`.

        Approved batches are preferred, and then batches that paid at least half as many of the sheet's people as the
        largest one. `alike` is the newest batch with similar amounts, or otherwise the one with the smallest distance.
        """
        eligible = candidates.join(self.batches, on="batch").filter(
            pl.col("is_approved") == pl.col("is_approved").any().over(keys)
        )
        large = eligible.filter(_is_large(*keys))
        latest = large.group_by(keys).agg(latest=pl.col("batch").max())
        alike = eligible.filter(_IS_SIMILAR).filter(_is_large(*keys)).group_by(keys).agg(alike=pl.col("batch").max())
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


def _distances(units: pl.DataFrame, pairs: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the distance of each batch: the median ratio of payments to people who are also in the sheet."""
    lines = pairs.select("unit", "batch").join(units.select("unit", "payee", "person", "currency", "value"), on="unit")
    sums = rows.select("batch", "payee", "person", "currency", before="value")
    frames: list[pl.DataFrame] = []
    for keys in (("payee", "person"), ("person",), ("payee",)):
        columns = ["batch", *keys, "currency"]
        if frames:  # few rows remain, so summing them is cheap
            sums = rows.join(lines, on=columns, how="semi").group_by(columns).agg(before=pl.col("value").sum())
        frames.append(lines.join(sums, on=columns).select("batch", "value", "before"))
        lines = lines.join(sums, on=columns, how="anti")
    before = pl.col("before").cast(pl.Float64)
    ratio = (pl.col("value").cast(pl.Float64) / before).filter(before > 0).median()
    medians = pl.concat(frames).group_by("batch").agg(ratio=ratio).filter(pl.col("ratio") > 0)
    return medians.select("batch", distance=pl.max_horizontal(pl.col("ratio"), 1 / pl.col("ratio")))


def _find_base_batch(journal: JournalReader, batches: Sequence[BatchRecord], past: _PastPayments) -> BatchRecord | None:
    """Return the batch whose people should also be in the sheet, preferably an approved one."""
    best = past.best_batch()
    if best is not None and _is_approved(journal, best.number):
        return best
    newest_first = [*reversed(batches)]
    approved = (batch for batch in newest_first if _is_approved(journal, batch.number))
    return _find_first_paid_batch(journal, approved) or best or _find_first_paid_batch(journal, newest_first)


def _find_first_paid_batch(journal: JournalReader, batches: Iterable[BatchRecord]) -> BatchRecord | None:
    return next((batch for batch in batches if not _paid_rows(journal, batch).is_empty()), None)


class _ChangeFinder:
    def __init__(
        self, units: pl.DataFrame, past: _PastPayments, share: Decimal, minor_units: Mapping[str, int]
    ) -> None:
        self._units, self._past = units, past
        self._share, self._minor_units = share, minor_units
        self._first_payments = self._find_first_payments()

    def changed_accounts(self, against: BatchRecord | None) -> Sequence[Change]:
        """Return a change for each payee whom a reference batch paid under the same name but to another account.

        The most similar and the latest batch are both compared, so a small extra payment cannot hide a changed account.
        """
        past = self._past
        by_name = past.matches.filter("by_name")
        references = past.reference_batches(by_name.select("unit", "batch"), "unit").unpivot(
            ["alike", "latest"], index="unit", variable_name="kind", value_name="batch"
        )
        if against is not None:
            name_matches = by_name.filter(batch=against.number).select("unit", kind=pl.lit("named"), batch="batch")
            references = pl.concat([references, name_matches])
        pairs = past.payments.select("batch", "payee", "person").unique()
        units = self._units.select("unit", "payee", "person").unique()
        changed_units = (
            references.join(units, on="unit")
            .join(pairs, on=["batch", "payee", "person"], how="anti")
            .sort("unit", "kind")  # in the order alike, latest, named
            .group_by("unit", maintain_order=True)
            .agg(pl.col("batch").first())
        )
        old_accounts = self._old_accounts(changed_units.join(units, on="unit"))
        lines = self._units.join(old_accounts, on="unit", maintain_order="left")
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
                line["due"],
                self._build_payment(line["batch"], line["old_account"], line["currency"], line["before"]),
                other_names.get(line["unit"], ""),
            )
            for line in lines.iter_rows(named=True)
        ]

    def _old_accounts(self, pairs: pl.DataFrame) -> pl.DataFrame:
        """Return each person's old account: one not in the sheet if possible, then the one with the largest sum."""
        rows = self._past.payments.join(pairs, on=["batch", "person"], how="semi", maintain_order="left")
        sums = rows.group_by("batch", "person", "payee").agg(pl.col("value").sum(), pl.col("account").first())
        is_in_sheet = pl.col("old_payee").is_in(self._units["payee"].unique().implode())
        return (
            pairs.drop("payee")
            .join(sums.rename({"payee": "old_payee", "account": "old_account"}), on=["batch", "person"])
            .with_columns(is_in_sheet=is_in_sheet)
            .sort("unit", "is_in_sheet", "value", "old_payee", descending=[False, False, True, False])
            .group_by("unit", maintain_order=True)
            .agg(pl.col("batch", "old_payee", "old_account").first())
        )

    def unusual_amounts(self, excluded: Collection[tuple[int, str]], against: BatchRecord | None) -> Iterator[Change]:
        """Yield a change for each amount that differs too much from a reference batch, except those in `excluded`."""
        past, pair = self._past, ["payee", "person"]
        matched_units = past.matches.select("unit").unique()
        pairs = past.payments.select("batch", *pair, "currency", before="value")
        units = self._units.join(matched_units, on="unit", how="semi", maintain_order="left")
        known_pairs = past.payments.select(pair).unique()
        known_payees = units.join(known_pairs, on=pair, how="semi", maintain_order="left", nulls_equal=True)
        # The account is known, but the name is not. All payments into the account are compared.
        totals = self._units.group_by("payee", "currency").agg(pl.col("due").sum())
        respelled = (
            units.drop("due")
            .join(known_pairs, on=pair, how="anti", nulls_equal=True)
            .join(past.payments.select("payee").unique(), on="payee", how="semi")
            .join(totals, on=["payee", "currency"])
        )
        paid_to_respelled = past.payments.join(respelled, on="payee", how="semi")
        account_sums = paid_to_respelled.group_by("batch", "payee", "currency").agg(before=pl.col("value").sum())
        for group, sums, keys in ((known_payees, pairs, pair), (respelled, account_sums, ["payee"])):
            candidates = group.join(sums, on=[*keys, "currency"], nulls_equal=True)
            batches = past.reference_batches(candidates.select("unit", "currency", "batch"), "unit", "currency")
            references = [batches.select("unit", "currency", batch="alike")]
            if against is not None:
                references.append(candidates.filter(batch=against.number).select("unit", "currency", "batch"))
            reference = pl.concat(references).unique(maintain_order=True)
            lines = group.join(reference, on=["unit", "currency"], how="left", maintain_order="left").join(
                sums, on=["batch", *keys, "currency"], how="left", maintain_order="left", nulls_equal=True
            )
            for line in lines.iter_rows(named=True):
                value, before = line["due"], line["before"]
                is_unusual = before is None or abs(value - before) > self._share * before
                if is_unusual and (line["row"], line["currency"]) not in excluded:
                    payment = self._build_payment(line["batch"], line["account"], line["currency"], before)
                    yield self._build_change(UNUSUAL_AMOUNT, line, value - (before or Decimal(0)), payment)

    def new_payees(self) -> Iterator[Change]:
        """Yield a change for each payee whose account and name are both new."""
        lines = self._units.join(self._past.matches, on="unit", how="anti", maintain_order="left")
        for line in lines.iter_rows(named=True):
            yield self._build_change(NEW_PAYEE, line, line["due"], NO_PAYMENT)

    def missing_payees(self, rows: pl.DataFrame, batch: BatchRecord, changes: Sequence[Change]) -> Iterator[Change]:
        """Yield a change for each payee of `batch` who is missing from the sheet, unless they have a new account."""
        sums = rows.group_by("payee", "person", "currency", maintain_order=True).agg(
            pl.col("name", "account").first(), pl.col("value").sum()
        )
        is_in_sheet = pl.col("payee").is_in(self._units["payee"].unique().implode())
        lines = [(change.row, change.before.account) for change in changes]
        old_accounts = pl.DataFrame(lines, schema=_OLD_ACCOUNT_SCHEMA, orient="row")
        moves = old_accounts.join(self._units.select("row", "person"), on="row").select("person", "account").unique()
        # The old account may now belong to someone else, so the person must match as well.
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
        """Return the date on which each row's account was first paid."""
        dates = {payee: self._past.records[batch].opened_at[:10] for payee, (batch, _) in self._first_payments.items()}
        payees = payment_rows(rows).select("row", "payee").iter_rows()
        return {row: dates[payee] for row, payee in payees if payee in dates}

    def median_sums(self) -> Mapping[str, float]:
        """Return the median sum per payee in each currency, from earlier batches if the sheet has none in it."""
        medians: dict[str, float] = {}
        for frame in (self._past.payments, self._units):
            medians.update(frame.group_by("currency").agg(pl.col("value").cast(pl.Float64).median()).iter_rows())
        return medians

    def _find_first_payments(self) -> Mapping[str, tuple[int, Mapping[str, Decimal]]]:
        """Return the first batch that paid each account in the sheet, with its sums by currency."""
        payments = self._past.payments.filter(pl.col("payee").is_in(self._units["payee"].unique().implode()))
        first = payments.filter(pl.col("batch") == pl.col("batch").min().over("payee"))
        sums = first.group_by("payee", "batch", "currency").agg(pl.col("value").sum())
        first_payments: dict[str, tuple[int, dict[str, Decimal]]] = {}
        for payee, batch, currency, value in sums.iter_rows():
            first_payments.setdefault(payee, (batch, {}))[1][currency] = value
        return first_payments

    def _other_names(self) -> Mapping[int, str]:
        """Return the most recent other name under which each unit's account was paid."""
        units = self._units.select("unit", "payee", "person").unique()
        paid_names = self._past.payments.filter(pl.col("person").is_not_null()).rename(
            {"person": "other", "name": "other_name"}
        )
        pairs = units.join(paid_names, on="payee").filter(pl.col("other") != pl.col("person")).sort("batch")
        return dict(pairs.select("unit", "other_name").iter_rows())

    def _build_payment(self, number: int | None, account: str, currency: str, value: Decimal | None) -> Payment:
        if number is None:
            return Payment(account, "", "", "", "")
        batch = self._past.records[number]
        amount = "" if value is None else amount_text(value, self._minor_units.get(currency))
        return Payment(account, amount, batch.batch, batch.sheet_name, batch.opened_at[:10])

    def _build_change(
        self, code: str, line: Mapping[str, object], stake: Decimal, before: Payment, shared_with: str = ""
    ) -> Change:
        name, account, currency = (str(line[key]) for key in ("name", "account", "currency"))
        batch, sums = self._first_payments.get(str(line["payee"]), (None, {}))
        first = NO_PAYMENT if batch is None else self._build_payment(batch, account, currency, sums.get(currency))
        amount = amount_text(Decimal(str(line["due"])), self._minor_units.get(currency))
        return Change(int(str(line["row"])), code, name, account, currency, amount, stake, before, first, shared_with)


def _sort_by_danger(changes: Sequence[Change], median_sums: Mapping[str, float]) -> Sequence[Change]:
    """Sort changes by kind, then by the money at stake, largest first, and remove duplicates.

    Amounts in different currencies are compared as multiples of the median payment. Increases come before decreases.
    """
    unique: dict[tuple[int, str, str, str, str], Change] = {}
    for change in changes:
        unique.setdefault((change.row, change.code, change.name, change.account, change.currency), change)

    def sort_key(change: Change) -> tuple[int, bool, float, int, str]:
        is_decrease = change.code == UNUSUAL_AMOUNT and change.stake < 0
        multiple = abs(float(change.stake)) / (median_sums.get(change.currency) or 1.0)
        return DANGER_RANK[change.code], is_decrease, -multiple, change.row, change.account

    return sorted(unique.values(), key=sort_key)
