-- What one would write without Holdfast: a row of stock that every shopper locks.
CREATE TABLE stock (
    sku     text   PRIMARY KEY,
    on_hand bigint NOT NULL,
    held    bigint NOT NULL,
    CHECK (held BETWEEN 0 AND on_hand)
);

CREATE TABLE reservations (
    id         uuid        PRIMARY KEY DEFAULT gen_random_uuid(),
    sku        text        NOT NULL,
    quantity   bigint      NOT NULL,
    state      text        NOT NULL DEFAULT 'held',
    expires_at timestamptz NOT NULL
);

CREATE INDEX ON reservations (expires_at) WHERE state = 'held';

CREATE TABLE outbox (
    key        text        PRIMARY KEY,
    payload    jsonb       NOT NULL,
    publish_at timestamptz NOT NULL
);

INSERT INTO stock
SELECT 'sku-' || n, 1000000000, 0
FROM generate_series(0, 9999) AS n;

VACUUM ANALYZE;
