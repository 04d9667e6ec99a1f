//! One batch's transaction.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use sqlx::postgres::{PgArguments, PgRow, Postgres};
use sqlx::query::Query;

use super::error::{is_refusal, store_error};
use super::instant::Instant;
use super::{admission, deferral, lines, lock, row, transitions, write};
use crate::domain::{
    AdmissionKey, Changes, Deferral, JobId, OpenLine, PaymentReference, ReservationId, StockKey,
    Timestamp,
};
use crate::store::{
    Clock, Key, LockedKeys, LockedReservations, LockedStock, RecordedAnswer, Sighting, StoreError,
    Transaction, TransactionId, Wait,
};

/// A transaction, and what has to be remembered of it until it ends.
pub(super) struct PostgresTransaction {
    transaction: sqlx::Transaction<'static, Postgres>,
    clock: Clock,
    /// The database's name for the transaction, known from the reading of the clock on.
    id: Option<String>,
    /// Whether a statement failed. PostgreSQL answers the COMMIT of such a transaction by rolling
    /// it back, and calls that a success.
    failed: bool,
    /// The rows of stock that [`Transaction::make_stock`] made.
    pub(super) made: BTreeSet<StockKey>,
}

impl PostgresTransaction {
    pub(super) fn new(transaction: sqlx::Transaction<'static, Postgres>, clock: Clock) -> Self {
        Self {
            transaction,
            clock,
            id: None,
            failed: false,
            made: BTreeSet::new(),
        }
    }

    /// Runs a statement and returns its rows.
    pub(super) async fn fetch(
        &mut self,
        query: Query<'_, Postgres, PgArguments>,
    ) -> Result<Vec<PgRow>, StoreError> {
        let rows = query.fetch_all(&mut *self.transaction).await;
        rows.map_err(|error| self.fail(error))
    }

    /// Runs a statement and returns its one row.
    async fn fetch_one(
        &mut self,
        query: Query<'_, Postgres, PgArguments>,
    ) -> Result<PgRow, StoreError> {
        let row = query.fetch_one(&mut *self.transaction).await;
        row.map_err(|error| self.fail(error))
    }

    /// Runs a statement and returns how many rows it changed.
    pub(super) async fn execute(
        &mut self,
        query: Query<'_, Postgres, PgArguments>,
    ) -> Result<u64, StoreError> {
        let done = query.execute(&mut *self.transaction).await;
        done.map(|done| done.rows_affected())
            .map_err(|error| self.fail(error))
    }

    /// Runs a statement that must change so many rows.
    pub(super) async fn change(
        &mut self,
        statement: &'static str,
        expected: usize,
        query: Query<'_, Postgres, PgArguments>,
    ) -> Result<(), StoreError> {
        let changed = self.execute(query).await?;
        if usize::try_from(changed) == Ok(expected) {
            return Ok(());
        }
        self.failed = true;
        Err(StoreError::RowCount {
            statement,
            expected,
            changed,
        })
    }

    fn fail(&mut self, error: sqlx::Error) -> StoreError {
        self.failed = true;
        store_error(error)
    }
}

#[async_trait]
impl Transaction for PostgresTransaction {
    async fn lock_keys(&mut self, keys: &BTreeSet<Key>) -> Result<LockedKeys, StoreError> {
        lock::keys(self, keys).await
    }

    async fn lock_reservations(
        &mut self,
        ids: &BTreeSet<ReservationId>,
        wait: Wait,
    ) -> Result<LockedReservations, StoreError> {
        lock::reservations(self, ids, wait).await
    }

    async fn claim_due(
        &mut self,
        from: Timestamp,
        grace_ms: i64,
        limit: usize,
    ) -> Result<LockedReservations, StoreError> {
        let now = Instant::by_hand(&self.clock);
        lock::due(self, from, grace_ms, now, limit).await
    }

    async fn claim_due_of(
        &mut self,
        key: &StockKey,
        units: i64,
        limit: usize,
    ) -> Result<LockedReservations, StoreError> {
        let now = Instant::by_hand(&self.clock);
        lock::due_of(self, key, units, now, limit).await
    }

