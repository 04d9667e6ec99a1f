//! One batch, one transaction.
//!
//! The order of the steps in [`Batch::fill`] is the total lock order of the store port, and the
//! same for every batch of every instance: keys, reservations, stock, and last the event head.
//! `now` is read by a statement of its own after the last lock that a decision needs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::sync::oneshot;

use super::{EngineError, Keyed, Reply};
use crate::domain::{
    Changes, Command, Decision, Job, JobOutcome, Lacking, OnExpired, Outcome, Reservation,
    ReservationId, Rules, Snapshot, StockKey, Timestamp, Via, decide, insufficient,
};
use crate::store::{
    Answer, CorruptRow, Key, LockedReservations, RecordedAnswer, Store, StoreError, Transaction,
    Wait,
};

/// How long an answer is given again under its Idempotency-Key, in milliseconds.
const KEY_LIFETIME_MS: i64 = 24 * 3_600 * 1_000;
/// When a due hold is tried again that another transaction stands in the way of, in milliseconds.
const BLOCKED_RETRY_MS: i64 = 250;
/// When a due hold is tried again that cannot be released, in milliseconds.
const STUCK_RETRY_MS: i64 = 60_000;
/// For how long no batch waits for a row that was once waited for in vain, first and at most.
const DISTRUST_MIN: Duration = Duration::from_millis(250);
const DISTRUST_MAX: Duration = Duration::from_secs(4);
/// The most due holds that one batch releases for the sake of one row of stock.
const DEMAND_LIMIT: usize = 1_000;

/// One command on its way through a lane.
pub(super) struct Ticket {
    pub command: Command,
    pub keyed: Option<Keyed>,
    /// Who waits for the answer; nobody, for an expiry that the lane itself wants.
    pub caller: Option<Caller>,
}

/// Who waits for an answer.
pub(super) struct Caller {
    pub reply: oneshot::Sender<Result<Reply, EngineError>>,
    /// When the command came, by the runtime's stopwatch.
    pub arrived: Duration,
    /// Whether it waits for a key rather than for rows.
    pub awaits_key: bool,
}

/// Due holds that a batch looks up itself, besides its commands.
pub(super) enum Claim {
    /// The earliest that are due.
    Due { from: Timestamp, limit: usize },
    /// The oldest due ones of these rows of stock, with so many units (P11).
    Of(BTreeMap<StockKey, i64>),
}

impl Claim {
    pub fn via(&self) -> Via {
        match self {
            Self::Due { .. } => Via::Timer,
            Self::Of(_) => Via::Demand,
        }
    }
}

/// What a batch says to one of its commands.
pub(super) enum Verdict {
    /// Decided, and durable.
    Answered(Reply),
    /// Not decided, and it will not be.
    Failed(EngineError),
    /// Not decided yet.
    Aside(Aside),
}

/// Why a command was not decided yet.
pub(super) enum Aside {
    /// Another transaction is busy with its Idempotency-Key.
    Key,
    /// Another transaction has locked a row that it needs.
    Rows,
    /// Due holds must be released first.
    Due(Lacking),
}

/// Rows that another transaction was last seen to have locked. While they are, no batch waits
/// for them, or all that is in the batch would wait as well.
///
/// That cannot go on for ever: a row that is merely busy is had by those who queue for it and
/// hardly ever by those who only look. So after a while it is waited for again, and if that was in
/// vain, not for twice as long.
#[derive(Default)]
pub(super) struct Suspects {
    reservations: BTreeSet<ReservationId>,
    stock: BTreeSet<StockKey>,
    distrust: Duration,
    until: Duration,
}

impl Suspects {
    /// At `now`, somebody waited in vain.
    pub fn distrust(&mut self, now: Duration) {
        let again = now < self.until + self.distrust;
        self.distrust = if again {
            (self.distrust * 2).min(DISTRUST_MAX)
        } else {
            DISTRUST_MIN
        };
        self.until = now + self.distrust;
    }

    /// Clears all suspects whose time is over at `now`.
    pub fn review(&mut self, now: Duration) {
        if now >= self.until {
            self.reservations.clear();
            self.stock.clear();
        }
    }
}

/// What a batch did.
#[derive(Default)]
pub(super) struct Done {
    /// One verdict for each item, in order.
    pub verdicts: Vec<Verdict>,
    /// How late each hold was released, in milliseconds, and by which path.
    pub releases: Vec<(Via, i64)>,
    /// How many due holds the claim found.
    pub claimed: usize,
    /// Holds that could not be understood; they are tried again in a minute.
    pub stuck: Vec<CorruptRow>,
}

