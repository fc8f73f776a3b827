"""Finds questions about a sheet that only a person can answer: whether a repeat is intended, and who is new.

A sheet without order ids belongs to a payment run with a reference, which identifies payees by account or staff number.
An unknown account in a corrected sheet may belong to a new or to a known person. Only the sheet's maker knows.
"""

import hashlib
import io
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain, groupby
from typing import NamedTuple

import polars as pl

from paygw_batch.core.batch import is_derived_from_account
from paygw_batch.core.choices import Choices
from paygw_batch.core.lifecycle import State
from paygw_batch.core.shown_states import state_label
from paygw_batch.core.text import normalise_spelling
from paygw_batch.countries.form_columns import STAFF_NUMBER
from paygw_batch.errors import OpenSheetQuestion
from paygw_batch.journal import BatchRecord, JournalReader, RepeatedBatch, is_in_quarantine
from paygw_batch.language import mark, say, say_count
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
"""If more people are missing, only identical names are matched, not similar ones."""
_MAX_NAMED = 20
"""The maximum number of people named in a refusal."""
_LINE_SCHEMA = {"row": pl.UInt32, "valid": pl.Boolean} | dict.fromkeys(
    ("client_orderid", "country", "currency", "amount", "account_name", "account_number", "phone"), pl.String
)
_OUR_COLUMNS = frozenset({*_LINE_SCHEMA, "purpose", "error_code", "message"})


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    """A question about a sheet that only a person can answer. The sheet is not paid until it is answered.

    - `subject`: identifies what the question is about. An answer applies only to the same subject.
    - `question`: the text to ask, or empty if nothing would be paid anyway.
    - `names`: the new payees that an advance answer must list. If empty, the advance answer is `repeats_meant`.
    - `people`: the row, value, code and message for each person concerned.
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
        """The key that identifies the question in answers."""
        return f"{self.code} {self.subject}"

    def is_answered(self, choices: Choices) -> bool:
        """Return whether the question has been answered, either by its key or in advance."""
        if not self.question:
            return False
        if self.key in choices.answered:
            return True
        if not self.names:
            return choices.repeats_meant
        # If two new people have the same name, the answer must contain that name twice.
        return Counter(map(normalise_spelling, self.names)) <= Counter(map(normalise_spelling, choices.new_payees))

    def as_warnings(self) -> pl.DataFrame:
        """Return warnings (`DEFECT_SCHEMA`) about the sheet and about each person concerned."""
        people = [(row, "client_orderid", value, code, message) for row, value, code, message in self.people]
        return build_findings([(WHOLE_SHEET, "client_orderid", self.subject, self.code, self.message), *people])

    def refusal(self, others: Sequence["OpenQuestion"] = ()) -> OpenSheetQuestion:
        """Return the error to raise if the answer was no or nobody could be asked. It also shows the other questions.

        One option can answer several questions, so they must all be visible before it is used.
        """
        messages = []
        for question in (self, *others):
            messages += [question.message, *(message for _, _, _, message in question.people[:_MAX_NAMED])]
        return OpenSheetQuestion(self.code, " ".join(messages), hint=self.hint, option=self.option)


def repeat_question(batches: Iterable[RepeatedBatch], row_count: int) -> OpenQuestion | None:
    """Return a question if over half of a sheet's rows repeat rows of one batch, or None."""
    most_repeated = max(batches, key=lambda batch: batch.rows, default=None)
    if most_repeated is None or most_repeated.rows * 2 <= row_count:
        return None
    values = {"sheet_name": most_repeated.sheet_name, "opened_at": most_repeated.opened_at[:10]}
    return OpenQuestion(
        REPEATS_A_BATCH,
        most_repeated.batch,
        say_count(
            row_count,
            "{rows:,} of {count:,} row has the same account and amount as rows of {sheet_name} ({opened_at}), under "
            "other order ids.",
            "{rows:,} of {count:,} rows have the same account and amount as rows of {sheet_name} ({opened_at}), under "
            "other order ids.",
            rows=most_repeated.rows,
            **values,
        ),
        hint=say("Nothing was sent. If you want to pay every row again, run the command again with --repeats-meant."),
        option="--repeats-meant",
        question=say("Do you want to repeat {sheet_name} from {opened_at} with this sheet?", **values),
    )


