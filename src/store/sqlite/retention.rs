//! Deleting what nobody needs any more. There is one writer, so each batch is short, and what it
//! reads nobody else can change before it ends.

use std::collections::BTreeSet;

use async_trait::async_trait;
use serde_json::{Value, json};
use sqlx::sqlite::{Sqlite as Driver, SqliteRow};
use sqlx::{Row, Transaction};

use super::error::store_error;
use super::outbox::message_row;
use super::read::at_most;
use super::statement::Statement;
use super::write::json_array;
use super::{Sqlite, row};
use crate::domain::{JobId, Message, ReservationId, Timestamp};
use crate::store::retention::{cutoff, first_name_of};
use crate::store::{Horizons, Retention, Step, StoreError};

const MOVE_HORIZON: &str = "
    UPDATE retention
    SET horizon = max(coalesce(horizon, ?2), ?2),
        seq = max(seq, ?3)
    WHERE table_name = ?1
";

const HORIZONS: &str = "
    SELECT table_name, horizon, seq
    FROM retention
    WHERE table_name IN ('ledger', 'reservations', 'events')
";

const DELETE_ANSWERS: &str = "
    DELETE FROM idempotency
    WHERE rowid IN (
        SELECT rowid
        FROM idempotency
        WHERE created_at <= ?1
        ORDER BY created_at
        LIMIT ?2
    )
";

/// A hold that has ended never lives again.
const MESSAGES: &str = "
    SELECT outbox.reservation_id,
           due_at,
           copy,
           outbox.attempts,
           parked_at IS NOT NULL AS parked,
           coalesce(reservations.state, 'gone') <> 'held'
               AND iif(
                   coalesce(published_at, parked_at) IS NULL,
                   coalesce(reservations.closed_at, due_at),
                   due_at
               ) <= ?5 AS old
    FROM outbox
    LEFT JOIN reservations ON reservations.id = outbox.reservation_id
    WHERE (outbox.reservation_id, due_at, copy) > (?1, ?2, ?3)
      AND outbox.reservation_id < ?4
    ORDER BY outbox.reservation_id, due_at, copy
    LIMIT ?6
";

const DELETE_MESSAGES: Statement = Statement {
    name: "delete outbox",
    sql: "
        DELETE FROM outbox
        WHERE (reservation_id, due_at, copy) IN (
            SELECT value ->> 'reservation_id', value ->> 'due_at', value ->> 'copy'
            FROM json_each(?1)
        )
    ",
};

const LEDGER: &str = "
    SELECT job_id, at <= ?3 AS old
    FROM ledger
    WHERE job_id > ?1 AND job_id < ?2
    ORDER BY job_id
    LIMIT ?4
";

const DELETE_LEDGER: Statement = Statement {
    name: "delete ledger",
    sql: "
        DELETE FROM ledger
        WHERE job_id IN (SELECT value ->> 'job_id' FROM json_each(?1))
    ",
};

const RESERVATIONS: &str = "
    SELECT id, closed_at IS NOT NULL AND updated_at <= ?3 AS old
    FROM reservations
    WHERE id > ?1 AND id < ?2
    ORDER BY id
    LIMIT ?4
";

const WITH_JOBS: &str = "
    SELECT value ->> 'id' AS id
    FROM json_each(?1)
    WHERE EXISTS (
        SELECT 1
        FROM ledger
        WHERE job_id >= value ->> 'first' AND job_id < value ->> 'behind'
    )
";

/// Open cases are few; their index is read once for a batch, whatever the source.
const IN_QUARANTINE: &str = "
    SELECT key
    FROM quarantine
    WHERE resolved_at IS NULL AND key >= ?1 AND key < ?2
";

const DELETE_RESERVATIONS: Statement = Statement {
    name: "delete reservations",
    sql: "
        DELETE FROM reservations
        WHERE id IN (SELECT value ->> 'id' FROM json_each(?1))
    ",
};

