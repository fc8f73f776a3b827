"""Writes the reconciliation as one HTML page: sums, the rows that need a person, and the rest when it is asked for.

Made from the same frame as the CSV, and like it a pure function of sheet and journal. It shows payees, so it is for the
same eyes as the reconciliation itself.
"""

from collections.abc import Mapping, Sequence
from html import escape

import polars as pl

from paygw_batch.core import shown_states
from paygw_batch.core.lifecycle import State
from paygw_batch.core.money import parse_amount, with_separators
from paygw_batch.core.recorded_words import deed_words, recorded
from paygw_batch.countries.load import load_operation
from paygw_batch.journal import BatchRecord, HistoryEntry, JournalReader
from paygw_batch.language import mark, say, say_all, say_count
from paygw_batch.report.colours import STATE_COLOURS
from paygw_batch.report.next_step import next_steps, step_of_state
from paygw_batch.report.page import (
    HtmlText,
    commands,
    details,
    html_table,
    page,
    paragraph,
    state_mark,
    state_words,
)
from paygw_batch.report.run_charts import latency, outcomes_over_time
from paygw_batch.report.totals import BatchTotals, by_currency, money_text

SHOWN_ROWS = 500
"""How many rows of a state that needs a person are listed; the reconciliation file has all of them."""
ROWS_ON_DEMAND = 1_000
"""How many paid rows are listed, and how many accepted ones."""
SHOWN_DEEDS = 200
HELD = "held"
"""Rows that are ready, and that evidence speaks against: no run sends them."""
PERSON_STATES = ("in_doubt", HELD, "rejected", "returned", "invalid")
"""The states of rows that wait for a person, in the order of the page."""
_APPROVED, _OPENED = "approved", "opened"
_CUT = mark("These are the first {shown:,} of {all:,} rows: the reconciliation file has all of them.")


def report_html(
    journal: JournalReader,
    batch: BatchRecord,
    frame: pl.DataFrame,
    books: BatchTotals,
    minor_units: Mapping[str, int],
    *,
    quarantine_h: float,
) -> str:
    """Return the page of a batch, from its reconciliation frame and its totals."""
    history = journal.history(batch.number)
    held = list(journal.messages(batch.number).holds)
    shown = frame.with_columns(
        state=pl.when(pl.col("row").is_in(held) & (pl.col("state") == "ready"))
        .then(pl.lit(HELD))
        .otherwise(pl.col("state"))
    )
    rows = _Rows(shown, minor_units)
    return page(
        say("{sheet_name}: reconciliation", sheet_name=batch.sheet_name),
        [
            *_top(batch, history),
            _tiles(books),
            _sums(books),
            _needs_person(journal, batch, rows, quarantine_h),
            *(rows.on_demand(state) for state in ("accepted", "paid")),
            _by_country(books),
            _deeds(history),
            _charts(frame),
        ],
    )


class _Rows:
    """The rows of a batch as tables show them, by state."""

    def __init__(self, frame: pl.DataFrame, minor_units: Mapping[str, int]) -> None:
        self._frame = frame
        self._minor_units = minor_units

    def of_state(self, state: str) -> pl.DataFrame:
        """Return the rows that are in one state, in the sheet's order."""
        return self._frame.filter(pl.col("state") == state)

    def amount(self, amount: str | None, currency: str | None) -> str:
        """Return an amount as people read it, or as the sheet has it where it is none."""
        units = self._minor_units.get(currency or "")
        value = None if units is None else parse_amount(amount or "", minor_units=units)
        return (amount or "") if value is None else with_separators(money_text(value, units))

    def on_demand(self, state: str) -> str:
        """Return the rows in one state as a table that is shown when a person asks for it."""
        found = self.of_state(state)
        if found.is_empty():
            return ""
        columns = (
            *("row", "account_name", pl.coalesce("account_number", "phone").alias("\0account"), "currency", "amount"),
            *("sent_orderid", "gateway_reference", "updated_at"),
        )
        lines = [
            (row, name, account, currency, self.amount(amount, currency), order_id, reference, _time(at))
            for row, name, account, currency, amount, order_id, reference, at in found.head(ROWS_ON_DEMAND)
            .select(columns)
            .iter_rows()
        ]
        headings = say_all(
            "row", "payee", "account or phone", "currency", "amount", "order id", "reference", "time (UTC)"
        )
        table = html_table(headings, lines, right={0, 4}, whole={7}, caption=_caption(state, found, ROWS_ON_DEMAND))
        title = say("{state}: {rows}", state=state_words(state).capitalize(), rows=_counted(found.height))
        return details(title, table)


def _top(batch: BatchRecord, history: Sequence[HistoryEntry]) -> Sequence[str]:
    """Return which batch it is, who opened it, and who approved it."""
    by = next((deed.by for deed in history if deed.kind == _OPENED and deed.by), "")
    approvals = [recorded(deed.said) for deed in history if deed.kind == _APPROVED]
    approved = "; ".join(f"{sentence[:1].upper()}{sentence[1:]}" for sentence in approvals)
    about = {"batch": batch.batch, "rows": _counted(batch.rows), "time": _time(batch.opened_at)}
    told = (
        say("Batch {batch}, {rows}, opened {time} UTC by {by}.", by=by, **about)
        if by
        else say("Batch {batch}, {rows}, opened {time} UTC.", **about)
    )
    plan = say("Its plan: {approved}.", approved=approved) if approved else say("No plan was approved for it.")
    return [f"<h1>{escape(batch.sheet_name)}</h1>", paragraph(told, "soft"), paragraph(plan, "soft")]


