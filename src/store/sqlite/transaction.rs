//! One batch on the one writer.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use serde_json::{Value, json};
use sqlx::Row;
use sqlx::sqlite::{SqlitePool, SqliteRow};

use super::deferral;
use super::error::{is_refusal, store_error};
use super::read::at_most;
use super::row::{self, select_reservations};
use super::write::{self, json_array};
use crate::domain::{
    AdmissionKey, Changes, Deferral, JobId, OpenLine, PaymentReference, Reservation, ReservationId,
    StockKey, Timestamp,
};
use crate::store::{
    Clock, CorruptRow, Key, LockedKeys, LockedReservations, LockedStock, RecordedAnswer, Sighting,
    StoreError, Transaction, TransactionId, Wait,
};

/// A transaction that has the writer to itself, so that what it reads it has locked.
pub(super) struct SqliteTransaction {
    connection: sqlx::Transaction<'static, sqlx::Sqlite>,
    clock: Clock,
    /// Rows of stock that this transaction made.
    made: BTreeSet<StockKey>,
}

impl SqliteTransaction {
    pub(super) async fn begin(writer: &SqlitePool, clock: Clock) -> Result<Self, StoreError> {
        // A transaction that begins as a reader could be refused when it first writes.
        let begun = writer.begin_with("BEGIN IMMEDIATE").await;
        Ok(Self {
            connection: begun.map_err(store_error)?,
            clock,
            made: BTreeSet::new(),
        })
    }
}

#[async_trait]
impl Transaction for SqliteTransaction {
    async fn lock_keys(&mut self, keys: &BTreeSet<Key>) -> Result<LockedKeys, StoreError> {
        let keys = json_array(keys.iter().map(|key| json!([key.scope, key.key])))?;
        let rows = sqlx::query(
            "
            SELECT scope, key, fingerprint, status, location, body, created_at
            FROM idempotency
            WHERE (scope, key) IN (
                SELECT value ->> 0, value ->> 1
                FROM json_each(?1)
            )
            ",
        )
        .bind(keys)
        .fetch_all(&mut *self.connection)
        .await
        .map_err(store_error)?;
        let recorded = rows.iter().map(|row| {
            let answer = row::recorded_answer(row)?;
            Ok((answer.key.clone(), answer))
        });
        Ok(LockedKeys {
            recorded: recorded.collect::<Result<_, CorruptRow>>()?,
            elsewhere: BTreeSet::new(),
        })
    }

    async fn lock_reservations(
        &mut self,
        ids: &BTreeSet<ReservationId>,
        _: Wait,
    ) -> Result<LockedReservations, StoreError> {
        let rows = sqlx::query(select_reservations!(
            "
            FROM reservations
            WHERE id IN (SELECT value FROM json_each(?1))
            ORDER BY id
            "
        ))
        .bind(id_array(ids)?)
        .fetch_all(&mut *self.connection)
        .await
        .map_err(store_error)?;
        locked(&rows)
    }

    async fn claim_due(
        &mut self,
        from: Timestamp,
        grace_ms: i64,
        limit: usize,
    ) -> Result<LockedReservations, StoreError> {
        let latest = self.clock.in_process().saturating_add_millis(-grace_ms);
        let rows = sqlx::query(select_reservations!(
            "
            FROM reservations
            WHERE state = 'held'
              AND attempt_at >= ?1
              AND attempt_at <= ?2
            ORDER BY attempt_at
            LIMIT ?3
            "
        ))
        .bind(from.as_millis())
        .bind(latest.as_millis())
        .bind(at_most(limit))
        .fetch_all(&mut *self.connection)
        .await
        .map_err(store_error)?;
        locked(&rows)
    }

    async fn claim_due_of(
        &mut self,
        key: &StockKey,
        units: i64,
        limit: usize,
    ) -> Result<LockedReservations, StoreError> {
        let rows = sqlx::query(select_reservations!(
            "
            FROM open_lines
            JOIN reservations ON reservations.id = open_lines.reservation_id
            WHERE open_lines.location = ?1
              AND open_lines.sku = ?2
              AND open_lines.expires_at <= ?3
              AND reservations.state = 'held'
            ORDER BY open_lines.expires_at, open_lines.reservation_id
            LIMIT ?4
            "
        ))
        .bind(key.location.as_str())
        .bind(key.sku.as_str())
        .bind(self.clock.in_process().as_millis())
        .bind(at_most(limit))
        .fetch_all(&mut *self.connection)
        .await
        .map_err(store_error)?;
        let mut found = locked(&rows)?;
        keep_enough(&mut found.rows, key, units);
        Ok(found)
    }

