-- The statements of `outbox.py` for SQLite.

-- name: add_notice
-- Writes one notice, unless this recipient already has one of its subject. `run`: it is due when its run is over.
INSERT INTO notice (id, occasion, subject, batch, recipient, written_at, content, is_open, next_at)
VALUES (:id, :occasion, :subject, :batch, :recipient, :at, :content, :run IS NOT NULL, :at)
ON CONFLICT (occasion, batch, subject, recipient) DO NOTHING

-- name: due
-- The notices that may be sent now, oldest first.
SELECT {notice} FROM notice WHERE sent_at IS NULL AND NOT is_open AND next_at <= :now ORDER BY number LIMIT :limit

-- name: claim
-- Books the next try of a notice, if nobody has done so since it was read.
UPDATE notice SET tries = tries + 1, tried_at = :now, next_at = :next_at, problem = '', content = coalesce(content, :content)
WHERE number = :number AND tries = :tries AND sent_at IS NULL AND next_at <= :now RETURNING number

-- name: note_sent
-- Records that a notice was sent.
UPDATE notice SET sent_at = :at, problem = '' WHERE number = :number

-- name: note_problem
-- Records why a notice could not be sent.
UPDATE notice SET problem = :problem WHERE number = :number

-- name: hurry
-- Makes due the notices whose last try failed, or began before a time and never ended.
UPDATE notice SET next_at = :now WHERE sent_at IS NULL AND (problem <> '' OR tried_at <= :before)

-- name: listed
-- All notices, waiting ones first.
SELECT {notice} FROM notice ORDER BY sent_at IS NOT NULL, number DESC LIMIT :limit

-- name: newest_subject
-- The greatest subject of an occasion about a batch.
SELECT max(subject) FROM notice WHERE occasion = :occasion AND batch = :batch

-- name: newest_open
-- The number of the newest notice whose run is not known to be over.
SELECT max(number) FROM notice WHERE is_open

-- name: close_open
-- The runs of all notices up to this one are over.
UPDATE notice SET is_open = 0 WHERE is_open AND number <= :number
