-- The statements of `replay.py` for PostgreSQL.

-- name: opened_batch
-- A batch as `NewBatch` has it, after when it was opened, and the digest of its plan.
SELECT opened_at, plan_sha256, batch, operation, sheet_name, sheet_sha256, rows, defects, sheet_path
FROM batch WHERE number = :batch

-- name: instructions
-- The rows that a batch brought.
SELECT number, replaces, row, client_orderid, country, currency, amount, minor, form, fields, payee, content, salt
FROM instruction WHERE batch = :batch ORDER BY number

-- name: facts_by_instruction
-- By instruction and then in order.
SELECT instruction, number, at, kind, attempt, contradicts, details FROM fact WHERE instruction IS NOT NULL
ORDER BY instruction, nth

-- name: order_ids_by_instruction
-- All order ids.
SELECT instruction, operation, order_id FROM order_id ORDER BY 1, 2, 3

-- name: all_progress
-- All instructions, with their progress.
SELECT p.number, p.batch, p.row, p.client_orderid, p.replaces, {progress} FROM progress p ORDER BY p.number

-- name: reply_of
-- The stored reply for a fact.
SELECT instruction, head, body FROM reply WHERE instruction = :instruction AND nth = :nth
