-- How far back rows were deleted because of their age, so that `holdfast audit` compares only what
-- must still be there. A row is locked by whoever deletes from its table: instances take turns.
CREATE TABLE retention (
    table_name text COLLATE "C" NOT NULL,
    horizon    timestamptz(3),
    seq        bigint           NOT NULL,
    CONSTRAINT retention_pkey PRIMARY KEY (table_name),
    CONSTRAINT retention_table_known CHECK (
        table_name IN ('idempotency', 'outbox', 'ledger', 'reservations', 'events')
    ),
    CONSTRAINT retention_seq_of_events CHECK (seq = 0 OR seq > 0 AND table_name = 'events')
) WITH (fillfactor = 10); -- A row changes with every batch; its versions share a page.

INSERT INTO retention (table_name, seq)
VALUES ('idempotency', 0), ('outbox', 0), ('ledger', 0), ('reservations', 0), ('events', 0);

COMMENT ON TABLE retention IS 'What was deleted because of its age.';
COMMENT ON COLUMN retention.table_name IS 'From which table.';
COMMENT ON COLUMN retention.horizon IS
    'Rows of this instant and before may be gone, younger ones are there; null while nothing was deleted.';
COMMENT ON COLUMN retention.seq IS 'The number of the last event that was deleted, 0 if none was.';

-- Keys are random, so only time leads to the old ones. It costs each recorded answer one more entry
-- at the right end of a tree, and about 40 bytes for a day. A BRIN index would be smaller and of no
-- use: new answers fill the room of deleted ones, and soon each range would have some of every age.
CREATE INDEX idempotency_created_at ON idempotency (created_at);
