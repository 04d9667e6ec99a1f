//! A store that fails where it is told to.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use holdfast::domain::{
    AdmissionKey, Changes, Deferral, JobId, OpenLine, PaymentReference, QueueRule, Reservation,
    ReservationId, Stock, StockKey, Timestamp,
};
use holdfast::store::{
    Adopted, AdoptionCursor, ApiKeys, Claimed, Drift, Fate, Key, LockedKeys, LockedReservations,
    LockedStock, ManualClock, NextAttempt, NextPublication, Outbox, OutboxDepth, Parked, Postponed,
    Published, Quarantine, RecordedAnswer, RecordedEvent, ReservationFilter, Retention, Sighting,
    StockFilter, Store, StoreError, Suspects, Transaction, TransactionId, Wait,
};
use tokio::sync::{Notify, Semaphore};

/// Where a batch can be hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    ReadStock,
    Begin,
    LockKeys,
    LockReservations,
    ClaimDue,
    ClaimDueOf,
    MakeStock,
    LockStock,
    LockAdmission,
    Now,
    DueUnits,
    JobsDone,
    RefusedPayments,
    WriteTransitions,
    WriteRest,
    Defer,
    Park,
    Commit,
}

impl Step {
    pub const ALL: [Self; 18] = [
        Self::ReadStock,
        Self::Begin,
        Self::LockKeys,
        Self::LockReservations,
        Self::ClaimDue,
        Self::ClaimDueOf,
        Self::MakeStock,
        Self::LockStock,
        Self::LockAdmission,
        Self::Now,
        Self::DueUnits,
        Self::JobsDone,
        Self::RefusedPayments,
        Self::WriteTransitions,
        Self::WriteRest,
        Self::Defer,
        Self::Park,
        Self::Commit,
    ];
}

#[derive(Clone, Copy, Debug)]
pub enum Fault {
    Contended,
    Constraint,
    Unavailable,
    /// The transaction is committed, and the answer is lost.
    LostCommitted,
    /// The transaction is not committed, and the answer is lost.
    LostAborted,
}

impl Fault {
    fn error(self) -> StoreError {
        match self {
            Self::Contended => StoreError::Contended("injected".to_owned()),
            Self::Constraint => StoreError::Constraint {
                constraint: "injected".to_owned(),
                detail: "injected".to_owned(),
            },
            Self::Unavailable => StoreError::Unavailable("injected".to_owned()),
            Self::LostCommitted | Self::LostAborted => {
                StoreError::CommitLost(TransactionId("injected".to_owned()))
            }
        }
    }
}

/// What goes wrong, and what was done.
#[derive(Default)]
pub struct Plan {
    /// Each fault hits once, the first at the first call of its step.
    once: Mutex<VecDeque<(Step, Fault)>>,
    /// Hits every call of its step.
    always: Mutex<Option<(Step, Fault)>>,
    /// No row of stock with this name can be written.
    poison: Mutex<Option<String>>,
    /// The row of stock with this name is had by those who wait for it, and never found free.
    busy: Mutex<Option<String>>,
    fates: Mutex<VecDeque<Fate>>,
    steps: Mutex<Vec<Step>>,
    gate: Mutex<Option<(Step, Arc<Gate>)>>,
    /// The answers to claims take so long.
    slow_claims: Mutex<Option<(Arc<ManualClock>, i64)>>,
}

/// Where a batch waits until it is let through.
pub struct Gate {
    pub reached: Notify,
    pub open: Semaphore,
}

impl Plan {
    pub fn once(&self, step: Step, fault: Fault) {
        self.once.lock().unwrap().push_back((step, fault));
    }

    pub fn always(&self, step: Step, fault: Fault) {
        *self.always.lock().unwrap() = Some((step, fault));
    }

    pub fn heal(&self) {
        *self.always.lock().unwrap() = None;
        self.once.lock().unwrap().clear();
    }

    pub fn poison(&self, name: &str) {
        *self.poison.lock().unwrap() = Some(name.to_owned());
    }

    pub fn busy(&self, name: &str) {
        *self.busy.lock().unwrap() = Some(name.to_owned());
    }

