//! The API over HTTP.
//!
//! A request passes the `layers`, is read by extractors (`path`, `query`, `submission`) that
//! refuse what breaks a rule before anything else sees it, and ends in a handler of
//! `reservations`, `stock` or `events`. A handler that changes something makes a command of it and
//! hands it to the engine; `answer` turns what comes back into status and body. Whatever goes
//! wrong on the way is a `problem`.

mod answer;
mod bodies;
mod connections;
mod cors;
mod cursor;
mod deliveries;
mod docs;
mod documented;
mod doors;
mod events;
mod examples;
mod fields;
mod guard;
mod health;
mod idempotency;
mod json;
mod kinds;
mod layers;
mod openapi;
mod operations;
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
mod tls;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{Method, StatusCode};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use tower_http::catch_panic::CatchPanicLayer;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::Access;
use crate::engine::{Engine, Runtime};
use crate::metrics::Metrics;
use crate::queue::QueueState;
pub use connections::{Serving, serve_until};
pub use cors::{Origin, OriginFault};
pub use deliveries::Receiver;
pub use operations::quarantine::{CaseBody, ReplayBody};
pub use operations::runs::Runs;
use problem::Problem;
pub use tls::{Tls, TlsFault};

/// The most bytes of a body.
const MAX_BODY: usize = 1 << 20;

/// What the operator of the service has set.
#[derive(Clone)]
pub struct Settings {
    /// How long a hold lasts whose maker does not say, in seconds.
    pub default_hold_seconds: i64,
    /// Whose pages may use the API in a browser.
    pub cors_origins: Vec<Origin>,
    /// How long a caller waits for an answer at most.
    pub request_timeout: Duration,
    /// Whether readiness and figures are served on a listener of their own.
    pub has_operations: bool,
    /// Who takes in what a queue pushes, if one is configured.
    pub receiver: Option<Receiver>,
    /// What was last seen of the queue, if one is configured.
    pub queue_state: Option<Arc<QueueState>>,
    /// Who does a bounded run of the workers' work; without it, nobody does.
    pub runs: Option<Arc<dyn Runs>>,
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
            has_operations: false,
            receiver: None,
            queue_state: None,
            runs: None,
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
    access: Arc<Access>,
    settings: Arc<Settings>,
}

/// What is served, ready to be.
pub struct Api {
    /// All of it, but for what has a listener of its own.
    pub all: Router,
    /// Health and figures alone, for a listener that is not for callers of the API. Nobody needs a
    /// key there.
    pub operations: Router,
}

/// The whole API.
pub fn api(
    engine: Engine,
    metrics: Arc<Metrics>,
    runtime: Arc<dyn Runtime>,
    access: Arc<Access>,
    settings: Settings,
) -> Api {
    let app = App {
        engine,
        metrics,
        runtime,
        access,
        settings: Arc::new(settings),
    };
    let health = || OpenApiRouter::new().routes(routes!(health::live));
    let is_api = app.settings.roles.api;
    let mut routes = health();
    if is_api {
        routes = routes.merge(operations());
    }
    if !app.settings.has_operations {
        routes = routes.merge(figures());
    }
    let mut routes = Router::from(routes);
    if is_api {
        routes = routes.merge(docs::routes(openapi_json()));
    }
    let mut all = bounded(routes, &app).layer(from_fn_with_state(app.clone(), guard::guard));
    let origins = &app.settings.cors_origins;
    if !origins.is_empty() {
        all = all.layer(cors::layer(origins));
    }
    Api {
        all: observed(all, &app),
        operations: observed(bounded(health().merge(figures()).into(), &app), &app),
    }
}

/// Answers what no route does, and what comes to no end.
fn bounded(routes: Router<App>, app: &App) -> Router<App> {
    routes
        .fallback(async || Problem::no_such_path())
        .method_not_allowed_fallback(other_method)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(CatchPanicLayer::custom(layers::panicked))
        .layer(from_fn_with_state(app.clone(), layers::limit_time))
}

fn observed(routes: Router<App>, app: &App) -> Router {
    routes
        .layer(from_fn_with_state(app.clone(), layers::observe))
        .with_state(app.clone())
}

/// The API document.
pub fn openapi() -> utoipa::openapi::OpenApi {
    let health = OpenApiRouter::new().routes(routes!(health::live));
    let all = operations().merge(health).merge(figures());
    openapi::complete(all.into_openapi())
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
        .routes(routes!(operations::runs::relay))
        .routes(routes!(operations::runs::sweep))
        .routes(routes!(operations::quarantine::list))
        .routes(routes!(operations::quarantine::replay_many))
        .routes(routes!(operations::quarantine::get))
        .routes(routes!(operations::quarantine::replay))
        .routes(routes!(operations::quarantine::dismiss))
}

/// What may have a listener of its own.
fn figures() -> OpenApiRouter<App> {
    OpenApiRouter::new()
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
