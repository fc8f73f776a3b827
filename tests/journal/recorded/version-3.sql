BEGIN TRANSACTION;
CREATE TABLE batch (
    number       INTEGER PRIMARY KEY,
    batch        TEXT NOT NULL,
    operation    TEXT NOT NULL,
    sheet_name   TEXT NOT NULL,
    sheet_sha256 TEXT NOT NULL,
    rows         INTEGER NOT NULL CHECK (rows >= 0),
    defects      INTEGER NOT NULL CHECK (defects >= 0),
    opened_at    TEXT NOT NULL,
    sheet_path   TEXT NOT NULL,
    UNIQUE (operation, batch)
) STRICT;
INSERT INTO "batch" VALUES(1,'b1','payout','payroll.csv','sha-b1',6,0,'2026-11-21T08:00:00.000Z','');
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
INSERT INTO "batch_total" VALUES(1,'KE','KES',6,0,900300,1,6);
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
INSERT INTO "evidence" VALUES(1,'2026-11-21T08:05:00.000Z','statement',NULL,NULL,'contradicting','paid',4,1,20,'{}',X'0E32ADEF570D1AB470A3BB2E6DA110E3D84804DA0B718A4DC58E6C932A7A46D7');
INSERT INTO "evidence" VALUES(2,'2026-11-21T08:06:00.000Z','person',NULL,NULL,'resolved',NULL,4,1,21,'{"as":"rejected","by":"amina","evidence":"statement of 21 November"}',X'D2BD08A2D866ED039AFA75A0E8A80202CAB9436F720B97C2BA0184401947EB38');
CREATE TABLE fact (
    seq         INTEGER PRIMARY KEY,
    at          TEXT NOT NULL CHECK (at NOT GLOB '*[^0-9TZ:.-]*'),
    kind        TEXT NOT NULL,
    batch       INTEGER NOT NULL REFERENCES batch (number),
    instruction INTEGER REFERENCES instruction (number),
    attempt     INTEGER,
    contradicts TEXT,
    details     TEXT NOT NULL,
    hash        BLOB NOT NULL CHECK (length(hash) = 32)
) STRICT;
INSERT INTO "fact" VALUES(1,'2026-11-21T08:00:00.000Z','batch_opened',1,NULL,NULL,NULL,'{"approvals":[],"batch":"b1","by":"","defects":0,"first_instruction":1,"instructions":6,"instructions_sha256":"27122b66c345f655277b334448385f6144c6a3dea3dfb77d63938ed09e9d93f2","known":0,"known_sha256":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","operation":"payout","pages":2,"pages_sha256":"cf001fca8687bf98950d11112832cbb6a5664197a583b5e9efe3d671237af363","rows":6,"sheet_name":"payroll.csv","sheet_path":"","sheet_sha256":"sha-b1","totals":{"KES":[6,900300]}}',X'185685D74BA689674D40908DADDCF9E781772EB51948B2BEF5720FF58679C6A3');
INSERT INTO "fact" VALUES(2,'2026-11-21T08:01:00.000Z','intended',1,1,1,NULL,'{"body_sha256":"0000000000000000000000000000000000000000000000000000000000000000","nonce":"nonce-1-1","order_id":"ORD-2","purpose":"WALLET-KE","timestamp_s":1795000000}',X'8FB20CCFAC5684EFDEE24B10CE98D0C05CDFCE6332A7A6012683698B8F13C2B5');
INSERT INTO "fact" VALUES(3,'2026-11-21T08:01:00.000Z','intended',1,2,1,NULL,'{"body_sha256":"0000000000000000000000000000000000000000000000000000000000000000","nonce":"nonce-2-1","order_id":"ORD-3","purpose":"WALLET-KE","timestamp_s":1795000000}',X'3BD5CD17F3A847FD93558C12A68B9CC984F392708917A19A5F35912483BBDF44');
INSERT INTO "fact" VALUES(4,'2026-11-21T08:01:00.000Z','intended',1,3,1,NULL,'{"body_sha256":"0000000000000000000000000000000000000000000000000000000000000000","nonce":"nonce-3-1","order_id":"ORD-4","purpose":"WALLET-KE","timestamp_s":1795000000}',X'5B2127B30086B9D811560FC8DF8FA11AACD8EDC5AF86957D29D34D1150818520');
INSERT INTO "fact" VALUES(5,'2026-11-21T08:01:00.000Z','intended',1,4,1,NULL,'{"body_sha256":"0000000000000000000000000000000000000000000000000000000000000000","nonce":"nonce-4-1","order_id":"ORD-5","purpose":"WALLET-KE","timestamp_s":1795000000}',X'C035FE904C7B070531876D62B61E81F05FFDA73A7987125B0F5F85ABF8804310');
INSERT INTO "fact" VALUES(6,'2026-11-21T08:01:00.000Z','intended',1,5,1,NULL,'{"body_sha256":"0000000000000000000000000000000000000000000000000000000000000000","nonce":"nonce-5-1","order_id":"ORD-6","purpose":"WALLET-KE","timestamp_s":1795000000}',X'C71F16221958679441B681BEFB39BBF589E100C31A1C1CB6DAA12182E853478A');
INSERT INTO "fact" VALUES(7,'2026-11-21T08:01:00.000Z','intended',1,6,1,NULL,'{"body_sha256":"0000000000000000000000000000000000000000000000000000000000000000","nonce":"nonce-6-1","order_id":"ORD-7","purpose":"WALLET-KE","timestamp_s":1795000000}',X'09D5F5AB421404997B6A15D1FBDE46BA772EA52616CDB608ACFC67A2E9E2077D');
INSERT INTO "fact" VALUES(8,'2026-11-21T08:02:00.000Z','unknown',1,1,1,NULL,'{}',X'27215A2A480496231ECDBF14BC9D42B77EAA7EC8B5528EE341C681585A8F082C');
INSERT INTO "fact" VALUES(9,'2026-11-21T08:02:00.000Z','unknown',1,2,1,NULL,'{}',X'D704733C562AD685C46813F21D7F6636D11977A17FCC343CF5BC638A40F8A699');
INSERT INTO "fact" VALUES(10,'2026-11-21T08:02:00.000Z','unknown',1,3,1,NULL,'{}',X'E77D1A76D58603916074B304D3B17E7C743D73EB546F51D958AD1E77E9266DE8');
INSERT INTO "fact" VALUES(11,'2026-11-21T08:02:00.000Z','unknown',1,4,1,NULL,'{}',X'7085305662E68E2AB31396945A0C2E82771090F2E38749C9983EEF1EDF199408');
INSERT INTO "fact" VALUES(12,'2026-11-21T08:02:00.000Z','accepted',1,5,1,NULL,'{}',X'7BDF85908010288D6651765EAD1759493828D4EAD56CFF20B9622BCF321034AE');
INSERT INTO "fact" VALUES(13,'2026-11-21T08:02:00.000Z','paid',1,6,1,NULL,'{}',X'3178407ACC27A6CEC31EDC40106C709464F110A1DDBCE2E323D91E7FBC3B36BA');
INSERT INTO "fact" VALUES(14,'2026-11-21T08:03:00.000Z','resolved_rejected',1,1,1,NULL,'{"by":"amina","evidence":"statement of 21 November"}',X'5A575B196BF4ED495D06FD8BAA6720D9E7111E495FFED02C3D9C75DD275887C7');
INSERT INTO "fact" VALUES(15,'2026-11-21T08:03:00.000Z','resolved_rejected',1,2,1,NULL,'{"by":"amina","evidence":"statement of 21 November"}',X'D3274CFC4E4C34FAF997BC55EF946F13154DF1D3F9D6E2483CB8518BB1F6FA78');
INSERT INTO "fact" VALUES(16,'2026-11-21T08:03:00.000Z','resolved_not_received',1,3,1,NULL,'{"by":"amina","evidence":"statement of 21 November"}',X'07C57907B4148DF9DE464127DEF8D904E38298C76862C517E66D4B5F0A5B379E');
INSERT INTO "fact" VALUES(17,'2026-11-21T08:03:00.000Z','resolved_not_received',1,4,1,NULL,'{"by":"amina","evidence":"statement of 21 November"}',X'A29A3309FC728871BBDE34604BF05811EF6E5FB991A47A65AEBCA7A1C41AE8F4');
INSERT INTO "fact" VALUES(18,'2026-11-21T08:03:00.000Z','resolved_rejected',1,5,1,NULL,'{"by":"amina","evidence":"statement of 21 November"}',X'8824F4C35FD4A9B783B77F7BC317E265ADF9E45161F9240C45E6F7CBB14ABF23');
INSERT INTO "fact" VALUES(19,'2026-11-21T08:04:00.000Z','released',1,2,1,NULL,'{"by":"amina","order_id":"ORD-3-r2"}',X'0747D6F785CFCF4B4620AA5A3D4F4B92702790CDB8122CA106582E6288EF6237');
INSERT INTO "fact" VALUES(20,'2026-11-21T08:05:00.000Z','paid',1,4,1,'ready','{"gateway_status":"approved","message":"By statement (evidence 1)."}',X'5B481CC436A13FCED5EC301ED6F6B0AF97565B1E10796584DE3EFDF3F88B3BA1');
INSERT INTO "fact" VALUES(21,'2026-11-21T08:06:00.000Z','resolved_rejected',1,4,1,NULL,'{"by":"amina","evidence":"statement of 21 November"}',X'C549426B20A99DC126879698AA932AD068D8332FF9A7E74A39AF13393E9BD40D');
CREATE TABLE identity (
    one        INTEGER PRIMARY KEY CHECK (one = 1),
    journal_id TEXT NOT NULL,
    endpoint   TEXT NOT NULL,
    created_at TEXT NOT NULL,
    home       TEXT NOT NULL
) STRICT;
INSERT INTO "identity" VALUES(1,'c16b50bfa25d952754d645245e310072','gateway.example/1234','2026-11-21T08:00:00.000Z','/var/lib/paygw/journal.sqlite3');
CREATE TABLE instruction (
    number         INTEGER PRIMARY KEY,
    batch          INTEGER NOT NULL REFERENCES batch (number),
    row            INTEGER NOT NULL,
    client_orderid TEXT NOT NULL,
    country        TEXT NOT NULL,
    currency       TEXT NOT NULL,
    minor          INTEGER NOT NULL CHECK (minor >= 0),
    replaces       INTEGER REFERENCES instruction (number),
    amount         TEXT NOT NULL,
    form           TEXT NOT NULL,
    fields         TEXT NOT NULL,
    payee          TEXT NOT NULL,
    content        TEXT NOT NULL,
    UNIQUE (batch, row)
) STRICT;
INSERT INTO "instruction" VALUES(1,1,2,'ORD-2','KE','KES',150050,NULL,'1500.50','account','{"account_name": "Wanjiku Kamau", "account_number": "254700000002", "phone": "+254700000002"}','254700000002','KE|KES|150050|account|254700000002');
INSERT INTO "instruction" VALUES(2,1,3,'ORD-3','KE','KES',150050,NULL,'1500.50','account','{"account_name": "Wanjiku Kamau", "account_number": "254700000003", "phone": "+254700000003"}','254700000003','KE|KES|150050|account|254700000003');
INSERT INTO "instruction" VALUES(3,1,4,'ORD-4','KE','KES',150050,NULL,'1500.50','account','{"account_name": "Wanjiku Kamau", "account_number": "254700000004", "phone": "+254700000004"}','254700000004','KE|KES|150050|account|254700000004');
INSERT INTO "instruction" VALUES(4,1,5,'ORD-5','KE','KES',150050,NULL,'1500.50','account','{"account_name": "Wanjiku Kamau", "account_number": "254700000005", "phone": "+254700000005"}','254700000005','KE|KES|150050|account|254700000005');
INSERT INTO "instruction" VALUES(5,1,6,'ORD-6','KE','KES',150050,NULL,'1500.50','account','{"account_name": "Wanjiku Kamau", "account_number": "254700000006", "phone": "+254700000006"}','254700000006','KE|KES|150050|account|254700000006');
INSERT INTO "instruction" VALUES(6,1,7,'ORD-7','KE','KES',150050,NULL,'1500.50','account','{"account_name": "Wanjiku Kamau", "account_number": "254700000007", "phone": "+254700000007"}','254700000007','KE|KES|150050|account|254700000007');
CREATE TABLE known (
    batch       INTEGER NOT NULL REFERENCES batch (number),
    row         INTEGER NOT NULL,
    instruction INTEGER NOT NULL REFERENCES instruction (number),
    PRIMARY KEY (batch, row),
    UNIQUE (batch, instruction)
) STRICT, WITHOUT ROWID;
CREATE TABLE migration (
    version    INTEGER PRIMARY KEY,
    applied_at TEXT NOT NULL
) STRICT;
INSERT INTO "migration" VALUES(1,'2026-11-21T08:00:00.000Z');
INSERT INTO "migration" VALUES(2,'2026-11-21T08:00:00.000Z');
INSERT INTO "migration" VALUES(3,'2026-11-21T08:00:00.000Z');
CREATE TABLE order_id (
    operation   TEXT NOT NULL,
    order_id    TEXT NOT NULL,
    instruction INTEGER NOT NULL REFERENCES instruction (number),
    PRIMARY KEY (operation, order_id)
) STRICT, WITHOUT ROWID;
INSERT INTO "order_id" VALUES('payout','ORD-2',1);
INSERT INTO "order_id" VALUES('payout','ORD-3',2);
INSERT INTO "order_id" VALUES('payout','ORD-3-r2',2);
INSERT INTO "order_id" VALUES('payout','ORD-4',3);
INSERT INTO "order_id" VALUES('payout','ORD-5',4);
INSERT INTO "order_id" VALUES('payout','ORD-6',5);
INSERT INTO "order_id" VALUES('payout','ORD-7',6);
CREATE TABLE page (
    batch   INTEGER NOT NULL REFERENCES batch (number),
    number  INTEGER NOT NULL,
    content BLOB NOT NULL,
    PRIMARY KEY (batch, number)
) STRICT;
INSERT INTO "page" VALUES(1,0,X'70616765206F6E65');
INSERT INTO "page" VALUES(1,1,X'706167652074776F');
CREATE TABLE standing (
    instruction           INTEGER PRIMARY KEY REFERENCES instruction (number),
    state                 TEXT NOT NULL,
    attempt               INTEGER NOT NULL,
    generation            INTEGER NOT NULL,
    possible_duplicate_of INTEGER,
    inherited_attempts    INTEGER NOT NULL,
    order_id              TEXT NOT NULL,
    sent_orderid          TEXT,
    purpose               TEXT,
    gateway_status        TEXT,
    gateway_reference     TEXT,
    http_status           INTEGER,
    error_code            TEXT,
    message               TEXT,
    intended_at           TEXT,
    first_sent_at         TEXT,
    updated_at            TEXT
) STRICT;
INSERT INTO "standing" VALUES(1,'rejected',1,1,NULL,0,'ORD-2','ORD-2','WALLET-KE',NULL,NULL,NULL,NULL,'Resolved as rejected by amina: statement of 21 November','2026-11-21T08:01:00.000Z','2026-11-21T08:01:00.000Z','2026-11-21T08:03:00.000Z');
INSERT INTO "standing" VALUES(2,'ready',1,2,NULL,0,'ORD-3-r2','ORD-3','WALLET-KE',NULL,NULL,NULL,NULL,'Released for another attempt by amina.','2026-11-21T08:01:00.000Z','2026-11-21T08:01:00.000Z','2026-11-21T08:04:00.000Z');
INSERT INTO "standing" VALUES(3,'ready',1,1,1,0,'ORD-4','ORD-4','WALLET-KE',NULL,NULL,NULL,NULL,'Resolved as not received by amina: statement of 21 November','2026-11-21T08:01:00.000Z','2026-11-21T08:01:00.000Z','2026-11-21T08:03:00.000Z');
INSERT INTO "standing" VALUES(4,'rejected',1,1,1,0,'ORD-5','ORD-5','WALLET-KE',NULL,NULL,NULL,NULL,'Resolved as rejected by amina: statement of 21 November','2026-11-21T08:01:00.000Z','2026-11-21T08:01:00.000Z','2026-11-21T08:06:00.000Z');
INSERT INTO "standing" VALUES(5,'rejected',1,1,NULL,0,'ORD-6','ORD-6','WALLET-KE',NULL,NULL,NULL,NULL,'Resolved as rejected by amina: statement of 21 November','2026-11-21T08:01:00.000Z','2026-11-21T08:01:00.000Z','2026-11-21T08:03:00.000Z');
INSERT INTO "standing" VALUES(6,'paid',1,1,NULL,0,'ORD-7','ORD-7','WALLET-KE',NULL,NULL,NULL,NULL,NULL,'2026-11-21T08:01:00.000Z','2026-11-21T08:01:00.000Z','2026-11-21T08:02:00.000Z');
CREATE UNIQUE INDEX instruction_replacing ON instruction (replaces) WHERE replaces IS NOT NULL;
CREATE INDEX instruction_by_payee ON instruction (payee, minor);
CREATE VIEW covered AS
    SELECT batch, row, number AS instruction FROM instruction
    UNION ALL
    SELECT batch, row, instruction FROM known;