def _tiles(books: BatchTotals) -> str:
    tiles = [
        f'<li class="{state}"><b>{books.states[state]:,}</b>{state_words(state)}</li>'
        for state in STATE_COLOURS
        if books.states.get(state)
    ]
    return f'<ul class="tiles">{"".join(tiles)}</ul>'


def _sums(books: BatchTotals) -> str:
    """Return a line for each currency: all of it, and of each state."""
    states = [state for state in STATE_COLOURS if books.states.get(state)]
    lines = []
    for total in by_currency(books):
        sums = {state: with_separators(amount) for state, _, amount in total.states}
        of_states = (sums.get(state, "") for state in states)
        lines.append((total.currency or say("none"), f"{total.rows:,}", with_separators(total.sum), *of_states))
    headings = (*say_all("currency", "rows", "total"), *(state_words(state) for state in states))
    table = html_table(headings, lines, right=range(1, len(headings)))
    return f"<h2>{say('Totals by currency')}</h2>{table}"


def _needs_person(journal: JournalReader, batch: BatchRecord, rows: _Rows, quarantine_h: float) -> str:
    """Return the rows that need a person, those in doubt first, each state with its next step."""
    operation = load_operation(batch.operation)
    parts, count = [], 0
    for state in (*PERSON_STATES, State.READY.value):
        found = rows.of_state(state)
        if found.is_empty():
            continue
        step = step_of_state(state, batch, operation, first_row=found["row"][0])
        name = state_mark(
            "in_doubt" if state == HELD else state, shown_states.state_words(HELD) if state == HELD else ""
        )
        parts.append(f"<h3>{name} {_counted(found.height)}</h3>{paragraph(step.sentence)}{commands(step.commands)}")
        if state == State.READY:
            continue
        count += found.height
        numbers = found["row"].head(SHOWN_ROWS).to_list()
        own = next_steps(journal, batch, numbers, verb=operation.verb, quarantine_h=quarantine_h)
        parts.append(_listed(rows, state, found, own))
    if not parts:
        return f"<h2>{say('Rows that need a person: none')}</h2>"
    return f"<h2>{say('Rows that need a person: {count:,}', count=count)}</h2>{''.join(parts)}"


def _listed(rows: _Rows, state: str, found: pl.DataFrame, own: Mapping[int, str]) -> str:
    """Return rows of one state as a table, with each row's own next step where it has one."""
    columns = ("row", "account_name", "currency", "amount", "client_orderid", "error_code", "message")
    lines = []
    for row, name, currency, amount, order_id, code, message in found.head(SHOWN_ROWS).select(columns).iter_rows():
        known = HtmlText(
            paragraph(message or "") + (details(say("What to do about it"), paragraph(own[row])) if row in own else "")
        )
        lines.append((row, name, currency, rows.amount(amount, currency), order_id, known, code))
    headings = say_all("row", "payee", "currency", "amount", "order id", "what is known", "code")
    return html_table(headings, lines, right={0, 3}, whole={4}, caption=_caption(state, found, SHOWN_ROWS))


def _by_country(books: BatchTotals) -> str:
    lines = [
        (country, currency, state_mark(state), f"{count:,}", with_separators(amount))
        for country, currency, state, count, amount in books.lines
    ]
    table = html_table(say_all("country", "currency", "state", "rows", "sum"), lines, right={3, 4})
    return details(say("Totals by country and state"), table)


def _deeds(history: Sequence[HistoryEntry]) -> str:
    """Return the acts of people on the batch, except its opening and its approvals, the first acts first."""
    deeds = [deed for deed in history if deed.kind not in {_OPENED, _APPROVED}]
    if not deeds:
        return ""
    lines = [
        (_time(deed.at), deed.row or "", deed_words(deed.kind), deed.by, recorded(deed.said))
        for deed in deeds[:SHOWN_DEEDS]
    ]
    table = html_table(say_all("time (UTC)", "row", "what", "who", "why"), lines, right={1}, whole={0})
    more = (
        ""
        if len(deeds) <= SHOWN_DEEDS
        else say("The first {shown} are shown: `paygw-batch status` with --history has all.", shown=SHOWN_DEEDS)
    )
    return details(say("What people did: {deeds:,}", deeds=len(deeds)), table + (paragraph(more) if more else ""))


def _charts(frame: pl.DataFrame) -> str:
    charts = outcomes_over_time(frame) + latency(frame)
    return details(say("For engineers: outcomes over time, and latency"), charts) if charts else ""


def _caption(state: str, found: pl.DataFrame, shown: int) -> str:
    """Return the caption of a table of rows. It says whether the table has all of them."""
    if found.height <= shown:
        return say("All rows that are {state}", state=state_words(state))
    return say(_CUT, shown=shown, all=found.height)


def _counted(count: int) -> str:
    return say_count(count, "{count:,} row", "{count:,} rows")


def _time(text: str | None) -> str:
    """Return a time to the minute."""
    return (text or "")[:16].replace("T", " ")
