//! Where the rows live: one narrow port, three implementations.
//!
//! [`postgres`] serves several instances on one database, [`sqlite`] is embedded, [`memory`] is
//! for tests and simulations. SQL stands below this module and nowhere else.
//!
//! The engine is the only caller of a [`Transaction`]. It takes locks in one total order, the same
//! in every batch of every instance, so that batches wait for each other but never in a circle:
//! keys, reservations by id, the ledger, admission by key, stock by (location, sku), fresh rows, and last the event
//! head, one row that numbers events without gaps.

mod api_keys;
mod clock;
pub mod memory;
mod outbox;
pub mod postgres;
mod quarantine;
mod retention;
pub mod sqlite;
mod suspects;

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;

pub use self::api_keys::ApiKeys;
pub use self::outbox::{
    Adopted, AdoptionCursor, Claimed, ClaimedMessage, NextPublication, Outbox, OutboxDepth, Parked,
    Postponed, Published,
};
pub use self::quarantine::{
    ActionKind, CaseAction, CaseFilter, CaseState, HOLD, MAX_KEPT_PAYLOAD, MAX_QUARANTINE_KEY,
    Quarantine, QuarantineCase, RELAY, RESOLVED, RecordedAction, Resolution, SHOWN_ACTIONS,
    Sighting,
};
pub use self::retention::{Horizons, Retention, Step};
pub use self::suspects::Suspects;

use crate::domain::{
    AdmissionKey, Changes, Deferral, JobId, Location, OpenLine, PaymentReference, Reservation,
    ReservationId, Setback, Sku, State, Stock, StockKey, Timestamp,
};

/// A database that holds everything Holdfast knows.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Begins the transaction of one batch.
    async fn begin(&self) -> Result<Box<dyn Transaction>, StoreError>;

    /// What became of a transaction whose COMMIT was sent and never answered.
    async fn fate(&self, transaction: TransactionId) -> Result<Fate, StoreError>;

    /// The clock that decides.
    async fn now(&self) -> Result<Timestamp, StoreError>;

    /// The earliest `attempt_at` of a held reservation that is not before `from`, and the
    /// database's now, in one query.
    async fn next_attempt(&self, from: Timestamp) -> Result<NextAttempt, StoreError>;

    /// The rows of stock that exist of these, in one snapshot, without locks. Due units are
    /// counted in those rows that have less than the wanted units free, and 0 in the others.
    async fn stock(
        &self,
        wanted: &BTreeMap<StockKey, i64>,
    ) -> Result<BTreeMap<StockKey, Stock>, StoreError>;

    /// Rows of stock in the order of their keys, due units counted, at most `limit`.
    async fn list_stock(
        &self,
        filter: &StockFilter,
        after: Option<&StockKey>,
        limit: usize,
    ) -> Result<Vec<Stock>, StoreError>;

    /// One reservation, and the now by which to read its state.
    async fn reservation(
        &self,
        id: ReservationId,
    ) -> Result<(Option<Reservation>, Timestamp), StoreError>;

    /// Reservations from the newest (largest id) to the oldest, at most `limit`, those with ids
    /// smaller than `before`; and the now by which their states were judged.
    async fn list_reservations(
        &self,
        filter: &ReservationFilter,
        before: Option<ReservationId>,
        limit: usize,
    ) -> Result<(Vec<Reservation>, Timestamp), StoreError>;

    /// Events with numbers larger than `after`, in order, at most `limit`.
    async fn events(&self, after: i64, limit: usize) -> Result<Vec<RecordedEvent>, StoreError>;

    /// The expiry jobs that wait for their publication.
    fn outbox(&self) -> &dyn Outbox;

    /// Who may use the API.
    fn api_keys(&self) -> &dyn ApiKeys;

    /// The messages that nothing can be done with.
    fn quarantine(&self) -> &dyn Quarantine;

    /// Deleting what nobody needs any more.
    fn retention(&self) -> &dyn Retention;

    /// Recomputes what the rows promise (P1, P2, P8, the ledger against the events) in one
    /// snapshot, and says row by row where it does not hold. What lies before a horizon (see
    /// [`Horizons`]) is not missed.
    async fn audit(&self) -> Result<Vec<Drift>, StoreError>;

    /// Looks in one snapshot for counters that are not what held reservations claim, at most
    /// `limit` of each kind. It reads whole tables, as an audit does.
    async fn suspects(&self, limit: usize) -> Result<Suspects, StoreError>;
}

