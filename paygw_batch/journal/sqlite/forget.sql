-- The statements of `forget.py` and of what `journal.py` may forget, for SQLite. A mark is the number of a fact.

-- name: knowing
-- The rows of other batches that are the given instructions.
SELECT k.batch, k.instruction FROM carray(:numbers) wanted JOIN known k ON k.instruction = wanted.value

-- name: to_forget
-- Some instructions, in the columns of `NewInstruction`, with their salts.
SELECT i.number, i.replaces, i.row, i.client_orderid, i.country, i.currency, i.amount, i.minor, i.form, i.fields, i.payee,
    {content}, i.salt
FROM carray(:numbers) wanted CROSS JOIN instruction i ON i.number = wanted.value ORDER BY i.number

-- name: forget_instruction
-- Replaces an instruction by what is left of it.
UPDATE instruction SET fields = json_object(), payee = :payee, content = :content, salt = :leaf, forgotten = :mark
WHERE number = :number

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

-- name: reference_left
-- The reference of a batch, which its first row can no longer yield.
SELECT reference FROM batch_reference WHERE batch = :batch

-- name: keys_since
-- The keys under which people of batches opened after a time were forgotten.
SELECT DISTINCT coalesce(json_extract(f.details, '$.key'), '') FROM fact f JOIN batch b ON b.number = f.batch
WHERE f.batch IS NOT NULL AND f.kind = 'batch_forgotten' AND b.operation = :operation AND b.opened_at > :since
