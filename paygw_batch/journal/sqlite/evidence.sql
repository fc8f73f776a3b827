-- The statements of `evidence_log.py` for SQLite.

-- part: newest_fact
-- The newest time of the facts.
(SELECT at FROM fact ORDER BY number DESC LIMIT 1)
