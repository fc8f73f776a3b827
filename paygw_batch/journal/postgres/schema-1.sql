-- Version 1 of the journal in PostgreSQL. What is written down here never changes; a later version adds a migration.
-- Texts that are compared or sorted have the collation "C", so that every server orders them alike. The large tables have no
-- foreign keys, which would cost every payout a look-up and a lock: `verify` holds them to each other.

CREATE TABLE migration (
    version    integer PRIMARY KEY,
    applied_at text NOT NULL
);

-- One line. `endpoint` is HOST/ENDPOINT_ID; the consumer key is only here as its SHA-256 (hex).
CREATE TABLE identity (
    one                 integer PRIMARY KEY CHECK (one = 1),
    journal_id          text NOT NULL,
    endpoint            text NOT NULL,
    consumer_key_sha256 text NOT NULL,
    created_at          text NOT NULL
);

CREATE TABLE batch (
    number       bigint PRIMARY KEY,
    batch        text COLLATE "C" NOT NULL,
    operation    text COLLATE "C" NOT NULL,
    sheet_name   text NOT NULL,
    sheet_sha256 text NOT NULL,
    rows         bigint NOT NULL CHECK (rows >= 0),
    defects      bigint NOT NULL CHECK (defects >= 0),
    opened_at    text COLLATE "C" NOT NULL,
    sheet_path   text NOT NULL,
    plan_sha256  text NOT NULL,
    reference    text NOT NULL,
    UNIQUE (operation, batch)
);
CREATE UNIQUE INDEX batch_of_plan ON batch (plan_sha256) WHERE plan_sha256 <> '';

CREATE TABLE page (
    batch   bigint NOT NULL,
    number  bigint NOT NULL,
    content bytea NOT NULL,
    PRIMARY KEY (batch, number)
);

CREATE TABLE instruction (
    number         bigint PRIMARY KEY,
    batch          bigint NOT NULL,
    row            bigint NOT NULL,
    client_orderid text COLLATE "C" NOT NULL,
    country        text COLLATE "C" NOT NULL,
    currency       text COLLATE "C" NOT NULL,
    minor          bigint NOT NULL CHECK (minor >= 0),
    replaces       bigint,
    amount         text NOT NULL,
    form           text NOT NULL,
    fields         text NOT NULL,
    payee          text COLLATE "C" NOT NULL,
    content        text COLLATE "C" NOT NULL,
    UNIQUE (batch, row)
);
CREATE UNIQUE INDEX instruction_replacing ON instruction (replaces) WHERE replaces IS NOT NULL;
CREATE INDEX instruction_by_payee ON instruction (payee, minor);

-- Rows of a batch whose instruction an earlier batch brought.
CREATE TABLE known (
    batch       bigint NOT NULL,
    row         bigint NOT NULL,
    instruction bigint NOT NULL,
    PRIMARY KEY (batch, row),
    UNIQUE (batch, instruction)
);

CREATE VIEW covered AS
    SELECT batch, row, number AS instruction FROM instruction
    UNION ALL
    SELECT batch, row, instruction FROM known;

-- Every order id ever used, with the instruction it belongs to now. `spelling` is the id in one spelling.
CREATE TABLE order_id (
    operation   text COLLATE "C" NOT NULL,
    order_id    text COLLATE "C" NOT NULL,
    instruction bigint NOT NULL,
    spelling    text COLLATE "C" NOT NULL,
    PRIMARY KEY (operation, order_id)
);
CREATE INDEX order_id_by_spelling ON order_id (operation, spelling);
CREATE INDEX order_id_of_instruction ON order_id (instruction);

-- The words by which a payment is found. Derived from the instructions: `verify` makes them again.
CREATE TABLE payee_words (
    instruction bigint PRIMARY KEY,
    words       tsvector NOT NULL
);
CREATE INDEX payee_words_index ON payee_words USING gin (words);

-- The life of a process that writes. `boot` says on which start of a machine, and in which container, `pid` counts. A worker
-- sends for `run`, and has taken `chunk` last; `rows` counts those that it has sent. `tables` is the version that its program knows.
CREATE TABLE worker (
    number   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    host     text NOT NULL,
    boot     text NOT NULL,
    pid      bigint NOT NULL,
    command  text NOT NULL,
    kind     text NOT NULL,
    since    timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    lease_s  double precision NOT NULL,
    ended_at timestamptz,
    run      bigint,
    chunk    bigint,
    rows     bigint NOT NULL DEFAULT 0,
    tables   integer NOT NULL DEFAULT 1
) WITH (fillfactor = 50);

-- Instructions `first` to `last` are leased together. `segment` is the latest lease.
CREATE TABLE chunk (
    number  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    batch   bigint NOT NULL REFERENCES batch,
    first   bigint NOT NULL UNIQUE,
    last    bigint NOT NULL CHECK (last >= first),
    epoch   integer NOT NULL DEFAULT 0,
    segment bigint
) WITH (fillfactor = 50);
CREATE INDEX chunk_of_batch ON chunk (batch);

