-- The statements of `evidence.py` for SQLite.

-- part: newest_fact
-- The time of the newest fact.
(SELECT at FROM fact ORDER BY number DESC LIMIT 1)

-- name: instructions_to_hold
-- The instructions from `first` on that have one of these order ids, in any spelling, and are not held for it yet.
WITH wanted AS MATERIALIZED (
    SELECT b.operation, w.value AS spelling FROM (SELECT DISTINCT operation FROM batch) b CROSS JOIN carray(:spellings) w
), spelled AS (
    SELECT o.instruction, o.order_id FROM wanted w
    CROSS JOIN order_id o INDEXED BY order_id_in_one_case ON o.operation = w.operation AND lower(o.order_id) = w.spelling
    UNION ALL
    SELECT o.instruction, o.order_id FROM wanted w
    CROSS JOIN order_id_spelling s ON s.operation = w.operation AND s.spelling = w.spelling
    CROSS JOIN order_id o ON o.operation = s.operation AND o.order_id = s.order_id
)
SELECT o.instruction, min(o.order_id) FROM spelled o WHERE o.instruction >= :first
    AND NOT EXISTS (SELECT 1 FROM unanswered e WHERE e.instruction = o.instruction AND e.source = 'witness')
GROUP BY 1 ORDER BY 1
