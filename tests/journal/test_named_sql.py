"""The SQL of the stores: each statement has a name and a comment, and both stores have the same names."""

import re
from collections import defaultdict
from pathlib import Path

import pytest

from paygw_batch.journal.sqlite import sqlite_tables
from paygw_batch.journal.tables import ON_POSTGRES, ON_SQLITE, named_sql
from tests.support.checkout import ROOT
from tests.support.journal_rows import memory_journal

JOURNAL = ROOT / "paygw_batch" / "journal"
OF_ONE_STORE = {
    "evidence.sql": {"left_in_flight", "lock_rows", "lock_withdrawals"},
    "replay.sql": {"all_facts", "ends", "last_facts"},
    "outbox.sql": {"newest_of_run", "end_runs", "may_decide"},
    "journal.sql": {
        *("add_spelling", "add_reference", "odd_ids", "odd_ids_from", "references", "spellings"),
        *("first_rows", "newest_fact_time", "chain_ends", "note_in_turn"),
    },
}
"""Statements that the other store does not need."""
FILES = sorted(path for path in JOURNAL.rglob("*.sql") if "-- name: " in path.read_text(encoding="utf-8"))


def test_query_is_rendered_for_each_database(tmp_path: Path) -> None:
    package = tmp_path / "some_queries"
    (package / "here").mkdir(parents=True)
    (package / "here" / "found.sql").write_text(
        "-- About this store.\n\n-- part: open\n-- Not paid.\nstate <> {paid}\n"
    )
    (package / "found.sql").write_text(
        "-- About the file.\n\n-- name: one\n-- One row: of many.\n"
        "SELECT a::text FROM t INDEXED BY i WHERE {open} AND b = :b AND c LIKE '%x' AND d = :long_name\n\n"
        "-- name: two\n-- All.\nSELECT '100%'\n",
        encoding="utf-8",
    )
    for folder in (package, package / "here"):
        (folder / "__init__.py").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        plain = named_sql("some_queries.here", ("found.sql",), {"paid": "'paid'"}, ON_SQLITE)
        psycopg = named_sql("some_queries.here", ("found.sql",), {"paid": "'paid'"}, ON_POSTGRES, is_psycopg=True)
    assert plain["one"] == (
        "SELECT a::text FROM t INDEXED BY i WHERE state <> 'paid' AND b = :b AND c LIKE '%x' AND d = :long_name"
    )
    expected = plain["one"].replace(" INDEXED BY i", "").replace(":b", "%(b)s").replace(":long_name", "%(long_name)s")
    assert psycopg["one"] == expected.replace("'%x'", "'%%x'")
    assert psycopg["two"] == plain["two"] == "SELECT '100%'"


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_each_statement_has_comment_and_unique_name(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    names = re.findall(r"^-- (?:name|part): (\w+)$", text, re.MULTILINE)
    assert (
        len(names) == len(set(names)) == len(re.findall(r"^-- (?:name|part): \w+\n-- [A-Z].*\.?\n", text, re.MULTILINE))
    )


@pytest.mark.parametrize("file", OF_ONE_STORE)
def test_both_databases_have_all_shared_statements(file: str) -> None:
    shared, *stores = (
        set(re.findall(r"^-- name: (\w+)$", (JOURNAL / place / file).read_text(encoding="utf-8"), re.MULTILINE))
        for place in (".", "sqlite", "postgres")
    )
    assert stores[0] ^ stores[1] == OF_ONE_STORE[file]
    assert shared.isdisjoint(stores[0] | stores[1])


@pytest.mark.parametrize("name", ["holds", "waiting", "contradictions", "counts_of_batch", "history", "payments"])
def test_rare_rows_are_found_without_full_scan(name: str) -> None:
    connection = memory_journal()._connection
    plan = [
        line[3] for line in connection.execute(f"EXPLAIN QUERY PLAN {sqlite_tables.QUERIES[name]}", defaultdict(int))
    ]
    assert not [step for step in plan if step.startswith(("MATERIALIZE covered", "SCAN instruction", "SCAN i"))]
