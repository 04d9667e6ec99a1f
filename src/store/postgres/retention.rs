//! Deleting what nobody needs any more. Nothing here waits for a lock, so that nothing can wait in
//! a circle, and only rows that are to go are locked.

pub(super) mod statements;

use std::collections::BTreeSet;

use async_trait::async_trait;
use sqlx::postgres::PgRow;

use self::statements::{
    DELETE_ANSWERS, DELETE_EVENTS, DELETE_LEDGER, DELETE_MESSAGES, DELETE_RESERVATIONS, EVENTS,
    HORIZONS, IN_QUARANTINE, LEDGER, LOCK_OLD_RESERVATIONS, MESSAGES, MOVE_HORIZON, RESERVATIONS,
    TAKE_TURN, WITH_JOBS,
};
use super::error::store_error;
use super::instant::Instant;
use super::outbox::number;
use super::read::{Statement, fetch};
use super::{Postgres, array, row, rows};
use crate::domain::{JobId, Message, ReservationId, Timestamp};
use crate::store::retention::{cutoff, first_name_of};
use crate::store::{Horizons, Retention, Step, StoreError};

/// The transaction of a batch, which has the row of its table.
struct Turn {
    transaction: sqlx::Transaction<'static, sqlx::Postgres>,
    table: &'static str,
    /// Rows of this instant and before are old.
    cutoff: Timestamp,
    /// The number of the last event that is gone already; 0 for all tables but one.
    seq: i64,
}

impl Turn {
    /// Begins a batch, unless another instance has the table.
    async fn take(
        store: &Postgres,
        table: &'static str,
        age_ms: i64,
    ) -> Result<Option<Self>, StoreError> {
        let mut transaction = store.pool.begin().await.map_err(store_error)?;
        let query = sqlx::query(TAKE_TURN)
            .bind(Instant::by_hand(&store.clock))
            .bind(table);
        let taken = query.fetch_optional(&mut *transaction).await;
        let Some(row) = taken.map_err(store_error)? else {
            return Ok(None);
        };
        let now = row::value::<Instant>(&row, "now")?.0;
        Ok(Some(Self {
            transaction,
            table,
            cutoff: cutoff(now, age_ms),
            seq: row::value(&row, "seq")?,
        }))
    }

    async fn fetch(&mut self, query: Statement<'_>) -> Result<Vec<PgRow>, StoreError> {
        let rows = query.fetch_all(&mut *self.transaction).await;
        rows.map_err(store_error)
    }

    async fn execute(&mut self, query: Statement<'_>) -> Result<usize, StoreError> {
        let done = query.execute(&mut *self.transaction).await;
        let deleted = done.map_err(store_error)?.rows_affected();
        Ok(usize::try_from(deleted).unwrap_or(usize::MAX))
    }

    /// Deletes the rows that `query` names, which may be none.
    async fn delete(&mut self, doomed: usize, query: Statement<'_>) -> Result<usize, StoreError> {
        match doomed {
            0 => Ok(0),
            _ => self.execute(query).await,
        }
    }

    /// Commits what was deleted together with how far back it reaches. `last_event` is 0 for all
    /// tables but one.
    async fn commit(mut self, deleted: usize, last_event: i64) -> Result<(), StoreError> {
        if deleted > 0 {
            let query = sqlx::query(MOVE_HORIZON)
                .bind(self.table)
                .bind(Instant(self.cutoff))
                .bind(last_event);
            self.execute(query).await?;
        }
        self.transaction.commit().await.map_err(store_error)
    }

    /// Which of these keys of messages, or others between them, are open cases.
    async fn in_quarantine(
        &mut self,
        first: &str,
        behind: &str,
    ) -> Result<BTreeSet<String>, StoreError> {
        let query = sqlx::query(IN_QUARANTINE).bind(first).bind(behind);
        let found = self.fetch(query).await?;
        let keys = found.iter().map(|row| row::value(row, "key"));
        Ok(keys.collect::<Result<_, _>>()?)
    }

    /// Those of these messages that are no open case.
    async fn settled(&mut self, old: Vec<OldMessage>) -> Result<Vec<OldMessage>, StoreError> {
        let mut parked = old.iter().filter(|it| it.is_parked);
        let Some(first) = parked.next() else {
            return Ok(old);
        };
        let last = parked.next_back().unwrap_or(first);
        let (first, last) = (first.message.job, last.message.job);
        let (first, last) = (first.reservation.job_ids(), last.reservation.job_ids());
        let open = self.in_quarantine(&first.start, &last.end).await?;
        let is_settled = |it: &OldMessage| !it.is_parked || !open.contains(&it.message.key());
        Ok(old.into_iter().filter(is_settled).collect())
    }

