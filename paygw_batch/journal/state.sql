-- The statements about the states of rows, for all stores. `tables.py` adapts them to each store.

-- part: with_state
-- The state of an instruction `i`, its latest intent `n`, the newest fact `f` that moved it, and its personal data.
JOIN state s ON s.instruction = i.number
    LEFT JOIN fact n ON n.number = s.intent LEFT JOIN fact f ON f.number = s.fact LEFT JOIN said d ON d.fact = s.fact

-- part: of_attempt
-- The facts about the latest attempt that moved the row, newest first.
FROM fact a WHERE a.instruction = s.instruction AND a.attempt = s.attempt
    AND NOT EXISTS (SELECT 1 FROM contradiction c WHERE c.fact = a.number)

-- part: gateway_status
-- The gateway's status for the latest attempt, from the newest reply that contains one.
CASE WHEN s.fact > s.intent THEN coalesce(f.gateway_status, (SELECT a.gateway_status {of_attempt}
    AND a.gateway_status IS NOT NULL ORDER BY a.number DESC LIMIT 1)) END

-- part: gateway_reference
-- The gateway's reference, found in the same way.
CASE WHEN s.fact > s.intent THEN coalesce(f.gateway_reference, (SELECT a.gateway_reference {of_attempt}
    AND a.gateway_reference IS NOT NULL ORDER BY a.number DESC LIMIT 1)) END

-- part: http_status
-- The HTTP status, found in the same way.
CASE WHEN s.fact > s.intent THEN coalesce(f.http_status, (SELECT a.http_status {of_attempt}
    AND a.http_status IS NOT NULL ORDER BY a.number DESC LIMIT 1)) END

-- part: code
-- The error of a fact `f`.
CASE f.kind WHEN 'interrupted' THEN f.kind WHEN 'resolved_rejected' THEN CASE f.basis WHEN 'gateway' THEN '{proven}' END
    ELSE coalesce(f.cause, f.error_code) END

-- part: error_code
-- Our own error code or the gateway's. A replaced row keeps its earlier code.
CASE WHEN s.state <> 'replaced' THEN {code} ELSE (SELECT {code} FROM fact f
    WHERE f.instruction = s.instruction AND f.number < s.fact AND f.kind <> 'heard'
        AND NOT EXISTS (SELECT 1 FROM contradiction c WHERE c.fact = f.number) ORDER BY f.number DESC LIMIT 1) END

-- part: message
-- The message in the form of `core/shown_states.py`: a code and its values, or the gateway's text.
CASE WHEN f.kind IN ('not_sent', 'accepted', 'paid', 'rejected', 'unknown') THEN CASE
        WHEN f.source IS NOT NULL THEN CAST(json_array(f.source, f.number) AS TEXT)
        WHEN d.text LIKE '[%' THEN CAST(json_array('text', d.text) AS TEXT)
        WHEN d.text IS NULL AND f.kind IN ('not_sent', 'unknown') THEN CAST(json_array(f.kind, f.cause) AS TEXT)
        ELSE d.text END
    WHEN f.kind = 'interrupted' THEN CAST(json_array(f.kind) AS TEXT)
    WHEN f.kind = 'released' THEN CAST(json_array(f.kind, f.by) AS TEXT)
    WHEN f.kind = 'returned' THEN CAST(json_array(f.kind, coalesce(d.text, '')) AS TEXT)
    WHEN f.kind = 'replaced' THEN f.details
    WHEN f.kind <> 'intended' THEN CAST(json_array(f.kind, f.by, coalesce(d.text, '')) AS TEXT) END

-- part: marked_message
-- The message, marked if it is about a possible duplicate.
CASE WHEN s.possible_duplicate_of IS NULL THEN {message}
    ELSE CAST(json_array('duplicate', ({message}) || '', s.possible_duplicate_of) AS TEXT) END

-- part: first_sent_at
-- The time of the first attempt that may have been sent.
CASE WHEN s.first_sent IS NULL THEN CASE s.state WHEN 'in_flight' THEN n.at END WHEN s.first_sent = s.intent THEN n.at
    ELSE (SELECT a.at FROM fact a WHERE a.number = s.first_sent) END

