CREATE TABLE ledger (
    job_id         text COLLATE "C" NOT NULL,
    reservation_id uuid             NOT NULL,
    outcome        text COLLATE "C" NOT NULL,
    via            text COLLATE "C" NOT NULL,
    at             timestamptz(3)   NOT NULL,
    CONSTRAINT ledger_pkey PRIMARY KEY (job_id),
    CONSTRAINT ledger_outcome_known CHECK (outcome IN ('expired', 'paid', 'cancelled', 'stale'))
);

COMMENT ON TABLE ledger IS 'What became of expiry jobs, written with the change it names.';
COMMENT ON COLUMN ledger.job_id IS 'expire:<reservation id>:<deadline in epoch ms>.';
COMMENT ON COLUMN ledger.reservation_id IS 'Which reservation the job was about.';
COMMENT ON COLUMN ledger.outcome IS 'expired, paid, cancelled or stale.';
COMMENT ON COLUMN ledger.via IS 'By which path the job came.';
COMMENT ON COLUMN ledger.at IS 'When it was decided.';
