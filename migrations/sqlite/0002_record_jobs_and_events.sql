CREATE TABLE ledger (
    job_id         TEXT    NOT NULL PRIMARY KEY,  -- expire:<reservation>:<deadline in milliseconds>
    reservation_id TEXT    NOT NULL,  -- whose hold the job was to end
    outcome        TEXT    NOT NULL,  -- expired, paid, cancelled or stale
    via            TEXT    NOT NULL,  -- by which path the job came
    at             INTEGER NOT NULL,  -- when it was decided

    CONSTRAINT ledger_outcome_known CHECK (outcome IN ('expired', 'paid', 'cancelled', 'stale'))
) STRICT, WITHOUT ROWID;

CREATE TABLE events (
    seq            INTEGER NOT NULL PRIMARY KEY,  -- 1, 2, 3, ... in commit order
    reservation_id TEXT,              -- to which reservation it happened, if to one
    kind           TEXT    NOT NULL,  -- what happened
    at             INTEGER NOT NULL,  -- when
    data           TEXT    NOT NULL,  -- particulars, an object

    CONSTRAINT events_seq_in_range CHECK (seq >= 1),
    CONSTRAINT events_data_is_object CHECK (
        iif(json_valid(data), json_type(data) = 'object', FALSE)
    )
) STRICT;

-- A refused payment is recorded once, however often it is tried.
CREATE UNIQUE INDEX events_payment_refused_once
ON events (reservation_id, data ->> 'payment_reference')
WHERE kind = 'payment-refused';

-- The number of the last event, in one row: whoever adds events takes their numbers here.
CREATE TABLE event_head (
    one INTEGER NOT NULL PRIMARY KEY,  -- always 1
    seq INTEGER NOT NULL,              -- the number of the last event

    CONSTRAINT event_head_is_one_row CHECK (one = 1)
) STRICT;

INSERT INTO event_head (one, seq) VALUES (1, 0);
