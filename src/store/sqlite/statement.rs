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
            closed_at, extensions, customer_id, reference, payment_reference, reacquired, metadata,
            merchant
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
               value ->> 'metadata',
               value ->> 'merchant'
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

pub(super) const INSERT_OUTBOX: Statement = Statement {
    name: "insert outbox",
    sql: "
        INSERT INTO outbox (reservation_id, due_at, copy, publish_after, attempt_at, attempts)
        SELECT value ->> 'reservation_id',
               value ->> 'due_at',
               1,
               value ->> 'publish_after',
               value ->> 'publish_after',
               0
        FROM json_each(?1)
    ",
};

/// Puts jobs in that may have been published before, as the next copy.
pub(super) const INSERT_NEXT: Statement = Statement {
    name: "insert outbox",
    sql: "
        INSERT INTO outbox (reservation_id, due_at, copy, publish_after, attempt_at, attempts)
        SELECT value ->> 'reservation_id',
               value ->> 'due_at',
               1 + coalesce(
                   (
                       SELECT max(copy)
                       FROM outbox
                       WHERE reservation_id = value ->> 'reservation_id'
                         AND due_at = value ->> 'due_at'
                   ),
                   0
               ),
               value ->> 'publish_after',
               value ->> 'publish_after',
               0
        FROM json_each(?1)
    ",
};

/// What is to be published now, `?2` at most, and whether its hold still waits for it.
pub(super) const CLAIM: &str = "
    SELECT reservation_id,
           due_at,
           copy,
           attempts,
           EXISTS (
               SELECT 1
               FROM reservations
               WHERE reservations.id = outbox.reservation_id
                 AND reservations.state = 'held'
                 AND reservations.expires_at = outbox.due_at
           ) AS wanted
    FROM outbox
    WHERE published_at IS NULL
      AND parked_at IS NULL
      AND attempt_at <= ?1
    ORDER BY attempt_at, reservation_id, due_at, copy
    LIMIT ?2
";

pub(super) const LEASE: Statement = Statement {
    name: "lease outbox",
    sql: "
        UPDATE outbox
        SET attempts = attempts + 1,
            attempt_at = max(publish_after, change.value ->> 'attempt_at')
        FROM json_each(?1) AS change
        WHERE outbox.reservation_id = change.value ->> 'reservation_id'
          AND outbox.due_at = change.value ->> 'due_at'
          AND outbox.copy = change.value ->> 'copy'
    ",
};

pub(super) const SKIP: Statement = Statement {
    name: "skip outbox",
    sql: "
        DELETE FROM outbox
        WHERE (reservation_id, due_at, copy) IN (
            SELECT value ->> 'reservation_id', value ->> 'due_at', value ->> 'copy'
            FROM json_each(?1)
        )
    ",
};

pub(super) const MARK_PUBLISHED: Statement = Statement {
    name: "publish outbox",
    sql: "
        UPDATE outbox
        SET published_at = ?2,
            queue = change.value ->> 'queue',
            receipt = change.value ->> 'receipt',
            last_error = NULL
        FROM json_each(?1) AS change
        WHERE outbox.reservation_id = change.value ->> 'reservation_id'
          AND outbox.due_at = change.value ->> 'due_at'
          AND outbox.copy = change.value ->> 'copy'
          AND outbox.attempts = change.value ->> 'attempt'
          AND outbox.published_at IS NULL
          AND outbox.parked_at IS NULL
    ",
};

pub(super) const RETRY_LATER: Statement = Statement {
    name: "retry outbox",
    sql: "
        UPDATE outbox
        SET attempt_at = max(publish_after, change.value ->> 'attempt_at'),
            last_error = change.value ->> 'error'
        FROM json_each(?1) AS change
        WHERE outbox.reservation_id = change.value ->> 'reservation_id'
          AND outbox.due_at = change.value ->> 'due_at'
          AND outbox.copy = change.value ->> 'copy'
          AND outbox.attempts = change.value ->> 'attempt'
          AND outbox.published_at IS NULL
          AND outbox.parked_at IS NULL
    ",
};

pub(super) const PARK: Statement = Statement {
    name: "park outbox",
    sql: "
        UPDATE outbox
        SET parked_at = ?2,
            last_error = change.value ->> 'reason'
        FROM json_each(?1) AS change
        WHERE outbox.reservation_id = change.value ->> 'reservation_id'
          AND outbox.due_at = change.value ->> 'due_at'
          AND outbox.copy = change.value ->> 'copy'
          AND outbox.attempts = change.value ->> 'attempt'
          AND outbox.published_at IS NULL
          AND outbox.parked_at IS NULL
    ",
};

/// Source, key, payload and reason of one message, and now.
pub(super) const RECORD: &str = "
    INSERT INTO quarantine (source, key, payload, reason, attempts, first_seen, last_seen)
    VALUES (?1, ?2, ?3, ?4, 1, ?5, ?5)
    ON CONFLICT (source, key) WHERE resolved_at IS NULL DO UPDATE
    SET payload = excluded.payload,
        reason = excluded.reason,
        attempts = attempts + 1,
        last_seen = max(last_seen, excluded.last_seen)
";

/// The next held reservations behind `?2`, `?3`, and whether they want a message to the queue `?1`.
pub(super) const HELD: &str = "
    SELECT id,
           expires_at,
           attempt_at,
           NOT EXISTS (
               SELECT 1
               FROM outbox
               WHERE outbox.reservation_id = reservations.id
                 AND outbox.due_at = reservations.expires_at
                 AND (outbox.published_at IS NULL OR outbox.queue = ?1)
           ) AS wanting
    FROM reservations
    WHERE state = 'held'
      AND attempt_at >= ?2
      AND (attempt_at, id) > (?2, ?3)
    ORDER BY attempt_at, id
    LIMIT ?4
";

/// All of them, for the test that looks at their plans.
#[cfg(test)]
pub(super) const ALL: [Statement; 19] = [
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
    INSERT_OUTBOX,
    INSERT_NEXT,
    LEASE,
    SKIP,
    MARK_PUBLISHED,
    RETRY_LATER,
    PARK,
    super::deferral::DEFER,
    super::deferral::WRITE_ADMISSION,
];

/// And what a relay looks up.
#[cfg(test)]
pub(super) const LOOKS: [(&str, &str); 2] = [("claim outbox", CLAIM), ("walk over holds", HELD)];
