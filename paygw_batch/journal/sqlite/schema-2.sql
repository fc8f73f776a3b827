-- Version 2 of the journal: evidence from outside a run, the gateway's notifications and its answers to enquiries.
-- `hash` is SHA-256 over the hash before it and every other column: a chain of its own beside the facts. What moved or
-- contradicted an instruction is a fact as well, the one that `fact` names.

CREATE TABLE evidence (
    number      INTEGER PRIMARY KEY,
    taken_at    TEXT NOT NULL CHECK (taken_at NOT GLOB '*[^0-9TZ:.-]*'),
    source      TEXT NOT NULL,
    spooled     INTEGER UNIQUE,
    spool_hash  TEXT,
    finding     TEXT NOT NULL,
    said        TEXT,
    instruction INTEGER REFERENCES instruction (number),
    attempt     INTEGER,
    fact        INTEGER REFERENCES fact (seq),
    content     TEXT NOT NULL,
    hash        BLOB NOT NULL CHECK (length(hash) = 32)
) STRICT;

CREATE INDEX evidence_of_instruction ON evidence (instruction) WHERE instruction IS NOT NULL;

CREATE INDEX evidence_for_a_person ON evidence (instruction)
    WHERE finding IN ('to_confirm', 'ambiguous', 'unmatched', 'not_found');

CREATE TRIGGER evidence_is_never_changed BEFORE UPDATE ON evidence
    BEGIN SELECT RAISE(ABORT, 'evidence is never changed'); END;
CREATE TRIGGER evidence_is_never_removed BEFORE DELETE ON evidence
    BEGIN SELECT RAISE(ABORT, 'evidence is never removed'); END;
