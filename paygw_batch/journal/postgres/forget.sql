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

-- name: facts_to_forget
-- The facts about some instructions, each in order.
SELECT instruction, nth, kind, contradicts, details FROM fact WHERE instruction = ANY (:numbers) ORDER BY 1, 2

-- name: forget_instruction
-- Puts what is left in the place of instructions.
SELECT forget_rows(:mark, :number::bigint[], :payee::text[], :content::text[], :leaf::bytea[])

-- name: forget_fact
-- Puts what is left in the place of what facts say.
SELECT forget_facts(:number::bigint[], :place::bigint[], :details::text[])

-- name: forget_message
-- Puts what is left in the place of the last message about instructions.
SELECT forget_messages(:number::bigint[], :message::text[])

-- name: forget_texts
-- Removes the raw replies about some instructions, and their search words.
SELECT forget_texts(:numbers::bigint[])

-- name: forget_evidence
-- Replaces the content of evidence by what is left of it.
SELECT forget_evidence(:mark, :number::bigint[], :content::text[])

-- name: forget_sheet
-- Removes the sheet of a batch.
SELECT forget_sheet(:batch)

-- name: forget_plans
-- Removes the plans of the batches that are being forgotten, and those from before a day that opened no batch.
SELECT forget_plans(:before)

-- name: facts_left
-- What is left of the facts about them.
SELECT f.seq, f.at, f.kind, f.batch, f.instruction, f.attempt, f.contradicts, f.details, f.hash
FROM instruction i JOIN fact f ON f.instruction = i.number
WHERE i.forgotten = :mark AND f.number < coalesce((SELECT g.number FROM forgetting_fact g WHERE g.mark = :mark), f.number + 1)
ORDER BY i.number, f.nth

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
