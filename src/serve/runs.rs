//! Bounded runs of the workers: as commands of their own, and for the API.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::ServeError;
use super::parts::{Parts, Plan};
use crate::database::{self, Database};
use crate::engine::{Bounds, EngineError, RelayRun, Runtime, SweepRun, TokioRuntime, to_its_end};
use crate::http;
use crate::settings::{QueueSettings, RunSettings};

/// What a run of the relay needs that this service does not have.
const NO_QUEUE: &str = "there is no queue to publish to, since the built-in timer releases what is \
    due; set HOLDFAST_QUEUE_URL to the queue that `serve` uses, or run `holdfast sweep --once`";
/// How long an expiry may wait for rows that others have locked.
const PATIENCE: Duration = Duration::from_secs(10);

/// `holdfast relay --once`: publishes what is to be published now.
pub async fn relay_once(settings: RunSettings) -> Result<RelayRun, ServeError> {
    let bounds = bounds(&settings)?;
    if matches!(settings.queue, QueueSettings::Timer) {
        return Err(ServeError::Queue(NO_QUEUE.to_owned()));
    }
    let (_database, parts) = open(&settings).await?;
    let Some(opened) = &parts.queue else {
        return Err(ServeError::Queue(NO_QUEUE.to_owned()));
    };
    let run = parts.relay(opened).run_bounded(bounds).await;
    parts.engine.shut_down().await;
    Ok(run?)
}

/// `holdfast sweep --once`: releases what is to be released now.
pub async fn sweep_once(settings: RunSettings) -> Result<SweepRun, ServeError> {
    let bounds = bounds(&settings)?;
    let (_database, parts) = open(&settings).await?;
    let run = parts.expirer().run_bounded(bounds).await;
    parts.engine.shut_down().await;
    Ok(run?)
}

fn bounds(settings: &RunSettings) -> Result<Bounds, ServeError> {
    let bounds = Bounds::new(
        settings.max_rows.unwrap_or(Bounds::DEFAULT_ROWS),
        settings.max_seconds.unwrap_or(Bounds::DEFAULT_SECONDS),
    );
    bounds.map_err(|fault| ServeError::Bounds {
        flag: fault.bound.replace('_', "-"),
        fault,
    })
}

/// Opens the database for as long as the run takes. An embedded one that somebody serves is refused.
async fn open(settings: &RunSettings) -> Result<(Database, Parts), ServeError> {
    database::refuse_missing(&settings.database.url)?;
    let database = database::open_for_serving(&settings.database.url).await?;
    let plan = Plan {
        queue: &settings.queue,
        // Nothing is held or extended by a run.
        max_hold_seconds: i64::MAX,
        patience: PATIENCE,
        sweep: settings.sweep.period,
        release: &settings.release,
    };
    let runtime: Arc<dyn Runtime> = Arc::new(TokioRuntime::start());
    let parts = Parts::open(&database, runtime, plan).await?;
    Ok((database, parts))
}

/// The runs that a caller of the API can ask for. A run that was dropped halfway would do no harm,
/// but what it had in its hands would be published once more; so it comes to its end.
pub(super) struct Runs(pub Parts);

#[async_trait]
impl http::Runs for Runs {
    async fn relay(&self, bounds: Bounds) -> Option<Result<RelayRun, EngineError>> {
        let opened = self.0.queue.as_ref()?;
        let mut relay = self.0.relay(opened);
        let run = Box::pin(async move { relay.run_bounded(bounds).await });
        Some(to_its_end(self.0.runtime.as_ref(), run).await)
    }

    async fn sweep(&self, bounds: Bounds) -> Result<SweepRun, EngineError> {
        let expirer = self.0.expirer();
        let run = Box::pin(async move { expirer.run_bounded(bounds).await });
        to_its_end(self.0.runtime.as_ref(), run).await
    }
}
