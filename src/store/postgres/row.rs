//! Rows, and what to say of those that cannot be what they say.

use std::fmt::Display;

use serde::de::DeserializeOwned;
use sqlx::postgres::{PgRow, Postgres};
use sqlx::{Decode, Row, Type};
use uuid::Uuid;

use super::instant::Instant;
use crate::domain::{
    ApiKey, ApiKeyId, Event, EventKind, Job, Line, Location, MAX_QUANTITY, Message, OpenLine,
    Reservation, ReservationId, Sku, State, Stock, StockKey, Text, Timestamp, Waits,
};
use crate::store::{
    ActionKind, Answer, CorruptRow, Key, QuarantineCase, RecordedAction, RecordedAnswer,
    RecordedEvent, Resolution, Sighting,
};

/// The columns that [`reservation`] reads. JSON comes as text: it is text on the wire anyway.
macro_rules! reservation_columns {
    () => {
        "r.id, r.state, r.lines::text AS lines, r.expires_at, r.attempt_at, r.hold_seconds,
         r.created_at, r.updated_at, r.closed_at, r.extensions, r.customer_id, r.reference,
         r.payment_reference, r.reacquired, r.metadata::text AS metadata, r.merchant, r.attempts,
         r.limiter_wait_ms, r.retry_wait_ms"
    };
}
pub(super) use reservation_columns;

/// A row of a table on its way into the program.
struct Fields<'r, Name: Fn() -> String> {
    row: &'r PgRow,
    table: &'static str,
    /// The row's key, for whoever has to look after a corrupt one.
    name: Name,
}

