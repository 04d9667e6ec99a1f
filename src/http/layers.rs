//! What happens to every request: its name, its line in the log, its figures, its time limit, and
//! the body of its problem.

use std::any::Any;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{CACHE_CONTROL, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::problem::Problem;
use super::{App, operations};
use crate::engine::Runtime;
use crate::metrics::RequestLabel;

pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
pub(super) const TRACE_PARENT: HeaderName = HeaderName::from_static("traceparent");

/// The longest name of a request that is taken from the caller.
const MAX_REQUEST_ID: usize = 128;

/// What is known of a request before it is answered.
struct Seen {
    method: &'static str,
    route: String,
    path: String,
    request_id: String,
    trace_parent: Option<String>,
    started: Duration,
}

/// The outermost layer: names the request, and finishes, counts and logs its answer.
pub(super) async fn observe(State(app): State<App>, request: Request, next: Next) -> Response {
    let seen = Seen::of(&request, &*app.runtime);
    let mut response = next.run(request).await;
    let cause = seen.write_problem(&mut response);
    let headers = response.headers_mut();
    if let Ok(request_id) = HeaderValue::try_from(&seen.request_id) {
        headers.insert(REQUEST_ID, request_id);
    }
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers
        .entry(CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    seen.report(&app, response.status().as_u16(), cause);
    response
}

impl Seen {
    fn of(request: &Request, runtime: &dyn Runtime) -> Self {
        let headers = request.headers();
        let route = request.extensions().get::<MatchedPath>();
        Self {
            method: method(request.method()),
            route: route.map_or("unmatched", MatchedPath::as_str).to_owned(),
            path: request.uri().path().to_owned(),
            request_id: given_request_id(headers).unwrap_or_else(|| new_request_id(runtime)),
            trace_parent: trace_parent(headers),
            started: runtime.elapsed(),
        }
    }

    /// Writes the problem that the response carries, if any, and returns its cause.
    fn write_problem(&self, response: &mut Response) -> Option<String> {
        let problem = response.extensions_mut().remove::<Problem>()?;
        let problem = problem.naming_request(&self.request_id);
        *response.body_mut() = Body::from(problem.body(&self.path));
        problem.cause().map(str::to_owned)
    }

    fn report(self, app: &App, status: u16, cause: Option<String>) {
        let duration = app.runtime.elapsed().saturating_sub(self.started);
        app.metrics.request_seconds.observe(duration.as_secs_f64());
        let trace_parent = self.trace_parent.as_deref();
        let request_id = self.request_id.as_str();
        match cause {
            Some(cause) if status == 500 => {
                tracing::error!(request_id, trace_parent, cause, "request failed");
            }
            Some(cause) => tracing::warn!(request_id, trace_parent, cause, "request put off"),
            None => {}
        }
        tracing::info!(
            method = self.method,
            route = self.route,
            status,
            duration_ms = duration.as_secs_f64() * 1_000.0,
            request_id,
            trace_parent,
            "request answered"
        );
        let label = RequestLabel {
            method: self.method.to_owned(),
            route: self.route,
            status,
        };
        app.metrics.requests.get_or_create(&label).inc();
    }
}

/// The method for the log and the figures, where any word would be a series of its own.
fn method(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        Method::PATCH => "PATCH",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}

/// The name that the caller gave the request, if it can stand in a log.
fn given_request_id(headers: &HeaderMap) -> Option<String> {
    let text = headers.get(REQUEST_ID)?.to_str().ok()?;
    let is_sane = (1..=MAX_REQUEST_ID).contains(&text.len())
        && text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    is_sane.then(|| text.to_owned())
}

fn new_request_id(runtime: &dyn Runtime) -> String {
    let mut bytes = [0; 16];
    runtime.fill_random(&mut bytes);
    format!("{:032x}", u128::from_be_bytes(bytes))
}

/// The W3C trace context, if it is one: version, trace, parent and flags in hexadecimal.
fn trace_parent(headers: &HeaderMap) -> Option<String> {
    let text = headers.get(TRACE_PARENT)?.to_str().ok()?;
    let lengths: Vec<_> = text.split('-').map(str::len).collect();
    let is_hex = text
        .bytes()
        .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f' | b'-'));
    (lengths == [2, 32, 16, 2] && is_hex).then(|| text.to_owned())
}

/// Gives up on a request that takes too long. What the engine was asked to do goes on.
pub(super) async fn limit_time(State(app): State<App>, request: Request, next: Next) -> Response {
    let extra = operations::runs::extra_time(request.uri().path());
    let limit = app.settings.request_timeout + extra.unwrap_or_default();
    tokio::select! {
        response = next.run(request) => response,
        () = app.runtime.sleep(limit) => Problem::overloaded(format!(
            "No answer came within {limit:?}. What was asked may still be done: ask again with \
             the same Idempotency-Key, or read what became of it."
        ))
        .because("the request took too long")
        .into_response(),
    }
}

/// Answers for a handler that panicked.
pub(super) fn panicked(panic: Box<dyn Any + Send>) -> Response {
    let message = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_default();
    Problem::internal(format!("panic: {message}")).into_response()
}