/// One batch's transaction. Dropped without a commit, it leaves nothing.
#[async_trait]
pub trait Transaction: Send {
    /// Takes idempotency keys for this transaction (sorted, never waiting) and reads what is
    /// recorded under them.
    async fn lock_keys(&mut self, keys: &BTreeSet<Key>) -> Result<LockedKeys, StoreError>;

    /// Locks and reads reservations in the order of their ids.
    async fn lock_reservations(
        &mut self,
        ids: &BTreeSet<ReservationId>,
        wait: Wait,
    ) -> Result<LockedReservations, StoreError>;

    /// Locks and reads held reservations whose `attempt_at` has passed by `grace_ms` or more, is
    /// not before `from`, and which nobody else has locked; the earliest first, at most `limit`.
    async fn claim_due(
        &mut self,
        from: Timestamp,
        grace_ms: i64,
        limit: usize,
    ) -> Result<LockedReservations, StoreError>;

    /// Locks and reads the oldest due reservations with lines on `key` that nobody else has
    /// locked, just as many as have `units` units of it together, at most `limit`.
    async fn claim_due_of(
        &mut self,
        key: &StockKey,
        units: i64,
        limit: usize,
    ) -> Result<LockedReservations, StoreError>;

    /// Makes rows of stock that do not exist, with nothing in them. Those that `write_rest` does
    /// not find in [`Changes::new_stock`] are taken away again.
    async fn make_stock(&mut self, keys: &BTreeSet<StockKey>) -> Result<(), StoreError>;

    /// Locks and reads rows of stock in the order of their keys; due units are 0.
    async fn lock_stock(
        &mut self,
        keys: &BTreeSet<StockKey>,
        wait: Wait,
    ) -> Result<LockedStock, StoreError>;

    /// The clock that decides, read now: after the locks that the decision needs.
    async fn now(&mut self) -> Result<Timestamp, StoreError>;

    /// The due units of these rows of stock at `now`; rows without any may be left out.
    async fn due_units(
        &mut self,
        keys: &BTreeSet<StockKey>,
        now: Timestamp,
    ) -> Result<BTreeMap<StockKey, i64>, StoreError>;

    /// Locks the rates with these keys in their order, and reads the theoretical arrivals of their
    /// next permits, in microseconds since 1970.
    async fn lock_admission(
        &mut self,
        keys: &BTreeSet<AdmissionKey>,
    ) -> Result<BTreeMap<AdmissionKey, i64>, StoreError>;

    /// The units of this row of stock that its open lines have, and the holds whose release was
    /// given up, which have none; both in one snapshot. The caller has locked the row.
    async fn claimed_units(&mut self, key: &StockKey) -> Result<i64, StoreError>;

    /// The units of those of these open lines that exist. The caller has locked the reservations.
    async fn open_lines(
        &mut self,
        lines: &BTreeSet<OpenLine>,
    ) -> Result<BTreeMap<OpenLine, i64>, StoreError>;

    /// Which of these jobs the ledger shows.
    async fn jobs_done(&mut self, jobs: &BTreeSet<JobId>) -> Result<BTreeSet<JobId>, StoreError>;

    /// The payments that were refused for these reservations.
    async fn refused_payments(
        &mut self,
        ids: &BTreeSet<ReservationId>,
    ) -> Result<BTreeSet<(ReservationId, PaymentReference)>, StoreError>;

    /// Writes changed reservations, each under its guard, the ledger, and the arrivals of permits
    /// whose keys were locked. Takes no lock on stock.
    async fn write_transitions(
        &mut self,
        changes: &Changes,
        now: Timestamp,
    ) -> Result<(), StoreError>;

    /// Writes stock (rows that were not locked before are locked in the order of their keys, each
    /// waited for briefly), fresh reservations, the outbox, answers, and last the events under the
    /// event head.
    async fn write_rest(
        &mut self,
        changes: &Changes,
        answers: &[RecordedAnswer],
        now: Timestamp,
    ) -> Result<(), StoreError>;

