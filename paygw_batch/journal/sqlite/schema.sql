-- The journal's tables. This file never changes after its release. Later versions add their own migrations.
-- `instruction`, `page`, `known` and `fact` are append-only. `state` is derived from the facts and can be rebuilt.

CREATE TABLE migration (
    version    INTEGER PRIMARY KEY,
    applied_at TEXT NOT NULL
) STRICT;

-- A single row. `endpoint` is HOST/ENDPOINT_ID when the journal was created. Only the SHA-256 (hex) of the consumer key is stored.
-- `home` is the file's path when a run last opened it. A file at another path may be a copy.
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

-- `people_sha256` is the SHA-256 of the salt and the instruction's personal data: fields, payee and content. The batch's digest
-- covers it and all permanent columns. A payee is forgotten by clearing the personal data and the salt.
CREATE INDEX instruction_forgotten ON instruction (batch) WHERE salt IS NULL;
CREATE UNIQUE INDEX instruction_replacing ON instruction (replaces) WHERE replaces IS NOT NULL;
CREATE INDEX instruction_by_payee ON instruction (payee, minor);

-- Rows of a batch whose instruction belongs to an earlier batch.
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

-- All order ids ever used, a sheet's own and those of later attempts, with their current instructions.
CREATE TABLE order_id (
    operation   TEXT NOT NULL,
    order_id    TEXT NOT NULL,
    instruction INTEGER NOT NULL REFERENCES instruction (number),
    PRIMARY KEY (operation, order_id)
) STRICT, WITHOUT ROWID;

-- The state machine of `core/lifecycle.py`. Filled when the tables are created, and read only by the triggers.
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

-- Each instruction's state. The first five columns never change, and only facts change the others. `order_id` is the next attempt's
-- order id (null for the sheet's own). `intent`, `first_sent` and `fact` are numbers of facts: the latest intent, the first intent that
-- may have been sent, and the newest fact that moved the instruction.
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
-- Counts a batch's rows without reading them.
CREATE INDEX state_counted ON state (batch, state, country, currency, minor);

-- The chain. `hash` is the SHA-256 of the previous hash and all other columns. The first fact links to a hash of `identity`.
-- `said_sha256` is the digest of the fact's personal data, which is in `said`. `batch` is set for a fact about a whole batch. A fact
-- without a batch and an instruction is about the whole journal, or is evidence about an unknown order. `source`, `finding` and `means`
-- describe evidence. `details` contains values without a column: about a batch or the journal, which row replaced another one, and the
-- permanent part of evidence.
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
-- An attempt can never have a second intent.
CREATE UNIQUE INDEX fact_one_intent ON fact (instruction, attempt) WHERE kind = 'intended';

-- The facts' personal data: the gateway's message or a person's evidence, the URL of the payment page, and the digest of the raw reply.
-- Without the salt, nobody can guess the data from its digest.
CREATE TABLE said (
    fact         INTEGER PRIMARY KEY REFERENCES fact (number),
    salt         BLOB NOT NULL CHECK (length(salt) = 16),
    text         TEXT,
    customer_url TEXT,
    reply_sha256 TEXT
) STRICT;
CREATE INDEX said_of_customer_page ON said (fact) WHERE customer_url IS NOT NULL;

-- The facts that did not fit the state of their row, and so moved nothing.
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

-- Evidence about a row has a finding. The second index finds facts about the whole journal by kind.
CREATE INDEX fact_heard ON fact (finding, instruction) WHERE finding IS NOT NULL;
CREATE INDEX fact_of_journal ON fact (kind) WHERE instruction IS NULL AND batch IS NULL;

-- The evidence that the gateway has a row, if no person has answered it. It holds the row if that is ready.
CREATE VIEW unanswered AS
    SELECT * FROM fact e
    WHERE e.finding IN ('contradicting', 'ambiguous') AND (e.finding = 'contradicting' OR e.means IN ('paid', 'accepted'))
        AND NOT EXISTS (
            SELECT 1 FROM fact answer
            WHERE answer.instruction = e.instruction AND answer.finding = 'resolved' AND answer.number > e.number
        );

-- Finds the batch opened by a plan without reading all facts, and prevents a plan from opening two. The plan's digest is in the fact
-- that opens the batch, so the chain covers it.
CREATE UNIQUE INDEX fact_opening_by_plan ON fact (json_extract(details, '$.plan_sha256'))
    WHERE kind = 'batch_opened' AND json_extract(details, '$.plan_sha256') IS NOT NULL;

-- Find people's actions without reading the facts of runs: facts about a batch, and facts of the kinds `released`, `replaced`,
-- `resolved_...` and `returned`. For a payout, two comparisons take a third of the time of a list of these kinds.
CREATE INDEX fact_of_batch ON fact (batch) WHERE batch IS NOT NULL;
CREATE INDEX fact_of_people ON fact (instruction) WHERE kind >= 'rel' AND kind < 's';

-- The next two tables are derived from the others. `verify` rebuilds them for comparison.

-- The spellings of non-ASCII order ids, which SQLite's own `lower` cannot compute.
CREATE TABLE order_id_spelling (
    operation TEXT NOT NULL,
    spelling  TEXT NOT NULL,
    order_id  TEXT NOT NULL,
    PRIMARY KEY (operation, spelling, order_id)
) STRICT, WITHOUT ROWID;

-- The reference from which a batch's order ids were derived, as originally written.
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

-- The gateway's raw replies for rows that were not paid. The resulting fact contains the SHA-256 of head and body, so the chain
-- covers them. `head` contains the status line and the relevant headers. Replies can contain personal data of payees, and only
-- `status --row` shows them.
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

-- Notices to people, one per recipient. A run's notice has the `process` 1 and is due when no run holds the file. `next_at` is the
-- time of the next try, or null if there will be none.
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

-- The audit trail: who did what on the console, or was refused. `hash` is the SHA-256 of the previous hash and all other columns.
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

-- The text by which payments are found: payees' names and numbers. Derived from the instructions. `verify` rebuilds the index for
-- comparison. Fields that identify a payee end with one of these words.
CREATE VIEW payment_text AS
    SELECT number, batch, (
        SELECT group_concat(value, ' ') FROM json_each(iif(json_valid(fields), fields, '{}'))
        WHERE key GLOB '*name' OR key GLOB '*_number' OR key GLOB '*phone' OR key GLOB '*email'
    ) AS words
    FROM instruction;

-- The index is contentless: it contains only words and the numbers of their instructions.
CREATE VIRTUAL TABLE payment_words
    USING fts5 (words, content='', columnsize=0, tokenize="unicode61 remove_diacritics 2");
CREATE VIRTUAL TABLE payment_word USING fts5vocab (payment_words, instance);

-- `lower` folds only ASCII, which is enough for nearly every order id.
CREATE INDEX order_id_in_one_case ON order_id (operation, lower(order_id));

-- A row is sent only if its state follows from its newest fact, which is looked up for every due row.
CREATE INDEX fact_of_instruction ON fact (instruction);
