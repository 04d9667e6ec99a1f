CREATE TABLE reservations (
    id                uuid             NOT NULL,
    state             text COLLATE "C" NOT NULL,
    lines             jsonb            NOT NULL,
    expires_at        timestamptz(3)   NOT NULL,
    attempt_at        timestamptz(3)   NOT NULL,
    hold_seconds      bigint           NOT NULL,
    created_at        timestamptz(3)   NOT NULL,
    updated_at        timestamptz(3)   NOT NULL,
    closed_at         timestamptz(3),
    extensions        bigint           NOT NULL,
    customer_id       text COLLATE "C",
    reference         text COLLATE "C",
    payment_reference text COLLATE "C",
    reacquired        boolean          NOT NULL,
    metadata          jsonb            NOT NULL,
    CONSTRAINT reservations_pkey PRIMARY KEY (id),
    CONSTRAINT reservations_state_known CHECK (state IN ('held', 'paid', 'cancelled', 'expired')),
    CONSTRAINT reservations_held_until_closed CHECK ((state = 'held') = (closed_at IS NULL)),
    CONSTRAINT reservations_attempt_not_early CHECK (attempt_at >= expires_at),
    CONSTRAINT reservations_reacquired_when_paid CHECK (state = 'paid' OR NOT reacquired),
    CONSTRAINT reservations_payment_when_paid CHECK (state = 'paid' OR payment_reference IS NULL),
    CONSTRAINT reservations_counts_in_range CHECK (hold_seconds >= 0 AND extensions >= 0),
    CONSTRAINT reservations_lines_count CHECK (
        CASE jsonb_typeof(lines)
            WHEN 'array' THEN jsonb_array_length(lines) BETWEEN 1 AND 1000
            ELSE false
        END
    ),
    CONSTRAINT reservations_metadata_object CHECK (jsonb_typeof(metadata) = 'object'),
    CONSTRAINT reservations_customer_id_length CHECK (octet_length(customer_id) BETWEEN 1 AND 255),
    CONSTRAINT reservations_reference_length CHECK (octet_length(reference) BETWEEN 1 AND 255),
    CONSTRAINT reservations_payment_reference_length
        CHECK (octet_length(payment_reference) BETWEEN 1 AND 255)
);

-- What is to be expired next. A row leaves it when it leaves held, so it stays as small as what
-- is held, however many reservations there ever were.
CREATE INDEX reservations_attempt_at ON reservations (attempt_at) WHERE state = 'held';
CREATE INDEX reservations_customer_id ON reservations (customer_id, id)
    WHERE customer_id IS NOT NULL;
CREATE INDEX reservations_reference ON reservations (reference, id)
    WHERE reference IS NOT NULL;

COMMENT ON TABLE reservations IS 'Buyers'' claims on stock.';
COMMENT ON COLUMN reservations.id IS 'A UUIDv7; outside it is written as rsv_ and base32.';
COMMENT ON COLUMN reservations.state IS 'held, paid, cancelled or expired; left held once.';
COMMENT ON COLUMN reservations.lines IS
    'What was taken where, so that it returns exactly there: an array of objects with sku, location and quantity.';
COMMENT ON COLUMN reservations.expires_at IS 'The deadline: alive before it, dead at it and after.';
COMMENT ON COLUMN reservations.attempt_at IS
    'When the expirer next tries: the deadline, or later if it was deferred.';
COMMENT ON COLUMN reservations.hold_seconds IS 'The hold as asked for, creation to first deadline.';
COMMENT ON COLUMN reservations.created_at IS 'When it was made.';
COMMENT ON COLUMN reservations.updated_at IS 'When it last changed.';
COMMENT ON COLUMN reservations.closed_at IS 'When it left held.';
COMMENT ON COLUMN reservations.extensions IS 'How often its deadline was moved.';
COMMENT ON COLUMN reservations.customer_id IS 'Who holds it, in the caller''s words.';
COMMENT ON COLUMN reservations.reference IS 'The caller''s own name for it.';
COMMENT ON COLUMN reservations.payment_reference IS 'The payment that won.';
COMMENT ON COLUMN reservations.reacquired IS
    'Whether the payment came after the deadline and the stock was taken anew.';
COMMENT ON COLUMN reservations.metadata IS 'The caller''s own pairs of text.';