    pub fn fate(&self, fate: Fate) {
        self.fates.lock().unwrap().push_back(fate);
    }

    /// The steps since this was last asked.
    pub fn steps(&self) -> Vec<Step> {
        std::mem::take(&mut self.steps.lock().unwrap())
    }

    /// Makes batches wait before this step.
    pub fn gate(&self, step: Step) -> Arc<Gate> {
        let gate = Arc::new(Gate {
            reached: Notify::new(),
            open: Semaphore::new(0),
        });
        *self.gate.lock().unwrap() = Some((step, Arc::clone(&gate)));
        gate
    }

    pub fn ungate(&self) {
        if let Some((_, gate)) = self.gate.lock().unwrap().take() {
            gate.open.close();
        }
    }

    pub fn slow_claims(&self, clock: &Arc<ManualClock>, took_ms: i64) {
        *self.slow_claims.lock().unwrap() = Some((Arc::clone(clock), took_ms));
    }

    async fn reach(&self, step: Step) -> Option<Fault> {
        self.steps.lock().unwrap().push(step);
        let gate = self.gate.lock().unwrap().clone();
        if let Some((_, gate)) = gate.filter(|(at, _)| *at == step) {
            gate.reached.notify_one();
            if let Ok(permit) = gate.open.acquire().await {
                permit.forget();
            }
        }
        let mut once = self.once.lock().unwrap();
        if once.front().is_some_and(|(at, _)| *at == step) {
            return once.pop_front().map(|(_, fault)| fault);
        }
        let always = *self.always.lock().unwrap();
        always.filter(|(at, _)| *at == step).map(|(_, fault)| fault)
    }

    async fn pass(&self, step: Step) -> Result<(), StoreError> {
        match self.reach(step).await {
            Some(fault) => Err(fault.error()),
            None => Ok(()),
        }
    }
}

pub struct Faulty {
    inner: Arc<dyn Store>,
    plan: Arc<Plan>,
}

/// A store that does what `inner` does, unless the plan says otherwise.
pub fn faulty(inner: &Arc<dyn Store>) -> (Arc<dyn Store>, Arc<Plan>) {
    let plan = Arc::new(Plan::default());
    let store = Faulty {
        inner: Arc::clone(inner),
        plan: Arc::clone(&plan),
    };
    (Arc::new(store), plan)
}

#[async_trait]
impl Store for Faulty {
    async fn begin(&self) -> Result<Box<dyn Transaction>, StoreError> {
        self.plan.pass(Step::Begin).await?;
        Ok(Box::new(FaultyTransaction {
            inner: self.inner.begin().await?,
            plan: Arc::clone(&self.plan),
        }))
    }

    async fn fate(&self, transaction: TransactionId) -> Result<Fate, StoreError> {
        match self.plan.fates.lock().unwrap().pop_front() {
            Some(fate) => return Ok(fate),
            None if transaction.0 == "injected" => return Ok(Fate::Unknown),
            None => {}
        }
        self.inner.fate(transaction).await
    }

    async fn now(&self) -> Result<Timestamp, StoreError> {
        self.inner.now().await
    }

    async fn next_attempt(&self, from: Timestamp) -> Result<NextAttempt, StoreError> {
        self.inner.next_attempt(from).await
    }

    async fn stock(
        &self,
        wanted: &BTreeMap<StockKey, i64>,
    ) -> Result<BTreeMap<StockKey, Stock>, StoreError> {
        self.plan.pass(Step::ReadStock).await?;
        self.inner.stock(wanted).await
    }

    async fn list_stock(
        &self,
        filter: &StockFilter,
        after: Option<&StockKey>,
        limit: usize,
    ) -> Result<Vec<Stock>, StoreError> {
        self.inner.list_stock(filter, after, limit).await
    }

    async fn reservation(
        &self,
        id: ReservationId,
    ) -> Result<(Option<Reservation>, Timestamp), StoreError> {
        self.inner.reservation(id).await
    }

    async fn list_reservations(
        &self,
        filter: &ReservationFilter,
        before: Option<ReservationId>,
        limit: usize,
    ) -> Result<(Vec<Reservation>, Timestamp), StoreError> {
        self.inner.list_reservations(filter, before, limit).await
    }

