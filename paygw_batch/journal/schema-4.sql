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

-- `lower` folds the case of ASCII, which is all there is to fold in nearly every order id. Not UNIQUE:
-- earlier versions let ids differ in their spelling alone.
CREATE INDEX order_id_in_one_case ON order_id (operation, lower(order_id));