-- part: quarantined_since
-- The time at which a row's attempt was sent, if neither the gateway nor proof rejected the row. For an attempt that only a host
-- knows, the time at which it was recorded.
CASE WHEN s.state = 'rejected' AND s.possible_duplicate_of = s.attempt AND coalesce(f.basis, '') <> 'gateway' THEN (
    SELECT max(a.at) FROM fact a WHERE a.instruction = s.instruction
        AND (a.number = s.intent OR (a.source = 'witness' AND a.finding = 'ambiguous'))
) END

-- part: next_order_id
-- The order id of the next attempt.
coalesce(s.order_id, i.client_orderid)

-- part: within_cutoff
-- Leaves out accepted rows whose latest intent is after a given time.
(s.state <> 'accepted' OR CAST(:until AS TEXT) IS NULL OR (SELECT a.at FROM fact a WHERE a.number = s.intent) <= :until)

-- name: row_states
-- The given instructions in the columns of `RowState` after `row`.
SELECT i.number, s.attempt, i.client_orderid, i.country, i.currency, i.minor, s.state, s.attempt - s.inherited_attempts,
    n.order_id, n.purpose, {gateway_status}, {gateway_reference}, {http_status}, {error_code}, {marked_message},
    s.possible_duplicate_of, {first_sent_at}, f.at, n.at, {quarantined_since}, n.endpoint_id
FROM instruction i {with_state} WHERE i.number = ANY (:numbers)

-- name: standings
-- The given instructions in the columns of `RowStanding`.
SELECT i.number, i.client_orderid, {next_order_id}, s.state, s.attempt, s.generation, s.possible_duplicate_of,
    {quarantined_since}
FROM instruction i {with_state} WHERE i.number = ANY (:numbers)

-- name: ready
-- The given instructions that are ready, with the numbers and order ids of their next attempts.
SELECT s.instruction, s.attempt + 1, {next_order_id} FROM state s JOIN instruction i ON i.number = s.instruction
WHERE s.instruction = ANY (:numbers) AND s.state = 'ready'

-- name: contradicted
-- The contradictions after a fact.
SELECT fact FROM contradiction WHERE fact > :before

-- name: in_flight
-- The instructions in flight, with their attempts.
SELECT s.instruction, s.attempt FROM batch b CROSS JOIN state s ON s.batch = b.number AND s.state = 'in_flight' ORDER BY 1

-- part: page
-- The next rows of a batch: its own rows, and the other rows that it covers.
SELECT row, instruction FROM (
    SELECT row, number AS instruction FROM instruction WHERE batch = :batch AND row > :after ORDER BY row LIMIT :limit
) own
UNION ALL
SELECT row, instruction FROM (
    SELECT row, instruction FROM known WHERE batch = :batch AND row > :after ORDER BY row LIMIT :limit
) brought_before
ORDER BY row LIMIT :limit

-- name: next_rows
-- The next rows of a batch, with their instructions.
{page}

-- name: rows_by_state
-- The rows of a batch in the given states with their instructions, in the sheet's order, found from the states.
WITH chosen AS MATERIALIZED (
    SELECT s.instruction FROM state s WHERE s.batch = :batch AND s.state = ANY (:states) AND {within_cutoff}
)
SELECT i.row, i.number AS instruction FROM chosen c CROSS JOIN instruction i ON i.number = c.instruction
WHERE i.row > :after
UNION ALL
SELECT k.row, k.instruction FROM known k CROSS JOIN state s ON s.instruction = k.instruction
WHERE k.batch = :batch AND s.state = ANY (:states) AND k.row > :after AND {within_cutoff}
ORDER BY row LIMIT :limit

-- name: scanned_rows
-- The next rows of a batch with their instructions, and whether they are in the given states, which very many rows have.
WITH c AS MATERIALIZED ({page}) SELECT c.row, c.instruction, s.state = ANY (:states) AND {within_cutoff}
FROM c CROSS JOIN state s ON s.instruction = c.instruction ORDER BY c.row

