-- What became of expiry jobs, written with the change it names.
CREATE TABLE ledger (
    job_id         TEXT    NOT NULL,  -- expire:<reservation id>:<deadline in epoch ms>.
    reservation_id TEXT    NOT NULL,  -- Which reservation the job was about.
    outcome        TEXT    NOT NULL,  -- expired, paid, cancelled or stale.
    via            TEXT    NOT NULL,  -- By which path the job came.
    at             INTEGER NOT NULL,  -- When it was decided.
    CONSTRAINT ledger_pkey PRIMARY KEY (job_id),
    CONSTRAINT ledger_outcome_known CHECK (outcome IN ('expired', 'paid', 'cancelled', 'stale'))
) STRICT, WITHOUT ROWID;
