-- The statements of `replay.py` for SQLite.

-- part: line
-- A fact in the columns of `Line`.
SELECT seq, at, kind, batch, instruction, attempt, contradicts, details, hash FROM fact

-- name: all_facts
-- The chain from its start.
{line} ORDER BY seq

-- name: last_facts
-- The end of the chain, newest first.
{line} ORDER BY seq DESC LIMIT :limit

-- name: standings
-- State and attempt of those of some instructions that have changed.
SELECT s.instruction, s.state, s.attempt FROM carray(:numbers) wanted
CROSS JOIN standing s ON s.instruction = wanted.value

-- name: opened_batch
-- A batch as `NewBatch` has it, after when it was opened, and the digest of its plan, which is in its fact alone.
SELECT opened_at, NULL, batch, operation, sheet_name, sheet_sha256, rows, defects, sheet_path
FROM batch WHERE number = :batch

-- name: instructions
-- The rows that a batch brought; only their numbers are sorted. (The limit keeps the inner order.)
SELECT i.number, replaces, row, client_orderid, country, currency, amount, minor, form, fields, payee, {content}, salt
FROM (SELECT number FROM instruction WHERE batch = :batch ORDER BY number LIMIT -1) s
CROSS JOIN instruction i ON i.number = s.number

-- name: count_all
-- The numbers of instructions, of facts about them, and of order ids.
SELECT (SELECT count(*) FROM instruction), (SELECT count(instruction) FROM fact), (SELECT count(*) FROM order_id)

-- name: next_instructions
-- The numbers of the next instructions.
SELECT number FROM instruction WHERE number > :after ORDER BY number LIMIT :limit

-- name: plain_rows
-- Number and state of the rows from `first` to `last` that have exactly an intent and the gateway's answer, under the one order
-- id that they have, and stand where these lead. Texts that stand in the facts alone are taken from them, and are of one kind:
-- a digest and a nonce (hex), a time (a whole number) and a salt. `json_quote` writes a text in quotes and NULL as null, and
-- escapes by a backslash: a row with one is left, as one with anything but printable ASCII is. So is one with an empty text,
-- which is no word of the gateway, and one whose message begins as a code does.
SELECT i.number, s.state
FROM (
    SELECT instruction, min(seq) AS intent, max(seq) AS answer FROM fact INDEXED BY fact_of_instruction
    WHERE instruction BETWEEN :first AND :last GROUP BY instruction HAVING count(*) = 2
) f
CROSS JOIN instruction i ON i.number = f.instruction
CROSS JOIN standing s ON s.instruction = f.instruction
CROSS JOIN fact a ON a.seq = f.intent
CROSS JOIN fact b ON b.seq = f.answer
CROSS JOIN batch h ON h.number = i.batch
CROSS JOIN order_id o ON (o.operation, o.order_id, o.instruction) = (h.operation, i.client_orderid, i.number)
WHERE i.replaces IS NULL
    AND a.kind = 'intended' AND b.kind IN ('accepted', 'paid', 'rejected')
    AND (a.attempt, b.attempt) = (1, 1) AND coalesce(a.contradicts, b.contradicts) IS NULL
    AND (s.state, s.attempt, s.generation, s.inherited_attempts) = (b.kind, 1, 1, 0) AND s.possible_duplicate_of IS NULL
    AND (s.order_id, s.sent_orderid) = (i.client_orderid, i.client_orderid)
    AND (s.intended_at, s.first_sent_at, s.updated_at) = (a.at, a.at, b.at)
    AND a.details = '{"body_sha256":"' || substr(a.details, 17, 64) || '","nonce":"' || substr(a.details, 92, 32)
        || '","order_id":' || json_quote(i.client_orderid) || ',"purpose":' || json_quote(s.purpose)
        || ',"timestamp_s":' || substr(a.details, -11, 10) || '}'
    AND unhex(substr(a.details, 17, 64) || substr(a.details, 92, 32)) IS NOT NULL
    AND CAST(CAST(substr(a.details, -11, 10) AS INTEGER) AS TEXT) = substr(a.details, -11, 10)
    AND b.details = '{' || substr(
        CASE WHEN s.error_code IS NULL THEN '' WHEN s.error_code <> '' THEN ',"error_code":' || json_quote(s.error_code) END
        || CASE WHEN s.gateway_reference IS NULL THEN ''
            WHEN s.gateway_reference <> '' THEN ',"gateway_reference":' || json_quote(s.gateway_reference) END
        || CASE WHEN s.gateway_status IS NULL THEN ''
            WHEN s.gateway_status <> '' THEN ',"gateway_status":' || json_quote(s.gateway_status) END
        || coalesce(',"http_status":' || s.http_status, '')
        || CASE WHEN s.message IS NULL THEN ''
            WHEN substr(s.message, 1, 1) NOT IN ('', '[')
                AND lower(hex(unhex(substr(b.details, -34, 32)))) = substr(b.details, -34, 32)
            THEN ',"message":' || json_quote(s.message) || ',"salt":"' || substr(b.details, -34, 32) || '"' END,
        2) || '}'
    AND instr(a.details || b.details, '\') = 0 AND instr(a.details || b.details, char(127)) = 0
    AND length(a.details || b.details) = octet_length(a.details || b.details)

-- part: chosen
-- Those of some instructions, or all.
(:every OR instruction IN (SELECT value FROM carray(:numbers)))

-- name: facts_by_instruction
-- By instruction and then in order; only two numbers of each are sorted. (The limit keeps the inner order.)
SELECT f.instruction, f.seq, f.at, f.kind, f.attempt, f.contradicts, f.details
FROM (SELECT seq FROM fact WHERE instruction IS NOT NULL AND {chosen} ORDER BY instruction, seq LIMIT -1) s
CROSS JOIN fact f ON f.seq = s.seq

-- name: order_ids_by_instruction
-- Order ids by instruction.
SELECT instruction, operation, order_id FROM order_id WHERE {chosen} ORDER BY 1, 2, 3

-- name: all_progress
-- Instructions, with their progress.
SELECT number, batch, row, client_orderid, replaces, {progress} FROM (SELECT *, number AS instruction FROM progress) p
WHERE {chosen} ORDER BY number

-- name: reply_of
-- The stored reply for a fact.
SELECT instruction, CAST(head AS BLOB), body FROM reply WHERE fact = :fact