    /// Locks those of these reservations that are old and free, and returns those that neither
    /// the ledger nor an open case knows, by their names, which come sorted.
    async fn lock_reservations(
        &mut self,
        old: Vec<uuid::Uuid>,
    ) -> Result<Vec<uuid::Uuid>, StoreError> {
        let query = sqlx::query(LOCK_OLD_RESERVATIONS)
            .bind(old)
            .bind(Instant(self.cutoff));
        let locked = reservation_ids(&self.fetch(query).await?)?;
        let jobs = array(&locked, |id: &ReservationId| id.job_ids());
        let (Some(first), Some(last)) = (jobs.first(), locked.last()) else {
            return Ok(Vec::new());
        };
        // A case of a hold has the name of the reservation, and the others those of jobs.
        let open = self
            .in_quarantine(&first.start, &format!("{last}~"))
            .await?;
        let query = sqlx::query(WITH_JOBS)
            .bind(array(&locked, |id| id.as_uuid()))
            .bind(array(&jobs, |jobs| jobs.start.as_str()))
            .bind(array(&jobs, |jobs| jobs.end.as_str()));
        let with_jobs = reservation_ids(&self.fetch(query).await?)?;
        let is_known = |id: &ReservationId| {
            with_jobs.contains(id)
                || open.contains(&id.to_string())
                || open.range(id.job_ids()).next().is_some()
        };
        let unknown = locked.into_iter().filter(|id| !is_known(id));
        Ok(unknown.map(ReservationId::as_uuid).collect())
    }
}

/// A message that may go unless it is an open case.
struct OldMessage {
    message: Message,
    waits: bool,
    is_parked: bool,
}

fn reservation_ids(rows: &[PgRow]) -> Result<BTreeSet<ReservationId>, StoreError> {
    let ids = rows
        .iter()
        .map(|row| row::reservation_id(row, "reservations", "id"));
    Ok(ids.collect::<Result<_, _>>()?)
}

/// Where a walk goes on that has seen these rows.
fn after<Name>(
    seen: &[PgRow],
    limit: usize,
    name: impl Fn(&PgRow) -> Result<Name, StoreError>,
) -> Result<Option<Name>, StoreError> {
    let last = seen.last().filter(|_| seen.len() >= limit);
    last.map(name).transpose()
}

/// Those of the rows that are old.
fn old(seen: &[PgRow]) -> Result<Vec<&PgRow>, StoreError> {
    let mut old = Vec::new();
    for row in seen {
        if row::value(row, "old")? {
            old.push(row);
        }
    }
    Ok(old)
}

#[async_trait]
impl Retention for Postgres {
    async fn delete_answers(&self, age_ms: i64, limit: usize) -> Result<usize, StoreError> {
        let Some(mut turn) = Turn::take(self, "idempotency", age_ms).await? else {
            return Ok(0);
        };
        let query = sqlx::query(DELETE_ANSWERS)
            .bind(Instant(turn.cutoff))
            .bind(rows(limit));
        let deleted = turn.execute(query).await?;
        turn.commit(deleted, 0).await?;
        Ok(deleted)
    }

    async fn delete_messages(
        &self,
        age_ms: i64,
        limit: usize,
        last: Option<Message>,
    ) -> Result<Step<Message>, StoreError> {
        let Some(mut turn) = Turn::take(self, "outbox", age_ms).await? else {
            return Ok(Step::NONE);
        };
        let deadline = last.map_or(Timestamp::EPOCH, |last| last.job.deadline);
        let copy = last.map_or(0, |last| number(last.copy));
        let query = sqlx::query(MESSAGES)
            .bind(last.map_or(uuid::Uuid::nil(), |last| last.job.reservation.as_uuid()))
            .bind(Instant(deadline))
            .bind(copy)
            .bind(first_name_of(turn.cutoff).as_uuid())
            .bind(Instant(turn.cutoff))
            .bind(rows(limit));
        let seen = turn.fetch(query).await?;
        let mut candidates = Vec::new();
        for row in old(&seen)? {
            candidates.push(OldMessage {
                message: row::message(row)?,
                waits: row::value(row, "waits")?,
                is_parked: row::value(row, "parked")?,
            });
        }
        let doomed = turn.settled(candidates).await?;
        let query = sqlx::query(DELETE_MESSAGES)
            .bind(array(&doomed, |it| it.message.job.reservation.as_uuid()))
            .bind(array(&doomed, |it| Instant(it.message.job.deadline)))
            .bind(array(&doomed, |it| number(it.message.copy)))
            .bind(array(&doomed, |it| it.waits));
        let deleted = turn.delete(doomed.len(), query).await?;
        turn.commit(deleted, 0).await?;
        let after = after(&seen, limit, |row| Ok(row::message(row)?))?;
        Ok(Step { deleted, after })
    }

