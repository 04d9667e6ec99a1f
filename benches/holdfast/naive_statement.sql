-- One shopper, one statement, one round trip.
\set n random(0, :skus - 1)
WITH taken AS (
    UPDATE stock SET held = held + 1
    WHERE sku = 'sku-' || :n AND on_hand - held >= 1
    RETURNING sku
), reserved AS (
    INSERT INTO reservations (sku, quantity, expires_at)
    SELECT sku, 1, now() + interval '1 hour' FROM taken
    RETURNING id, expires_at
)
INSERT INTO outbox (key, payload, publish_at)
SELECT 'expire:' || id, jsonb_build_object('reservation_id', id), expires_at FROM reserved;
