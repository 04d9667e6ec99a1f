//! Rows as the domain knows them. What cannot be understood is corrupt, and never guessed at.

use std::fmt::Display;
use std::str::FromStr;

use serde::de::DeserializeOwned;
use sqlx::sqlite::SqliteRow;
use sqlx::{Decode, Row, Sqlite, Type};
use uuid::Uuid;

use crate::domain::{
    ApiKey, ApiKeyId, Event, EventKind, Job, Line, MAX_LINES, MAX_QUANTITY, Message, OpenLine,
    Reservation, ReservationId, State, Stock, StockKey, Text, Timestamp, Waits,
};
use crate::store::{
    ActionKind, Answer, CorruptRow, Key, QuarantineCase, RecordedAction, RecordedAnswer,
    RecordedEvent, Resolution, Sighting,
};

/// The columns that [`reservation`] reads.
macro_rules! select_reservations {
    ($($rest:literal),+) => {
        concat!(
            "
            SELECT reservations.id,
                   reservations.state,
                   reservations.lines,
                   reservations.expires_at,
                   reservations.attempt_at,
                   reservations.hold_seconds,
                   reservations.created_at,
                   reservations.updated_at,
                   reservations.closed_at,
                   reservations.extensions,
                   reservations.customer_id,
                   reservations.reference,
                   reservations.payment_reference,
                   reservations.reacquired,
                   reservations.metadata,
                   reservations.merchant,
                   reservations.attempts,
                   reservations.limiter_wait_ms,
                   reservations.retry_wait_ms
            ",
            $($rest),+
        )
    };
}
pub(super) use select_reservations;

/// A row that is being read.
struct Columns<'r> {
    row: &'r SqliteRow,
    table: &'static str,
    key: String,
}

impl<'r> Columns<'r> {
    fn corrupt(&self, column: &'static str, detail: impl Display) -> CorruptRow {
        CorruptRow {
            table: self.table,
            column,
            row: self.key.clone(),
            detail: detail.to_string(),
        }
    }

