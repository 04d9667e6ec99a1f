//! What a batch writes: for each table one statement, which is handed all its rows as one JSON
//! array and must change just as many.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde::Serialize;
use serde_json::{Value, json};
use sqlx::SqliteConnection;

use super::error::store_error;
use super::row;
use super::statement::{
    DELETE_OPEN_LINES, DELETE_STOCK, INSERT_EVENTS, INSERT_LEDGER, INSERT_OPEN_LINES,
    INSERT_RESERVATIONS, MOVE_OPEN_LINES, RECORD_ANSWERS, Statement, UPDATE_RESERVATIONS,
    UPDATE_STOCK,
};
use crate::domain::{Changes, OpenLine, Reservation, State, StockKey, Timestamp};
use crate::store::{RecordedAnswer, StoreError};

/// Writes changed reservations, each under its guard, with their open lines and the ledger.
pub(super) async fn transitions(
    connection: &mut SqliteConnection,
    changes: &Changes,
    now: Timestamp,
) -> Result<(), StoreError> {
    let mut changed = Vec::new();
    let mut moved = Vec::new();
    let mut closed = Vec::new();
    for change in changes.reservations.values() {
        let Some(guard) = change.guard else { continue };
        let reservation = &change.reservation;
        let mut row = reservation_row(reservation);
        row["state_was"] = json!(guard.state.as_str());
        row["expires_at_was"] = json!(guard.expires_at.as_millis());
        changed.push(row);
        if guard.state != State::Held {
            continue;
        }
        if reservation.state != State::Held {
            closed.extend(open_lines(reservation, guard.expires_at));
        } else if reservation.expires_at != guard.expires_at {
            moved.extend(open_lines(reservation, guard.expires_at).map(|mut row| {
                row["moved_to"] = json!(reservation.expires_at.as_millis());
                row
            }));
        }
    }
    let ledger = changes.ledger.iter().map(|entry| {
        json!({
            "job_id": entry.job.id(),
            "reservation_id": entry.job.reservation.as_uuid().to_string(),
            "outcome": entry.outcome,
            "via": entry.via.as_str(),
            "at": entry.at.as_millis(),
        })
    });
    UPDATE_RESERVATIONS.run(connection, changed, now).await?;
    MOVE_OPEN_LINES.run(connection, moved, now).await?;
    DELETE_OPEN_LINES.run(connection, closed, now).await?;
    INSERT_LEDGER.run(connection, ledger.collect(), now).await
}

/// Takes open lines away, and puts others in.
pub(super) async fn replace_lines(
    connection: &mut SqliteConnection,
    closed: &BTreeMap<OpenLine, i64>,
    opened: &BTreeMap<OpenLine, i64>,
) -> Result<(), StoreError> {
    let rows = |lines: &BTreeMap<OpenLine, i64>| {
        let rows = lines.iter().map(|(line, units)| line_row(line, *units));
        rows.collect()
    };
    let never = Timestamp::EPOCH; // Neither statement looks at the time.
    DELETE_OPEN_LINES
        .run(connection, rows(closed), never)
        .await?;
    INSERT_OPEN_LINES.run(connection, rows(opened), never).await
}

/// Makes the rows of stock that do not exist, and says which those were.
pub(super) async fn make_stock(
    connection: &mut SqliteConnection,
    keys: &BTreeSet<StockKey>,
    now: Timestamp,
) -> Result<Vec<StockKey>, StoreError> {
    let rows = sqlx::query(
        "
        INSERT INTO stock (location, sku, on_hand, held, updated_at)
        SELECT value ->> 'location', value ->> 'sku', 0, 0, ?2
        FROM json_each(?1)
        WHERE TRUE
        ON CONFLICT DO NOTHING
        RETURNING location, sku
        ",
    )
    .bind(json_array(keys.iter().map(key_row))?)
    .bind(now.as_millis())
    .fetch_all(connection)
    .await
    .map_err(store_error)?;
    let made = rows.iter().map(|row| row::stock_key(row, "stock"));
    Ok(made.collect::<Result<_, _>>()?)
}

/// Takes rows of stock away again, adds to others, writes fresh reservations and answers, and
/// last the events.
pub(super) async fn rest(
    connection: &mut SqliteConnection,
    unwanted_stock: impl Iterator<Item = &StockKey>,
    changes: &Changes,
    answers: &[RecordedAnswer],
    now: Timestamp,
) -> Result<(), StoreError> {
    let unwanted = unwanted_stock.map(key_row).collect();
    let stock = changes.stock.iter().map(|(key, delta)| {
        let mut row = key_row(key);
        row["on_hand"] = json!(delta.on_hand);
        row["held"] = json!(delta.held);
        row
    });
    let mut fresh = Vec::new();
    let mut opened = Vec::new();
    for change in changes.reservations.values() {
        let reservation = &change.reservation;
        if change.guard.is_none() {
            fresh.push(reservation_row(reservation));
            if reservation.state == State::Held {
                opened.extend(open_lines(reservation, reservation.expires_at));
            }
        }
    }
    let answers = answers.iter().map(answer_row);
    DELETE_STOCK.run(connection, unwanted, now).await?;
    UPDATE_STOCK.run(connection, stock.collect(), now).await?;
    INSERT_RESERVATIONS.run(connection, fresh, now).await?;
    INSERT_OPEN_LINES.run(connection, opened, now).await?;
    super::outbox::insert(connection, changes.outbox.values(), now).await?;
    RECORD_ANSWERS
        .run(connection, answers.collect(), now)
        .await?;
    append_events(connection, changes, now).await
}

