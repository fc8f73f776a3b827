-- Version 4 of the journal: which batch a plan opened is found without reading all facts, and no plan opens two. The plan's
-- digest is in the fact that opens the batch, under the chain; facts of earlier versions have none.

CREATE UNIQUE INDEX fact_opening_by_plan ON fact (json_extract(details, '$.plan_sha256'))
    WHERE kind = 'batch_opened' AND json_extract(details, '$.plan_sha256') IS NOT NULL;
