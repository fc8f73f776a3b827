-- The statements of `forget.py` and of what `journal.py` may forget, for SQLite. A mark is the number of a fact.

-- name: knowing
-- The rows of other batches that are the given instructions.
SELECT k.batch, k.instruction FROM carray(:numbers) wanted JOIN known k ON k.instruction = wanted.value

-- name: to_forget
-- Some instructions, in the columns of `NewInstruction`, with their salts.
SELECT i.number, i.replaces, i.row, i.client_orderid, i.country, i.currency, i.amount, i.minor, i.form, i.fields, i.payee,
    {content}, i.salt
FROM carray(:numbers) wanted CROSS JOIN instruction i ON i.number = wanted.value ORDER BY i.number

-- name: facts_to_forget
-- The facts about some instructions, each in order.
SELECT f.instruction, f.seq, f.kind, f.contradicts, f.details
FROM carray(:numbers) wanted CROSS JOIN fact f INDEXED BY fact_of_instruction ON f.instruction = wanted.value
ORDER BY f.seq

-- name: forget_instruction
-- Replaces an instruction by what is left of it.
UPDATE instruction SET fields = json_object(), payee = :payee, content = :content, salt = :leaf, forgotten = :mark
WHERE number = :number

-- name: forget_fact
-- Replaces the details of a fact by what is left of them.
UPDATE fact SET details = :details WHERE seq = :place AND instruction = :number

-- name: forget_message
-- Replaces the last message about an instruction by what is left of it.
UPDATE standing SET message = :message WHERE instruction = :number

-- name: forget_texts
-- Removes the raw replies about some instructions. The search words are made again at the end.
DELETE FROM reply WHERE instruction IN (SELECT value FROM carray(:numbers))

-- name: forget_evidence
-- Replaces the content of evidence by what is left of it.
UPDATE evidence SET salt = '', content = :content, forgotten = :mark WHERE number = :number

-- name: forget_sheet
-- Removes the sheet of a batch.
DELETE FROM page WHERE batch = :batch

-- name: facts_left
-- What is left of the facts about them.
SELECT f.seq, f.at, f.kind, f.batch, f.instruction, f.attempt, f.contradicts, f.details, f.hash
FROM instruction i INDEXED BY instruction_forgotten
CROSS JOIN fact f INDEXED BY fact_of_instruction ON f.instruction = i.number AND f.seq < :mark
WHERE i.forgotten = :mark ORDER BY i.number, f.seq

-- name: reference_left
-- The reference of a batch, which its first row can no longer yield.
SELECT reference FROM batch_reference WHERE batch = :batch

-- name: is_forgotten
-- Whether a fact is one of those that a later one forgot.
SELECT 1 FROM instruction WHERE number = :instruction AND forgotten > :seq

-- name: keys_since
-- The keys under which people of batches opened after a time were forgotten.
SELECT DISTINCT coalesce(json_extract(f.details, '$.key'), '') FROM fact f JOIN batch b ON b.number = f.batch
WHERE f.instruction IS NULL AND f.kind = 'batch_forgotten' AND b.operation = :operation AND b.opened_at > :since
