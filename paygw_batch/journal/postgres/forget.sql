-- The statements of `forget.py`, and those of `journal.py` that forget, for PostgreSQL.

-- name: knowing
-- The rows of other batches with the given instructions.
SELECT batch, instruction FROM known WHERE instruction = ANY (:numbers)

-- name: begin_forgetting
-- Begins to forget people in a batch.
SELECT begin_forgetting(:batch)

-- name: forget_people
-- Empties the payees' data of instructions.
SELECT forget_people(:numbers::bigint[])

-- name: forget_said
-- Removes the personal data in the facts of the given instructions.
SELECT forget_said(:numbers::bigint[])

-- name: forget_texts
-- Removes the raw replies about some instructions, and their search words.
SELECT forget_texts(:numbers::bigint[])

-- name: forget_heard
-- Removes the texts of the given orders, and of evidence from before a time that has no instruction.
SELECT forget_heard(ARRAY({heard_to_forget}))

-- name: forget_sheet
-- Removes the sheet of a batch.
SELECT forget_sheet(:batch)

-- name: forget_plans
-- Removes the plans of the batches that are being forgotten, and those from before a date that opened no batch.
SELECT forget_plans(:before)