-- How many rows of a chunk are in each state, and what they come to: the sum over `chain`, which says whose facts moved them. Each
-- chain has lines of its own, so that no commit waits for another one. The rows of a new batch are counted as ready.
CREATE TABLE chunk_tally (
    chunk    bigint NOT NULL,
    chain    bigint NOT NULL,
    country  text COLLATE "C" NOT NULL,
    currency text COLLATE "C" NOT NULL,
    state    text COLLATE "C" NOT NULL,
    rows     bigint NOT NULL,
    minor    numeric NOT NULL,
    PRIMARY KEY (chunk, chain, country, currency, state)
) WITH (fillfactor = 50);

-- A run: all workers together send what is due in a batch, until nothing is left or somebody stops it. A batch has one at a time.
CREATE TABLE run (
    number      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    batch       bigint NOT NULL REFERENCES batch,
    started_by  bigint NOT NULL REFERENCES worker,
    started_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    stop_reason text,
    ended_at    timestamptz
);
CREATE UNIQUE INDEX run_unfinished ON run (batch) WHERE ended_at IS NULL;

-- The queue of the workers: chunks in which rows of a run may be due. It is only a hint. It may be emptied at any time, and is when
-- the server crashes: it is made again from `run` and `chunk`. Nothing that keeps a row from being sent twice reads it.
CREATE UNLOGGED TABLE offer (
    run   bigint NOT NULL,
    chunk bigint NOT NULL,
    PRIMARY KEY (run, chunk)
);

-- A lease, and its chain of facts. `chain` is the number of a chunk; or 0, the desk: the one place where people's deeds and
-- evidence are written; or, below 0, what worker -`chain` has to say after its leases were taken over. `before` is the lease
-- before it of the same chain. `start` is the hash before its first fact. `is_clear`: nothing that
-- an earlier lease left is in flight any more.
CREATE TABLE segment (
    number      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    chain       bigint NOT NULL,
    epoch       integer NOT NULL,
    worker      bigint NOT NULL REFERENCES worker,
    before      bigint REFERENCES segment,
    start       bytea NOT NULL CHECK (length(start) = 32),
    head_seq    bigint NOT NULL DEFAULT 0,
    head_hash   bytea NOT NULL CHECK (length(head_hash) = 32),
    head_at     text COLLATE "C" NOT NULL,
    is_clear    boolean NOT NULL,
    sealed_at   timestamptz
) WITH (fillfactor = 20);
ALTER TABLE chunk ADD FOREIGN KEY (segment) REFERENCES segment;
CREATE UNIQUE INDEX segment_of_epoch ON segment (chain, epoch);
CREATE UNIQUE INDEX segment_unsealed ON segment (chain) WHERE sealed_at IS NULL;

-- One chain over finished segments. `facts` counts those of all segments up to here.
CREATE TABLE seal (
    number  bigint PRIMARY KEY,
    segment bigint NOT NULL UNIQUE REFERENCES segment,
    facts   bigint NOT NULL,
    hash    bytea NOT NULL CHECK (length(hash) = 32)
);

-- `nth` counts the facts of an instruction. `number` is for people and for references: it grows, and has gaps.
CREATE SEQUENCE fact_number AS bigint;
CREATE TABLE fact (
    segment     bigint NOT NULL,
    seq         bigint NOT NULL,
    number      bigint NOT NULL DEFAULT nextval('fact_number'),
    at          text COLLATE "C" NOT NULL,
    kind        text COLLATE "C" NOT NULL,
    batch       bigint NOT NULL,
    instruction bigint,
    nth         integer,
    attempt     bigint,
    contradicts text,
    details     text NOT NULL,
    hash        bytea NOT NULL CHECK (length(hash) = 32),
    PRIMARY KEY (segment, seq)
);
CREATE UNIQUE INDEX fact_nth ON fact (instruction, nth) WHERE instruction IS NOT NULL;
-- The last guard, should everything above it fail: an attempt that moved its row has one intent, for ever.
CREATE UNIQUE INDEX fact_one_intent ON fact (instruction, attempt) WHERE kind = 'intended' AND contradicts IS NULL;
CREATE INDEX fact_contradicting ON fact (number) WHERE contradicts IS NOT NULL;
CREATE INDEX fact_of_people ON fact (batch, instruction) WHERE instruction IS NULL OR (kind >= 'rel' AND kind < 's');
CREATE INDEX fact_of_customer_page ON fact (instruction) WHERE strpos(details, '"customer_url"') > 0;

-- An instruction without a line is ready and nothing ever happened to it. `facts` counts its facts: whoever changes a line
-- says how many there were when it was read.
CREATE TABLE standing (
    instruction           bigint PRIMARY KEY,
    facts                 integer NOT NULL,
    state                 text COLLATE "C" NOT NULL,
    attempt               bigint NOT NULL,
    generation            bigint NOT NULL,
    possible_duplicate_of bigint,
    inherited_attempts    bigint NOT NULL,
    order_id              text COLLATE "C" NOT NULL,
    sent_orderid          text,
    purpose               text,
    gateway_status        text,
    gateway_reference     text,
    http_status           bigint,
    error_code            text,
    message               text,
    intended_at           text COLLATE "C",
    first_sent_at         text COLLATE "C",
    updated_at            text COLLATE "C"
) WITH (fillfactor = 70);

