-- The statements of `forget.py` and of what `journal.py` may forget, for SQLite. A mark is the number of a fact.

-- name: opened_before
-- The batches that were opened before a time.
SELECT number FROM batch WHERE opened_at < :before ORDER BY number

-- name: newest_move
-- The time of the newest move of a batch's own instructions.
SELECT max(s.updated_at) FROM instruction i CROSS JOIN standing s ON s.instruction = i.number WHERE i.batch = :batch

-- name: not_forgotten
-- The instructions of a batch whose people are not forgotten yet.
SELECT number FROM instruction WHERE batch = :batch AND forgotten IS NULL ORDER BY number

-- name: not_forgotten_of
-- Those of some instructions whose people are not forgotten yet, with their batches.
SELECT i.number, i.batch FROM carray(:numbers) wanted CROSS JOIN instruction i ON i.number = wanted.value
WHERE i.forgotten IS NULL ORDER BY 1

-- name: knowing
-- The rows of other batches that are the given instructions.
SELECT k.batch, k.instruction FROM carray(:numbers) wanted JOIN known k ON k.instruction = wanted.value

-- name: has_sheet
-- Whether a batch has its sheet.
SELECT 1 FROM page WHERE batch = :batch LIMIT 1

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

-- name: evidence_to_forget
-- The evidence about some instructions, and evidence about no instruction from before a time.
SELECT number, source, content FROM evidence
WHERE forgotten IS NULL AND finding <> 'order' AND (
    instruction IN (SELECT value FROM carray(:numbers))
    OR (instruction IS NULL AND taken_at < :before AND finding NOT IN ({notes}) AND source <> 'witness')
) ORDER BY number

-- name: orders_to_look_at
-- The signed orders that are kept.
SELECT number, content FROM evidence INDEXED BY evidence_by_finding
WHERE finding = 'order' AND forgotten IS NULL ORDER BY number

-- name: rows_of
-- The rows of a batch (by its id) that are the given instructions.
SELECT c.row FROM batch b CROSS JOIN covered c ON c.batch = b.number
WHERE b.batch = :batch AND c.instruction IN (SELECT value FROM carray(:numbers))

-- name: forget_sheet
-- Removes the sheet of a batch.
DELETE FROM page WHERE batch = :batch

-- name: instructions_left
-- What is left of the instructions that a fact forgot.
SELECT number, batch, row, client_orderid, country, currency, minor, replaces, amount, form, fields, payee, content, salt
FROM instruction INDEXED BY instruction_forgotten WHERE forgotten = :mark ORDER BY number

-- name: facts_left
-- What is left of the facts about them.
SELECT f.seq, f.at, f.kind, f.batch, f.instruction, f.attempt, f.contradicts, f.details, f.hash
FROM instruction i INDEXED BY instruction_forgotten
CROSS JOIN fact f INDEXED BY fact_of_instruction ON f.instruction = i.number AND f.seq < :mark
WHERE i.forgotten = :mark ORDER BY i.number, f.seq

-- name: evidence_left
-- What is left of the evidence that it forgot.
SELECT {columns} FROM evidence INDEXED BY evidence_forgotten WHERE forgotten = :mark ORDER BY number

-- name: reference_left
-- The reference of a batch, which its first row can no longer yield.
SELECT reference FROM batch_reference WHERE batch = :batch

-- name: count_forgotten
-- The numbers of forgotten instructions and of forgotten evidence.
SELECT (SELECT count(*) FROM instruction INDEXED BY instruction_forgotten WHERE forgotten IS NOT NULL),
    (SELECT count(*) FROM evidence INDEXED BY evidence_forgotten WHERE forgotten IS NOT NULL)

-- name: any_forgotten
-- Whether anyone was forgotten.
SELECT 1 FROM instruction INDEXED BY instruction_forgotten WHERE forgotten IS NOT NULL LIMIT 1

-- name: is_forgotten
-- Whether a fact is one of those that a later one forgot.
SELECT 1 FROM instruction WHERE number = :instruction AND forgotten > :seq

-- name: keys_since
-- The keys under which people of batches opened after a time were forgotten.
SELECT DISTINCT coalesce(json_extract(f.details, '$.key'), '') FROM fact f JOIN batch b ON b.number = f.batch
WHERE f.instruction IS NULL AND f.kind = 'batch_forgotten' AND b.operation = :operation AND b.opened_at > :since
