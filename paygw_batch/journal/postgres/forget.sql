-- The statements by which `forget.py` and `journal.py` forget people, for PostgreSQL.

-- name: rows_of_other_batches
-- The rows of other batches with the given instructions.
SELECT batch, instruction FROM known WHERE instruction = ANY (:numbers)

-- name: begin_forgetting
-- Begins to forget people in a batch.
SELECT begin_forgetting(:batch)

-- name: forget_people
-- Clears the payees' data in instructions.
SELECT forget_people(:numbers::bigint[])

-- name: forget_said
-- Deletes the personal data in the given instructions' facts.
SELECT forget_said(:numbers::bigint[])

-- name: forget_texts
-- Deletes the given instructions' raw replies and clears their search words.
SELECT forget_texts(:numbers::bigint[])

-- name: forget_heard
-- Deletes the texts of the given orders, and of evidence without an instruction from before a time.
SELECT forget_heard(ARRAY({heard_to_forget}))

-- name: forget_sheet
-- Deletes a batch's sheet.
SELECT forget_sheet(:batch)

-- name: forget_plans
-- Deletes plans of batches that are being forgotten, and plans from before a date that opened no batch.
SELECT forget_plans(:before)
