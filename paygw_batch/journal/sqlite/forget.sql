-- The statements of `forget.py`, and those of `journal.py` that forget, for SQLite.

-- name: knowing
-- The rows of other batches with the given instructions.
SELECT k.batch, k.instruction FROM carray(:numbers) wanted JOIN known k ON k.instruction = wanted.value

-- name: forget_people
-- Empties the payees' data of instructions.
UPDATE instruction SET fields = NULL, payee = NULL, content = NULL, salt = NULL
WHERE number IN (SELECT value FROM carray(:numbers))

-- name: forget_texts
-- Removes the raw replies about some instructions. The search words are rebuilt at the end.
DELETE FROM reply WHERE instruction IN (SELECT value FROM carray(:numbers))

-- name: forget_said
-- Removes the personal data in the facts of the given instructions.
DELETE FROM said WHERE fact IN (SELECT number FROM fact WHERE instruction IN (SELECT value FROM carray(:numbers)))

-- name: forget_heard
-- Removes the texts of the given orders, and of evidence from before a time that has no instruction.
DELETE FROM said WHERE fact IN ({heard_to_forget})

-- name: forget_sheet
-- Removes the sheet of a batch.
DELETE FROM page WHERE batch = :batch
