-- The statements of `replay.py` for all stores. `tables.py` adapts them to each store.

-- name: batch_ids
-- All batches, with their ids and operations.
SELECT number, batch, operation FROM batch ORDER BY number

-- name: facts_of_batches
-- The facts about whole batches, in order.
SELECT batch, at, kind, details FROM fact INDEXED BY fact_of_batch WHERE batch IS NOT NULL ORDER BY number

-- name: pages
-- The sheet of a batch, page by page.
SELECT number, content FROM page WHERE batch = :batch ORDER BY number

-- name: known_rows
-- The rows of a batch that an earlier batch already had.
SELECT row, instruction FROM known WHERE batch = :batch ORDER BY row

-- name: count_instructions
-- The number of instructions.
SELECT count(*) FROM instruction

-- name: facts_by_instruction
-- The facts about instructions, by instruction and number, with the state that a fact did not fit, if any.
SELECT f.instruction, f.number, f.kind, f.attempt, f.order_id, c.state
FROM fact f LEFT JOIN contradiction c ON c.fact = f.number WHERE f.instruction IS NOT NULL AND f.kind <> 'heard'
ORDER BY f.instruction, f.number

-- name: order_ids_by_instruction
-- Order ids by instruction.
SELECT instruction, operation, order_id FROM order_id ORDER BY 1, 2, 3

-- name: all_states
-- All instructions with their states.
SELECT i.number, i.batch, i.row, i.client_orderid, i.replaces, s.batch, s.country = i.country AND s.currency = i.currency
    AND s.minor = i.minor, s.state, s.attempt, s.generation, s.possible_duplicate_of, s.inherited_attempts, s.order_id,
    s.intent, s.first_sent, s.fact
FROM instruction i LEFT JOIN state s ON s.instruction = i.number ORDER BY i.number

-- name: all_replies
-- The stored replies, with the digests in their facts.
SELECT r.fact, r.instruction = f.instruction, r.head, r.body, d.reply_sha256
FROM reply r JOIN fact f ON f.number = r.fact LEFT JOIN said d ON d.fact = r.fact ORDER BY 1

-- name: count_expected_replies
-- The number of replies that facts refer to.
SELECT count(reply_sha256) FROM said

-- name: missing_personal_data
-- The facts whose personal data is missing although it was not forgotten. Facts without an instruction are forgotten if they are
-- from before a time, notifications once they were processed, and orders with the rows that they name.
SELECT f.number FROM fact f LEFT JOIN instruction i ON i.number = f.instruction
WHERE f.said_sha256 IS NOT NULL AND NOT EXISTS (SELECT 1 FROM said d WHERE d.fact = f.number) AND NOT CASE
    WHEN f.instruction IS NULL THEN f.kind = 'heard' AND f.source <> 'witness' AND f.at < :before OR f.number = ANY (:orders)
        OR f.kind = 'arrived' AND f.number <= {last_taken_in} AND EXISTS (
            SELECT 1 FROM fact g INDEXED BY fact_of_batch WHERE g.batch IS NOT NULL AND g.kind = 'batch_forgotten' AND g.number > f.number)
    ELSE i.salt IS NULL AND EXISTS (
        SELECT 1 FROM fact g WHERE g.batch = i.batch AND g.kind = 'batch_forgotten' AND g.number > f.number) END
ORDER BY 1 LIMIT 1

-- name: wrong_findings
-- The facts whose effect on their row contradicts their own finding.
SELECT f.number FROM fact f LEFT JOIN contradiction c ON c.fact = f.number
WHERE f.finding IN ('moved', 'contradicting', 'resolved') AND ((c.fact IS NULL) <> (f.finding <> 'contradicting')
    OR CASE f.finding WHEN 'resolved' THEN f.kind NOT IN ({resolutions}) ELSE f.kind <> coalesce(f.means, '') END)
ORDER BY 1 LIMIT 1

-- name: count_evidence
-- The number of facts with evidence.
SELECT count(*) FROM fact WHERE finding IS NOT NULL

-- name: facts_with_none_text
-- The facts with a text that has the same hash as an empty column. None is ever written.
SELECT f.number FROM fact f WHERE (f.order_id = 'None' AND f.kind NOT IN ('intended', 'released')) OR 'None' IN (
    f.nonce, f.purpose, f.endpoint_id, f.gateway_status, f.gateway_reference, f.error_code, f.cause, f.source, f.finding, f.means,
    f.by, f.basis, f.agreement, f.details
) ORDER BY 1 LIMIT 1

-- name: count_dependent_lines
-- The number of lines in each other table, and of lines with personal data but without a fact.
SELECT (SELECT count(*) FROM state), (SELECT count(*) FROM contradiction), (SELECT count(*) FROM reply),
    (SELECT count(*) FROM said d WHERE NOT EXISTS (SELECT 1 FROM fact f WHERE f.number = d.fact))

-- name: moves
-- The state machine of the tables.
SELECT before, kind, after, attempts, generations, is_marking, is_sending FROM move
