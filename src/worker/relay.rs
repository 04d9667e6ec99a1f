//! The relay: publishes what waits in the outbox.
//!
//! What it claims is its own for the time of a lease. It publishes first and marks then, so that a
//! crash in between makes a duplicate, which the queue or the guard swallows, and never a loss. The
//! delay is computed from the deadline at the moment of publishing; a late job goes out with none.

mod bounded;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;

use super::{Next, Worker, millis};
use crate::domain::{Backoff, QueueRule, Retry, RetryBudget, Setback, Timestamp, Tried};
use crate::engine::{EngineError, RelayRun, Runtime};
use crate::metrics::{Metrics, PublicationLabel};
use crate::queue::{Fault, Publication, Queue, QueueState, Receipt, Side};
use crate::store::{AdoptionCursor, ClaimedMessage, Outbox, Parked, Postponed, Published, Store};

/// How many messages are claimed together.
const CLAIMED_AT_ONCE: usize = 256;
/// How many of them the queue is told of together, and how often at once. Few together, because
/// their delays are computed together, and should not grow old while the queue is slow with others.
const TOLD_TOGETHER: usize = 16;
const TOLD_AT_ONCE: usize = 4;
/// How long they are the relay's, in milliseconds: longer than it takes to publish them when each
/// one is answered in the last moment.
const LEASE_MS: i64 = 60_000;
/// How many holds one step of a walk looks at that wants to find those without a message.
const ADOPTED_AT_ONCE: usize = 5_000;
/// How long a message waits that was not taken, and the relay while the queue takes nothing.
const BACKOFF: Backoff = Backoff {
    first_ms: 500,
    most_ms: 30_000,
};
/// The longest sleep: what other instances put into the outbox is seen within this time.
const SAFETY_LOOK: Duration = Duration::from_millis(500);
/// How often the outbox is measured, and up to how many messages.
const MEASURED_EVERY: Duration = Duration::from_secs(5);
const MEASURED: usize = 10_000;

/// The worker that publishes.
pub struct Relay {
    store: Arc<dyn Store>,
    queue: Arc<dyn Queue>,
    /// Which queue it is, among all that ever were configured.
    identity: String,
    state: Arc<QueueState>,
    runtime: Arc<dyn Runtime>,
    metrics: Arc<Metrics>,
    settings: RelaySettings,
    next_walk: Duration,
    /// How far the present walk has come.
    walk: Option<AdoptionCursor>,
    next_measurement: Duration,
    /// How often in a row the queue took nothing at all.
    failures: u32,
}

/// How a relay shall work.
#[derive(Clone, Copy, Debug)]
pub struct RelaySettings {
    /// How often holds without a message are looked for.
    pub sweep: Duration,
    /// How long a message is tried that the queue does not take.
    pub retry_budget: RetryBudget,
}

/// The clock of the database, carried on by the stopwatch. It is never behind, since the stopwatch
/// was read first: what comes early is waited out, what comes late is late.
#[derive(Clone, Copy)]
struct CarriedClock {
    now: Timestamp,
    read_at: Duration,
}

impl CarriedClock {
    fn now(self, runtime: &dyn Runtime) -> Timestamp {
        let passed = runtime.elapsed().saturating_sub(self.read_at);
        self.now.saturating_add_millis(millis(passed))
    }
}

/// What came of messages, by what the outbox is to be told.
#[derive(Default)]
struct Sorted {
    published: Vec<Published>,
    postponed: Vec<Postponed>,
    parked: Vec<Parked>,
    /// Does the queue take nothing from anybody?
    is_unavailable: bool,
}

impl Sorted {
    fn extend(&mut self, other: Self) {
        self.published.extend(other.published);
        self.postponed.extend(other.postponed);
        self.parked.extend(other.parked);
        self.is_unavailable |= other.is_unavailable;
    }

    /// What is wrong with the queue, if it took nothing of what it might have taken.
    fn trouble(&self) -> Option<&str> {
        if self.published.is_empty() || self.is_unavailable {
            self.postponed.last().map(|it| it.error.as_str())
        } else {
            None
        }
    }
}

