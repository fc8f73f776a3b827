-- Version 4 of the journal: which batch a plan opened is found without reading all facts, and no plan opens two. The plan's
-- digest is in the fact that opens the batch, under the chain; facts of earlier versions have none.

CREATE UNIQUE INDEX fact_opening_by_plan ON fact (json_extract(details, '$.plan_sha256'))
    WHERE kind = 'batch_opened' AND json_extract(details, '$.plan_sha256') IS NOT NULL;
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
