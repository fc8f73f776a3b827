-- Version 4 of the journal: which batch a plan opened is found without reading all facts, and no plan opens two. The plan's
-- digest is in the fact that opens the batch, under the chain; facts of earlier versions have none.

CREATE UNIQUE INDEX fact_opening_by_plan ON fact (json_extract(details, '$.plan_sha256'))
    WHERE kind = 'batch_opened' AND json_extract(details, '$.plan_sha256') IS NOT NULL;

-- What people did is found without reading the facts of its runs: facts about a batch, and of the kinds `released`, `replaced`,
-- `resolved_...` and `returned`. Two comparisons cost a payout a third of what a list of the kinds does.
CREATE INDEX fact_of_people ON fact (batch, instruction)
    WHERE instruction IS NULL OR (kind >= 'rel' AND kind < 's');

-- Where the customers of a collection go to pay.
CREATE INDEX fact_of_customer_page ON fact (instruction) WHERE instr(details, '"customer_url"') > 0;

-- Version 4 of the journal: which people said that this copy of it is the newest one, and under which names its endpoint
-- is known. In both tables `hash` is SHA-256 over the hash before it and every other column: chains of their own, which
-- start where that of the facts does.

-- `seq` and `head` (hex) are the end of the chain of facts that the person took for the newest.
CREATE TABLE adoption (
    number INTEGER PRIMARY KEY,
    at     TEXT NOT NULL,
    by     TEXT NOT NULL,
    path   TEXT NOT NULL,
    seq    INTEGER NOT NULL,
    head   TEXT NOT NULL,
    hash   BLOB NOT NULL CHECK (length(hash) = 32)
) STRICT;

CREATE TRIGGER adoption_is_never_changed BEFORE UPDATE ON adoption
    BEGIN SELECT RAISE(ABORT, 'adoptions are never changed'); END;
CREATE TRIGGER adoption_is_never_removed BEFORE DELETE ON adoption
    BEGIN SELECT RAISE(ABORT, 'adoptions are never removed'); END;

-- The endpoint that the journal was made for stands in `identity`, where no consumer key is told. Here are all names that
-- were used since: canonical hosts, each with the SHA-256 of the consumer key (hex). `by` is empty where a run noted it,
-- and says who it was where a person did.
CREATE TABLE endpoint_name (
    number              INTEGER PRIMARY KEY,
    host                TEXT NOT NULL,
    consumer_key_sha256 TEXT NOT NULL,
    noted_at            TEXT NOT NULL,
    by                  TEXT NOT NULL,
    hash                BLOB NOT NULL CHECK (length(hash) = 32),
    UNIQUE (host, consumer_key_sha256)
) STRICT;

CREATE TRIGGER endpoint_name_is_never_changed BEFORE UPDATE ON endpoint_name
    BEGIN SELECT RAISE(ABORT, 'names of the endpoint are never changed'); END;
CREATE TRIGGER endpoint_name_is_never_removed BEFORE DELETE ON endpoint_name
    BEGIN SELECT RAISE(ABORT, 'names of the endpoint are never removed'); END;
-- Version 4 of the journal: order ids and references in one spelling. Derived from the rest, as `batch_total` is: `verify`
-- makes it again, and what stood in an earlier version is filled in when the journal is brought up (`spellings.py`).

-- The order ids that hold anything but ASCII, in one spelling: what SQLite's own `lower` cannot do.
CREATE TABLE order_id_spelling (
    operation TEXT NOT NULL,
    spelling  TEXT NOT NULL,
    order_id  TEXT NOT NULL,
    PRIMARY KEY (operation, spelling, order_id)
) STRICT, WITHOUT ROWID;

-- The reference that the order ids of a batch were derived from, as it was written then.
CREATE TABLE batch_reference (
    batch     INTEGER PRIMARY KEY REFERENCES batch (number),
    reference TEXT NOT NULL
) STRICT;

CREATE TRIGGER order_id_spelling_is_never_changed BEFORE UPDATE ON order_id_spelling
    BEGIN SELECT RAISE(ABORT, 'spellings of order ids are never changed'); END;
CREATE TRIGGER order_id_spelling_is_never_removed BEFORE DELETE ON order_id_spelling
    BEGIN SELECT RAISE(ABORT, 'spellings of order ids are never removed'); END;
CREATE TRIGGER batch_reference_is_never_changed BEFORE UPDATE ON batch_reference
    BEGIN SELECT RAISE(ABORT, 'references of batches are never changed'); END;
CREATE TRIGGER batch_reference_is_never_removed BEFORE DELETE ON batch_reference
    BEGIN SELECT RAISE(ABORT, 'references of batches are never removed'); END;

-- Version 4 of the journal: the raw replies of the gateway for rows that did not end paid. The SHA-256 of head and body is in
-- the fact that the reply led to, under the chain; facts of earlier versions have none. `head` is the status line and the
-- headers that matter. It holds what the gateway says of payees, and never leaves this file but for `status --row`.
CREATE TABLE reply (
    fact        INTEGER PRIMARY KEY REFERENCES fact (seq),
    instruction INTEGER NOT NULL REFERENCES instruction (number),
    head        TEXT NOT NULL,
    body        BLOB NOT NULL CHECK (length(body) <= 65536)
) STRICT;
CREATE INDEX reply_by_instruction ON reply (instruction);

CREATE TRIGGER reply_is_never_changed BEFORE UPDATE ON reply
    BEGIN SELECT RAISE(ABORT, 'replies are never changed'); END;
CREATE TRIGGER reply_is_never_removed BEFORE DELETE ON reply
    BEGIN SELECT RAISE(ABORT, 'replies are never removed'); END;

-- Version 4 of the journal: payments are found by the payee's name and numbers. Derived from the instructions: `verify` makes
-- it again, and what an earlier version wrote is filled in when the journal is brought up (`search.py`). The fields are those
-- of the forms: what names a payee ends with one of these words.
CREATE VIEW payment_text AS
    SELECT number, batch, (
        SELECT group_concat(value, ' ') FROM json_each(iif(json_valid(fields), fields, '{}'))
        WHERE key GLOB '*name' OR key GLOB '*_number' OR key GLOB '*phone' OR key GLOB '*email'
    ) AS words
    FROM instruction;

-- Contentless: it holds words, and for each the numbers of instructions.
CREATE VIRTUAL TABLE payment_words
    USING fts5 (words, content='', columnsize=0, tokenize="unicode61 remove_diacritics 2");
CREATE VIRTUAL TABLE payment_word USING fts5vocab (payment_words, instance);

-- `lower` folds the case of ASCII, which is all there is to fold in nearly every order id. Not UNIQUE:
-- earlier versions let ids differ in their spelling alone.
CREATE INDEX order_id_in_one_case ON order_id (operation, lower(order_id));
