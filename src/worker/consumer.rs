//! The consumer: takes deliveries from a queue that is pulled.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::{Next, Worker};
use crate::domain::{Backoff, Via};
use crate::engine::{Delivered, Deliveries, EngineError, Runtime};
use crate::queue::{Delivery, Queue, QueueState, Side};

/// How many deliveries are worked on at once.
const AT_ONCE: usize = 64;
/// How long the queue hides a delivery from others, in milliseconds: longer than a commit takes,
/// early deliveries and a slow database included.
const VISIBILITY_MS: i64 = 30_000;
/// How long to wait when the queue has nothing.
const POLL: Duration = Duration::from_millis(100);
/// How long to wait when the queue does not answer as it should.
const BACKOFF: Backoff = Backoff {
    first_ms: 500,
    most_ms: 10_000,
};

/// The worker that pulls.
pub struct Consumer {
    queue: Arc<dyn Queue>,
    deliveries: Deliveries,
    state: Arc<QueueState>,
    runtime: Arc<dyn Runtime>,
    slots: Arc<Semaphore>,
    /// A sender for each delivery under way, and one for this worker.
    under_way: Option<mpsc::Sender<()>>,
    done: mpsc::Receiver<()>,
    failures: u32,
}

impl Consumer {
    /// A consumer of `queue`.
    pub fn new(
        queue: Arc<dyn Queue>,
        deliveries: Deliveries,
        state: Arc<QueueState>,
        runtime: Arc<dyn Runtime>,
    ) -> Self {
        let (under_way, done) = mpsc::channel(1);
        Self {
            queue,
            deliveries,
            state,
            runtime,
            slots: Arc::new(Semaphore::new(AT_ONCE)),
            under_way: Some(under_way),
            done,
            failures: 0,
        }
    }

    /// Works on one delivery beside everything else.
    fn take(&self, delivery: Delivery, slot: OwnedSemaphorePermit) {
        let queue = Arc::clone(&self.queue);
        let deliveries = self.deliveries.clone();
        let under_way = self.under_way.clone();
        self.runtime.spawn(Box::pin(async move {
            work(queue.as_ref(), &deliveries, delivery, slot).await;
            drop(under_way);
        }));
    }
}

/// Acknowledges a delivery when what it asked for is committed. Otherwise the queue brings it
/// again when its visibility ends.
async fn work(
    queue: &dyn Queue,
    deliveries: &Deliveries,
    Delivery { receipt, payload }: Delivery,
    slot: OwnedSemaphorePermit,
) {
    let ended = match deliveries.deliver(&payload, Via::Pull, Some(slot)).await {
        Ok(Delivered::Quarantined) => queue.reject(&receipt).await,
        Ok(_) => queue.acknowledge(&receipt).await,
        Err(error) => {
            tracing::warn!(%error, "a delivery could not be worked on, and will come again");
            return;
        }
    };
    if let Err(fault) = ended {
        tracing::warn!(%fault, "a delivery that is done with will come again");
    }
}

#[async_trait]
impl Worker for Consumer {
    fn name(&self) -> &'static str {
        "consumer"
    }

    async fn run_once(&mut self) -> Result<Next, EngineError> {
        let Ok(first) = Arc::clone(&self.slots).acquire_owned().await else {
            return Ok(Next::After(POLL));
        };
        let most = 1 + self.slots.available_permits();
        let received = match self.queue.receive(most, VISIBILITY_MS).await {
            Ok(received) => received,
            Err(fault) => {
                self.state.is_unwell(Side::Pulling, &fault.to_string());
                self.failures = self.failures.saturating_add(1);
                return Ok(Next::After(
                    BACKOFF.wait(self.failures, self.runtime.random()),
                ));
            }
        };
        self.failures = 0;
        self.state.is_well(Side::Pulling);
        let is_empty = received.is_empty();
        let mut slot = Some(first);
        for delivery in received {
            let next = match slot.take() {
                Some(slot) => Ok(slot),
                None => Arc::clone(&self.slots).acquire_owned().await,
            };
            if let Ok(slot) = next {
                self.take(delivery, slot);
            }
        }
        Ok(if is_empty {
            Next::After(POLL)
        } else {
            Next::Again
        })
    }

    async fn finish(&mut self) {
        self.under_way = None;
        // Nothing is ever sent; this ends when the last delivery has dropped its sender.
        let _ = self.done.recv().await;
    }
}
