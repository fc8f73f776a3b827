-- The statements of `journal.py` for PostgreSQL.

-- part: batches_as_recorded
-- Batches in the columns of `BatchRecord`.
SELECT b.number, b.batch, b.operation, b.sheet_name, b.sheet_sha256, b.rows, b.defects, b.opened_at, b.sheet_path,
    b.reference
FROM batch b

-- part: page_of_rows
-- The next rows of a batch, found before all else: a page costs the same at any place of the batch.
page AS MATERIALIZED (
    (SELECT row, number AS instruction FROM instruction WHERE batch = :batch AND row > :after ORDER BY row LIMIT :limit)
    UNION ALL
    (SELECT row, instruction FROM known WHERE batch = :batch AND row > :after ORDER BY row LIMIT :limit)
    ORDER BY row LIMIT :limit
)

-- name: sealed
-- The facts of all chains that are finished, and the hash over their ends.
SELECT facts, hash FROM seal ORDER BY number DESC LIMIT 1

-- name: open_segments
-- The ends of the chains that go on.
SELECT number, head_seq, head_hash FROM segment WHERE sealed_at IS NULL ORDER BY number

-- name: newest_fact
-- The newest time of the facts.
SELECT max(head_at) FROM segment

-- name: batches_of_plan
-- The batch that a plan opened.
{batches_as_recorded} WHERE plan_sha256 = :plan_sha256 ORDER BY number

-- name: compare
-- The instruction that has the order id of a row, and whether that is the id and the content that it began with.
-- A forgotten payee has a fingerprint, which the row's own content is compared with.
SELECT u.row, u.order_id, p.number, p.client_orderid = u.order_id, p.content = u.content,
    CASE WHEN p.forgotten IS NOT NULL THEN p.content END, CASE WHEN p.forgotten IS NOT NULL THEN u.content END, p.state, p.attempt, p.possible_duplicate_of, p.error_code, p.intended_at, b.batch, p.row, b.opened_at
FROM unnest(:row::bigint[], :order_id::text[], :content::text[]) WITH ORDINALITY u(row, order_id, content, place)
JOIN order_id o ON o.operation = :operation AND o.order_id = u.order_id
JOIN progress p ON p.number = o.instruction JOIN batch b ON b.number = p.batch ORDER BY u.place

-- name: look_alikes
-- The instructions that pay what a row pays, under another id, oldest first.
SELECT u.row, u.order_id, i.client_orderid, b.batch, b.opened_at
FROM unnest(:row::bigint[], :order_id::text[], :payee::text[], :currency::text[], :minor::bigint[])
    WITH ORDINALITY u(row, order_id, payee, currency, minor, place)
JOIN instruction i ON i.payee = u.payee AND i.minor = u.minor AND i.currency = u.currency
    AND i.client_orderid <> u.order_id
JOIN batch b ON b.number = i.batch AND b.operation = :operation ORDER BY u.place, i.number

-- name: has_spelling
-- The rows whose order id was used in any spelling.
SELECT u.row, u.order_id, u.spelling
FROM unnest(:row::bigint[], :order_id::text[], :spelling::text[]) WITH ORDINALITY u(row, order_id, spelling, place)
WHERE EXISTS (SELECT FROM order_id o WHERE o.operation = :operation AND o.spelling = u.spelling) ORDER BY u.place

-- name: used_spellings
-- The newest order id that differs from that of a row in its spelling alone, where the row's own was never used.
SELECT u.row, other.order_id, other.batch, other.opened_at
FROM unnest(:row::bigint[], :order_id::text[], :spelling::text[]) WITH ORDINALITY u(row, order_id, spelling, place)
CROSS JOIN LATERAL (
    SELECT o.order_id, b.batch, b.opened_at FROM order_id o
    JOIN instruction i ON i.number = o.instruction JOIN batch b ON b.number = i.batch
    WHERE o.operation = :operation AND o.spelling = u.spelling ORDER BY o.instruction DESC LIMIT 1
) other
WHERE NOT EXISTS (SELECT FROM order_id own WHERE own.operation = :operation AND own.order_id = u.order_id)
ORDER BY u.place

