//! One batch, one transaction.
//!
//! The order of the steps in [`Batch::fill`] is the total lock order of the store port, and the
//! same for every batch of every instance: keys, reservations, stock, and last the event head.
//! `now` is read by a statement of its own after the last lock that a decision needs.

mod take;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::suspects::Suspects;
use super::ticket::{Aside, Claim, Done, Failure, Release, Ticket, Verdict};
use super::{Reply, parking};
use crate::domain::{
    Changes, Command, Decision, Deferral, DeferralCause, Early, Job, JobOutcome, Outcome, PaceRule,
    ReservationId, Rules, Snapshot, StockKey, Timestamp, Via, decide, insufficient,
};
use crate::store::{Answer, Key, RecordedAnswer, Sighting, Store, StoreError, Transaction, Wait};

/// When a due hold is tried again that another transaction stands in the way of, in milliseconds.
const BLOCKED_RETRY_MS: i64 = 250;

/// A batch on its way through its transaction.
pub(super) struct Batch<'a> {
    rules: Rules,
    pace: Option<&'a Arc<PaceRule>>,
    items: &'a [Ticket],
    wait: Wait,
    suspects: &'a mut Suspects,
    /// Filled item by item; an item without a verdict is still in the batch.
    verdicts: Vec<Option<Verdict>>,
    /// Refusals that were proved without a lock and wait only to be recorded.
    proved: BTreeMap<usize, Outcome>,
    snapshot: Snapshot,
    answered: BTreeMap<Key, (Vec<u8>, Answer)>,
    claimed: Vec<Job>,
    blocked: BTreeSet<ReservationId>,
    done: Done,
    changes: Changes,
    answers: Vec<RecordedAnswer>,
}

impl<'a> Batch<'a> {
    pub fn new(
        rules: Rules,
        pace: Option<&'a Arc<PaceRule>>,
        items: &'a [Ticket],
        wait: Wait,
        suspects: &'a mut Suspects,
    ) -> Self {
        Self {
            rules,
            pace,
            items,
            wait,
            suspects,
            verdicts: items.iter().map(|_| None).collect(),
            proved: BTreeMap::new(),
            snapshot: Snapshot::default(),
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
        self.lock_admission(tx, claim).await?;
        self.lock_stock(tx).await?;
        let now = tx.now().await?;
        self.count_due(tx, now).await?;
        self.decide(now, claim.map_or(Via::Timer, Claim::via));
        self.defer_blocked(now);
        let parked = self.park_corrupt(tx, now).await?;
        if self.changes.is_empty() && self.answers.is_empty() && !parked {
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
            let early = Early::Report;
            let command = Command::Expire { job, via, early };
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
        if let (Command::Expire { job, via, .. }, Outcome::Job(outcome)) = (command, outcome) {
            match outcome {
                JobOutcome::Expired => {
                    let hold = self.snapshot.reservations.get(&job.reservation);
                    self.done.releases.push(Release {
                        via: *via,
                        lateness_ms: now.millis_since(job.deadline),
                        waits: hold.map(|hold| hold.waits).unwrap_or_default(),
                    });
                }
                JobOutcome::Deferred { .. } => self.done.denials += changes.deferrals.len(),
                _ => {}
            }
        }
        self.snapshot.fold(&changes, now);
        self.changes.add(changes);
    }

    /// Moves the next attempt at claimed holds whose stock others have locked, so that they do
    /// not stand at the head of the queue.
    fn defer_blocked(&mut self, now: Timestamp) {
        let deferral = Deferral {
            attempt_at: now.saturating_add_millis(BLOCKED_RETRY_MS),
            cause: DeferralCause::Blocked,
        };
        let understood = |id: &&ReservationId| self.snapshot.reservations.contains_key(id);
        let blocked = self.blocked.iter().filter(understood);
        let deferrals = blocked.map(|id| (*id, deferral));
        self.changes.deferrals.extend(deferrals);
    }

    /// Gives up holds whose rows cannot be understood. Says whether there are any.
    async fn park_corrupt(
        &mut self,
        tx: &mut dyn Transaction,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let sightings: BTreeMap<ReservationId, Sighting> = self
            .done
            .stuck
            .iter()
            .map(|(id, row)| (*id, parking::sighting(*id, None, row)))
            .collect();
        if sightings.is_empty() {
            return Ok(false);
        }
        tx.park(&sightings, now).await?;
        Ok(true)
    }

    async fn write(&mut self, tx: &mut dyn Transaction, now: Timestamp) -> Result<(), StoreError> {
        let changes = &self.changes;
        if !changes.deferrals.is_empty() {
            tx.defer(&changes.deferrals, now).await?;
        }
        let is_transition = !changes.reservations.is_empty() || !changes.ledger.is_empty();
        if is_transition || !changes.arrivals_us.is_empty() {
            tx.write_transitions(changes, now).await?;
        }
        tx.write_rest(changes, &self.answers, now).await
    }
}

/// Can the command leave more units free than before?
fn may_free(command: &Command) -> bool {
    !matches!(command, Command::Reserve(_) | Command::Extend { .. })
}

impl Answer {
    /// Is it given again to the same key? What says nothing about the state of things, such as
    /// that a reservation is not there, is decided anew each time.
    pub fn is_recorded(&self) -> bool {
        matches!(self.status, 200..=299 | 409 | 422)
    }
}
