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
    fields         text,
    payee          text COLLATE "C",
    content        text COLLATE "C",
    salt           bytea CHECK (length(salt) = 16),
    people_sha256  bytea NOT NULL CHECK (length(people_sha256) = 32),
    UNIQUE (batch, row)
);
-- `people_sha256` is SHA-256 over the salt and what the instruction says of people: fields, payee and content. The digest of its
-- batch is over it and all that is kept. To forget a payee is to empty these columns and the salt (`forgetting.sql`).
CREATE INDEX instruction_forgotten ON instruction (batch) WHERE salt IS NULL;
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

-- The life of a process that writes. `login` is whose session enrolled it: no other login acts in its name. `boot` says on which
-- start of a machine, and in which container, `pid` counts. A worker sends for `run`, and has taken `chunk` last; `rows` counts those
-- that it has sent. `tables` is the version that its program knows.
CREATE TABLE worker (
    number   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    login    text COLLATE "C" NOT NULL DEFAULT session_user,
    host     text NOT NULL CHECK (length(host) <= 255),
    boot     text NOT NULL CHECK (length(boot) <= 255),
    pid      bigint NOT NULL,
    command  text NOT NULL CHECK (length(command) <= 4096),
    kind     text NOT NULL CHECK (length(kind) <= 32),
    since    timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    lease_s  double precision NOT NULL CHECK (lease_s > 0 AND lease_s <= 3600),
    ended_at timestamptz,
    run      bigint,
    chunk    bigint,
    rows     bigint NOT NULL DEFAULT 0 CHECK (rows >= 0),
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

-- A run: all workers together send what is due in a batch, until nothing is left or somebody stops it. A batch has one at a time.
-- Workers leave other runs for one that `is_urgent`.
CREATE TABLE run (
    number      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    batch       bigint NOT NULL REFERENCES batch,
    started_by  bigint NOT NULL REFERENCES worker,
    started_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    is_urgent   boolean NOT NULL DEFAULT false,
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
    is_takeover boolean NOT NULL DEFAULT false,
    sealed_at   timestamptz
) WITH (fillfactor = 20);
ALTER TABLE chunk ADD FOREIGN KEY (segment) REFERENCES segment;
CREATE UNIQUE INDEX segment_of_epoch ON segment (chain, epoch);
CREATE UNIQUE INDEX segment_unsealed ON segment (chain) WHERE sealed_at IS NULL;
CREATE INDEX segment_takeover ON segment (number) WHERE is_takeover;

-- One chain over finished segments. `facts` counts those of all segments up to here.
CREATE TABLE seal (
    number  bigint PRIMARY KEY,
    segment bigint NOT NULL UNIQUE REFERENCES segment,
    facts   bigint NOT NULL,
    hash    bytea NOT NULL CHECK (length(hash) = 32)
);

-- The state machine, as `core/lifecycle.py` has it: filled when the tables are made, and read by the trigger alone.
CREATE TABLE move (
    before      text COLLATE "C" NOT NULL,
    kind        text COLLATE "C" NOT NULL,
    after       text COLLATE "C" NOT NULL,
    attempts    integer NOT NULL,
    generations integer NOT NULL,
    is_marking  integer NOT NULL,
    is_sending  integer NOT NULL,
    PRIMARY KEY (before, kind)
);

-- Where each instruction is. The first columns are written once; the others change by facts alone. `order_id` is what the next
-- attempt is sent under (null: the sheet's own). `intent`, `first_sent` and `fact` are numbers of facts: the latest intent, the
-- first that may have left, and the newest one that moved it.
CREATE TABLE state (
    instruction           bigint PRIMARY KEY,
    batch                 bigint NOT NULL,
    country               text COLLATE "C" NOT NULL,
    currency              text COLLATE "C" NOT NULL,
    minor                 bigint NOT NULL,
    state                 text COLLATE "C" NOT NULL DEFAULT 'ready',
    attempt               bigint NOT NULL DEFAULT 0,
    generation            bigint NOT NULL DEFAULT 1,
    possible_duplicate_of bigint,
    inherited_attempts    bigint NOT NULL DEFAULT 0,
    order_id              text COLLATE "C",
    intent                bigint,
    first_sent            bigint,
    fact                  bigint
) WITH (fillfactor = 50);
CREATE INDEX state_counted ON state (batch, state, country, currency, minor);

-- `segment` and `seq` are the place in the chain of a lease. `number` is for references: of two facts about a row, the one that
-- moved it later has the higher one. `said_sha256` is the digest of what the fact says of people, which is in `said`. `batch` is
-- that of a fact about a whole batch; a fact with neither a batch nor an instruction is about the whole journal, or keeps evidence
-- about nothing that is known. `source`, `finding` and `means` are those of evidence. `details` says what has no column: of a batch,
-- of the journal, which row replaced another one, and what lasts of evidence.
CREATE TABLE fact (
    segment           bigint NOT NULL,
    seq               bigint NOT NULL,
    number            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at                text COLLATE "C" NOT NULL,
    kind              text COLLATE "C" NOT NULL,
    batch             bigint,
    instruction       bigint,
    attempt           bigint,
    order_id          text COLLATE "C",
    nonce             text,
    timestamp_s       bigint,
    purpose           text,
    gateway_status    text,
    gateway_reference text,
    http_status       bigint,
    error_code        text,
    cause             text,
    conflict          integer,
    source            text,
    finding           text COLLATE "C",
    means             text,
    by                text,
    basis             text,
    agreement         text,
    details           text,
    said_sha256       bytea,
    hash              bytea NOT NULL CHECK (length(hash) = 32),
    UNIQUE (segment, seq)
);
CREATE INDEX fact_of_instruction ON fact (instruction, number) WHERE instruction IS NOT NULL;
-- The last guard, should everything above it fail: an attempt has one intent, for ever.
CREATE UNIQUE INDEX fact_one_intent ON fact (instruction, attempt) WHERE kind = 'intended';
CREATE INDEX fact_of_batch ON fact (batch) WHERE batch IS NOT NULL;
CREATE INDEX fact_of_people ON fact (instruction) WHERE kind >= 'rel' AND kind < 's';

-- What facts say of people: a message of the gateway or a person's evidence, where a customer goes to pay, and the digest of the raw
-- reply. Nobody can guess it from its digest without the salt.
CREATE TABLE said (
    fact         bigint PRIMARY KEY,
    salt         bytea NOT NULL CHECK (length(salt) = 16),
    text         text,
    customer_url text,
    reply_sha256 text
);
CREATE INDEX said_of_customer_page ON said (fact) WHERE customer_url IS NOT NULL;

-- The facts that did not fit the state of their row: kept, and they moved nothing.
CREATE TABLE contradiction (
    fact  bigint PRIMARY KEY,
    state text COLLATE "C" NOT NULL
);

CREATE FUNCTION hand_over() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
{hand_over}
    RETURN NULL;
END $$;
CREATE FUNCTION move_row() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
{move_row}
    IF NOT FOUND THEN
{note_contradiction}
    END IF;
    RETURN NULL;
END $$;
-- Of two triggers for a fact, the one whose name comes first in the alphabet is first.
CREATE TRIGGER fact_hands_over AFTER INSERT ON fact FOR EACH ROW WHEN (NEW.kind = 'replaced') EXECUTE FUNCTION hand_over();
CREATE TRIGGER fact_moves AFTER INSERT ON fact FOR EACH ROW WHEN (NEW.instruction IS NOT NULL AND NEW.kind <> 'heard')
    EXECUTE FUNCTION move_row();
ALTER TABLE fact ENABLE ALWAYS TRIGGER fact_hands_over, ENABLE ALWAYS TRIGGER fact_moves;

-- Evidence that speaks about a row has a finding. Also found fast: the facts about the whole journal, by kind.
CREATE INDEX fact_heard ON fact (finding, instruction) WHERE finding IS NOT NULL;
CREATE INDEX fact_of_journal ON fact (kind, number) WHERE instruction IS NULL AND batch IS NULL;

-- The evidence that says that the gateway has its row, and that no person has answered since.
CREATE VIEW unanswered AS
    SELECT e.* FROM fact e
    WHERE e.finding IN ('contradicting', 'ambiguous') AND (e.finding = 'contradicting' OR e.means IN ('paid', 'accepted'))
        AND NOT EXISTS (
            SELECT FROM fact answer
            WHERE answer.instruction = e.instruction AND answer.finding = 'resolved' AND answer.number > e.number
        );

-- Raw replies of the gateway for rows that did not end paid.
CREATE TABLE reply (
    fact        bigint PRIMARY KEY,
    instruction bigint NOT NULL,
    head        bytea NOT NULL,
    body        bytea NOT NULL CHECK (length(body) <= 65536)
);
CREATE INDEX reply_by_instruction ON reply (instruction);

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
-- Without the second line nothing is paid from here. `facts` and `hash` are the end of the file's chain, which is the first lease; the
-- consumer key that the file was made with is in its start.
CREATE TABLE moved_here (
    step  text PRIMARY KEY CHECK (step IN ('copied', 'done')),
    at    text NOT NULL,
    by    text NOT NULL,
    home  text NOT NULL,
    facts bigint NOT NULL,
    hash  bytea NOT NULL CHECK (length(hash) = 32),
    consumer_key_sha256 text NOT NULL
);

-- Plans that wait for approvals, where every host sees them. Each approval is a version more: the whole document, signed. `code` is
-- what two people compare. `payments` is the digest of the payments that it is about: several people can make a plan of the same ones.
CREATE TABLE plan_document (
    plan    bigint NOT NULL,
    version integer NOT NULL CHECK (version > 0),
    code    text COLLATE "C" NOT NULL,
    at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    content text NOT NULL,
    payments text COLLATE "C" NOT NULL DEFAULT '',
    PRIMARY KEY (plan, version)
);
CREATE INDEX plan_document_by_code ON plan_document (code, plan, version);
CREATE INDEX plan_document_by_payments ON plan_document (payments, plan, version);

-- What people are to be told: each line is one message to one recipient. That of a run is due when `worker`, which started it, and the
-- run have ended. `next_at` is when it may be tried; null: it was given up.
CREATE TABLE notice (
    number     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id         text COLLATE "C" NOT NULL UNIQUE,
    occasion   text COLLATE "C" NOT NULL,
    subject    text COLLATE "C" NOT NULL,
    batch      text COLLATE "C" NOT NULL,
    recipient  text COLLATE "C" NOT NULL,
    written_at text COLLATE "C" NOT NULL,
    content    text,
    worker     bigint REFERENCES worker,
    tries      integer NOT NULL DEFAULT 0,
    tried_at   text COLLATE "C",
    next_at    text COLLATE "C",
    sent_at    text COLLATE "C",
    problem    text NOT NULL DEFAULT '',
    UNIQUE (occasion, batch, subject, recipient)
);

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
        'seal', 'fact', 'said', 'contradiction', 'move', 'reply', 'limit_change', 'moved_here', 'plan_document'] LOOP
        EXECUTE format('CREATE TRIGGER never_changed BEFORE UPDATE OR DELETE ON %I FOR EACH ROW EXECUTE FUNCTION refuse_change()', name);
    END LOOP;
    FOREACH name IN ARRAY ARRAY['order_id', 'state', 'chunk', 'segment', 'worker', 'run', 'notice'] LOOP
        EXECUTE format('CREATE TRIGGER never_changed BEFORE DELETE ON %I FOR EACH ROW EXECUTE FUNCTION refuse_change()', name);
    END LOOP;
    FOREACH name IN ARRAY ARRAY['migration', 'identity', 'batch', 'page', 'instruction', 'known', 'payee_words',
        'seal', 'fact', 'said', 'contradiction', 'move', 'reply', 'limit_change', 'moved_here', 'plan_document', 'order_id', 'state',
        'chunk', 'segment', 'worker', 'run', 'notice'] LOOP
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
CREATE FUNCTION lock_rows(p_instructions bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM require_desk();
    PERFORM FROM state WHERE instruction = ANY (p_instructions) ORDER BY instruction FOR UPDATE;
END $$;

-- Refuse a session whose login did not enrol this worker: nobody acts in the name of another login's process.
CREATE FUNCTION require_own(p_worker bigint) RETURNS worker LANGUAGE plpgsql AS $$
DECLARE own worker;
BEGIN
    SELECT * INTO own FROM worker w WHERE w.number = p_worker AND w.login = session_user;
    IF own.number IS NULL THEN
        RAISE EXCEPTION 'another login enrolled this worker' USING ERRCODE = 'insufficient_privilege';
    END IF;
    RETURN own;
END $$;

-- Write down that a process is about to write: it is the session's login that does.
CREATE FUNCTION enrol(
    p_host text, p_boot text, p_pid bigint, p_command text, p_kind text, p_lease_s double precision, p_tables integer
) RETURNS bigint LANGUAGE sql AS $$
    INSERT INTO worker (login, host, boot, pid, command, kind, lease_s, tables)
        VALUES (session_user, p_host, p_boot, p_pid, p_command, p_kind, p_lease_s, p_tables) RETURNING number
$$;

-- A process shows that it lives; one that has ended does not begin again.
CREATE FUNCTION show_life(p_worker bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM require_own(p_worker);
    UPDATE worker SET seen_at = clock_timestamp() WHERE number = p_worker AND ended_at IS NULL;
END $$;

-- A process says its end.
CREATE FUNCTION end_life(p_worker bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM require_own(p_worker);
    UPDATE worker SET ended_at = clock_timestamp() WHERE number = p_worker;
END $$;

-- A worker says which run it sends for, which chunk it has taken, and how many rows it has sent. What is null stays as it is, but
-- for run and chunk where `p_moves`.
CREATE FUNCTION note_place(p_worker bigint, p_moves boolean, p_run bigint, p_chunk bigint, p_rows bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM require_own(p_worker);
    UPDATE worker SET run = CASE WHEN p_moves THEN p_run ELSE run END, chunk = CASE WHEN p_moves THEN p_chunk ELSE chunk END,
        rows = coalesce(p_rows, rows) WHERE number = p_worker;
END $$;

-- Close a lease: no fact can follow. It waits for a commit of its holder that is under way.
CREATE FUNCTION close_segment(p_segment bigint) RETURNS void LANGUAGE plpgsql AS $$
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

-- A process closes a lease of its own.
CREATE FUNCTION seal_segment(p_segment bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM require_own(g.worker) FROM segment g WHERE g.number = p_segment;
    PERFORM close_segment(p_segment);
END $$;

-- Keep the end of an own lease where it is until the transaction ends; whether it is there.
CREATE FUNCTION hold_segment(p_segment bigint, p_seq bigint, p_hash bytea) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM require_own(g.worker) FROM segment g WHERE g.number = p_segment;
    PERFORM FROM segment g WHERE g.number = p_segment AND g.sealed_at IS NULL AND g.head_seq = p_seq AND g.head_hash = p_hash FOR UPDATE;
    RETURN FOUND;
END $$;

-- Whether a run that is on has rows in these instructions: those that its batch brought, or those that it also covers.
CREATE FUNCTION is_handed_over(p_batch bigint, p_first bigint, p_last bigint) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM run r WHERE r.ended_at IS NULL AND r.stop_reason IS NULL AND (r.batch = p_batch OR EXISTS (
            SELECT FROM known k WHERE k.batch = r.batch AND k.instruction BETWEEN p_first AND p_last)))
$$;

-- Whether a process has ended, as another one of its machine says. Its word counts for processes of its own login, or if it decides.
CREATE FUNCTION is_known_dead(p_worker bigint, p_dead bigint[], p_witness worker) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT coalesce(p_worker = ANY (p_dead), false) AND EXISTS (
        SELECT FROM worker w WHERE w.number = p_worker AND (w.host, w.boot) = (p_witness.host, p_witness.boot)
            AND (w.login = session_user OR may_decide()))
$$;

-- Take a lease. Nothing is returned while another process has it. `dead` are
-- workers that the caller knows to have ended: processes of its own machine that are gone. The lease before is closed; what it
-- left in flight has to be put in doubt by the first commit, unless `is_clear`. PW009: the tables were brought up since the worker began.
-- Who decides nothing gets chunks of runs alone, and its own chain.
CREATE FUNCTION take_lease(p_chain bigint, p_worker bigint, p_dead bigint[])
RETURNS TABLE (number bigint, epoch integer, head_hash bytea, head_at text, is_clear boolean) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE me worker; old segment; taken segment; range chunk; start_hash bytea; newest text; is_taken_over boolean;
BEGIN
    me := require_own(p_worker);
    IF me.tables < (SELECT max(m.version) FROM migration m) THEN
        RAISE EXCEPTION 'its tables were brought up for a newer version of the program: install that version' USING ERRCODE = 'PW009';
    END IF;
    IF p_chain <= 0 THEN
        IF p_chain = 0 THEN
            PERFORM require_desk();
        ELSIF p_chain <> -p_worker THEN
            RAISE EXCEPTION 'this chain is another worker''s' USING ERRCODE = 'insufficient_privilege';
        END IF;
        PERFORM FROM identity WHERE p_chain = 0 FOR UPDATE;
    ELSE
        SELECT * INTO range FROM chunk c WHERE c.number = p_chain FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN RETURN; END IF;
        IF NOT is_handed_over(range.batch, range.first, range.last) AND NOT may_decide() THEN RETURN; END IF;
    END IF;
    SELECT * INTO old FROM segment s WHERE s.chain = p_chain ORDER BY s.epoch DESC LIMIT 1;
    IF old.sealed_at IS NULL AND old.worker <> p_worker AND NOT is_known_dead(old.worker, p_dead, me) AND is_alive(old.worker) THEN
        RETURN;
    END IF;
    is_taken_over := old.number IS NOT NULL AND old.sealed_at IS NULL AND old.worker <> p_worker;
    IF old.number IS NOT NULL THEN
        PERFORM close_segment(old.number);
        SELECT * INTO old FROM segment s WHERE s.number = old.number;
        start_hash := old.head_hash;
    ELSE
        SELECT sha256(convert_to(concat_ws(E'\n', 'paygw chain', i.journal_id, i.endpoint, i.created_at, p_chain), 'UTF8'))
            INTO start_hash FROM identity i;
    END IF;
    SELECT coalesce(max(s.head_at), '') INTO newest FROM segment s;
    INSERT INTO segment AS s (chain, epoch, worker, before, start, head_hash, head_at, is_takeover, is_clear)
        VALUES (p_chain, coalesce(old.epoch, 0) + 1, p_worker, old.number, start_hash, start_hash, newest, is_taken_over,
            p_chain <= 0 OR NOT EXISTS (
                SELECT FROM state t WHERE t.instruction BETWEEN range.first AND range.last AND t.state = 'in_flight'))
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
-- not be durable. Figures that no worker has are refused (22023). Outcomes are counted in their order: `o_kind` is `answered`, `rejected` (for `o_reason`) or `unknown`, `o_times` in a row.
-- `p_rate_per_s` and `p_concurrency` are the worker's configuration. `p_stop`: why this worker stopped itself. A place
-- that is in use and no longer granted is given to no other worker. `every_s` is 0 where no rate is set.
CREATE FUNCTION ask_gate_at(
    p_worker bigint, p_wanted integer, p_in_use integer, p_starts integer, p_rate_per_s double precision, p_concurrency integer,
    p_stop_after_in_doubt integer, p_stop_after_rejected integer, p_rest_s double precision, p_stop text,
    o_kind text[], o_reason text[], o_times integer[], p_now timestamptz
) RETURNS TABLE (
    places integer, is_growing boolean, starts integer, first_s double precision, every_s double precision, rest_s double precision,
    stop_kind text, stop_count bigint, stop_text text
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    g gate; told record; most integer; mine integer; askers integer; taken integer; fair integer; is_tight boolean;
    rate double precision; granted integer := 0; first_start timestamptz := p_now;
BEGIN
    PERFORM require_own(p_worker);
    IF (p_wanted BETWEEN 0 AND 1000000 AND p_in_use BETWEEN 0 AND 1000000 AND p_starts BETWEEN 0 AND 1000000
            AND p_rate_per_s BETWEEN 0 AND 1000000 AND p_concurrency BETWEEN 1 AND 1000000 AND p_stop_after_in_doubt >= 0
            AND p_stop_after_rejected >= 0 AND p_rest_s BETWEEN 0 AND 86400 AND length(p_stop) <= 10000
            AND cardinality(o_kind) = cardinality(o_reason) AND cardinality(o_kind) = cardinality(o_times)) IS NOT TRUE
        OR EXISTS (SELECT FROM unnest(o_kind, o_reason, o_times) u(kind, reason, times)
            WHERE (u.kind IN ('answered', 'rejected', 'unknown') AND length(u.reason) <= 10000 AND u.times BETWEEN 1 AND 1000000) IS NOT TRUE) THEN
        RAISE EXCEPTION 'no worker has such figures' USING ERRCODE = 'invalid_parameter_value';
    END IF;
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

-- The same, by the clock of the server: what a worker calls.
CREATE FUNCTION ask_gate(
    p_worker bigint, p_wanted integer, p_in_use integer, p_starts integer, p_rate_per_s double precision, p_concurrency integer,
    p_stop_after_in_doubt integer, p_stop_after_rejected integer, p_rest_s double precision, p_stop text,
    o_kind text[], o_reason text[], o_times integer[]
) RETURNS TABLE (
    places integer, is_growing boolean, starts integer, first_s double precision, every_s double precision, rest_s double precision,
    stop_kind text, stop_count bigint, stop_text text
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT * FROM ask_gate_at(p_worker, p_wanted, p_in_use, p_starts, p_rate_per_s, p_concurrency, p_stop_after_in_doubt,
        p_stop_after_rejected, p_rest_s, p_stop, o_kind, o_reason, o_times, clock_timestamp());
END $$;

-- A person starts a run: what stopped the one before is lifted. Where no other worker sends, one row travels alone at first.
CREATE FUNCTION open_gate(p_worker bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM require_own(p_worker);
    PERFORM require_desk();
    PERFORM FROM gate FOR UPDATE;
    DELETE FROM gate_place WHERE NOT is_alive(worker);
    UPDATE gate SET places = 1, in_doubt = 0, rejected = 0, reason = '', stop_kind = NULL, stop_count = 0, stop_text = '',
            stopped_by = NULL, stopped_at = NULL
        WHERE stop_kind IS NOT NULL OR NOT EXISTS (SELECT FROM gate_place o WHERE o.worker <> p_worker AND o.places > 0);
END $$;

-- A worker sends nothing more: its places are free.
CREATE FUNCTION leave_gate(p_worker bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM require_own(p_worker);
    DELETE FROM gate_place WHERE worker = p_worker;
END $$;

-- A person sets limits over all workers. What is null stays as it is; `p_as_configured`: no limit is set but those that are named.
CREATE FUNCTION set_limits(p_by text, p_rate_per_s double precision, p_concurrency integer, p_as_configured boolean) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE g gate;
BEGIN
    PERFORM require_desk();
    SELECT * INTO STRICT g FROM gate FOR UPDATE;
    g.rate_per_s := coalesce(p_rate_per_s, CASE WHEN NOT p_as_configured THEN g.rate_per_s END);
    g.concurrency := coalesce(p_concurrency, CASE WHEN NOT p_as_configured THEN g.concurrency END);
    UPDATE gate SET rate_per_s = g.rate_per_s, concurrency = g.concurrency, places = least(places, coalesce(g.concurrency, places)),
        next_start = least(next_start, clock_timestamp() + interval '1 s');
    INSERT INTO limit_change (at, by, rate_per_s, concurrency) VALUES (clock_timestamp(), p_by, g.rate_per_s, g.concurrency);
END $$;

-- An end of a chain in a commit: where the caller has found it and where its facts lead, as the caller says; then what the tables say
-- of it: the chain, its newest time, and the rows of its chunk.
CREATE TYPE chain_end AS (
    number bigint, seq bigint, hash bytea, new_seq bigint, new_hash bytea, new_at text COLLATE "C",
    chain bigint, at text COLLATE "C", first bigint, last bigint
);

-- Refuse facts that do not follow from the ends of their chains, or chains that do not end where their last fact does.
CREATE FUNCTION check_chains(ends chain_end[], lines fact[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE follow bigint; promised bigint; all_go_on boolean;
BEGIN
    SELECT bool_and(e.new_seq > e.seq), sum(e.new_seq - e.seq) INTO all_go_on, promised FROM unnest(ends) e;
    SELECT count(*) INTO follow FROM (
        SELECT u.*, e.seq + row_number() OVER w AS place, coalesce(lag(u.hash) OVER w, e.hash) AS before, coalesce(lag(u.at) OVER w, e.at) AS not_before,
            e.new_seq, e.new_hash, e.new_at
        FROM unnest(lines) u JOIN unnest(ends) e ON e.number = u.segment
        WINDOW w AS (PARTITION BY u.segment ORDER BY u.seq)
    ) l
    WHERE l.seq = l.place AND l.at >= l.not_before AND l.at ~ '^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$'
        AND l.hash = sha256(l.before || convert_to({chained}, 'UTF8')
            || coalesce(l.said_sha256, ''::bytea))
        AND (l.seq < l.new_seq OR (l.seq, l.hash, l.at) = (l.new_seq, l.new_hash, l.new_at));
    IF (follow = cardinality(lines) AND follow = promised AND all_go_on) IS NOT TRUE THEN
        RAISE EXCEPTION 'a fact does not follow from the end of its chain' USING ERRCODE = 'PW010';
    END IF;
END $$;

-- Refuse facts that this process may not write: a chunk's chain speaks of its rows alone, what people decide is for the desk, and
-- who decides nothing sends rows of its run, in the present. PW003: not leased; PW010: forged.
CREATE FUNCTION check_writers(me worker, ends chain_end[], lines fact[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    answers constant text[] := '{not_sent,accepted,paid,rejected,unknown}';
    sent_by_workers constant text[] := ARRAY['intended', 'interrupted'] || answers;
    of_journal constant text[] := '{heard,carried_out,clock,order,withdrawn,taken_in}';
    newest text := to_char((clock_timestamp() + interval '1 min') AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"');
    is_decided boolean; is_foreign boolean; is_misplaced boolean; is_sending boolean; last_at text;
BEGIN
    SELECT bool_or(u.instruction IS NULL OR num_nonnulls(u.source, u.finding, u.means, u.details) > 0
                OR (u.kind = ANY (sent_by_workers)) IS NOT TRUE),
            bool_or(u.instruction IS NOT NULL AND CASE
                WHEN u.kind IN ('intended', 'interrupted') OR e.chain > 0 THEN (u.instruction BETWEEN e.first AND e.last) IS NOT TRUE
                ELSE e.chain < 0 AND u.kind <> ALL (answers) END),
            bool_or(CASE WHEN u.instruction IS NOT NULL THEN u.batch IS NOT NULL OR i.number IS NULL
                ELSE (u.batch IS NULL) IS DISTINCT FROM (u.kind = ANY (of_journal)) END),
            bool_or(u.kind = 'intended'), max(u.at)
        INTO is_decided, is_foreign, is_misplaced, is_sending, last_at
        FROM unnest(lines) u LEFT JOIN unnest(ends) e ON e.number = u.segment LEFT JOIN instruction i ON i.number = u.instruction;
    IF is_decided OR last_at > greatest(newest, (SELECT max(e.at) FROM unnest(ends) e)) THEN
        PERFORM require_desk();
    END IF;
    IF is_foreign THEN
        RAISE EXCEPTION 'a row is not of the chunk that is leased' USING ERRCODE = 'PW003';
    END IF;
    IF is_misplaced THEN
        RAISE EXCEPTION 'a fact is about nothing that is here' USING ERRCODE = 'PW010';
    END IF;
    IF is_sending AND NOT may_decide() THEN
        PERFORM FROM unnest(lines) u JOIN instruction i ON i.number = u.instruction LEFT JOIN run r ON r.number = me.run
            WHERE u.kind = 'intended' AND r.batch IS DISTINCT FROM i.batch
                AND NOT EXISTS (SELECT FROM known k WHERE k.batch = r.batch AND k.instruction = u.instruction);
        IF FOUND THEN
            RAISE EXCEPTION 'the row was not handed over' USING ERRCODE = 'insufficient_privilege';
        END IF;
    END IF;
END $$;

-- One group commit: the ends of chains move on, and facts are added, which moves their instructions. Ends, facts, what these say of
-- people, and replies are lists of objects by the names of columns. What locks the ends is fence, continuity and idempotency key in
-- one. Returns of each fact its number, and whether it moved its row. Errors of ours: PW001 fenced, PW002 an intent does not fit its
-- row, PW003 not leased, PW004 held by evidence (the details of both name the instructions), PW005 the run is over, PW006 a worker
-- stopped all of them, PW010 forged. Any of them undoes all of it.
CREATE FUNCTION commit_facts(p_worker bigint, p_ends json, p_facts json, p_said json, p_replies json)
RETURNS TABLE (segment bigint, seq bigint, number bigint, at text, has_moved boolean) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    me worker := require_own(p_worker); lines fact[]; ends chain_end[]; added fact[];
    is_sending boolean; is_answering boolean; is_stopped boolean; is_over boolean; refused bigint[];
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN  -- it must see what the one before it has left
        RAISE EXCEPTION 'facts are committed in transactions that are READ COMMITTED' USING ERRCODE = 'PW010';
    END IF;
    SELECT array_agg(u), bool_or(u.kind = 'intended'), bool_or(u.kind IN ('not_sent', 'accepted', 'paid', 'rejected', 'unknown'))
        INTO lines, is_sending, is_answering FROM json_populate_recordset(NULL::fact, p_facts) u;
    ends := ARRAY(
        SELECT ROW(u.number, u.seq, u.hash, u.new_seq, u.new_hash, u.new_at, g.chain, g.head_at, c.first, c.last)::chain_end
        FROM json_populate_recordset(NULL::chain_end, p_ends) u JOIN segment g ON g.number = u.number
            AND g.sealed_at IS NULL AND g.head_seq = u.seq AND g.head_hash = u.hash AND g.worker = me.number
            AND (g.is_clear OR is_sending IS NOT TRUE)
            LEFT JOIN chunk c ON c.number = g.chain
        ORDER BY g.number FOR UPDATE OF g);
    IF cardinality(ends) = 0 OR cardinality(ends) <> json_array_length(p_ends) THEN
        RAISE EXCEPTION 'a lease was taken over, or its chain is not where it was left' USING ERRCODE = 'PW001';
    END IF;
    PERFORM check_chains(ends, lines);
    PERFORM check_writers(me, ends, lines);
    -- Who accepts a loss or retires a host writes intents of which nothing leaves: the stop of a breaker stays in force.
    IF is_sending AND NOT (coalesce(current_setting('paygw.retires', true), '') = 'on' AND may_decide()) THEN
        SELECT EXISTS (SELECT FROM gate WHERE stop_kind IS NOT NULL),
                EXISTS (SELECT FROM run r WHERE r.number = me.run AND (r.stop_reason IS NOT NULL OR r.ended_at IS NOT NULL))
            INTO is_stopped, is_over;
        IF is_stopped THEN
            RAISE EXCEPTION 'a worker stopped the run' USING ERRCODE = 'PW006';
        END IF;
        IF is_over THEN
            RAISE EXCEPTION 'the run was stopped' USING ERRCODE = 'PW005';
        END IF;
    END IF;
    IF me.seen_at < clock_timestamp() - interval '2 s' THEN
        UPDATE worker SET seen_at = clock_timestamp() WHERE number = p_worker AND seen_at < clock_timestamp() - interval '2 s';
    END IF;
    -- The rows first, in order: whoever moves one waits for who moved it before, and facts are numbered after that.
    PERFORM FROM state t WHERE t.instruction = ANY (ARRAY(SELECT u.instruction FROM unnest(lines) u)) ORDER BY t.instruction FOR UPDATE;
    IF is_sending THEN  -- after the rows are locked: evidence that is being taken in has locked them before
        refused := ARRAY(SELECT DISTINCT e.instruction FROM unanswered e
            WHERE e.instruction IN (SELECT u.instruction FROM unnest(lines) u WHERE u.kind = 'intended'));
        IF cardinality(refused) > 0 THEN
            RAISE EXCEPTION 'evidence holds a row' USING ERRCODE = 'PW004', DETAIL = array_to_string(refused, ' ');
        END IF;
        refused := ARRAY(SELECT f.instruction FROM (
                SELECT u.*, row_number() OVER (PARTITION BY u.instruction ORDER BY u.segment, u.seq) AS nth FROM unnest(lines) u
            ) f LEFT JOIN state t ON t.instruction = f.instruction LEFT JOIN instruction i ON i.number = f.instruction
            WHERE f.nth = 1 AND f.kind = 'intended'
                AND ((t.state, t.attempt + 1, coalesce(t.order_id, i.client_orderid)) = ('ready', f.attempt, f.order_id)) IS NOT TRUE);
        IF cardinality(refused) > 0 THEN
            RAISE EXCEPTION 'a row is no longer where it was when it was read' USING ERRCODE = 'PW002', DETAIL = array_to_string(refused, ' ');
        END IF;
    END IF;
    -- In the order of their chains, whatever that of the list: verify holds their numbers to it.
    WITH written AS (INSERT INTO fact OVERRIDING USER VALUE SELECT u.* FROM unnest(lines) u ORDER BY u.segment, u.seq RETURNING *)
        SELECT array_agg(ROW(w.*)::fact) INTO added FROM written w;
    SELECT array_agg(f.instruction) INTO refused FROM unnest(added) f JOIN contradiction c ON c.fact = f.number WHERE f.kind = 'intended';
    IF refused IS NOT NULL THEN
        RAISE EXCEPTION 'a row is no longer where it was when it was read' USING ERRCODE = 'PW002', DETAIL = array_to_string(refused, ' ');
    END IF;
    UPDATE segment g SET head_seq = u.new_seq, head_hash = u.new_hash, head_at = u.new_at, is_clear = g.is_clear OR NOT EXISTS (
            SELECT FROM chunk c JOIN state t ON t.instruction BETWEEN c.first AND c.last WHERE c.number = g.chain AND t.state = 'in_flight')
        FROM unnest(ends) u WHERE g.number = u.number;
    IF is_answering THEN  -- an answer is for who sent the row: here, so that an intent of the same call is found
        PERFORM FROM unnest(added) u JOIN unnest(ends) e ON e.number = u.segment LEFT JOIN contradiction x ON x.fact = u.number
            WHERE u.kind IN ('not_sent', 'accepted', 'paid', 'rejected', 'unknown') AND e.chain <> 0
                AND me.number IS DISTINCT FROM (
                    SELECT own.worker FROM fact i JOIN segment own ON own.number = i.segment WHERE i.instruction = u.instruction
                        AND i.attempt = u.attempt AND i.kind = 'intended')
                AND (x.fact IS NULL OR NOT may_decide())
                -- Who accepts the loss of a host writes again what did not leave, as that host knows.
                AND NOT (u.kind = 'not_sent' AND coalesce(current_setting('paygw.retires', true), '') = 'on' AND may_decide());
        IF FOUND THEN
            RAISE EXCEPTION 'an answer is of a row that another process sent' USING ERRCODE = 'PW010';
        END IF;
    END IF;
    -- What is said beside a fact, and every raw reply, is what the fact names, and none is missing.
    IF json_array_length(p_said) > 0 OR json_array_length(p_replies) > 0 OR EXISTS (SELECT FROM unnest(lines) u WHERE u.said_sha256 IS NOT NULL) THEN
        INSERT INTO said SELECT f.number, u.salt, u.text, u.customer_url, u.reply_sha256
            FROM json_to_recordset(p_said) u(segment bigint, seq bigint, salt bytea, text text, customer_url text, reply_sha256 text)
                JOIN unnest(added) f ON (f.segment, f.seq) = (u.segment, u.seq);
        INSERT INTO reply SELECT f.number, f.instruction, u.head, u.body
            FROM json_to_recordset(p_replies) u(segment bigint, seq bigint, head bytea, body bytea)
                JOIN unnest(added) f ON (f.segment, f.seq) = (u.segment, u.seq);
        PERFORM FROM unnest(added) f LEFT JOIN said d ON d.fact = f.number LEFT JOIN reply r ON r.fact = f.number
            WHERE f.said_sha256 IS DISTINCT FROM sha256(d.salt || convert_to(coalesce(d.text, ''), 'UTF8') || '\x00'::bytea
                    || convert_to(coalesce(d.customer_url, ''), 'UTF8') || '\x00'::bytea || convert_to(coalesce(d.reply_sha256, ''), 'UTF8'))
                OR d.reply_sha256 IS DISTINCT FROM encode(sha256(r.head || E'\n\n'::bytea || r.body), 'hex');
        IF FOUND THEN
            RAISE EXCEPTION 'what a fact names is not what stands beside it' USING ERRCODE = 'PW010';
        END IF;
    END IF;
    RETURN QUERY SELECT f.segment, f.seq, f.number, f.at, c.fact IS NULL FROM unnest(added) f LEFT JOIN contradiction c ON c.fact = f.number;
END $$;

-- Who may call a function may do what it does, and nothing else: the functions have the rights of the owner.
DO $$
DECLARE name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['enrol', 'show_life', 'end_life', 'note_place', 'close_segment', 'seal_segment', 'hold_segment', 'take_lease',
        'commit_facts', 'take_starts', 'ask_gate_at', 'ask_gate', 'open_gate', 'leave_gate', 'set_limits', 'lock_rows'] LOOP
        EXECUTE format('ALTER FUNCTION %I SECURITY DEFINER SET search_path = paygw, pg_temp', name);
    END LOOP;
    -- Its plans are made once for a session, which halves what a call costs, and may be made while the tables are small: rows are
    -- looked up by their numbers all the same.
    ALTER FUNCTION commit_facts SET plan_cache_mode = force_generic_plan SET enable_seqscan = off;
END $$;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA paygw FROM PUBLIC;
