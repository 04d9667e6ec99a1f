CREATE TABLE reservations (
    id                TEXT    NOT NULL,  -- A UUIDv7 in small letters; outside, rsv_ and base32.
    state             TEXT    NOT NULL,  -- held, paid, cancelled or expired; left held once.
    lines             TEXT    NOT NULL,  -- What was taken where, so that it returns exactly there:
                                         -- an array of objects with sku, location and quantity.
    expires_at        INTEGER NOT NULL,  -- The deadline: alive before it, dead at it and after.
    attempt_at        INTEGER NOT NULL,  -- When the expirer next tries: the deadline, or later.
    hold_seconds      INTEGER NOT NULL,  -- The hold as asked for, creation to first deadline.
    created_at        INTEGER NOT NULL,  -- When it was made.
    updated_at        INTEGER NOT NULL,  -- When it last changed.
    closed_at         INTEGER,           -- When it left held.
    extensions        INTEGER NOT NULL,  -- How often its deadline was moved.
    customer_id       TEXT,              -- Who holds it, in the caller's words.
    reference         TEXT,              -- The caller's own name for it.
    payment_reference TEXT,              -- The payment that won.
    reacquired        INTEGER NOT NULL,  -- 1 if the payment came after the deadline and the stock
                                         -- was taken anew, else 0.
    metadata          TEXT    NOT NULL,  -- The caller's own pairs of text, an object.
    CONSTRAINT reservations_pkey PRIMARY KEY (id),
    CONSTRAINT reservations_id_is_uuid CHECK (
        id GLOB '????????-????-????-????-????????????'
        AND id NOT GLOB '*[^0-9a-f-]*'
    ),
    CONSTRAINT reservations_state_known CHECK (state IN ('held', 'paid', 'cancelled', 'expired')),
    CONSTRAINT reservations_held_until_closed CHECK ((state = 'held') = (closed_at IS NULL)),
    CONSTRAINT reservations_attempt_not_early CHECK (attempt_at >= expires_at),
    CONSTRAINT reservations_reacquired_is_boolean CHECK (reacquired IN (0, 1)),
    CONSTRAINT reservations_reacquired_when_paid CHECK (state = 'paid' OR NOT reacquired),
    CONSTRAINT reservations_payment_when_paid CHECK (state = 'paid' OR payment_reference IS NULL),
    CONSTRAINT reservations_counts_in_range CHECK (hold_seconds >= 0 AND extensions >= 0),
    CONSTRAINT reservations_lines_count CHECK (
        CASE
            WHEN NOT json_valid(lines) THEN FALSE
            WHEN json_type(lines) = 'array' THEN json_array_length(lines) BETWEEN 1 AND 1000
            ELSE FALSE
        END
    ),
    CONSTRAINT reservations_metadata_object CHECK (
        CASE
            WHEN json_valid(metadata) THEN json_type(metadata) = 'object'
            ELSE FALSE
        END
    ),
    CONSTRAINT reservations_customer_id_length CHECK (octet_length(customer_id) BETWEEN 1 AND 255),
    CONSTRAINT reservations_reference_length CHECK (octet_length(reference) BETWEEN 1 AND 255),
    CONSTRAINT reservations_payment_reference_length
        CHECK (octet_length(payment_reference) BETWEEN 1 AND 255)
) STRICT;

-- What is to be expired next. A row leaves it when it leaves held, so it stays as small as what
-- is held, however many reservations there ever were.
CREATE INDEX reservations_attempt_at ON reservations (attempt_at) WHERE state = 'held';
CREATE INDEX reservations_customer_id ON reservations (customer_id, id)
    WHERE customer_id IS NOT NULL;
CREATE INDEX reservations_reference ON reservations (reference, id)
    WHERE reference IS NOT NULL;
