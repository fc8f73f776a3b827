-- The statements of `replay.py` for PostgreSQL.

-- name: opened_batch
-- A batch in the columns of `NewBatch`, after its opening time and the digest of its plan.
SELECT opened_at, plan_sha256, batch, operation, sheet_name, sheet_sha256, rows, defects, sheet_path
FROM batch WHERE number = :batch

-- name: instructions
-- The rows added by a batch.
SELECT number, replaces, row, client_orderid, country, currency, amount, minor, form, fields, payee, content, salt, people_sha256
FROM instruction WHERE batch = :batch ORDER BY number