    async fn make_stock(&mut self, keys: &BTreeSet<StockKey>) -> Result<(), StoreError> {
        let now = self.clock.in_process();
        let made = write::make_stock(&mut self.connection, keys, now).await?;
        self.made.extend(made);
        Ok(())
    }

    async fn lock_stock(
        &mut self,
        keys: &BTreeSet<StockKey>,
        _: Wait,
    ) -> Result<LockedStock, StoreError> {
        let rows = sqlx::query(
            "
            SELECT location, sku, on_hand, held, 0 AS due, updated_at
            FROM stock
            WHERE (location, sku) IN (
                SELECT value ->> 'location', value ->> 'sku'
                FROM json_each(?1)
            )
            ORDER BY location, sku
            ",
        )
        .bind(key_array(keys)?)
        .fetch_all(&mut *self.connection)
        .await
        .map_err(store_error)?;
        Ok(LockedStock {
            rows: rows.iter().map(row::stock).collect::<Result<_, _>>()?,
            elsewhere: BTreeSet::new(),
        })
    }

    async fn now(&mut self) -> Result<Timestamp, StoreError> {
        Ok(self.clock.in_process())
    }

    async fn due_units(
        &mut self,
        keys: &BTreeSet<StockKey>,
        now: Timestamp,
    ) -> Result<BTreeMap<StockKey, i64>, StoreError> {
        let rows = sqlx::query(
            "
            SELECT location, sku, sum(quantity) AS due
            FROM open_lines
            WHERE (location, sku) IN (
                SELECT value ->> 'location', value ->> 'sku'
                FROM json_each(?1)
            )
              AND expires_at <= ?2
            GROUP BY location, sku
            ",
        )
        .bind(key_array(keys)?)
        .bind(now.as_millis())
        .fetch_all(&mut *self.connection)
        .await
        .map_err(store_error)?;
        rows.iter()
            .map(|row| {
                let due = row.try_get("due").map_err(store_error)?;
                Ok((row::stock_key(row, "open_lines")?, due))
            })
            .collect()
    }

    async fn lock_admission(
        &mut self,
        keys: &BTreeSet<AdmissionKey>,
    ) -> Result<BTreeMap<AdmissionKey, i64>, StoreError> {
        deferral::lock_admission(&mut self.connection, keys).await
    }

    async fn claimed_units(&mut self, key: &StockKey) -> Result<i64, StoreError> {
        sqlx::query_scalar(
            "
            SELECT (
                       SELECT coalesce(sum(quantity), 0)
                       FROM open_lines
                       WHERE location = ?1
                         AND sku = ?2
                   ) + (
                       SELECT coalesce(sum(line.value ->> 'quantity'), 0)
                       FROM reservations
                       CROSS JOIN json_each(
                           iif(json_valid(reservations.lines), reservations.lines, '[]')
                       ) AS line
                       WHERE reservations.state = 'held'
                         AND reservations.attempt_at = ?3
                         AND line.type = 'object'
                         AND line.value ->> 'location' = ?1
                         AND line.value ->> 'sku' = ?2
                   )
            ",
        )
        .bind(key.location.as_str())
        .bind(key.sku.as_str())
        .bind(Timestamp::MAX.as_millis())
        .fetch_one(&mut *self.connection)
        .await
        .map_err(store_error)
    }

    async fn open_lines(
        &mut self,
        lines: &BTreeSet<OpenLine>,
    ) -> Result<BTreeMap<OpenLine, i64>, StoreError> {
        let rows = sqlx::query(
            "
            SELECT location, sku, expires_at, reservation_id, quantity
            FROM open_lines
            WHERE (location, sku, expires_at, reservation_id) IN (
                SELECT value ->> 'location',
                       value ->> 'sku',
                       value ->> 'expires_at',
                       value ->> 'reservation_id'
                FROM json_each(?1)
            )
            ",
        )
        .bind(json_array(
            lines.iter().map(|line| write::line_row(line, 0)),
        )?)
        .fetch_all(&mut *self.connection)
        .await
        .map_err(store_error)?;
        rows.iter()
            .map(|row| {
                let units = row.try_get("quantity").map_err(store_error)?;
                Ok((row::open_line(row)?, units))
            })
            .collect()
    }

