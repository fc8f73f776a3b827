-- Part of version 1: forgetting people (docs/retention.md). Their data is cleared or deleted from the tables.
-- A login that may decide starts this for each batch, which must be finished. Triggers allow values to be cleared but not changed, whoever
-- does it, and only in the transaction that adds the fact about it.

-- The batches in which people were forgotten, and the newest fact before that.
CREATE TABLE forgetting (
    batch   bigint NOT NULL REFERENCES batch,
    after   bigint NOT NULL,
    made_in xid8 NOT NULL DEFAULT pg_current_xact_id()
);

-- Whether a batch is finished: all its rows are in a final state, no evidence contradicts one, and it has no current run.
CREATE FUNCTION is_over(p_batch bigint) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM batch WHERE number = p_batch)
        AND NOT EXISTS (SELECT FROM covered c LEFT JOIN state s ON s.instruction = c.instruction
            WHERE c.batch = p_batch AND coalesce(s.state, 'ready') NOT IN ('paid', 'returned', 'replaced', 'rejected'))
        AND NOT EXISTS (SELECT FROM unanswered e JOIN covered c ON c.instruction = e.instruction WHERE c.batch = p_batch)
        AND NOT EXISTS (SELECT FROM run r WHERE r.batch = p_batch AND r.ended_at IS NULL)
$$;

-- Begin to forget people in a batch, one transaction at a time. It is rolled back unless it adds a fact about this. PW013: not finished.
CREATE FUNCTION begin_forgetting(p_batch bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM require_desk();
    PERFORM pg_advisory_xact_lock(7023);
    IF is_over(p_batch) IS NOT TRUE THEN
        RAISE EXCEPTION 'this batch is not over: nobody in it is forgotten' USING ERRCODE = 'PW013';
    END IF;
    INSERT INTO forgetting (batch, after) SELECT p_batch, coalesce(max(number), 0) FROM fact;
END $$;

-- At its end, the transaction must have added the fact.
CREATE FUNCTION require_forgetting_fact() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM fact f WHERE f.batch = NEW.batch AND f.kind = 'batch_forgotten' AND f.number > NEW.after) THEN
        RAISE EXCEPTION 'people would be forgotten, and no fact says so' USING ERRCODE = 'PW010';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER forgetting_is_told AFTER INSERT ON forgetting DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    EXECUTE FUNCTION require_forgetting_fact();
ALTER TABLE forgetting ENABLE ALWAYS TRIGGER forgetting_is_told;

