-- The statements of `forget.py` for all stores. `tables.py` adapts them to each store.

-- name: opened_before
-- The batches that were opened before a time.
SELECT number FROM batch WHERE opened_at < :before ORDER BY number

-- name: newest_move
-- The time of the newest move of a batch's own instructions.
SELECT max(f.at) FROM state s CROSS JOIN fact f ON f.number = s.fact WHERE s.batch = :batch

-- name: not_forgotten
-- A batch's instructions whose payees are not forgotten yet.
SELECT number FROM instruction WHERE batch = :batch AND salt IS NOT NULL ORDER BY number

-- name: has_sheet
-- Whether a batch still has its sheet.
SELECT 1 FROM page WHERE batch = :batch LIMIT 1

-- name: stored_orders
-- The stored signed orders, with their batches.
SELECT f.number, f.details, d.text FROM fact f INDEXED BY fact_of_journal JOIN said d ON d.fact = f.number
WHERE f.kind = 'order' AND f.instruction IS NULL AND f.batch IS NULL ORDER BY f.number

-- part: heard_to_forget
-- Evidence without an instruction from before a time, processed notifications, and the given orders.
SELECT f.number FROM fact f INDEXED BY fact_of_journal WHERE f.instruction IS NULL AND f.batch IS NULL
    AND (f.kind = 'heard' AND f.at < :before AND f.source <> 'witness' OR f.kind = 'order' AND f.number = ANY (:orders)
        OR f.kind = 'arrived' AND f.number <= {last_taken_in})

-- name: rows_of
-- The rows of the batch with this id that have the given instructions.
SELECT c.row FROM batch b CROSS JOIN covered c ON c.batch = b.number
WHERE b.batch = :batch AND c.instruction = ANY (:numbers)

-- name: forgotten_rows
-- The number of forgotten payees in each batch.
SELECT batch, count(*) FROM instruction INDEXED BY instruction_forgotten WHERE salt IS NULL GROUP BY 1

-- name: not_forgotten_of
-- The given instructions whose payees are not forgotten yet, with their batches.
SELECT number, batch FROM instruction WHERE number = ANY (:numbers) AND salt IS NOT NULL ORDER BY 1
