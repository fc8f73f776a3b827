-- The statements of `evidence.py` for all stores. `tables.py` adapts them to each store.

-- part: notes_of_kind
-- The facts of one kind about the whole journal, in the columns of `parse_note`, except those whose texts were forgotten.
SELECT f.by, f.agreement, f.details, d.text, f.at
FROM fact f INDEXED BY fact_of_journal LEFT JOIN said d ON d.fact = f.number
WHERE f.kind = :kind AND f.instruction IS NULL AND f.batch IS NULL AND (f.said_sha256 IS NULL OR d.fact IS NOT NULL)

-- name: notes
-- All facts of one kind about the whole journal, oldest first.
{notes_of_kind} ORDER BY f.number

-- name: newest_notes
-- The newest facts of one kind about the whole journal, newest first.
{notes_of_kind} ORDER BY f.number DESC LIMIT :limit

-- name: withdrawn
-- Whether a document was withdrawn.
SELECT 1 FROM fact f INDEXED BY fact_of_journal
WHERE f.kind = 'withdrawn' AND f.instruction IS NULL AND f.batch IS NULL AND f.agreement = :sha256 LIMIT 1

-- name: readings
-- The facts about readings of a statement file, oldest first.
SELECT details, at FROM (
    SELECT f.number, f.details, f.at FROM fact f INDEXED BY fact_heard
    WHERE f.finding IS NOT NULL AND f.source = 'statement' AND strpos(f.details, :sha256) > 0
    UNION ALL
    SELECT f.number, f.details, f.at FROM fact f INDEXED BY fact_of_journal
    WHERE f.kind = 'carried_out' AND f.instruction IS NULL AND f.batch IS NULL AND strpos(f.details, :sha256) > 0
) read_before ORDER BY number

-- part: last_taken_in
-- The fact about the last processed notification.
coalesce((SELECT CAST(t.details AS BIGINT) FROM fact t INDEXED BY fact_of_journal
    WHERE t.kind = 'taken_in' AND t.instruction IS NULL AND t.batch IS NULL ORDER BY t.number DESC LIMIT 1), 0)

-- name: taken_in
-- The fact number of the last processed notification, or 0.
SELECT {last_taken_in}

-- name: arrivals
-- The unprocessed notifications, oldest first.
SELECT f.number, d.text FROM fact f INDEXED BY fact_of_journal JOIN said d ON d.fact = f.number
WHERE f.kind = 'arrived' AND f.instruction IS NULL AND f.batch IS NULL AND f.number > {last_taken_in} ORDER BY f.number LIMIT :limit

-- name: newest_time
-- The time of the newest fact.
SELECT {newest_fact}

-- name: counts
-- The number of facts with each finding, except people's decisions.
SELECT finding, count(*) FROM fact INDEXED BY fact_heard WHERE finding IS NOT NULL AND finding <> 'resolved'
GROUP BY 1 ORDER BY 1

-- name: instructions_with_order_id
-- The instructions, of any operation, that use or have used an order id, in the columns of `Candidate`.
SELECT i.number, i.client_orderid, i.amount, i.currency, s.state, s.attempt, s.generation, s.possible_duplicate_of,
    n.order_id, (s.first_sent IS NULL OR s.first_sent = s.intent) AND s.inherited_attempts = 0, n.at, n.endpoint_id
FROM instruction i {with_state} WHERE i.number IN (
    SELECT instruction FROM order_id
    WHERE operation IN (SELECT DISTINCT operation FROM batch) AND order_id = :order_id
) ORDER BY i.number

-- name: ready_and_held
-- The given instructions that are ready, and whether they are held by evidence.
SELECT s.instruction, EXISTS (SELECT 1 FROM unanswered e WHERE e.instruction = s.instruction)
FROM state s WHERE s.instruction = ANY (:numbers) AND s.state = 'ready'

-- name: contested
-- The given instructions that evidence contradicts, in any state.
SELECT DISTINCT instruction FROM unanswered WHERE instruction = ANY (:numbers)

-- part: about_batch
-- The rows of a batch that the facts `e` are about.
JOIN instruction i ON i.number = e.instruction
    JOIN batch b ON b.number = coalesce(CAST(:batch AS BIGINT), i.batch)
    LEFT JOIN known k ON k.batch = b.number AND k.instruction = e.instruction AND i.batch <> b.number

-- name: holds
-- The held rows of a batch, with all evidence that holds them, oldest first.
SELECT coalesce(k.row, i.row), s.state, e.number, e.source, e.means, e.at, d.text
FROM unanswered e {about_batch} JOIN state s ON s.instruction = i.number LEFT JOIN said d ON d.fact = e.number
WHERE s.state IN ({holdable}) AND (k.row IS NOT NULL OR i.batch = b.number) ORDER BY 1, 3

-- name: contradictions
-- The facts that changed nothing and that nobody has answered yet, about one batch or all.
SELECT e.number, b.batch, coalesce(k.row, i.row), i.client_orderid, x.state, e.kind, e.attempt, e.at
FROM contradiction x CROSS JOIN fact e ON e.number = x.fact {about_batch}
WHERE (k.row IS NOT NULL OR i.batch = b.number) AND NOT EXISTS (
    SELECT 1 FROM fact answer WHERE answer.instruction = e.instruction
        AND answer.finding = 'resolved' AND answer.number > e.number
) ORDER BY e.number

-- name: waiting
-- The evidence that a person must check, because its row has not moved since or is held by it, about one batch or all.
SELECT e.number, b.batch, coalesce(k.row, i.row), i.client_orderid, s.state, e.finding, e.means, e.source, e.at
FROM fact e {about_batch} JOIN state s ON s.instruction = i.number
WHERE e.finding IN ({for_a_person}) AND (k.row IS NOT NULL OR i.batch = b.number) AND (coalesce(s.fact, 0) < e.number
    OR s.state IN ({holdable}) AND EXISTS (SELECT 1 FROM unanswered u WHERE u.number = e.number))
ORDER BY e.number

-- name: counts_of_batch
-- The number of facts with each finding about a batch's rows.
SELECT e.finding, count(*) FROM fact e {about_batch}
WHERE e.finding IS NOT NULL AND e.finding <> 'resolved' AND (k.row IS NOT NULL OR i.batch = b.number)
GROUP BY 1 ORDER BY 1

-- name: lost_orders
-- The recorded orders of lost commits.
SELECT d.text FROM fact f JOIN said d ON d.fact = f.number WHERE f.finding = 'unknown_order' AND f.source = 'witness'

-- name: recorded_losses
-- The given instructions' lost attempts that were already restored or held, by the names of their commits.
SELECT instruction, nonce FROM fact WHERE kind = 'intended' AND instruction = ANY (:numbers)
UNION ALL
SELECT instruction, details FROM fact INDEXED BY fact_heard
WHERE finding IS NOT NULL AND finding = 'ambiguous' AND source = 'witness' AND instruction = ANY (:numbers)
