//! The parts of the service that do its work, and the workers that are made of them.

use std::sync::Arc;
use std::time::Duration;

use crate::database::Database;
use crate::domain::{AdmissionDimension, AdmissionLimit, PaceRule, RetryBudget, Rules};
use crate::engine::{self, Deliveries, Engine, Runtime};
use crate::http;
use crate::metrics::Metrics;
use crate::settings::{
    CorsOrigins, PacedBy, QueueSettings, ReleaseRate, ReleaseSettings, RetentionSettings, Settings,
};
use crate::worker::{Consumer, Expirer, Keep, Relay, RelaySettings, Retention};

use super::ServeError;
use super::queue::{self, Opened};
use super::runs::Runs;
use super::workers::Workers;

/// What has to be known to put them together.
pub(super) struct Plan<'a> {
    pub queue: &'a QueueSettings,
    pub max_hold_seconds: i64,
    /// How long a command may wait for rows that others have locked.
    pub patience: Duration,
    /// How often what was missed is looked for, and behind a queue how long it is left to that.
    pub sweep: Duration,
    /// How due holds are released.
    pub release: &'a ReleaseSettings,
}

/// What the parts of the service share. Clones share everything.
#[derive(Clone)]
pub(super) struct Parts {
    pub engine: Engine,
    pub runtime: Arc<dyn Runtime>,
    pub metrics: Arc<Metrics>,
    /// None if the built-in timer releases what is due.
    pub queue: Option<Opened>,
    sweep: Duration,
    retry_budget: RetryBudget,
}

impl Parts {
    /// Opens the queue, and starts an engine on the database.
    pub async fn open(
        database: &Database,
        runtime: Arc<dyn Runtime>,
        plan: Plan<'_>,
    ) -> Result<Self, ServeError> {
        let metrics = Arc::new(Metrics::new());
        let queue = queue::open(plan.queue, &runtime).await?;
        let engine = Engine::start(
            Arc::clone(&database.store),
            Arc::clone(&runtime),
            &metrics,
            engine::Settings {
                rules: Rules {
                    max_hold_seconds: plan.max_hold_seconds,
                    queue: queue.as_ref().map(Opened::rule),
                },
                pace: pace(plan.release),
                retry_budget: retry_budget(plan.release),
                sales_lanes: database.sales_lanes,
                patience: plan.patience,
            },
        );
        Ok(Self {
            engine,
            runtime,
            metrics,
            queue,
            sweep: plan.sweep,
            retry_budget: retry_budget(plan.release),
        })
    }

    /// What releases due holds: at once, or those that the queue has not brought in time.
    pub fn expirer(&self) -> Expirer {
        let (engine, runtime) = (self.engine.clone(), Arc::clone(&self.runtime));
        match self.queue {
            None => Expirer::timer(engine, runtime, self.sweep),
            Some(_) => Expirer::sweep(engine, runtime, self.sweep, self.sweep),
        }
    }

    /// What publishes to the queue.
    pub fn relay(&self, opened: &Opened) -> Relay {
        Relay::new(
            Arc::clone(self.engine.store()),
            Arc::clone(&opened.queue),
            opened.identity.clone(),
            Arc::clone(&opened.state),
            Arc::clone(&self.runtime),
            Arc::clone(&self.metrics),
            RelaySettings {
                sweep: self.sweep,
                retry_budget: self.retry_budget,
            },
        )
    }

    fn deliveries(&self, opened: &Opened) -> Deliveries {
        Deliveries::new(
            self.engine.clone(),
            Arc::clone(&self.runtime),
            Arc::clone(&self.metrics),
            opened.queue.name(),
        )
    }

    /// Starts the workers that this process shall have.
    pub fn start_workers(&self, settings: &Settings) -> Workers {
        let mut workers = Workers::new(Arc::clone(&self.runtime), Arc::clone(&self.metrics));
        if !settings.roles.worker {
            return workers;
        }
        workers.start(self.expirer());
        workers.start(Retention::new(
            Arc::clone(self.engine.store()),
            Arc::clone(&self.runtime),
            Arc::clone(&self.metrics),
            keep(&settings.retention),
        ));
        let Some(opened) = &self.queue else {
            return workers;
        };
        workers.start(self.relay(opened));
        if opened.is_pulled() {
            workers.start(Consumer::new(
                Arc::clone(&opened.queue),
                self.deliveries(opened),
                Arc::clone(&opened.state),
                Arc::clone(&self.runtime),
            ));
        }
        workers
    }

    pub fn http_settings(&self, settings: &Settings) -> http::Settings {
        let origins = match &settings.cors_origins {
            CorsOrigins::Any => vec!["*".to_owned()],
            CorsOrigins::Exactly(origins) => origins.clone(),
        };
        http::Settings {
            default_hold_seconds: settings.hold_seconds,
            // An origin that is no header value was refused when the settings were read.
            cors_origins: origins
                .iter()
                .filter_map(|origin| origin.parse().ok())
                .collect(),
            request_timeout: settings.request_timeout,
            receiver: self.queue.as_ref().map(|opened| {
                http::Receiver::new(Arc::clone(&opened.queue), self.deliveries(opened))
            }),
            has_operations: settings.door.operations_listen.is_some(),
            queue_state: self.queue.as_ref().map(|it| Arc::clone(&it.state)),
            runs: Some(Arc::new(Runs(self.clone()))),
            roles: http::Roles {
                api: settings.roles.api,
                worker: settings.roles.worker,
            },
        }
    }
}

fn keep(settings: &RetentionSettings) -> Keep {
    Keep {
        answers: settings.keep_idempotency,
        messages: settings.keep_outbox,
        ledger: settings.keep_ledger,
        reservations: settings.keep_reservations,
        events: settings.keep_events,
    }
}

/// How long after its slot a permit is kept, in milliseconds: longer than a batch takes, or a queue
/// that was told when to come again. What comes later asks anew.
const PERMIT_KEPT_MS: i64 = 5_000;

/// The pace of releases, if there is one. What it is made of was checked when the settings were
/// read.
fn pace(settings: &ReleaseSettings) -> Option<Arc<PaceRule>> {
    let limit = |rate: ReleaseRate| AdmissionLimit::per_second(rate.per_second, rate.burst);
    let overrides = settings.admission_overrides.0.iter();
    Some(Arc::new(PaceRule {
        dimension: match settings.admission_key {
            PacedBy::Global => AdmissionDimension::Global,
            PacedBy::Location => AdmissionDimension::Location,
            PacedBy::Merchant => AdmissionDimension::Merchant,
        },
        limit: limit(settings.rate()?)?,
        overrides: overrides
            .filter_map(|(name, rate)| Some((name.clone(), limit(*rate)?)))
            .collect(),
        kept_ms: PERMIT_KEPT_MS,
    }))
}

fn retry_budget(settings: &ReleaseSettings) -> RetryBudget {
    let whole = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    RetryBudget {
        attempts: whole(settings.retry_attempts),
        past_deadline_ms: whole(settings.retry_seconds).saturating_mul(1_000),
    }
}
