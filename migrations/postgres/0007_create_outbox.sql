-- Expiry jobs to be published to a queue, each written with the change that gave the hold its
-- deadline. The payload is not here: reservation and deadline make it.
CREATE TABLE outbox (
    reservation_id uuid             NOT NULL,
    due_at         timestamptz(3)   NOT NULL,
    copy           integer          NOT NULL,
    publish_after  timestamptz(3)   NOT NULL,
    attempt_at     timestamptz(3)   NOT NULL,
    attempts       integer          NOT NULL,
    last_error     text,
    published_at   timestamptz(3),
    queue          text COLLATE "C",
    receipt        text,
    parked_at      timestamptz(3),
    CONSTRAINT outbox_pkey PRIMARY KEY (reservation_id, due_at, copy),
    CONSTRAINT outbox_copy_positive CHECK (copy > 0),
    CONSTRAINT outbox_attempts_in_range CHECK (attempts >= 0),
    CONSTRAINT outbox_attempt_not_early CHECK (attempt_at >= publish_after),
    CONSTRAINT outbox_closed_once CHECK (published_at IS NULL OR parked_at IS NULL),
    CONSTRAINT outbox_queue_when_published CHECK ((published_at IS NULL) = (queue IS NULL)),
    CONSTRAINT outbox_receipt_when_published CHECK (published_at IS NOT NULL OR receipt IS NULL)
);

-- What the relay tries next. A row leaves it when it is published or parked, and what has to wait
-- lies behind what need not, so that neither makes a look more expensive.
CREATE INDEX outbox_attempt_at ON outbox (attempt_at)
    WHERE published_at IS NULL AND parked_at IS NULL;

COMMENT ON TABLE outbox IS 'Expiry jobs to be published to a queue.';
COMMENT ON COLUMN outbox.reservation_id IS 'Whose hold the job ends.';
COMMENT ON COLUMN outbox.due_at IS 'At which deadline; a job for another deadline is another job.';
COMMENT ON COLUMN outbox.copy IS '1 for the first publication of the job, 2 for the second, ...';
COMMENT ON COLUMN outbox.publish_after IS 'Before this the queue would refuse the delay.';
COMMENT ON COLUMN outbox.attempt_at IS
    'When it is next tried: at publish_after, after a failure later, and while a relay is busy with it when its lease ends.';
COMMENT ON COLUMN outbox.attempts IS 'How often a relay has taken it; only the last may close it.';
COMMENT ON COLUMN outbox.last_error IS 'Why the last attempt failed.';
COMMENT ON COLUMN outbox.published_at IS 'When the queue accepted it.';
COMMENT ON COLUMN outbox.queue IS 'Which queue accepted it.';
COMMENT ON COLUMN outbox.receipt IS 'The name that the queue gave it.';
COMMENT ON COLUMN outbox.parked_at IS 'When it was given up and put into quarantine.';
