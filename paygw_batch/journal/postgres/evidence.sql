-- The statements of `evidence.py` and `states.py` for PostgreSQL.

-- part: newest_fact
-- The time of the newest fact.
(SELECT max(head_at) FROM process)

-- name: lock_documents
-- Serializes withdrawals and openings, because a plan can be withdrawn while another process opens its batch.
SELECT pg_advisory_xact_lock(7022)

-- name: lock_rows
-- Waits for processes that are moving these instructions, then keeps them from moving until the transaction ends.
SELECT lock_rows(:numbers)

-- name: left_in_flight
-- The abandoned rows in flight.
SELECT s.instruction, s.attempt, f.at FROM batch b JOIN state s ON s.batch = b.number AND s.state = 'in_flight'
JOIN fact f ON f.number = s.intent WHERE is_left(f.process, :dead) ORDER BY 1

-- name: instructions_to_hold
-- The instructions from `first` on that have one of these order ids, in any spelling, and are not held for it yet.
SELECT o.instruction, min(o.order_id) FROM order_id o WHERE o.spelling = ANY (:spellings) AND o.instruction >= :first
    AND NOT EXISTS (SELECT FROM unanswered e WHERE e.instruction = o.instruction AND e.source = 'witness')
GROUP BY 1 ORDER BY 1
