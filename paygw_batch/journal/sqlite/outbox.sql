-- The statements of `outbox.py` for SQLite.

-- name: due
-- The notices that may be sent now, oldest first. A run's notices are left out if their number is above `over`.
SELECT {notice} FROM notice WHERE sent_at IS NULL AND (process IS NULL OR number <= :over) AND next_at <= :now
ORDER BY number LIMIT :limit

-- name: newest_of_run
-- The number of the newest notice whose run is not known to have ended.
SELECT max(number) FROM notice WHERE process IS NOT NULL

-- name: end_runs
-- Records that the runs of all notices have ended.
UPDATE notice SET process = NULL WHERE process IS NOT NULL
