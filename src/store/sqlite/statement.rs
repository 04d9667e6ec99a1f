//! The statements that a batch writes with: one for each table, whatever the number of rows.

/// A statement that changes one row for each that it is handed in `?1`. In `?2` is now.
pub(super) struct Statement {
    /// What it is called when it fails.
    pub(super) name: &'static str,
    pub(super) sql: &'static str,
}

/// The one statement by which a reservation leaves `held` (P2), and never early (P3). One that was
/// released and paid for again in the same batch was due as well.
pub(super) const UPDATE_RESERVATIONS: Statement = Statement {
    name: "update reservations",
    sql: "
        WITH change AS (
            SELECT value ->> 'id' AS id,
                   value ->> 'state_was' AS state_was,
                   value ->> 'expires_at_was' AS expires_at_was,
                   value ->> 'state' AS state,
                   value ->> 'expires_at' AS expires_at,
                   value ->> 'attempt_at' AS attempt_at,
                   value ->> 'updated_at' AS updated_at,
                   value ->> 'closed_at' AS closed_at,
                   value ->> 'extensions' AS extensions,
                   value ->> 'payment_reference' AS payment_reference,
                   value ->> 'reacquired' AS reacquired
            FROM json_each(?1)
        )
        UPDATE reservations
        SET state = change.state,
            expires_at = change.expires_at,
            attempt_at = change.attempt_at,
            updated_at = change.updated_at,
            closed_at = change.closed_at,
            extensions = change.extensions,
            payment_reference = change.payment_reference,
            reacquired = change.reacquired
        FROM change
        WHERE reservations.id = change.id
          AND reservations.state = change.state_was
          AND reservations.expires_at = change.expires_at_was
          AND CASE
                  WHEN reservations.state <> 'held' THEN TRUE
                  WHEN change.state = 'expired' OR change.reacquired
                      THEN reservations.expires_at <= ?2
                  ELSE reservations.expires_at > ?2
              END
    ",
};

pub(super) const INSERT_RESERVATIONS: Statement = Statement {
    name: "insert reservations",
    sql: "
        INSERT INTO reservations (
            id, state, lines, expires_at, attempt_at, hold_seconds, created_at, updated_at,
            closed_at, extensions, customer_id, reference, payment_reference, reacquired, metadata
        )
        SELECT value ->> 'id',
               value ->> 'state',
               value ->> 'lines',
               value ->> 'expires_at',
               value ->> 'attempt_at',
               value ->> 'hold_seconds',
               value ->> 'created_at',
               value ->> 'updated_at',
               value ->> 'closed_at',
               value ->> 'extensions',
               value ->> 'customer_id',
               value ->> 'reference',
               value ->> 'payment_reference',
               value ->> 'reacquired',
               value ->> 'metadata'
        FROM json_each(?1)
    ",
};

pub(super) const INSERT_OPEN_LINES: Statement = Statement {
    name: "insert open_lines",
    sql: "
        INSERT INTO open_lines (location, sku, expires_at, reservation_id, quantity)
        SELECT value ->> 'location',
               value ->> 'sku',
               value ->> 'expires_at',
               value ->> 'reservation_id',
               value ->> 'quantity'
        FROM json_each(?1)
    ",
};

pub(super) const MOVE_OPEN_LINES: Statement = Statement {
    name: "move open_lines",
    sql: "
        UPDATE open_lines
        SET expires_at = moved.value ->> 'moved_to'
        FROM json_each(?1) AS moved
        WHERE open_lines.location = moved.value ->> 'location'
          AND open_lines.sku = moved.value ->> 'sku'
          AND open_lines.expires_at = moved.value ->> 'expires_at'
          AND open_lines.reservation_id = moved.value ->> 'reservation_id'
    ",
};

pub(super) const DELETE_OPEN_LINES: Statement = Statement {
    name: "delete open_lines",
    sql: "
        DELETE FROM open_lines
        WHERE (location, sku, expires_at, reservation_id) IN (
            SELECT value ->> 'location',
                   value ->> 'sku',
                   value ->> 'expires_at',
                   value ->> 'reservation_id'
            FROM json_each(?1)
        )
    ",
};

pub(super) const INSERT_LEDGER: Statement = Statement {
    name: "insert ledger",
    sql: "
        INSERT INTO ledger (job_id, reservation_id, outcome, via, at)
        SELECT value ->> 'job_id',
               value ->> 'reservation_id',
               value ->> 'outcome',
               value ->> 'via',
               value ->> 'at'
        FROM json_each(?1)
    ",
};

pub(super) const DELETE_STOCK: Statement = Statement {
    name: "delete stock",
    sql: "
        DELETE FROM stock
        WHERE (location, sku) IN (
            SELECT value ->> 'location', value ->> 'sku'
            FROM json_each(?1)
        )
          AND on_hand = 0
          AND held = 0
    ",
};

pub(super) const UPDATE_STOCK: Statement = Statement {
    name: "update stock",
    sql: "
        UPDATE stock
        SET on_hand = stock.on_hand + (delta.value ->> 'on_hand'),
            held = stock.held + (delta.value ->> 'held'),
            updated_at = ?2
        FROM json_each(?1) AS delta
        WHERE stock.location = delta.value ->> 'location'
          AND stock.sku = delta.value ->> 'sku'
    ",
};

/// A key that was used before gets the new answer: whoever locked it has decided that the old one
/// no longer counts.
pub(super) const RECORD_ANSWERS: Statement = Statement {
    name: "record answers",
    sql: "
        INSERT INTO idempotency (scope, key, fingerprint, status, location, body, created_at)
        SELECT value ->> 'scope',
               value ->> 'key',
               unhex(value ->> 'fingerprint'),
               value ->> 'status',
               value ->> 'location',
               value ->> 'body',
               value ->> 'created_at'
        FROM json_each(?1)
        WHERE TRUE
        ON CONFLICT (scope, key) DO UPDATE
        SET fingerprint = excluded.fingerprint,
            status = excluded.status,
            location = excluded.location,
            body = excluded.body,
            created_at = excluded.created_at
    ",
};

pub(super) const INSERT_EVENTS: Statement = Statement {
    name: "insert events",
    sql: "
        INSERT INTO events (seq, reservation_id, kind, at, data)
        SELECT value ->> 'seq',
               value ->> 'reservation_id',
               value ->> 'kind',
               value ->> 'at',
               value ->> 'data'
        FROM json_each(?1)
    ",
};

/// All of them, for the test that looks at their plans.
#[cfg(test)]
pub(super) const ALL: [Statement; 10] = [
    UPDATE_RESERVATIONS,
    INSERT_RESERVATIONS,
    INSERT_OPEN_LINES,
    MOVE_OPEN_LINES,
    DELETE_OPEN_LINES,
    INSERT_LEDGER,
    DELETE_STOCK,
    UPDATE_STOCK,
    RECORD_ANSWERS,
    INSERT_EVENTS,
];
