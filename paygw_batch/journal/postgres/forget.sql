-- The statements of `forget.py` and of what `journal.py` may forget, for PostgreSQL. A mark counts the facts that forgot people.

-- name: knowing
-- The rows of other batches that are the given instructions.
SELECT batch, instruction FROM known WHERE instruction = ANY (:numbers)

-- name: begin_forgetting
-- Begins with a batch, and finds the mark.
SELECT begin_forgetting(:batch)

-- name: to_forget
-- Some instructions, in the columns of `NewInstruction`, with their salts.
SELECT number, replaces, row, client_orderid, country, currency, amount, minor, form, fields, payee, content, salt
FROM instruction WHERE number = ANY (:numbers) ORDER BY number

-- name: forget_instruction
-- Puts what is left in the place of instructions.
SELECT forget_rows(:mark, :number::bigint[], :payee::text[], :content::text[], :leaf::bytea[])

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

-- name: reference_left
-- The reference of a batch, which its first row can no longer yield.
SELECT reference FROM batch WHERE number = :batch AND reference <> ''

-- name: forgetting_facts
-- The facts that forgot people, in their order.
SELECT mark, batch, details FROM forgetting_fact ORDER BY mark

-- name: marks_given
-- The marks, with their batches.
SELECT mark, batch FROM forgetting ORDER BY mark

-- name: keys_since
-- The keys under which people of batches opened after a time were forgotten.
SELECT DISTINCT coalesce(f.details::json ->> 'key', '') FROM forgetting_fact f JOIN batch b ON b.number = f.batch
WHERE b.operation = :operation AND b.opened_at > :since
