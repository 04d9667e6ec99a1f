-- Instants are whole milliseconds since 1970-01-01T00:00:00Z, and text is compared byte by byte
-- (SQLite's own collation, BINARY), as the program does: sorted order is lock order.
CREATE TABLE stock (
    location   TEXT    NOT NULL,  -- Where it lies.
    sku        TEXT    NOT NULL,  -- What it is.
    on_hand    INTEGER NOT NULL,  -- Units that are there, held or not.
    held       INTEGER NOT NULL,  -- Units of it that reservations in state held hold.
    updated_at INTEGER NOT NULL,  -- When the row last changed.
    CONSTRAINT stock_pkey PRIMARY KEY (location, sku),
    CONSTRAINT stock_held_within_on_hand CHECK (held BETWEEN 0 AND on_hand),
    CONSTRAINT stock_on_hand_in_range CHECK (on_hand BETWEEN 0 AND 1000000000000),
    CONSTRAINT stock_location_length CHECK (octet_length(location) BETWEEN 1 AND 128),
    CONSTRAINT stock_sku_length CHECK (octet_length(sku) BETWEEN 1 AND 128)
) STRICT, WITHOUT ROWID;