-- name: repeated
-- The batches opened after `since` that pay what rows pay, under another id, and how many of the rows.
SELECT pair.batch, count(*) FROM (
    SELECT DISTINCT u.place, i.batch
    FROM unnest(:order_id::text[], :payee::text[], :currency::text[], :minor::bigint[])
        WITH ORDINALITY u(order_id, payee, currency, minor, place)
    JOIN instruction i ON i.payee = u.payee AND i.minor = u.minor AND i.currency = u.currency
        AND i.client_orderid <> u.order_id
    JOIN batch b ON b.number = i.batch AND b.operation = :operation AND b.opened_at > :since
) pair GROUP BY 1

-- name: same_spelling
-- The order ids of an operation in one spelling, with their instructions.
SELECT order_id, instruction FROM order_id WHERE operation = :operation AND spelling = :spelling

-- name: is_spelling_used
-- Whether an order id was ever used, in any spelling.
SELECT 1 FROM order_id WHERE operation = :operation AND spelling = :spelling LIMIT 1

-- name: standing_lines
-- The next rows of a batch, as `LINE_COLUMNS` names them and `row_standing` has them.
WITH {page_of_rows} SELECT c.row, coalesce(s.state, 'ready'), coalesce(s.attempt - s.inherited_attempts, 0),
    s.sent_orderid, s.purpose, s.gateway_status, s.gateway_reference, s.http_status, s.error_code,
    CASE WHEN s.possible_duplicate_of IS NULL THEN s.message
        ELSE json_build_array('duplicate', s.message, s.possible_duplicate_of)::text END,
    coalesce(s.first_sent_at, CASE WHEN s.state = 'in_flight' THEN s.intended_at END), s.updated_at, i.minor
FROM page c JOIN instruction i ON i.number = c.instruction LEFT JOIN standing s ON s.instruction = c.instruction
ORDER BY c.row

-- name: numbered
-- Those of some rows that a batch has, with their instructions.
SELECT row, instruction FROM covered WHERE batch = :batch AND row = ANY (:rows) ORDER BY row

-- name: customer_urls
-- The facts about latest attempts in a batch that name where a customer pays.
SELECT c.row, f.details FROM covered c JOIN fact f ON f.instruction = c.instruction
JOIN standing s ON s.instruction = f.instruction AND s.attempt = f.attempt
WHERE c.batch = :batch AND strpos(f.details, '"customer_url"') > 0 AND f.contradicts IS NULL
ORDER BY f.instruction, f.nth

-- name: history
-- What people did about a batch. A fact belongs to the batch that brought its instruction; a batch also covers rows
-- that another one brought.
SELECT f.number, f.at, f.kind, f.details, i.row, f.attempt
FROM fact f LEFT JOIN instruction i ON i.number = f.instruction WHERE f.batch = :batch AND {of_people}
UNION ALL
SELECT f.number, f.at, f.kind, f.details, k.row, f.attempt
FROM fact f JOIN known k ON k.instruction = f.instruction WHERE k.batch = :batch AND {of_people}
ORDER BY 1

-- name: payments_fitting
-- The newest payments whose payee's words match.
SELECT instruction FROM payee_words WHERE words @@ :expression::tsquery ORDER BY instruction DESC LIMIT :limit

-- name: replies
-- The stored raw replies about an instruction, oldest first.
SELECT f.attempt, f.at, r.head, r.body FROM reply r
JOIN fact f ON f.instruction = r.instruction AND f.nth = r.nth WHERE r.instruction = :instruction ORDER BY r.nth

-- name: highest_numbers
-- The newest time of the facts, and the highest numbers of a batch and of an instruction.
SELECT (SELECT max(head_at) FROM segment), (SELECT max(number) FROM batch), (SELECT max(number) FROM instruction)

-- name: add_order_id
-- Writes an order id.
INSERT INTO order_id VALUES (:operation, :order_id, :instruction, :spelling)
