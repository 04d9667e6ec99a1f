//! What comes with a request that changes something, and its way through the engine.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{FromRequest, Request};
use axum::http::header::{CONTENT_TYPE, EXPECT};
use axum::http::{HeaderMap, Method};
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;

use super::guard::RequestedBy;
use super::kinds;
use super::problem::Problem;
use super::{App, MAX_BODY, answer, idempotency, json};
use crate::domain::{Command, Merchant, default_merchant};
use crate::engine::{Keyed, Reply};
use crate::store::Key;

/// The most bytes that are read of a body after it was refused.
const MAX_DISCARDED: usize = 64 << 20;

/// The body of a request that changes something.
pub(super) trait Input: DeserializeOwned {
    /// Whether no body at all counts as `{}`.
    const MAY_BE_MISSING: bool = false;
}

/// A request that changes something.
pub(super) struct Submission<T> {
    /// Its body.
    pub body: T,
    /// On whose behalf it comes.
    pub merchant: Merchant,
    /// What its answer depends on besides.
    pub origin: Origin,
}

/// Where an answer goes.
pub(super) struct Origin {
    path: Arc<str>,
    key: Option<RequestKey>,
}

struct RequestKey {
    key: Key,
    fingerprint: Vec<u8>,
}

impl<T: Input> FromRequest<App> for Submission<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        let key = match *request.method() {
            Method::POST => idempotency::key(request.headers())?,
            _ => None,
        };
        let caller = request.extensions().get::<RequestedBy>().cloned();
        let uri = request.uri().clone();
        let is_json = is_json(request.headers());
        let mut bytes = complete_body(request, app).await?;
        match is_json {
            Some(true) => {}
            Some(false) => return Err(wrong_media_type()),
            None if !bytes.is_empty() => return Err(wrong_media_type()),
            None if T::MAY_BE_MISSING => bytes = Bytes::from_static(b"{}"),
            None => return Err(Problem::malformed("body", "is missing")),
        }
        let body = json::read(&bytes)?;
        let key = match key {
            Some(key) => Some(RequestKey {
                key: Key {
                    scope: caller
                        .as_ref()
                        .map_or_else(String::new, |caller| caller.0.name.to_string()),
                    key,
                },
                fingerprint: idempotency::fingerprint(&uri, &bytes)?,
            }),
            None => None,
        };
        let path = uri.path().into();
        let merchant = caller.map_or_else(default_merchant, |caller| caller.0.merchant.clone());
        Ok(Self {
            body,
            merchant,
            origin: Origin { path, key },
        })
    }
}

/// The body, when all of it has come: in less time than the whole request may take, so that its
/// sender hears that it was the body.
pub(super) async fn complete_body(request: Request, app: &App) -> Result<Bytes, Problem> {
    let patience = app.settings.request_timeout * 9 / 10;
    tokio::select! {
        body = body(request, app) => body,
        () = app.runtime.sleep(patience) => Err(Problem::new(
            &kinds::REQUEST_TIMEOUT,
            format!("The body did not come within {patience:?}."),
        )),
    }
}

async fn body(request: Request, app: &App) -> Result<Bytes, Problem> {
    // Who asks before it sends a body does not send one that is refused.
    let comes_anyway = !request.headers().contains_key(EXPECT);
    let mut body = request.into_body();
    let mut bytes = Vec::new();
    // A body that is announced as too large is refused before it comes.
    let mut is_too_large = body.size_hint().lower() > MAX_BODY as u64;
    while !is_too_large {
        let Some(part) = next_part(&mut body).await else {
            return Ok(bytes.into());
        };
        let part = part.map_err(|_| Problem::malformed("body", "ended before it was complete"))?;
        is_too_large = bytes.len() + part.len() > MAX_BODY;
        bytes.extend_from_slice(&part);
    }
    if comes_anyway {
        let limit = app.runtime.sleep(app.settings.request_timeout);
        app.runtime.spawn(Box::pin(async move {
            tokio::select! {
                () = discard(body) => {}
                () = limit => {}
            }
        }));
    }
    Err(too_large())
}

async fn next_part(body: &mut Body) -> Option<Result<Bytes, axum::Error>> {
    let frame = poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await?;
    // What is no data is a trailer, and says nothing here.
    Some(frame.map(|frame| frame.into_data().unwrap_or_default()))
}

/// Reads on while a refusal is under way. Many callers send all they have before they look for an
/// answer, and would find the connection closed instead.
async fn discard(mut body: Body) {
    let mut left = MAX_DISCARDED;
    while let Some(Ok(part)) = next_part(&mut body).await {
        left = left.saturating_sub(part.len());
        if left == 0 {
            return;
        }
    }
}

fn too_large() -> Problem {
    let detail = format!("The body has more than {MAX_BODY} bytes.");
    Problem::new(&kinds::PAYLOAD_TOO_LARGE, detail)
}

/// Whether the body is said to be JSON; `None` if nothing is said.
fn is_json(headers: &HeaderMap) -> Option<bool> {
    let mut values = headers.get_all(CONTENT_TYPE).iter();
    let value = values.next()?;
    let essence = value.to_str().unwrap_or_default().split(';').next();
    let names_json =
        essence.is_some_and(|essence| essence.trim().eq_ignore_ascii_case("application/json"));
    Some(names_json && values.next().is_none())
}

fn wrong_media_type() -> Problem {
    Problem::new(
        &kinds::UNSUPPORTED_MEDIA_TYPE,
        kinds::UNSUPPORTED_MEDIA_TYPE.detail,
    )
}

impl App {
    /// Has the engine decide a command, and answers.
    pub(super) async fn submit(
        &self,
        command: Command,
        origin: Origin,
    ) -> Result<Response, Problem> {
        let path = origin.path;
        let keyed = origin.key.map(|request| Keyed {
            key: request.key,
            fingerprint: request.fingerprint,
            render: {
                let path = Arc::clone(&path);
                Box::new(move |outcome| answer::of(outcome, &path))
            },
        });
        match self.engine.submit(command, keyed).await? {
            Reply::Decided(outcome) => answer::respond(answer::of(&outcome, &path)),
            Reply::Replayed(recorded) => {
                let replayed = [(answer::REPLAYED, "true")];
                Ok((replayed, answer::respond(recorded)?).into_response())
            }
        }
    }
}
