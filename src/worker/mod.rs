//! What Holdfast does without being asked.
//!
//! A worker is one step, [`Worker::run_once`]; the loop around it is the same for all. Tests call
//! the step.

mod consumer;
mod expirer;
mod relay;
mod retention;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;

use crate::engine::{EngineError, Runtime};
use crate::metrics::Heartbeat;

pub use consumer::Consumer;
pub use expirer::Expirer;
pub use relay::{Relay, RelaySettings};
pub use retention::{Keep, Retention};

/// The first rest after an error; each further one is twice as long.
const BACKOFF_MIN: Duration = Duration::from_millis(50);
/// The longest rest after errors: a database that comes back is used again within this time.
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// Something that is done again and again.
#[async_trait]
pub trait Worker: Send {
    /// Its name in logs.
    fn name(&self) -> &'static str;

    /// Does a bounded piece of work and says when to go on.
    async fn run_once(&mut self) -> Result<Next, EngineError>;

    /// Finishes what goes on beside the steps. Nothing is begun any more.
    async fn finish(&mut self) {}
}

/// When a worker wants to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// At once: there is more to do.
    Again,
    /// Then; earlier would be in vain.
    After(Duration),
}

/// Runs a worker until `stop` turns true. A piece of work that is begun is finished. `heartbeat`
/// shows when the worker last did its work, by the runtime's stopwatch.
pub async fn run(
    mut worker: impl Worker,
    runtime: Arc<dyn Runtime>,
    heartbeat: Heartbeat,
    mut stop: watch::Receiver<bool>,
) {
    let mut backoff = BACKOFF_MIN;
    while !*stop.borrow() {
        let rest = match worker.run_once().await {
            Ok(next) => {
                heartbeat.set(runtime.elapsed().as_secs_f64());
                backoff = BACKOFF_MIN;
                match next {
                    Next::Again => continue,
                    Next::After(rest) => rest,
                }
            }
            Err(error) => {
                tracing::warn!(worker = worker.name(), %error, "will try again");
                let rest = jittered(backoff, runtime.as_ref());
                backoff = (backoff * 2).min(BACKOFF_MAX);
                rest
            }
        };
        tokio::select! {
            biased;
            // An error means that nobody is left to say stop; then it is time to stop as well.
            said = stop.changed() => if said.is_err() { break },
            () = runtime.sleep(rest) => {}
        }
    }
    worker.finish().await;
}

/// A time in whole milliseconds, as instants count them.
fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// Between half of `duration` and all of it, so that instances that failed together do not come
/// back together.
fn jittered(duration: Duration, runtime: &dyn Runtime) -> Duration {
    let mut byte = [0];
    runtime.fill_random(&mut byte);
    duration / 2 + duration / 2 * u32::from(byte[0]) / 255
}