    /// Takes open lines away, and puts others in. The caller has locked the reservations.
    async fn replace_lines(
        &mut self,
        closed: &BTreeMap<OpenLine, i64>,
        opened: &BTreeMap<OpenLine, i64>,
    ) -> Result<(), StoreError>;

    /// Moves the next attempt at held reservations, never to before their deadlines, and adds what
    /// that means to their waits.
    async fn defer(
        &mut self,
        deferrals: &BTreeMap<ReservationId, Deferral>,
        now: Timestamp,
    ) -> Result<(), StoreError>;

    /// Gives up the release of reservations that are due at `now`: nothing tries them any more,
    /// their units no longer count as due, and each gets its case in quarantine. What is not due
    /// gets its case only.
    async fn park(
        &mut self,
        sightings: &BTreeMap<ReservationId, Sighting>,
        now: Timestamp,
    ) -> Result<(), StoreError>;

    /// Takes up again what was given up: it is due, and tried next at `now`. Others stay as they
    /// are.
    async fn unpark(
        &mut self,
        ids: &BTreeSet<ReservationId>,
        now: Timestamp,
    ) -> Result<(), StoreError>;

    /// Commits. After [`StoreError::CommitLost`] the fate must be asked; after any other error
    /// nothing has happened.
    async fn commit(self: Box<Self>) -> Result<(), StoreError>;

    /// Leaves nothing.
    async fn rollback(self: Box<Self>);
}

/// What to do about a row that another transaction has locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Wait for it for 100 ms, then fail with [`StoreError::Contended`].
    Briefly,
    /// Do without it.
    Skip,
}

/// Reservations that a transaction holds.
#[derive(Debug, Default)]
pub struct LockedReservations {
    /// The rows.
    pub rows: Vec<Reservation>,
    /// Those that exist and are locked by another transaction.
    pub elsewhere: BTreeSet<ReservationId>,
    /// Those that are locked by this transaction and cannot be understood.
    pub corrupt: BTreeMap<ReservationId, CorruptRow>,
}

/// Rows of stock that a transaction holds.
#[derive(Debug, Default)]
pub struct LockedStock {
    /// The rows.
    pub rows: Vec<Stock>,
    /// Those that exist and are locked by another transaction.
    pub elsewhere: BTreeSet<StockKey>,
}

/// Idempotency keys that a transaction holds.
#[derive(Debug, Default)]
pub struct LockedKeys {
    /// What is recorded under keys that were used before, however long ago.
    pub recorded: BTreeMap<Key, RecordedAnswer>,
    /// Those that another transaction is busy with.
    pub elsewhere: BTreeSet<Key>,
}

/// An Idempotency-Key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Whose key it is; different callers may use the same one.
    pub scope: String,
    /// What the caller sent.
    pub key: String,
}

/// The answer recorded under an Idempotency-Key, to be given again for the same request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedAnswer {
    /// The key.
    pub key: Key,
    /// What the request was: SHA-256, 32 bytes.
    pub fingerprint: Vec<u8>,
    /// The answer.
    pub answer: Answer,
    /// When it was given.
    pub created_at: Timestamp,
}

/// An answer, in the words of whoever asked the engine; for HTTP a status, headers and a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// The `Location` header.
    pub location: Option<String>,
    /// The body.
    pub body: String,
}

/// The answer to [`Store::next_attempt`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextAttempt {
    /// The database's now.
    pub now: Timestamp,
    /// The earliest attempt, if anything is held.
    pub attempt_at: Option<Timestamp>,
}

/// Which rows of stock to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StockFilter {
    /// Only these; none means all.
    pub skus: Vec<Sku>,
    /// Only there.
    pub location: Option<Location>,
}

/// Which reservations to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReservationFilter {
    /// Only those that read as this state; see [`Reservation::state_at`].
    pub state: Option<State>,
    /// Only this customer's.
    pub customer_id: Option<crate::domain::CustomerId>,
    /// Only those with this reference.
    pub reference: Option<crate::domain::Reference>,
}