CREATE VIEW progress AS
    SELECT i.*, coalesce(s.order_id, i.client_orderid) AS order_id, coalesce(s.state, 'ready') AS state,
        coalesce(s.attempt, 0) AS attempt, coalesce(s.generation, 1) AS generation, s.possible_duplicate_of,
        coalesce(s.inherited_attempts, 0) AS inherited_attempts, s.sent_orderid, s.purpose, s.gateway_status,
        s.gateway_reference, s.http_status, s.error_code, s.message, s.intended_at, s.first_sent_at, s.updated_at
    FROM instruction i LEFT JOIN standing s ON s.instruction = i.number;
CREATE INDEX fact_contradicting ON fact (seq) WHERE contradicts IS NOT NULL;
CREATE TRIGGER fact_is_never_changed BEFORE UPDATE ON fact
    BEGIN SELECT RAISE(ABORT, 'facts are never changed'); END;
CREATE TRIGGER fact_is_never_removed BEFORE DELETE ON fact
    BEGIN SELECT RAISE(ABORT, 'facts are never removed'); END;
CREATE TRIGGER instruction_is_never_changed BEFORE UPDATE ON instruction
    BEGIN SELECT RAISE(ABORT, 'instructions are never changed'); END;
CREATE TRIGGER instruction_is_never_removed BEFORE DELETE ON instruction
    BEGIN SELECT RAISE(ABORT, 'instructions are never removed'); END;
