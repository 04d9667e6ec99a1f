//! Whether the service lives, whether it can work, and its figures.

use axum::extract::State;
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::documented::documented;
use super::problem::Problem;
use super::{App, answer, kinds, schemas};
use crate::domain::Timestamp;
use crate::store::StoreError;

documented!(ReadyProblems: &[&kinds::NOT_READY]);
documented!(OtherProblems: &[]);

/// How long the expirer may give no sign of life, in seconds. It gives one every half second, or
/// every second while the database does not answer it.
const EXPIRER_SILENCE_SECONDS: f64 = 15.0;

/// The media type of the figures.
const OPEN_METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

/// The process lives.
#[derive(Serialize, ToSchema)]
pub(super) struct Live {
    /// `live`.
    #[schema(example = "live")]
    status: &'static str,
}

/// The service can work.
#[derive(Serialize, ToSchema)]
pub(super) struct Ready {
    /// `ready`.
    #[schema(example = "ready")]
    status: &'static str,
    /// The clock that decides.
    #[schema(value_type = schemas::Instant)]
    now: Timestamp,
    /// What keeps expiry jobs from being published, if anything does. Holds are released all the
    /// same, by the sweep.
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<String>,
}

/// Ask whether the process lives
///
/// It looks at nothing else, so that a database that is away restarts nothing.
#[utoipa::path(
    get,
    path = "/livez",
    operation_id = "get_liveness",
    tag = "health",
    responses(
        (status = 200, description = "The process lives.", body = Live),
        OtherProblems,
    ),
)]
pub(super) async fn live() -> Result<Response, Problem> {
    answer::ok(&Live { status: "live" })
}

/// Ask whether the service can work
///
/// It can if the database answers and holds are released when they are due.
#[utoipa::path(
    get,
    path = "/readyz",
    operation_id = "get_readiness",
    tag = "health",
    responses(
        (status = 200, description = "The service can work.", body = Ready),
        ReadyProblems,
    ),
)]
pub(super) async fn ready(State(app): State<App>) -> Result<Response, Problem> {
    // LerianStudio/midaz PR 2476: a service ran in a mode in which nothing expired.
    let heartbeat = app.metrics.heartbeat("expirer").get();
    let silence = app.runtime.elapsed().as_secs_f64() - heartbeat;
    if app.settings.roles.worker && silence > EXPIRER_SILENCE_SECONDS {
        let detail = "The expirer has not looked for due holds for too long.";
        return Err(Problem::new(&kinds::NOT_READY, detail));
    }
    match app.engine.store().now().await {
        Ok(now) => answer::ok(&Ready {
            status: "ready",
            now,
            queue: app
                .settings
                .queue_state
                .as_ref()
                .and_then(|it| it.trouble()),
        }),
        Err(error) => {
            let detail = match &error {
                StoreError::Schema(_) => "The database's schema is not the one that is needed.",
                StoreError::Unavailable(_) => "The database cannot be reached.",
                _ => "The database does not answer as it should.",
            };
            Err(Problem::new(&kinds::NOT_READY, detail).because(error))
        }
    }
}

/// Read the service's figures
///
/// In the text format of OpenMetrics 1.0, for Prometheus.
#[utoipa::path(
    get,
    path = "/metrics",
    operation_id = "get_metrics",
    tag = "health",
    responses(
        (status = 200, description = "The figures.", body = String,
            content_type = "application/openmetrics-text"),
        OtherProblems,
    ),
)]
pub(super) async fn metrics(State(app): State<App>) -> Result<Response, Problem> {
    let text = app.metrics.encode().map_err(Problem::internal)?;
    Ok(([(CONTENT_TYPE, OPEN_METRICS)], text).into_response())
}