    async fn jobs_done(&mut self, jobs: &BTreeSet<JobId>) -> Result<BTreeSet<JobId>, StoreError> {
        let done: Vec<JobId> = sqlx::query_scalar(
            "
            SELECT job_id
            FROM ledger
            WHERE job_id IN (SELECT value FROM json_each(?1))
            ",
        )
        .bind(json_array(jobs)?)
        .fetch_all(&mut *self.connection)
        .await
        .map_err(store_error)?;
        Ok(done.into_iter().collect())
    }

    async fn refused_payments(
        &mut self,
        ids: &BTreeSet<ReservationId>,
    ) -> Result<BTreeSet<(ReservationId, PaymentReference)>, StoreError> {
        let rows = sqlx::query(
            "
            SELECT reservation_id, data ->> 'payment_reference' AS payment_reference
            FROM events
            WHERE kind = 'payment-refused'
              AND reservation_id IN (SELECT value FROM json_each(?1))
            ",
        )
        .bind(id_array(ids)?)
        .fetch_all(&mut *self.connection)
        .await
        .map_err(store_error)?;
        let payments = rows.iter().map(row::refused_payment);
        Ok(payments.collect::<Result<_, _>>()?)
    }

    async fn write_transitions(
        &mut self,
        changes: &Changes,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        write::transitions(&mut self.connection, changes, now).await?;
        deferral::write_admission(&mut self.connection, &changes.arrivals_us, now).await
    }

    async fn write_rest(
        &mut self,
        changes: &Changes,
        answers: &[RecordedAnswer],
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let unwanted = self.made.difference(&changes.new_stock);
        write::rest(&mut self.connection, unwanted, changes, answers, now).await
    }

    async fn replace_lines(
        &mut self,
        closed: &BTreeMap<OpenLine, i64>,
        opened: &BTreeMap<OpenLine, i64>,
    ) -> Result<(), StoreError> {
        write::replace_lines(&mut self.connection, closed, opened).await
    }

    async fn defer(
        &mut self,
        deferrals: &BTreeMap<ReservationId, Deferral>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        deferral::defer(&mut self.connection, deferrals, now).await
    }

    async fn park(
        &mut self,
        sightings: &BTreeMap<ReservationId, Sighting>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        deferral::park(&mut self.connection, sightings, now).await
    }

    async fn unpark(
        &mut self,
        ids: &BTreeSet<ReservationId>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        deferral::unpark(&mut self.connection, ids, now).await
    }

    async fn commit(self: Box<Self>) -> Result<(), StoreError> {
        // Whatever is still open when `commit` fails is rolled back as it is dropped.
        match self.connection.commit().await {
            Ok(()) => Ok(()),
            Err(error) if is_refusal(&error) => Err(store_error(error)),
            Err(error) => {
                tracing::error!(%error, "it is not known whether a batch was committed");
                Err(StoreError::CommitLost(TransactionId(error.to_string())))
            }
        }
    }

    async fn rollback(self: Box<Self>) {
        if let Err(error) = self.connection.rollback().await {
            tracing::warn!(%error, "a batch could not be rolled back; its connection is closed");
        }
    }
}

fn id_array(ids: &BTreeSet<ReservationId>) -> Result<String, StoreError> {
    json_array(ids.iter().map(|id| id.as_uuid().to_string()))
}

fn key_array(keys: &BTreeSet<StockKey>) -> Result<String, StoreError> {
    json_array(keys.iter().map(key_object))
}

fn key_object(key: &StockKey) -> Value {
    json!({ "location": key.location, "sku": key.sku })
}

/// Rows as they were found, the corrupt ones apart.
fn locked(rows: &[SqliteRow]) -> Result<LockedReservations, StoreError> {
    let mut locked = LockedReservations::default();
    for row in rows {
        match row::reservation(row) {
            Ok(reservation) => locked.rows.push(reservation),
            Err(corrupt) => {
                let id = row::reservation_id(row, "reservations", "id")?;
                locked.corrupt.insert(id, corrupt);
            }
        }
    }
    Ok(locked)
}

/// Keeps just as many of the first rows as have `units` units of `key` together. Corrupt rows do
/// not count, because their units cannot be released.
fn keep_enough(rows: &mut Vec<Reservation>, key: &StockKey, units: i64) {
    let mut missing = units;
    rows.retain(|reservation| {
        let needed = missing > 0;
        missing -= reservation.units().get(key).copied().unwrap_or_default();
        needed
    });
}
