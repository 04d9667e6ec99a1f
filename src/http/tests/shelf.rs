//! A store that holds a few rows and only reads.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use async_trait::async_trait;

use crate::domain::{
    CustomerId, Event, EventKind, Line, Location, Metadata, Reservation, ReservationId, Sku, State,
    Stock, StockKey, Timestamp,
};
use crate::store::memory::Memory;
use crate::store::{
    ApiKeys, Clock, Drift, Fate, NextAttempt, Outbox, Quarantine, RecordedEvent, ReservationFilter,
    Retention, StockFilter, Store, StoreError, Suspects, Transaction, TransactionId,
};

#[derive(Default)]
pub(super) struct Shelf {
    pub now: i64,
    pub reservations: Vec<Reservation>,
    pub stock: Vec<Stock>,
    pub events: Vec<RecordedEvent>,
    /// What happens to every read.
    pub trouble: Option<Trouble>,
}

/// What no test of requests looks at.
static NOTHING: LazyLock<Memory> = LazyLock::new(|| Memory::new(Clock::Database));

#[derive(Clone, Copy)]
pub(super) enum Trouble {
    Away,
    Corrupt,
    Panic,
    Slow,
}

pub(super) fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(millis).unwrap()
}

/// The reservation number `number`, held until second 100.
pub(super) fn reservation(number: u8, customer: &str) -> Reservation {
    Reservation {
        // All made in the same millisecond, as by a batch.
        id: ReservationId::new(at(1_000), [number; 10]),
        state: State::Held,
        lines: vec![Line {
            sku: Sku::new("SKU-1").unwrap(),
            location: Location::new("default").unwrap(),
            quantity: 2,
        }],
        expires_at: at(100_000),
        attempt_at: at(100_000),
        hold_seconds: 99,
        created_at: at(1_000),
        updated_at: at(1_000),
        closed_at: None,
        extensions: 0,
        merchant: crate::domain::default_merchant(),
        customer_id: Some(CustomerId::new(customer).unwrap()),
        reference: None,
        payment_reference: None,
        reacquired: false,
        metadata: Metadata::new(),
        waits: crate::domain::Waits::default(),
    }
}

pub(super) fn stock(location: &str, sku: &str) -> Stock {
    Stock {
        key: StockKey {
            location: Location::new(location).unwrap(),
            sku: Sku::new(sku).unwrap(),
        },
        on_hand: 10,
        held: 4,
        due: 1,
        updated_at: at(1_000),
    }
}

pub(super) fn event(seq: i64) -> RecordedEvent {
    RecordedEvent {
        seq,
        event: Event {
            kind: EventKind::StockSet,
            reservation_id: None,
            at: at(1_000),
            data: crate::domain::Particulars::of(&serde_json::json!({ "on_hand": 10 })),
        },
    }
}

fn not_here() -> StoreError {
    StoreError::Unavailable("only the engine asks for this".to_owned())
}

impl Shelf {
    async fn look(&self) -> Result<Timestamp, StoreError> {
        match self.trouble {
            None => Ok(at(self.now)),
            Some(Trouble::Away) => Err(StoreError::Unavailable("host db-1 refused".to_owned())),
            Some(Trouble::Corrupt) => Err(StoreError::RowCount {
                statement: "secret statement",
                expected: 1,
                changed: 0,
            }),
            Some(Trouble::Panic) => panic!("a bug"),
            Some(Trouble::Slow) => {
                std::future::pending::<()>().await;
                unreachable!()
            }
        }
    }
}

#[async_trait]
impl Store for Shelf {
    async fn now(&self) -> Result<Timestamp, StoreError> {
        self.look().await
    }

    async fn list_stock(
        &self,
        filter: &StockFilter,
        after: Option<&StockKey>,
        limit: usize,
    ) -> Result<Vec<Stock>, StoreError> {
        self.look().await?;
        let is_listed = |stock: &&Stock| {
            let key = &stock.key;
            (filter.skus.is_empty() || filter.skus.contains(&key.sku))
                && filter
                    .location
                    .as_ref()
                    .is_none_or(|at| *at == key.location)
                && after.is_none_or(|after| key > after)
        };
        Ok(self
            .stock
            .iter()
            .filter(is_listed)
            .take(limit)
            .cloned()
            .collect())
    }

    async fn reservation(
        &self,
        id: ReservationId,
    ) -> Result<(Option<Reservation>, Timestamp), StoreError> {
        let now = self.look().await?;
        let found = self.reservations.iter().find(|row| row.id == id);
        Ok((found.cloned(), now))
    }

    async fn list_reservations(
        &self,
        filter: &ReservationFilter,
        before: Option<ReservationId>,
        limit: usize,
    ) -> Result<(Vec<Reservation>, Timestamp), StoreError> {
        let now = self.look().await?;
        let mut rows: Vec<_> = self
            .reservations
            .iter()
            .filter(|row| before.is_none_or(|before| row.id < before))
            .filter(|row| filter.state.is_none_or(|state| row.state_at(now) == state))
            .filter(|row| filter.customer_id.is_none() || filter.customer_id == row.customer_id)
            .cloned()
            .collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.id));
        rows.truncate(limit);
        Ok((rows, now))
    }

    async fn events(&self, after: i64, limit: usize) -> Result<Vec<RecordedEvent>, StoreError> {
        self.look().await?;
        let later = self.events.iter().filter(|event| event.seq > after);
        Ok(later.take(limit).cloned().collect())
    }

    async fn begin(&self) -> Result<Box<dyn Transaction>, StoreError> {
        Err(not_here())
    }

    async fn fate(&self, _: TransactionId) -> Result<Fate, StoreError> {
        Err(not_here())
    }

    async fn next_attempt(&self, _: Timestamp) -> Result<NextAttempt, StoreError> {
        Err(not_here())
    }

    async fn stock(
        &self,
        _: &BTreeMap<StockKey, i64>,
    ) -> Result<BTreeMap<StockKey, Stock>, StoreError> {
        Err(not_here())
    }

    fn outbox(&self) -> &dyn Outbox {
        NOTHING.outbox()
    }

    fn api_keys(&self) -> &dyn ApiKeys {
        NOTHING.api_keys()
    }

    fn quarantine(&self) -> &dyn Quarantine {
        NOTHING.quarantine()
    }

    fn retention(&self) -> &dyn Retention {
        NOTHING.retention()
    }

    async fn audit(&self) -> Result<Vec<Drift>, StoreError> {
        Err(not_here())
    }

    async fn suspects(&self, _: usize) -> Result<Suspects, StoreError> {
        Err(not_here())
    }
}
