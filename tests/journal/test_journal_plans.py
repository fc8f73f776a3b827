"""A plan opens one batch, once. The opening fact has the plan's digest, and an index finds it."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import apsw
import pytest

from paygw_batch.errors import InternalError, JournalCorrupt
from paygw_batch.journal.facts import decode_batch, encode_batch
from paygw_batch.journal.new_batch import BatchPart, InstructionRows
from paygw_batch.journal.values import BatchRecord, NewBatch
from tests.support.journal_rows import AT, OPERATION, journal_path, new_instruction, open_journal_at, read_journal_at
from tests.support.tested_journal import Journal

PLAN = "d" * 64
WITHOUT_A_PLAN = (
    '{"approvals":["prepared by ada"],"batch":"b1","by":"ada","defects":0,"first_instruction":1,"instructions":1,'
    '"instructions_sha256":"aa","known":0,"known_sha256":"bb","operation":"payout","pages":1,"pages_sha256":"cc",'
    '"rows":1,"sheet_name":"payroll.csv","sheet_path":"/payroll.csv","sheet_sha256":"dd","totals":{"KES":[1,150050]}}'
)


def open_batch(journal: Journal, batch: str, plan_sha256: str) -> BatchRecord:
    row = {"b1": 2, "b2": 3, "b3": 4}[batch]
    return journal.open_batch(
        replace(NewBatch(batch, OPERATION, "payroll.csv", f"sha-{batch}", 1, 0), plan_sha256=plan_sha256),
        parts=[BatchPart([b"page"], InstructionRows([new_instruction(row)]))],
        known=[],
        amendments=[],
        at=AT,
    )


def test_opened_batch_is_found_by_plan(journal: Journal) -> None:
    first, second = open_batch(journal, "b1", PLAN), open_batch(journal, "b2", "e" * 64)
    open_batch(journal, "b3", "")
    assert journal.batches(plan_sha256=PLAN) == [first]
    assert journal.batches(plan_sha256="e" * 64) == [second]
    assert journal.batches(plan_sha256="f" * 64) == []
    assert journal.verify()["batches"] == 3


def test_plan_opens_no_second_batch(journal: Journal) -> None:
    first = open_batch(journal, "b1", PLAN)
    head = journal.head()
    with pytest.raises(InternalError, match="was about to open another"):
        open_batch(journal, "b2", PLAN)
    assert (journal.head(), journal.batches()) == (head, [first])
    assert open_batch(journal, "b2", "").batch == "b2"


def test_batches_without_plan_are_unlimited(journal: Journal) -> None:
    for batch in ("b1", "b2", "b3"):
        open_batch(journal, batch, "")
    assert len(journal.batches()) == 3


def test_journal_id_is_same_for_reader(place: Path) -> None:
    journal = open_journal_at(place)
    journal_id = journal.head().journal_id
    reader = read_journal_at(place)
    assert (len(journal_id), reader.head().journal_id) == (32, journal_id)
    reader.close()
    journal.close()


def test_plan_lookup_uses_unique_index(place: Path) -> None:
    journal = open_journal_at(place)
    open_batch(journal, "b1", PLAN)
    journal.close()
    with closing(apsw.Connection(str(journal_path(place)))) as connection:
        plan = connection.execute(
            "EXPLAIN QUERY PLAN SELECT batch FROM fact "
            "WHERE kind = 'batch_opened' AND json_extract(details, '$.plan_sha256') = ?",
            (PLAN,),
        )
        assert "fact_opening_by_plan" in " ".join(str(line[-1]) for line in plan)
        with pytest.raises(apsw.ConstraintError, match="fact_opening_by_plan"):
            connection.execute(
                "INSERT INTO fact (number, at, kind, batch, details, hash) "
                "SELECT number + 1, at, kind, batch, details, hash FROM fact"
            )


def test_opening_without_plan_omits_plan_field() -> None:
    read = decode_batch(WITHOUT_A_PLAN)
    assert read.plan_sha256 == ""
    assert encode_batch(read) == WITHOUT_A_PLAN
    with pytest.raises(JournalCorrupt):
        decode_batch(WITHOUT_A_PLAN.replace('"rows"', '"plan_sha256":"","rows"'))