-- Clear personal data in instructions.
CREATE FUNCTION forget_people(p_numbers bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM lock_rows(p_numbers);
    UPDATE instruction SET fields = NULL, payee = NULL, content = NULL, salt = NULL WHERE number = ANY (p_numbers);
END $$;

-- Delete forgotten payees' personal data in facts.
CREATE FUNCTION forget_said(p_numbers bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM require_desk();
    DELETE FROM said WHERE fact IN (SELECT number FROM fact WHERE instruction = ANY (p_numbers));
END $$;

-- Delete forgotten payees' raw replies, and clear their search words. The empty rows stay, because the server keeps the old statistics of an
-- empty table, which contain names.
CREATE FUNCTION forget_texts(p_numbers bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM require_desk();
    DELETE FROM reply WHERE instruction = ANY (p_numbers);
    UPDATE payee_words SET words = '' WHERE instruction = ANY (p_numbers);
END $$;

-- Delete the texts of orders, and of evidence without an instruction.
CREATE FUNCTION forget_heard(p_facts bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM require_desk();
    DELETE FROM said WHERE fact = ANY (p_facts);
END $$;

-- Delete a batch's sheet.
CREATE FUNCTION forget_sheet(p_batch bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM require_desk();
    DELETE FROM page WHERE batch = p_batch;
END $$;

-- The id of a plan's batch.
CREATE FUNCTION batch_of_plan(p_content text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT substring(p_content from '"batch": ?"([^"\\]*)"')
$$;

-- Delete plans of batches that are being forgotten, and plans from before a date that opened no batch.
CREATE FUNCTION forget_plans(p_before text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM require_desk();
    DELETE FROM plan_document p WHERE EXISTS (SELECT FROM forgetting g WHERE g.made_in = pg_current_xact_id()) AND CASE
        WHEN EXISTS (SELECT FROM batch b WHERE b.batch = batch_of_plan(p.content)) THEN EXISTS (
            SELECT FROM forgetting g JOIN batch b ON b.number = g.batch
            WHERE b.batch = batch_of_plan(p.content) AND g.made_in = pg_current_xact_id())
        ELSE p_before <> '' AND p.at < p_before::date::timestamp AT TIME ZONE 'UTC' END;
END $$;

-- Whether this transaction is forgetting an instruction's payee.
CREATE FUNCTION is_being_forgotten(p_instruction bigint) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM instruction i JOIN forgetting g ON g.batch = i.batch
        WHERE i.number = p_instruction AND i.salt IS NULL AND g.made_in = pg_current_xact_id())
$$;

CREATE FUNCTION refuse_all_but_forgetting() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE is_left boolean := false;
BEGIN
    IF TG_OP = 'UPDATE' THEN
        IF TG_TABLE_NAME = 'instruction' THEN
            is_left := num_nonnulls(NEW.fields, NEW.payee, NEW.content, NEW.salt) = 0
                AND (NEW.number, NEW.batch, NEW.row, NEW.client_orderid, NEW.country, NEW.currency, NEW.minor, NEW.replaces, NEW.amount, NEW.form,
                        NEW.people_sha256)
                    IS NOT DISTINCT FROM (OLD.number, OLD.batch, OLD.row, OLD.client_orderid, OLD.country, OLD.currency, OLD.minor, OLD.replaces,
                        OLD.amount, OLD.form, OLD.people_sha256)
                AND EXISTS (SELECT FROM forgetting g WHERE g.batch = NEW.batch AND g.made_in = pg_current_xact_id());
        ELSIF TG_TABLE_NAME = 'payee_words' THEN
            is_left := NEW.words = '' AND NEW.instruction = OLD.instruction AND is_being_forgotten(OLD.instruction);
        END IF;
    ELSIF TG_TABLE_NAME = 'page' THEN
        is_left := EXISTS (SELECT FROM forgetting g WHERE g.batch = OLD.batch AND g.made_in = pg_current_xact_id());
    ELSIF TG_TABLE_NAME = 'reply' THEN
        is_left := is_being_forgotten(OLD.instruction);
    ELSIF TG_TABLE_NAME = 'said' THEN
        is_left := (SELECT CASE WHEN f.instruction IS NOT NULL THEN is_being_forgotten(f.instruction)
            ELSE (f.kind = 'order' OR f.kind = 'heard' AND f.source <> 'witness')
                AND EXISTS (SELECT FROM forgetting g WHERE g.made_in = pg_current_xact_id()) END
            FROM fact f WHERE f.number = OLD.fact);
    ELSIF TG_TABLE_NAME = 'plan_document' THEN
        is_left := EXISTS (SELECT FROM forgetting g WHERE g.made_in = pg_current_xact_id()) AND NOT EXISTS (
            SELECT FROM batch b LEFT JOIN forgetting g ON g.batch = b.number AND g.made_in = pg_current_xact_id()
            WHERE b.batch = batch_of_plan(OLD.content) AND g.batch IS NULL);
    END IF;
    IF is_left IS NOT TRUE THEN
        RAISE EXCEPTION 'lines of % are never changed and never removed', TG_TABLE_NAME;
    END IF;
    RETURN CASE WHEN TG_OP = 'UPDATE' THEN NEW ELSE OLD END;
END $$;

DO $$
DECLARE name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['instruction', 'said', 'page', 'reply', 'payee_words', 'plan_document'] LOOP
        EXECUTE format('CREATE OR REPLACE TRIGGER never_changed BEFORE UPDATE OR DELETE ON %I FOR EACH ROW
            EXECUTE FUNCTION refuse_all_but_forgetting()', name);
        EXECUTE format('ALTER TABLE %I ENABLE ALWAYS TRIGGER never_changed', name);
    END LOOP;
    -- The server samples columns for statistics, and would keep forgotten data. No query needs statistics of these columns.
    ALTER TABLE instruction ALTER fields SET STATISTICS 0, ALTER content SET STATISTICS 0;
    ALTER TABLE said ALTER text SET STATISTICS 0, ALTER customer_url SET STATISTICS 0;
    ALTER TABLE page ALTER content SET STATISTICS 0;
    ALTER TABLE plan_document ALTER content SET STATISTICS 0;
    ALTER TABLE reply ALTER head SET STATISTICS 0, ALTER body SET STATISTICS 0;
    CREATE TRIGGER never_changed BEFORE UPDATE OR DELETE ON forgetting FOR EACH ROW EXECUTE FUNCTION refuse_change();
    CREATE TRIGGER never_emptied BEFORE TRUNCATE ON forgetting EXECUTE FUNCTION refuse_change();
    ALTER TABLE forgetting ENABLE ALWAYS TRIGGER never_changed;
    ALTER TABLE forgetting ENABLE ALWAYS TRIGGER never_emptied;
    -- As in the rest of the version, the functions have the owner's rights.
    FOREACH name IN ARRAY ARRAY['begin_forgetting', 'forget_people', 'forget_said', 'forget_texts', 'forget_heard',
        'forget_sheet', 'forget_plans', 'refuse_all_but_forgetting', 'require_forgetting_fact'] LOOP
        EXECUTE format('ALTER FUNCTION %I SECURITY DEFINER SET search_path = paygw, pg_temp', name);
    END LOOP;
END $$;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA paygw FROM PUBLIC;
