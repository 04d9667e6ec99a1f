-- How far back rows were deleted because of their age, so that `holdfast audit` compares only what
-- must still be there.
CREATE TABLE retention (
    table_name TEXT    NOT NULL,  -- From which table.
    horizon    INTEGER,           -- Rows of this instant and before may be gone, younger ones are
                                  -- there; null while nothing was deleted.
    seq        INTEGER NOT NULL,  -- The number of the last event that was deleted, 0 if none was.
    CONSTRAINT retention_pkey PRIMARY KEY (table_name),
    CONSTRAINT retention_table_known CHECK (
        table_name IN ('idempotency', 'outbox', 'ledger', 'reservations', 'events')
    ),
    CONSTRAINT retention_seq_of_events CHECK (seq = 0 OR seq > 0 AND table_name = 'events')
) STRICT, WITHOUT ROWID;

INSERT INTO retention (table_name, seq)
VALUES ('idempotency', 0), ('outbox', 0), ('ledger', 0), ('reservations', 0), ('events', 0);

-- Keys are random, so only time leads to the old ones. It costs each recorded answer one more entry
-- at the right end of a tree.
CREATE INDEX idempotency_created_at ON idempotency (created_at);
