"""Looks order ids, payees and payments up over all batches."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from psycopg import Connection

from paygw_batch.core.lifecycle import Standing
from paygw_batch.core.spelling import spelled_alike
from paygw_batch.journal.facts.progress import amendable
from paygw_batch.journal.payment_port import FoundPayment, PaymentSearch
from paygw_batch.journal.postgres.kept_evidence import contested
from paygw_batch.journal.postgres.session import Row, fetch
from paygw_batch.journal.postgres.standing_lines import STATE_OF, arrays, pieces, words_of
from paygw_batch.journal.values import Clash, Known, LookAlike, RepeatedBatch, UsedSpelling

_AT_ONCE = 10_000
_COMPARE = """SELECT u.row, u.order_id, p.number, p.client_orderid = u.order_id, p.content = u.content, p.state,
        p.attempt, p.possible_duplicate_of, p.intended_at, b.batch, p.row, b.opened_at
    FROM unnest(%s::bigint[], %s::text[], %s::text[]) WITH ORDINALITY u(row, order_id, content, place)
    JOIN order_id o ON o.operation = %s AND o.order_id = u.order_id
    JOIN progress p ON p.number = o.instruction JOIN batch b ON b.number = p.batch ORDER BY u.place"""
_LOOK_ALIKES = """SELECT u.row, other.client_orderid, other.batch, other.opened_at
    FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::text[], %s::bigint[])
        WITH ORDINALITY u(row, order_id, payee, currency, minor, place)
    CROSS JOIN LATERAL (
        SELECT i.client_orderid, b.batch, b.opened_at FROM instruction i JOIN batch b ON b.number = i.batch
        WHERE i.payee = u.payee AND i.minor = u.minor AND i.currency = u.currency AND i.client_orderid <> u.order_id
            AND b.operation = %s AND b.opened_at > %s
        ORDER BY i.number DESC LIMIT 1
    ) other ORDER BY u.place"""
_SPELLINGS = """SELECT u.row, other.order_id, other.batch, other.opened_at
    FROM unnest(%s::bigint[], %s::text[], %s::text[]) WITH ORDINALITY u(row, order_id, spelling, place)
    CROSS JOIN LATERAL (
        SELECT o.order_id, b.batch, b.opened_at FROM order_id o
        JOIN instruction i ON i.number = o.instruction JOIN batch b ON b.number = i.batch
        WHERE o.operation = %s AND o.spelling = u.spelling ORDER BY o.instruction DESC LIMIT 1
    ) other
    WHERE NOT EXISTS (SELECT FROM order_id own WHERE own.operation = %s AND own.order_id = u.order_id)
    ORDER BY u.place"""
_REPEATED = """SELECT b.batch, b.sheet_name, b.opened_at, found.rows FROM (
        SELECT pair.batch, count(*) AS rows FROM (
            SELECT DISTINCT u.place, i.batch
            FROM unnest(%s::text[], %s::text[], %s::text[], %s::bigint[])
                WITH ORDINALITY u(order_id, payee, currency, minor, place)
            JOIN instruction i ON i.payee = u.payee AND i.minor = u.minor AND i.currency = u.currency
                AND i.client_orderid <> u.order_id
            JOIN batch b ON b.number = i.batch AND b.operation = %s AND b.opened_at > %s
        ) pair GROUP BY 1
    ) found JOIN batch b ON b.number = found.batch ORDER BY b.number DESC"""
_FITTING = "SELECT instruction FROM payee_words WHERE words @@ %s::tsquery ORDER BY instruction DESC LIMIT %s"
_PAYMENTS = """SELECT b.batch, b.sheet_name, b.operation, b.opened_at, p.row, p.client_orderid, p.country, p.currency,
        p.amount, p.form, p.fields, p.payee, p.state, p.attempt - p.inherited_attempts, p.sent_orderid,
        p.gateway_status, p.gateway_reference, p.error_code, p.message, p.possible_duplicate_of,
        coalesce(p.first_sent_at, CASE WHEN p.state = 'in_flight' THEN p.intended_at END), p.updated_at
    FROM progress p JOIN batch b ON b.number = p.batch WHERE p.number = ANY (%s) ORDER BY p.number DESC"""
_OF_ROWS = "SELECT row, instruction FROM covered WHERE batch = %s AND row = ANY (%s)"


def compare_ids(
    connection: Connection[Row], operation: str, rows: Iterable[tuple[int, str, str]]
) -> tuple[list[Known], list[Clash]]:
    """Hold (row, client_orderid, content) of a sheet against every order id ever used."""
    known, clashes = [], []
    for found in _asked(connection, _COMPARE, rows, 3, (operation,)):
        row, order_id, number, is_its_own, is_same, word, attempt, mark, intended_at, *where = found
        state, (batch, sheet_row, opened_at) = STATE_OF[word], where
        if is_its_own and is_same:
            known.append(Known(row, number, state))
            continue
        standing = Standing(state, attempt, possible_duplicate_of=mark)
        # An id that an instruction was sent under after a release is no one else's to amend.
        may_amend = is_its_own and amendable(standing) and not contested(connection, (number,))
        since = intended_at if standing.is_rejected_by_person else None
        clashes.append(Clash(row, order_id, number, batch, sheet_row, opened_at, state, may_amend, since))
    return known, clashes


def find_look_alikes(
    connection: Connection[Row], operation: str, rows: Iterable[tuple[int, str, str, str, int]], since: str
) -> list[LookAlike]:
    """Find rows that pay the same payee the same amount as a batch opened after `since` (see the port)."""
    return [LookAlike(*line) for line in _asked(connection, _LOOK_ALIKES, rows, 5, (operation, since))]


def find_spellings(
    connection: Connection[Row], operation: str, rows: Iterable[tuple[int, str, str]]
) -> list[UsedSpelling]:
    """Find rows whose order id was used in another spelling, and never as it is (see the port)."""
    return [UsedSpelling(*line) for line in _asked(connection, _SPELLINGS, rows, 3, (operation, operation))]


def find_repeated(
    connection: Connection[Row], operation: str, rows: Iterable[tuple[str, str, str, int]], since: str
) -> list[RepeatedBatch]:
    """Count rows paid under other ids, by batch opened after `since` (see the port)."""
    values = (*arrays(list(rows), 4), operation, since)
    return [RepeatedBatch(*line) for line in fetch(connection, _REPEATED, values)]


def is_used(connection: Connection[Row], operation: str, order_id: str) -> bool:
    """Return whether an order id was ever used, in any spelling."""
    query = "SELECT FROM order_id WHERE operation = %s AND spelling = %s LIMIT 1"
    return bool(fetch(connection, query, (operation, spelled_alike(order_id))))


def find_payments(connection: Connection[Row], search: PaymentSearch, limit: int) -> list[FoundPayment]:
    """Return the newest payments that a search fits (see the port)."""
    numbers: set[int] = set()
    if "\0" not in search.order_id and search.order_id.encode(errors="replace").decode() == search.order_id:
        query = """SELECT instruction FROM order_id
            WHERE operation IN (SELECT DISTINCT operation FROM batch) AND spelling = %s"""
        numbers.update(number for (number,) in fetch(connection, query, (spelled_alike(search.order_id),)))
    if expression := _expression(search):
        numbers.update(number for (number,) in fetch(connection, _FITTING, (expression, limit)))
    newest = sorted(numbers, reverse=True)[:limit]
    return [_payment(line) for line in fetch(connection, _PAYMENTS, (newest,))] if newest else []


def payments_of_rows(connection: Connection[Row], batch: int, rows: Iterable[int]) -> dict[int, FoundPayment]:
    """Return the payments of those of `rows` that a batch has, by row."""
    instructions: dict[int, int] = dict(fetch(connection, _OF_ROWS, (batch, sorted(rows))))
    numbers = sorted(set(instructions.values()), reverse=True)
    lines = fetch(connection, _PAYMENTS, (numbers,)) if numbers else []
    payments = {number: _payment(line) for number, line in zip(numbers, lines, strict=True)}
    return {row: payments[number] for row, number in instructions.items()}


def _expression(search: PaymentSearch) -> str:
    """Return a search as PostgreSQL's text index is asked: lexemes in quotes, so that none is an operator."""
    groups = []
    for alternatives in search.words:
        group = []
        for word in alternatives:
            parts = words_of([word.removesuffix("*")])
            ending = ":*" if word.endswith("*") else ""
            group.append(" & ".join(f"'{part}'{ending}" for part in parts))
        groups.append(" | ".join(f"({one})" for one in group if one))
    return " & ".join(f"({group})" for group in groups) if groups and all(groups) else ""


def _payment(line: Sequence[Any]) -> FoundPayment:
    columns = list(line)
    columns[10] = json.loads(columns[10])
    columns[12] = STATE_OF[columns[12]]
    return FoundPayment(*columns)


def _asked(
    connection: Connection[Row], query: str, rows: Iterable[Row], width: int, values: Sequence[Any]
) -> Iterator[Row]:
    for group in pieces(rows, _AT_ONCE):
        yield from fetch(connection, query, (*arrays(group, width), *values))
