-- The statements of `evidence_log.py` for SQLite.

-- part: unanswered
-- Whether a line `e` of evidence says that the gateway has its row, and no person has answered it since.
e.finding IN ('contradicting', 'ambiguous')
    AND (e.finding = 'contradicting' OR (e.finding = 'ambiguous' AND e.said IN ({has_it})))
    AND NOT EXISTS (
        SELECT 1 FROM evidence answer
        WHERE answer.instruction = e.instruction AND answer.finding = 'resolved' AND answer.number > e.number
    )

-- part: is_contested
-- Whether evidence speaks against sending an instruction `p`. A ready one is held.
EXISTS (SELECT 1 FROM evidence e WHERE e.instruction = p.number AND {unanswered})

-- part: held_rows
-- The ready instructions of a batch that evidence holds, each once for any number of contradictions.
SELECT p.country, p.currency, p.minor FROM evidence e CROSS JOIN progress p ON p.number = e.instruction
WHERE {unanswered} AND p.state = 'ready' AND (p.batch = :batch OR EXISTS (
    SELECT 1 FROM known k WHERE k.batch = :batch AND k.instruction = p.number
)) GROUP BY p.number

-- name: due
-- The rows of a batch that may be sent, in the sheet's order, each with its newest fact.
SELECT p.number, c.row, p.client_orderid, p.country, p.currency, p.amount, p.form, p.fields, p.order_id,
    p.attempt, p.generation, p.possible_duplicate_of, p.inherited_attempts,
    (SELECT f.kind || ' ' || f.attempt FROM fact f INDEXED BY fact_of_instruction
    WHERE f.instruction = p.number AND f.contradicts IS NULL ORDER BY f.seq DESC LIMIT 1)
FROM covered c JOIN progress p ON p.number = c.instruction
WHERE c.batch = :batch AND c.row > :after AND p.state = 'ready' AND p.forgotten IS NULL AND NOT {is_contested}
ORDER BY c.row LIMIT :limit

-- name: newest_times
-- The newest time of the facts, and that of the evidence.
SELECT (SELECT at FROM fact ORDER BY seq DESC LIMIT 1), (SELECT taken_at FROM evidence ORDER BY number DESC LIMIT 1)

-- name: marks
-- The newest times, as in `newest_times`, how far the inbox has been recorded, and the newest note of the clock.
SELECT (SELECT at FROM fact ORDER BY seq DESC LIMIT 1), (SELECT taken_at FROM evidence ORDER BY number DESC LIMIT 1),
    taken.spooled, taken.spool_hash,
    (SELECT content FROM evidence INDEXED BY evidence_by_finding WHERE finding = :clock AND instruction IS NULL
    ORDER BY number DESC LIMIT 1)
FROM (SELECT 1) LEFT JOIN (
    SELECT spooled, spool_hash FROM evidence WHERE spooled IS NOT NULL ORDER BY spooled DESC LIMIT 1
) taken

-- name: fact_of_evidence
-- The fact that a line of evidence names.
SELECT instruction, attempt, contradicts IS NULL, kind FROM fact WHERE seq = :fact

-- name: ready_and_held
-- Those of some instructions that are ready, and whether evidence holds them.
SELECT p.number, {is_contested} FROM carray(:numbers) wanted JOIN progress p ON p.number = wanted.value
WHERE p.state = 'ready'

-- name: contested
-- Those of some instructions that evidence speaks against.
SELECT p.value FROM (SELECT value, value AS number FROM carray(:numbers)) p WHERE {is_contested}

-- name: holds
-- The ready rows of a batch that evidence holds, each with the latest of it. From the evidence to its rows: through
-- `covered`, one held row would have all rows of the batch read.
SELECT row, max(number), source, said, taken_at FROM (
    SELECT p.row, e.number, e.source, e.said, e.taken_at FROM evidence e INDEXED BY evidence_by_finding
    CROSS JOIN progress p ON p.number = e.instruction
    WHERE p.batch = :batch AND p.state = 'ready' AND {unanswered}
    UNION ALL
    SELECT k.row, e.number, e.source, e.said, e.taken_at FROM evidence e INDEXED BY evidence_by_finding
    CROSS JOIN known k ON k.batch = :batch AND k.instruction = e.instruction
    CROSS JOIN progress p ON p.number = e.instruction
    WHERE p.state = 'ready' AND {unanswered}
) GROUP BY row ORDER BY row

-- name: contradictions
-- The facts that changed nothing, of one batch or of all, except those that a person has answered since.
SELECT f.seq, b.batch, c.row, i.client_orderid, f.contradicts, f.kind, f.attempt, f.at
FROM fact f JOIN instruction i ON i.number = f.instruction
JOIN covered c ON c.instruction = i.number AND c.batch = coalesce(:batch, i.batch)
JOIN batch b ON b.number = c.batch
WHERE f.contradicts IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM evidence answer WHERE answer.instruction = f.instruction
        AND answer.finding = 'resolved' AND answer.fact > f.seq
) ORDER BY f.seq

-- name: waiting
-- The evidence that waits for a person, of one batch or of all: its row has not moved since. Within the same
-- instant, numbers decide instead of times.
SELECT e.number, b.batch, c.row, p.client_orderid, p.state, e.finding, e.said, e.source, e.taken_at
FROM evidence e INDEXED BY evidence_by_finding JOIN progress p ON p.number = e.instruction
JOIN covered c ON c.instruction = p.number AND c.batch = coalesce(:batch, p.batch)
JOIN batch b ON b.number = c.batch
WHERE e.finding IN ({for_a_person}) AND coalesce(p.updated_at, '') <= e.taken_at AND NOT EXISTS (
    SELECT 1 FROM evidence later WHERE later.instruction = e.instruction
        AND later.finding = 'moved' AND later.number > e.number
) ORDER BY e.number

-- name: counts_of_batch
-- From the evidence to its rows: if evidence is rare, no row of the batch has to be read.
SELECT finding, count(*) FROM (
    SELECT e.finding FROM evidence e INDEXED BY evidence_by_finding
    CROSS JOIN instruction i ON i.number = e.instruction WHERE i.batch = :batch
    UNION ALL
    SELECT e.finding FROM evidence e INDEXED BY evidence_by_finding
    CROSS JOIN known k ON k.batch = :batch AND k.instruction = e.instruction
) WHERE finding NOT IN ({notes}) GROUP BY 1 ORDER BY 1
