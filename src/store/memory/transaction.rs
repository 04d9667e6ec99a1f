//! One batch: what it writes is checked as a database would, kept apart, and applied at commit.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use tokio::sync::OwnedMutexGuard;

use super::rows::Rows;
use super::{lock, quarantine};
use crate::domain::{
    AdmissionKey, Changes, Deferral, Event, EventKind, JobId, LedgerEntry, MAX_ON_HAND, Message,
    OpenLine, OutboxEntry, PaymentReference, Reservation, ReservationChange, ReservationId, State,
    Stock, StockDelta, StockKey, Timestamp, open_lines,
};
use crate::store::{
    Clock, Key, LockedKeys, LockedReservations, LockedStock, RecordedAnswer, RecordedEvent,
    Sighting, StoreError, Transaction, Wait,
};

/// A transaction that has the turn, so that nobody else writes.
pub(super) struct MemoryTransaction {
    _turn: OwnedMutexGuard<()>,
    committed: Arc<Mutex<Rows>>,
    clock: Clock,
    staged: Staged,
}

/// What will be so after the commit. Only stock and single reservations are read back from here
/// before that: claims come before writes.
#[derive(Default)]
struct Staged {
    /// Rows of stock that this transaction made.
    made: BTreeMap<StockKey, Stock>,
    stock: BTreeMap<StockKey, Stock>,
    reservations: BTreeMap<ReservationId, Reservation>,
    ledger: BTreeMap<JobId, LedgerEntry>,
    refused_payments: BTreeSet<(ReservationId, PaymentReference)>,
    arrivals_us: BTreeMap<AdmissionKey, i64>,
    sightings: Vec<(Sighting, Timestamp)>,
    outbox: Vec<OutboxEntry>,
    events: Vec<Event>,
    answers: Vec<RecordedAnswer>,
}

impl MemoryTransaction {
    pub(super) fn new(
        turn: OwnedMutexGuard<()>,
        committed: Arc<Mutex<Rows>>,
        clock: Clock,
    ) -> Self {
        Self {
            _turn: turn,
            committed,
            clock,
            staged: Staged::default(),
        }
    }

    fn reservation(&self, id: ReservationId) -> Option<Reservation> {
        let staged = self.staged.reservations.get(&id).cloned();
        staged.or_else(|| lock(&self.committed).reservations.get(&id).cloned())
    }

    fn stock(&self, key: &StockKey) -> Option<Stock> {
        let staged = self.staged.stock.get(key);
        let staged = staged.or_else(|| self.staged.made.get(key)).cloned();
        staged.or_else(|| lock(&self.committed).stock.get(key).cloned())
    }

    fn locked(&self, ids: impl IntoIterator<Item = ReservationId>) -> LockedReservations {
        LockedReservations {
            rows: ids
                .into_iter()
                .filter_map(|id| self.reservation(id))
                .collect(),
            ..LockedReservations::default()
        }
    }

    fn add_to_stock(
        &mut self,
        deltas: &BTreeMap<StockKey, StockDelta>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let mut changed = 0;
        for (key, delta) in deltas {
            let Some(mut stock) = self.stock(key) else {
                continue;
            };
            stock.on_hand += delta.on_hand;
            stock.held += delta.held;
            stock.updated_at = now;
            if !(0..=MAX_ON_HAND).contains(&stock.on_hand) {
                return Err(refused("stock_on_hand_in_range", key));
            }
            if !(0..=stock.on_hand).contains(&stock.held) {
                return Err(refused("stock_held_within_on_hand", key));
            }
            self.staged.stock.insert(key.clone(), stock);
            changed += 1;
        }
        counted("update stock", deltas.len(), changed)
    }

    fn stage_event(&mut self, event: &Event) -> Result<(), StoreError> {
        if event.kind == EventKind::PaymentRefused
            && let Some(id) = event.reservation_id
            && let Some(payment) = event.data.value()["payment_reference"].as_str()
            && let Ok(payment) = PaymentReference::new(payment)
        {
            let refusal = (id, payment);
            let known = lock(&self.committed).refused_payments.contains(&refusal);
            if known || !self.staged.refused_payments.insert(refusal) {
                return Err(refused("events_payment_refused_once", id));
            }
        }
        self.staged.events.push(event.clone());
        Ok(())
    }
}

#[async_trait]
impl Transaction for MemoryTransaction {
    async fn lock_keys(&mut self, keys: &BTreeSet<Key>) -> Result<LockedKeys, StoreError> {
        let rows = lock(&self.committed);
        let recorded = keys.iter().filter_map(|key| {
            let answer = rows.answers.get(key)?;
            Some((key.clone(), answer.clone()))
        });
        Ok(LockedKeys {
            recorded: recorded.collect(),
            elsewhere: BTreeSet::new(),
        })
    }

    async fn lock_reservations(
        &mut self,
        ids: &BTreeSet<ReservationId>,
        _: Wait,
    ) -> Result<LockedReservations, StoreError> {
        Ok(self.locked(ids.iter().copied()))
    }