/// Why a batch did nothing, or may have.
pub(super) struct Failure {
    pub error: StoreError,
    /// The jobs that the claim had found.
    pub claimed: Vec<Job>,
    /// What the batch did, if it turns out to have been committed.
    pub done: Done,
}

/// A batch on its way through its transaction.
pub(super) struct Batch<'a> {
    rules: Rules,
    items: &'a [Ticket],
    wait: Wait,
    suspects: &'a mut Suspects,
    /// Filled item by item; an item without a verdict is still in the batch.
    verdicts: Vec<Option<Verdict>>,
    /// Refusals that were proved without a lock and wait only to be recorded.
    proved: BTreeMap<usize, Outcome>,
    snapshot: Snapshot,
    locked_stock: BTreeSet<StockKey>,
    answered: BTreeMap<Key, (Vec<u8>, Answer)>,
    claimed: Vec<Job>,
    blocked: BTreeSet<ReservationId>,
    done: Done,
    changes: Changes,
    answers: Vec<RecordedAnswer>,
}

impl<'a> Batch<'a> {
    pub fn new(rules: Rules, items: &'a [Ticket], wait: Wait, suspects: &'a mut Suspects) -> Self {
        Self {
            rules,
            items,
            wait,
            suspects,
            verdicts: items.iter().map(|_| None).collect(),
            proved: BTreeMap::new(),
            snapshot: Snapshot::default(),
            locked_stock: BTreeSet::new(),
            answered: BTreeMap::new(),
            claimed: Vec::new(),
            blocked: BTreeSet::new(),
            done: Done::default(),
            changes: Changes::default(),
            answers: Vec::new(),
        }
    }

    /// Runs the whole batch in one transaction of `store`.
    pub async fn run(mut self, store: &dyn Store, claim: Option<&Claim>) -> Result<Done, Failure> {
        match self.run_to_commit(store, claim).await {
            Ok(()) => Ok(self.finish()),
            Err(error) => Err(Failure {
                error,
                claimed: std::mem::take(&mut self.claimed),
                done: self.finish(),
            }),
        }
    }

    async fn run_to_commit(
        &mut self,
        store: &dyn Store,
        claim: Option<&Claim>,
    ) -> Result<(), StoreError> {
        self.prove_refusals(store).await?;
        if claim.is_none() && self.open_items().next().is_none() {
            return Ok(());
        }
        let mut transaction = store.begin().await?;
        match self.fill(transaction.as_mut(), claim).await {
            Ok(true) => transaction.commit().await,
            // Nothing to keep, or an error. In either case the locks are gone before anything
            // else is tried, which must not find itself in its own way.
            Ok(false) => {
                transaction.rollback().await;
                Ok(())
            }
            Err(error) => {
                transaction.rollback().await;
                Err(error)
            }
        }
    }

    /// Everything between begin and commit. Says whether there is anything to commit.
    async fn fill(
        &mut self,
        tx: &mut dyn Transaction,
        claim: Option<&Claim>,
    ) -> Result<bool, StoreError> {
        self.lock_keys(tx).await?;
        self.lock_reservations(tx).await?;
        if let Some(claim) = claim {
            self.claim(tx, claim).await?;
        }
        self.read_history(tx).await?;
        self.lock_stock(tx).await?;
        let now = tx.now().await?;
        self.count_due(tx, now).await?;
        self.decide(now, claim.map_or(Via::Timer, Claim::via));
        let deferred = self.defer(tx, now).await?;
        if self.changes.is_empty() && self.answers.is_empty() && !deferred {
            return Ok(false);
        }
        self.write(tx, now).await?;
        Ok(true)
    }

    fn finish(self) -> Done {
        let verdicts = self.verdicts.into_iter();
        Done {
            // Every item got its verdict in `decide`; one that did not was never reached.
            verdicts: verdicts
                .map(|verdict| verdict.unwrap_or(Verdict::Aside(Aside::Rows)))
                .collect(),
            claimed: self.claimed.len(),
            ..self.done
        }
    }

    /// Items that are still in the batch, with their places.
    fn open_items(&self) -> impl Iterator<Item = (usize, &'a Ticket)> {
        let verdicts = &self.verdicts;
        self.items
            .iter()
            .enumerate()
            .filter(move |(place, _)| verdicts[*place].is_none())
    }

