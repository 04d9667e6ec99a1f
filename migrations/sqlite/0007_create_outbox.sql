-- Expiry jobs to be published to a queue, each written with the change that gave the hold its
-- deadline. The payload is not here: reservation and deadline make it.
CREATE TABLE outbox (
    reservation_id TEXT    NOT NULL,  -- Whose hold the job ends.
    due_at         INTEGER NOT NULL,  -- At which deadline; for another one it is another job.
    copy           INTEGER NOT NULL,  -- 1 for the first publication of the job, 2 for the second.
    publish_after  INTEGER NOT NULL,  -- Before this the queue would refuse the delay.
    attempt_at     INTEGER NOT NULL,  -- When it is next tried: at publish_after, after a failure
                                      -- later, and while a relay has it when its lease ends.
    attempts       INTEGER NOT NULL,  -- How often a relay has taken it; only the last may close it.
    last_error     TEXT,              -- Why the last attempt failed.
    published_at   INTEGER,           -- When the queue accepted it.
    queue          TEXT,              -- Which queue accepted it.
    receipt        TEXT,              -- The name that the queue gave it.
    parked_at      INTEGER,           -- When it was given up and put into quarantine.
    CONSTRAINT outbox_pkey PRIMARY KEY (reservation_id, due_at, copy),
    CONSTRAINT outbox_copy_positive CHECK (copy > 0),
    CONSTRAINT outbox_attempts_in_range CHECK (attempts >= 0),
    CONSTRAINT outbox_attempt_not_early CHECK (attempt_at >= publish_after),
    CONSTRAINT outbox_closed_once CHECK (published_at IS NULL OR parked_at IS NULL),
    CONSTRAINT outbox_queue_when_published CHECK ((published_at IS NULL) = (queue IS NULL)),
    CONSTRAINT outbox_receipt_when_published CHECK (published_at IS NOT NULL OR receipt IS NULL)
) STRICT, WITHOUT ROWID;

-- What the relay tries next. A row leaves it when it is published or parked, and what has to wait
-- lies behind what need not, so that neither makes a look more expensive.
CREATE INDEX outbox_attempt_at ON outbox (attempt_at)
    WHERE published_at IS NULL AND parked_at IS NULL;
