//! Deliveries that a queue pushes.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{Path, Request, State};
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use super::documented::documented;
use super::problem::Problem;
use super::submission::complete_body;
use super::{App, answer, kinds};
use crate::domain::Via;
use crate::engine::{Delivered, Deliveries};
use crate::queue::{Queue, Untrusted};
use crate::store::Clock;

documented!(DeliveryProblems: &[
    &kinds::MALFORMED_REQUEST,
    &kinds::UNAUTHORIZED,
    &kinds::NOT_FOUND,
    &kinds::REQUEST_TIMEOUT,
    &kinds::PAYLOAD_TOO_LARGE,
    &kinds::EXPIRY_DEFERRED,
]);

/// How often the log says that pushes are not trusted: a wrong secret makes each one say so, and
/// anybody can send what is none.
const DOUBTS_TOLD_EVERY: Duration = Duration::from_secs(60);

/// Who takes pushes in.
#[derive(Clone)]
pub struct Receiver {
    /// The queue that pushes, by which a push is known.
    queue: Arc<dyn Queue>,
    /// What is done with what it pushes.
    deliveries: Deliveries,
    /// When the log may next say that a push was not trusted, by the runtime's stopwatch.
    next_doubt: Arc<Mutex<Duration>>,
}

impl Receiver {
    /// Takes in what `queue` pushes.
    pub fn new(queue: Arc<dyn Queue>, deliveries: Deliveries) -> Self {
        Self {
            queue,
            deliveries,
            next_doubt: Arc::default(),
        }
    }

    /// Counts what is not signed as it should be, and now and then says so.
    fn doubt(&self, untrusted: Untrusted, app: &App) -> Problem {
        app.metrics.forged_deliveries.inc();
        let now = app.runtime.elapsed();
        let mut next_doubt = self
            .next_doubt
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if *next_doubt <= now {
            *next_doubt = now + DOUBTS_TOLD_EVERY;
            tracing::warn!(
                reason = %untrusted,
                "a push was refused; if the queue sent it, HOLDFAST_QUEUE_SECRET is not its secret"
            );
        }
        Problem::new(&kinds::UNAUTHORIZED, untrusted.to_string())
    }
}

impl std::fmt::Debug for Receiver {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Receiver({})", self.queue.name())
    }
}

/// What became of a delivery. The queue is done with it.
#[derive(Serialize, ToSchema)]
pub(super) struct DeliveryBody {
    /// `expired`, `duplicate`, `stale`, `paid`, `cancelled` or `already_expired`; `rearmed` if it
    /// has to wait and its job is published again; `quarantined` if it is no job, or its hold waits
    /// for an operator.
    #[schema(example = "expired")]
    outcome: &'static str,
}

/// Deliver an expiry job
///
/// For the queue that is configured, and for nobody else: the body is what Holdfast published,
/// signed as the Standard Webhooks specification says. Whatever is asked for twice is done once. A
/// job that comes up to two seconds early is answered when it is due.
#[utoipa::path(
    post,
    path = "/v1/deliveries/{queue}",
    operation_id = "deliver_job",
    tag = "deliveries",
    params(
        ("queue" = String, Path, description = "Which kind of queue it is.", example = "rest"),
        ("webhook-id" = String, Header, description = "The queue's name for the message."),
        ("webhook-timestamp" = String, Header,
            description = "When it was sent, in Unix seconds; at most 300 s from now."),
        ("webhook-signature" = String, Header,
            description = "`v1,` and the base64 of an HMAC-SHA256 over id, timestamp and body."),
    ),
    request_body(
        content = serde_json::Value,
        description = "The job, as it was published.",
        content_type = "application/json",
        example = json!({
            "job_id": "expire:rsv_01jdz3x9k2e5qs8v4m7n6p0r1t:1796126400250",
            "reservation_id": "rsv_01jdz3x9k2e5qs8v4m7n6p0r1t",
            "expected_expires_at": "2026-12-01T12:00:00.250Z",
        }),
    ),
    responses(
        (status = 200, description = "It is done with.", body = DeliveryBody,
            example = json!({ "outcome": "expired" })),
        DeliveryProblems,
    ),
)]
pub(super) async fn deliver(
    State(app): State<App>,
    Path(queue): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    let receiver = app
        .settings
        .receiver
        .as_ref()
        .filter(|receiver| receiver.queue.name() == queue)
        .ok_or_else(Problem::no_such_path)?;
    let headers = request.headers().clone();
    let body = complete_body(request, &app).await?;
    let most = receiver.queue.limits().max_payload_bytes;
    if body.len() > most {
        let detail = format!("A message has at most {most} bytes.");
        return Err(Problem::new(&kinds::PAYLOAD_TOO_LARGE, detail));
    }
    // The tolerance is minutes, so the clock of the process is good enough, and what is not signed
    // costs the database nothing.
    let now = Clock::Database.in_process();
    let payload = receiver
        .queue
        .authenticate(&headers, &body, now)
        .map_err(|untrusted| receiver.doubt(untrusted, &app))?;
    let deliveries = &receiver.deliveries;
    let delivered = deliveries.deliver(&payload, Via::Push, None).await?;
    if let Delivered::Deferred { attempt_at, now } = delivered {
        let detail = format!("The hold is released at {attempt_at} at the earliest.");
        let wait_ms = u64::try_from(attempt_at.millis_since(now)).unwrap_or_default();
        return Err(Problem::new(&kinds::EXPIRY_DEFERRED, detail)
            .retry_after(wait_ms.div_ceil(1_000).max(1)));
    }
    answer::ok(&DeliveryBody {
        outcome: delivered.as_str(),
    })
}
