-- The statements of `evidence_log.py` for PostgreSQL.

-- part: progress_of_evidence
-- OFFSET 0: its row is looked up for each, and never all rows of the journal for some of them.
CROSS JOIN LATERAL (SELECT * FROM progress WHERE number = e.instruction OFFSET 0) p

-- part: about
-- The rows of a batch that it brought are in its chunks, and looked up by their numbers.
e.instruction BETWEEN (SELECT min(first) FROM chunk WHERE batch = :batch)
            AND (SELECT max(last) FROM chunk WHERE batch = :batch)

-- part: evidence_about
-- The evidence about the rows of a batch; all of it for no batch.
(SELECT e.*, NULL::bigint AS row FROM evidence e WHERE :batch::bigint IS NULL
    UNION ALL
    SELECT e.*, NULL::bigint FROM evidence e WHERE {about}
    UNION ALL
    SELECT e.*, k.row FROM known k JOIN evidence e ON e.instruction = k.instruction WHERE k.batch = :batch) e

-- part: unanswered_about
-- Of the evidence about the rows of a batch, that which says that the gateway has its row, unanswered since.
(SELECT e.*, NULL::bigint AS row FROM unanswered e WHERE {about}
    UNION ALL
    SELECT e.*, k.row FROM known k JOIN unanswered e ON e.instruction = k.instruction WHERE k.batch = :batch) e

-- name: evidence_in_turn
-- One transaction at a time writes evidence: a person can withdraw a plan while another process has the desk.
SELECT pg_advisory_xact_lock(7022)

-- name: newest_times
-- The newest time of the facts, and that of the evidence.
SELECT (SELECT max(head_at) FROM segment), (SELECT taken_at FROM evidence ORDER BY number DESC LIMIT 1)

-- name: marks
-- The newest times, as in `newest_times`, how far the inbox has been recorded, and the newest note of the clock.
SELECT (SELECT max(head_at) FROM segment), (SELECT taken_at FROM evidence ORDER BY number DESC LIMIT 1),
    taken.spooled, taken.spool_hash,
    (SELECT content FROM evidence WHERE finding = :clock ORDER BY number DESC LIMIT 1)
FROM (SELECT 1) one LEFT JOIN (
    SELECT spooled, spool_hash FROM evidence WHERE spooled IS NOT NULL ORDER BY spooled DESC LIMIT 1
) taken ON true

-- name: fact_of_evidence
-- The fact that a line of evidence names.
SELECT instruction, attempt, contradicts IS NULL, kind FROM fact WHERE instruction = :instruction AND number = :fact

-- name: lock_rows
-- Waits for who moves these instructions now; nobody else does until the transaction ends.
SELECT lock_standing(:numbers)

-- name: ready_and_held
-- Those of some instructions that are ready, and whether evidence holds them.
SELECT p.number, EXISTS (SELECT FROM unanswered e WHERE e.instruction = p.number)
FROM progress p WHERE p.number = ANY (:numbers) AND p.state = 'ready'

-- name: contested
-- Those of some instructions that evidence speaks against.
SELECT DISTINCT instruction FROM unanswered WHERE instruction = ANY (:numbers)

-- name: holds
-- The ready rows of a batch that evidence holds, each with the latest of it.
SELECT DISTINCT ON (1) coalesce(e.row, p.row), e.number, e.source, e.said, e.taken_at
FROM {unanswered_about} {progress_of_evidence}
WHERE p.state = 'ready' ORDER BY 1, e.number DESC

-- name: contradictions
-- The facts that changed nothing, of one batch or of all, except those that a person has answered since.
SELECT f.number, b.batch, coalesce(f.row, i.row), i.client_orderid, f.contradicts, f.kind, f.attempt, f.at
FROM (
    SELECT f.*, NULL::bigint AS row FROM fact f WHERE f.contradicts IS NOT NULL AND :batch::bigint IS NULL
    UNION ALL
    SELECT f.*, NULL::bigint FROM fact f WHERE f.contradicts IS NOT NULL AND f.batch = :batch
    UNION ALL
    SELECT f.*, k.row FROM known k JOIN fact f ON f.instruction = k.instruction
        WHERE k.batch = :batch AND f.contradicts IS NOT NULL
) f CROSS JOIN LATERAL (SELECT * FROM instruction WHERE number = f.instruction OFFSET 0) i
JOIN batch b ON b.number = coalesce(:batch, i.batch)
WHERE NOT EXISTS (
    SELECT FROM evidence answer JOIN fact word ON word.instruction = f.instruction AND word.number = answer.fact
    WHERE answer.instruction = f.instruction AND answer.finding = 'resolved' AND word.nth > f.nth
) ORDER BY f.number

-- name: waiting
-- The evidence that waits for a person, of one batch or of all: its row has not moved since. Within the same
-- instant, numbers decide instead of times.
SELECT e.number, b.batch, coalesce(e.row, p.row), p.client_orderid, p.state, e.finding, e.said, e.source, e.taken_at
FROM {evidence_about} {progress_of_evidence} JOIN batch b ON b.number = coalesce(:batch, p.batch)
WHERE e.finding IN ({for_a_person}) AND coalesce(p.updated_at, '') <= e.taken_at AND NOT EXISTS (
    SELECT FROM evidence later WHERE later.instruction = e.instruction
        AND later.finding = 'moved' AND later.number > e.number
) ORDER BY e.number

-- name: counts_of_batch
-- The same, of the rows of a batch.
SELECT e.finding, count(*) FROM {evidence_about} WHERE e.finding NOT IN ({notes}) GROUP BY 1 ORDER BY 1

-- name: lost_orders
-- What is kept about orders that left by commits which the database has lost.
SELECT content FROM evidence WHERE source = 'witness' AND finding = 'unknown_order'

-- name: spelled_as_lost
-- The instructions from `first` on that go by one of some order ids, in any spelling, and are not held for it yet.
SELECT o.instruction, min(o.order_id) FROM order_id o WHERE o.spelling = ANY (:spellings) AND o.instruction >= :first
    AND NOT EXISTS (SELECT FROM evidence e WHERE e.instruction = o.instruction AND e.source = 'witness')
GROUP BY 1 ORDER BY 1