    /// Open items that were not proved to be refused: those whose rows are needed.
    fn unproved_items(&self) -> impl Iterator<Item = (usize, &'a Ticket)> {
        let proved = &self.proved;
        self.open_items()
            .filter(move |(place, _)| !proved.contains_key(place))
    }

    /// Refuses what a plain snapshot already proves, so that a sold-out SKU costs no row lock. It
    /// proves nothing about a reserve that comes after a command of the batch that may free units.
    async fn prove_refusals(&mut self, store: &dyn Store) -> Result<(), StoreError> {
        let reserves: Vec<(usize, BTreeMap<StockKey, i64>)> = self
            .open_items()
            .take_while(|(_, item)| !may_free(&item.command))
            .filter(|(_, item)| matches!(item.command, Command::Reserve(_)))
            .map(|(place, item)| (place, item.command.units()))
            .collect();
        let mut wanted: BTreeMap<StockKey, i64> = BTreeMap::new();
        for (key, units) in reserves.iter().flat_map(|(_, units)| units) {
            let most = wanted.entry(key.clone()).or_default();
            *most = (*most).max(*units);
        }
        if wanted.is_empty() {
            return Ok(());
        }
        let stock = store.stock(&wanted).await?;
        for (place, units) in reserves {
            let Some(refusal) = insufficient(&stock, &units) else {
                continue;
            };
            let outcome = Outcome::Refused(refusal);
            if self.items[place].keyed.is_some() {
                self.proved.insert(place, outcome);
            } else {
                self.verdicts[place] = Some(Verdict::Answered(Reply::Decided(outcome)));
            }
        }
        Ok(())
    }

