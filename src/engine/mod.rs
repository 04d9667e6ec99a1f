//! The owner of every change: commands in, outcomes out.
//!
//! A caller submits a command; the engine puts it into a lane and answers when the transaction
//! that decided it is committed. See [`lane`] for how a lane makes one transaction out of what
//! many callers want, and [`batch`] for what happens in that transaction.

mod batch;
mod cap;
mod delivery;
mod lane;
mod parking;
mod repair;
mod replay;
mod run;
mod runtime;
mod suspects;
mod ticket;
mod word;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

use crate::domain::{
    Command, Outcome, PaceRule, ReservationId, RetryBudget, Rules, Timestamp, Via,
};
use crate::metrics::{LaneLabel, Metrics};
use crate::store::{Answer, Key, Store, StoreError};

use lane::{Ask, DueAsk, Lane, LaneState};
use ticket::{Caller, Ticket};

pub use delivery::{Delivered, Deliveries};
pub use repair::{Finding, RepairRun, Repairer};
pub use replay::{Cases, Dismissed, ManyReplayed, ReplayMany, Replayed};
pub use run::{Bounds, BoundsFault, RelayRun, SweepRun};
pub use runtime::{Runtime, Task, TokioRuntime, to_its_end};

/// How many commands wait in a lane before the next one is turned away.
const INBOX_CAPACITY: usize = 4_096;

/// A handle on the engine; clones are handles on the same one.
#[derive(Clone)]
pub struct Engine {
    lanes: Arc<Lanes>,
}

struct Lanes {
    store: Arc<dyn Store>,
    runtime: Arc<dyn Runtime>,
    sales: Vec<mpsc::Sender<Ask>>,
    release: mpsc::Sender<Ask>,
}

/// How the engine shall work.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What the domain is told.
    pub rules: Rules,
    /// How fast holds may expire, if not at any pace.
    pub pace: Option<Arc<PaceRule>>,
    /// How long the release of a hold is tried that fails.
    pub retry_budget: RetryBudget,
    /// How many lanes decide what shoppers want: one on SQLite, two on PostgreSQL. More writers
    /// than that only wait for each other.
    pub sales_lanes: usize,
    /// How long a command may wait for rows that others have locked.
    pub patience: Duration,
}

/// Which due holds to release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// Those whose `attempt_at` is this or later.
    pub from: Timestamp,
    /// Those whose `attempt_at` is at least so long ago, in milliseconds.
    pub grace_ms: i64,
    /// At most so many; a batch may take fewer.
    pub most: usize,
    /// By which path they are said to have expired.
    pub via: Via,
}

impl Due {
    /// All that the timer would release.
    pub const ALL: Self = Self {
        from: Timestamp::EPOCH,
        grace_ms: 0,
        most: usize::MAX,
        via: Via::Timer,
    };
}

/// What a request to release what is due did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Released {
    /// Due holds that were found and locked.
    pub claimed: usize,
    /// Holds that expired.
    pub released: usize,
    /// Whether as many were found as one batch takes, so that there may be more.
    pub full: bool,
}

/// The Idempotency-Key under which a command came, and how its answer is written down.
pub struct Keyed {
    /// The key.
    pub key: Key,
    /// SHA-256 of the request.
    pub fingerprint: Vec<u8>,
    /// Turns the outcome into the answer that is recorded.
    pub render: Box<dyn Fn(&Outcome) -> Answer + Send + Sync>,
}

/// What the engine says to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It was decided, and what was decided is durable.
    Decided(Outcome),
    /// It was decided before under the same key; this was the answer.
    Replayed(Answer),
}

/// Why a command was not decided.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The inbox is full, or the rows did not come free in time. Nothing has happened.
    #[error("too much is waiting; try again in {retry_after_seconds} s")]
    Overloaded {
        /// When to try again.
        retry_after_seconds: u64,
    },
    /// Another request with the same Idempotency-Key is still being decided.
    #[error("a request with this Idempotency-Key is still being decided")]
    KeyInUse,
    /// The Idempotency-Key was used for another request.
    #[error("this Idempotency-Key was used for another request")]
    KeyReused,
    /// The database was lost during COMMIT and has not said since what became of it. The caller
    /// can ask again under the same key.
    #[error("it is not known whether this was done; ask again with the same Idempotency-Key")]
    FateUnknown,
    /// The database did not do it. Nothing has happened.
    #[error(transparent)]
    Store(#[from] Arc<StoreError>),
    /// The service is shutting down. Nothing has happened.
    #[error("the service is shutting down")]
    ShuttingDown,
}

