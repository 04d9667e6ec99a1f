//! Expiry jobs that a queue brings back, pushed or pulled: what the receiver and the consumer share.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::metrics::gauge::Gauge;
use sha2::{Digest as _, Sha256};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{Engine, EngineError, Reply, Runtime};
use crate::domain::{Command, Early, Job, JobOutcome, Outcome, Timestamp, Via};
use crate::metrics::{DeliveryLabel, Metrics};
use crate::store::{MAX_QUARANTINE_KEY, Sighting};

/// How early a delivery may be and still be waited for, in milliseconds.
const PATIENCE_MS: i64 = 2_000;
/// How many deliveries wait at once; each costs a little memory and nothing else.
const WAITERS: usize = 1_024;

/// Takes in deliveries. Clones share everything.
#[derive(Clone)]
pub struct Deliveries {
    engine: Engine,
    runtime: Arc<dyn Runtime>,
    metrics: Arc<Metrics>,
    waiters: Arc<Semaphore>,
    /// Where they come from, for the quarantine.
    source: &'static str,
}

/// What became of a delivery. Unless it is deferred it is done with, and can be acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivered {
    /// What became of its job: it is done.
    Job(JobOutcome),
    /// It came too early, and its job is published again.
    Rearmed,
    /// It is due and has to wait. Only who pushes is told, and brings it again.
    Deferred {
        /// Until when.
        attempt_at: Timestamp,
        /// The clock that decided.
        now: Timestamp,
    },
    /// It is no job, or the job of no reservation, or of a hold whose release was given up, and is
    /// kept for an operator to look at.
    Quarantined,
}

impl Delivered {
    /// The word for it in answers and in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Job(outcome) => outcome.as_str(),
            Self::Rearmed => "rearmed",
            Self::Deferred { .. } => "deferred",
            Self::Quarantined => "quarantined",
        }
    }
}

/// Counts one that waits, until it does so no longer: also if the caller hangs up meanwhile.
struct Waiting<'a>(&'a Gauge);

impl<'a> Waiting<'a> {
    fn begin(gauge: &'a Gauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Deliveries {
    /// Takes in the deliveries of the queue called `source`.
    pub fn new(
        engine: Engine,
        runtime: Arc<dyn Runtime>,
        metrics: Arc<Metrics>,
        source: &'static str,
    ) -> Self {
        Self {
            engine,
            runtime,
            metrics,
            waiters: Arc::new(Semaphore::new(WAITERS)),
            source,
        }
    }

    /// Does what a delivery asks for, and returns when that is durable. After an error nothing has
    /// happened, and the queue has to bring it again. `slot` is given back before a delivery that
    /// came early is waited for.
    pub async fn deliver(
        &self,
        payload: &[u8],
        via: Via,
        slot: Option<OwnedSemaphorePermit>,
    ) -> Result<Delivered, EngineError> {
        let delivered = match Job::from_payload(payload) {
            Ok(job) => self.perform(job, payload, via, slot).await?,
            Err(fault) => {
                // What has no name of its own is known by what it is.
                let digest = Sha256::digest(payload);
                let hex: Vec<String> = digest.iter().map(|byte| format!("{byte:02x}")).collect();
                let name = format!("sha256:{}", hex.concat());
                self.quarantine(name, payload, fault.to_string()).await?
            }
        };
        let label = DeliveryLabel {
            via: via.as_str(),
            outcome: delivered.as_str(),
        };
        self.metrics.deliveries.get_or_create(&label).inc();
        Ok(delivered)
    }

    async fn perform(
        &self,
        job: Job,
        payload: &[u8],
        via: Via,
        mut slot: Option<OwnedSemaphorePermit>,
    ) -> Result<Delivered, EngineError> {
        let mut patience_ms = PATIENCE_MS;
        loop {
            let early = match self.submit(job, via, Early::Report).await? {
                JobOutcome::Unknown => {
                    let reason = format!("there is no reservation {}", job.reservation);
                    return self.quarantine(job.id(), payload, reason).await;
                }
                // Its case was opened when it was given up.
                JobOutcome::Parked => return Ok(Delivered::Quarantined),
                JobOutcome::Deferred { attempt_at, now } if via == Via::Push => {
                    return Ok(Delivered::Deferred { attempt_at, now });
                }
                JobOutcome::Deferred { .. } => return self.rearm(job, via).await,
                JobOutcome::NotDue { deadline, now } => deadline.millis_since(now),
                outcome => return Ok(Delivered::Job(outcome)),
            };
            let waiter = self.waiters.try_acquire();
            let (true, Ok(_waiter)) = (early <= patience_ms, waiter) else {
                return self.rearm(job, via).await;
            };
            drop(slot.take());
            patience_ms -= early;
            let wait = Duration::from_millis(u64::try_from(early).unwrap_or_default());
            let _waiting = Waiting::begin(&self.metrics.early_deliveries_waiting);
            self.runtime.sleep(wait).await;
        }
    }

    /// Has the job published again, unless it can be done by now.
    async fn rearm(&self, job: Job, via: Via) -> Result<Delivered, EngineError> {
        Ok(match self.submit(job, via, Early::Rearm).await? {
            JobOutcome::NotDue { .. } | JobOutcome::Deferred { .. } => Delivered::Rearmed,
            JobOutcome::Parked => Delivered::Quarantined,
            outcome => Delivered::Job(outcome),
        })
    }

    async fn submit(&self, job: Job, via: Via, early: Early) -> Result<JobOutcome, EngineError> {
        let command = Command::Expire { job, via, early };
        match self.engine.submit(command, None).await? {
            Reply::Decided(Outcome::Job(outcome)) => Ok(outcome),
            // An expiry comes to nothing else; whoever asked finds out by asking again.
            _ => Err(EngineError::FateUnknown),
        }
    }

    async fn quarantine(
        &self,
        key: String,
        payload: &[u8],
        reason: String,
    ) -> Result<Delivered, EngineError> {
        tracing::warn!(source = self.source, %key, %reason, "a delivery goes into quarantine");
        debug_assert!(key.len() <= MAX_QUARANTINE_KEY);
        let sighting = Sighting {
            source: self.source.to_owned(),
            key,
            payload: payload.to_vec(),
            reason,
        };
        let quarantine = self.engine.store().quarantine();
        quarantine.record(&sighting).await.map_err(Arc::new)?;
        Ok(Delivered::Quarantined)
    }
}
