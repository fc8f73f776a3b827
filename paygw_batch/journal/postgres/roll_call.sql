-- A part of version 1. The roll-call: when the database is another one than before (a copy that was restored, a standby that took
-- over), rows that were sent can be missing in it. Then nothing is sent before each host of the last 30 days has shown
-- what it sent on, or a person has retired it.

-- The life of a database: which cluster, which timeline of it, which database. A restart goes on with the same one.
CREATE FUNCTION database_life() RETURNS text LANGUAGE sql VOLATILE AS $$
    SELECT format('%s %s %s', s.system_identifier, left(pg_walfile_name(pg_current_wal_insert_lsn()), 8), d.oid)
    FROM pg_control_system() s, pg_database d WHERE d.datname = current_database()
$$;

-- A host, by the digest of the secret that it keeps beside what left: a host that has lost its files is another one, and nobody
-- who reads this table can answer for one of its hosts. `noted`: how many commits
-- each of its processes had noted when it answered last. Fewer lines are an older copy, or some are gone. `brought_by`: whose
-- session named it first. `lacks`: the newest roll-call in which it said that the database lacks what it sent on.
CREATE TABLE host (
    host_id text COLLATE "C" PRIMARY KEY,
    name    text NOT NULL,
    seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    noted   bigint[] NOT NULL DEFAULT '{}',
    brought_by text COLLATE "C" NOT NULL DEFAULT session_user,
    lacks   bigint
) WITH (fillfactor = 50);

-- The newest line counts. `is_waived`: a synchronous standby took over, which has everything. `may_be_waived`: whoever decides can
-- still say so, because the database is a standby of the same cluster and nobody was missing before.
CREATE TABLE roll_call (
    number    bigint PRIMARY KEY,
    life      text COLLATE "C" NOT NULL,
    reason    text NOT NULL,
    is_waived boolean NOT NULL,
    called_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    may_be_waived boolean NOT NULL DEFAULT false
);

-- `retired_by` is empty where the host has answered itself. A host that a person retired is never asked again. `accepted_by`: who
-- accepted the loss of what the host had sent on.
CREATE TABLE roll_answer (
    call        bigint NOT NULL REFERENCES roll_call,
    host_id     text COLLATE "C" NOT NULL,
    retired_by  text NOT NULL,
    answered_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    accepted_by text NOT NULL DEFAULT '',
    PRIMARY KEY (call, host_id)
);

CREATE VIEW newest_call AS SELECT * FROM roll_call ORDER BY number DESC LIMIT 1;

CREATE VIEW missing_host AS
    SELECT h.host_id, h.name, h.seen_at, c.number AS call FROM newest_call c, host h
    WHERE NOT c.is_waived
        AND (h.seen_at > c.called_at - interval '30 days'
            OR EXISTS (SELECT FROM process w WHERE w.host = h.name AND w.since < c.called_at AND w.seen_at > c.called_at - interval '30 days'))
        AND NOT EXISTS (SELECT FROM roll_answer a WHERE a.host_id = h.host_id AND (a.call = c.number OR a.retired_by <> ''));

