-- Version 1 of the journal. What is written down here never changes; a later version adds a migration of its own.
-- `instruction`, `page`, `known` and `fact` are append-only; `standing` is what their facts come to, and can be rebuilt.

CREATE TABLE migration (
    version    INTEGER PRIMARY KEY,
    applied_at TEXT NOT NULL
) STRICT;

-- One row. `home` is the path of the file when a run last opened it: a copy shows by standing somewhere else.
CREATE TABLE identity (
    one        INTEGER PRIMARY KEY CHECK (one = 1),
    journal_id TEXT NOT NULL,
    endpoint   TEXT NOT NULL,
    created_at TEXT NOT NULL,
    home       TEXT NOT NULL
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
    fields         TEXT NOT NULL,
    payee          TEXT NOT NULL,
    content        TEXT NOT NULL,
    UNIQUE (batch, row)
) STRICT;

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

-- An instruction without a line here is ready and nothing ever happened to it.
CREATE TABLE standing (
    instruction           INTEGER PRIMARY KEY REFERENCES instruction (number),
    state                 TEXT NOT NULL,
    attempt               INTEGER NOT NULL,
    generation            INTEGER NOT NULL,
    possible_duplicate_of INTEGER,
    inherited_attempts    INTEGER NOT NULL,
    order_id              TEXT NOT NULL,
    sent_orderid          TEXT,
    purpose               TEXT,
    gateway_status        TEXT,
    gateway_reference     TEXT,
    http_status           INTEGER,
    error_code            TEXT,
    message               TEXT,
    intended_at           TEXT,
    first_sent_at         TEXT,
    updated_at            TEXT
) STRICT;

CREATE INDEX standing_in_flight ON standing (instruction) WHERE state = 'in_flight';

-- Every instruction with where it stands.
CREATE VIEW progress AS
    SELECT i.*, coalesce(s.order_id, i.client_orderid) AS order_id, coalesce(s.state, 'ready') AS state,
        coalesce(s.attempt, 0) AS attempt, coalesce(s.generation, 1) AS generation, s.possible_duplicate_of,
        coalesce(s.inherited_attempts, 0) AS inherited_attempts, s.sent_orderid, s.purpose, s.gateway_status,
        s.gateway_reference, s.http_status, s.error_code, s.message, s.intended_at, s.first_sent_at, s.updated_at
    FROM instruction i LEFT JOIN standing s ON s.instruction = i.number;

-- The chain. `hash` is SHA-256 over the hash before it and every other column; the hash before the first comes from
-- `identity`. `contradicts` is the state a fact did not fit: such a fact is kept, and moved nothing.
CREATE TABLE fact (
    seq         INTEGER PRIMARY KEY,
    at          TEXT NOT NULL CHECK (at NOT GLOB '*[^0-9TZ:.-]*'),
    kind        TEXT NOT NULL,
    batch       INTEGER NOT NULL REFERENCES batch (number),
    instruction INTEGER REFERENCES instruction (number),
    attempt     INTEGER,
    contradicts TEXT,
    details     TEXT NOT NULL,
    hash        BLOB NOT NULL CHECK (length(hash) = 32)
) STRICT;

CREATE INDEX fact_contradicting ON fact (seq) WHERE contradicts IS NOT NULL;

CREATE TRIGGER fact_is_never_changed BEFORE UPDATE ON fact
    BEGIN SELECT RAISE(ABORT, 'facts are never changed'); END;
CREATE TRIGGER fact_is_never_removed BEFORE DELETE ON fact
    BEGIN SELECT RAISE(ABORT, 'facts are never removed'); END;
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
