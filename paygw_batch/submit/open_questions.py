"""Finds questions about a sheet that only a person can answer: whether a repeat is intended, and who is new.

A sheet without order ids names its payment run by a reference, and the run knows each payee by account or staff number.
A corrected sheet may have a new person or a known person's new account, and only its maker knows which.
"""

import hashlib
import io
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain, groupby

import polars as pl

from paygw_batch.core.batch import is_derived_from_account
from paygw_batch.core.choices import Choices
from paygw_batch.core.lifecycle import State
from paygw_batch.core.shown_states import state_label
from paygw_batch.core.text import normalise_spelling
from paygw_batch.errors import OpenSheetQuestion
from paygw_batch.journal import BatchRecord, JournalReader, RepeatedBatch
from paygw_batch.language import say, say_count
from paygw_batch.sheet.findings import build_findings
from paygw_batch.sheet.model import Validated

REPEATS_A_BATCH = "sheet.repeats_a_batch"
PAYEE_TWICE = "payee.twice"
USED_REFERENCE = "reference.used"
NEW_PAYEE = "reference.new_payee"
MISSING_PAYEE = "reference.missing_payee"
QUESTION_CODES = frozenset({REPEATS_A_BATCH, PAYEE_TWICE, USED_REFERENCE, MISSING_PAYEE})
"""The codes of the questions about a whole sheet."""
WHOLE_SHEET = 0
"""The row number of a finding about the whole sheet."""
_MAX_COMPARED = 200
"""The maximum number of missing people whose names are compared for similarity. Above it, only equal names match."""
_LINE_SCHEMA = {"row": pl.UInt32, "valid": pl.Boolean} | dict.fromkeys(
    ("client_orderid", "country", "currency", "amount", "account_name", "account_number", "phone"), pl.String
)


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    """A question about a sheet that only a person can answer. Until then, nothing of the sheet is paid.

    - `about`: the subject of the question. An answer applies to exactly this subject.
    - `question`: the text to ask, or empty if nothing of the sheet would be paid anyway.
    - `names`: new payees, whom an answer in advance must name. For other questions it allows repeats.
    - `people`: a row, a value, a code and a sentence for each person concerned.
    """

    code: str
    subject: str
    message: str
    hint: str
    option: str
    question: str = ""
    names: tuple[str, ...] = ()
    people: Sequence[tuple[int, str, str, str]] = ()

    @property
    def key(self) -> str:
        """The key of the question in answers: its code and its subject."""
        return f"{self.code} {self.subject}"

    def is_answered(self, choices: Choices) -> bool:
        """Return whether a person has answered the question, by its key or in advance."""
        if self.key in choices.answered:
            return True
        if not self.question or not self.names:
            return bool(self.question) and choices.repeats_meant
        # If two new people have the same name, the answer must have that name twice.
        return Counter(map(normalise_spelling, self.names)) <= Counter(map(normalise_spelling, choices.new_payees))

    def as_warnings(self) -> pl.DataFrame:
        """Return the question as warnings (`DEFECT_SCHEMA`): one about the sheet, and one for each person concerned."""
        people = [(row, "client_orderid", value, code, sentence) for row, value, code, sentence in self.people]
        return build_findings([(WHOLE_SHEET, "client_orderid", self.subject, self.code, self.message), *people])

    def refusal(self) -> OpenSheetQuestion:
        """Return the error that refuses the sheet if a person said no or nobody could be asked."""
        sentences = [self.message, *(sentence for _, _, _, sentence in self.people[:_MAX_NAMED])]
        return OpenSheetQuestion(self.code, " ".join(sentences), hint=self.hint, option=self.option)


_MAX_NAMED = 20
"""The maximum number of people that a refusal names."""