CREATE VIEW progress AS
    SELECT i.*, coalesce(s.order_id, i.client_orderid) AS order_id, coalesce(s.state, 'ready') AS state,
        coalesce(s.attempt, 0) AS attempt, coalesce(s.generation, 1) AS generation, s.possible_duplicate_of,
        coalesce(s.inherited_attempts, 0) AS inherited_attempts, s.sent_orderid, s.purpose, s.gateway_status,
        s.gateway_reference, s.http_status, s.error_code, s.message, s.intended_at, s.first_sent_at, s.updated_at,
        coalesce(s.facts, 0) AS facts, s.instruction IS NULL AS is_new
    FROM instruction i LEFT JOIN standing s ON s.instruction = i.number;

-- Evidence from outside a run: a chain of its own, written from the desk alone.
CREATE TABLE evidence (
    number      bigint PRIMARY KEY,
    taken_at    text COLLATE "C" NOT NULL,
    source      text NOT NULL,
    spooled     bigint UNIQUE,
    spool_hash  text,
    finding     text COLLATE "C" NOT NULL,
    said        text,
    instruction bigint REFERENCES instruction,
    attempt     bigint,
    fact        bigint,
    content     text NOT NULL,
    hash        bytea NOT NULL CHECK (length(hash) = 32)
);
CREATE INDEX evidence_by_finding ON evidence (finding, instruction);
CREATE INDEX evidence_of_instruction ON evidence (instruction) WHERE instruction IS NOT NULL;

-- The evidence that says that the gateway has its row, and that no person has answered since.
CREATE VIEW unanswered AS
    SELECT e.* FROM evidence e
    WHERE (e.finding = 'contradicting' OR (e.finding = 'ambiguous' AND e.said IN ('paid', 'accepted')))
        AND NOT EXISTS (
            SELECT FROM evidence answer
            WHERE answer.instruction = e.instruction AND answer.finding = 'resolved' AND answer.number > e.number
        );

-- Raw replies of the gateway for rows that did not end paid.
CREATE TABLE reply (
    instruction bigint NOT NULL,
    nth         integer NOT NULL,
    head        bytea NOT NULL,
    body        bytea NOT NULL CHECK (length(body) <= 65536),
    PRIMARY KEY (instruction, nth)
);

-- The limits of the endpoint, over all workers: one line an endpoint. All times are of the server's clock. `rate_per_s` and
-- `concurrency` are null until a person has set them: the configuration of the worker that asks is then in force. `places`: so many
-- rows may be in flight now. `in_doubt`, `rejected`: so many outcomes in a row, over all workers. `stop_kind`: why nothing is sent.
CREATE TABLE gate (
    endpoint    text PRIMARY KEY,
    rate_per_s  double precision CHECK (rate_per_s >= 0),
    concurrency integer CHECK (concurrency > 0),
    next_start  timestamptz NOT NULL DEFAULT '-infinity',
    rest_until  timestamptz NOT NULL DEFAULT '-infinity',
    places      integer NOT NULL DEFAULT 1 CHECK (places > 0),
    in_doubt    bigint NOT NULL DEFAULT 0,
    rejected    bigint NOT NULL DEFAULT 0,
    reason      text NOT NULL DEFAULT '',
    stop_kind   text CHECK (stop_kind IN ('in_doubt', 'rejected', 'told')),
    stop_count  bigint NOT NULL DEFAULT 0,
    stop_text   text NOT NULL DEFAULT '',
    stopped_by  bigint REFERENCES worker,
    stopped_at  timestamptz
) WITH (fillfactor = 20);

-- The places in flight that each worker has. They end with its life, as its leases do.
CREATE TABLE gate_place (
    worker bigint PRIMARY KEY REFERENCES worker,
    places integer NOT NULL,
    in_use integer NOT NULL,
    wanted integer NOT NULL
) WITH (fillfactor = 20);

-- A journal that was moved here from a file: `copied` when all of it is here, `done` when the file can pay nothing any more.
-- Without the second line nothing is paid from here. `facts` and `hash` are the end of the file's chain, which is the first lease.
CREATE TABLE move (
    step  text PRIMARY KEY CHECK (step IN ('copied', 'done')),
    at    text NOT NULL,
    by    text NOT NULL,
    home  text NOT NULL,
    facts bigint NOT NULL,
    hash  bytea NOT NULL CHECK (length(hash) = 32)
);

