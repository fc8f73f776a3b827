-- The statements of `replay.py` for SQLite.

-- name: all_facts
-- The chain from its start, for `verify_links`, with the personal data of its facts.
SELECT f.number, {chained}, f.said_sha256, f.hash, d.salt, d.text, d.customer_url, d.reply_sha256
FROM fact f LEFT JOIN said d ON d.fact = f.number ORDER BY f.number

-- name: last_facts
-- The end of the chain, newest first.
SELECT f.number, {chained}, f.said_sha256, f.hash, f.instruction, f.kind, f.attempt
FROM fact f ORDER BY f.number DESC LIMIT :limit

-- name: ends
-- The given instructions' states and attempts, and the number of the newest fact that moved each.
SELECT s.instruction, s.state, s.attempt, s.fact FROM state s WHERE s.instruction IN (SELECT value FROM carray(:numbers))

-- name: opened_batch
-- A batch in the columns of `NewBatch`, after its opening time and an empty plan digest, which only its fact has.
SELECT opened_at, NULL, batch, operation, sheet_name, sheet_sha256, rows, defects, sheet_path
FROM batch WHERE number = :batch

-- name: instructions
-- The rows added by a batch. Only their numbers are sorted, and the limit preserves the inner order.
SELECT i.number, replaces, row, client_orderid, country, currency, amount, minor, form, fields, payee, {content}, salt, people_sha256
FROM (SELECT number FROM instruction WHERE batch = :batch ORDER BY number LIMIT -1) s
CROSS JOIN instruction i ON i.number = s.number