/// A refused payment is needed for as long as its reservation is there.
const EVENTS: &str = "
    SELECT seq,
           at <= ?2
               AND NOT (
                   kind = 'payment-refused'
                   AND EXISTS (SELECT 1 FROM reservations WHERE id = events.reservation_id)
               ) AS old
    FROM events
    WHERE seq > ?1
    ORDER BY seq
    LIMIT ?3
";

const DELETE_EVENTS: &str = "
    DELETE FROM events
    WHERE seq > ?1 AND seq <= ?2
";

/// All of them, for the test that looks at their plans. Horizons and open cases, which are few, are
/// the only ones that are read through.
#[cfg(test)]
pub(super) const LOOKS: [(&str, &str); 11] = [
    ("move horizon", MOVE_HORIZON),
    ("delete answers", DELETE_ANSWERS),
    ("old messages", MESSAGES),
    (DELETE_MESSAGES.name, DELETE_MESSAGES.sql),
    ("old jobs", LEDGER),
    (DELETE_LEDGER.name, DELETE_LEDGER.sql),
    ("old reservations", RESERVATIONS),
    ("reservations with jobs", WITH_JOBS),
    (DELETE_RESERVATIONS.name, DELETE_RESERVATIONS.sql),
    ("old events", EVENTS),
    ("delete events", DELETE_EVENTS),
];

/// The transaction of a batch.
struct Batch {
    writer: Transaction<'static, Driver>,
    table: &'static str,
    now: Timestamp,
    /// Rows of this instant and before are old.
    cutoff: Timestamp,
}

impl Batch {
    async fn begin(store: &Sqlite, table: &'static str, age_ms: i64) -> Result<Self, StoreError> {
        let writer = store.begin_writing().await?;
        let now = store.clock.in_process();
        Ok(Self {
            writer,
            table,
            now,
            cutoff: cutoff(now, age_ms),
        })
    }

    /// Deletes the rows that these name.
    async fn delete(
        &mut self,
        statement: &Statement,
        doomed: Vec<Value>,
    ) -> Result<usize, StoreError> {
        statement
            .run_on_some(&mut self.writer, doomed, self.now)
            .await
    }

    /// Commits what was deleted together with how far back it reaches. `last_event` is 0 for all
    /// tables but one.
    async fn commit(mut self, deleted: usize, last_event: i64) -> Result<(), StoreError> {
        if deleted > 0 {
            sqlx::query(MOVE_HORIZON)
                .bind(self.table)
                .bind(self.cutoff.as_millis())
                .bind(last_event)
                .execute(&mut *self.writer)
                .await
                .map_err(store_error)?;
        }
        self.writer.commit().await.map_err(store_error)
    }

    /// The keys of open cases from `first` on, up to but without `behind`.
    async fn in_quarantine(
        &mut self,
        first: &str,
        behind: &str,
    ) -> Result<BTreeSet<String>, StoreError> {
        let keys = sqlx::query_scalar(IN_QUARANTINE)
            .bind(first)
            .bind(behind)
            .fetch_all(&mut *self.writer)
            .await;
        Ok(keys.map_err(store_error)?.into_iter().collect())
    }

    /// Those of these reservations of which the ledger has a job.
    async fn with_jobs(
        &mut self,
        ids: &[ReservationId],
    ) -> Result<BTreeSet<ReservationId>, StoreError> {
        let asked = ids.iter().map(|id| {
            let jobs = id.job_ids();
            let name = id.as_uuid().to_string();
            json!({ "id": name, "first": jobs.start, "behind": jobs.end })
        });
        let rows = sqlx::query(WITH_JOBS)
            .bind(json_array(asked)?)
            .fetch_all(&mut *self.writer)
            .await
            .map_err(store_error)?;
        let ids = rows
            .iter()
            .map(|row| row::reservation_id(row, "reservations", "id"));
        Ok(ids.collect::<Result<_, _>>()?)
    }

