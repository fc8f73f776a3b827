-- The statements of `forget.py` and of what `journal.py` may forget, for SQLite.

-- name: knowing
-- The rows of other batches that are the given instructions.
SELECT k.batch, k.instruction FROM carray(:numbers) wanted JOIN known k ON k.instruction = wanted.value

-- name: forget_people
-- Empties what instructions say of people.
UPDATE instruction SET fields = NULL, payee = NULL, content = NULL, salt = NULL
WHERE number IN (SELECT value FROM carray(:numbers))

-- name: forget_texts
-- Removes the raw replies about some instructions. The search words are made again at the end.
DELETE FROM reply WHERE instruction IN (SELECT value FROM carray(:numbers))

-- name: forget_said
-- Removes what facts say of the people of some instructions.
DELETE FROM said WHERE fact IN (SELECT number FROM fact WHERE instruction IN (SELECT value FROM carray(:numbers)))

-- name: forget_heard
-- Removes what the evidence about no instruction from before a time says, and some orders.
DELETE FROM said WHERE fact IN ({heard_to_forget})

-- name: forget_sheet
-- Removes the sheet of a batch.
DELETE FROM page WHERE batch = :batch
