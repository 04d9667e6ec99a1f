//! `holdfast serve`: puts the parts together, and takes them apart again in order.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::domain::Rules;
use crate::engine::{self, Engine, Runtime, TokioRuntime};
use crate::http;
use crate::metrics::Metrics;
use crate::settings::Settings;
use crate::store::{self, Clock, Store, StoreError};
use crate::worker::{self, Expirer, Heartbeat};

/// Without a sign of the expirer for this long, `/readyz` says so.
const EXPIRER_SILENCE: Duration = Duration::from_secs(30);

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
        address: std::net::SocketAddr,
        /// What the system says.
        error: std::io::Error,
    },
    /// The system does not let the service run.
    #[error("the service stopped: {0}")]
    Io(#[from] std::io::Error),
}

/// Serves until SIGTERM or SIGINT; then finishes what was accepted.
pub async fn serve(settings: Settings) -> Result<(), ServeError> {
    let opened = store::open_for_serving(&settings.database.url).await?;
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
            patience: settings.request_timeout,
        },
    );
    let (stop_expirer, expirer) = start_expirer(&engine, &runtime, settings.sweep);
    let listener = listen(&settings).await?;
    let router = http::router(
        engine.clone(),
        Arc::clone(&runtime),
        metrics,
        http_settings(&settings, &runtime, &expirer.heartbeat),
    );
    // Tests and people read this line; it is the first that says the service can be used.
    let address = listener.local_addr()?;
    tracing::info!(database = %settings.database.url, "listening on http://{address}");
    http::serve(listener, router, stop_signal()?, settings.shutdown).await?;
    let _ = stop_expirer.send(true);
    let _ = expirer.task.await;
    engine.shut_down().await;
    tracing::info!("stopped");
    Ok(())
}
