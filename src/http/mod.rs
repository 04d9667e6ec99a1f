//! The API over HTTP.
//!
//! A request passes the `layers`, is read by extractors (`path`, `query`, `submission`) that
//! refuse what breaks a rule before anything else sees it, and ends in a handler of
//! `reservations`, `stock` or `events`. A handler that changes something makes a command of it and
//! hands it to the engine; `answer` turns what comes back into status and body. Whatever goes
//! wrong on the way is a `problem`.

mod answer;
mod bodies;
mod cors;
mod cursor;
mod deliveries;
mod docs;
mod documented;
mod events;
mod examples;
mod fields;
mod health;
mod idempotency;
mod json;
mod kinds;
mod layers;
mod openapi;
mod page;
mod path;
mod problem;
mod query;
mod reservations;
mod schemas;
mod stock;
mod submission;
#[cfg(test)]
mod tests;

use std::future::{Future, IntoFuture};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{Method, StatusCode};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::serve::ListenerExt as _;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tower_http::catch_panic::CatchPanicLayer;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::engine::{Engine, Runtime};
use crate::metrics::Metrics;
use crate::queue::QueueState;
pub use cors::{Origin, OriginFault};
pub use deliveries::Receiver;
use problem::Problem;

/// The most bytes of a body.
const MAX_BODY: usize = 1 << 20;

/// What the operator of the service has set.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How long a hold lasts whose maker does not say, in seconds.
    pub default_hold_seconds: i64,
    /// Whose pages may use the API in a browser.
    pub cors_origins: Vec<Origin>,
    /// How long a caller waits for an answer at most.
    pub request_timeout: Duration,
    /// Who takes in what a queue pushes, if one is configured.
    pub receiver: Option<Receiver>,
    /// What was last seen of the queue, if one is configured.
    pub queue_state: Option<Arc<QueueState>>,
    /// Which parts of the service this process is.
    pub roles: Roles,
}

/// Which parts of the service a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Roles {
    /// It serves the API. Without it, it says how it is and nothing else.
    pub api: bool,
    /// It releases what is due, and publishes.
    pub worker: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            default_hold_seconds: 900,
            cors_origins: Vec::new(),
            request_timeout: Duration::from_secs(10),
            receiver: None,
            queue_state: None,
            roles: Roles {
                api: true,
                worker: true,
            },
        }
    }
}

/// What the handlers share.
#[derive(Clone)]
struct App {
    engine: Engine,
    metrics: Arc<Metrics>,
    runtime: Arc<dyn Runtime>,
    settings: Arc<Settings>,
}

/// The whole API, ready to be served.
pub fn router(
    engine: Engine,
    metrics: Arc<Metrics>,
    runtime: Arc<dyn Runtime>,
    settings: Settings,
) -> Router {
    let cors = (!settings.cors_origins.is_empty()).then(|| cors::layer(&settings.cors_origins));
    let app = App {
        engine,
        metrics,
        runtime,
        settings: Arc::new(settings),
    };
    let router = if app.settings.roles.api {
        let (operations, document) = operations().split_for_parts();
        let document = openapi::complete(document);
        operations.merge(docs::routes(written(&document)))
    } else {
        health_operations().split_for_parts().0
    };
    let router = router
        .fallback(async || Problem::no_such_path())
        .method_not_allowed_fallback(other_method)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(CatchPanicLayer::custom(layers::panicked))
        .layer(from_fn_with_state(app.clone(), layers::limit_time));
    let router = match cors {
        Some(cors) => router.layer(cors),
        None => router,
    };
    router
        .layer(from_fn_with_state(app.clone(), layers::observe))
        .with_state(app)
}

/// Serves `router` until `stop` resolves; then takes no more connections and gives the requests
/// that are under way at most `grace` to finish.
pub async fn serve_until(
    listener: TcpListener,
    router: Router,
    stop: impl Future<Output = ()> + Send + 'static,
    grace: Duration,
) -> io::Result<()> {
    let stopping = Arc::new(Notify::new());
    let stopped = Arc::clone(&stopping);
    let stop = async move {
        stop.await;
        stopped.notify_one();
    };
    // The end of a long answer must not wait until its beginning is acknowledged.
    let listener = listener.tap_io(|connection| {
        if let Err(error) = connection.set_nodelay(true) {
            tracing::debug!(%error, "a connection may be slow");
        }
    });
    let serving = axum::serve(listener, router)
        .with_graceful_shutdown(stop)
        .into_future();
    let out_of_time = async {
        stopping.notified().await;
        tokio::time::sleep(grace).await;
    };
    tokio::select! {
        served = serving => served,
        () = out_of_time => {
            tracing::warn!("requests were still under way when the time to finish ran out");
            Ok(())
        }
    }
}

/// The API document.
pub fn openapi() -> utoipa::openapi::OpenApi {
    openapi::complete(operations().into_openapi())
}

/// The API document as it is served and committed.
pub fn openapi_json() -> String {
    written(&openapi())
}

fn written(document: &utoipa::openapi::OpenApi) -> String {
    // A document that was built in memory holds nothing that JSON cannot say.
    let json = serde_json::to_string_pretty(document).unwrap_or_default();
    json + "\n"
}

fn operations() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(openapi::frame())
        .routes(routes!(reservations::create, reservations::list))
        .routes(routes!(reservations::get))
        .routes(routes!(reservations::extend))
        .routes(routes!(reservations::check_out))
        .routes(routes!(reservations::cancel))
        .routes(routes!(stock::list))
        .routes(routes!(stock::set, stock::get))
        .routes(routes!(stock::adjust))
        .routes(routes!(events::list))
        .routes(routes!(deliveries::deliver))
        .merge(health_operations())
}

fn health_operations() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(health::live))
        .routes(routes!(health::ready))
        .routes(routes!(health::metrics))
}

/// The path exists and does not take the method. The router adds the header `Allow`.
async fn other_method(method: Method) -> Response {
    if method == Method::OPTIONS {
        StatusCode::NO_CONTENT.into_response()
    } else {
        Problem::method_not_allowed(&method).into_response()
    }
}