    async fn events(&self, after: i64, limit: usize) -> Result<Vec<RecordedEvent>, StoreError> {
        self.inner.events(after, limit).await
    }

    fn outbox(&self) -> &dyn Outbox {
        self
    }

    fn api_keys(&self) -> &dyn ApiKeys {
        self.inner.api_keys()
    }

    fn quarantine(&self) -> &dyn Quarantine {
        self.inner.quarantine()
    }

    fn retention(&self) -> &dyn Retention {
        self.inner.retention()
    }

    async fn audit(&self) -> Result<Vec<Drift>, StoreError> {
        self.inner.audit().await
    }

    async fn suspects(&self, limit: usize) -> Result<Suspects, StoreError> {
        self.inner.suspects(limit).await
    }
}

#[async_trait]
impl Outbox for Faulty {
    async fn claim(&self, limit: usize, lease_ms: i64) -> Result<Claimed, StoreError> {
        let claimed = self.inner.outbox().claim(limit, lease_ms).await;
        if let Some((clock, took_ms)) = &*self.plan.slow_claims.lock().unwrap() {
            clock.advance(*took_ms);
        }
        claimed
    }

    async fn mark_published(&self, done: &[Published], queue: &str) -> Result<usize, StoreError> {
        self.inner.outbox().mark_published(done, queue).await
    }

    async fn retry_later(&self, postponed: &[Postponed]) -> Result<usize, StoreError> {
        self.inner.outbox().retry_later(postponed).await
    }

    async fn park(&self, parked: &[Parked]) -> Result<usize, StoreError> {
        self.inner.outbox().park(parked).await
    }

    async fn adopt(
        &self,
        queue: &str,
        rule: QueueRule,
        limit: usize,
        after: Option<AdoptionCursor>,
    ) -> Result<Adopted, StoreError> {
        self.inner.outbox().adopt(queue, rule, limit, after).await
    }

    async fn next_publication(&self) -> Result<NextPublication, StoreError> {
        self.inner.outbox().next_publication().await
    }

    async fn depth(&self, limit: usize) -> Result<OutboxDepth, StoreError> {
        self.inner.outbox().depth(limit).await
    }
}

struct FaultyTransaction {
    inner: Box<dyn Transaction>,
    plan: Arc<Plan>,
}

#[async_trait]
impl Transaction for FaultyTransaction {
    async fn lock_keys(&mut self, keys: &BTreeSet<Key>) -> Result<LockedKeys, StoreError> {
        self.plan.pass(Step::LockKeys).await?;
        self.inner.lock_keys(keys).await
    }

    async fn lock_reservations(
        &mut self,
        ids: &BTreeSet<ReservationId>,
        wait: Wait,
    ) -> Result<LockedReservations, StoreError> {
        self.plan.pass(Step::LockReservations).await?;
        self.inner.lock_reservations(ids, wait).await
    }

    async fn claim_due(
        &mut self,
        from: Timestamp,
        grace_ms: i64,
        limit: usize,
    ) -> Result<LockedReservations, StoreError> {
        self.plan.pass(Step::ClaimDue).await?;
        self.inner.claim_due(from, grace_ms, limit).await
    }

    async fn claim_due_of(
        &mut self,
        key: &StockKey,
        units: i64,
        limit: usize,
    ) -> Result<LockedReservations, StoreError> {
        self.plan.pass(Step::ClaimDueOf).await?;
        self.inner.claim_due_of(key, units, limit).await
    }

    async fn make_stock(&mut self, keys: &BTreeSet<StockKey>) -> Result<(), StoreError> {
        let made = self.inner.make_stock(keys).await;
        self.plan.pass(Step::MakeStock).await?;
        made
    }

    async fn lock_stock(
        &mut self,
        keys: &BTreeSet<StockKey>,
        wait: Wait,
    ) -> Result<LockedStock, StoreError> {
        self.plan.pass(Step::LockStock).await?;
        let mut locked = self.inner.lock_stock(keys, wait).await?;
        let busy = self.plan.busy.lock().unwrap().clone();
        if let Some(busy) = busy.filter(|_| wait == Wait::Skip) {
            let is_busy = |stock: &Stock| stock.key.sku.as_str() == busy;
            let elsewhere = locked.rows.iter().filter(|stock| is_busy(stock));
            locked.elsewhere = elsewhere.map(|stock| stock.key.clone()).collect();
            locked.rows.retain(|stock| !is_busy(stock));
        }
        Ok(locked)
    }