-- Plans that wait for approvals, where every host sees them. Each approval is a version more: the whole document, signed. `code` is
-- what two people compare; plans that were made again have the same one.
CREATE TABLE plan_document (
    plan    bigint NOT NULL,
    version integer NOT NULL CHECK (version > 0),
    code    text COLLATE "C" NOT NULL,
    at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    content text NOT NULL,
    PRIMARY KEY (plan, version)
);
CREATE INDEX plan_document_by_code ON plan_document (code, plan, version);

-- Who set which limits, and when. The newest line is in force; null: as configured.
CREATE TABLE limit_change (
    number      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at          timestamptz NOT NULL,
    by          text NOT NULL,
    rate_per_s  double precision,
    concurrency integer
);

CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'lines of % are never changed and never removed', TG_TABLE_NAME;
END $$;

DO $$
DECLARE name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['migration', 'identity', 'batch', 'page', 'instruction', 'known', 'payee_words',
        'seal', 'fact', 'evidence', 'reply', 'limit_change', 'move', 'plan_document'] LOOP
        EXECUTE format('CREATE TRIGGER never_changed BEFORE UPDATE OR DELETE ON %I FOR EACH ROW EXECUTE FUNCTION refuse_change()', name);
    END LOOP;
    FOREACH name IN ARRAY ARRAY['order_id', 'standing', 'chunk', 'chunk_tally', 'segment', 'worker', 'run'] LOOP
        EXECUTE format('CREATE TRIGGER never_changed BEFORE DELETE ON %I FOR EACH ROW EXECUTE FUNCTION refuse_change()', name);
    END LOOP;
    FOREACH name IN ARRAY ARRAY['migration', 'identity', 'batch', 'page', 'instruction', 'known', 'payee_words',
        'seal', 'fact', 'evidence', 'reply', 'limit_change', 'move', 'plan_document', 'order_id', 'standing', 'chunk', 'chunk_tally',
        'segment', 'worker', 'run'] LOOP
        EXECUTE format('CREATE TRIGGER never_emptied BEFORE TRUNCATE ON %I EXECUTE FUNCTION refuse_change()', name);
        -- ALWAYS: a session that plays the part of a replica is refused as well.
        EXECUTE format('ALTER TABLE %I ENABLE ALWAYS TRIGGER never_changed', name);
        EXECUTE format('ALTER TABLE %I ENABLE ALWAYS TRIGGER never_emptied', name);
    END LOOP;
END $$;
CREATE TRIGGER sealed_is_final BEFORE UPDATE ON segment FOR EACH ROW WHEN (OLD.sealed_at IS NOT NULL)
    EXECUTE FUNCTION refuse_change();
ALTER TABLE segment ENABLE ALWAYS TRIGGER sealed_is_final;
CREATE TRIGGER range_is_final BEFORE UPDATE ON chunk FOR EACH ROW
    WHEN ((OLD.batch, OLD.first, OLD.last) IS DISTINCT FROM (NEW.batch, NEW.first, NEW.last))
    EXECUTE FUNCTION refuse_change();
ALTER TABLE chunk ENABLE ALWAYS TRIGGER range_is_final;
CREATE TRIGGER stop_is_final BEFORE UPDATE ON run FOR EACH ROW
    WHEN (OLD.ended_at IS NOT NULL OR (OLD.stop_reason IS NOT NULL AND NEW.stop_reason IS DISTINCT FROM OLD.stop_reason)
        OR (OLD.number, OLD.batch, OLD.started_by, OLD.started_at) IS DISTINCT FROM (NEW.number, NEW.batch, NEW.started_by, NEW.started_at))
    EXECUTE FUNCTION refuse_change();
ALTER TABLE run ENABLE ALWAYS TRIGGER stop_is_final;

-- Whether the process that has a lease is alive, as far as its heartbeat says. The clock is the server's alone.
CREATE FUNCTION is_alive(p_worker bigint) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT FROM worker
        WHERE number = p_worker AND ended_at IS NULL AND seen_at > clock_timestamp() - make_interval(secs => lease_s)
    )
$$;

-- Whether the login of this session may do what people decide: it is a member of the role NAME_desk of database NAME, or the owner.
CREATE FUNCTION may_decide() RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT coalesce(bool_or(pg_has_role(session_user, r.oid, 'MEMBER')), false) FROM pg_roles r
    WHERE r.rolname = current_database() || '_desk' OR r.oid = (SELECT nspowner FROM pg_namespace WHERE nspname = 'paygw')
$$;

CREATE FUNCTION require_desk() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT may_decide() THEN
        RAISE EXCEPTION 'it is no member of %_desk', current_database() USING ERRCODE = 'insufficient_privilege';
    END IF;
END $$;