impl EngineError {
    /// Too much is waiting.
    pub(crate) const fn overloaded() -> Self {
        Self::Overloaded {
            retry_after_seconds: 1,
        }
    }
}

impl Engine {
    /// Starts the lanes.
    pub fn start(
        store: Arc<dyn Store>,
        runtime: Arc<dyn Runtime>,
        metrics: &Arc<Metrics>,
        settings: Settings,
    ) -> Self {
        let start_lane = |name: String| {
            let (sender, inbox) = mpsc::channel(INBOX_CAPACITY);
            let lane = Lane {
                label: LaneLabel { lane: name },
                inbox,
                store: Arc::clone(&store),
                runtime: Arc::clone(&runtime),
                metrics: Arc::clone(metrics),
                rules: settings.rules,
                pace: settings.pace.clone(),
                retry_budget: settings.retry_budget,
                patience: settings.patience,
                state: LaneState::default(),
            };
            runtime.spawn(Box::pin(lane.run()));
            sender
        };
        let sales = (0..settings.sales_lanes.max(1))
            .map(|number| start_lane(format!("sales-{number}")))
            .collect();
        let release = start_lane("release".to_owned());
        let lanes = Lanes {
            store: Arc::clone(&store),
            runtime: Arc::clone(&runtime),
            sales,
            release,
        };
        Self {
            lanes: Arc::new(lanes),
        }
    }

    /// Has a command decided, and returns when what was decided is durable. A caller that stops
    /// waiting changes nothing about that: what is begun is finished, what is not is left out.
    pub async fn submit(
        &self,
        command: Command,
        keyed: Option<Keyed>,
    ) -> Result<Reply, EngineError> {
        let lane = self.lane_of(&command);
        let (reply, answer) = oneshot::channel();
        let ticket = Ticket {
            command,
            keyed,
            caller: Some(Caller {
                reply,
                arrived: self.lanes.runtime.elapsed(),
                awaits_key: false,
            }),
        };
        lane.try_send(Ask::Command(Box::new(ticket)))
            .map_err(turned_away)?;
        answer.await.map_err(|_| EngineError::ShuttingDown)?
    }

    /// Releases the earliest of these holds, in one batch.
    pub async fn expire_due(&self, due: Due) -> Result<Released, EngineError> {
        let (reply, answer) = oneshot::channel();
        let ask = Ask::Due(DueAsk { due, reply });
        self.lanes.release.try_send(ask).map_err(turned_away)?;
        answer.await.map_err(|_| EngineError::ShuttingDown)?
    }

    /// Takes up a hold again whose release was given up, so that it is due like any other one. Says
    /// whether it was given up. What cannot be understood has to be mended first.
    pub async fn resume(&self, id: ReservationId) -> Result<bool, EngineError> {
        Ok(parking::resume(self.store().as_ref(), id)
            .await
            .map_err(Arc::new)?)
    }

    /// Takes no more commands, and returns when all that were accepted are answered.
    pub async fn shut_down(&self) {
        for lane in self.lanes.sales.iter().chain([&self.lanes.release]) {
            let (stopped, done) = oneshot::channel();
            if lane.send(Ask::Stop(stopped)).await.is_ok() {
                let _ = done.await;
            }
        }
    }

    /// An engine that decides nothing, as one that is shutting down.
    #[cfg(test)]
    pub(crate) fn without_lanes(store: Arc<dyn Store>) -> Self {
        let (closed, _) = mpsc::channel(1);
        let lanes = Lanes {
            store,
            runtime: Arc::new(TokioRuntime::start()),
            sales: vec![closed.clone()],
            release: closed,
        };
        Self {
            lanes: Arc::new(lanes),
        }
    }

    /// The store, for reads, which need no lane.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.lanes.store
    }

    /// Commands on one row of stock go to one lane, since a second writer would only wait for the
    /// first. Expiries have a lane of their own, so that a storm of them never shares a batch
    /// with a shopper.
    fn lane_of(&self, command: &Command) -> &mpsc::Sender<Ask> {
        if matches!(command, Command::Expire { .. }) {
            return &self.lanes.release;
        }
        let mut hasher = DefaultHasher::new();
        match command.units().first_key_value() {
            Some((key, _)) => key.hash(&mut hasher),
            None => command.reservation().hash(&mut hasher),
        }
        let lanes = &self.lanes.sales;
        let hash = usize::try_from(hasher.finish() >> 32).unwrap_or_default();
        &lanes[hash % lanes.len()]
    }
}

fn turned_away(error: TrySendError<Ask>) -> EngineError {
    match error {
        TrySendError::Full(_) => EngineError::overloaded(),
        TrySendError::Closed(_) => EngineError::ShuttingDown,
    }
}