CREATE FUNCTION host_of(p_secret text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF (p_secret ~ '^[0-9a-f]{32}$') IS NOT TRUE THEN
        RAISE EXCEPTION 'no host has such a secret' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN left(encode(sha256(convert_to('paygw host ' || p_secret, 'UTF8')), 'hex'), 32);
END $$;

-- Whether the login of this session may name this host: one that is known, or one more of at most 64 in 30 days. So a login that is
-- taken over cannot make up hosts without end, each of which a person would have to retire.
CREATE FUNCTION may_name(p_host text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT may_decide() OR EXISTS (SELECT FROM host h WHERE h.host_id = p_host) OR 64 > (
        SELECT count(*) FROM host h WHERE h.brought_by = session_user AND h.seen_at > clock_timestamp() - interval '30 days')
$$;

-- A host says that the database lacks what it sent on: the roll is called, unless the host is missing in it already. Also for a host
-- that nobody has seen: what it wrote first may be what is lost, and a stop would be lifted by the next run.
CREATE FUNCTION call_roll(p_secret text, p_name text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE newest roll_call; p_host text := host_of(p_secret);
BEGIN
    IF NOT may_name(p_host) THEN
        UPDATE gate SET stop_kind = 'told', stop_count = 0, stopped_at = clock_timestamp(),
            stop_text = left(format('Host %s has sent on what the database lacks.', p_name), 300) WHERE stop_kind IS NULL;
        RETURN;
    END IF;
    PERFORM FROM identity FOR UPDATE;  -- one at a time
    SELECT * INTO newest FROM newest_call;
    IF newest.life IS DISTINCT FROM database_life() OR NOT EXISTS (SELECT FROM missing_host m WHERE m.host_id = p_host) THEN
        INSERT INTO roll_call VALUES (coalesce(newest.number, 0) + 1, database_life(), 'a host has sent on what is not here', false)
            RETURNING * INTO newest;
    END IF;
    INSERT INTO host AS h (host_id, name, lacks) VALUES (p_host, p_name, newest.number) ON CONFLICT (host_id)
        DO UPDATE SET name = excluded.name, seen_at = clock_timestamp(), lacks = newest.number;  -- it lives: it is not retired
END $$;

-- Whether a missing host gave a sign of life since the roll was called, and not long ago: it accepts its loss itself.
CREATE FUNCTION lives(p_host text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT FROM newest_call c, host h WHERE h.host_id = p_host AND (
            (h.seen_at > c.called_at AND h.seen_at > clock_timestamp() - interval '10 minutes')
            OR EXISTS (SELECT FROM process w WHERE w.host = h.name AND w.seen_at > c.called_at AND is_alive(w.number))))
$$;

-- Whether a host that is about to answer has noted less than when it answered last.
CREATE FUNCTION left_is_older(p_host text, p_noted bigint[]) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT FROM newest_call c, host h, unnest(h.noted) WITH ORDINALITY u(count, nth)
        WHERE h.host_id = p_host AND u.count > coalesce(p_noted[u.nth], 0) AND NOT c.is_waived
            AND NOT EXISTS (SELECT FROM roll_answer a WHERE a.host_id = p_host AND a.call = c.number))
$$;

-- A host says that the database has all that it sent on. The hosts are returned that are still missing. PW007: it was retired. PW012:
-- its processes, which noted so many commits each, have noted less than when it answered last. Who decides nothing cannot say
-- that a standby has everything: the roll that it calls is waived by the next one who may, unless a host said meanwhile that it lacks
-- something.
CREATE FUNCTION answer_roll(p_secret text, p_name text, p_is_synchronous boolean, p_noted bigint[])
RETURNS TABLE (host_id text, name text, seen_at text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE newest roll_call; follows boolean; p_host text := host_of(p_secret); waives boolean := p_is_synchronous AND may_decide();
BEGIN
    IF EXISTS (SELECT FROM roll_answer a WHERE a.host_id = p_host AND a.retired_by <> '') THEN
        RAISE EXCEPTION 'this host was retired' USING ERRCODE = 'PW007';
    ELSIF NOT may_name(p_host) THEN
        RAISE EXCEPTION 'its login has named 64 other hosts in 30 days' USING ERRCODE = 'insufficient_privilege';
    END IF;
    SELECT * INTO newest FROM newest_call;
    IF newest.life IS DISTINCT FROM database_life() OR (waives AND NOT newest.is_waived) THEN
        PERFORM FROM identity FOR UPDATE;
        SELECT * INTO newest FROM newest_call;
        IF newest.life IS DISTINCT FROM database_life() THEN
            -- A standby keeps the identifier of its cluster and the number of the database; a copy elsewhere has others.
            follows := split_part(newest.life, ' ', 1) = split_part(database_life(), ' ', 1)
                AND split_part(newest.life, ' ', 3) = split_part(database_life(), ' ', 3)
                AND NOT EXISTS (SELECT FROM missing_host);
            INSERT INTO roll_call (number, life, reason, is_waived, may_be_waived) VALUES (coalesce(newest.number, 0) + 1, database_life(),
                'another life of the database', newest.number IS NULL OR (waives AND follows), coalesce(follows, false));
        ELSIF waives AND newest.may_be_waived AND NOT newest.is_waived AND NOT EXISTS (SELECT FROM host h WHERE h.lacks = newest.number) THEN
            INSERT INTO roll_call (number, life, reason, is_waived, may_be_waived)
                VALUES (newest.number + 1, database_life(), 'a synchronous standby took over', true, true);
        END IF;
    END IF;
    IF left_is_older(p_host, p_noted) THEN
        RAISE EXCEPTION 'this host has noted less than when it answered last' USING ERRCODE = 'PW012';
    END IF;
    INSERT INTO host AS h (host_id, name, noted) VALUES (p_host, p_name, p_noted)
        ON CONFLICT (host_id) DO UPDATE SET name = excluded.name, seen_at = clock_timestamp(), noted = excluded.noted;
    INSERT INTO roll_answer (call, host_id, retired_by) SELECT c.number, p_host, '' FROM newest_call c ON CONFLICT DO NOTHING;
    RETURN QUERY SELECT m.host_id, m.name, to_char(m.seen_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI "UTC"') FROM missing_host m ORDER BY 2, 1;
END $$;

CREATE FUNCTION retire_host(p_host text, p_by text) RETURNS void LANGUAGE sql AS $$
    INSERT INTO roll_answer (call, host_id, retired_by) SELECT c.number, p_host, p_by FROM newest_call c
$$;

-- A person accepts that what a host sent on is lost: what may have left is in doubt by now. PW007: it was retired.
CREATE FUNCTION accept_loss(p_host text, p_by text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM roll_answer a WHERE a.host_id = p_host AND a.retired_by <> '') THEN
        RAISE EXCEPTION 'this host was retired' USING ERRCODE = 'PW007';
    END IF;
    UPDATE host SET noted = '{}' WHERE host_id = p_host;
    INSERT INTO roll_answer (call, host_id, retired_by, accepted_by) SELECT c.number, p_host, '', p_by FROM newest_call c
        ON CONFLICT DO NOTHING;
END $$;

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
    FOREACH name IN ARRAY ARRAY['database_life', 'call_roll', 'answer_roll', 'retire_host', 'accept_loss'] LOOP
        EXECUTE format('ALTER FUNCTION %I SECURITY DEFINER SET search_path = paygw, pg_temp', name);
    END LOOP;
END $$;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA paygw FROM PUBLIC;
