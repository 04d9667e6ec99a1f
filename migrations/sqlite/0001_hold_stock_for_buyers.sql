-- Instants are whole milliseconds since 1970-01-01T00:00:00Z. Text compares byte by byte.

CREATE TABLE stock (
    location   TEXT    NOT NULL,  -- where it lies
    sku        TEXT    NOT NULL,  -- what it is
    on_hand    INTEGER NOT NULL,  -- units that are there, held or not
    held       INTEGER NOT NULL,  -- units that reservations in state held have of them
    updated_at INTEGER NOT NULL,  -- when the row last changed

    PRIMARY KEY (location, sku),
    CONSTRAINT stock_location_length    CHECK (octet_length(location) BETWEEN 1 AND 128),
    CONSTRAINT stock_sku_length         CHECK (octet_length(sku) BETWEEN 1 AND 128),
    CONSTRAINT stock_on_hand_in_range   CHECK (on_hand BETWEEN 0 AND 1000000000000),
    CONSTRAINT stock_held_within_on_hand CHECK (held BETWEEN 0 AND on_hand)
) STRICT, WITHOUT ROWID;

CREATE TABLE reservations (
    id                TEXT    NOT NULL PRIMARY KEY,  -- a UUIDv7, in small letters with hyphens
    state             TEXT    NOT NULL,  -- held, paid, cancelled or expired
    lines             TEXT    NOT NULL,  -- [{"sku", "location", "quantity"}, ...]: what was taken where
    expires_at        INTEGER NOT NULL,  -- the deadline
    attempt_at        INTEGER NOT NULL,  -- when the expirer next tries
    hold_seconds      INTEGER NOT NULL,  -- the hold as it was asked for
    created_at        INTEGER NOT NULL,  -- when it was made
    updated_at        INTEGER NOT NULL,  -- when it last changed
    closed_at         INTEGER,           -- when it left held
    extensions        INTEGER NOT NULL,  -- how often its deadline was moved
    customer_id       TEXT,              -- who holds it
    reference         TEXT,              -- the caller's own name for it
    payment_reference TEXT,              -- the payment that won
    reacquired        INTEGER NOT NULL,  -- 1 if it was paid after its deadline, with stock taken anew
    metadata          TEXT    NOT NULL,  -- {"name": "value", ...}: the caller's own pairs

    CONSTRAINT reservations_id_is_uuid CHECK (
        id GLOB '????????-????-????-????-????????????' AND id NOT GLOB '*[^0-9a-f-]*'
    ),
    CONSTRAINT reservations_state_known CHECK (state IN ('held', 'paid', 'cancelled', 'expired')),
    CONSTRAINT reservations_closed_unless_held CHECK ((state = 'held') = (closed_at IS NULL)),
    CONSTRAINT reservations_attempt_not_before_deadline CHECK (attempt_at >= expires_at),
    CONSTRAINT reservations_hold_seconds_in_range CHECK (hold_seconds >= 1),
    CONSTRAINT reservations_extensions_in_range CHECK (extensions >= 0),
    CONSTRAINT reservations_customer_id_length CHECK (octet_length(customer_id) BETWEEN 1 AND 255),
    CONSTRAINT reservations_reference_length CHECK (octet_length(reference) BETWEEN 1 AND 255),
    CONSTRAINT reservations_payment_reference_length CHECK (
        octet_length(payment_reference) BETWEEN 1 AND 255
    ),
    CONSTRAINT reservations_payment_only_paid CHECK (payment_reference IS NULL OR state = 'paid'),
    CONSTRAINT reservations_reacquired_only_paid CHECK (
        reacquired IN (0, 1) AND (reacquired = 0 OR state = 'paid')
    ),
    CONSTRAINT reservations_lines_are_array CHECK (
        iif(json_valid(lines), json_type(lines) = 'array', FALSE)
    ),
    CONSTRAINT reservations_metadata_is_object CHECK (
        iif(json_valid(metadata), json_type(metadata) = 'object', FALSE)
    )
) STRICT;

-- What the expirer follows.
CREATE INDEX reservations_attempts ON reservations (attempt_at) WHERE state = 'held';

-- What callers list by.
CREATE INDEX reservations_by_customer ON reservations (customer_id, id)
WHERE customer_id IS NOT NULL;

CREATE INDEX reservations_by_reference ON reservations (reference, id)
WHERE reference IS NOT NULL;

-- The units of each reservation on each row of stock, exactly as long as it is held: so that the
-- due units of one SKU are found at once, however much else is due.
CREATE TABLE open_lines (
    location       TEXT    NOT NULL,  -- where the units lie
    sku            TEXT    NOT NULL,  -- what they are
    expires_at     INTEGER NOT NULL,  -- the deadline of the reservation
    reservation_id TEXT    NOT NULL,  -- who has them
    quantity       INTEGER NOT NULL,  -- how many: the sum of the reservation's lines on this row

    PRIMARY KEY (location, sku, expires_at, reservation_id),
    CONSTRAINT open_lines_quantity_in_range CHECK (quantity >= 1)
) STRICT, WITHOUT ROWID;
