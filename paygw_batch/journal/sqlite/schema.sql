-- The tables of the journal. Once released, nothing here changes: a later version adds a migration of its own.
-- `instruction`, `page`, `known` and `fact` are append-only; `state` is what their facts come to, and can be rebuilt.

CREATE TABLE migration (
    version    INTEGER PRIMARY KEY,
    applied_at TEXT NOT NULL
) STRICT;

-- One row. `endpoint` is HOST/ENDPOINT_ID, as the journal was made; the consumer key is only here as its SHA-256 (hex). `home` is the path of the file when a run last opened it: a copy shows by standing somewhere else.
CREATE TABLE identity (
    one        INTEGER PRIMARY KEY CHECK (one = 1),
    journal_id TEXT NOT NULL,
    endpoint   TEXT NOT NULL,
    created_at TEXT NOT NULL,
    home       TEXT NOT NULL,
    consumer_key_sha256 TEXT NOT NULL
) STRICT;

CREATE TABLE batch (
    number       INTEGER PRIMARY KEY,
    batch        TEXT NOT NULL,
    operation    TEXT NOT NULL,
    sheet_name   TEXT NOT NULL,
    sheet_sha256 TEXT NOT NULL,
    rows         INTEGER NOT NULL CHECK (rows >= 0),
    defects      INTEGER NOT NULL CHECK (defects >= 0),
    opened_at    TEXT NOT NULL,
    sheet_path   TEXT NOT NULL,
    UNIQUE (operation, batch)
) STRICT;

CREATE TABLE page (
    batch   INTEGER NOT NULL REFERENCES batch (number),
    number  INTEGER NOT NULL,
    content BLOB NOT NULL,
    PRIMARY KEY (batch, number)
) STRICT;

CREATE TABLE instruction (
    number         INTEGER PRIMARY KEY,
    batch          INTEGER NOT NULL REFERENCES batch (number),
    row            INTEGER NOT NULL,
    client_orderid TEXT NOT NULL,
    country        TEXT NOT NULL,
    currency       TEXT NOT NULL,
    minor          INTEGER NOT NULL CHECK (minor >= 0),
    replaces       INTEGER REFERENCES instruction (number),
    amount         TEXT NOT NULL,
    form           TEXT NOT NULL,
    fields         TEXT,
    payee          TEXT,
    content        TEXT,
    salt           BLOB CHECK (length(salt) = 16),
    people_sha256  BLOB NOT NULL CHECK (length(people_sha256) = 32),
    UNIQUE (batch, row)
) STRICT;

-- `people_sha256` is SHA-256 over the salt and what the instruction says of people: fields, payee and content. The digest of its
-- batch is over it and all that is kept. To forget a payee is to empty these columns and the salt.
CREATE INDEX instruction_forgotten ON instruction (batch) WHERE salt IS NULL;
CREATE UNIQUE INDEX instruction_replacing ON instruction (replaces) WHERE replaces IS NOT NULL;
CREATE INDEX instruction_by_payee ON instruction (payee, minor);

-- Rows of a batch whose instruction an earlier batch brought.
CREATE TABLE known (
    batch       INTEGER NOT NULL REFERENCES batch (number),
    row         INTEGER NOT NULL,
    instruction INTEGER NOT NULL REFERENCES instruction (number),
    PRIMARY KEY (batch, row),
    UNIQUE (batch, instruction)
) STRICT, WITHOUT ROWID;

CREATE VIEW covered AS
    SELECT batch, row, number AS instruction FROM instruction
    UNION ALL
    SELECT batch, row, instruction FROM known;

-- Every order id ever used, a sheet's own and those of later attempts, with the instruction it belongs to now.
CREATE TABLE order_id (
    operation   TEXT NOT NULL,
    order_id    TEXT NOT NULL,
    instruction INTEGER NOT NULL REFERENCES instruction (number),
    PRIMARY KEY (operation, order_id)
) STRICT, WITHOUT ROWID;

