-- The statements by which `forget.py` and `journal.py` forget people, for SQLite.

-- name: rows_of_other_batches
-- The rows of other batches with the given instructions.
SELECT k.batch, k.instruction FROM carray(:numbers) wanted JOIN known k ON k.instruction = wanted.value

-- name: forget_people
-- Clears the payees' data in instructions.
UPDATE instruction SET fields = NULL, payee = NULL, content = NULL, salt = NULL
WHERE number IN (SELECT value FROM carray(:numbers))

-- name: forget_texts
-- Deletes the given instructions' raw replies. The search words are rebuilt at the end.
DELETE FROM reply WHERE instruction IN (SELECT value FROM carray(:numbers))

-- name: forget_said
-- Deletes the personal data in the given instructions' facts.
DELETE FROM said WHERE fact IN (SELECT number FROM fact WHERE instruction IN (SELECT value FROM carray(:numbers)))

-- name: forget_heard
-- Deletes the texts of the given orders, and of evidence without an instruction from before a time.
DELETE FROM said WHERE fact IN ({heard_to_forget})

-- name: forget_sheet
-- Deletes a batch's sheet.
DELETE FROM page WHERE batch = :batch
