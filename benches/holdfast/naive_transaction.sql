-- One shopper, one transaction, five round trips.
\set n random(0, :skus - 1)
BEGIN;
UPDATE stock SET held = held + 1 WHERE sku = 'sku-' || :n AND on_hand - held >= 1;
INSERT INTO reservations (sku, quantity, expires_at)
VALUES ('sku-' || :n, 1, now() + interval '1 hour')
RETURNING id, expires_at \gset
INSERT INTO outbox (key, payload, publish_at)
VALUES ('expire:' || :id::text, jsonb_build_object('reservation_id', :id::text), :expires_at::timestamptz);
COMMIT;