/// An event with its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedEvent {
    /// 1, 2, 3, ... in commit order.
    pub seq: i64,
    /// What happened.
    pub event: crate::domain::Event,
}

/// Something that `audit` found not to be as promised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drift {
    /// The promise, `P1`, `P2`, `P7`, `P8`, or `P9` for the ledger against the events.
    pub promise: &'static str,
    /// The row, such as `stock SKU-1 at default`.
    pub row: String,
    /// What is wrong with it.
    pub detail: String,
}

/// The database's name for a transaction, by which its fate can be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionId(pub String);

/// What became of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It was committed.
    Committed,
    /// It was not, and will not be.
    Aborted,
    /// It still runs, or the database no longer knows.
    Unknown,
}

/// A row that cannot be what it says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{table}.{column} of {row}: {detail}")]
pub struct CorruptRow {
    /// The table.
    pub table: &'static str,
    /// The column.
    pub column: &'static str,
    /// The row's key.
    pub row: String,
    /// What is wrong with the value.
    pub detail: String,
}

/// Why the database did not do it. Except after `CommitLost`, nothing has happened.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another transaction was in the way: a lock that did not come in time, or a deadlock that
    /// the database ended. The same again may work.
    #[error("another transaction is in the way: {0}")]
    Contended(String),
    /// A constraint refused a row.
    #[error("constraint {constraint} refused a row: {detail}")]
    Constraint {
        /// Its name in the schema.
        constraint: String,
        /// What the database says.
        detail: String,
    },
    /// A row is not what it must be.
    #[error(transparent)]
    Corrupt(#[from] CorruptRow),
    /// A guarded or counted statement changed more or fewer rows than it named.
    #[error("{statement} changed {changed} rows, not {expected}")]
    RowCount {
        /// Which statement.
        statement: &'static str,
        /// How many rows it named.
        expected: usize,
        /// How many it changed.
        changed: u64,
    },
    /// The connection was lost after COMMIT was sent.
    #[error("the connection was lost during COMMIT")]
    CommitLost(TransactionId),
    /// The database cannot be reached, or is out of connections, disk or time.
    #[error("the database is out of reach: {0}")]
    Unavailable(String),
    /// The schema is not the one this program was built for.
    #[error("{0}")]
    Schema(String),
}

impl StoreError {
    /// What is to be done about what failed by it: the same table, on this side, as the one of
    /// faults between us and a queue.
    pub const fn setback(&self) -> Setback {
        match self {
            Self::Corrupt(_) => Setback::Hopeless,
            Self::Constraint { .. } | Self::RowCount { .. } => Setback::Failed,
            Self::Contended(_) | Self::CommitLost(_) | Self::Unavailable(_) | Self::Schema(_) => {
                Setback::Unavailable
            }
        }
    }

    /// Is the fault in the rows, so that a smaller batch may go through?
    pub fn is_about_rows(&self) -> bool {
        matches!(
            self,
            Self::Constraint { .. } | Self::Corrupt(_) | Self::RowCount { .. }
        )
    }
}

/// Which clock decides.
#[derive(Clone, Debug)]
pub enum Clock {
    /// The database's own; on SQLite the process's, which never goes back within the process.
    Database,
    /// One that a test or the lab moves by hand.
    Manual(std::sync::Arc<ManualClock>),
}

/// A clock that stands still until it is moved.
#[derive(Debug)]
pub struct ManualClock(std::sync::atomic::AtomicI64);

impl ManualClock {
    /// A clock that stands at `now`.
    pub fn at(now: Timestamp) -> std::sync::Arc<Self> {
        std::sync::Arc::new(Self(now.as_millis().into()))
    }

    /// What it shows.
    pub fn now(&self) -> Timestamp {
        let millis = self.0.load(std::sync::atomic::Ordering::SeqCst);
        Timestamp::from_millis(millis).unwrap_or(Timestamp::MAX)
    }

    /// Moves it on.
    pub fn advance(&self, millis: i64) {
        self.set(self.now().saturating_add_millis(millis));
    }

    /// Sets it.
    pub fn set(&self, now: Timestamp) {
        self.0
            .store(now.as_millis(), std::sync::atomic::Ordering::SeqCst);
    }
}
