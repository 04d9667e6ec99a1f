//! `/v1/operations/relay/run` and `/v1/operations/sweep/run`: the work of the workers, driven from
//! outside.

use std::time::Duration;

use async_trait::async_trait;
use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use utoipa::ToSchema;

use crate::engine::{Bounds, EngineError, RelayRun, SweepRun};
use crate::http::documented::{CHANGED, documented};
use crate::http::fields::Whole;
use crate::http::operations::quarantine;
use crate::http::problem::Problem;
use crate::http::submission::{Input, Submission};
use crate::http::{App, answer, kinds};

documented!(RelayProblems: CHANGED, &[&kinds::NO_QUEUE]);
documented!(SweepProblems: CHANGED);

/// The end of the paths under which a run is asked for.
const RUN: &str = "/run";
/// How long the last step of a run may take at most that begins within its time: as long as a relay
/// has what it claimed.
const LAST_STEP: Duration = Duration::from_secs(60);

/// How long a request for a run may take, whatever it asks for, besides the time that every request
/// has; `None` if this path asks for no run.
pub(in crate::http) fn extra_time(path: &str) -> Option<Duration> {
    let is_run = path.starts_with("/v1/operations/") && path.ends_with(RUN);
    (is_run || path == quarantine::REPLAY_MANY)
        .then(|| Duration::from_secs(Bounds::MOST_SECONDS.into()) + LAST_STEP)
}

/// Who does the work.
#[async_trait]
pub trait Runs: Send + Sync {
    /// Publishes what is to be published now; `None` if there is no queue.
    async fn relay(&self, bounds: Bounds) -> Option<Result<RelayRun, EngineError>>;

    /// Releases what is to be released now.
    async fn sweep(&self, bounds: Bounds) -> Result<SweepRun, EngineError>;
}

/// How much a run may do. No body at all is the same as `{}`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct RunBounds {
    /// How many rows it handles at most; 10,000 if not given.
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 1_000_000, nullable = false)]
    max_rows: Option<Whole<1, { Bounds::MOST_ROWS as i64 }>>,
    /// After how many seconds nothing further is begun; 60 if not given.
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 600, nullable = false)]
    max_seconds: Option<Whole<1, { Bounds::MOST_SECONDS as i64 }>>,
}

impl Input for RunBounds {
    const MAY_BE_MISSING: bool = true;
}

impl RunBounds {
    fn bounds(&self) -> Result<Bounds, Problem> {
        let rows = self.max_rows.as_ref().map(|rows| rows.0);
        let seconds = self.max_seconds.as_ref().map(|seconds| seconds.0);
        let number = |said: Option<i64>, default| match said {
            // What does not fit is refused by the bounds.
            Some(said) => u32::try_from(said).unwrap_or(u32::MAX),
            None => default,
        };
        let bounds = Bounds::new(
            number(rows, Bounds::DEFAULT_ROWS),
            number(seconds, Bounds::DEFAULT_SECONDS),
        );
        bounds.map_err(|fault| Problem::invalid(fault.bound, fault))
    }
}

/// What a run of the relay did.
#[derive(ToSchema)]
#[schema(as = RelayRun)]
#[expect(dead_code, reason = "the run writes itself; this is its schema")]
struct RelayRunBody {
    /// Messages that the queue took.
    published: usize,
    /// Messages that it did not take now, and that are tried again later.
    postponed: usize,
    /// Messages that it will never take, and that are in quarantine.
    parked: usize,
    /// Messages that were taken out, because their hold has ended or moved.
    skipped: usize,
    /// Whether there is still something that could be published now.
    more: bool,
    /// How long it took, in milliseconds.
    duration_ms: u64,
}

/// What a run of the sweep did.
#[derive(ToSchema)]
#[schema(as = SweepRun)]
#[expect(dead_code, reason = "the run writes itself; this is its schema")]
struct SweepRunBody {
    /// Holds that expired.
    released: usize,
    /// Due holds that could not be released now, and are tried again later.
    blocked: usize,
    /// Whether there is still something that could be released now.
    more: bool,
    /// How long it took, in milliseconds.
    duration_ms: u64,
}

/// Run the relay
///
/// Publishes what is to be published to the queue now, until nothing is left or a bound is reached.
/// Runs may overlap with each other and with the workers of any process, and may be missed: what
/// was missed is done by the next one. A run comes to its end even if its caller hangs up.
#[utoipa::path(
    post,
    path = "/v1/operations/relay/run",
    operation_id = "run_relay",
    tag = "operations",
    request_body(content = Option<RunBounds>,
        example = json!({ "max_rows": 10_000, "max_seconds": 60 })),
    responses(
        (status = 200, description = "What it did.", body = RelayRunBody, example = json!({
            "published": 3, "postponed": 0, "parked": 0, "skipped": 1, "more": false,
            "duration_ms": 12,
        })),
        RelayProblems,
    ),
)]
pub(in crate::http) async fn relay(
    State(app): State<App>,
    submission: Submission<RunBounds>,
) -> Result<Response, Problem> {
    let bounds = submission.body.bounds()?;
    let run = match &app.settings.runs {
        Some(runs) => runs.relay(bounds).await,
        None => None,
    };
    match run {
        Some(run) => answer::ok(&run?),
        None => Err(Problem::new(&kinds::NO_QUEUE, kinds::NO_QUEUE.detail)),
    }
}

/// Run the sweep
///
/// Releases what is due, as the timer does, or behind a queue what that has not brought within the
/// grace, until nothing is left or a bound is reached. Runs may overlap and may be missed, as those
/// of the relay.
#[utoipa::path(
    post,
    path = "/v1/operations/sweep/run",
    operation_id = "run_sweep",
    tag = "operations",
    request_body(content = Option<RunBounds>,
        example = json!({ "max_rows": 10_000, "max_seconds": 60 })),
    responses(
        (status = 200, description = "What it did.", body = SweepRunBody, example = json!({
            "released": 7, "blocked": 0, "more": false, "duration_ms": 5,
        })),
        SweepProblems,
    ),
)]
pub(in crate::http) async fn sweep(
    State(app): State<App>,
    submission: Submission<RunBounds>,
) -> Result<Response, Problem> {
    let bounds = submission.body.bounds()?;
    match &app.settings.runs {
        Some(runs) => answer::ok(&runs.sweep(bounds).await?),
        None => Err(Problem::overloaded("No worker can be run here.")),
    }
}
