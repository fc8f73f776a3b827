-- A part of version 1. The roll-call: when the database is another one than before (a copy that was restored, a standby that took
-- over), rows that were sent can be missing in it. Then no lease is given before each host of the last 30 days has shown
-- what it sent on, or a person has retired it.

-- The life of a database: which cluster, which timeline of it, which database. A restart goes on with the same one.
CREATE FUNCTION database_life() RETURNS text LANGUAGE sql VOLATILE AS $$
    SELECT format('%s %s %s', s.system_identifier, left(pg_walfile_name(pg_current_wal_insert_lsn()), 8), d.oid)
    FROM pg_control_system() s, pg_database d WHERE d.datname = current_database()
$$;

-- A host, by the id that it keeps beside its witness: a host that has lost its files is another one.
CREATE TABLE host (
    host_id text COLLATE "C" PRIMARY KEY,
    name    text NOT NULL,
    seen_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);

-- The newest line counts. `is_waived`: a synchronous standby took over, which has everything.
CREATE TABLE roll_call (
    number    bigint PRIMARY KEY,
    life      text COLLATE "C" NOT NULL,
    reason    text NOT NULL,
    is_waived boolean NOT NULL,
    called_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- `retired_by` is empty where the host has shown its witness. A host that a person retired is never asked again.
CREATE TABLE roll_answer (
    call        bigint NOT NULL REFERENCES roll_call,
    host_id     text COLLATE "C" NOT NULL,
    retired_by  text NOT NULL,
    answered_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (call, host_id)
);

CREATE VIEW newest_call AS SELECT * FROM roll_call ORDER BY number DESC LIMIT 1;

CREATE VIEW missing_host AS
    SELECT h.host_id, h.name, h.seen_at, c.number AS call FROM newest_call c, host h
    WHERE NOT c.is_waived
        AND (h.seen_at > c.called_at - interval '30 days'
            OR EXISTS (SELECT FROM worker w WHERE w.host = h.name AND w.since < c.called_at AND w.seen_at > c.called_at - interval '30 days'))
        AND NOT EXISTS (SELECT FROM roll_answer a WHERE a.host_id = h.host_id AND (a.call = c.number OR a.retired_by <> ''));

-- A host says that the database lacks what it sent on: the roll is called, unless the host is missing in it already.
CREATE FUNCTION call_roll(p_host text, p_name text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE newest roll_call;
BEGIN
    PERFORM FROM identity FOR UPDATE;  -- one at a time
    SELECT * INTO newest FROM newest_call;
    IF newest.life = database_life() AND EXISTS (SELECT FROM missing_host m WHERE m.host_id = p_host) THEN RETURN; END IF;
    INSERT INTO host (host_id, name) VALUES (p_host, p_name) ON CONFLICT DO NOTHING;
    INSERT INTO roll_call VALUES (newest.number + 1, database_life(), 'a host has sent on what is not here', false);
END $$;

-- A host says that the database has all that it sent on. The hosts are returned that are still missing. PW007: it was retired.
CREATE FUNCTION show_witness(p_host text, p_name text, p_is_synchronous boolean)
RETURNS TABLE (host_id text, name text, seen_at text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE newest roll_call; may_waive boolean;
BEGIN
    IF EXISTS (SELECT FROM roll_answer a WHERE a.host_id = p_host AND a.retired_by <> '') THEN
        RAISE EXCEPTION 'this host was retired' USING ERRCODE = 'PW007';
    END IF;
    SELECT * INTO newest FROM newest_call;
    IF newest.life IS DISTINCT FROM database_life() THEN
        PERFORM FROM identity FOR UPDATE;
        SELECT * INTO newest FROM newest_call;
        IF newest.life IS DISTINCT FROM database_life() THEN
            -- A standby keeps the identifier of its cluster and the number of the database; a copy elsewhere has others.
            may_waive := p_is_synchronous AND split_part(newest.life, ' ', 1) = split_part(database_life(), ' ', 1)
                AND split_part(newest.life, ' ', 3) = split_part(database_life(), ' ', 3)
                AND NOT EXISTS (SELECT FROM missing_host);
            INSERT INTO roll_call VALUES (coalesce(newest.number, 0) + 1, database_life(), 'another life of the database',
                coalesce(may_waive, newest.number IS NULL));
        END IF;
    END IF;
    INSERT INTO host AS h (host_id, name) VALUES (p_host, p_name)
        ON CONFLICT (host_id) DO UPDATE SET name = excluded.name, seen_at = clock_timestamp();
    INSERT INTO roll_answer (call, host_id, retired_by) SELECT c.number, p_host, '' FROM newest_call c ON CONFLICT DO NOTHING;
    RETURN QUERY SELECT m.host_id, m.name, to_char(m.seen_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI "UTC"') FROM missing_host m ORDER BY 2, 1;
END $$;

CREATE FUNCTION retire_host(p_host text, p_by text) RETURNS void LANGUAGE sql AS $$
    INSERT INTO roll_answer (call, host_id, retired_by) SELECT c.number, p_host, p_by FROM newest_call c
$$;

-- No lease is given while a host is missing. PW008. What retires a host puts its rows in doubt, and says so in its session.
CREATE FUNCTION refuse_lease() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF coalesce(current_setting('paygw.retires', true), '') <> 'on' AND (
        (SELECT c.life FROM newest_call c) IS DISTINCT FROM database_life() OR EXISTS (SELECT FROM missing_host)
    ) THEN
        RAISE EXCEPTION 'hosts are missing in the roll-call' USING ERRCODE = 'PW008';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER roll_is_complete BEFORE INSERT ON segment FOR EACH ROW EXECUTE FUNCTION refuse_lease();
ALTER TABLE segment ENABLE ALWAYS TRIGGER roll_is_complete;

DO $$
DECLARE name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['roll_call', 'roll_answer'] LOOP
        EXECUTE format('CREATE TRIGGER never_changed BEFORE UPDATE OR DELETE ON %I FOR EACH ROW EXECUTE FUNCTION refuse_change()', name);
        EXECUTE format('CREATE TRIGGER never_emptied BEFORE TRUNCATE ON %I EXECUTE FUNCTION refuse_change()', name);
        EXECUTE format('ALTER TABLE %I ENABLE ALWAYS TRIGGER never_changed', name);
        EXECUTE format('ALTER TABLE %I ENABLE ALWAYS TRIGGER never_emptied', name);
    END LOOP;
    CREATE TRIGGER never_changed BEFORE DELETE ON host FOR EACH ROW EXECUTE FUNCTION refuse_change();
    CREATE TRIGGER never_emptied BEFORE TRUNCATE ON host EXECUTE FUNCTION refuse_change();
    ALTER TABLE host ENABLE ALWAYS TRIGGER never_changed;
    ALTER TABLE host ENABLE ALWAYS TRIGGER never_emptied;
END $$;

-- As in the rest of the version: who may call one of these may do what it does, and nothing else.
DO $$
DECLARE name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['call_roll', 'show_witness', 'retire_host', 'refuse_lease'] LOOP
        EXECUTE format('ALTER FUNCTION %I SECURITY DEFINER SET search_path = paygw, pg_temp', name);
    END LOOP;
END $$;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA paygw FROM PUBLIC;
