//! A store with a clock that is moved by hand, and the smallest engine that can fill it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use holdfast::domain::{
    Changes, Command, Deadline, Decision, Deferral, DeferralCause, Early, Job, Line, OnExpired,
    Outcome, QueueRule, Reservation, ReservationId, Reserve, Rules, Snapshot, Stock, StockKey,
    Text, Timestamp, Via, decide,
};
use holdfast::store::{ManualClock, RecordedAnswer, Store, StoreError, Transaction, Wait};

/// One store with nothing in it, for one test.
pub struct World {
    pub store: Arc<dyn Store>,
    pub clock: Arc<ManualClock>,
    /// The queue that the domain knows of.
    pub queue: Option<QueueRule>,
}

/// So many milliseconds after the start of the test's time.
pub fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(1_800_000_000_000 + millis).unwrap()
}

pub fn text<const MAX: usize>(text: &str) -> Text<MAX> {
    Text::new(text).unwrap()
}

/// A row of stock at `default`.
pub fn key(sku: &str) -> StockKey {
    key_at("default", sku)
}

pub fn key_at(location: &str, sku: &str) -> StockKey {
    StockKey {
        location: text(location),
        sku: text(sku),
    }
}

pub fn line(sku: &str, quantity: i64) -> Line {
    line_at("default", sku, quantity)
}

pub fn line_at(location: &str, sku: &str, quantity: i64) -> Line {
    Line {
        sku: text(sku),
        location: text(location),
        quantity,
    }
}

/// A new reservation; each has another name.
pub fn reserve(lines: &[Line], seconds: i64) -> Command {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let mut entropy = [0; 10];
    entropy[2..].copy_from_slice(&count.to_be_bytes());
    Command::Reserve(Reserve {
        entropy,
        lines: lines.to_vec(),
        until: Deadline::In { seconds },
        merchant: holdfast::domain::default_merchant(),
        customer_id: None,
        reference: None,
        metadata: BTreeMap::new(),
    })
}

pub fn set(sku: &str, on_hand: i64) -> Command {
    Command::SetStock {
        key: key(sku),
        on_hand,
    }
}

pub fn extend(id: ReservationId, seconds: i64) -> Command {
    Command::Extend {
        id,
        until: Deadline::In { seconds },
    }
}

pub fn cancel(id: ReservationId) -> Command {
    Command::Cancel { id, reason: None }
}

pub fn check_out(id: ReservationId, payment: &str, on_expired: OnExpired) -> Command {
    Command::CheckOut {
        id,
        payment_reference: Some(text(payment)),
        on_expired,
    }
}

pub fn expire(reservation: &Reservation) -> Command {
    expire_at(reservation.id, reservation.expires_at)
}

pub fn expire_at(reservation: ReservationId, deadline: Timestamp) -> Command {
    let job = Job {
        reservation,
        deadline,
    };
    Command::Expire {
        job,
        via: Via::Push,
        early: Early::Report,
    }
}

/// What a batch of commands changes, decided on what `transaction` has locked.
pub async fn decide_in(
    transaction: &mut dyn Transaction,
    commands: &[Command],
) -> Result<(Vec<Outcome>, Changes, Timestamp), StoreError> {
    decide_with(transaction, None, commands).await
}

/// The same with a queue.
async fn decide_with(
    transaction: &mut dyn Transaction,
    queue: Option<QueueRule>,
    commands: &[Command],
) -> Result<(Vec<Outcome>, Changes, Timestamp), StoreError> {
    let mut ids = BTreeSet::new();
    let mut jobs = BTreeSet::new();
    let mut new_stock = BTreeSet::new();
    let mut keys = BTreeSet::new();
    for command in commands {
        match command {
            Command::Reserve(reserve) => keys.extend(reserve.units().into_keys()),
            Command::Extend { id, .. }
            | Command::CheckOut { id, .. }
            | Command::Cancel { id, .. } => {
                ids.insert(*id);
            }
            Command::Expire { job, .. } => {
                ids.insert(job.reservation);
                jobs.insert(job.id());
            }
            Command::SetStock { key, .. } | Command::AdjustStock { key, .. } => {
                new_stock.insert(key.clone());
                keys.insert(key.clone());
            }
        }
    }
    let reservations = transaction.lock_reservations(&ids, Wait::Briefly).await?;
    let ledger = transaction.jobs_done(&jobs).await?;
    let refused_payments = transaction.refused_payments(&ids).await?;
    for reservation in &reservations.rows {
        keys.extend(reservation.units().into_keys());
    }
    transaction.make_stock(&new_stock).await?;
    let stock = transaction.lock_stock(&keys, Wait::Briefly).await?;
    let now = transaction.now().await?;
    let due = transaction.due_units(&keys, now).await?;
    let counted = stock.rows.into_iter().map(|stock| Stock {
        due: due.get(&stock.key).copied().unwrap_or_default(),
        ..stock
    });
    let mut snapshot = Snapshot {
        reservations: (reservations.rows.into_iter())
            .map(|reservation| (reservation.id, reservation))
            .collect(),
        stock: counted.map(|stock| (stock.key.clone(), stock)).collect(),
        ledger,
        refused_payments,
        pace: None,
    };
    let rules = Rules {
        max_hold_seconds: 2_592_000,
        queue,
    };
    let mut outcomes = Vec::new();
    let mut sum = Changes::default();
    for command in commands {
        match decide(rules, &snapshot, command, now) {
            Decision::Done { outcome, changes } => {
                snapshot.fold(&changes, now);
                sum.add(changes);
                outcomes.push(outcome);
            }
            Decision::SetAside(lacking) => panic!("{command:?} is set aside for {lacking:?}"),
        }
    }
    Ok((outcomes, sum, now))
}

