-- Part of version 1: the roll-call. After a copy was restored or a standby took over, rows that were sent may be missing from the
-- database. Then nothing is sent until every host seen in the last 30 days has compared its sent log, or a person has retired it.

-- The incarnation of the database: its cluster, timeline and database. A restart does not change it.
CREATE FUNCTION database_life() RETURNS text LANGUAGE sql VOLATILE AS $$
    SELECT format('%s %s %s', s.system_identifier, left(pg_walfile_name(pg_current_wal_insert_lsn()), 8), d.oid)
    FROM pg_control_system() s, pg_database d WHERE d.datname = current_database()
$$;

-- A host, identified by a digest of the secret stored next to its sent log. So a host that has lost its files is a new one, and nobody
-- can answer for a host by reading this table. `noted` is the number of commits in each of its sent logs when it last answered: if there
-- are fewer, the logs are an older copy or incomplete. `brought_by` is the login that first named the host. `lacks` is the newest roll-call
-- in which the host reported missing commits.
CREATE TABLE host (
    host_id text COLLATE "C" PRIMARY KEY,
    name    text NOT NULL,
    seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    noted   bigint[] NOT NULL DEFAULT '{}',
    brought_by text COLLATE "C" NOT NULL DEFAULT session_user,
    lacks   bigint
) WITH (fillfactor = 50);

-- The newest row counts. `is_waived`: a synchronous standby took over, which has all commits. `may_be_waived`: a login that may decide can
-- still declare this, because the database is a standby of the same cluster and no host was missing before.
CREATE TABLE roll_call (
    number    bigint PRIMARY KEY,
    life      text COLLATE "C" NOT NULL,
    reason    text NOT NULL,
    is_waived boolean NOT NULL,
    called_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    may_be_waived boolean NOT NULL DEFAULT false
);

-- `retired_by` is empty if the host itself has answered. A retired host is never asked again. `accepted_by` is who accepted the loss of the
-- host's commits.
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

-- Whether this session's login may name this host: it is known, or the login has named fewer than 64 in 30 days. So a stolen login cannot
-- invent unlimited hosts, each of which a person would have to retire.
CREATE FUNCTION may_name(p_host text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT may_decide() OR EXISTS (SELECT FROM host h WHERE h.host_id = p_host) OR 64 > (
        SELECT count(*) FROM host h WHERE h.brought_by = session_user AND h.seen_at > clock_timestamp() - interval '30 days')
$$;

-- Call the roll, because a host reports that commits are missing, unless it is already missing from the roll-call. This includes unknown
-- hosts: a host's first commits may be the lost ones, and the next run would lift a mere stop.
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
        DO UPDATE SET name = excluded.name, seen_at = clock_timestamp(), lacks = newest.number;  -- it is alive, so it is not retired
END $$;

-- Whether a missing host was seen recently, after the roll was called. Then only the host itself can accept its loss.
CREATE FUNCTION lives(p_host text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT FROM newest_call c, host h WHERE h.host_id = p_host AND (
            (h.seen_at > c.called_at AND h.seen_at > clock_timestamp() - interval '10 minutes')
            OR EXISTS (SELECT FROM process w WHERE w.host = h.name AND w.seen_at > c.called_at AND is_alive(w.number))))
$$;

-- Whether the sent logs of a host that is about to answer have fewer commits than when it last answered.
CREATE FUNCTION left_is_older(p_host text, p_noted bigint[]) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT FROM newest_call c, host h, unnest(h.noted) WITH ORDINALITY u(count, nth)
        WHERE h.host_id = p_host AND u.count > coalesce(p_noted[u.nth], 0) AND NOT c.is_waived
            AND NOT EXISTS (SELECT FROM roll_answer a WHERE a.host_id = p_host AND a.call = c.number))
$$;

-- Record a host's answer that no commits in its sent logs are missing, and return the hosts that are still missing. PW007: it was retired.
-- PW012: its sent logs have fewer commits (`p_noted`) than when it last answered. A login that may not decide cannot declare that a standby
-- has all commits. Its roll-call can then be waived by the next login that may, unless a host has reported missing commits in between.
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
            -- A standby has the same identifiers of the cluster and the database, and a copy elsewhere has different ones.
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

-- Record that a person accepted the loss of a host's commits. Rows that it may have sent are already in doubt. PW007: it was retired.
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

-- As in the rest of the version, the functions have the owner's rights.
DO $$
DECLARE name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['database_life', 'call_roll', 'answer_roll', 'retire_host', 'accept_loss'] LOOP
        EXECUTE format('ALTER FUNCTION %I SECURITY DEFINER SET search_path = paygw, pg_temp', name);
    END LOOP;
END $$;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA paygw FROM PUBLIC;
