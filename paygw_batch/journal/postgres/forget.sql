-- The statements of `forget.py` and of what `journal.py` may forget, for PostgreSQL.

-- name: knowing
-- The rows of other batches that are the given instructions.
SELECT batch, instruction FROM known WHERE instruction = ANY (:numbers)

-- name: begin_forgetting
-- Begins to forget people of a batch.
SELECT begin_forgetting(:batch)

-- name: forget_people
-- Empties what instructions say of people.
SELECT forget_people(:numbers::bigint[])

-- name: forget_said
-- Removes what facts say of the people of some instructions.
SELECT forget_said(:numbers::bigint[])

-- name: forget_texts
-- Removes the raw replies about some instructions, and their search words.
SELECT forget_texts(:numbers::bigint[])

-- name: forget_heard
-- Removes what the evidence about no instruction from before a time says, and some orders.
SELECT forget_heard(ARRAY({heard_to_forget}))

-- name: forget_sheet
-- Removes the sheet of a batch.
SELECT forget_sheet(:batch)

-- name: forget_plans
-- Removes the plans of the batches that are being forgotten, and those from before a day that opened no batch.
SELECT forget_plans(:before)
