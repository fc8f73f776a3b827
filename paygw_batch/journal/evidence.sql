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
-- The instructions of every operation that use, or used, an order id.
SELECT p.number, p.client_orderid, p.amount, p.currency, {progress}
FROM progress p WHERE p.number IN (
    SELECT instruction FROM order_id
    WHERE operation IN (SELECT DISTINCT operation FROM batch) AND order_id = :order_id
) ORDER BY p.number
