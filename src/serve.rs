//! `holdfast serve`: puts the parts together, and takes them apart again in order.

mod door;
mod parts;
mod queue;
mod runs;
mod workers;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::signal::unix::{SignalKind, signal};

use crate::database;
use crate::engine::{BoundsFault, EngineError, Runtime, TokioRuntime};
use crate::http;
use crate::settings::Settings;
use crate::store::StoreError;

use self::door::Door;
use self::parts::{Parts, Plan};

pub use self::runs::{relay_once, sweep_once};

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
    /// A bound of a run makes no sense.
    #[error("--{flag} {fault}; give another one")]
    Bounds {
        /// The flag by which it is given.
        flag: String,
        /// What is wrong with it.
        fault: BoundsFault,
    },
    /// A run did not come to its end.
    #[error(transparent)]
    Engine(#[from] EngineError),
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
    let parts = Parts::open(&opened, Arc::clone(&runtime), plan(&settings)).await?;
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

fn plan(settings: &Settings) -> Plan<'_> {
    Plan {
        queue: &settings.queue,
        max_hold_seconds: settings.max_hold_seconds,
        // Shorter than callers wait for an answer, so that a command whose rows do not come is
        // refused for certain, and its caller is not left to wonder.
        patience: settings.request_timeout * 9 / 10,
        sweep: settings.sweep.period,
        release: &settings.release,
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
