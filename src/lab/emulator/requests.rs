//! What callers ask for, and what of it is refused.

use axum::Json;
use axum::http::header::{DATE, RETRY_AFTER};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use serde_json::value::RawValue;

use crate::queue::rest::{MAX_DELAY_SECONDS, MAX_PAYLOAD_BYTES};

/// The longest key, in bytes.
const MAX_KEY_BYTES: usize = 255;
/// The longest name of a queue, in bytes.
const MAX_QUEUE_BYTES: usize = 256;
/// The most messages that are handed out at once.
const MOST_MESSAGES: usize = 1_000;
/// The longest time that a message is hidden for, in seconds: twelve hours.
const MAX_VISIBILITY_SECONDS: u32 = 43_200;

/// An answer that is no success.
#[derive(Debug)]
pub(super) struct Refusal {
    pub status: StatusCode,
    pub code: &'static str,
    pub message: String,
    /// Retry-After, and the date of the answer.
    pub patience: Option<(String, String)>,
}

impl Refusal {
    pub(super) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
            patience: None,
        }
    }

    fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", message)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let body = json!({ "error": { "code": self.code, "message": self.message } });
        let mut response = (self.status, Json(body)).into_response();
        if let Some((retry_after, date)) = self.patience {
            for (name, value) in [(RETRY_AFTER, retry_after), (DATE, date)] {
                if let Ok(value) = value.try_into() {
                    response.headers_mut().insert(name, value);
                }
            }
        }
        response
    }
}

/// A request to publish.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Publish {
    pub queue: String,
    pub payload: Box<RawValue>,
    delay_seconds: i64,
}

impl Publish {
    /// Reads one, and the delay in it in seconds.
    pub(super) fn read(body: &[u8]) -> Result<(Self, u32), Refusal> {
        let publish: Self = read(body)?;
        check_queue(&publish.queue)?;
        let payload = publish.payload.get();
        if !payload.starts_with('{') {
            return Err(Refusal::invalid("payload: is no object"));
        }
        if payload.len() > MAX_PAYLOAD_BYTES {
            return Err(Refusal::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                "payload-too-large",
                format!(
                    "payload: {} bytes are more than {MAX_PAYLOAD_BYTES}",
                    payload.len()
                ),
            ));
        }
        let delay_seconds = u32::try_from(publish.delay_seconds)
            .ok()
            .filter(|seconds| i64::from(*seconds) <= MAX_DELAY_SECONDS);
        let delay_seconds = delay_seconds.ok_or_else(|| {
            Refusal::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "delay-out-of-range",
                format!("delay_seconds: is not one of 0 to {MAX_DELAY_SECONDS}"),
            )
        })?;
        Ok((publish, delay_seconds))
    }
}

/// A request for messages that are due.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Consume {
    pub queue: String,
    pub max_messages: usize,
    pub visibility_seconds: u32,
}

impl Consume {
    pub(super) fn read(body: &[u8]) -> Result<Self, Refusal> {
        let consume: Self = read(body)?;
        check_queue(&consume.queue)?;
        if !(1..=MOST_MESSAGES).contains(&consume.max_messages) {
            let message = format!("max_messages: is not one of 1 to {MOST_MESSAGES}");
            return Err(Refusal::invalid(message));
        }
        if !(1..=MAX_VISIBILITY_SECONDS).contains(&consume.visibility_seconds) {
            let message =
                format!("visibility_seconds: is not one of 1 to {MAX_VISIBILITY_SECONDS}");
            return Err(Refusal::invalid(message));
        }
        Ok(consume)
    }
}

/// An acknowledgement.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Acknowledge {
    pub queue: String,
    pub message_id: String,
}

/// Whom to push to.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Subscribe {
    pub url: String,
}

/// Reads JSON: what is no JSON is malformed, what is not the right JSON is invalid.
pub(super) fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body).map_err(|error| {
        let message = error.to_string();
        if error.is_data() {
            Refusal::invalid(message)
        } else {
            Refusal::new(StatusCode::BAD_REQUEST, "malformed", message)
        }
    })
}

/// The Idempotency-Key, in quotes or without them.
pub(super) fn key(headers: &HeaderMap) -> Result<Option<&str>, Refusal> {
    let mut values = headers.get_all("idempotency-key").iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    let key = value.to_str().unwrap_or_default().trim();
    let unquoted = key.strip_prefix('"').and_then(|key| key.strip_suffix('"'));
    let key = unquoted.unwrap_or(key);
    if key.is_empty() || key.len() > MAX_KEY_BYTES || values.next().is_some() {
        let message = format!("Idempotency-Key: is not one text of 1 to {MAX_KEY_BYTES} bytes");
        return Err(Refusal::invalid(message));
    }
    Ok(Some(key))
}

fn check_queue(name: &str) -> Result<(), Refusal> {
    if name.is_empty() || name.len() > MAX_QUEUE_BYTES || name.chars().any(char::is_control) {
        return Err(Refusal::invalid("queue: is no name of a queue"));
    }
    Ok(())
}