    /// Those of these messages, which come sorted, that are no open case.
    async fn settled(&mut self, old: Vec<(Message, bool)>) -> Result<Vec<Message>, StoreError> {
        let parked = || old.iter().filter(|(_, is_parked)| *is_parked);
        let open = match (parked().next(), parked().next_back()) {
            (Some((first, _)), Some((last, _))) => {
                let first = first.job.reservation.job_ids().start;
                let behind = last.job.reservation.job_ids().end;
                self.in_quarantine(&first, &behind).await?
            }
            _ => BTreeSet::new(),
        };
        let settled = old
            .iter()
            .filter(|(message, is_parked)| !is_parked || !open.contains(&message.key()));
        Ok(settled.map(|(message, _)| *message).collect())
    }

    /// Those of these reservations, which come sorted, that neither the ledger nor an open case
    /// knows.
    async fn unknown(&mut self, old: &[ReservationId]) -> Result<Vec<ReservationId>, StoreError> {
        let (Some(first), Some(last)) = (old.first(), old.last()) else {
            return Ok(Vec::new());
        };
        // A case of a hold has the name of the reservation, and the others those of jobs.
        let (first, behind) = (first.job_ids().start, format!("{last}~"));
        let open = self.in_quarantine(&first, &behind).await?;
        let with_jobs = self.with_jobs(old).await?;
        let is_known = |id: &ReservationId| {
            with_jobs.contains(id)
                || open.contains(&id.to_string())
                || open.range(id.job_ids()).next().is_some()
        };
        Ok(old.iter().filter(|id| !is_known(id)).copied().collect())
    }
}

fn is(row: &SqliteRow, column: &str) -> Result<bool, StoreError> {
    row.try_get(column).map_err(store_error)
}

/// What a walk has seen: which of it is old, and where to go on.
struct Seen<Name> {
    old: Vec<Name>,
    after: Option<Name>,
}

fn seen<Name: Clone>(
    rows: &[SqliteRow],
    limit: usize,
    name: impl Fn(&SqliteRow) -> Result<Name, StoreError>,
) -> Result<Seen<Name>, StoreError> {
    let mut old = Vec::new();
    let mut last = None;
    for row in rows {
        let name = name(row)?;
        if is(row, "old")? {
            old.push(name.clone());
        }
        last = Some(name);
    }
    let after = last.filter(|_| rows.len() >= limit);
    Ok(Seen { old, after })
}

#[async_trait]
impl Retention for Sqlite {
    async fn delete_answers(&self, age_ms: i64, limit: usize) -> Result<usize, StoreError> {
        let mut batch = Batch::begin(self, "idempotency", age_ms).await?;
        let done = sqlx::query(DELETE_ANSWERS)
            .bind(batch.cutoff.as_millis())
            .bind(at_most(limit))
            .execute(&mut *batch.writer)
            .await
            .map_err(store_error)?;
        let deleted = usize::try_from(done.rows_affected()).unwrap_or(usize::MAX);
        batch.commit(deleted, 0).await?;
        Ok(deleted)
    }

    async fn delete_messages(
        &self,
        age_ms: i64,
        limit: usize,
        after: Option<Message>,
    ) -> Result<Step<Message>, StoreError> {
        let mut batch = Batch::begin(self, "outbox", age_ms).await?;
        let rows = sqlx::query(MESSAGES)
            .bind(after.map_or(String::new(), |it| it.job.reservation.as_uuid().to_string()))
            .bind(after.map_or(0, |it| it.job.deadline.as_millis()))
            .bind(after.map_or(0, |it| it.copy))
            .bind(first_name_of(batch.cutoff).as_uuid().to_string())
            .bind(batch.cutoff.as_millis())
            .bind(at_most(limit))
            .fetch_all(&mut *batch.writer)
            .await
            .map_err(store_error)?;
        let name = |row: &SqliteRow| Ok((row::message(row)?.0, is(row, "parked")?));
        let seen = seen(&rows, limit, name)?;
        let doomed = batch.settled(seen.old).await?;
        let doomed = doomed.into_iter().map(|message| message_row(message, 0));
        let deleted = batch.delete(&DELETE_MESSAGES, doomed.collect()).await?;
        batch.commit(deleted, 0).await?;
        let after = seen.after.map(|(message, _)| message);
        Ok(Step { deleted, after })
    }

