//! `holdfast serve`: puts the parts together, and takes them apart again in order.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{oneshot, watch};

use crate::database;
use crate::domain::Rules;
use crate::engine::{self, Engine, Runtime, TokioRuntime};
use crate::http;
use crate::metrics::Metrics;
use crate::settings::{CorsOrigins, Settings};
use crate::store::StoreError;
use crate::worker::{self, Expirer};

/// Why the service did not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The database is not to be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The address is not to be had.
    #[error("cannot listen on {address}: {error}; set HOLDFAST_LISTEN to a free address")]
    Listen {
        /// Which one.
        address: SocketAddr,
        /// What the system says.
        error: io::Error,
    },
    /// The system does not let the service run.
    #[error("the service stopped: {0}")]
    Io(#[from] io::Error),
}

/// Serves until SIGTERM or SIGINT; then finishes what was accepted.
pub async fn serve(settings: Settings) -> Result<(), ServeError> {
    let opened = database::open_for_serving(&settings.database.url).await?;
    let listener = TcpListener::bind(settings.listen).await.map_err(|error| {
        let address = settings.listen;
        ServeError::Listen { address, error }
    })?;
    let runtime: Arc<dyn Runtime> = Arc::new(TokioRuntime::start());
    let metrics = Arc::new(Metrics::new());
    let engine = Engine::start(
        Arc::clone(&opened.store),
        Arc::clone(&runtime),
        &metrics,
        engine::Settings {
            rules: Rules {
                max_hold_seconds: settings.max_hold_seconds,
            },
            sales_lanes: opened.sales_lanes,
            // Shorter than callers wait for an answer, so that a command whose rows do not come is
            // refused for certain, and its caller is not left to wonder.
            patience: settings.request_timeout * 9 / 10,
        },
    );
    let (stop_expirer, stop) = watch::channel(false);
    let (finished, expirer) = oneshot::channel();
    let running = worker::run(
        Expirer::new(engine.clone(), Arc::clone(&runtime), settings.sweep),
        Arc::clone(&runtime),
        metrics.expirer_heartbeat.clone(),
        stop,
    );
    runtime.spawn(Box::pin(async move {
        running.await;
        let _ = finished.send(());
    }));
    let router = http::router(engine.clone(), metrics, runtime, http_settings(&settings));
    // Before anybody is told that the service runs: whoever is told may want it to end.
    let stop_signal = stop_signal()?;
    // The first line that says that the service can be used; whoever starts it may wait for it.
    let address = listener.local_addr()?;
    tracing::info!(database = %settings.database.url, "listening on http://{address}");
    tracing::info!("without API keys it serves this machine only");
    http::serve_until(listener, router, stop_signal, settings.shutdown).await?;
    let _ = stop_expirer.send(true);
    let _ = expirer.await;
    engine.shut_down().await;
    tracing::info!("stopped");
    Ok(())
}

fn http_settings(settings: &Settings) -> http::Settings {
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
