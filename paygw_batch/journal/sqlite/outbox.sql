-- The statements of `outbox.py` for SQLite.

-- name: add_notice
-- Writes one notice, unless this recipient already has one of its subject. `run`: it is due when its run is over.
INSERT INTO notice (id, occasion, subject, batch, recipient, written_at, content, is_open, next_at)
VALUES (:id, :occasion, :subject, :batch, :recipient, :at, :content, :run IS NOT NULL, :at)
ON CONFLICT (occasion, batch, subject, recipient) DO NOTHING

-- name: due
-- The notices that may be sent now, oldest first.
SELECT {notice} FROM notice WHERE sent_at IS NULL AND NOT is_open AND next_at <= :now ORDER BY number LIMIT :limit

-- name: newest_open
-- The number of the newest notice whose run is not known to be over.
SELECT max(number) FROM notice WHERE is_open

-- name: close_open
-- The runs of all notices up to this one are over.
UPDATE notice SET is_open = 0 WHERE is_open AND number <= :number
