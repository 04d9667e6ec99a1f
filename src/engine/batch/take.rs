//! What a batch takes and reads before it decides, in the total lock order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Batch;
use crate::domain::{
    AdmissionKey, Command, JobOutcome, OnExpired, Outcome, Pace, Reservation, ReservationId, State,
    StockKey, Timestamp,
};
use crate::engine::ticket::{Aside, Claim, Verdict};
use crate::engine::{EngineError, Keyed, Reply};
use crate::store::{Key, LockedReservations, StoreError, Transaction, Wait};

/// How long an answer is given again under its Idempotency-Key, in milliseconds.
const KEY_LIFETIME_MS: i64 = 24 * 3_600 * 1_000;
/// The most due holds that one batch releases for the sake of one row of stock.
const DEMAND_LIMIT: usize = 1_000;

impl Batch<'_> {
    pub(super) async fn lock_keys(&mut self, tx: &mut dyn Transaction) -> Result<(), StoreError> {
        let keys: BTreeSet<Key> = self
            .open_items()
            .filter_map(|(_, item)| Some(item.keyed.as_ref()?.key.clone()))
            .collect();
        if keys.is_empty() {
            return Ok(());
        }
        let locked = tx.lock_keys(&keys).await?;
        if !locked.recorded.is_empty() {
            let now = tx.now().await?;
            for (key, recorded) in locked.recorded {
                if now.millis_since(recorded.created_at) < KEY_LIFETIME_MS {
                    self.answered
                        .insert(key, (recorded.fingerprint, recorded.answer));
                }
            }
        }
        for (place, item) in self.items.iter().enumerate() {
            if let Some(keyed) = &item.keyed
                && self.verdicts[place].is_none()
            {
                self.verdicts[place] = if locked.elsewhere.contains(&keyed.key) {
                    Some(Verdict::Aside(Aside::Key))
                } else {
                    self.replay(keyed)
                };
            }
        }
        Ok(())
    }

    /// The verdict on a request whose key was used before.
    pub(super) fn replay(&self, keyed: &Keyed) -> Option<Verdict> {
        let (fingerprint, answer) = self.answered.get(&keyed.key)?;
        Some(if *fingerprint == keyed.fingerprint {
            Verdict::Answered(Reply::Replayed(answer.clone()))
        } else {
            Verdict::Failed(EngineError::KeyReused)
        })
    }

    pub(super) async fn lock_reservations(
        &mut self,
        tx: &mut dyn Transaction,
    ) -> Result<(), StoreError> {
        let ids: BTreeSet<ReservationId> = self
            .open_items()
            .filter_map(|(_, item)| item.command.reservation())
            .collect();
        if ids.is_empty() {
            return Ok(());
        }
        if !ids.is_disjoint(&self.suspects.reservations) {
            self.wait = Wait::Skip;
        }
        let locked = tx.lock_reservations(&ids, self.wait).await?;
        for id in &ids {
            self.suspects.reservations.remove(id);
        }
        self.suspects
            .reservations
            .extend(locked.elsewhere.iter().copied());
        for (place, item) in self.items.iter().enumerate() {
            let Some(id) = item.command.reservation() else {
                continue;
            };
            if self.verdicts[place].is_some() {
                continue;
            }
            if locked.elsewhere.contains(&id) {
                self.verdicts[place] = Some(Verdict::Aside(Aside::Rows));
            } else if let Some(row) = locked.corrupt.get(&id) {
                if matches!(item.command, Command::Expire { .. }) {
                    self.done.stuck.push((id, row.clone()));
                    let parked = Outcome::Job(JobOutcome::Parked);
                    self.verdicts[place] = Some(Verdict::Answered(Reply::Decided(parked)));
                    continue;
                }
                let error = StoreError::Corrupt(row.clone());
                self.verdicts[place] = Some(Verdict::Failed(EngineError::Store(error.into())));
            }
        }
        self.keep(locked);
        Ok(())
    }

    pub(super) async fn claim(
        &mut self,
        tx: &mut dyn Transaction,
        claim: &Claim,
    ) -> Result<(), StoreError> {
        match claim {
            Claim::Due { due, limit } => {
                let locked = tx.claim_due(due.from, due.grace_ms, *limit).await?;
                self.keep_claimed(locked);
            }
            Claim::Of(units) => {
                for (key, units) in units {
                    let mut locked = tx.claim_due_of(key, *units, DEMAND_LIMIT).await?;
                    locked
                        .rows
                        .retain(|row| !self.snapshot.reservations.contains_key(&row.id));
                    self.keep_claimed(locked);
                }
            }
        }
        Ok(())
    }

    fn keep_claimed(&mut self, locked: LockedReservations) {
        for (id, row) in &locked.corrupt {
            if self.blocked.insert(*id) {
                self.done.stuck.push((*id, row.clone()));
            }
        }
        self.claimed
            .extend(locked.rows.iter().map(Reservation::job));
        self.keep(locked);
    }

    fn keep(&mut self, locked: LockedReservations) {
        for reservation in locked.rows {
            self.snapshot
                .reservations
                .insert(reservation.id, reservation);
        }
    }

    /// Reads which jobs were done and which payments refused before.
    pub(super) async fn read_history(
        &mut self,
        tx: &mut dyn Transaction,
    ) -> Result<(), StoreError> {
        let mut jobs = BTreeSet::new();
        let mut paying = BTreeSet::new();
        for (_, item) in self.open_items() {
            match &item.command {
                Command::Expire { job, .. } => {
                    jobs.insert(job.id());
                }
                Command::CheckOut {
                    id,
                    payment_reference: Some(_),
                    ..
                } => {
                    paying.insert(*id);
                }
                _ => {}
            }
        }
        if !jobs.is_empty() {
            self.snapshot.ledger = tx.jobs_done(&jobs).await?;
        }
        if !paying.is_empty() {
            self.snapshot.refused_payments = tx.refused_payments(&paying).await?;
        }
        Ok(())
    }

    /// Locks the rates by which what is to expire here is paced.
    pub(super) async fn lock_admission(
        &mut self,
        tx: &mut dyn Transaction,
        claim: Option<&Claim>,
    ) -> Result<(), StoreError> {
        let Some(rule) = self.pace else {
            return Ok(());
        };
        let commands = self
            .open_items()
            .filter_map(|(_, item)| match &item.command {
                Command::Expire { job, via, .. } if via.is_paced() => Some(job.reservation),
                _ => None,
            });
        let claimed = claim
            .filter(|claim| claim.via().is_paced())
            .into_iter()
            .flat_map(|_| self.claimed.iter().map(|job| job.reservation));
        let keys: BTreeSet<AdmissionKey> = commands
            .chain(claimed)
            .filter_map(|id| self.snapshot.reservations.get(&id))
            .filter(|hold| hold.state == State::Held)
            .flat_map(|hold| rule.keys(hold))
            .collect();
        let arrivals_us = if keys.is_empty() {
            BTreeMap::new()
        } else {
            tx.lock_admission(&keys).await?
        };
        self.snapshot.pace = Some(Pace {
            rule: Arc::clone(rule),
            arrivals_us,
        });
        Ok(())
    }

    /// Locks stock now, if a command decides on it or if rows are in doubt. A batch that only
    /// adds to stock takes it as late as can be, with the update itself, so that a storm of
    /// expiries holds rows that shoppers want only for its last moment.
    pub(super) async fn lock_stock(&mut self, tx: &mut dyn Transaction) -> Result<(), StoreError> {
        let mut keys = BTreeSet::new();
        let mut made = BTreeSet::new();
        let mut decides = false;
        for (_, item) in self.unproved_items() {
            keys.extend(item.command.units().into_keys());
            if let Command::SetStock { key, .. } | Command::AdjustStock { key, .. } = &item.command
            {
                made.insert(key.clone());
            }
            decides |= decides_on_stock(&item.command);
        }
        keys.extend(
            self.snapshot
                .reservations
                .values()
                .flat_map(|row| row.units().into_keys()),
        );
        let suspect = !keys.is_disjoint(&self.suspects.stock);
        if suspect {
            self.wait = Wait::Skip;
        }
        if keys.is_empty() || !(decides || self.wait == Wait::Skip) {
            return Ok(());
        }
        if !made.is_empty() {
            tx.make_stock(&made).await?;
        }
        let locked = tx.lock_stock(&keys, self.wait).await?;
        for key in &keys {
            self.suspects.stock.remove(key);
        }
        self.suspects.stock.extend(locked.elsewhere.iter().cloned());
        self.set_aside_blocked(&locked.elsewhere);
        self.snapshot.stock = locked
            .rows
            .into_iter()
            .map(|row| (row.key.clone(), row))
            .collect();
        Ok(())
    }

    /// Sets aside what needs rows of stock that another transaction has locked.
    fn set_aside_blocked(&mut self, elsewhere: &BTreeSet<StockKey>) {
        if elsewhere.is_empty() {
            return;
        }
        let blocked = |id: &ReservationId| {
            self.snapshot
                .reservations
                .get(id)
                .is_some_and(|row| row.units().keys().any(|key| elsewhere.contains(key)))
        };
        let mut aside = Vec::new();
        for (place, item) in self.unproved_items() {
            let own = item.command.units();
            if own.keys().any(|key| elsewhere.contains(key))
                || item.command.reservation().is_some_and(|id| blocked(&id))
            {
                aside.push(place);
            }
        }
        let claimed = self.claimed.iter().map(|job| job.reservation);
        let claimed: Vec<ReservationId> = claimed.filter(blocked).collect();
        for place in aside {
            self.verdicts[place] = Some(Verdict::Aside(Aside::Rows));
        }
        self.blocked.extend(claimed);
    }

    /// Counts due units in the rows that have too little for all that the batch wants of them. A
    /// stock operation may leave any row with too little, and its answer says what is available.
    pub(super) async fn count_due(
        &mut self,
        tx: &mut dyn Transaction,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let mut wanted: BTreeMap<StockKey, i64> = BTreeMap::new();
        for (_, item) in self.unproved_items() {
            let units = match &item.command {
                Command::Reserve(reserve) => reserve.units(),
                Command::CheckOut { id, on_expired, .. } if *on_expired == OnExpired::Reacquire => {
                    let row = self.snapshot.reservations.get(id);
                    row.map(Reservation::units).unwrap_or_default()
                }
                Command::SetStock { key, .. } | Command::AdjustStock { key, .. } => {
                    [(key.clone(), i64::MAX)].into()
                }
                _ => continue,
            };
            for (key, units) in units {
                let sum = wanted.entry(key).or_default();
                *sum = sum.saturating_add(units);
            }
        }
        let short: BTreeSet<StockKey> = wanted
            .into_iter()
            .filter(|(key, wanted)| {
                let stock = self.snapshot.stock.get(key);
                stock.is_some_and(|stock| stock.held > 0 && stock.free() < *wanted)
            })
            .map(|(key, _)| key)
            .collect();
        if short.is_empty() {
            return Ok(());
        }
        for (key, due) in tx.due_units(&short, now).await? {
            if let Some(stock) = self.snapshot.stock.get_mut(&key) {
                stock.due = due;
            }
        }
        Ok(())
    }
}

/// Does the decision depend on what is in stock?
fn decides_on_stock(command: &Command) -> bool {
    match command {
        Command::Reserve(_) | Command::SetStock { .. } | Command::AdjustStock { .. } => true,
        Command::CheckOut { on_expired, .. } => *on_expired == OnExpired::Reacquire,
        Command::Extend { .. } | Command::Cancel { .. } | Command::Expire { .. } => false,
    }
}