    async fn claim_due(
        &mut self,
        from: Timestamp,
        grace_ms: i64,
        limit: usize,
    ) -> Result<LockedReservations, StoreError> {
        let latest = self.clock.in_process().saturating_add_millis(-grace_ms);
        let due: Vec<_> = lock(&self.committed)
            .attempts_from(from)
            .take_while(|(attempt_at, _)| *attempt_at <= latest)
            .take(limit)
            .map(|(_, id)| id)
            .collect();
        Ok(self.locked(due))
    }

    async fn claim_due_of(
        &mut self,
        key: &StockKey,
        units: i64,
        limit: usize,
    ) -> Result<LockedReservations, StoreError> {
        let now = self.clock.in_process();
        let mut missing = units;
        let enough: Vec<_> = lock(&self.committed)
            .due_lines(key, now)
            .take(limit)
            .take_while(|(_, units)| {
                let needed = missing > 0;
                missing -= units;
                needed
            })
            .map(|(id, _)| id)
            .collect();
        Ok(self.locked(enough))
    }

    async fn make_stock(&mut self, keys: &BTreeSet<StockKey>) -> Result<(), StoreError> {
        let now = self.clock.in_process();
        for key in keys {
            if self.stock(key).is_none() {
                let made = Stock::none(key.clone(), now);
                self.staged.made.insert(key.clone(), made);
            }
        }
        Ok(())
    }

