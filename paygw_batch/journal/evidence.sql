-- The statements of `evidence_log.py` that every store runs; `tables.py` says what each writes otherwise.

-- name: add_evidence
-- Writes one line.
INSERT INTO evidence ({columns}) VALUES ({values})

-- name: evidence_end
-- The end of the chain.
SELECT number, hash FROM evidence ORDER BY number DESC LIMIT 1

-- name: inbox_end
-- How far the inbox has been recorded.
SELECT spooled, spool_hash FROM evidence WHERE spooled IS NOT NULL ORDER BY spooled DESC LIMIT 1

-- name: newest_forgotten_notification
-- The number in the inbox of the newest notification that was forgotten.
SELECT max(spooled) FROM evidence INDEXED BY evidence_forgotten WHERE forgotten IS NOT NULL

-- name: notes
-- The journal's own notes of one kind, oldest first.
SELECT content, taken_at FROM evidence INDEXED BY evidence_by_finding
WHERE finding = :finding AND forgotten IS NULL ORDER BY number

-- name: notes_naming
-- Those of them whose content holds a text.
SELECT content, taken_at FROM evidence INDEXED BY evidence_by_finding
WHERE finding = :finding AND forgotten IS NULL AND strpos(content, :text) > 0 ORDER BY number

-- name: evidence_naming
-- The evidence of one source whose content holds a text, oldest first.
SELECT content, taken_at FROM evidence WHERE source = :source AND strpos(content, :text) > 0 ORDER BY number

-- name: all_evidence
-- The whole chain, oldest first.
SELECT {columns}, forgotten FROM evidence ORDER BY number

-- name: counts
-- The amount of evidence for each finding, without people's decisions.
SELECT finding, count(*) FROM evidence WHERE finding NOT IN ({notes}) GROUP BY 1 ORDER BY 1

-- name: known_as
-- The instructions of every operation that use, or used, an order id, in the columns of `Candidate`.
SELECT i.number, i.client_orderid, i.amount, i.currency, s.state, s.attempt, s.generation, s.possible_duplicate_of,
    n.order_id, s.first_sent IS NULL OR s.first_sent = s.intent, n.at
FROM instruction i {told} WHERE i.number IN (
    SELECT instruction FROM order_id
    WHERE operation IN (SELECT DISTINCT operation FROM batch) AND order_id = :order_id
) ORDER BY i.number

-- name: newest_times
-- The newest time of the facts, and that of the evidence.
SELECT {newest_fact}, (SELECT taken_at FROM evidence ORDER BY number DESC LIMIT 1)

-- name: marks
-- The newest times, as in `newest_times`, how far the inbox has been recorded, and the newest note of the clock.
SELECT {newest_fact}, (SELECT taken_at FROM evidence ORDER BY number DESC LIMIT 1), taken.spooled, taken.spool_hash,
    (SELECT content FROM evidence INDEXED BY evidence_by_finding WHERE finding = :clock AND instruction IS NULL
    ORDER BY number DESC LIMIT 1)
FROM (SELECT 1) one LEFT JOIN (
    SELECT spooled, spool_hash FROM evidence WHERE spooled IS NOT NULL ORDER BY spooled DESC LIMIT 1
) taken ON 1 = 1

-- name: fact_of_evidence
-- The fact that a line of evidence names, and whether it moved its row.
SELECT f.instruction, f.attempt, NOT EXISTS (SELECT 1 FROM contradiction c WHERE c.fact = f.number), f.kind
FROM fact f WHERE f.number = :fact

-- name: ready_and_held
-- Those of some instructions that are ready, and whether evidence holds them.
SELECT s.instruction, EXISTS (SELECT 1 FROM unanswered e WHERE e.instruction = s.instruction)
FROM state s WHERE s.instruction = ANY (:numbers) AND s.state = 'ready'

-- name: contested
-- Those of some instructions that evidence speaks against.
SELECT DISTINCT instruction FROM unanswered WHERE instruction = ANY (:numbers)

-- part: about_batch
-- The rows of a batch about which there is evidence `e`: from the evidence to its rows.
JOIN instruction i ON i.number = e.instruction
    JOIN batch b ON b.number = coalesce(CAST(:batch AS BIGINT), i.batch)
    LEFT JOIN known k ON k.batch = b.number AND k.instruction = e.instruction AND i.batch <> b.number

-- name: holds
-- The ready rows of a batch that evidence holds, with all of it, the latest last.
SELECT coalesce(k.row, i.row), e.number, e.source, e.said, e.taken_at
FROM unanswered e {about_batch} JOIN state s ON s.instruction = i.number
WHERE s.state = 'ready' AND (k.row IS NOT NULL OR i.batch = b.number) ORDER BY 1, 2

-- name: contradictions
-- The facts that changed nothing, of one batch or of all, except those that a person has answered since.
SELECT e.number, b.batch, coalesce(k.row, i.row), i.client_orderid, x.state, e.kind, e.attempt, e.at
FROM contradiction x CROSS JOIN fact e ON e.number = x.fact {about_batch}
WHERE (k.row IS NOT NULL OR i.batch = b.number) AND NOT EXISTS (
    SELECT 1 FROM evidence answer WHERE answer.instruction = e.instruction
        AND answer.finding = 'resolved' AND answer.fact > e.number
) ORDER BY e.number

-- name: waiting
-- The evidence that waits for a person, of one batch or of all: its row has not moved since. Within the same
-- instant, numbers decide instead of times.
SELECT e.number, b.batch, coalesce(k.row, i.row), i.client_orderid, s.state, e.finding, e.said, e.source, e.taken_at
FROM evidence e {about_batch} JOIN state s ON s.instruction = i.number LEFT JOIN fact f ON f.number = s.fact
WHERE e.finding IN ({for_a_person}) AND (k.row IS NOT NULL OR i.batch = b.number)
    AND coalesce(f.at, '') <= e.taken_at AND NOT EXISTS (
        SELECT 1 FROM evidence later WHERE later.instruction = e.instruction
            AND later.finding = 'moved' AND later.number > e.number
    ) ORDER BY e.number

-- name: counts_of_batch
-- The amount of evidence for each finding about the rows of a batch.
SELECT e.finding, count(*) FROM evidence e {about_batch}
WHERE e.finding NOT IN ({notes}) AND (k.row IS NOT NULL OR i.batch = b.number) GROUP BY 1 ORDER BY 1