def repeat_question(batches: Iterable[RepeatedBatch], row_count: int) -> OpenQuestion | None:
    """Return the question about the batch repeated by over half of a sheet's rows, or None."""
    largest = max(batches, key=lambda batch: batch.rows, default=None)
    if largest is None or largest.rows * 2 <= row_count:
        return None
    sheet = {"sheet_name": largest.sheet_name, "opened_at": largest.opened_at[:10]}
    return OpenQuestion(
        REPEATS_A_BATCH,
        largest.batch,
        say_count(
            row_count,
            "{rows:,} of {count:,} row has the same account and amount as rows of {sheet_name} ({opened_at}), under "
            "other order ids.",
            "{rows:,} of {count:,} rows have the same account and amount as rows of {sheet_name} ({opened_at}), under "
            "other order ids.",
            rows=largest.rows,
            **sheet,
        ),
        hint=say(
            "Nothing was sent. If every row is meant to be paid again, run the command again with --repeats-meant."
        ),
        option="--repeats-meant",
        question=say("Is this sheet meant to repeat {sheet_name} of {opened_at}?", **sheet),
    )


def payment_lines(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the payments of the valid rows (as in `Validated.rows`).

    Columns: `row` (UInt32), then as String `order_id`, `country`, `currency`, `amount`, `name`, `account` (or phone),
    and `stem`: a derived order id without its counter, which all payments to one payee share.
    """
    return rows.filter("valid").select(
        pl.col("row").cast(pl.UInt32),
        pl.col("client_orderid").alias("order_id"),
        *("country", "currency", "amount"),
        name=pl.col("account_name").fill_null(""),
        account=pl.coalesce("account_number", "phone"),
        stem=pl.col("client_orderid").str.replace(r"-[0-9]+$", ""),
    )


def batch_payment_lines(journal: JournalReader, batch: BatchRecord) -> pl.DataFrame:
    """Return the `payment_lines` of a batch, with its date, its sheet and the sender's own columns (`own`)."""
    lines = _add_own_texts(pl.read_ipc(io.BytesIO(page)) for page in journal.pages(batch.number))
    values = {"batch": batch.batch, "day": batch.opened_at[:10], "sheet": batch.sheet_name}
    return lines.with_columns(pl.lit(value).alias(name) for name, value in values.items())


def sheet_payment_lines(validated: Validated) -> pl.DataFrame:
    """Return the `payment_lines` of a sheet, with the sender's own columns (`own`)."""
    return _add_own_texts(part.rows for part in validated.parts())


def _add_own_texts(parts: Iterable[pl.DataFrame]) -> pl.DataFrame:
    empty = pl.DataFrame(schema=_LINE_SCHEMA)
    return pl.concat(payment_lines(rows).with_columns(own=own_texts(rows)) for rows in chain([empty], parts))


_OUR_COLUMNS = frozenset({*_LINE_SCHEMA, "purpose", "error_code", "message"})


def own_texts(rows: pl.DataFrame) -> pl.Series:
    """Return the normalised texts of the sender's own columns, with their headings, for each valid row."""
    headings = [name for name in sorted(rows.columns) if name not in _OUR_COLUMNS]
    valid = rows.filter("valid")
    if not headings:
        return pl.Series("own", [""], dtype=pl.String).new_from_index(0, valid.height)
    texts = (
        pl.format("{}={}", pl.lit(name), pl.col(name).fill_null("").str.normalize("NFKC").str.replace_all(r"\s+", " "))
        for name in headings
    )
    return valid.select(own=pl.concat_str(texts, separator="\x1f").str.to_lowercase().str.strip_chars())["own"]


@dataclass(frozen=True, slots=True)
class UsedReference:
    """The earlier payments under a reference. `lines` has each order id of `batch_payment_lines` once."""

    reference: str
    lines: pl.DataFrame

    @classmethod
    def read(cls, journal: JournalReader, operation: str, reference: str) -> "UsedReference | None":
        """Return the payments under a reference, or None if the reference was never used."""
        lines = [
            _add_states(batch_payment_lines(journal, batch), journal, batch)
            for batch in journal.batches()
            if batch.operation == operation and batch.reference == reference
        ]
        return cls(reference, pl.concat(lines).unique("order_id", keep="first", maintain_order=True)) if lines else None

    @property
    def days(self) -> str:
        return ", ".join(self.lines["day"].unique(maintain_order=True))

    def conflicts(self, payments: pl.DataFrame, sheet_name: str) -> Sequence[tuple[int, Mapping[str, str]]]:
        """Return the rows that may pay someone again under another order id, each with the earlier payment.

        Either only one of the sheets has staff numbers, or the payee is on another worksheet of the same workbook.
        """
        columns = {f"before_{name}": name for name in (*_EARLIER_COLUMNS, "stem")}
        earlier = self.lines.select("country", "account", "sheet", **columns)
        new = payments.filter(~pl.col("order_id").is_in(self.lines["order_id"].implode()))
        known = new.join(earlier, on=["country", "account"], maintain_order="left").filter(
            pl.col("stem") != pl.col("before_stem")
        )
        stems = ("stem", "before_stem")
        by_row = {
            line["row"]: line
            for line in known.iter_rows(named=True)
            if any(is_derived_from_account(line[stem], line["country"], line["account"]) for stem in stems)
        }
        if sheet_name.endswith("]"):
            same_ids = payments.join(earlier, left_on="order_id", right_on="before_order_id", coalesce=False)
            for line in same_ids.iter_rows(named=True):
                if _are_worksheets(line["sheet"], sheet_name):
                    by_row.setdefault(line["row"], line)
        lines = sorted(by_row.items())
        return [(row, {name: line[f"before_{name}"] for name in _EARLIER_COLUMNS}) for row, line in lines]

    def question(self, rows: pl.DataFrame, ids: pl.Series, pending: Collection[int]) -> OpenQuestion | None:
        """Return the question about another file under this reference, or None if that repeats the same payments.

        `rows` are the `payment_lines` of the sheet with their `own` texts. `ids` has the order ids of
        these rows and of refused rows. `pending` has the rows that would be sent.
        """
        missing = self.lines.filter(~pl.col("order_id").is_in(ids.implode()))
        new = rows.join(self.lines, on="order_id", how="anti", maintain_order="left")
        if not missing.height:
            # `repeated_payee_question` asks about a payee's further payment. Another name may be another person.
            new = new.join(self.lines, on=["stem", "name"], how="anti", maintain_order="left")
        if not new.height and not missing.height:
            pairs = rows.select("order_id", now="own").join(self.lines, on="order_id", how="left")
            if pairs.select((pl.col("now") == pl.col("own")).fill_null(value=True).all()).item():
                return None
        opening = say(
            "The payment run {reference} was opened on {days}: {known:,} of the {rows} of this sheet are in it.",
            reference=self.reference,
            days=self.days,
            known=rows.height - new.height,
            rows=say_count(rows.height, "{count:,} row", "{count:,} rows"),
        )
        if not new.height:
            is_unfinished = any(row in pending for row in rows["row"])
            rest = say("Some of them are still to be sent.") if is_unfinished else say("Nothing new would be paid.")
            return OpenQuestion(
                USED_REFERENCE,
                _short_digest([self.reference, *missing["order_id"]]),
                f"{opening} {rest}",
                hint=say("Nothing was sent. For another payment run, use another reference."),
                option="--reference",
                question=say("Send the rows of this payment run that have not been sent yet?") if is_unfinished else "",
            )
        people = _people_findings(new, missing, self.reference)
        names = tuple(line["name"] or line["account"] for line in new.iter_rows(named=True))
        options = " ".join(f"--new-payee '{name}'" for name in names[:_MAX_NAMED])
        return OpenQuestion(
            USED_REFERENCE,
            _short_digest([self.reference, *new["order_id"], *missing["order_id"]]),
            opening + " " + say_count(new.height, "{count:,} row is new.", "{count:,} rows are new."),
            hint=say(
                "Nothing was sent. If these people are new and were not paid under another account, run the command "
                "again with {options}. For another payment run, use another reference.",
                options=options,
            ),
            option="--new-payee",
            question=say("Are these people new, and should they be paid as well?"),
            names=names,
            people=people,
        )


def _add_states(lines: pl.DataFrame, journal: JournalReader, batch: BatchRecord) -> pl.DataFrame:
    """Add `when` to a batch's lines: its date, and the state of rows that may be unpaid."""
    states = {row.row: state_label(row.state.value) for row in journal.rows(batch.number, states=_UNPAID_STATES)}
    word = pl.col("row").replace_strict(states, default=None, return_dtype=pl.String)
    return lines.with_columns(when=pl.concat_str("day", word, separator=", ", ignore_nulls=True))


_UNPAID_STATES = frozenset({State.REJECTED, State.RETURNED, State.IN_DOUBT})
_EARLIER_COLUMNS = ("row", "order_id", "name", "account", "currency", "amount", "batch", "day")


def _are_worksheets(first: str, second: str) -> bool:
    """Return whether two sheets are worksheets of one workbook: `pay.xlsx [May]` and `pay.xlsx [June]`."""
    return first != second and first.endswith("]") and first.partition(" [")[0] == second.partition(" [")[0] != second


def _people_findings(new: pl.DataFrame, missing: pl.DataFrame, reference: str) -> Sequence[tuple[int, str, str, str]]:
    """Return a finding for each new person, with the most similar missing person, then for all others missing."""
    people = {normalise_spelling(line["name"]): line for line in missing.iter_rows(named=True)}
    findings, matched_ids = [], set()
    for line in new.iter_rows(named=True):
        key = normalise_spelling(line["name"])
        matches = [key] if key in people or len(people) > _MAX_COMPARED else get_close_matches(key, people, n=1)
        closest = people.get(matches[0]) if matches else None
        matched_ids |= set() if closest is None else {closest["order_id"]}
        values = {name: line[name] for name in ("name", "account", "currency", "amount")}
        sentence = (
            say("{name} ({account}, {currency} {amount}) is new in {reference}.", **values, reference=reference)
            if closest is None
            else say(
                "{name} ({account}, {currency} {amount}) is new in {reference}, and {other} ({other_account}, "
                "{currency} {other_amount}, {when}) is missing now: is it the same person?",
                **values,
                reference=reference,
                other=closest["name"],
                other_account=closest["account"],
                other_amount=closest["amount"],
                when=closest["when"],
            )
        )
        findings.append((line["row"], line["order_id"], NEW_PAYEE, sentence))
    for line in missing.filter(~pl.col("order_id").is_in(list(matched_ids))).iter_rows(named=True):
        sentence = say(
            "{name} ({account}, {currency} {amount}, {when}) is no longer in this sheet.",
            **{name: line[name] for name in ("name", "account", "currency", "amount", "when")},
        )
        findings.append((WHOLE_SHEET, line["order_id"], MISSING_PAYEE, sentence))
    return findings


def repeated_payee_question(payments: pl.DataFrame, pending: Collection[int]) -> OpenQuestion | None:
    """Return the question about payees on several rows of a sheet without order ids, or None."""
    repeated = payments.filter(pl.col("stem").is_duplicated()).sort("stem", "row")
    people = []
    for _, group in groupby(repeated.iter_rows(named=True), key=lambda line: line["stem"]):
        lines = list(group)
        if not any(line["row"] in pending for line in lines):
            continue
        rows = ", ".join(str(line["row"]) for line in lines)
        amounts = ", ".join(f"{line['currency']} {line['amount']}" for line in lines)
        sentence = say(
            "{name} is in rows {rows} ({amounts}): several payments, or one that was pasted twice?",
            name=" / ".join(dict.fromkeys(line["name"] for line in lines)),
            rows=rows,
            amounts=amounts,
        )
        people.append((len(lines), (lines[0]["row"], rows, PAYEE_TWICE, sentence)))
    if not people:
        return None
    count = sum(group for group, _ in people)
    is_pasted = count * 2 > payments.height
    message = say_count(
        count,
        "{count:,} of {of_rows:,} rows pays someone who is also paid by another row.",
        "{count:,} of {of_rows:,} rows pay someone who is also paid by another row.",
        of_rows=payments.height,
    )
    return OpenQuestion(
        PAYEE_TWICE,
        _short_digest(f"{row} {rows}" for _, (row, rows, _, _) in people),
        f"{message} {say('Was the list pasted twice?')}" if is_pasted else message,
        hint=say(
            "Nothing was sent. Delete the repeated rows. If all of them are meant to be paid, run the command again "
            "with --repeats-meant."
        ),
        option="--repeats-meant",
        question=say("Are all of these rows meant to be paid?"),
        people=sorted(person for _, person in people),
    )


def _short_digest(texts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]