    /// A value as SQLite has it.
    fn value<T>(&self, column: &'static str) -> Result<T, CorruptRow>
    where
        T: Decode<'r, Sqlite> + Type<Sqlite>,
    {
        self.row
            .try_get(column)
            .map_err(|error| self.corrupt(column, error))
    }

    fn text<const MAX: usize>(&self, column: &'static str) -> Result<Text<MAX>, CorruptRow> {
        Text::new(self.value::<String>(column)?).map_err(|fault| self.corrupt(column, fault))
    }

    fn optional_text<const MAX: usize>(
        &self,
        column: &'static str,
    ) -> Result<Option<Text<MAX>>, CorruptRow> {
        self.value::<Option<String>>(column)?
            .map(Text::new)
            .transpose()
            .map_err(|fault| self.corrupt(column, fault))
    }

    fn word<T>(
        &self,
        column: &'static str,
        known: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, CorruptRow> {
        let word: &str = self.value(column)?;
        known(word).ok_or_else(|| self.corrupt(column, format!("{word:?} is no known word")))
    }

    fn instant(&self, column: &'static str) -> Result<Timestamp, CorruptRow> {
        let instant = self.optional_instant(column)?;
        instant.ok_or_else(|| self.corrupt(column, "is missing"))
    }

    fn optional_instant(&self, column: &'static str) -> Result<Option<Timestamp>, CorruptRow> {
        let Some(millis) = self.value::<Option<i64>>(column)? else {
            return Ok(None);
        };
        Timestamp::from_millis(millis)
            .map(Some)
            .ok_or_else(|| self.corrupt(column, "lies outside the years 1970 to 9999"))
    }

    fn json<T: DeserializeOwned>(&self, column: &'static str) -> Result<T, CorruptRow> {
        serde_json::from_str(self.value(column)?).map_err(|error| self.corrupt(column, error))
    }

    fn id(&self, column: &'static str) -> Result<ReservationId, CorruptRow> {
        let id = self.optional_id(column)?;
        id.ok_or_else(|| self.corrupt(column, "is missing"))
    }

    fn optional_id(&self, column: &'static str) -> Result<Option<ReservationId>, CorruptRow> {
        self.value::<Option<&str>>(column)?
            .map(Uuid::from_str)
            .transpose()
            .map(|uuid| uuid.map(ReservationId::from_uuid))
            .map_err(|error| self.corrupt(column, error))
    }
}

/// The id of a row of reservations, or of a table that names one in `column`.
pub(super) fn reservation_id(
    row: &SqliteRow,
    table: &'static str,
    column: &'static str,
) -> Result<ReservationId, CorruptRow> {
    let key = row.try_get(column).unwrap_or_default();
    Columns { row, table, key }.id(column)
}

/// A row of [`select_reservations`].
pub(super) fn reservation(row: &SqliteRow) -> Result<Reservation, CorruptRow> {
    let id = reservation_id(row, "reservations", "id")?;
    let columns = Columns {
        row,
        table: "reservations",
        key: id.to_string(),
    };
    Ok(Reservation {
        id,
        state: columns.word("state", State::from_word)?,
        lines: lines(&columns)?,
        expires_at: columns.instant("expires_at")?,
        attempt_at: columns.instant("attempt_at")?,
        hold_seconds: columns.value("hold_seconds")?,
        created_at: columns.instant("created_at")?,
        updated_at: columns.instant("updated_at")?,
        closed_at: columns.optional_instant("closed_at")?,
        extensions: columns.value("extensions")?,
        customer_id: columns.optional_text("customer_id")?,
        reference: columns.optional_text("reference")?,
        payment_reference: columns.optional_text("payment_reference")?,
        reacquired: columns.value("reacquired")?,
        metadata: columns.json("metadata")?,
        merchant: columns.text("merchant")?,
        waits: Waits {
            attempts: columns.value("attempts")?,
            limiter_ms: columns.value("limiter_wait_ms")?,
            retry_ms: columns.value("retry_wait_ms")?,
        },
    })
}

fn lines(columns: &Columns<'_>) -> Result<Vec<Line>, CorruptRow> {
    let lines: Vec<Line> = columns.json("lines")?;
    if !(1..=MAX_LINES).contains(&lines.len()) {
        let detail = format!("has {} lines, not 1 to {MAX_LINES}", lines.len());
        return Err(columns.corrupt("lines", detail));
    }
    let in_range = |line: &Line| (1..=MAX_QUANTITY).contains(&line.quantity);
    match lines.iter().find(|line| !in_range(line)) {
        Some(line) => Err(columns.corrupt("lines", format!("has {} units", line.quantity))),
        None => Ok(lines),
    }
}

/// The key of a row of stock, or of a table that names one.
pub(super) fn stock_key(row: &SqliteRow, table: &'static str) -> Result<StockKey, CorruptRow> {
    let text = |column| row.try_get::<&str, _>(column).unwrap_or_default();
    let columns = Columns {
        row,
        table,
        key: format!("{} at {}", text("sku"), text("location")),
    };
    Ok(StockKey {
        location: columns.text("location")?,
        sku: columns.text("sku")?,
    })
}

/// The name of a row of `open_lines`.
pub(super) fn open_line(row: &SqliteRow) -> Result<OpenLine, CorruptRow> {
    let table = "open_lines";
    let key = stock_key(row, table)?;
    let name = key.to_string();
    let columns = Columns {
        row,
        table,
        key: name,
    };
    Ok(OpenLine {
        key,
        expires_at: columns.instant("expires_at")?,
        reservation: columns.id("reservation_id")?,
    })
}

/// A row with `location, sku, on_hand, held, due, updated_at`.
pub(super) fn stock(row: &SqliteRow) -> Result<Stock, CorruptRow> {
    let key = stock_key(row, "stock")?;
    let columns = Columns {
        row,
        table: "stock",
        key: key.to_string(),
    };
    Ok(Stock {
        on_hand: columns.value("on_hand")?,
        held: columns.value("held")?,
        due: columns.value("due")?,
        updated_at: columns.instant("updated_at")?,
        key,
    })
}

/// A row of events.
pub(super) fn event(row: &SqliteRow) -> Result<RecordedEvent, CorruptRow> {
    let seq: i64 = row.try_get("seq").unwrap_or_default();
    let columns = Columns {
        row,
        table: "events",
        key: seq.to_string(),
    };
    Ok(RecordedEvent {
        seq,
        event: Event {
            kind: columns.word("kind", EventKind::from_word)?,
            reservation_id: columns.optional_id("reservation_id")?,
            at: columns.instant("at")?,
            data: columns.json("data")?,
        },
    })
}

/// A row of idempotency.
pub(super) fn recorded_answer(row: &SqliteRow) -> Result<RecordedAnswer, CorruptRow> {
    let text = |column| row.try_get::<&str, _>(column).unwrap_or_default();
    let columns = Columns {
        row,
        table: "idempotency",
        key: format!("{} of {:?}", text("key"), text("scope")),
    };
    Ok(RecordedAnswer {
        key: Key {
            scope: columns.value("scope")?,
            key: columns.value("key")?,
        },
        fingerprint: columns.value("fingerprint")?,
        answer: Answer {
            status: columns.value("status")?,
            location: columns.value("location")?,
            body: columns.value("body")?,
        },
        created_at: columns.instant("created_at")?,
    })
}

/// A message of the outbox, and how often it was claimed.
pub(super) fn message(row: &SqliteRow) -> Result<(Message, u32), CorruptRow> {
    let id = reservation_id(row, "outbox", "reservation_id")?;
    let columns = Columns {
        row,
        table: "outbox",
        key: id.to_string(),
    };
    let job = Job {
        reservation: id,
        deadline: columns.instant("due_at")?,
    };
    let copy = columns.value("copy")?;
    Ok((Message { job, copy }, columns.value("attempts")?))
}

/// The job that ends a hold, and when the expirer next tries.
pub(super) fn held(row: &SqliteRow) -> Result<(Job, Timestamp), CorruptRow> {
    let id = reservation_id(row, "reservations", "id")?;
    let columns = Columns {
        row,
        table: "reservations",
        key: id.to_string(),
    };
    let job = Job {
        reservation: id,
        deadline: columns.instant("expires_at")?,
    };
    Ok((job, columns.instant("attempt_at")?))
}

/// An instant of no row in particular.
pub(super) fn optional_instant(
    row: &SqliteRow,
    table: &'static str,
    column: &'static str,
) -> Result<Option<Timestamp>, CorruptRow> {
    let key = "the earliest".to_owned();
    Columns { row, table, key }.optional_instant(column)
}

/// A row of `api_keys`.
pub(super) fn api_key(row: &SqliteRow) -> Result<ApiKey, CorruptRow> {
    let columns = Columns {
        row,
        table: "api_keys",
        key: row.try_get("id").unwrap_or_default(),
    };
    let hash: &[u8] = columns.value("secret_hash")?;
    let hash = hash.try_into();
    Ok(ApiKey {
        id: ApiKeyId::from_uuid(columns.word("id", |id| id.parse().ok())?),
        name: columns.text("name")?,
        merchant: columns.text("merchant")?,
        scopes: columns.word("scopes", |words| words.parse().ok())?,
        secret_hash: hash.map_err(|fault| columns.corrupt("secret_hash", fault))?,
        created_at: columns.instant("created_at")?,
        revoked_at: columns.optional_instant("revoked_at")?,
    })
}

/// A row of quarantine.
pub(super) fn quarantine_case(row: &SqliteRow) -> Result<QuarantineCase, CorruptRow> {
    let id: i64 = row.try_get("id").unwrap_or_default();
    let columns = Columns {
        row,
        table: "quarantine",
        key: id.to_string(),
    };
    Ok(QuarantineCase {
        id,
        sighting: Sighting {
            source: columns.value("source")?,
            key: columns.value("key")?,
            payload: columns.value("payload")?,
            reason: columns.value("reason")?,
        },
        attempts: columns.value("attempts")?,
        first_seen: columns.instant("first_seen")?,
        last_seen: columns.instant("last_seen")?,
        resolution: match columns.optional_instant("resolved_at")? {
            Some(at) => Some(Resolution {
                at,
                text: columns.value("resolution")?,
            }),
            None => None,
        },
    })
}

/// A row of what operators did.
pub(super) fn recorded_action(row: &SqliteRow) -> Result<RecordedAction, CorruptRow> {
    let id: i64 = row.try_get("id").unwrap_or_default();
    let columns = Columns {
        row,
        table: "quarantine_actions",
        key: id.to_string(),
    };
    Ok(RecordedAction {
        kind: columns.word("action", ActionKind::from_word)?,
        by: columns.value("actor")?,
        at: columns.instant("at")?,
        outcome: columns.value("outcome")?,
    })
}

/// A payment that was refused for a reservation.
pub(super) fn refused_payment<const MAX: usize>(
    row: &SqliteRow,
) -> Result<(ReservationId, Text<MAX>), CorruptRow> {
    let id = reservation_id(row, "events", "reservation_id")?;
    let columns = Columns {
        row,
        table: "events",
        key: format!("payment-refused of {id}"),
    };
    Ok((id, columns.text("payment_reference")?))
}