-- The state machine, as `core/lifecycle.py` has it: filled when the tables are made, and read by the trigger alone.
CREATE TABLE move (
    before      TEXT NOT NULL,
    kind        TEXT NOT NULL,
    after       TEXT NOT NULL,
    attempts    INTEGER NOT NULL,
    generations INTEGER NOT NULL,
    is_marking  INTEGER NOT NULL,
    is_sending  INTEGER NOT NULL,
    PRIMARY KEY (before, kind)
) STRICT, WITHOUT ROWID;

-- Where each instruction is. The first columns are written once; the others change by facts alone. `order_id` is what the next
-- attempt is sent under (null: the sheet's own). `intent`, `first_sent` and `fact` are numbers of facts: the latest intent, the
-- first that may have left, and the newest one that moved it.
CREATE TABLE state (
    instruction           INTEGER PRIMARY KEY REFERENCES instruction (number),
    batch                 INTEGER NOT NULL,
    country               TEXT NOT NULL,
    currency              TEXT NOT NULL,
    minor                 INTEGER NOT NULL,
    state                 TEXT NOT NULL DEFAULT 'ready',
    attempt               INTEGER NOT NULL DEFAULT 0,
    generation            INTEGER NOT NULL DEFAULT 1,
    possible_duplicate_of INTEGER,
    inherited_attempts    INTEGER NOT NULL DEFAULT 0,
    order_id              TEXT,
    intent                INTEGER,
    first_sent            INTEGER,
    fact                  INTEGER
) STRICT;
-- A batch is counted without reading its rows.
CREATE INDEX state_counted ON state (batch, state, country, currency, minor);

-- The chain. `hash` is SHA-256 over the hash before it and every other column; the hash before the first comes from
-- `identity`. `said_sha256` is the digest of what the fact says of people, which is in `said`. `batch` is that of a fact about a
-- whole batch; a fact with neither a batch nor an instruction is about the whole journal, or keeps evidence about nothing that is
-- known. `source`, `finding` and `means` are those of evidence. `details` says what has no column: of a batch, of the journal, which
-- row replaced another one, and what lasts of evidence.
CREATE TABLE fact (
    number            INTEGER PRIMARY KEY,
    at                TEXT NOT NULL CHECK (at NOT GLOB '*[^0-9TZ:.-]*'),
    kind              TEXT NOT NULL,
    batch             INTEGER REFERENCES batch (number),
    instruction       INTEGER REFERENCES instruction (number),
    attempt           INTEGER,
    order_id          TEXT,
    nonce             TEXT,
    timestamp_s       INTEGER,
    purpose           TEXT,
    endpoint_id       TEXT,
    gateway_status    TEXT,
    gateway_reference TEXT,
    http_status       INTEGER,
    error_code        TEXT,
    cause             TEXT,
    conflict          INTEGER,
    source            TEXT,
    finding           TEXT,
    means             TEXT,
    by                TEXT,
    basis             TEXT,
    agreement         TEXT,
    details           TEXT,
    said_sha256       BLOB,
    hash              BLOB NOT NULL CHECK (length(hash) = 32)
) STRICT;
-- An attempt has one intent, for ever.
CREATE UNIQUE INDEX fact_one_intent ON fact (instruction, attempt) WHERE kind = 'intended';

-- What facts say of people: a message of the gateway or a person's evidence, where a customer goes to pay, and the digest of the raw
-- reply. Nobody can guess it from its digest without the salt.
CREATE TABLE said (
    fact         INTEGER PRIMARY KEY REFERENCES fact (number),
    salt         BLOB NOT NULL CHECK (length(salt) = 16),
    text         TEXT,
    customer_url TEXT,
    reply_sha256 TEXT
) STRICT;
CREATE INDEX said_of_customer_page ON said (fact) WHERE customer_url IS NOT NULL;

-- The facts that did not fit the state of their row: kept, and they moved nothing.
CREATE TABLE contradiction (
    fact  INTEGER PRIMARY KEY REFERENCES fact (number),
    state TEXT NOT NULL
) STRICT;

CREATE TRIGGER fact_hands_over BEFORE INSERT ON fact WHEN NEW.kind = 'replaced'
    BEGIN
{hand_over}
    END;
CREATE TRIGGER fact_moves AFTER INSERT ON fact WHEN NEW.instruction IS NOT NULL AND NEW.kind <> 'heard'
    BEGIN
{move_row}
{note_contradiction}
    END;

CREATE TRIGGER fact_is_never_changed BEFORE UPDATE ON fact
    BEGIN SELECT RAISE(ABORT, 'facts are never changed'); END;
CREATE TRIGGER fact_is_never_removed BEFORE DELETE ON fact
    BEGIN SELECT RAISE(ABORT, 'facts are never removed'); END;
CREATE TRIGGER said_is_never_changed BEFORE UPDATE ON said
    BEGIN SELECT RAISE(ABORT, 'what facts say is never changed'); END;
CREATE TRIGGER said_is_never_removed BEFORE DELETE ON said
    BEGIN SELECT RAISE(ABORT, 'what facts say is never removed'); END;
CREATE TRIGGER contradiction_is_never_changed BEFORE UPDATE ON contradiction
    BEGIN SELECT RAISE(ABORT, 'contradictions are never changed'); END;
CREATE TRIGGER contradiction_is_never_removed BEFORE DELETE ON contradiction
    BEGIN SELECT RAISE(ABORT, 'contradictions are never removed'); END;
CREATE TRIGGER move_is_never_changed BEFORE UPDATE ON move
    BEGIN SELECT RAISE(ABORT, 'the state machine is never changed'); END;
CREATE TRIGGER move_is_never_removed BEFORE DELETE ON move
    BEGIN SELECT RAISE(ABORT, 'the state machine is never changed'); END;
CREATE TRIGGER state_is_never_of_another_row BEFORE UPDATE OF instruction, batch, country, currency, minor ON state
    BEGIN SELECT RAISE(ABORT, 'instructions are never changed'); END;
CREATE TRIGGER state_is_never_removed BEFORE DELETE ON state
    BEGIN SELECT RAISE(ABORT, 'states are never removed'); END;
CREATE TRIGGER instruction_is_never_changed BEFORE UPDATE ON instruction
    BEGIN SELECT RAISE(ABORT, 'instructions are never changed'); END;
CREATE TRIGGER instruction_is_never_removed BEFORE DELETE ON instruction
    BEGIN SELECT RAISE(ABORT, 'instructions are never removed'); END;
CREATE TRIGGER page_is_never_changed BEFORE UPDATE ON page
    BEGIN SELECT RAISE(ABORT, 'pages are never changed'); END;
CREATE TRIGGER page_is_never_removed BEFORE DELETE ON page
    BEGIN SELECT RAISE(ABORT, 'pages are never removed'); END;
CREATE TRIGGER known_is_never_changed BEFORE UPDATE ON known
    BEGIN SELECT RAISE(ABORT, 'known rows are never changed'); END;
CREATE TRIGGER known_is_never_removed BEFORE DELETE ON known
    BEGIN SELECT RAISE(ABORT, 'known rows are never removed'); END;
CREATE TRIGGER batch_is_never_changed BEFORE UPDATE ON batch
    BEGIN SELECT RAISE(ABORT, 'batches are never changed'); END;
CREATE TRIGGER batch_is_never_removed BEFORE DELETE ON batch
    BEGIN SELECT RAISE(ABORT, 'batches are never removed'); END;
CREATE TRIGGER order_id_is_never_removed BEFORE DELETE ON order_id
    BEGIN SELECT RAISE(ABORT, 'order ids are never removed'); END;

-- Evidence that speaks about a row has a finding. Also found fast: the facts about the whole journal, by kind.
CREATE INDEX fact_heard ON fact (finding, instruction) WHERE finding IS NOT NULL;
CREATE INDEX fact_of_journal ON fact (kind) WHERE instruction IS NULL AND batch IS NULL;

-- The evidence which says that the gateway has its row, and that no person has answered since: a ready row is held.
CREATE VIEW unanswered AS
    SELECT * FROM fact e
    WHERE e.finding IN ('contradicting', 'ambiguous') AND (e.finding = 'contradicting' OR e.means IN ('paid', 'accepted'))
        AND NOT EXISTS (
            SELECT 1 FROM fact answer
            WHERE answer.instruction = e.instruction AND answer.finding = 'resolved' AND answer.number > e.number
        );

-- Which batch a plan opened is found without reading all facts, and no plan opens two. The plan's digest is in the fact that
-- opens the batch, under the chain.
CREATE UNIQUE INDEX fact_opening_by_plan ON fact (json_extract(details, '$.plan_sha256'))
    WHERE kind = 'batch_opened' AND json_extract(details, '$.plan_sha256') IS NOT NULL;

-- What people did is found without reading the facts of its runs: facts about a batch, and of the kinds `released`, `replaced`,
-- `resolved_...` and `returned`. Two comparisons cost a payout a third of what a list of the kinds does.
CREATE INDEX fact_of_batch ON fact (batch) WHERE batch IS NOT NULL;
CREATE INDEX fact_of_people ON fact (instruction) WHERE kind >= 'rel' AND kind < 's';

-- Order ids and references in one spelling. Derived from the rest: `verify` makes it again.

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

-- The raw replies of the gateway for rows that did not end paid. The SHA-256 of head and body is in the fact that the reply
-- led to, under the chain. `head` is the status line and the headers that matter. It holds what the gateway says of payees,
-- and never leaves this file but for `status --row`.
CREATE TABLE reply (
    fact        INTEGER PRIMARY KEY REFERENCES fact (number),
    instruction INTEGER NOT NULL REFERENCES instruction (number),
    head        BLOB NOT NULL,
    body        BLOB NOT NULL CHECK (length(body) <= 65536)
) STRICT;
CREATE INDEX reply_by_instruction ON reply (instruction);

CREATE TRIGGER reply_is_never_changed BEFORE UPDATE ON reply
    BEGIN SELECT RAISE(ABORT, 'replies are never changed'); END;
CREATE TRIGGER reply_is_never_removed BEFORE DELETE ON reply
    BEGIN SELECT RAISE(ABORT, 'replies are never removed'); END;

-- What people are to be told: each line is one message to one recipient. That of a run has 1 as its `process`, and is due when no run
-- holds the file. `next_at` is when it may be tried; null: it was given up.
CREATE TABLE notice (
    number     INTEGER PRIMARY KEY,
    id         TEXT NOT NULL UNIQUE,
    occasion   TEXT NOT NULL,
    subject    TEXT NOT NULL,
    batch      TEXT NOT NULL,
    recipient  TEXT NOT NULL,
    written_at TEXT NOT NULL,
    content    TEXT,
    process    INTEGER,
    tries      INTEGER NOT NULL DEFAULT 0,
    tried_at   TEXT,
    next_at    TEXT,
    sent_at    TEXT,
    problem    TEXT NOT NULL DEFAULT '',
    UNIQUE (occasion, batch, subject, recipient)
) STRICT;

CREATE TRIGGER notice_is_never_removed BEFORE DELETE ON notice
    BEGIN SELECT RAISE(ABORT, 'notices are never removed'); END;

-- The audit trail: who did what at the console, or was refused. `hash` is SHA-256 over the hash before it and every other column.
CREATE TABLE audit (
    number INTEGER PRIMARY KEY,
    at     TEXT NOT NULL,
    who    TEXT NOT NULL,
    act    TEXT NOT NULL,
    thing  TEXT NOT NULL,
    result TEXT NOT NULL,
    said   TEXT NOT NULL,
    hash   TEXT NOT NULL
) STRICT;

CREATE TRIGGER audit_is_never_changed BEFORE UPDATE ON audit
    BEGIN SELECT RAISE(ABORT, 'entries of the audit trail are never changed'); END;
CREATE TRIGGER audit_is_never_removed BEFORE DELETE ON audit
    BEGIN SELECT RAISE(ABORT, 'entries of the audit trail are never removed'); END;

-- Payments are found by the payee's name and numbers. Derived from the instructions: `verify` makes it again. The fields are
-- those of the forms: what names a payee ends with one of these words.
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

-- `lower` folds the case of ASCII, which is all there is to fold in nearly every order id.
CREATE INDEX order_id_in_one_case ON order_id (operation, lower(order_id));

-- A row is sent only if it is where its newest fact leads: that fact is looked up for every row that is due.
CREATE INDEX fact_of_instruction ON fact (instruction);
