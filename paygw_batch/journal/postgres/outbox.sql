-- The statements of `outbox.py` for PostgreSQL.

-- name: due
-- The notices that may be sent now, oldest first. The notice of a run waits for the process that started the run, and for its workers.
SELECT {notice} FROM notice n WHERE sent_at IS NULL AND next_at <= :now
    AND (process IS NULL OR NOT is_alive(process) AND NOT EXISTS (
        SELECT FROM run r JOIN batch b ON b.number = r.batch WHERE b.batch = n.batch AND r.ended_at IS NULL
    )) ORDER BY number LIMIT :limit

-- name: may_decide
-- Whether this session's login may write to the outbox.
SELECT may_decide()
