-- Version 3 of the journal: what a batch comes to in all is counted once, when it is opened, and states have an index, so
-- that where a large batch stands is told without reading its rows. Derived from the rest, like `standing`: `verify`
-- counts it again.

-- First what is no longer needed, so that its pages are used again.
DROP INDEX standing_in_flight;
DROP INDEX evidence_of_instruction;
DROP INDEX evidence_for_a_person;

-- Every entry of it ends with the instruction's number: it stands in the order of states and, within each, of numbers.
CREATE INDEX standing_by_state ON standing (state);
CREATE INDEX evidence_by_finding ON evidence (finding, instruction);

-- All that a batch covers. A sum in minor units may be more than 64 bits hold: it is `billions` times 1,000,000,000, and
-- `rest`. `first` and `last` are the lowest and the highest number of its instructions.
CREATE TABLE batch_total (
    batch    INTEGER NOT NULL REFERENCES batch (number),
    country  TEXT NOT NULL,
    currency TEXT NOT NULL,
    rows     INTEGER NOT NULL,
    billions INTEGER NOT NULL,
    rest     INTEGER NOT NULL,
    first    INTEGER NOT NULL,
    last     INTEGER NOT NULL,
    PRIMARY KEY (batch, country, currency)
) STRICT, WITHOUT ROWID;

INSERT INTO batch_total
    SELECT c.batch, i.country, i.currency, count(*), sum(i.minor / 1000000000), sum(i.minor % 1000000000),
        min(i.number), max(i.number)
    FROM covered c JOIN instruction i ON i.number = c.instruction GROUP BY 1, 2, 3;

-- A batch is whole when the fact that opens it is written.
CREATE TRIGGER batch_is_counted AFTER INSERT ON fact WHEN NEW.kind = 'batch_opened'
    BEGIN
        INSERT INTO batch_total
            SELECT c.batch, i.country, i.currency, count(*), sum(i.minor / 1000000000), sum(i.minor % 1000000000),
                min(i.number), max(i.number)
            FROM covered c JOIN instruction i ON i.number = c.instruction WHERE c.batch = NEW.batch GROUP BY 1, 2, 3;
    END;
CREATE TRIGGER batch_total_is_never_changed BEFORE UPDATE ON batch_total
    BEGIN SELECT RAISE(ABORT, 'totals of batches are never changed'); END;
CREATE TRIGGER batch_total_is_never_removed BEFORE DELETE ON batch_total
    BEGIN SELECT RAISE(ABORT, 'totals of batches are never removed'); END;
