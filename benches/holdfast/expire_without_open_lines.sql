-- The same as expire.sql, if there were no open lines to close.
WITH due AS (
    SELECT id
    FROM reservations
    WHERE state = 'held' AND attempt_at <= statement_timestamp()
    ORDER BY attempt_at
    LIMIT :batch
    FOR NO KEY UPDATE SKIP LOCKED
), expired AS (
    UPDATE reservations AS r
    SET state = 'expired', updated_at = now(), closed_at = now()
    FROM due
    WHERE r.id = due.id AND r.state = 'held' AND r.expires_at <= statement_timestamp()
    RETURNING r.id, r.lines, r.expires_at
), ledgered AS (
    INSERT INTO ledger (job_id, reservation_id, outcome, via, at)
    SELECT
        'expire:' || 'rsv_' || id || ':' || (extract(epoch FROM expires_at) * 1000)::bigint,
        id,
        'expired',
        'timer',
        now()
    FROM expired
), released AS (
    UPDATE stock AS s
    SET held = s.held - u.units, updated_at = now()
    FROM (
        SELECT l.location, l.sku, sum(l.quantity) AS units
        FROM expired
        CROSS JOIN LATERAL jsonb_to_recordset(expired.lines)
            AS l (location text, sku text, quantity bigint)
        GROUP BY l.location, l.sku
    ) AS u
    WHERE s.location = u.location AND s.sku = u.sku
), head AS (
    UPDATE event_head
    SET seq = seq + (SELECT count(*) FROM expired)
    WHERE one
    RETURNING seq - (SELECT count(*) FROM expired) AS before
)
INSERT INTO events (seq, reservation_id, kind, at, data)
SELECT
    head.before + row_number() OVER (),
    expired.id,
    'expired',
    now(),
    jsonb_build_object('lines', expired.lines, 'lateness_ms', 0, 'via', 'timer')
FROM expired
CROSS JOIN head;