def payment_lines(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the payments in a sheet's valid rows.

    `rows` has the columns of `Validated.rows`. The result has the columns `row` (UInt32) and, as strings, `order_id`,
    `country`, `currency`, `amount`, `name`, `account` (or phone), `staff` (number), and `stem`, a derived order id
    without its counter. All payments to one payee have the same stem.
    """
    return rows.filter("valid").select(
        pl.col("row").cast(pl.UInt32),
        pl.col("client_orderid").alias("order_id"),
        *("country", "currency", "amount"),
        name=pl.col("account_name").fill_null(""),
        account=pl.coalesce("account_number", "phone"),
        staff=pl.col(STAFF_NUMBER) if STAFF_NUMBER in rows.columns else pl.lit(None, pl.String),
        stem=pl.col("client_orderid").str.replace(r"-[0-9]+$", ""),
    )


def batch_payment_lines(journal: JournalReader, batch: BatchRecord) -> pl.DataFrame:
    """Return a batch's `payment_lines`, with its id, date and sheet name, and the sender's own columns (`own`)."""
    lines = _lines_with_own_texts(pl.read_ipc(io.BytesIO(page)) for page in journal.pages(batch.number))
    values = {"batch": batch.batch, "day": batch.opened_at[:10], "sheet": batch.sheet_name}
    return lines.with_columns(pl.lit(value).alias(name) for name, value in values.items())


def superseded_rows(journal: JournalReader, batch: BatchRecord) -> Mapping[int, str]:
    """Map each rejected row that a later sheet of the payment run lacks to that sheet's batch.

    Only rows are returned whose payee has a new row there, with the same or a similar name.
    """
    superseded: dict[int, str] = {}
    rejected = [row.row for row in journal.rows(batch.number, states={State.REJECTED})] if batch.reference else []
    earlier = batch_payment_lines(journal, batch) if rejected else pl.DataFrame()
    for other in journal.batches() if rejected else ():
        is_later = other.number > batch.number
        if not is_later or (other.operation, other.reference) != (batch.operation, batch.reference):
            continue
        lines = batch_payment_lines(journal, other)
        order_ids, new = set(lines["order_id"]), lines.join(earlier, on="order_id", how="anti")
        new_names = {normalise_spelling(name) for name in new["name"] if name}
        rows = earlier.filter(pl.col("row").is_in(rejected)).select("row", "order_id", "name")
        for row, order_id, name in rows.iter_rows():
            if order_id in order_ids:
                superseded.pop(row, None)
            elif _find_similar_name(normalise_spelling(name), new_names) is not None:
                superseded[row] = other.batch
    return superseded


def _find_similar_name(name: str, names: Collection[str]) -> str | None:
    """Return the name itself or a similar one, if it is among `names`. Among too many, only itself is found."""
    if name in names or len(names) > _MAX_COMPARED:
        return name if name in names else None
    return next(iter(get_close_matches(name, names, n=1)), None)


def sheet_payment_lines(validated: Validated) -> pl.DataFrame:
    """Return the `payment_lines` of a sheet, with the sender's own columns (`own`)."""
    return _lines_with_own_texts(part.rows for part in validated.parts())


def _lines_with_own_texts(parts: Iterable[pl.DataFrame]) -> pl.DataFrame:
    empty = pl.DataFrame(schema=_LINE_SCHEMA)
    return pl.concat(payment_lines(rows).with_columns(own=own_texts(rows)) for rows in chain([empty], parts))


def own_texts(rows: pl.DataFrame) -> pl.Series:
    """Return, for each valid row, a normalised text with the sender's own columns and their headings."""
    headings = [name for name in sorted(rows.columns) if name not in _OUR_COLUMNS]
    valid = rows.filter("valid")
    if not headings:
        return pl.Series("own", [""], dtype=pl.String).new_from_index(0, valid.height)
    texts = (
        pl.format("{}={}", pl.lit(name), pl.col(name).fill_null("").str.normalize("NFKC").str.replace_all(r"\s+", " "))
        for name in headings
    )
    return valid.select(own=pl.concat_str(texts, separator="\x1f").str.to_lowercase().str.strip_chars())["own"]


class RepeatedRow(NamedTuple):
    """A row that may repeat the payment in row `sheet_row` of `batch`, and the staff numbers of both, if any."""

    row: int
    batch: str
    sheet_row: int
    staff_before: str
    staff: str


@dataclass(frozen=True, slots=True)
class UsedReference:
    """The earlier payments under a reference.

    `lines` are `batch_payment_lines`, one for each order id, with the `state` of each payment that is not paid, and
    whether it `is_unfinished`, because it may still be made. `days` lists the dates of their batches.
    """

    reference: str
    lines: pl.DataFrame
    days: str

    @classmethod
    def read(cls, journal: JournalReader, operation: str, reference: str, cutoff: str) -> "UsedReference | None":
        """Return the payments under a reference, or None if the reference was never used.

        Rows that only a person reported as rejected are unfinished if they were sent after `cutoff`.
        """
        batches = [
            batch for batch in journal.batches() if batch.operation == operation and batch.reference == reference
        ]
        if not batches:
            return None
        lines = pl.concat(_add_states(batch_payment_lines(journal, batch), journal, batch, cutoff) for batch in batches)
        lines = lines.filter(pl.col("state") != State.REPLACED)  # the successor has the same order id
        days = ", ".join(dict.fromkeys(batch.opened_at[:10] for batch in batches))
        return cls(reference, lines.unique("order_id", keep="first", maintain_order=True), days)

    def repeats(self, payments: pl.DataFrame, sheet_name: str) -> Sequence["RepeatedRow"]:
        """Return the rows that may pay someone again under another order id.

        This can happen if only one of the two sheets has staff numbers, or if both sheets are from the same workbook.
        """
        columns = {f"before_{name}": name for name in ("row", "order_id", "batch", "staff", "stem")}
        earlier = self.lines.select("country", "account", "sheet", **columns)
        new = payments.filter(~pl.col("order_id").is_in(self.lines["order_id"].implode()))
        same_account = new.join(earlier, on=["country", "account"], maintain_order="left").filter(
            pl.col("stem") != pl.col("before_stem")
        )
        stems = ("stem", "before_stem")
        by_row = {
            line["row"]: line
            for line in same_account.iter_rows(named=True)
            if any(is_derived_from_account(line[stem], line["country"], line["account"]) for stem in stems)
        }
        if sheet_name.endswith("]"):
            same_ids = payments.join(earlier, left_on="order_id", right_on="before_order_id", coalesce=False)
            for line in same_ids.iter_rows(named=True):
                if share_workbook(line["sheet"], sheet_name):
                    by_row.setdefault(line["row"], line)
        return [
            RepeatedRow(row, line["before_batch"], line["before_row"], line["before_staff"] or "", line["staff"] or "")
            for row, line in sorted(by_row.items())
        ]

    def question(self, rows: pl.DataFrame, ids: pl.Series, due: Collection[int]) -> OpenQuestion | None:
        """Return the question about a reused reference, or None if the sheet has the same payments as before.

        `rows` are the sheet's `payment_lines` with their `own` texts. `ids` also includes the order ids of refused
        rows. `due` contains the numbers of the rows that would be sent.
        """
        missing = self.lines.filter(~pl.col("order_id").is_in(ids.implode()))
        # A known row of forgotten people has no line, but it is not due.
        new = rows.filter(pl.col("row").is_in(list(due))).join(
            self.lines, on="order_id", how="anti", maintain_order="left"
        )
        if not missing.height:
            # `repeated_payee_question` covers further payments to a payee. A different name may be a different person.
            new = new.join(self.lines, on=["stem", "name"], how="anti", maintain_order="left")
        if not new.height and not missing.height:
            pairs = rows.select("order_id", now="own").join(self.lines, on="order_id", how="left")
            if pairs.select((pl.col("now") == pl.col("own")).fill_null(value=True).all()).item():
                return None
        summary = say(
            "The payment run {reference} was already opened on {days}. It contains {known:,} of the {rows} in this "
            "sheet.",
            reference=self.reference,
            days=self.days,
            known=rows.height - new.height,
            rows=say_count(rows.height, "{count:,} row", "{count:,} rows"),
        )
        if not new.height:
            is_unfinished = any(row in due for row in rows["row"])
            return self._known_rows_question(summary, missing, is_unfinished=is_unfinished)
        people, unfinished = self._people_findings(new, missing)
        subject = _short_digest([self.reference, *new["order_id"], *missing["order_id"]])
        summary += " " + say_count(new.height, "{count:,} row is new.", "{count:,} rows are new.")
        if unfinished:
            summary += (
                " "
                + say(  # not in the hint, which pages do not show
                    "The earlier payments to {names} may still be made. Restore their rows, and finish or settle those "
                    "payments first. If they are then rejected, submit the new rows again.",
                    names=", ".join(unfinished[:_MAX_NAMED]),
                )
            )
            return OpenQuestion(
                USED_REFERENCE, subject, summary, hint=say("Nothing was sent."), option="", people=people
            )
        names = tuple(line["name"] or line["account"] for line in new.iter_rows(named=True))
        options = " ".join(f"--new-payee '{name}'" for name in names[:_MAX_NAMED])
        return OpenQuestion(
            USED_REFERENCE,
            subject,
            summary,
            hint=say(
                "Nothing was sent. If these people are new and were not paid to another account, run the command "
                "again with {options}. For another payment run, use another reference.",
                options=options,
            ),
            option="--new-payee",
            question=say("Do you want to pay these new people too?"),
            names=names,
            people=people,
        )

    def _known_rows_question(self, summary: str, missing: pl.DataFrame, *, is_unfinished: bool) -> OpenQuestion:
        outlook = say("Some of them have not been sent yet.") if is_unfinished else say("Nothing new would be paid.")
        return OpenQuestion(
            USED_REFERENCE,
            _short_digest([self.reference, *missing["order_id"]]),
            f"{summary} {outlook}",
            hint=say(
                "Nothing was sent. To send these rows, run the command again with --repeats-meant. For another "
                "payment run, use another reference."
            )
            if is_unfinished
            else say("Nothing was sent. For another payment run, use another reference."),
            option="--repeats-meant" if is_unfinished else "--reference",
            question=say("Do you want to send the rows that have not been sent yet?") if is_unfinished else "",
        )

    def _people_findings(
        self, new: pl.DataFrame, missing: pl.DataFrame
    ) -> tuple[Sequence[tuple[int, str, str, str]], Sequence[str]]:
        """Return a finding for each new person, with any similar or identical earlier name, and each missing person.

        Also returns the names of missing people who may be among the new ones, and whose payment is unfinished.
        """
        # Of several payments to one name, the last of the dictionary counts: one that may still be made.
        by_name = {
            normalise_spelling(line["name"]): line for line in missing.sort("is_unfinished").iter_rows(named=True)
        }
        namesakes = {
            normalise_spelling(line["name"]): line for line in self.lines.iter_rows(named=True) if line["name"]
        }
        findings, matched_ids, unfinished = [], set(), []
        for line in new.iter_rows(named=True):
            key = normalise_spelling(line["name"])
            closest = by_name.get(_find_similar_name(key, by_name) or key)
            if closest is not None:
                matched_ids.add(closest["order_id"])
                unfinished += [closest["name"]] if closest["is_unfinished"] else []
            values = {name: line[name] for name in ("name", "account", "currency", "amount")}
            values["reference"] = self.reference
            earlier = closest or namesakes.get(key)
            if earlier is None:
                message = say("{name} ({account}, {currency} {amount}) is new in {reference}.", **values)
            else:
                template = _IS_MISSING if closest else _IS_NAMESAKE
                values |= {f"other_{name}": earlier[name] for name in ("name", "account", "currency", "amount")}
                message = say(template, **values, when=_date_and_state(earlier))
            findings.append((line["row"], line["order_id"], NEW_PAYEE, message))
        for line in missing.filter(~pl.col("order_id").is_in(list(matched_ids))).iter_rows(named=True):
            message = say(
                "{name} ({account}, {currency} {amount}, {when}) is no longer in this sheet.",
                **{name: line[name] for name in ("name", "account", "currency", "amount")},
                when=_date_and_state(line),
            )
            findings.append((WHOLE_SHEET, line["order_id"], MISSING_PAYEE, message))
        return findings, unfinished


def _add_states(lines: pl.DataFrame, journal: JournalReader, batch: BatchRecord, cutoff: str) -> pl.DataFrame:
    """Add the columns `state`, which is empty for paid rows, and `is_unfinished`."""
    states, unfinished, holds = {}, set(journal.holds(batch.number)), journal.holds(batch.number)
    for row in journal.rows(batch.number, states=_UNPAID_STATES):
        states[row.row] = _HELD if row.row in holds else str(row.state)
        if row.state in _UNFINISHED or is_in_quarantine(row.quarantined_since, cutoff):
            unfinished.add(row.row)
    return lines.with_columns(
        state=pl.col("row").replace_strict(states, default="", return_dtype=pl.String),
        is_unfinished=pl.col("row").is_in(list(unfinished)),
    )


def _date_and_state(line: Mapping[str, str]) -> str:
    """Return a payment's date and state. A state that changes while its batch is sent would make plans out of date."""
    is_shown = line["state"] and line["state"] not in {State.READY, State.IN_FLIGHT, State.ACCEPTED}
    return f"{line['day']}, {state_label(line['state'])}" if is_shown else line["day"]


_IS_MISSING = mark(
    "{name} ({account}, {currency} {amount}) is new in {reference}, and {other_name} ({other_account}, "
    "{other_currency} {other_amount}, {when}) is now missing. Are they the same person?"
)
_IS_NAMESAKE = mark(
    "{name} ({account}, {currency} {amount}) is new in {reference}, and {other_name} ({other_account}, "
    "{other_currency} {other_amount}, {when}) is already in it. Are they the same person?"
)
_HELD = "held"
_UNPAID_STATES = frozenset(State) - {State.PAID}
_UNFINISHED = frozenset({State.READY, State.IN_FLIGHT, State.ACCEPTED, State.IN_DOUBT})
"""The states in which a payment may still be made."""


def share_workbook(first: str, second: str) -> bool:
    """Return whether two names are of different worksheets in a workbook: `pay.xlsx [May]` and `pay.xlsx [June]`."""
    return first != second and first.endswith("]") and first.partition(" [")[0] == second.partition(" [")[0] != second


def repeated_payee_question(payments: pl.DataFrame, due: Collection[int]) -> OpenQuestion | None:
    """Return a question if a sheet without order ids has several rows for one payee, or None."""
    repeated = payments.filter(pl.col("stem").is_duplicated()).sort("stem", "row")
    people = []
    for _, group in groupby(repeated.iter_rows(named=True), key=lambda line: line["stem"]):
        lines = list(group)
        if not any(line["row"] in due for line in lines):
            continue
        rows = ", ".join(str(line["row"]) for line in lines)
        amounts = ", ".join(f"{line['currency']} {line['amount']}" for line in lines)
        message = say(
            "{name} is in rows {rows} ({amounts}). Check that no row was pasted twice.",
            name=" / ".join(dict.fromkeys(line["name"] for line in lines)),
            rows=rows,
            amounts=amounts,
        )
        people.append((len(lines), (lines[0]["row"], rows, PAYEE_TWICE, message)))
    if not people:
        return None
    row_count = sum(size for size, _ in people)
    may_be_pasted = row_count * 2 > payments.height
    summary = say_count(
        row_count,
        "{count:,} of {of_rows:,} rows pays someone who is also paid by another row.",
        "{count:,} of {of_rows:,} rows pay someone who is also paid by another row.",
        of_rows=payments.height,
    )
    return OpenQuestion(
        PAYEE_TWICE,
        _short_digest(f"{row} {rows}" for _, (row, rows, _, _) in people),
        f"{summary} {say('Was the list pasted twice?')}" if may_be_pasted else summary,
        hint=say(
            "Nothing was sent. Delete the repeated rows. If you want to pay all of them, run the command again with "
            "--repeats-meant."
        ),
        option="--repeats-meant",
        question=say("Do you want to pay all of these rows?"),
        people=sorted(person for _, person in people),
    )


def _short_digest(texts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]
