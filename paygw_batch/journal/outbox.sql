-- The statements of `outbox.py` for all stores. `tables.py` adapts them to each store.

-- name: add_notice
-- Stores a notice, unless this recipient already has one with its subject. With `process`, it is due when that process ends.
INSERT INTO notice (id, occasion, subject, batch, recipient, written_at, content, process, next_at)
VALUES (:id, :occasion, :subject, :batch, :recipient, :at, :content, :process, :at)
ON CONFLICT (occasion, batch, subject, recipient) DO NOTHING

-- name: claim
-- Schedules the next try of a notice, unless another process has already done so.
UPDATE notice SET tries = tries + 1, tried_at = :now, next_at = :next_at, problem = '', content = coalesce(content, :content)
WHERE number = :number AND tries = :tries AND sent_at IS NULL AND next_at <= :now RETURNING number

-- name: record_sent
-- Records that a notice was sent.
UPDATE notice SET sent_at = :at, problem = '' WHERE number = :number

-- name: record_problem
-- Records why a notice could not be sent.
UPDATE notice SET problem = :problem WHERE number = :number

-- name: make_due
-- Makes notices due if their last try failed, or began before a time and never ended.
UPDATE notice SET next_at = :now WHERE sent_at IS NULL AND (problem <> '' OR tried_at <= :before)

-- name: all_notices
-- All notices, unsent ones first.
SELECT {notice} FROM notice ORDER BY sent_at IS NOT NULL, number DESC LIMIT :limit

-- name: last_subject
-- The last subject, in text order, of an occasion's notices about a batch.
SELECT max(subject) FROM notice WHERE occasion = :occasion AND batch = :batch
