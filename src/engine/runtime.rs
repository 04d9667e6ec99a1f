//! What the engine and the workers are handed instead of reaching for it: tasks, timers, a
//! stopwatch and randomness. A simulation hands in its own and runs them step by step.

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::EngineError;

/// A future that can be handed around.
pub type Task<T = ()> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The world outside the engine, except for the store.
pub trait Runtime: Send + Sync + 'static {
    /// Runs a task beside the others.
    fn spawn(&self, task: Task);
    /// Resolves after `duration`.
    fn sleep(&self, duration: Duration) -> Task;
    /// Time since some fixed moment. It never goes back, and no deadline is ever judged by it.
    fn elapsed(&self) -> Duration;
    /// Fills `bytes` with randomness that nobody can guess.
    fn fill_random(&self, bytes: &mut [u8]);

    /// A random number, for jitter.
    fn random(&self) -> u64 {
        let mut bytes = [0; 8];
        self.fill_random(&mut bytes);
        u64::from_le_bytes(bytes)
    }
}

/// Has something come to its end even if whoever waits for it hangs up.
pub async fn to_its_end<T: Send + 'static>(
    runtime: &dyn Runtime,
    task: Task<Result<T, EngineError>>,
) -> Result<T, EngineError> {
    let (done, finished) = oneshot::channel();
    runtime.spawn(Box::pin(async move {
        // Nobody may be left to hear of it.
        let _ = done.send(task.await);
    }));
    finished.await.map_err(|_| EngineError::ShuttingDown)?
}

/// The runtime of a real process: tokio's tasks and timers, the system's randomness.
#[derive(Debug)]
pub struct TokioRuntime {
    started: Instant,
}

impl TokioRuntime {
    /// A runtime whose stopwatch starts now.
    #[expect(
        clippy::disallowed_methods,
        reason = "the one stopwatch of the process; deadlines are judged by the store's clock"
    )]
    pub fn start() -> Self {
        Self {
            started: Instant::now(),
        }
    }
}

impl Runtime for TokioRuntime {
    fn spawn(&self, task: Task) {
        let running = tokio::spawn(task);
        tokio::spawn(async move {
            // A lane or a worker that is gone is missed by nobody until a hold is late. A process
            // that is gone is started again.
            if running.await.is_err_and(|error| error.is_panic()) {
                tracing::error!("a task panicked; the process cannot do without it");
                std::process::abort();
            }
        });
    }

    fn sleep(&self, duration: Duration) -> Task {
        Box::pin(tokio::time::sleep(duration))
    }

    fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the one source of randomness of the process"
    )]
    fn fill_random(&self, bytes: &mut [u8]) {
        // The system's generator fails only before it is seeded at boot. Then the process must
        // not hand out names that can be guessed, and cannot go on.
        if let Err(error) = getrandom::fill(bytes) {
            tracing::error!(%error, "the system has no randomness");
            std::process::abort();
        }
    }
}