CREATE TRIGGER page_is_never_changed BEFORE UPDATE ON page
    BEGIN SELECT RAISE(ABORT, 'pages are never changed'); END;
CREATE TRIGGER page_is_never_removed BEFORE DELETE ON page
    BEGIN SELECT RAISE(ABORT, 'pages are never removed'); END;
CREATE TRIGGER known_is_never_changed BEFORE UPDATE ON known
    BEGIN SELECT RAISE(ABORT, 'known rows are never changed'); END;
CREATE TRIGGER known_is_never_removed BEFORE DELETE ON known
    BEGIN SELECT RAISE(ABORT, 'known rows are never removed'); END;
CREATE TRIGGER batch_is_never_changed BEFORE UPDATE ON batch
    BEGIN SELECT RAISE(ABORT, 'batches are never changed'); END;
CREATE TRIGGER batch_is_never_removed BEFORE DELETE ON batch
    BEGIN SELECT RAISE(ABORT, 'batches are never removed'); END;
CREATE TRIGGER order_id_is_never_removed BEFORE DELETE ON order_id
    BEGIN SELECT RAISE(ABORT, 'order ids are never removed'); END;
CREATE TRIGGER evidence_is_never_changed BEFORE UPDATE ON evidence
    BEGIN SELECT RAISE(ABORT, 'evidence is never changed'); END;
CREATE TRIGGER evidence_is_never_removed BEFORE DELETE ON evidence
    BEGIN SELECT RAISE(ABORT, 'evidence is never removed'); END;
CREATE INDEX standing_by_state ON standing (state);
CREATE INDEX evidence_by_finding ON evidence (finding, instruction);
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
COMMIT;
PRAGMA application_id = 1885436263;
PRAGMA user_version = 3;