    async fn lock_keys(&mut self, tx: &mut dyn Transaction) -> Result<(), StoreError> {
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
    fn replay(&self, keyed: &Keyed) -> Option<Verdict> {
        let (fingerprint, answer) = self.answered.get(&keyed.key)?;
        Some(if *fingerprint == keyed.fingerprint {
            Verdict::Answered(Reply::Replayed(answer.clone()))
        } else {
            Verdict::Failed(EngineError::KeyReused)
        })
    }

    async fn lock_reservations(&mut self, tx: &mut dyn Transaction) -> Result<(), StoreError> {
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
                let error = StoreError::Corrupt(row.clone());
                self.verdicts[place] = Some(Verdict::Failed(EngineError::Store(error.into())));
            }
        }
        self.keep(locked);
        Ok(())
    }

    async fn claim(&mut self, tx: &mut dyn Transaction, claim: &Claim) -> Result<(), StoreError> {
        match claim {
            Claim::Due { from, limit } => {
                let locked = tx.claim_due(*from, *limit).await?;
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
                self.done.stuck.push(row.clone());
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
    async fn read_history(&mut self, tx: &mut dyn Transaction) -> Result<(), StoreError> {
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

    /// Locks stock now, if a command decides on it or if rows are in doubt. A batch that only
    /// adds to stock takes it as late as can be, in [`Self::write`], so that a storm of expiries
    /// holds rows that shoppers want only for its last moment.
    async fn lock_stock(&mut self, tx: &mut dyn Transaction) -> Result<(), StoreError> {
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
        self.locked_stock = keys;
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
    async fn count_due(
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

    /// Decides everything, in order, each command on what the one before it left.
    fn decide(&mut self, now: Timestamp, via: Via) {
        for (place, item) in self.items.iter().enumerate() {
            if self.verdicts[place].is_some() {
                continue;
            }
            // An earlier command of this batch may have come under the same key.
            let replayed = item.keyed.as_ref().and_then(|keyed| self.replay(keyed));
            let verdict = match (replayed, self.proved.remove(&place)) {
                (Some(verdict), _) => verdict,
                (None, Some(outcome)) => self.settle(item, outcome, Changes::default(), now),
                (None, None) => match decide(self.rules, &self.snapshot, &item.command, now) {
                    Decision::SetAside(lacking) => Verdict::Aside(Aside::Due(lacking)),
                    Decision::Done { outcome, changes } => self.settle(item, outcome, changes, now),
                },
            };
            self.verdicts[place] = Some(verdict);
        }
        for job in self.claimed.clone() {
            if self.blocked.contains(&job.reservation) {
                continue;
            }
            let command = Command::Expire { job, via };
            let decision = decide(self.rules, &self.snapshot, &command, now);
            if let Decision::Done { outcome, changes } = decision {
                self.fold(&command, &outcome, changes, now);
            }
        }
    }

    /// Takes over a decision, and writes its answer down if it came under a key.
    fn settle(
        &mut self,
        item: &Ticket,
        outcome: Outcome,
        changes: Changes,
        now: Timestamp,
    ) -> Verdict {
        self.fold(&item.command, &outcome, changes, now);
        if let Some(keyed) = &item.keyed {
            let answer = (keyed.render)(&outcome);
            if answer.is_recorded() {
                let fingerprint = keyed.fingerprint.clone();
                self.answered
                    .insert(keyed.key.clone(), (fingerprint.clone(), answer.clone()));
                self.answers.push(RecordedAnswer {
                    key: keyed.key.clone(),
                    fingerprint,
                    answer,
                    created_at: now,
                });
            }
        }
        Verdict::Answered(Reply::Decided(outcome))
    }

    fn fold(&mut self, command: &Command, outcome: &Outcome, changes: Changes, now: Timestamp) {
        if let (Command::Expire { job, via }, Outcome::Job(JobOutcome::Expired)) =
            (command, outcome)
        {
            let lateness_ms = now.millis_since(job.deadline);
            self.done.releases.push((*via, lateness_ms));
        }
        self.snapshot.fold(&changes, now);
        self.changes.add(changes);
    }

    /// Moves the next attempt at claimed holds that could not be released now, so that they do
    /// not stand at the head of the queue. Says whether there were any.
    async fn defer(&self, tx: &mut dyn Transaction, now: Timestamp) -> Result<bool, StoreError> {
        let stuck: BTreeSet<ReservationId> = self
            .blocked
            .iter()
            .filter(|id| !self.snapshot.reservations.contains_key(id))
            .copied()
            .collect();
        let blocked: BTreeSet<ReservationId> = self.blocked.difference(&stuck).copied().collect();
        if !stuck.is_empty() {
            tx.defer(&stuck, now.saturating_add_millis(STUCK_RETRY_MS))
                .await?;
        }
        if !blocked.is_empty() {
            tx.defer(&blocked, now.saturating_add_millis(BLOCKED_RETRY_MS))
                .await?;
        }
        Ok(!self.blocked.is_empty())
    }

    async fn write(&mut self, tx: &mut dyn Transaction, now: Timestamp) -> Result<(), StoreError> {
        if !self.changes.reservations.is_empty() || !self.changes.ledger.is_empty() {
            tx.write_transitions(&self.changes, now).await?;
        }
        let late: BTreeSet<StockKey> = self
            .changes
            .stock
            .keys()
            .filter(|key| !self.locked_stock.contains(key))
            .cloned()
            .collect();
        if !late.is_empty() {
            tx.lock_stock(&late, Wait::Briefly).await?;
        }
        tx.write_rest(&self.changes, &self.answers, now).await
    }
}

/// Makes a hold that cannot be released wait for its next attempt, in a transaction of its own.
pub(super) async fn defer_stuck(store: &dyn Store, id: ReservationId) -> Result<(), StoreError> {
    let mut transaction = store.begin().await?;
    transaction
        .lock_reservations(&[id].into(), Wait::Skip)
        .await?;
    let now = transaction.now().await?;
    let attempt_at = now.saturating_add_millis(STUCK_RETRY_MS);
    transaction.defer(&[id].into(), attempt_at).await?;
    transaction.commit().await
}

/// Can the command leave more units free than before?
fn may_free(command: &Command) -> bool {
    !matches!(command, Command::Reserve(_) | Command::Extend { .. })
}

/// Does the decision depend on what is in stock?
fn decides_on_stock(command: &Command) -> bool {
    match command {
        Command::Reserve(_) | Command::SetStock { .. } | Command::AdjustStock { .. } => true,
        Command::CheckOut { on_expired, .. } => *on_expired == OnExpired::Reacquire,
        Command::Extend { .. } | Command::Cancel { .. } | Command::Expire { .. } => false,
    }
}

impl Answer {
    /// Is it given again to the same key? What says nothing about the state of things, such as
    /// that a reservation is not there, is decided anew each time.
    pub fn is_recorded(&self) -> bool {
        matches!(self.status, 200..=299 | 409 | 422)
    }
}
