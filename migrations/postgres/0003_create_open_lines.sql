-- The lines of held reservations once more, by stock. A row lives exactly as long as the hold, so
-- that the due units of one SKU are found at once whatever else is due, and closing a hold costs
-- a delete and no index entry. There are no foreign keys here or elsewhere: they cost as much as
-- the rows they guard, and `holdfast audit` compares the tables.
CREATE TABLE open_lines (
    location       text COLLATE "C" NOT NULL,
    sku            text COLLATE "C" NOT NULL,
    expires_at     timestamptz(3)   NOT NULL,
    reservation_id uuid             NOT NULL,
    quantity       bigint           NOT NULL,
    CONSTRAINT open_lines_pkey PRIMARY KEY (location, sku, expires_at, reservation_id),
    CONSTRAINT open_lines_quantity_positive CHECK (quantity > 0)
);

COMMENT ON TABLE open_lines IS 'What held reservations hold of each row of stock, by deadline.';
COMMENT ON COLUMN open_lines.location IS 'Where it lies.';
COMMENT ON COLUMN open_lines.sku IS 'What it is.';
COMMENT ON COLUMN open_lines.expires_at IS 'The deadline of the reservation.';
COMMENT ON COLUMN open_lines.reservation_id IS 'Who holds it.';
COMMENT ON COLUMN open_lines.quantity IS 'Units, summed over the lines of the reservation.';
