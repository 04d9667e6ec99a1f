-- What happened, append-only.
CREATE TABLE events (
    seq            INTEGER NOT NULL,  -- 1, 2, 3, ... without gaps, in commit order.
    reservation_id TEXT,              -- To which reservation; null for stock operations.
    kind           TEXT    NOT NULL,  -- What kind of thing happened.
    at             INTEGER NOT NULL,  -- When it was decided.
    data           TEXT    NOT NULL,  -- Particulars, an object; its members depend on the kind.
    CONSTRAINT events_pkey PRIMARY KEY (seq),
    CONSTRAINT events_seq_positive CHECK (seq > 0),
    CONSTRAINT events_data_is_json CHECK (json_valid(data))
) STRICT;

-- A payment is refused once for each reservation, however often it is tried.
CREATE UNIQUE INDEX events_payment_refused_once
    ON events (reservation_id, (data ->> 'payment_reference'))
    WHERE kind = 'payment-refused';

-- One row, the number of the last event, 0 before the first. Whoever writes takes numbers from it
-- in the transaction of the events, so that they have no gaps and follow the order of commits.
CREATE TABLE event_head (
    only INTEGER NOT NULL,  -- 1; there is one row.
    seq  INTEGER NOT NULL,  -- The number of the last event.
    CONSTRAINT event_head_pkey PRIMARY KEY (only),
    CONSTRAINT event_head_one_row CHECK (only = 1)
) STRICT;

INSERT INTO event_head (only, seq) VALUES (1, 0);
