"""Writes a new batch by COPY."""

from collections.abc import Iterable, Mapping
from operator import attrgetter

from psycopg import Connection

from paygw_batch.core.batch import reference_of
from paygw_batch.core.text import spelled_alike
from paygw_batch.errors import InternalError
from paygw_batch.journal.batch_part import BatchPart, one_ahead, payee_texts
from paygw_batch.journal.facts.digest import OpeningDigests
from paygw_batch.journal.postgres.lines import words_of
from paygw_batch.journal.postgres.session import Row, fetch
from paygw_batch.journal.salts import new_salts
from paygw_batch.journal.values import BatchRecord, Known, NewInstruction

_INSTRUCTIONS = """COPY instruction (number, batch, row, client_orderid, country, currency, minor, replaces, amount,
    form, fields, payee, content, salt, people_sha256) FROM STDIN"""


def copy_batch(
    connection: Connection[Row],
    record: BatchRecord,
    plan_sha256: str,
    digests: OpeningDigests,
    parts: Iterable[BatchPart],
    known: Iterable[Known],
    replaced: Mapping[int, int],
) -> str:
    """Write a whole batch; return the reference that its order ids were derived from, or none."""
    number = record.number
    first = digests.first_instruction
    with one_ahead(parts) as coming:
        for part in coming:
            for page in part.pages:
                fetch(connection, "INSERT INTO page VALUES (%s, %s, %s)", (number, digests.pages, page))
                digests.page(page)
            start = digests.next_instruction
            salts = new_salts(len(part.instructions))
            people = digests.instructions(part.instructions, replaced, salts)
            with connection.cursor() as cursor, cursor.copy(_INSTRUCTIONS) as copy:
                for place, (new, *own) in enumerate(zip(part.instructions, salts, people, strict=True), start=start):
                    copy.write_row((*_line_of(place, number, new, replaced.get(new[0])), *own))
    last = first
    reference = ""
    query = (
        "SELECT number, client_orderid, fields, content, replaces FROM instruction WHERE number >= %s AND number < %s"
    )
    while found := fetch(connection, f"{query} ORDER BY number", (last, last + 10_000)):
        if last == first:
            reference = reference_of(found[0][1]) or ""
        _copy_ids(connection, record.operation, found)
        last = found[-1][0] + 1
    with connection.cursor() as cursor, cursor.copy("COPY known FROM STDIN") as copy:
        for one in sorted(known, key=attrgetter("row")):
            digests.known(one)
            copy.write_row((number, one.row, one.instruction))
    line = (number, record.batch, record.operation, record.sheet_name, record.sheet_sha256, record.rows, record.defects)
    more = (record.opened_at, record.sheet_path, plan_sha256, reference)
    fetch(connection, f"INSERT INTO batch VALUES ({', '.join(['%s'] * 11)})", (*line, *more))  # noqa: S608 - places alone
    query = """INSERT INTO state (instruction, batch, country, currency, minor)
        SELECT number, batch, country, currency, minor FROM instruction WHERE number >= %s AND number < %s ORDER BY 1"""
    fetch(connection, query, (first, last))
    twice = "SELECT FROM instruction i JOIN known k USING (batch, row) WHERE i.batch = %s LIMIT 1"
    if fetch(connection, twice, (number,)):
        raise InternalError("a row of a batch is both new and known")
    return reference


def _line_of(number: int, batch: int, new: NewInstruction, replaces: int | None) -> Row:
    """Return the stored form of a new instruction."""
    row, client_orderid, country, currency, amount, minor, form, fields, payee, content = new
    own = (row, client_orderid, country, currency, minor, replaces, amount, form, fields, payee, content)
    return number, batch, *own


def payee_words_of(fields: str | None) -> list[str]:
    """Return the words by which the payment with these fields is found; none if its payee was forgotten."""
    return words_of(payee_texts(fields or "{}"))


def _copy_ids(connection: Connection[Row], operation: str, found: list[Row]) -> None:
    """Write the order ids of new instructions, and the words of their payees."""
    own = sorted((client_orderid, number) for number, client_orderid, _, _, replaces in found if replaces is None)
    with connection.cursor() as cursor, cursor.copy("COPY order_id FROM STDIN") as copy:
        for client_orderid, number in own:
            copy.write_row((operation, client_orderid, number, spelled_alike(client_orderid)))
    numbers = [line[0] for line in found]
    words = [" ".join(payee_words_of(line[2])) for line in found]
    query = """INSERT INTO payee_words
        SELECT number, array_to_tsvector(string_to_array(nullif(words, ''), ' ')) FROM unnest(%s::bigint[], %s::text[])
        u(number, words) WHERE words <> ''"""
    fetch(connection, query, (numbers, words))