    async fn now(&mut self) -> Result<Timestamp, StoreError> {
        self.plan.pass(Step::Now).await?;
        self.inner.now().await
    }

    async fn due_units(
        &mut self,
        keys: &BTreeSet<StockKey>,
        now: Timestamp,
    ) -> Result<BTreeMap<StockKey, i64>, StoreError> {
        self.plan.pass(Step::DueUnits).await?;
        self.inner.due_units(keys, now).await
    }

    async fn claimed_units(&mut self, key: &StockKey) -> Result<i64, StoreError> {
        self.inner.claimed_units(key).await
    }

    async fn open_lines(
        &mut self,
        lines: &BTreeSet<OpenLine>,
    ) -> Result<BTreeMap<OpenLine, i64>, StoreError> {
        self.inner.open_lines(lines).await
    }

    async fn replace_lines(
        &mut self,
        closed: &BTreeMap<OpenLine, i64>,
        opened: &BTreeMap<OpenLine, i64>,
    ) -> Result<(), StoreError> {
        self.inner.replace_lines(closed, opened).await
    }

    async fn jobs_done(&mut self, jobs: &BTreeSet<JobId>) -> Result<BTreeSet<JobId>, StoreError> {
        self.plan.pass(Step::JobsDone).await?;
        self.inner.jobs_done(jobs).await
    }

    async fn refused_payments(
        &mut self,
        ids: &BTreeSet<ReservationId>,
    ) -> Result<BTreeSet<(ReservationId, PaymentReference)>, StoreError> {
        self.plan.pass(Step::RefusedPayments).await?;
        self.inner.refused_payments(ids).await
    }

    /// Faults of writes come after the write, so that there is something to be undone.
    async fn write_transitions(
        &mut self,
        changes: &Changes,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        self.inner.write_transitions(changes, now).await?;
        self.plan.pass(Step::WriteTransitions).await
    }

    async fn write_rest(
        &mut self,
        changes: &Changes,
        answers: &[RecordedAnswer],
        now: Timestamp,
    ) -> Result<(), StoreError> {
        self.inner.write_rest(changes, answers, now).await?;
        let poison = self.plan.poison.lock().unwrap().clone();
        if let Some(poison) = poison
            && changes.stock.keys().any(|key| key.sku.as_str() == poison)
        {
            return Err(Fault::Constraint.error());
        }
        self.plan.pass(Step::WriteRest).await
    }

    async fn lock_admission(
        &mut self,
        keys: &BTreeSet<AdmissionKey>,
    ) -> Result<BTreeMap<AdmissionKey, i64>, StoreError> {
        let locked = self.inner.lock_admission(keys).await?;
        self.plan.pass(Step::LockAdmission).await?;
        Ok(locked)
    }

    async fn defer(
        &mut self,
        deferrals: &BTreeMap<ReservationId, Deferral>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        self.inner.defer(deferrals, now).await?;
        self.plan.pass(Step::Defer).await
    }

    async fn park(
        &mut self,
        sightings: &BTreeMap<ReservationId, Sighting>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        self.inner.park(sightings, now).await?;
        self.plan.pass(Step::Park).await
    }

    async fn unpark(
        &mut self,
        ids: &BTreeSet<ReservationId>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        self.inner.unpark(ids, now).await
    }

    async fn commit(self: Box<Self>) -> Result<(), StoreError> {
        match self.plan.reach(Step::Commit).await {
            None => self.inner.commit().await,
            Some(fault) => {
                if matches!(fault, Fault::LostCommitted) {
                    self.inner.commit().await?;
                } else {
                    self.inner.rollback().await;
                }
                Err(fault.error())
            }
        }
    }

    async fn rollback(self: Box<Self>) {
        self.inner.rollback().await;
    }
}
