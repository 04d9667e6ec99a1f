CREATE TABLE events (
    seq            bigint           NOT NULL,
    reservation_id uuid,
    kind           text COLLATE "C" NOT NULL,
    at             timestamptz(3)   NOT NULL,
    data           jsonb            NOT NULL,
    CONSTRAINT events_pkey PRIMARY KEY (seq),
    CONSTRAINT events_seq_positive CHECK (seq > 0)
);

-- A payment is refused once for each reservation, however often it is tried.
CREATE UNIQUE INDEX events_payment_refused_once
    ON events (reservation_id, (data ->> 'payment_reference'))
    WHERE kind = 'payment-refused';

COMMENT ON TABLE events IS 'What happened, append-only.';
COMMENT ON COLUMN events.seq IS '1, 2, 3, ... without gaps, in commit order.';
COMMENT ON COLUMN events.reservation_id IS 'To which reservation; null for stock operations.';
COMMENT ON COLUMN events.kind IS 'What kind of thing happened.';
COMMENT ON COLUMN events.at IS 'When it was decided.';
COMMENT ON COLUMN events.data IS 'Particulars; which there are depends on the kind.';

-- One row, the last that a transaction locks: whoever has it numbers the next events, so numbers
-- have no gaps and their order is the order of commits. A sequence promises neither.
CREATE TABLE event_head (
    one  boolean NOT NULL DEFAULT true,
    seq  bigint  NOT NULL,
    CONSTRAINT event_head_pkey PRIMARY KEY (one),
    CONSTRAINT event_head_one_row CHECK (one)
) WITH (fillfactor = 10); -- The row changes with every transaction; its versions share a page.

INSERT INTO event_head (seq) VALUES (0);

COMMENT ON TABLE event_head IS 'The number of the last event.';
COMMENT ON COLUMN event_head.one IS 'True; there is one row.';
COMMENT ON COLUMN event_head.seq IS 'The number of the last event, 0 before the first.';