async fn append_events(
    connection: &mut SqliteConnection,
    changes: &Changes,
    now: Timestamp,
) -> Result<(), StoreError> {
    if changes.events.is_empty() {
        return Ok(());
    }
    let count = changes.events.len();
    let head: Option<i64> = sqlx::query_scalar(
        "
        UPDATE event_head
        SET seq = seq + ?1
        RETURNING seq
        ",
    )
    .bind(super::read::at_most(count))
    .fetch_optional(&mut *connection)
    .await
    .map_err(store_error)?;
    let head = head.ok_or(StoreError::RowCount {
        statement: "update event_head",
        expected: 1,
        changed: 0,
    })?;
    let first = head - super::read::at_most(count) + 1;
    let rows = changes.events.iter().zip(first..).map(|(event, seq)| {
        json!({
            "seq": seq,
            "reservation_id": event.reservation_id.map(|id| id.as_uuid().to_string()),
            "kind": event.kind.as_str(),
            "at": event.at.as_millis(),
            "data": event.data,
        })
    });
    INSERT_EVENTS.run(connection, rows.collect(), now).await
}

fn key_row(key: &StockKey) -> Value {
    json!({ "location": key.location, "sku": key.sku })
}

fn reservation_row(reservation: &Reservation) -> Value {
    json!({
        "id": reservation.id.as_uuid().to_string(),
        "state": reservation.state.as_str(),
        "lines": reservation.lines,
        "expires_at": reservation.expires_at.as_millis(),
        "attempt_at": reservation.attempt_at.as_millis(),
        "hold_seconds": reservation.hold_seconds,
        "created_at": reservation.created_at.as_millis(),
        "updated_at": reservation.updated_at.as_millis(),
        "closed_at": reservation.closed_at.map(Timestamp::as_millis),
        "extensions": reservation.extensions,
        "customer_id": reservation.customer_id,
        "reference": reservation.reference,
        "payment_reference": reservation.payment_reference,
        "reacquired": reservation.reacquired,
        "metadata": reservation.metadata,
        "merchant": reservation.merchant,
    })
}

/// The open lines of a reservation as long as its deadline is `expires_at`.
fn open_lines(
    reservation: &Reservation,
    expires_at: Timestamp,
) -> impl Iterator<Item = Value> + use<> {
    let reservation_id = reservation.id;
    reservation.units().into_iter().map(move |(key, quantity)| {
        let line = OpenLine {
            key,
            expires_at,
            reservation: reservation_id,
        };
        line_row(&line, quantity)
    })
}

/// A row of `open_lines`.
pub(super) fn line_row(line: &OpenLine, quantity: i64) -> Value {
    let mut row = key_row(&line.key);
    row["expires_at"] = json!(line.expires_at.as_millis());
    row["reservation_id"] = json!(line.reservation.as_uuid().to_string());
    row["quantity"] = json!(quantity);
    row
}

fn answer_row(recorded: &RecordedAnswer) -> Value {
    let mut fingerprint = String::new();
    for byte in &recorded.fingerprint {
        // Writing to a string does not fail.
        let _ = write!(fingerprint, "{byte:02x}");
    }
    json!({
        "scope": recorded.key.scope,
        "key": recorded.key.key,
        "fingerprint": fingerprint,
        "status": recorded.answer.status,
        "location": recorded.answer.location,
        "body": recorded.answer.body,
        "created_at": recorded.created_at.as_millis(),
    })
}

/// Rows, or values, as `json_each` reads them.
pub(super) fn json_array<T: Serialize>(
    rows: impl IntoIterator<Item = T>,
) -> Result<String, StoreError> {
    let rows: Vec<T> = rows.into_iter().collect();
    serde_json::to_string(&rows)
        .map_err(|error| StoreError::Unavailable(format!("rows cannot be written: {error}")))
}

impl Statement {
    /// Runs the statement, which must change just as many rows as it is handed.
    pub(super) async fn run(
        &self,
        connection: &mut SqliteConnection,
        rows: Vec<Value>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let expected = rows.len();
        let changed = self.run_on_some(connection, rows, now).await?;
        if changed == expected {
            return Ok(());
        }
        Err(StoreError::RowCount {
            statement: self.name,
            expected,
            changed: changed as u64,
        })
    }

    /// Runs the statement, and says how many of the rows it changed.
    pub(super) async fn run_on_some(
        &self,
        connection: &mut SqliteConnection,
        rows: Vec<Value>,
        now: Timestamp,
    ) -> Result<usize, StoreError> {
        if rows.is_empty() {
            return Ok(0);
        }
        let done = sqlx::query(self.sql)
            .bind(json_array(rows)?)
            .bind(now.as_millis())
            .execute(connection)
            .await
            .map_err(store_error)?;
        Ok(usize::try_from(done.rows_affected()).unwrap_or(usize::MAX))
    }
}