impl Relay {
    /// A relay to `queue`, which is called `identity` in the outbox. It looks for holds without a
    /// message at once and then every `sweep`.
    pub fn new(
        store: Arc<dyn Store>,
        queue: Arc<dyn Queue>,
        identity: String,
        state: Arc<QueueState>,
        runtime: Arc<dyn Runtime>,
        metrics: Arc<Metrics>,
        settings: RelaySettings,
    ) -> Self {
        Self {
            store,
            queue,
            identity,
            state,
            runtime,
            metrics,
            settings,
            next_walk: Duration::ZERO,
            walk: None,
            next_measurement: Duration::ZERO,
            failures: 0,
        }
    }

    /// Claims up to `limit` messages, publishes them, and tells the outbox what came of it.
    async fn take(&mut self, limit: usize) -> Result<RelayRun, EngineError> {
        let store = Arc::clone(&self.store);
        let read_at = self.runtime.elapsed();
        let claimed = store.outbox().claim(limit, LEASE_MS).await;
        let claimed = claimed.map_err(Arc::new)?;
        self.count("skipped", claimed.skipped);
        let published = if claimed.messages.is_empty() {
            RelayRun::default()
        } else {
            let now = claimed.now;
            let clock = CarriedClock { now, read_at };
            self.publish(&claimed.messages, clock).await?
        };
        Ok(RelayRun {
            skipped: claimed.skipped,
            ..published
        })
    }

    /// Gives a message to some of the holds that have none for this queue, looking at `limit` of
    /// them. Says whether the walk is still under way.
    async fn adopt(&mut self, limit: usize) -> Result<bool, EngineError> {
        let elapsed = self.runtime.elapsed();
        if self.walk.is_none() && elapsed < self.next_walk {
            return Ok(false);
        }
        let rule = QueueRule {
            max_delay_ms: self.queue.limits().max_delay_ms,
        };
        let outbox = self.store.outbox();
        let step = outbox
            .adopt(&self.identity, rule, limit, self.walk)
            .await
            .map_err(Arc::new)?;
        if step.adopted > 0 {
            tracing::info!(holds = step.adopted, "holds without a message got one");
        }
        self.walk = step.after;
        if self.walk.is_none() {
            self.next_walk = elapsed + self.settings.sweep;
        }
        Ok(self.walk.is_some())
    }

    /// Publishes what was claimed, and tells the outbox what came of it.
    async fn publish(
        &mut self,
        messages: &[ClaimedMessage],
        clock: CarriedClock,
    ) -> Result<RelayRun, EngineError> {
        let parts: Vec<_> = messages
            .chunks(TOLD_TOGETHER)
            .map(|part| self.publish_part(part, clock))
            .collect();
        let mut answers = futures_util::stream::iter(parts).buffer_unordered(TOLD_AT_ONCE);
        let mut sorted = Sorted::default();
        while let Some(part) = answers.next().await {
            sorted.extend(part);
        }
        drop(answers);
        match sorted.trouble() {
            Some(trouble) => self.state.is_unwell(Side::Publishing, trouble),
            None => self.state.is_well(Side::Publishing),
        }
        self.failures = if sorted.is_unavailable {
            self.failures.saturating_add(1)
        } else {
            0
        };
        let done = RelayRun {
            published: sorted.published.len(),
            postponed: sorted.postponed.len(),
            parked: sorted.parked.len(),
            ..RelayRun::default()
        };
        self.count("published", done.published);
        self.count("postponed", done.postponed);
        self.count("parked", done.parked);
        let outbox = self.store.outbox();
        let marked = async {
            outbox
                .mark_published(&sorted.published, &self.identity)
                .await?;
            outbox.retry_later(&sorted.postponed).await?;
            outbox.park(&sorted.parked).await
        };
        marked.await.map_err(Arc::new)?;
        Ok(done)
    }

    /// Tells the queue of a few messages, each with the delay that is left to it now.
    async fn publish_part(&self, messages: &[ClaimedMessage], clock: CarriedClock) -> Sorted {
        let told_at = clock.now(self.runtime.as_ref());
        let batch: Vec<Publication> = messages
            .iter()
            .map(|claimed| Publication {
                message: claimed.message,
                delay_ms: claimed.message.job.deadline.millis_since(told_at),
            })
            .collect();
        let answers = self.queue.publish(&batch, told_at).await;
        let answered_at = clock.now(self.runtime.as_ref());
        let mut sorted = Sorted::default();
        for (claimed, answer) in messages.iter().zip(answers) {
            self.sort(*claimed, answer, answered_at, &mut sorted);
        }
        sorted
    }

