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
INSERT INTO "evidence" VALUES(1,'2026-11-21T08:05:00.000Z','statement',NULL,NULL,'contradicting','paid',4,1,20,'{}',X'627650F8FD18268940C21764DB0E7182A9AD81B76EFA642ED36FD36AF8FEE401');
INSERT INTO "evidence" VALUES(2,'2026-11-21T08:06:00.000Z','person',NULL,NULL,'resolved',NULL,4,1,21,'{"as":"rejected","by":"amina","evidence":"statement of 21 November"}',X'E753B46CDB09A02C2E55EFAA24281DE9A6CB5E5D6D90C5305B2852BC0FE208B6');
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
INSERT INTO "fact" VALUES(1,'2026-11-21T08:00:00.000Z','batch_opened',1,NULL,NULL,NULL,'{"approvals":[],"batch":"b1","by":"","defects":0,"first_instruction":1,"instructions":6,"instructions_sha256":"27122b66c345f655277b334448385f6144c6a3dea3dfb77d63938ed09e9d93f2","known":0,"known_sha256":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","operation":"payout","pages":2,"pages_sha256":"cf001fca8687bf98950d11112832cbb6a5664197a583b5e9efe3d671237af363","rows":6,"sheet_name":"payroll.csv","sheet_path":"","sheet_sha256":"sha-b1","totals":{"KES":[6,900300]}}',X'1E996F829CA2419916C287CDC8823D174EE75860386B2E71C44BC1255DC72DA8');
INSERT INTO "fact" VALUES(2,'2026-11-21T08:01:00.000Z','intended',1,1,1,NULL,'{"body_sha256":"0000000000000000000000000000000000000000000000000000000000000000","nonce":"nonce-1-1","order_id":"ORD-2","purpose":"WALLET-KE","timestamp_s":1795000000}',X'F37F8D6285BFF47D3ADAEB991319C3B6563A997CF45FCFA68191531B410C6ADB');
INSERT INTO "fact" VALUES(3,'2026-11-21T08:01:00.000Z','intended',1,2,1,NULL,'{"body_sha256":"0000000000000000000000000000000000000000000000000000000000000000","nonce":"nonce-2-1","order_id":"ORD-3","purpose":"WALLET-KE","timestamp_s":1795000000}',X'9E5B9C694AB645C62145A364DFB278B96E4FC07556FDDC758F71CD49EB3FDE17');
INSERT INTO "fact" VALUES(4,'2026-11-21T08:01:00.000Z','intended',1,3,1,NULL,'{"body_sha256":"0000000000000000000000000000000000000000000000000000000000000000","nonce":"nonce-3-1","order_id":"ORD-4","purpose":"WALLET-KE","timestamp_s":1795000000}',X'F863127EB6658272C74268CFCFAA4ED12656F893909794075E1C7612D3481B05');
INSERT INTO "fact" VALUES(5,'2026-11-21T08:01:00.000Z','intended',1,4,1,NULL,'{"body_sha256":"0000000000000000000000000000000000000000000000000000000000000000","nonce":"nonce-4-1","order_id":"ORD-5","purpose":"WALLET-KE","timestamp_s":1795000000}',X'92970F8B73E2F0ED5326FAC9B7D9574046ACF9589DD67E2E3A094D066757E997');
INSERT INTO "fact" VALUES(6,'2026-11-21T08:01:00.000Z','intended',1,5,1,NULL,'{"body_sha256":"0000000000000000000000000000000000000000000000000000000000000000","nonce":"nonce-5-1","order_id":"ORD-6","purpose":"WALLET-KE","timestamp_s":1795000000}',X'661D7CE825013E208F9F655C9109D189C92BEDE59629C57D22ED7214D3D1B65D');
INSERT INTO "fact" VALUES(7,'2026-11-21T08:01:00.000Z','intended',1,6,1,NULL,'{"body_sha256":"0000000000000000000000000000000000000000000000000000000000000000","nonce":"nonce-6-1","order_id":"ORD-7","purpose":"WALLET-KE","timestamp_s":1795000000}',X'5CA2C63FE03AE4A053F304B7613AB03800F6F00A2FB79633A6193CF22F238AFB');
INSERT INTO "fact" VALUES(8,'2026-11-21T08:02:00.000Z','unknown',1,1,1,NULL,'{}',X'3DA6D38A04D735E21E5B756417C6853B36A6A3598F4C0F89B275D58A36631B79');
INSERT INTO "fact" VALUES(9,'2026-11-21T08:02:00.000Z','unknown',1,2,1,NULL,'{}',X'FABC56B4683804ADF7B99435512F7D12963C72032EC7F26CDF978A7EF4E57E9A');
INSERT INTO "fact" VALUES(10,'2026-11-21T08:02:00.000Z','unknown',1,3,1,NULL,'{}',X'9C223AC2AB3F681D2E383C3AF9FEB7C433FB2B54EC5449CFA06BF2721113E587');
INSERT INTO "fact" VALUES(11,'2026-11-21T08:02:00.000Z','unknown',1,4,1,NULL,'{}',X'70E44222AB85C49A02428D84655C2472F94960100D5ABB54E73116E6D3FDC86F');
INSERT INTO "fact" VALUES(12,'2026-11-21T08:02:00.000Z','accepted',1,5,1,NULL,'{}',X'7E4D6E96F2FA2610CCFA36ED30AEAFBAA6545416153877683016E958C14A76E8');
INSERT INTO "fact" VALUES(13,'2026-11-21T08:02:00.000Z','paid',1,6,1,NULL,'{}',X'BE6B6B50057B5E7FD6258B0BF898297AD376FD059A99EF48096482C77CB722A1');
INSERT INTO "fact" VALUES(14,'2026-11-21T08:03:00.000Z','resolved_rejected',1,1,1,NULL,'{"by":"amina","evidence":"statement of 21 November"}',X'D2E1281CF7D8E2849D5C5B5B13BA3EFFBF51625ABD10D9CC7F37B45F03D5DC2A');
INSERT INTO "fact" VALUES(15,'2026-11-21T08:03:00.000Z','resolved_rejected',1,2,1,NULL,'{"by":"amina","evidence":"statement of 21 November"}',X'2F3DFECEAF545457F153D08FB71B39F3FE7692E43D69259867CC3675F30F1FA2');
INSERT INTO "fact" VALUES(16,'2026-11-21T08:03:00.000Z','resolved_not_received',1,3,1,NULL,'{"by":"amina","evidence":"statement of 21 November"}',X'13411F925FB496B1E9143E768006BC4BC8F489C08D763230B865934894775345');
INSERT INTO "fact" VALUES(17,'2026-11-21T08:03:00.000Z','resolved_not_received',1,4,1,NULL,'{"by":"amina","evidence":"statement of 21 November"}',X'BF2F152B507DC0A9AB0C06A2C2344C21E3AD051D1F132534289F9160914CA968');
INSERT INTO "fact" VALUES(18,'2026-11-21T08:03:00.000Z','resolved_rejected',1,5,1,NULL,'{"by":"amina","evidence":"statement of 21 November"}',X'8D24083FFDCDDA48E9396C5C87E11255A8E603C7A27204767E50E425D74A834B');
INSERT INTO "fact" VALUES(19,'2026-11-21T08:04:00.000Z','released',1,2,1,NULL,'{"by":"amina","order_id":"ORD-3-r2"}',X'FD855F6FC6954FE53B12B13EE83116A357C95E826445A1B961625C010180E83B');
INSERT INTO "fact" VALUES(20,'2026-11-21T08:05:00.000Z','paid',1,4,1,'ready','{"gateway_status":"approved","message":"By statement (evidence 1)."}',X'6AEE58BA28881B1337B013D5792560ACE56C59BB5CB9D252BDDCCCE594952C7A');
INSERT INTO "fact" VALUES(21,'2026-11-21T08:06:00.000Z','resolved_rejected',1,4,1,NULL,'{"by":"amina","evidence":"statement of 21 November"}',X'2D7977D85CF5DE2C78071B9B24DE9E316624355A69CBD529F64F926B90B59DD3');
CREATE TABLE identity (
    one        INTEGER PRIMARY KEY CHECK (one = 1),
    journal_id TEXT NOT NULL,
    endpoint   TEXT NOT NULL,
    created_at TEXT NOT NULL,
    home       TEXT NOT NULL
) STRICT;
INSERT INTO "identity" VALUES(1,'c16b50bfa25d952754d645245e310072','https://gateway.example/1234','2026-11-21T08:00:00.000Z','/var/lib/paygw/journal.sqlite3');
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