    async fn delete_ledger(
        &self,
        age_ms: i64,
        limit: usize,
        last: Option<JobId>,
    ) -> Result<Step<JobId>, StoreError> {
        let Some(mut turn) = Turn::take(self, "ledger", age_ms).await? else {
            return Ok(Step::NONE);
        };
        let query = sqlx::query(LEDGER)
            .bind(last.unwrap_or_default())
            .bind(first_name_of(turn.cutoff).job_ids().start)
            .bind(Instant(turn.cutoff))
            .bind(rows(limit));
        let seen = turn.fetch(query).await?;
        let name = |row: &PgRow| Ok(row::value::<JobId>(row, "job_id")?);
        let mut doomed = Vec::new();
        for row in old(&seen)? {
            doomed.push(name(row)?);
        }
        let query = sqlx::query(DELETE_LEDGER).bind(&doomed);
        let deleted = turn.delete(doomed.len(), query).await?;
        turn.commit(deleted, 0).await?;
        let after = after(&seen, limit, name)?;
        Ok(Step { deleted, after })
    }

    async fn delete_reservations(
        &self,
        age_ms: i64,
        limit: usize,
        last: Option<ReservationId>,
    ) -> Result<Step<ReservationId>, StoreError> {
        let Some(mut turn) = Turn::take(self, "reservations", age_ms).await? else {
            return Ok(Step::NONE);
        };
        let query = sqlx::query(RESERVATIONS)
            .bind(last.map_or(uuid::Uuid::nil(), ReservationId::as_uuid))
            .bind(first_name_of(turn.cutoff).as_uuid())
            .bind(Instant(turn.cutoff))
            .bind(rows(limit));
        let seen = turn.fetch(query).await?;
        let name = |row: &PgRow| Ok(row::reservation_id(row, "reservations", "id")?);
        let mut candidates = Vec::new();
        for row in old(&seen)? {
            candidates.push(name(row)?.as_uuid());
        }
        let doomed = turn.lock_reservations(candidates).await?;
        let query = sqlx::query(DELETE_RESERVATIONS).bind(&doomed);
        let deleted = turn.delete(doomed.len(), query).await?;
        turn.commit(deleted, 0).await?;
        let after = after(&seen, limit, name)?;
        Ok(Step { deleted, after })
    }

    async fn delete_events(&self, age_ms: i64, limit: usize) -> Result<usize, StoreError> {
        let Some(mut turn) = Turn::take(self, "events", age_ms).await? else {
            return Ok(0);
        };
        let before = turn.seq;
        let query = sqlx::query(EVENTS)
            .bind(before)
            .bind(Instant(turn.cutoff))
            .bind(rows(limit));
        let mut last = before;
        for row in &turn.fetch(query).await? {
            if !row::value::<bool>(row, "old")? {
                break;
            }
            last = row::value(row, "seq")?;
        }
        let deleted = if last > before {
            let query = sqlx::query(DELETE_EVENTS).bind(before).bind(last);
            turn.execute(query).await?
        } else {
            0
        };
        turn.commit(deleted, last).await?;
        Ok(deleted)
    }

    async fn horizons(&self) -> Result<Horizons, StoreError> {
        let mut horizons = Horizons::default();
        for row in &fetch(self, sqlx::query(HORIZONS)).await? {
            let horizon: Option<Instant> = row::value(row, "horizon")?;
            let horizon = horizon.map(|instant| instant.0);
            match row::value::<&str>(row, "table_name")? {
                "ledger" => horizons.ledger = horizon,
                "reservations" => horizons.reservations = horizon,
                _ => {
                    horizons.events = horizon;
                    horizons.last_deleted_event = row::value(row, "seq")?;
                }
            }
        }
        Ok(horizons)
    }
}
