-- Keys are COLLATE "C" everywhere, so that the database sorts them byte by byte, as the program
-- does: sorted order is lock order.
CREATE TABLE stock (
    location   text COLLATE "C" NOT NULL,
    sku        text COLLATE "C" NOT NULL,
    on_hand    bigint           NOT NULL,
    held       bigint           NOT NULL,
    updated_at timestamptz(3)   NOT NULL,
    CONSTRAINT stock_pkey PRIMARY KEY (location, sku),
    CONSTRAINT stock_held_within_on_hand CHECK (held BETWEEN 0 AND on_hand),
    CONSTRAINT stock_on_hand_in_range CHECK (on_hand BETWEEN 0 AND 1000000000000),
    CONSTRAINT stock_location_length CHECK (octet_length(location) BETWEEN 1 AND 128),
    CONSTRAINT stock_sku_length CHECK (octet_length(sku) BETWEEN 1 AND 128)
) WITH (fillfactor = 70); -- Room for the next version of a row on its own page.

COMMENT ON TABLE stock IS 'What lies on the shelf, one row per place and SKU.';
COMMENT ON COLUMN stock.location IS 'Where it lies.';
COMMENT ON COLUMN stock.sku IS 'What it is.';
COMMENT ON COLUMN stock.on_hand IS 'Units that are there, held or not.';
COMMENT ON COLUMN stock.held IS 'Units of it that reservations in state held hold.';
COMMENT ON COLUMN stock.updated_at IS 'When the row last changed.';