-- Keep every worker from moving these rows until the transaction ends.
CREATE FUNCTION lock_standing(p_instructions bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM standing WHERE instruction = ANY (p_instructions) ORDER BY instruction FOR UPDATE;
END $$;

-- Close a lease: no fact can follow. It waits for a commit of its holder that is under way.
CREATE FUNCTION seal_segment(p_segment bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE closed segment; newest seal;
BEGIN
    UPDATE segment SET sealed_at = clock_timestamp() WHERE number = p_segment AND sealed_at IS NULL RETURNING * INTO closed;
    IF NOT FOUND THEN RETURN; END IF;
    PERFORM FROM identity FOR UPDATE;  -- one seal at a time
    SELECT * INTO newest FROM seal ORDER BY number DESC LIMIT 1;
    INSERT INTO seal VALUES (
        coalesce(newest.number, 0) + 1, closed.number, coalesce(newest.facts, 0) + closed.head_seq,
        sha256(coalesce(newest.hash, sha256('paygw seal')) || convert_to(format(E'%s\n%s\n', closed.number, closed.head_seq), 'UTF8')
            || closed.head_hash)
    );
END $$;

-- Take a lease. Nothing is returned while another process has it. `dead` are
-- workers that the caller knows to have ended: processes of its own machine that are gone. The lease before is closed; what it
-- left in flight has to be put in doubt by the first commit, unless `is_clear`. PW009: the tables were brought up since the worker began.
CREATE FUNCTION take_lease(p_chain bigint, p_worker bigint, p_dead bigint[])
RETURNS TABLE (number bigint, epoch integer, head_hash bytea, head_at text, is_clear boolean) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE old segment; taken segment; range chunk; start_hash bytea; newest text;
BEGIN
    IF (SELECT w.tables FROM worker w WHERE w.number = p_worker) < (SELECT max(m.version) FROM migration m) THEN
        RAISE EXCEPTION 'its tables were brought up for a newer version of the program: install that version' USING ERRCODE = 'PW009';
    END IF;
    IF p_chain <= 0 THEN
        IF p_chain = 0 THEN
            PERFORM require_desk();
        END IF;
        PERFORM FROM identity FOR UPDATE;
    ELSE
        SELECT * INTO range FROM chunk c WHERE c.number = p_chain FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN RETURN; END IF;
    END IF;
    SELECT * INTO old FROM segment s WHERE s.chain = p_chain ORDER BY s.epoch DESC LIMIT 1;
    IF old.sealed_at IS NULL AND old.worker <> p_worker AND old.worker <> ALL (p_dead) AND is_alive(old.worker) THEN
        RETURN;
    END IF;
    IF old.number IS NOT NULL THEN
        PERFORM seal_segment(old.number);
        SELECT * INTO old FROM segment s WHERE s.number = old.number;
        start_hash := old.head_hash;
    ELSE
        SELECT sha256(convert_to(concat_ws(E'\n', 'paygw chain', i.journal_id, i.endpoint, i.created_at, p_chain), 'UTF8'))
            INTO start_hash FROM identity i;
    END IF;
    SELECT coalesce(max(s.head_at), '') INTO newest FROM segment s;
    INSERT INTO segment AS s (chain, epoch, worker, before, start, head_hash, head_at, is_clear)
        VALUES (p_chain, coalesce(old.epoch, 0) + 1, p_worker, old.number, start_hash, start_hash, newest,
            p_chain <= 0 OR NOT EXISTS (
                SELECT FROM standing t WHERE t.instruction BETWEEN range.first AND range.last AND t.state = 'in_flight'))
        RETURNING * INTO taken;
    UPDATE chunk c SET epoch = taken.epoch, segment = taken.number WHERE c.number = p_chain;
    RETURN QUERY SELECT taken.number, taken.epoch, taken.head_hash, taken.head_at, taken.is_clear;
END $$;

-- Grant starts, evenly spaced, and return the time of the first: after all that were granted before, and after a rest.
CREATE FUNCTION take_starts(p_starts integer, p_rate_per_s double precision, p_now timestamptz) RETURNS timestamptz
LANGUAGE sql AS $$
    UPDATE gate SET next_start = greatest(next_start, rest_until, p_now) + make_interval(secs => p_starts / p_rate_per_s)
        RETURNING next_start - make_interval(secs => p_starts / p_rate_per_s)
$$;

-- A worker reports what the gateway answered since its last call, and is granted places and starts: one short transaction, which need
-- not be durable. Outcomes are counted in their order: `o_kind` is `answered`, `rejected` (for `o_reason`) or `unknown`, `o_times` in a row.
-- `p_rate_per_s` and `p_concurrency` are the worker's configuration. `p_stop`: why this worker stopped itself. A place
-- that is in use and no longer granted is given to no other worker. `every_s` is 0 where no rate is set.
CREATE FUNCTION ask_gate(
    p_worker bigint, p_wanted integer, p_in_use integer, p_starts integer, p_rate_per_s double precision, p_concurrency integer,
    p_stop_after_in_doubt integer, p_stop_after_rejected integer, p_rest_s double precision, p_stop text,
    o_kind text[], o_reason text[], o_times integer[], p_now timestamptz DEFAULT clock_timestamp()
) RETURNS TABLE (
    places integer, is_growing boolean, starts integer, first_s double precision, every_s double precision, rest_s double precision,
    stop_kind text, stop_count bigint, stop_text text
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    g gate; told record; most integer; mine integer; askers integer; taken integer; fair integer; is_tight boolean;
    rate double precision; granted integer := 0; first_start timestamptz := p_now;
BEGIN
    SELECT * INTO STRICT g FROM gate FOR UPDATE;
    most := coalesce(g.concurrency, p_concurrency);
    rate := coalesce(g.rate_per_s, p_rate_per_s);
    rate := CASE WHEN rate > 0 THEN least(greatest(rate, 0.001), 1000000) ELSE 0 END;
    FOR told IN SELECT u.kind, u.reason, u.times FROM unnest(o_kind, o_reason, o_times) WITH ORDINALITY u(kind, reason, times, nth) ORDER BY u.nth LOOP
        IF told.kind = 'unknown' THEN
            g.places := 1;
            g.in_doubt := g.in_doubt + told.times;
        ELSE
            g.places := least(most, g.places * power(2, least(told.times, 10))::bigint);
            g.in_doubt := 0;
            g.rejected := CASE WHEN told.kind = 'answered' THEN 0 WHEN g.reason = told.reason THEN g.rejected ELSE 0 END
                + CASE WHEN told.kind = 'rejected' THEN told.times ELSE 0 END;
            g.reason := CASE WHEN told.kind = 'rejected' THEN told.reason ELSE '' END;
        END IF;
        IF g.stop_kind IS NULL AND p_stop_after_in_doubt > 0 AND g.in_doubt >= p_stop_after_in_doubt THEN
            g.stop_kind := 'in_doubt'; g.stop_count := g.in_doubt; g.stop_text := '';
        ELSIF g.stop_kind IS NULL AND p_stop_after_rejected > 0 AND g.rejected >= p_stop_after_rejected THEN
            g.stop_kind := 'rejected'; g.stop_count := g.rejected; g.stop_text := g.reason;
        END IF;
    END LOOP;
    IF g.stop_kind IS NULL AND p_stop <> '' THEN
        g.stop_kind := 'told'; g.stop_count := 0; g.stop_text := p_stop;
    END IF;
    IF g.stop_kind IS NOT NULL AND g.stopped_at IS NULL THEN
        g.stopped_at := p_now; g.stopped_by := p_worker;
        PERFORM set_config('synchronous_commit', 'on', true);  -- a stop is durable, whatever the session says
    END IF;
    g.places := least(g.places, most);
    g.rest_until := greatest(g.rest_until, CASE WHEN p_rest_s > 0 THEN p_now + make_interval(secs => p_rest_s) ELSE '-infinity' END);
    UPDATE gate SET places = g.places, in_doubt = g.in_doubt, rejected = g.rejected, reason = g.reason, rest_until = g.rest_until,
        stop_kind = g.stop_kind, stop_count = g.stop_count, stop_text = g.stop_text, stopped_by = g.stopped_by, stopped_at = g.stopped_at;
    -- Every worker that wants places has its share before any has more; what some do not want, others get.
    SELECT 1 + count(*) FILTER (WHERE o.wanted > 0), coalesce(sum(o.places), 0) INTO askers, taken
        FROM gate_place o WHERE o.worker <> p_worker AND is_alive(o.worker);
    fair := greatest(1, g.places / askers);
    SELECT EXISTS (SELECT FROM gate_place o WHERE o.worker <> p_worker AND o.places < least(o.wanted, fair) AND is_alive(o.worker)) INTO is_tight;
    mine := greatest(0, least(p_wanted, g.places - taken, CASE WHEN is_tight THEN fair ELSE g.places END));
    IF g.stop_kind IS NOT NULL THEN
        mine := 0;
    END IF;
    INSERT INTO gate_place AS t VALUES (p_worker, greatest(mine, p_in_use), p_in_use, p_wanted)
        ON CONFLICT (worker) DO UPDATE SET places = excluded.places, in_use = excluded.in_use, wanted = excluded.wanted;
    IF rate > 0 THEN
        granted := greatest(0, least(p_starts, mine));  -- a place can be used again before the next call
        IF granted > 0 THEN
            first_start := take_starts(granted, rate, p_now);
        END IF;
    END IF;
    RETURN QUERY SELECT mine, g.places < most, granted, extract(epoch FROM first_start - p_now)::double precision,
        CASE WHEN rate > 0 THEN 1 / rate ELSE 0 END::double precision,
        greatest(0, extract(epoch FROM g.rest_until - p_now))::double precision, g.stop_kind, g.stop_count, g.stop_text;
END $$;

-- A person starts a run: what stopped the one before is lifted. Where no other worker sends, one row travels alone at first.
CREATE FUNCTION open_gate(p_worker bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM gate FOR UPDATE;
    DELETE FROM gate_place WHERE NOT is_alive(worker);
    UPDATE gate SET places = 1, in_doubt = 0, rejected = 0, reason = '', stop_kind = NULL, stop_count = 0, stop_text = '',
            stopped_by = NULL, stopped_at = NULL
        WHERE stop_kind IS NOT NULL OR NOT EXISTS (SELECT FROM gate_place o WHERE o.worker <> p_worker AND o.places > 0);
END $$;

-- A worker sends nothing more: its places are free.
CREATE FUNCTION leave_gate(p_worker bigint) RETURNS void LANGUAGE sql AS $$
    DELETE FROM gate_place WHERE worker = p_worker
$$;

-- A person sets limits over all workers. What is null stays as it is; `p_as_configured`: no limit is set but those that are named.
CREATE FUNCTION set_limits(p_by text, p_rate_per_s double precision, p_concurrency integer, p_as_configured boolean) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE g gate;
BEGIN
    SELECT * INTO STRICT g FROM gate FOR UPDATE;
    g.rate_per_s := coalesce(p_rate_per_s, CASE WHEN NOT p_as_configured THEN g.rate_per_s END);
    g.concurrency := coalesce(p_concurrency, CASE WHEN NOT p_as_configured THEN g.concurrency END);
    UPDATE gate SET rate_per_s = g.rate_per_s, concurrency = g.concurrency, places = least(places, coalesce(g.concurrency, places)),
        next_start = least(next_start, clock_timestamp() + interval '1 s');
    INSERT INTO limit_change (at, by, rate_per_s, concurrency) VALUES (clock_timestamp(), p_by, g.rate_per_s, g.concurrency);
END $$;

-- One group commit: the ends of chains move on, facts are added, and instructions move as the facts say. The first statement
-- is fence, continuity and idempotency key in one. Errors of ours: PW001 fenced, PW002 a row moved, PW003 not leased, PW004 held by
-- evidence (the detail names the instructions), PW005 the run is over, PW006 a worker stopped all of them. Any of them undoes all of
-- it.
CREATE FUNCTION commit_facts(
    p_worker bigint,
    s_number bigint[], s_seq bigint[], s_hash bytea[], s_new_seq bigint[], s_new_hash bytea[], s_new_at text[],
    f_segment bigint[], f_seq bigint[], f_at text[], f_kind text[], f_batch bigint[], f_instruction bigint[], f_nth integer[],
    f_attempt bigint[], f_contradicts text[], f_details text[], f_hash bytea[],
    t_instruction bigint[], t_is_new boolean[], t_before integer[], t_facts integer[], t_state text[], t_attempt bigint[], t_generation bigint[],
    t_duplicate bigint[], t_inherited bigint[], t_order_id text[], t_sent_orderid text[], t_purpose text[],
    t_gateway_status text[], t_gateway_reference text[], t_http_status bigint[], t_error_code text[], t_message text[],
    t_intended_at text[], t_first_sent_at text[], t_updated_at text[],
    r_instruction bigint[], r_nth integer[], r_head bytea[], r_body bytea[],
    m_chunk bigint[], m_chain bigint[], m_country text[], m_currency text[], m_state text[], m_rows bigint[], m_minor numeric[]
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE held bigint[]; moved bigint; more bigint; is_sending boolean := 'intended' = ANY (f_kind);
BEGIN
    PERFORM require_desk() FROM unnest(f_kind) u(kind) WHERE u.kind = 'batch_opened' OR (u.kind >= 'rel' AND u.kind < 's') LIMIT 1;
    UPDATE segment g SET head_seq = u.new_seq, head_hash = u.new_hash, head_at = u.new_at, is_clear = true
        FROM unnest(s_number, s_seq, s_hash, s_new_seq, s_new_hash, s_new_at) u(number, seq, hash, new_seq, new_hash, new_at)
        WHERE g.number = u.number AND g.sealed_at IS NULL AND g.head_seq = u.seq AND g.head_hash = u.hash
            AND (g.is_clear OR NOT is_sending);
    GET DIAGNOSTICS moved = ROW_COUNT;
    IF moved <> cardinality(s_number) THEN
        RAISE EXCEPTION 'a lease was taken over, or its chain is not where it was left' USING ERRCODE = 'PW001';
    END IF;
    IF is_sending THEN
        PERFORM FROM gate WHERE stop_kind IS NOT NULL;
        IF FOUND THEN
            RAISE EXCEPTION 'a worker stopped the run' USING ERRCODE = 'PW006';
        END IF;
        PERFORM FROM unnest(f_segment, f_kind, f_instruction) u(segment, kind, instruction)
            LEFT JOIN segment g ON g.number = u.segment LEFT JOIN chunk c ON c.number = g.chain
            WHERE u.kind = 'intended' AND (u.instruction BETWEEN c.first AND c.last) IS NOT TRUE;
        IF FOUND THEN
            RAISE EXCEPTION 'a row is not of the chunk that is leased' USING ERRCODE = 'PW003';
        END IF;
        PERFORM FROM worker w JOIN run r ON r.number = w.run
            WHERE w.number = p_worker AND (r.stop_reason IS NOT NULL OR r.ended_at IS NOT NULL);
        IF FOUND THEN
            RAISE EXCEPTION 'the run was stopped' USING ERRCODE = 'PW005';
        END IF;
    END IF;
    UPDATE worker SET seen_at = clock_timestamp() WHERE number = p_worker AND seen_at < clock_timestamp() - interval '2 s';
    -- The rows first, in order: whoever moves one waits for who moved it before, and facts are numbered after that.
    WITH line AS (
        SELECT u.* FROM unnest(t_instruction, t_is_new, t_before, t_facts, t_state, t_attempt, t_generation, t_duplicate, t_inherited, t_order_id,
            t_sent_orderid, t_purpose, t_gateway_status, t_gateway_reference, t_http_status, t_error_code, t_message,
            t_intended_at, t_first_sent_at, t_updated_at)
            u(instruction, is_new, before, facts, state, attempt, generation, possible_duplicate_of, inherited_attempts, order_id, sent_orderid,
            purpose, gateway_status, gateway_reference, http_status, error_code, message, intended_at, first_sent_at, updated_at)
        WHERE NOT u.is_new
    )
    UPDATE standing t SET facts = u.facts, state = u.state, attempt = u.attempt, generation = u.generation,
        possible_duplicate_of = u.possible_duplicate_of, inherited_attempts = u.inherited_attempts, order_id = u.order_id,
        sent_orderid = u.sent_orderid, purpose = u.purpose, gateway_status = u.gateway_status,
        gateway_reference = u.gateway_reference, http_status = u.http_status, error_code = u.error_code, message = u.message,
        intended_at = u.intended_at, first_sent_at = u.first_sent_at, updated_at = u.updated_at
    FROM line u WHERE t.instruction = u.instruction AND t.facts = u.before
        AND (u.state <> 'in_flight' OR t.state = 'in_flight' OR (t.state = 'ready' AND t.attempt = u.attempt - 1));
    GET DIAGNOSTICS moved = ROW_COUNT;
    INSERT INTO standing SELECT u.instruction, u.facts, u.state, u.attempt, u.generation, u.possible_duplicate_of,
            u.inherited_attempts, u.order_id, u.sent_orderid, u.purpose, u.gateway_status, u.gateway_reference, u.http_status,
            u.error_code, u.message, u.intended_at, u.first_sent_at, u.updated_at
        FROM unnest(t_instruction, t_is_new, t_before, t_facts, t_state, t_attempt, t_generation, t_duplicate, t_inherited, t_order_id,
            t_sent_orderid, t_purpose, t_gateway_status, t_gateway_reference, t_http_status, t_error_code, t_message,
            t_intended_at, t_first_sent_at, t_updated_at)
            u(instruction, is_new, before, facts, state, attempt, generation, possible_duplicate_of, inherited_attempts, order_id, sent_orderid,
            purpose, gateway_status, gateway_reference, http_status, error_code, message, intended_at, first_sent_at, updated_at)
        WHERE u.is_new
        ON CONFLICT (instruction) DO NOTHING;
    GET DIAGNOSTICS more = ROW_COUNT;
    IF moved + more <> cardinality(t_instruction) THEN
        RAISE EXCEPTION 'a row is no longer where it was when it was read' USING ERRCODE = 'PW002';
    END IF;
    IF is_sending THEN  -- after the rows are locked: evidence that is being taken in has locked them before
        SELECT array_agg(DISTINCT e.instruction) INTO held FROM unanswered e
            WHERE e.instruction IN (SELECT u.instruction FROM unnest(f_kind, f_instruction) u(kind, instruction) WHERE u.kind = 'intended');
        IF held IS NOT NULL THEN
            RAISE EXCEPTION 'evidence holds a row' USING ERRCODE = 'PW004', DETAIL = array_to_string(held, ' ');
        END IF;
    END IF;
    INSERT INTO fact (segment, seq, at, kind, batch, instruction, nth, attempt, contradicts, details, hash)
        SELECT u.* FROM unnest(f_segment, f_seq, f_at, f_kind, f_batch, f_instruction, f_nth, f_attempt, f_contradicts, f_details, f_hash) u;
    INSERT INTO reply SELECT u.* FROM unnest(r_instruction, r_nth, r_head, r_body) u;
    INSERT INTO chunk_tally AS t SELECT u.* FROM unnest(m_chunk, m_chain, m_country, m_currency, m_state, m_rows, m_minor) u
        ON CONFLICT (chunk, chain, country, currency, state) DO UPDATE SET rows = t.rows + excluded.rows, minor = t.minor + excluded.minor;
END $$;

-- Who may call a function may do what it does, and nothing else: the functions have the rights of the owner.
DO $$
DECLARE name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['seal_segment', 'take_lease', 'commit_facts', 'take_starts', 'ask_gate', 'open_gate', 'leave_gate', 'set_limits',
        'lock_standing'] LOOP
        EXECUTE format('ALTER FUNCTION %I SECURITY DEFINER SET search_path = paygw, pg_temp', name);
    END LOOP;
END $$;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA paygw FROM PUBLIC;
