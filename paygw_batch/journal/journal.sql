-- The statements of `journal.py` for all stores. `tables.py` adapts them to each store.

-- name: batch_title
-- The id, sheet name and opening time of a batch.
SELECT batch, sheet_name, opened_at FROM batch WHERE number = :batch

-- name: operation_of
-- The operation of a batch.
SELECT operation FROM batch WHERE number = :batch

-- name: operations
-- The operations that have batches.
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

-- name: replacement_rows
-- The rows of a batch that replace an instruction, with their numbers.
SELECT row, number FROM instruction WHERE batch = :batch AND replaces IS NOT NULL

-- name: move_order_ids
-- Moves an instruction's order ids to its replacement.
UPDATE order_id SET instruction = :instruction WHERE operation = :operation AND order_id IN (:order_id, :next_order_id)

-- name: batches
-- All batches, oldest first.
{batches_as_recorded} ORDER BY b.number

-- name: batch
-- The batch with this id.
{batches_as_recorded} WHERE b.batch = :batch AND b.operation = coalesce(:operation, b.operation)
ORDER BY b.number LIMIT 1

-- name: payments
-- The given payments in the columns of `FoundPayment`, newest first.
SELECT b.batch, b.sheet_name, b.operation, b.opened_at, i.row, i.client_orderid, i.country, i.currency, i.amount, i.form,
    coalesce(i.fields, '{}'), coalesce(i.payee, ''), s.state, s.attempt - s.inherited_attempts,
    n.order_id, {gateway_status}, {gateway_reference}, {error_code}, {message}, s.possible_duplicate_of,
    {first_sent_at}, f.at
FROM instruction i JOIN batch b ON b.number = i.batch {with_state} WHERE i.number = ANY (:numbers) ORDER BY i.number DESC

-- part: history_columns
-- The columns of `HistoryFact`.
f.number, f.at, f.kind, i.row, f.attempt, f.order_id, f.by, f.agreement, f.details, d.text

-- name: history
-- People's actions on a batch: on the whole batch, on its own rows (whose numbers are consecutive), and on the other rows
-- that it covers.
SELECT f.number, f.at, f.kind, NULL, f.attempt, f.order_id, f.by, f.agreement, f.details, NULL
FROM fact f INDEXED BY fact_of_batch WHERE f.batch = :batch
UNION ALL
SELECT {history_columns} FROM fact f INDEXED BY fact_of_people
    CROSS JOIN instruction i ON i.number = f.instruction LEFT JOIN said d ON d.fact = f.number
WHERE f.kind >= 'rel' AND f.kind < 's' AND i.batch = :batch
    AND f.instruction BETWEEN (SELECT number FROM instruction WHERE batch = :batch ORDER BY row LIMIT 1)
        AND (SELECT number FROM instruction WHERE batch = :batch ORDER BY row DESC LIMIT 1)
UNION ALL
SELECT {history_columns} FROM fact f INDEXED BY fact_of_people
    CROSS JOIN known i ON i.batch = :batch AND i.instruction = f.instruction LEFT JOIN said d ON d.fact = f.number
WHERE f.kind >= 'rel' AND f.kind < 's'
ORDER BY 1

-- part: entry
-- The columns of an `AuditEntry`.
number, at, who, act, thing, result, said, hash

-- name: trail
-- The audit entries before a number, newest first.
SELECT {entry} FROM audit WHERE number < :before ORDER BY number DESC LIMIT :limit

-- name: whole_trail
-- All audit entries, oldest first.
SELECT {entry} FROM audit ORDER BY number

-- name: add_entry
-- Adds an entry to the audit trail.
INSERT INTO audit ({entry}) VALUES (:number, :at, :who, :act, :thing, :result, :said, :hash)

-- name: customer_urls
-- The URLs of the latest attempts' payment pages in a batch.
SELECT c.row, d.customer_url FROM said d INDEXED BY said_of_customer_page
    CROSS JOIN fact a ON a.number = d.fact CROSS JOIN state s ON s.instruction = a.instruction AND s.attempt = a.attempt
    CROSS JOIN covered c ON c.batch = :batch AND c.instruction = a.instruction
WHERE d.customer_url IS NOT NULL AND NOT EXISTS (SELECT 1 FROM contradiction x WHERE x.fact = a.number) ORDER BY a.number

-- name: replies
-- The stored raw replies to an instruction's attempts, oldest first.
SELECT f.attempt, f.at, r.head, r.body FROM reply r JOIN fact f ON f.number = r.fact
WHERE r.instruction = :instruction ORDER BY r.fact
