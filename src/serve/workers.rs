//! The workers of a process: started together, stopped together.

use std::sync::Arc;

use tokio::sync::{oneshot, watch};

use crate::engine::Runtime;
use crate::metrics::Metrics;
use crate::worker::{self, Worker};

/// The workers that run.
pub(super) struct Workers {
    runtime: Arc<dyn Runtime>,
    metrics: Arc<Metrics>,
    stop: watch::Sender<bool>,
    finished: Vec<oneshot::Receiver<()>>,
}

impl Workers {
    pub fn new(runtime: Arc<dyn Runtime>, metrics: Arc<Metrics>) -> Self {
        Self {
            runtime,
            metrics,
            stop: watch::channel(false).0,
            finished: Vec::new(),
        }
    }

    pub fn start(&mut self, worker: impl Worker + 'static) {
        let heartbeat = self.metrics.heartbeat(worker.name());
        let running = worker::run(
            worker,
            Arc::clone(&self.runtime),
            heartbeat,
            self.stop.subscribe(),
        );
        let (done, finished) = oneshot::channel();
        self.runtime.spawn(Box::pin(async move {
            running.await;
            let _ = done.send(());
        }));
        self.finished.push(finished);
    }

    /// Has them finish what they have begun, and returns when they have.
    pub async fn finish(self) {
        let _ = self.stop.send(true);
        for worker in self.finished {
            let _ = worker.await;
        }
    }
}
