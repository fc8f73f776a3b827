-- The statements of `replay.py` that every store runs; `tables.py` says what each writes otherwise.

-- name: batch_ids
-- All batches, with their ids and operations.
SELECT number, batch, operation FROM batch ORDER BY number

-- name: pages
-- The sheet of a batch, page by page.
SELECT number, content FROM page WHERE batch = :batch ORDER BY number

-- name: known_rows
-- The rows of a batch that an earlier one brought.
SELECT row, instruction FROM known WHERE batch = :batch ORDER BY row

-- name: count_instructions
-- The number of instructions.
SELECT count(*) FROM instruction

-- name: count_replies
-- The number of stored replies.
SELECT count(*) FROM reply
