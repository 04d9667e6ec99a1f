//! A store without a database, for tests and simulations. It keeps the same promises as the
//! others, except for durability: what it holds ends with the process.
//!
//! Writers take turns: a transaction holds the turn from its beginning to its end, keeps what it
//! writes to itself, and hands it over when it commits. Readers see what was committed, and wait
//! for nobody. All rows are in ordered maps, so that the same calls give the same answers.

mod api_keys;
mod audit;
mod outbox;
mod quarantine;
mod retention;
mod rows;
mod transaction;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use self::rows::Rows;
use self::transaction::MemoryTransaction;
use super::{
    ApiKeys, Clock, Drift, Fate, NextAttempt, Outbox, Quarantine, RecordedEvent, ReservationFilter,
    Retention, StockFilter, Store, StoreError, Suspects, Transaction, TransactionId,
};
use crate::domain::{Reservation, ReservationId, Stock, StockKey, Timestamp};

/// A store in memory; clones are handles on the same one.
#[derive(Clone, Debug)]
pub struct Memory {
    rows: Arc<Mutex<Rows>>,
    turn: Arc<tokio::sync::Mutex<()>>,
    clock: Clock,
}

impl Memory {
    /// A store with nothing in it.
    pub fn new(clock: Clock) -> Self {
        Self {
            rows: Arc::default(),
            turn: Arc::default(),
            clock,
        }
    }

    fn rows(&self) -> MutexGuard<'_, Rows> {
        lock(&self.rows)
    }
}

/// The committed rows. They are whole even if a thread panicked while it had them, because a
/// commit is checked before it is applied.
fn lock(rows: &Mutex<Rows>) -> MutexGuard<'_, Rows> {
    rows.lock().unwrap_or_else(PoisonError::into_inner)
}

#[async_trait]
impl Store for Memory {
    async fn begin(&self) -> Result<Box<dyn Transaction>, StoreError> {
        let turn = Arc::clone(&self.turn).lock_owned().await;
        let rows = Arc::clone(&self.rows);
        Ok(Box::new(MemoryTransaction::new(
            turn,
            rows,
            self.clock.clone(),
        )))
    }

    async fn fate(&self, _: TransactionId) -> Result<Fate, StoreError> {
        // A commit here is never lost, so that there is nothing to ask about.
        Ok(Fate::Unknown)
    }

    async fn now(&self) -> Result<Timestamp, StoreError> {
        Ok(self.clock.in_process())
    }

    async fn next_attempt(&self, from: Timestamp) -> Result<NextAttempt, StoreError> {
        Ok(NextAttempt {
            now: self.clock.in_process(),
            attempt_at: self.rows().attempts_from(from).next().map(|(at, _)| at),
        })
    }

    async fn stock(
        &self,
        wanted: &BTreeMap<StockKey, i64>,
    ) -> Result<BTreeMap<StockKey, Stock>, StoreError> {
        let now = self.clock.in_process();
        let rows = self.rows();
        let found = wanted.iter().filter_map(|(key, units)| {
            let mut stock = rows.stock.get(key)?.clone();
            if stock.free() < *units {
                stock.due = rows.due_units(key, now);
            }
            Some((key.clone(), stock))
        });
        Ok(found.collect())
    }

    async fn list_stock(
        &self,
        filter: &StockFilter,
        after: Option<&StockKey>,
        limit: usize,
    ) -> Result<Vec<Stock>, StoreError> {
        let now = self.clock.in_process();
        let rows = self.rows();
        let wanted = |stock: &&Stock| {
            (filter.skus.is_empty() || filter.skus.contains(&stock.key.sku))
                && (filter.location.as_ref()).is_none_or(|place| *place == stock.key.location)
                && after.is_none_or(|after| stock.key > *after)
        };
        let page = rows.stock.values().filter(wanted).take(limit);
        let counted = page.map(|stock| Stock {
            due: rows.due_units(&stock.key, now),
            ..stock.clone()
        });
        Ok(counted.collect())
    }

    async fn reservation(
        &self,
        id: ReservationId,
    ) -> Result<(Option<Reservation>, Timestamp), StoreError> {
        let now = self.clock.in_process();
        Ok((self.rows().reservations.get(&id).cloned(), now))
    }

    async fn list_reservations(
        &self,
        filter: &ReservationFilter,
        before: Option<ReservationId>,
        limit: usize,
    ) -> Result<(Vec<Reservation>, Timestamp), StoreError> {
        let now = self.clock.in_process();
        let rows = self.rows();
        let newest_first = rows.reservations.values().rev();
        let wanted = |row: &&Reservation| {
            before.is_none_or(|before| row.id < before)
                && filter.state.is_none_or(|state| row.state_at(now) == state)
                && (filter.customer_id.is_none() || filter.customer_id == row.customer_id)
                && (filter.reference.is_none() || filter.reference == row.reference)
        };
        let page = newest_first.filter(wanted).take(limit).cloned().collect();
        Ok((page, now))
    }

    async fn events(&self, after: i64, limit: usize) -> Result<Vec<RecordedEvent>, StoreError> {
        let rows = self.rows();
        let later = rows.events.iter().filter(|event| event.seq > after);
        Ok(later.take(limit).cloned().collect())
    }

    fn api_keys(&self) -> &dyn ApiKeys {
        self
    }

    fn outbox(&self) -> &dyn Outbox {
        self
    }

    fn quarantine(&self) -> &dyn Quarantine {
        self
    }

    fn retention(&self) -> &dyn Retention {
        self
    }

    async fn audit(&self) -> Result<Vec<Drift>, StoreError> {
        Ok(audit::audit(&self.rows(), self.clock.in_process()))
    }

    async fn suspects(&self, limit: usize) -> Result<Suspects, StoreError> {
        Ok(audit::suspects(&self.rows(), limit))
    }
}
