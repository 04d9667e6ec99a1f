//! Retention: deletes what nobody needs any more.
//!
//! A round goes through the tables one after the other, in batches of a few hundred rows, each a
//! short transaction. After each batch it rests for as long as the batch took, so that a backlog,
//! however large, never has more than half of what a database can do for one caller.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::{Next, Worker, jittered, millis};
use crate::domain::{JobId, Message, ReservationId};
use crate::engine::{EngineError, Runtime};
use crate::metrics::{Metrics, TableLabel};
use crate::store::{Step, Store, StoreError};

/// How many rows one batch looks at.
const BATCH: usize = 500;
/// The longest rest between two rounds. What must be kept although it is old (long holds, and what
/// belongs to them) is looked at once in each.
const REST: Duration = Duration::from_secs(1_800);

/// For how long rows are kept that are over; `None` is for ever.
#[derive(Clone, Copy, Debug)]
pub struct Keep {
    /// Answers under their Idempotency-Keys; not less than the day that is promised.
    pub answers: Duration,
    /// Messages to the queue.
    pub messages: Duration,
    /// Jobs in the ledger.
    pub ledger: Duration,
    /// Reservations; not less than the ledger.
    pub reservations: Option<Duration>,
    /// Events.
    pub events: Option<Duration>,
}

/// Where a round has come to.
#[derive(Clone, Debug)]
enum Place {
    Answers,
    Messages(Option<Message>),
    Ledger(Option<JobId>),
    Reservations(Option<ReservationId>),
    Events,
}

impl Place {
    /// Its table, as the figures call it.
    const fn table(&self) -> &'static str {
        match self {
            Self::Answers => "idempotency",
            Self::Messages(_) => "outbox",
            Self::Ledger(_) => "ledger",
            Self::Reservations(_) => "reservations",
            Self::Events => "events",
        }
    }

    /// The beginning of the next table, in an order in which each makes room for the next:
    /// reservations go after the jobs of theirs, and refused payments after their reservations.
    const fn next_table(&self) -> Option<Self> {
        match self {
            Self::Answers => Some(Self::Messages(None)),
            Self::Messages(_) => Some(Self::Ledger(None)),
            Self::Ledger(_) => Some(Self::Reservations(None)),
            Self::Reservations(_) => Some(Self::Events),
            Self::Events => None,
        }
    }
}

/// What one batch did.
struct Batch {
    deleted: usize,
    /// Where the table goes on; `None` if it is done with.
    next: Option<Place>,
}

impl Batch {
    const NONE: Self = Self {
        deleted: 0,
        next: None,
    };

    /// A batch that took the oldest rows: after a full one there may be more.
    fn of_oldest(deleted: usize, place: Place) -> Self {
        Self {
            deleted,
            next: (deleted >= BATCH).then_some(place),
        }
    }

    fn of_walk<Name>(step: Step<Name>, place: impl Fn(Option<Name>) -> Place) -> Self {
        Self {
            deleted: step.deleted,
            next: step.after.map(|after| place(Some(after))),
        }
    }
}

/// The worker that deletes.
pub struct Retention {
    store: Arc<dyn Store>,
    runtime: Arc<dyn Runtime>,
    metrics: Arc<Metrics>,
    keep: Keep,
    place: Place,
}

impl Retention {
    /// A worker that begins its first round at once.
    pub fn new(
        store: Arc<dyn Store>,
        runtime: Arc<dyn Runtime>,
        metrics: Arc<Metrics>,
        keep: Keep,
    ) -> Self {
        Self {
            store,
            runtime,
            metrics,
            keep,
            place: Place::Answers,
        }
    }

    async fn delete(&self) -> Result<Batch, StoreError> {
        let keep = self.keep;
        let it = self.store.retention();
        Ok(match self.place.clone() {
            Place::Answers => {
                let deleted = it.delete_answers(millis(keep.answers), BATCH).await?;
                Batch::of_oldest(deleted, Place::Answers)
            }
            Place::Messages(after) => {
                let age_ms = millis(keep.messages);
                let step = it.delete_messages(age_ms, BATCH, after).await?;
                Batch::of_walk(step, Place::Messages)
            }
            Place::Ledger(after) => {
                let age_ms = millis(keep.ledger);
                let step = it.delete_ledger(age_ms, BATCH, after).await?;
                Batch::of_walk(step, Place::Ledger)
            }
            Place::Reservations(after) => {
                let Some(keep) = keep.reservations else {
                    return Ok(Batch::NONE);
                };
                let step = it.delete_reservations(millis(keep), BATCH, after).await?;
                Batch::of_walk(step, Place::Reservations)
            }
            Place::Events => {
                let Some(keep) = keep.events else {
                    return Ok(Batch::NONE);
                };
                let deleted = it.delete_events(millis(keep), BATCH).await?;
                Batch::of_oldest(deleted, Place::Events)
            }
        })
    }
}

#[async_trait]
impl Worker for Retention {
    fn name(&self) -> &'static str {
        "retention"
    }

    async fn run_once(&mut self) -> Result<Next, EngineError> {
        let began = self.runtime.elapsed();
        let batch = self.delete().await.map_err(Arc::new)?;
        let took = self.runtime.elapsed().saturating_sub(began);
        let table = self.place.table();
        if batch.deleted > 0 {
            tracing::debug!(table, deleted = batch.deleted, "deleted what was old");
        }
        let label = TableLabel { table };
        let counter = self.metrics.retention_deleted.get_or_create(&label).clone();
        counter.inc_by(u64::try_from(batch.deleted).unwrap_or(u64::MAX));
        let Some(place) = batch.next.or_else(|| self.place.next_table()) else {
            self.place = Place::Answers;
            return Ok(Next::After(jittered(REST, self.runtime.as_ref())));
        };
        self.place = place;
        Ok(if took.is_zero() {
            Next::Again
        } else {
            Next::After(took)
        })
    }
}