    async fn make_stock(&mut self, keys: &BTreeSet<StockKey>) -> Result<(), StoreError> {
        let now = Instant::by_hand(&self.clock);
        write::make_stock(self, keys, now).await
    }

    async fn lock_stock(
        &mut self,
        keys: &BTreeSet<StockKey>,
        wait: Wait,
    ) -> Result<LockedStock, StoreError> {
        lock::stock(self, keys, wait).await
    }

    async fn now(&mut self) -> Result<Timestamp, StoreError> {
        let manual = Instant::by_hand(&self.clock);
        let sql = "
            SELECT
                coalesce($1, clock_timestamp()) AS now,
                pg_current_xact_id()::text AS id";
        let row = self.fetch_one(sqlx::query(sql).bind(manual)).await?;
        self.id = Some(row::value(&row, "id")?);
        Ok(row::value::<Instant>(&row, "now")?.0)
    }

    async fn due_units(
        &mut self,
        keys: &BTreeSet<StockKey>,
        now: Timestamp,
    ) -> Result<BTreeMap<StockKey, i64>, StoreError> {
        lock::due_units(self, keys, now).await
    }

    async fn lock_admission(
        &mut self,
        keys: &BTreeSet<AdmissionKey>,
    ) -> Result<BTreeMap<AdmissionKey, i64>, StoreError> {
        admission::lock(self, keys).await
    }

    async fn claimed_units(&mut self, key: &StockKey) -> Result<i64, StoreError> {
        let query = sqlx::query(lines::CLAIMED_UNITS)
            .bind(key.location.as_str())
            .bind(key.sku.as_str())
            .bind(Instant(Timestamp::MAX));
        let row = self.fetch_one(query).await?;
        Ok(row::value(&row, "units")?)
    }

    async fn open_lines(
        &mut self,
        lines: &BTreeSet<OpenLine>,
    ) -> Result<BTreeMap<OpenLine, i64>, StoreError> {
        lines::find(self, lines).await
    }

    async fn jobs_done(&mut self, jobs: &BTreeSet<JobId>) -> Result<BTreeSet<JobId>, StoreError> {
        lock::jobs_done(self, jobs).await
    }

    async fn refused_payments(
        &mut self,
        ids: &BTreeSet<ReservationId>,
    ) -> Result<BTreeSet<(ReservationId, PaymentReference)>, StoreError> {
        lock::refused_payments(self, ids).await
    }

    async fn write_transitions(
        &mut self,
        changes: &Changes,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        transitions::write(self, changes, now).await?;
        admission::write(self, &changes.arrivals_us).await
    }

    async fn write_rest(
        &mut self,
        changes: &Changes,
        answers: &[RecordedAnswer],
        now: Timestamp,
    ) -> Result<(), StoreError> {
        write::rest(self, changes, answers, now).await
    }

    async fn replace_lines(
        &mut self,
        closed: &BTreeMap<OpenLine, i64>,
        opened: &BTreeMap<OpenLine, i64>,
    ) -> Result<(), StoreError> {
        lines::replace(self, closed, opened).await
    }

    async fn defer(
        &mut self,
        deferrals: &BTreeMap<ReservationId, Deferral>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        deferral::defer(self, deferrals, now).await
    }

    async fn park(
        &mut self,
        sightings: &BTreeMap<ReservationId, Sighting>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        deferral::park(self, sightings, now).await
    }

    async fn unpark(
        &mut self,
        ids: &BTreeSet<ReservationId>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        deferral::unpark(self, ids, now).await
    }

    async fn commit(self: Box<Self>) -> Result<(), StoreError> {
        if self.failed {
            return Err(StoreError::Unavailable(
                "a statement of the transaction failed; it cannot be committed".to_owned(),
            ));
        }
        let id = TransactionId(self.id.unwrap_or_default());
        self.transaction.commit().await.map_err(|error| {
            if is_refusal(&error) {
                store_error(error)
            } else {
                StoreError::CommitLost(id)
            }
        })
    }

    async fn rollback(self: Box<Self>) {
        // If this fails, the connection is gone, and the transaction with it.
        if let Err(error) = self.transaction.rollback().await {
            tracing::debug!(%error, "a rollback was not answered");
        }
    }
}