/// What puts these holds off, as a lock does that does not come free.
pub fn put_off(
    ids: impl IntoIterator<Item = ReservationId>,
    attempt_at: Timestamp,
) -> BTreeMap<ReservationId, Deferral> {
    let cause = DeferralCause::Blocked;
    let deferral = Deferral { attempt_at, cause };
    ids.into_iter().map(|id| (id, deferral)).collect()
}

impl World {
    /// Decides commands as one batch, and writes nothing.
    pub async fn decide(&self, commands: &[Command]) -> Changes {
        let mut transaction = self.store.begin().await.unwrap();
        let decided = decide_with(transaction.as_mut(), self.queue, commands).await;
        let (_, changes, _) = decided.unwrap();
        transaction.rollback().await;
        changes
    }

    /// Decides commands as one batch, and commits what they change.
    pub async fn run(&self, commands: &[Command]) -> Vec<Outcome> {
        let mut transaction = self.store.begin().await.unwrap();
        let decided = decide_with(transaction.as_mut(), self.queue, commands).await;
        let (outcomes, changes, now) = decided.unwrap();
        transaction.write_transitions(&changes, now).await.unwrap();
        let keys = changes.stock.keys().cloned().collect();
        transaction.lock_stock(&keys, Wait::Briefly).await.unwrap();
        transaction.write_rest(&changes, &[], now).await.unwrap();
        transaction.commit().await.unwrap();
        outcomes
    }

    /// Runs a command that makes or changes a reservation.
    pub async fn reservation(&self, command: Command) -> Reservation {
        let outcomes = self.run(&[command]).await;
        match outcomes.into_iter().next() {
            Some(Outcome::Reservation { reservation, .. }) => *reservation,
            other => panic!("{other:?}"),
        }
    }

    /// Writes changes and answers in a transaction of their own.
    pub async fn write(
        &self,
        changes: &Changes,
        answers: &[RecordedAnswer],
    ) -> Result<(), StoreError> {
        let mut transaction = self.store.begin().await?;
        let now = transaction.now().await?;
        transaction.make_stock(&changes.new_stock).await?;
        transaction.write_transitions(changes, now).await?;
        let keys = changes.stock.keys().cloned().collect();
        transaction.lock_stock(&keys, Wait::Briefly).await?;
        transaction.write_rest(changes, answers, now).await?;
        transaction.commit().await
    }

    /// The row as it is stored.
    pub async fn stored(&self, id: ReservationId) -> Reservation {
        let (reservation, _) = self.store.reservation(id).await.unwrap();
        reservation.unwrap()
    }

    /// On hand, held and due of a row of stock, if it exists.
    pub async fn shelf(&self, key: &StockKey) -> Option<(i64, i64, i64)> {
        let wanted = BTreeMap::from([(key.clone(), i64::MAX)]);
        let stock = self.store.stock(&wanted).await.unwrap();
        let stock = stock.get(key)?;
        Some((stock.on_hand, stock.held, stock.due))
    }

    /// What an audit says, as promise and row.
    pub async fn drifts(&self) -> BTreeSet<(&'static str, String)> {
        let drifts = self.store.audit().await.unwrap();
        let named = drifts.into_iter().map(|drift| (drift.promise, drift.row));
        named.collect()
    }
}

/// The name of the constraint that refused, or else a panic.
pub fn constraint(result: Result<(), StoreError>) -> String {
    match result {
        Err(StoreError::Constraint { constraint, .. }) => constraint,
        other => panic!("no constraint refused this: {other:?}"),
    }
}

/// How many rows a statement named and changed, if it was refused for that; or else a panic.
pub fn row_count(result: Result<(), StoreError>) -> (usize, u64) {
    match result {
        Err(StoreError::RowCount {
            expected, changed, ..
        }) => (expected, changed),
        other => panic!("no count refused this: {other:?}"),
    }
}
