//! `holdfast serve`: puts the parts together, and takes them apart again in order.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

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

mod door;

use door::Door;

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
    let engine = Engine::start(
        Arc::clone(&opened.store),
        Arc::clone(&runtime),
        &metrics,
        engine::Settings {
            rules: Rules {
                max_hold_seconds: settings.max_hold_seconds,
                queue: None,
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
        Expirer::timer(engine.clone(), Arc::clone(&runtime), settings.sweep),
        Arc::clone(&runtime),
        metrics.expirer_heartbeat.clone(),
        stop,
    );
    runtime.spawn(Box::pin(async move {
        running.await;
        let _ = finished.send(());
    }));
    let access = Arc::clone(&door.access);
    let api = http::api(
        engine.clone(),
        metrics,
        runtime,
        access,
        http_settings(&settings),
    );
    // Before anybody is told that the service runs: whoever is told may want it to end.
    let stop_signal = stop_signal()?;
    door.announce(&settings.database.url)?;
    door.serve(api, stop_signal).await;
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
        has_operations: settings.door.operations_listen.is_some(),
    }
}

/// Resolves when the system or the operator asks the process to end.
fn stop_signal() -> io::Result<impl Future<Output = ()> + Send + 'static> {
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