    /// With nothing to publish by which to find out, asks the queue itself whether it is back.
    async fn ask(&mut self) {
        if self.queue.check().await.is_ok() {
            self.state.is_well(Side::Publishing);
            self.failures = 0;
        }
    }

    fn sort(
        &self,
        ClaimedMessage { message, attempt }: ClaimedMessage,
        answer: Result<Receipt, Fault>,
        now: Timestamp,
        sorted: &mut Sorted,
    ) {
        let fault = match answer {
            Ok(Receipt(receipt)) => {
                sorted.published.push(Published {
                    message,
                    attempt,
                    receipt: Some(receipt),
                });
                return;
            }
            Err(fault) => fault,
        };
        let setback = fault.setback();
        let is_unavailable = setback == Setback::Unavailable;
        sorted.is_unavailable |= is_unavailable;
        let tried = Tried {
            attempts: i64::from(if is_unavailable {
                self.failures + 1
            } else {
                attempt
            }),
            deadline: message.job.deadline,
            // Its waits are not counted; they lie between the deadline and now.
            retry_ms: i64::MAX,
        };
        let random = self.runtime.random();
        let budget = self.settings.retry_budget;
        match budget.after(setback, tried, BACKOFF, now, random) {
            Retry::At(at) => sorted.postponed.push(Postponed {
                message,
                attempt,
                at,
                error: fault.to_string(),
            }),
            Retry::GiveUp => {
                let reason = fault.to_string();
                tracing::error!(key = message.key(), reason, "a message is given up");
                sorted.parked.push(Parked {
                    message,
                    attempt,
                    reason,
                });
            }
        }
    }

    /// Shows what waits.
    async fn measure(&mut self) -> Result<(), EngineError> {
        let elapsed = self.runtime.elapsed();
        if elapsed < self.next_measurement {
            return Ok(());
        }
        self.next_measurement = elapsed + MEASURED_EVERY;
        let outbox = self.store.outbox();
        let depth = outbox.depth(MEASURED).await.map_err(Arc::new)?;
        let waiting = i64::try_from(depth.waiting).unwrap_or(i64::MAX);
        self.metrics.outbox_waiting.set(waiting);
        let age_ms = depth
            .oldest
            .map_or(0, |oldest| depth.now.millis_since(oldest));
        self.metrics
            .outbox_oldest_seconds
            .set(age_ms as f64 / 1_000.0);
        Ok(())
    }

    fn count(&self, outcome: &'static str, messages: usize) {
        if messages > 0 {
            let label = PublicationLabel { outcome };
            let counter = self.metrics.publications.get_or_create(&label);
            counter.inc_by(u64::try_from(messages).unwrap_or(u64::MAX));
        }
    }
}

/// Does nothing wait that could be tried within the longest backoff?
async fn is_idle(outbox: &dyn Outbox) -> Result<bool, EngineError> {
    let next = outbox.next_publication().await.map_err(Arc::new)?;
    let most_ms = i64::try_from(BACKOFF.most_ms).unwrap_or(i64::MAX);
    Ok(next
        .publish_after
        .is_none_or(|at| at.millis_since(next.now) > most_ms))
}

#[async_trait]
impl Worker for Relay {
    fn name(&self) -> &'static str {
        "relay"
    }

    async fn run_once(&mut self) -> Result<Next, EngineError> {
        let is_walking = self.adopt(ADOPTED_AT_ONCE).await?;
        self.measure().await?;
        // While the queue takes nothing, one message finds out whether it does again.
        let limit = if self.failures > 0 {
            1
        } else {
            CLAIMED_AT_ONCE
        };
        let store = Arc::clone(&self.store);
        let outbox = store.outbox();
        let taken = self.take(limit).await?;
        let found = taken.handled();
        if found == taken.skipped && self.failures > 0 && is_idle(outbox).await? {
            self.ask().await;
        }
        if self.failures > 0 {
            return Ok(Next::After(
                BACKOFF.wait(self.failures, self.runtime.random()),
            ));
        }
        if found >= limit || is_walking {
            return Ok(Next::Again);
        }
        let next = outbox.next_publication().await.map_err(Arc::new)?;
        let rest = next.publish_after.map_or(SAFETY_LOOK, |at| {
            let wait_ms = at.millis_since(next.now);
            Duration::from_millis(u64::try_from(wait_ms).unwrap_or_default())
        });
        Ok(if rest.is_zero() {
            Next::Again
        } else {
            Next::After(rest.min(SAFETY_LOOK))
        })
    }
}