    async fn delete_ledger(
        &self,
        age_ms: i64,
        limit: usize,
        after: Option<JobId>,
    ) -> Result<Step<JobId>, StoreError> {
        let mut batch = Batch::begin(self, "ledger", age_ms).await?;
        let rows = sqlx::query(LEDGER)
            .bind(after.unwrap_or_default())
            .bind(first_name_of(batch.cutoff).job_ids().start)
            .bind(batch.cutoff.as_millis())
            .bind(at_most(limit))
            .fetch_all(&mut *batch.writer)
            .await
            .map_err(store_error)?;
        let name = |row: &SqliteRow| row.try_get::<JobId, _>("job_id").map_err(store_error);
        let seen = seen(&rows, limit, name)?;
        let doomed = seen.old.iter().map(|job| json!({ "job_id": job }));
        let deleted = batch.delete(&DELETE_LEDGER, doomed.collect()).await?;
        batch.commit(deleted, 0).await?;
        let after = seen.after;
        Ok(Step { deleted, after })
    }

    async fn delete_reservations(
        &self,
        age_ms: i64,
        limit: usize,
        after: Option<ReservationId>,
    ) -> Result<Step<ReservationId>, StoreError> {
        let mut batch = Batch::begin(self, "reservations", age_ms).await?;
        let rows = sqlx::query(RESERVATIONS)
            .bind(after.map_or(String::new(), |id| id.as_uuid().to_string()))
            .bind(first_name_of(batch.cutoff).as_uuid().to_string())
            .bind(batch.cutoff.as_millis())
            .bind(at_most(limit))
            .fetch_all(&mut *batch.writer)
            .await
            .map_err(store_error)?;
        let name = |row: &SqliteRow| Ok(row::reservation_id(row, "reservations", "id")?);
        let seen = seen(&rows, limit, name)?;
        let doomed = batch.unknown(&seen.old).await?;
        let doomed = doomed
            .iter()
            .map(|id| json!({ "id": id.as_uuid().to_string() }));
        let deleted = batch.delete(&DELETE_RESERVATIONS, doomed.collect()).await?;
        batch.commit(deleted, 0).await?;
        let after = seen.after;
        Ok(Step { deleted, after })
    }

    async fn delete_events(&self, age_ms: i64, limit: usize) -> Result<usize, StoreError> {
        let mut batch = Batch::begin(self, "events", age_ms).await?;
        let before = horizons(&mut *batch.writer).await?.last_deleted_event;
        let rows = sqlx::query(EVENTS)
            .bind(before)
            .bind(batch.cutoff.as_millis())
            .bind(at_most(limit))
            .fetch_all(&mut *batch.writer)
            .await
            .map_err(store_error)?;
        let mut last = before;
        for row in &rows {
            if !is(row, "old")? {
                break;
            }
            last = row.try_get("seq").map_err(store_error)?;
        }
        let done = sqlx::query(DELETE_EVENTS)
            .bind(before)
            .bind(last)
            .execute(&mut *batch.writer)
            .await
            .map_err(store_error)?;
        let deleted = usize::try_from(done.rows_affected()).unwrap_or(usize::MAX);
        batch.commit(deleted, last).await?;
        Ok(deleted)
    }

    async fn horizons(&self) -> Result<Horizons, StoreError> {
        horizons(&self.readers).await
    }
}

async fn horizons<'c>(
    connection: impl sqlx::Executor<'c, Database = Driver>,
) -> Result<Horizons, StoreError> {
    let rows = sqlx::query(HORIZONS).fetch_all(connection).await;
    let mut horizons = Horizons::default();
    for row in &rows.map_err(store_error)? {
        let horizon = row::optional_instant(row, "retention", "horizon")?;
        match row.try_get("table_name").map_err(store_error)? {
            "ledger" => horizons.ledger = horizon,
            "reservations" => horizons.reservations = horizon,
            _ => {
                horizons.events = horizon;
                horizons.last_deleted_event = row.try_get("seq").map_err(store_error)?;
            }
        }
    }
    Ok(horizons)
}