impl<'r, Name: Fn() -> String> Fields<'r, Name> {
    fn get<T>(&self, column: &'static str) -> Result<T, CorruptRow>
    where
        T: Decode<'r, Postgres> + Type<Postgres>,
    {
        self.row
            .try_get(column)
            .map_err(|error| self.corrupt(column, error))
    }

    fn instant(&self, column: &'static str) -> Result<Timestamp, CorruptRow> {
        self.get::<Instant>(column).map(|instant| instant.0)
    }

    fn text<const MAX: usize>(&self, column: &'static str) -> Result<Text<MAX>, CorruptRow> {
        self.understood(column, Text::new(self.get::<&str>(column)?))
    }

    fn optional_text<const MAX: usize>(
        &self,
        column: &'static str,
    ) -> Result<Option<Text<MAX>>, CorruptRow> {
        let text: Option<&str> = self.get(column)?;
        self.understood(column, text.map(Text::new).transpose())
    }

    fn json<T: DeserializeOwned>(&self, column: &'static str) -> Result<T, CorruptRow> {
        self.understood(column, serde_json::from_str(self.get(column)?))
    }

    fn understood<T, Fault: Display>(
        &self,
        column: &'static str,
        value: Result<T, Fault>,
    ) -> Result<T, CorruptRow> {
        value.map_err(|fault| self.corrupt(column, fault))
    }

    fn corrupt(&self, column: &'static str, fault: impl Display) -> CorruptRow {
        CorruptRow {
            table: self.table,
            column,
            row: (self.name)(),
            detail: fault.to_string(),
        }
    }
}

/// The name in the column `id` or one like it.
pub(super) fn reservation_id(
    row: &PgRow,
    table: &'static str,
    column: &'static str,
) -> Result<ReservationId, CorruptRow> {
    let name = || "a row without a readable key".to_owned();
    let fields = Fields { row, table, name };
    fields.get::<Uuid>(column).map(ReservationId::from_uuid)
}

/// The reservation called `id` in a row of [`reservation_columns`].
pub(super) fn reservation(row: &PgRow, id: ReservationId) -> Result<Reservation, CorruptRow> {
    let table = "reservations";
    let name = || id.to_string();
    let fields = Fields { row, table, name };
    let state: &str = fields.get("state")?;
    let state =
        State::from_word(state).ok_or_else(|| fields.corrupt("state", "is not a known state"))?;
    let lines: Vec<Line> = fields.json("lines")?;
    let mut quantities = lines.iter().map(|line| line.quantity);
    if lines.is_empty() || !quantities.all(|units| (1..=MAX_QUANTITY).contains(&units)) {
        return Err(fields.corrupt("lines", "must name units, at least 1 of each SKU"));
    }
    let closed_at: Option<Instant> = fields.get("closed_at")?;
    Ok(Reservation {
        id,
        state,
        lines,
        expires_at: fields.instant("expires_at")?,
        attempt_at: fields.instant("attempt_at")?,
        hold_seconds: fields.get("hold_seconds")?,
        created_at: fields.instant("created_at")?,
        updated_at: fields.instant("updated_at")?,
        closed_at: closed_at.map(|instant| instant.0),
        extensions: fields.get("extensions")?,
        customer_id: fields.optional_text("customer_id")?,
        reference: fields.optional_text("reference")?,
        payment_reference: fields.optional_text("payment_reference")?,
        reacquired: fields.get("reacquired")?,
        metadata: fields.json("metadata")?,
        merchant: fields.text("merchant")?,
        waits: Waits {
            attempts: fields.get("attempts")?,
            limiter_ms: fields.get("limiter_wait_ms")?,
            retry_ms: fields.get("retry_wait_ms")?,
        },
    })
}

/// The name in the columns `location` and `sku`.
pub(super) fn stock_key(row: &PgRow, table: &'static str) -> Result<StockKey, CorruptRow> {
    let name = || {
        let shown = |column| row.try_get(column).unwrap_or("?");
        format!("{} at {}", shown("sku"), shown("location"))
    };
    let fields = Fields { row, table, name };
    let location: Location = fields.text("location")?;
    let sku: Sku = fields.text("sku")?;
    Ok(StockKey { location, sku })
}

/// The name of a row of `open_lines`.
pub(super) fn open_line(row: &PgRow) -> Result<OpenLine, CorruptRow> {
    let table = "open_lines";
    let key = stock_key(row, table)?;
    let name = || key.to_string();
    let expires_at = Fields { row, table, name }.instant("expires_at")?;
    Ok(OpenLine {
        expires_at,
        reservation: reservation_id(row, table, "reservation_id")?,
        key,
    })
}

/// A row of stock, with its due units in a column `due`.
pub(super) fn stock(row: &PgRow) -> Result<Stock, CorruptRow> {
    let table = "stock";
    let key = stock_key(row, table)?;
    let name = || key.to_string();
    let fields = Fields { row, table, name };
    Ok(Stock {
        on_hand: fields.get("on_hand")?,
        held: fields.get("held")?,
        due: fields.get("due")?,
        updated_at: fields.instant("updated_at")?,
        key: key.clone(),
    })
}

/// The units in a column `due`, and whose they are.
pub(super) fn due_units(row: &PgRow) -> Result<(StockKey, i64), CorruptRow> {
    let table = "open_lines";
    let key = stock_key(row, table)?;
    let name = || key.to_string();
    let due = Fields { row, table, name }.get("due")?;
    Ok((key, due))
}

/// A row of `idempotency`.
pub(super) fn recorded_answer(row: &PgRow) -> Result<RecordedAnswer, CorruptRow> {
    let table = "idempotency";
    let key = key(row)?;
    let name = || key.key.clone();
    let fields = Fields { row, table, name };
    let status: i32 = fields.get("status")?;
    Ok(RecordedAnswer {
        fingerprint: fields.get("fingerprint")?,
        answer: Answer {
            status: fields.understood("status", u16::try_from(status))?,
            location: fields.get("location")?,
            body: fields.get("body")?,
        },
        created_at: fields.instant("created_at")?,
        key: key.clone(),
    })
}

/// The key in the columns `scope` and `key`.
pub(super) fn key(row: &PgRow) -> Result<Key, CorruptRow> {
    let table = "idempotency";
    let name = || "a row without a readable key".to_owned();
    let fields = Fields { row, table, name };
    Ok(Key {
        scope: fields.get("scope")?,
        key: fields.get("key")?,
    })
}

/// A row of `events`.
pub(super) fn recorded_event(row: &PgRow) -> Result<RecordedEvent, CorruptRow> {
    let table = "events";
    let name = || {
        row.try_get("seq")
            .map_or("?".into(), |seq: i64| seq.to_string())
    };
    let fields = Fields { row, table, name };
    let kind: &str = fields.get("kind")?;
    let kind =
        EventKind::from_word(kind).ok_or_else(|| fields.corrupt("kind", "is not a known kind"))?;
    let reservation_id: Option<Uuid> = fields.get("reservation_id")?;
    Ok(RecordedEvent {
        seq: fields.get("seq")?,
        event: Event {
            kind,
            reservation_id: reservation_id.map(ReservationId::from_uuid),
            at: fields.instant("at")?,
            data: fields.json("data")?,
        },
    })
}

/// The payment that a row of `events` names in a column `payment_reference`.
pub(super) fn refused_payment<const MAX: usize>(
    row: &PgRow,
) -> Result<(ReservationId, Text<MAX>), CorruptRow> {
    let table = "events";
    let id = reservation_id(row, table, "reservation_id")?;
    let name = || id.to_string();
    let payment = Fields { row, table, name }.text("payment_reference")?;
    Ok((id, payment))
}

/// A row of `api_keys`.
pub(super) fn api_key(row: &PgRow) -> Result<ApiKey, CorruptRow> {
    let table = "api_keys";
    let unnamed = || "a row without a readable key".to_owned();
    let name = unnamed;
    let id: Uuid = Fields { row, table, name }.get("id")?;
    let id = ApiKeyId::from_uuid(id);
    let name = || id.to_string();
    let fields = Fields { row, table, name };
    let hash: &[u8] = fields.get("secret_hash")?;
    let scopes: &str = fields.get("scopes")?;
    let revoked_at: Option<Instant> = fields.get("revoked_at")?;
    Ok(ApiKey {
        id,
        name: fields.text("name")?,
        merchant: fields.text("merchant")?,
        scopes: fields.understood("scopes", scopes.parse())?,
        secret_hash: fields.understood("secret_hash", hash.try_into())?,
        created_at: fields.instant("created_at")?,
        revoked_at: revoked_at.map(|instant| instant.0),
    })
}

/// The message in the columns `reservation_id`, `due_at` and `copy`.
pub(super) fn message(row: &PgRow) -> Result<Message, CorruptRow> {
    let copy: i32 = value(row, "copy")?;
    Ok(Message {
        job: Job {
            reservation: reservation_id(row, "outbox", "reservation_id")?,
            deadline: value::<Instant>(row, "due_at")?.0,
        },
        copy: copy.unsigned_abs(),
    })
}

/// A row of `quarantine`.
pub(super) fn quarantine_case(row: &PgRow) -> Result<QuarantineCase, CorruptRow> {
    let table = "quarantine";
    let name = || {
        row.try_get("id")
            .map_or("?".into(), |id: i64| id.to_string())
    };
    let fields = Fields { row, table, name };
    Ok(QuarantineCase {
        id: fields.get("id")?,
        sighting: Sighting {
            source: fields.get("source")?,
            key: fields.get("key")?,
            payload: fields.get("payload")?,
            reason: fields.get("reason")?,
        },
        attempts: fields.get("attempts")?,
        first_seen: fields.instant("first_seen")?,
        last_seen: fields.instant("last_seen")?,
        resolution: match fields.get::<Option<Instant>>("resolved_at")? {
            Some(Instant(at)) => Some(Resolution {
                at,
                text: fields.get("resolution")?,
            }),
            None => None,
        },
    })
}

/// A row of `quarantine_actions`.
pub(super) fn recorded_action(row: &PgRow) -> Result<RecordedAction, CorruptRow> {
    let table = "quarantine_actions";
    let name = || {
        row.try_get("id")
            .map_or("?".into(), |id: i64| id.to_string())
    };
    let fields = Fields { row, table, name };
    let kind = ActionKind::from_word(fields.get("action")?);
    Ok(RecordedAction {
        kind: kind.ok_or_else(|| fields.corrupt("action", "is not a known action"))?,
        by: fields.get("actor")?,
        at: fields.instant("at")?,
        outcome: fields.get("outcome")?,
    })
}

/// One column of a row that is no table's, such as the clock.
pub(super) fn value<'r, T>(row: &'r PgRow, column: &'static str) -> Result<T, CorruptRow>
where
    T: Decode<'r, Postgres> + Type<Postgres>,
{
    let table = "the answer";
    let name = || "its only row".to_owned();
    Fields { row, table, name }.get(column)
}
