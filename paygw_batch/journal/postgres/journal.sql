-- The statements of `journal.py` for PostgreSQL.

-- part: batches_as_recorded
-- Batches in the columns of `BatchRecord`.
SELECT b.number, b.batch, b.operation, b.sheet_name, b.sheet_sha256, b.rows, b.defects, b.opened_at, b.sheet_path,
    b.reference
FROM batch b

-- name: chain_ends
-- The end of each process's chain.
SELECT number, head_seq, head_hash FROM process WHERE head_seq > 0 ORDER BY number

-- name: newest_fact_time
-- The time of the newest fact.
SELECT {newest_fact}

-- name: batches_of_plan
-- The batch opened by a plan.
{batches_as_recorded} WHERE plan_sha256 = :plan_sha256 ORDER BY number

-- name: compare
-- The instruction with a row's order id, and whether its original id and content are those of the row. The content of
-- a forgotten payee never matches.
SELECT u.row, u.order_id, i.number, i.client_orderid = u.order_id, coalesce(i.content = u.content, false), s.state,
    s.possible_duplicate_of, {quarantined_since}, b.batch, i.row, b.opened_at
FROM unnest(:row::bigint[], :order_id::text[], :content::text[]) WITH ORDINALITY u(row, order_id, content, place)
JOIN order_id o ON o.operation = :operation AND o.order_id = u.order_id
JOIN instruction i ON i.number = o.instruction JOIN batch b ON b.number = i.batch {with_state} ORDER BY u.place

-- name: look_alikes
-- The instructions that make the same payment as a row under another id, oldest first.
SELECT u.row, u.order_id, i.client_orderid, b.batch, b.opened_at, i.number, s.state
FROM unnest(:row::bigint[], :order_id::text[], :payee::text[], :currency::text[], :minor::bigint[])
    WITH ORDINALITY u(row, order_id, payee, currency, minor, place)
JOIN instruction i ON i.payee = u.payee AND i.minor = u.minor AND i.currency = u.currency
    AND i.client_orderid <> u.order_id
JOIN batch b ON b.number = i.batch AND b.operation = :operation JOIN state s ON s.instruction = i.number ORDER BY u.place, i.number

-- name: has_spelling
-- The rows whose order id was used in any spelling.
SELECT u.row, u.order_id, u.spelling
FROM unnest(:row::bigint[], :order_id::text[], :spelling::text[]) WITH ORDINALITY u(row, order_id, spelling, place)
WHERE EXISTS (SELECT FROM order_id o WHERE o.operation = :operation AND o.spelling = u.spelling) ORDER BY u.place

-- name: used_spellings
-- The newest order id that differs from a row's id only in spelling, if the row's own id was never used.
SELECT u.row, other.order_id, other.batch, other.opened_at
FROM unnest(:row::bigint[], :order_id::text[], :spelling::text[]) WITH ORDINALITY u(row, order_id, spelling, place)
CROSS JOIN LATERAL (
    SELECT o.order_id, b.batch, b.opened_at FROM order_id o
    JOIN instruction i ON i.number = o.instruction JOIN batch b ON b.number = i.batch
    WHERE o.operation = :operation AND o.spelling = u.spelling ORDER BY o.instruction DESC LIMIT 1
) other
WHERE NOT EXISTS (SELECT FROM order_id own WHERE own.operation = :operation AND own.order_id = u.order_id)
ORDER BY u.place

-- name: repeated
-- The batches opened after `since` that make the same payments as some rows under other ids, with the number of those rows.
SELECT pair.batch, count(*) FROM (
    SELECT DISTINCT u.place, i.batch
    FROM unnest(:order_id::text[], :payee::text[], :currency::text[], :minor::bigint[])
        WITH ORDINALITY u(order_id, payee, currency, minor, place)
    JOIN instruction i ON i.payee = u.payee AND i.minor = u.minor AND i.currency = u.currency
        AND i.client_orderid <> u.order_id
    JOIN batch b ON b.number = i.batch AND b.operation = :operation AND b.opened_at > :since
) pair GROUP BY 1

-- name: same_spelling
-- The order ids of an operation in one spelling, with their instructions.
SELECT order_id, instruction FROM order_id WHERE operation = :operation AND spelling = :spelling

-- name: is_spelling_used
-- Whether an order id was ever used, in any spelling.
SELECT 1 FROM order_id WHERE operation = :operation AND spelling = :spelling LIMIT 1

-- name: rows_by_number
-- The given rows that a batch has, with their instructions.
SELECT row, instruction FROM covered WHERE batch = :batch AND row = ANY (:rows) ORDER BY row

-- name: matching_payments
-- The newest payments whose payees match the search.
SELECT instruction FROM payee_words WHERE words @@ :expression::tsquery ORDER BY instruction DESC LIMIT :limit

-- name: highest_numbers
-- The time of the newest fact, and the highest batch and instruction numbers.
SELECT {newest_fact}, (SELECT max(number) FROM batch), (SELECT max(number) FROM instruction)

-- name: add_order_id
-- Stores an order id.
INSERT INTO order_id VALUES (:operation, :order_id, :instruction, :spelling)

-- name: lock_audit_trail
-- Locks the audit trail against other transactions until this one ends.
SELECT pg_advisory_xact_lock(7024)
