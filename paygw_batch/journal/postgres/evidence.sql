-- The statements of `evidence_log.py` and of `states.py` for PostgreSQL.

-- part: newest_fact
-- The newest time of the facts.
(SELECT max(head_at) FROM segment)

-- name: withdraw_in_turn
-- A person can withdraw a plan while another process has the desk and opens its batch: one of them is first.
SELECT pg_advisory_xact_lock(7022)

-- name: lock_rows
-- Waits for who moves these instructions now; nobody else does until the transaction ends.
SELECT lock_rows(:numbers)

-- name: due_of_chunk
-- The rows of a batch in one chunk: those that it brought, or those that it also covers.
WITH c AS MATERIALIZED (
    SELECT i.row, i.number AS instruction FROM chunk r JOIN instruction i ON i.number BETWEEN r.first AND r.last
    WHERE r.number = :chunk AND i.batch = :batch
    UNION ALL
    SELECT k.row, k.instruction FROM chunk r JOIN known k ON k.instruction BETWEEN r.first AND r.last
    WHERE r.number = :chunk AND k.batch = :batch
) {due_columns}

-- name: spelled_as_lost
-- The instructions from `first` on that go by one of some order ids, in any spelling, and are not held for it yet.
SELECT o.instruction, min(o.order_id) FROM order_id o WHERE o.spelling = ANY (:spellings) AND o.instruction >= :first
    AND NOT EXISTS (SELECT FROM unanswered e WHERE e.instruction = o.instruction AND e.source = 'witness')
GROUP BY 1 ORDER BY 1
