//! `holdfast serve`: puts the parts together, and takes them apart again in order.

mod door;
mod queue;
mod workers;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::signal::unix::{SignalKind, signal};

use crate::database;
use crate::domain::Rules;
use crate::engine::{self, Deliveries, Engine, Runtime, TokioRuntime};
use crate::http;
use crate::metrics::Metrics;
use crate::settings::{CorsOrigins, RetentionSettings, Settings};
use crate::store::StoreError;
use crate::worker::{Consumer, Expirer, Keep, Relay, Retention};

use self::door::Door;
use self::queue::Opened;
use self::workers::Workers;

/// Why the service did not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The database is not to be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The address is not to be had.
    #[error("cannot listen on {address}: {error}; set {variable} to a free address")]
    Listen {
        /// Which one.
        address: SocketAddr,
        /// The setting that names it.
        variable: &'static str,
        /// What the system says.
        error: io::Error,
    },
    /// The queue is not to be used.
    #[error("{0}")]
    Queue(String),
    /// Others could reach the service, and there is no key.
    #[error(
        "others can reach {0}, and there are no API keys; make one with `holdfast keys create`, \
         set HOLDFAST_BOOTSTRAP_KEY, or set HOLDFAST_LISTEN to 127.0.0.1:8080"
    )]
    Unguarded(SocketAddr),
    /// The certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] http::TlsFault),
    /// The system does not let the service run.
    #[error("the service stopped: {0}")]
    Io(#[from] io::Error),
}

/// Serves until SIGTERM or SIGINT; then finishes what was accepted.
pub async fn serve(settings: Settings) -> Result<(), ServeError> {
    door::check(&settings)?;
    let opened = database::open_for_serving(&settings.database.url).await?;
    let runtime: Arc<dyn Runtime> = Arc::new(TokioRuntime::start());
    let door = Door::open(&settings, &opened.store, &runtime).await?;
    let metrics = Arc::new(Metrics::new());
    let queue = queue::open(&settings.queue, &runtime).await?;
    let engine = Engine::start(
        Arc::clone(&opened.store),
        Arc::clone(&runtime),
        &metrics,
        engine::Settings {
            rules: Rules {
                max_hold_seconds: settings.max_hold_seconds,
                queue: queue.as_ref().map(Opened::rule),
            },
            sales_lanes: opened.sales_lanes,
            // Shorter than callers wait for an answer, so that a command whose rows do not come is
            // refused for certain, and its caller is not left to wonder.
            patience: settings.request_timeout * 9 / 10,
        },
    );
    let parts = Parts {
        engine,
        runtime,
        metrics,
        queue,
    };
    let workers = parts.start_workers(&settings);
    let api = http::api(
        parts.engine.clone(),
        Arc::clone(&parts.metrics),
        Arc::clone(&parts.runtime),
        Arc::clone(&door.access),
        parts.http_settings(&settings),
    );
    // Before anybody is told that the service runs: whoever is told may want it to end.
    let stop_signal = stop_signal()?;
    door.announce(&settings.database.url)?;
    door.serve(api, stop_signal).await;
    workers.finish().await;
    parts.engine.shut_down().await;
    tracing::info!("stopped");
    Ok(())
}

/// What the parts of the service share.
struct Parts {
    engine: Engine,
    runtime: Arc<dyn Runtime>,
    metrics: Arc<Metrics>,
    /// None if the built-in timer releases what is due.
    queue: Option<Opened>,
}

impl Parts {
    /// Starts the workers that this process shall have.
    fn start_workers(&self, settings: &Settings) -> Workers {
        let mut workers = Workers::new(Arc::clone(&self.runtime), Arc::clone(&self.metrics));
        if !settings.roles.worker {
            return workers;
        }
        let engine = self.engine.clone();
        let runtime = Arc::clone(&self.runtime);
        let sweep = settings.sweep;
        workers.start(Retention::new(
            Arc::clone(engine.store()),
            Arc::clone(&runtime),
            Arc::clone(&self.metrics),
            keep(&settings.retention),
        ));
        let Some(opened) = &self.queue else {
            workers.start(Expirer::timer(engine, runtime, sweep));
            return workers;
        };
        workers.start(Expirer::sweep(engine, Arc::clone(&runtime), sweep, sweep));
        workers.start(Relay::new(
            Arc::clone(self.engine.store()),
            Arc::clone(&opened.queue),
            opened.identity.clone(),
            Arc::clone(&opened.state),
            Arc::clone(&runtime),
            Arc::clone(&self.metrics),
            sweep,
        ));
        if opened.is_pulled() {
            workers.start(Consumer::new(
                Arc::clone(&opened.queue),
                self.deliveries(opened),
                Arc::clone(&opened.state),
                runtime,
            ));
        }
        workers
    }

    fn deliveries(&self, opened: &Opened) -> Deliveries {
        Deliveries::new(
            self.engine.clone(),
            Arc::clone(&self.runtime),
            Arc::clone(&self.metrics),
            opened.queue.name(),
        )
    }

    fn http_settings(&self, settings: &Settings) -> http::Settings {
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

/// Resolves when the system or the operator asks the process to end.
pub fn stop_signal() -> io::Result<impl Future<Output = ()> + Send + 'static> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("stopping; requests that are under way are finished");
    })
}
