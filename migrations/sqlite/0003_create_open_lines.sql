-- The lines of held reservations once more, by stock. A row lives exactly as long as the hold, so
-- that the due units of one SKU are found at once whatever else is due. There are no foreign keys
-- here or elsewhere: they cost as much as the rows they guard, and `holdfast audit` compares the
-- tables.
CREATE TABLE open_lines (
    location       TEXT    NOT NULL,  -- Where it lies.
    sku            TEXT    NOT NULL,  -- What it is.
    expires_at     INTEGER NOT NULL,  -- The deadline of the reservation.
    reservation_id TEXT    NOT NULL,  -- Who holds it.
    quantity       INTEGER NOT NULL,  -- Units, summed over the lines of the reservation.
    CONSTRAINT open_lines_pkey PRIMARY KEY (location, sku, expires_at, reservation_id),
    CONSTRAINT open_lines_quantity_positive CHECK (quantity > 0)
) STRICT, WITHOUT ROWID;