    async fn lock_stock(
        &mut self,
        keys: &BTreeSet<StockKey>,
        _: Wait,
    ) -> Result<LockedStock, StoreError> {
        Ok(LockedStock {
            rows: keys.iter().filter_map(|key| self.stock(key)).collect(),
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
        let rows = lock(&self.committed);
        let counted = keys
            .iter()
            .map(|key| (key.clone(), rows.due_units(key, now)));
        Ok(counted.filter(|(_, due)| *due > 0).collect())
    }

    async fn lock_admission(
        &mut self,
        keys: &BTreeSet<AdmissionKey>,
    ) -> Result<BTreeMap<AdmissionKey, i64>, StoreError> {
        let rows = lock(&self.committed);
        let known = keys
            .iter()
            .filter_map(|key| Some((key.clone(), *rows.arrivals_us.get(key)?)));
        Ok(known.collect())
    }

    async fn claimed_units(&mut self, key: &StockKey) -> Result<i64, StoreError> {
        let rows = lock(&self.committed);
        let open = rows.due_units(key, Timestamp::MAX);
        let parked = rows.reservations.values().filter(|row| row.is_parked());
        let parked = parked.filter_map(|row| row.units().get(key).copied());
        Ok(open + parked.sum::<i64>())
    }

    async fn open_lines(
        &mut self,
        lines: &BTreeSet<OpenLine>,
    ) -> Result<BTreeMap<OpenLine, i64>, StoreError> {
        let ids: BTreeSet<_> = lines.iter().map(|line| line.reservation).collect();
        let held = ids.into_iter().filter_map(|id| self.reservation(id));
        let open = held
            .filter(|row| row.state == State::Held)
            .flat_map(|row| open_lines(&row));
        Ok(open.filter(|(line, _)| lines.contains(line)).collect())
    }

    async fn jobs_done(&mut self, jobs: &BTreeSet<JobId>) -> Result<BTreeSet<JobId>, StoreError> {
        let rows = lock(&self.committed);
        let done = jobs.iter().filter(|job| rows.ledger.contains_key(*job));
        Ok(done.cloned().collect())
    }

    async fn refused_payments(
        &mut self,
        ids: &BTreeSet<ReservationId>,
    ) -> Result<BTreeSet<(ReservationId, PaymentReference)>, StoreError> {
        let rows = lock(&self.committed);
        let refused = rows.refused_payments.iter();
        Ok(refused
            .filter(|(id, _)| ids.contains(id))
            .cloned()
            .collect())
    }

    async fn write_transitions(
        &mut self,
        changes: &Changes,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let (mut expected, mut changed) = (0, 0);
        for change in changes.reservations.values() {
            if change.guard.is_none() {
                continue;
            }
            expected += 1;
            let id = change.reservation.id;
            if let Some(row) = self.reservation(id)
                && guard_holds(&row, change, now)
            {
                check_reservation(&change.reservation)?;
                let after = change.reservation.clone();
                self.staged.reservations.insert(id, after);
                changed += 1;
            }
        }
        counted("update reservations", expected, changed)?;
        for entry in &changes.ledger {
            let job = entry.job.id();
            let known = lock(&self.committed).ledger.contains_key(&job);
            if known || self.staged.ledger.contains_key(&job) {
                return Err(refused("ledger_pkey", job));
            }
            self.staged.ledger.insert(job, entry.clone());
        }
        self.staged.arrivals_us.extend(changes.arrivals_us.clone());
        Ok(())
    }

    async fn write_rest(
        &mut self,
        changes: &Changes,
        answers: &[RecordedAnswer],
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let made = &mut self.staged.made;
        made.retain(|key, _| changes.new_stock.contains(key));
        self.add_to_stock(&changes.stock, now)?;
        for change in changes.reservations.values() {
            let fresh = &change.reservation;
            if change.guard.is_some() {
                continue;
            }
            if self.reservation(fresh.id).is_some() {
                return Err(refused("reservations_pkey", fresh.id));
            }
            check_reservation(fresh)?;
            self.staged.reservations.insert(fresh.id, fresh.clone());
        }
        for entry in changes.outbox.values() {
            let first = Message::first(entry.job);
            if !entry.again && lock(&self.committed).outbox.contains_key(&first) {
                return Err(refused("outbox_pkey", first.key()));
            }
            self.staged.outbox.push(*entry);
        }
        for answer in answers {
            if answer.fingerprint.len() != 32 {
                return Err(refused("idempotency_fingerprint_length", &answer.key.key));
            }
            self.staged.answers.push(answer.clone());
        }
        for event in &changes.events {
            self.stage_event(event)?;
        }
        Ok(())
    }

    /// Open lines are derived here from the reservations, and there is nothing to replace.
    async fn replace_lines(
        &mut self,
        closed: &BTreeMap<OpenLine, i64>,
        opened: &BTreeMap<OpenLine, i64>,
    ) -> Result<(), StoreError> {
        counted("replace open_lines", closed.len() + opened.len(), 0)
    }

    async fn defer(
        &mut self,
        deferrals: &BTreeMap<ReservationId, Deferral>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        for (id, deferral) in deferrals {
            if let Some(mut row) = self.reservation(*id)
                && row.state == State::Held
            {
                row.put_off(*deferral, now);
                self.staged.reservations.insert(*id, row);
            }
        }
        Ok(())
    }

    async fn park(
        &mut self,
        sightings: &BTreeMap<ReservationId, Sighting>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        for (id, sighting) in sightings {
            if let Some(mut row) = self.reservation(*id)
                && row.is_due(now)
            {
                row.attempt_at = Timestamp::MAX;
                self.staged.reservations.insert(*id, row);
            }
            self.staged.sightings.push((sighting.clone(), now));
        }
        Ok(())
    }

    async fn unpark(
        &mut self,
        ids: &BTreeSet<ReservationId>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        for id in ids {
            if let Some(mut row) = self.reservation(*id)
                && row.is_parked()
            {
                row.attempt_at = now.max(row.expires_at);
                self.staged.reservations.insert(*id, row);
            }
        }
        Ok(())
    }

    async fn commit(self: Box<Self>) -> Result<(), StoreError> {
        let staged = self.staged;
        let mut rows = lock(&self.committed);
        rows.stock.extend(staged.made);
        rows.stock.extend(staged.stock);
        for reservation in staged.reservations.into_values() {
            rows.put_reservation(reservation);
        }
        for entry in &staged.outbox {
            rows.put_entry(entry);
        }
        rows.ledger.extend(staged.ledger);
        rows.arrivals_us.extend(staged.arrivals_us);
        for (sighting, now) in staged.sightings {
            quarantine::record(&mut rows, sighting, now);
        }
        rows.refused_payments.extend(staged.refused_payments);
        let last = rows.events.last().map(|last| last.seq);
        let head = last.unwrap_or(rows.horizons.last_deleted_event);
        for (event, seq) in staged.events.into_iter().zip(head + 1..) {
            rows.events.push(RecordedEvent { seq, event });
        }
        for answer in staged.answers {
            rows.answers.insert(answer.key.clone(), answer);
        }
        Ok(())
    }

    async fn rollback(self: Box<Self>) {}
}

/// What the databases demand in the statement by which a reservation changes (P2, P3).
fn guard_holds(row: &Reservation, change: &ReservationChange, now: Timestamp) -> bool {
    let Some(guard) = change.guard else {
        return false;
    };
    let after = &change.reservation;
    let releases = after.state == State::Expired || after.reacquired;
    row.state == guard.state
        && row.expires_at == guard.expires_at
        && (row.state != State::Held || row.is_due(now) == releases)
}

/// What the databases demand of every row.
fn check_reservation(row: &Reservation) -> Result<(), StoreError> {
    let paid = row.state == State::Paid;
    let checks = [
        (
            "reservations_held_until_closed",
            (row.state == State::Held) == row.closed_at.is_none(),
        ),
        (
            "reservations_attempt_not_early",
            row.attempt_at >= row.expires_at,
        ),
        (
            "reservations_payment_when_paid",
            paid || row.payment_reference.is_none(),
        ),
        ("reservations_reacquired_when_paid", paid || !row.reacquired),
    ];
    match checks.into_iter().find(|(_, kept)| !kept) {
        Some((constraint, _)) => Err(refused(constraint, row.id)),
        None => Ok(()),
    }
}

fn counted(statement: &'static str, expected: usize, changed: u64) -> Result<(), StoreError> {
    if u64::try_from(expected) == Ok(changed) {
        return Ok(());
    }
    Err(StoreError::RowCount {
        statement,
        expected,
        changed,
    })
}

fn refused(constraint: &str, row: impl std::fmt::Display) -> StoreError {
    StoreError::Constraint {
        constraint: constraint.to_owned(),
        detail: row.to_string(),
    }
}
