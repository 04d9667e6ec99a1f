//! The statements of retention.

/// Whoever has the row of a table deletes from it. There is no row if somebody else has.
pub(in crate::store::postgres) const TAKE_TURN: &str = "
    SELECT coalesce($1, statement_timestamp()) AS now, t.seq
    FROM retention AS t
    WHERE t.table_name = $2
    FOR NO KEY UPDATE SKIP LOCKED";

pub(in crate::store::postgres) const MOVE_HORIZON: &str = "
    UPDATE retention AS t
    SET horizon = greatest(t.horizon, $2), seq = greatest(t.seq, $3)
    WHERE t.table_name = $1";

pub(in crate::store::postgres) const HORIZONS: &str = "
    SELECT t.table_name, t.horizon, t.seq
    FROM retention AS t
    WHERE t.table_name = ANY ('{ledger,reservations,events}')";

pub(in crate::store::postgres) const DELETE_ANSWERS: &str = "
    WITH old AS MATERIALIZED (
        SELECT i.ctid AS place
        FROM idempotency AS i
        WHERE i.created_at <= $1
        ORDER BY i.created_at
        LIMIT $2
        FOR UPDATE SKIP LOCKED
    )
    DELETE FROM idempotency AS i
    USING old
    WHERE i.ctid = old.place";

/// A hold that has ended never lives again, so what is read here stays true.
pub(in crate::store::postgres) const MESSAGES: &str = "
    SELECT
        o.reservation_id,
        o.due_at,
        o.copy,
        o.waits,
        o.parked_at IS NOT NULL AS parked,
        coalesce(r.state, 'gone') <> 'held'
            AND CASE WHEN o.waits THEN coalesce(r.closed_at, o.due_at) ELSE o.due_at END <= $5
            AS old
    FROM (
        SELECT
            n.reservation_id,
            n.due_at,
            n.copy,
            n.parked_at,
            coalesce(n.published_at, n.parked_at) IS NULL AS waits
        FROM outbox AS n
        WHERE (n.reservation_id, n.due_at, n.copy) > ($1, $2, $3)
            AND n.reservation_id < $4
        ORDER BY n.reservation_id, n.due_at, n.copy
        LIMIT $6
    ) AS o
    LEFT JOIN LATERAL (
        SELECT state, closed_at
        FROM reservations
        WHERE id = o.reservation_id
        OFFSET 0
    ) AS r ON true
    ORDER BY o.reservation_id, o.due_at, o.copy";

/// One that a relay has in its hands, or has published in the meantime, is left.
pub(in crate::store::postgres) const DELETE_MESSAGES: &str = "
    WITH old AS MATERIALIZED (
        SELECT found.place
        FROM unnest($1::uuid[], $2::timestamptz[], $3::integer[], $4::boolean[])
            AS u (reservation_id, due_at, copy, waits)
        CROSS JOIN LATERAL (
            SELECT ctid AS place
            FROM outbox
            WHERE reservation_id = u.reservation_id
                AND due_at = u.due_at
                AND copy = u.copy
                AND (coalesce(published_at, parked_at) IS NULL) = u.waits
            FOR UPDATE SKIP LOCKED
        ) AS found
    )
    DELETE FROM outbox AS o
    USING old
    WHERE o.ctid = old.place";

/// Rows of the ledger are written once, so there is nobody to keep away from them.
pub(in crate::store::postgres) const LEDGER: &str = "
    SELECT l.job_id, l.at <= $3 AS old
    FROM ledger AS l
    WHERE l.job_id > $1 AND l.job_id < $2
    ORDER BY l.job_id
    LIMIT $4";

pub(in crate::store::postgres) const DELETE_LEDGER: &str = "
    DELETE FROM ledger AS l
    USING unnest($1::text[]) AS u (job_id)
        CROSS JOIN LATERAL (
            SELECT ctid
            FROM ledger
            WHERE job_id = u.job_id
            OFFSET 0
        ) AS found
    WHERE l.ctid = found.ctid";

pub(in crate::store::postgres) const RESERVATIONS: &str = "
    SELECT r.id, r.closed_at IS NOT NULL AND r.updated_at <= $3 AS old
    FROM reservations AS r
    WHERE r.id > $1 AND r.id < $2
    ORDER BY r.id
    LIMIT $4";

/// That a row is closed is asked by its time, which no index answers; see
/// [`super::super::transitions::RELEASE`].
pub(in crate::store::postgres) const LOCK_OLD_RESERVATIONS: &str = "
    SELECT r.id
    FROM reservations AS r
    WHERE r.id = ANY ($1)
        AND r.closed_at IS NOT NULL
        AND r.updated_at <= $2
    ORDER BY r.id
    FOR UPDATE SKIP LOCKED";

pub(in crate::store::postgres) const WITH_JOBS: &str = "
    SELECT u.id
    FROM unnest($1::uuid[], $2::text[], $3::text[]) AS u (id, first, behind)
    CROSS JOIN LATERAL (
        SELECT 1
        FROM ledger
        WHERE job_id >= u.first AND job_id < u.behind
        LIMIT 1
    ) AS found";

/// Open cases are few; an index of them is read once for a batch, whatever the source.
pub(in crate::store::postgres) const IN_QUARANTINE: &str = "
    SELECT q.key
    FROM quarantine AS q
    WHERE q.resolved_at IS NULL AND q.key >= $1 AND q.key < $2";

pub(in crate::store::postgres) const DELETE_RESERVATIONS: &str = "
    DELETE FROM reservations AS r
    USING unnest($1::uuid[]) AS u (id)
        CROSS JOIN LATERAL (
            SELECT ctid
            FROM reservations
            WHERE id = u.id
            OFFSET 0
        ) AS found
    WHERE r.ctid = found.ctid";

/// A refused payment is needed for as long as its reservation is there.
pub(in crate::store::postgres) const EVENTS: &str = "
    SELECT e.seq, e.at <= $2 AND r.id IS NULL AS old
    FROM (
        SELECT n.seq, n.at, n.kind, n.reservation_id
        FROM events AS n
        WHERE n.seq > $1
        ORDER BY n.seq
        LIMIT $3
    ) AS e
    LEFT JOIN LATERAL (
        SELECT id
        FROM reservations
        WHERE id = e.reservation_id AND e.kind = 'payment-refused'
        OFFSET 0
    ) AS r ON true
    ORDER BY e.seq";

pub(in crate::store::postgres) const DELETE_EVENTS: &str = "
    DELETE FROM events AS e
    WHERE e.seq > $1 AND e.seq <= $2";
