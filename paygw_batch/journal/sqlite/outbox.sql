-- The statements of `outbox.py` for SQLite.

-- name: due
-- The notices that may be sent now, oldest first; those of runs only up to the number `over`.
SELECT {notice} FROM notice WHERE sent_at IS NULL AND (process IS NULL OR number <= :over) AND next_at <= :now
ORDER BY number LIMIT :limit

-- name: newest_of_run
-- The number of the newest notice whose run is not known to be over.
SELECT max(number) FROM notice WHERE process IS NOT NULL

-- name: end_runs
-- Records that the runs of all notices are over.
UPDATE notice SET process = NULL WHERE process IS NOT NULL
