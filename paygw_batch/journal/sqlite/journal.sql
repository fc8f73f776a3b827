-- The statements of `journal.py` for SQLite.

-- part: batches_as_recorded
-- Batches in the columns of `BatchRecord`.
SELECT b.number, b.batch, b.operation, b.sheet_name, b.sheet_sha256, b.rows, b.defects, b.opened_at, b.sheet_path,
    coalesce(r.reference, '')
FROM batch b LEFT JOIN batch_reference r ON r.batch = b.number

-- part: spelled
-- The order ids of an operation in one spelling. Without the index's name, SQLite would use the table's key, of
-- which only the operation is known, and read all ids.
SELECT order_id, instruction FROM order_id INDEXED BY order_id_in_one_case
WHERE operation = :operation AND lower(order_id) = :spelling
UNION ALL
SELECT o.order_id, o.instruction FROM order_id_spelling s JOIN order_id o USING (operation, order_id)
WHERE s.operation = :operation AND s.spelling = :spelling

-- name: batches_of_plan
-- The batch opened by a plan.
{batches_as_recorded} WHERE b.number IN (
    SELECT batch FROM fact WHERE kind = 'batch_opened' AND json_extract(details, '$.plan_sha256') = :plan_sha256
) ORDER BY 1

-- name: compare
-- The instruction with a row's order id, and whether its original id and content are those of the row. The content of
-- a forgotten payee never matches.
SELECT :row, :order_id, i.number, i.client_orderid = :order_id, coalesce({content} = :content, FALSE), s.state,
    s.possible_duplicate_of, {quarantined_since}, b.batch, i.row, b.opened_at
FROM order_id o JOIN instruction i ON i.number = o.instruction JOIN batch b ON b.number = i.batch {with_state}
WHERE o.operation = :operation AND o.order_id = :order_id

-- name: look_alikes
-- The instructions that make the same payment as a row under another id, oldest first.
SELECT :row, :order_id, i.client_orderid, b.batch, b.opened_at, i.number, s.state
FROM instruction i JOIN batch b ON b.number = i.batch JOIN state s ON s.instruction = i.number
WHERE i.payee = :payee AND i.minor = :minor AND i.currency = :currency AND i.client_orderid <> :order_id
    AND b.operation = :operation
ORDER BY i.number

-- name: has_spelling
-- The row, if its order id was used in any spelling.
SELECT :row, :order_id, :spelling WHERE EXISTS (
    SELECT 1 FROM order_id INDEXED BY order_id_in_one_case WHERE operation = :operation AND lower(order_id) = :spelling
) OR EXISTS (SELECT 1 FROM order_id_spelling WHERE operation = :operation AND spelling = :spelling)

-- name: used_spellings
-- The newest order id that differs from a row's id only in spelling, if the row's own id was never used.
SELECT :row, o.order_id, b.batch, b.opened_at
FROM ({spelled}) o JOIN instruction i ON i.number = o.instruction JOIN batch b ON b.number = i.batch
WHERE NOT EXISTS (SELECT 1 FROM order_id WHERE operation = :operation AND order_id = :order_id)
ORDER BY o.instruction DESC LIMIT 1

-- name: repeated
-- The batches opened after `since` that make the same payment as a row under another id, each with a count of one.
SELECT DISTINCT i.batch, 1 FROM instruction i JOIN batch b ON b.number = i.batch
WHERE i.payee = :payee AND i.minor = :minor AND i.currency = :currency AND i.client_orderid <> :order_id
    AND b.operation = :operation AND b.opened_at > :since

-- name: same_spelling
-- The order ids of an operation in one spelling, with their instructions.
{spelled}

-- name: is_spelling_used
-- Whether an order id was ever used, in any spelling.
{spelled} LIMIT 1

-- name: rows_by_number
-- The given rows that a batch has, with their instructions.
SELECT row, instruction FROM (
    SELECT i.row, i.number AS instruction FROM carray(:rows) wanted
        CROSS JOIN instruction i ON i.batch = :batch AND i.row = wanted.value
    UNION ALL
    SELECT k.row, k.instruction FROM carray(:rows) wanted CROSS JOIN known k ON k.batch = :batch AND k.row = wanted.value
) ORDER BY row

-- name: first_rows
-- The first new row of every batch, or of one: its order id.
SELECT b.number, i.client_orderid FROM batch b
JOIN instruction i ON i.batch = b.number AND i.row = (SELECT min(row) FROM instruction WHERE batch = b.number)
WHERE :batch IS NULL OR b.number = :batch ORDER BY b.number

-- name: odd_ids_from
-- The order ids of instructions from `first` on that match a GLOB pattern.
SELECT client_orderid FROM instruction WHERE number >= :first AND replaces IS NULL AND client_orderid GLOB :odd

-- name: odd_ids
-- The order ids that match a GLOB pattern.
SELECT operation, order_id FROM order_id WHERE order_id GLOB :odd

-- name: spellings
-- The stored spellings of order ids.
SELECT operation, spelling, order_id FROM order_id_spelling

-- name: references
-- The references of all batches.
SELECT batch, reference FROM batch_reference ORDER BY batch

-- name: matching_payments
-- The newest payments whose payees match the search.
SELECT rowid FROM payment_words WHERE payment_words MATCH :expression ORDER BY rowid DESC LIMIT :limit

-- name: highest_numbers
-- The time of the newest fact, and the highest batch and instruction numbers.
SELECT {newest_fact}, (SELECT max(number) FROM batch),
    (SELECT max(number) FROM instruction)

-- name: add_spelling
-- Stores the spelling of a non-ASCII order id.
INSERT INTO order_id_spelling VALUES (:operation, :spelling, :order_id)

-- name: add_reference
-- Stores a batch's reference.
INSERT INTO batch_reference VALUES (:batch, :reference)

-- name: add_order_id
-- Stores an order id.
INSERT INTO order_id VALUES (:operation, :order_id, :instruction)