-- name: count_up_to_limit
-- The number of a batch's own rows in the given states, counted up to a limit.
SELECT count(*) FROM (SELECT 1 FROM state WHERE batch = :batch AND state = ANY (:states) LIMIT :limit) found

-- part: due_columns
-- Rows `c` that may be due, with the newest fact that moved each, and whether it is due.
SELECT i.number, c.row, i.client_orderid, i.country, i.currency, i.amount, i.form, i.fields, {next_order_id}, s.attempt,
    s.generation, s.possible_duplicate_of, s.state, s.inherited_attempts, s.fact, f.kind, f.attempt,
    CASE WHEN s.state = 'ready' THEN (SELECT max(a.number) FROM fact a INDEXED BY fact_of_instruction
        WHERE a.instruction = i.number AND a.kind <> 'heard'
            AND NOT EXISTS (SELECT 1 FROM contradiction x WHERE x.fact = a.number)) END,
    s.state = 'ready' AND i.salt IS NOT NULL
        AND NOT EXISTS (SELECT 1 FROM unanswered e WHERE e.instruction = i.number)
FROM c CROSS JOIN instruction i ON i.number = c.instruction
    CROSS JOIN state s ON s.instruction = c.instruction LEFT JOIN fact f ON f.number = s.fact ORDER BY c.row

-- name: due
-- The next rows of a batch, some of which may be due.
WITH c AS MATERIALIZED ({page}) {due_columns}

-- part: summed
-- The count and sum of instructions. The sum is split, because it can exceed 64 bits.
count(*) AS rows, sum(s.minor / 1000000000) AS billions, sum(s.minor % 1000000000) AS rest

-- part: counted_known
-- The rows of a batch that an earlier batch already had.
SELECT s.country, s.currency, s.state, {summed} FROM known k CROSS JOIN state s ON s.instruction = k.instruction
WHERE k.batch = :batch AND {within_cutoff} GROUP BY s.state, s.country, s.currency

-- part: counted
-- All rows of a batch.
SELECT s.country, s.currency, s.state, {summed} FROM state s
WHERE s.batch = :batch AND {within_cutoff} GROUP BY s.state, s.country, s.currency
UNION ALL
{counted_known}

-- name: tallies
-- Counts and sums of a batch, by country, currency and state.
SELECT country, currency, state, sum(rows), sum(billions), sum(rest) FROM ({counted}) counted
GROUP BY 1, 2, 3 ORDER BY 1, 2, 3

-- name: known_tallies
-- Counts and sums of the rows that an earlier batch already had.
SELECT country, currency, state, sum(rows), sum(billions), sum(rest) FROM ({counted_known}) counted
GROUP BY 1, 2, 3 ORDER BY 1, 2, 3

-- part: held
-- The instructions of a batch that evidence contradicts, found from the evidence, as a batch may have a million rows.
SELECT e.instruction FROM unanswered e CROSS JOIN state b ON b.instruction = e.instruction WHERE b.batch = :batch
UNION
SELECT e.instruction FROM unanswered e CROSS JOIN known k ON k.instruction = e.instruction WHERE k.batch = :batch

-- name: held_tallies
-- Counts and sums of the ready rows that are held by evidence.
SELECT s.country, s.currency, s.state, {summed} FROM ({held}) h CROSS JOIN state s ON s.instruction = h.instruction
WHERE s.state = 'ready' GROUP BY 1, 2, 3

-- name: standing_lines
-- The next rows of a batch, in the order of `LINE_COLUMNS`.
SELECT c.row, s.state, s.attempt - s.inherited_attempts, n.order_id, n.purpose, {gateway_status}, {gateway_reference},
    {http_status}, {error_code}, {marked_message}, {first_sent_at}, f.at, s.minor
FROM ({page}) c CROSS JOIN instruction i ON i.number = c.instruction {with_state} ORDER BY c.row
