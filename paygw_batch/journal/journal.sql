-- The statements of `journal.py` that every store runs; `tables.py` says what each writes otherwise.

-- part: of_people
-- The condition of the index in `schema-4.sql`, word for word: for no other condition SQLite uses a partial index.
(f.instruction IS NULL OR (f.kind >= 'rel' AND f.kind < 's'))

-- name: batch_title
-- The names that people use for a batch.
SELECT batch, sheet_name, opened_at FROM batch WHERE number = :batch

-- name: operation_of
-- The operation of a batch.
SELECT operation FROM batch WHERE number = :batch

-- name: operations
-- The operations that batches were opened for.
SELECT DISTINCT operation FROM batch

-- name: any_order_id
-- Whether any order id of an operation was ever used.
SELECT 1 FROM order_id WHERE operation = :operation LIMIT 1

-- name: page_numbers
-- The pages of a sheet.
SELECT number FROM page WHERE batch = :batch ORDER BY number

-- name: page
-- One page of a sheet.
SELECT content FROM page WHERE batch = :batch AND number = :number

-- name: replacing
-- The rows of a batch that replace an instruction, with their numbers.
SELECT row, number FROM instruction WHERE batch = :batch AND replaces IS NOT NULL

-- name: move_order_ids
-- Moves an instruction's order ids to the one that replaces it.
UPDATE order_id SET instruction = :instruction WHERE operation = :operation AND order_id IN (:order_id, :next_order_id)

-- name: batches
-- All batches, oldest first.
{batches_as_recorded} ORDER BY b.number

-- name: batch
-- The batch with this id.
{batches_as_recorded} WHERE b.batch = :batch AND b.operation = coalesce(:operation, b.operation)
ORDER BY b.number LIMIT 1

-- name: payments
-- Some payments in the columns of `FoundPayment`, newest first.
SELECT b.batch, b.sheet_name, b.operation, b.opened_at, p.row, p.client_orderid, p.country, p.currency, p.amount, p.form,
    p.fields, CASE WHEN p.forgotten IS NULL THEN p.payee ELSE '' END, p.state, p.attempt - p.inherited_attempts,
    p.sent_orderid, p.gateway_status, p.gateway_reference, p.error_code, p.message, p.possible_duplicate_of,
    coalesce(p.first_sent_at, CASE WHEN p.state = 'in_flight' THEN p.intended_at END), p.updated_at
FROM progress p JOIN batch b ON b.number = p.batch WHERE p.number = ANY (:numbers) ORDER BY p.number DESC
