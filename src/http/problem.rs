//! Errors as callers see them: RFC 9457 problems.

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, Method};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use super::kinds::{self, Kind};
use crate::engine::EngineError;
use crate::store::StoreError;

/// The media type of a problem.
pub(super) const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");

/// How long a caller waits before it asks again, where nothing better is known.
const RETRY_SECONDS: u64 = 1;

/// One thing that went wrong, as it is told to the caller.
#[derive(Clone)]
pub(super) struct Problem {
    kind: &'static Kind,
    detail: String,
    extras: Map<String, Value>,
    retry_after_seconds: Option<u64>,
    /// What the log says and the caller does not learn.
    cause: Option<String>,
}

/// What is wrong with one field of a request.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
pub(super) struct FieldFault {
    /// The path of the field, such as `lines[0].quantity`; `body` for the body as a whole; the
    /// name of a query parameter or header.
    pub field: String,
    /// What is wrong with it.
    pub detail: String,
}

impl FieldFault {
    pub(super) fn new(field: impl Into<String>, detail: impl ToString) -> Self {
        Self {
            field: field.into(),
            detail: detail.to_string(),
        }
    }
}

impl Problem {
    /// A problem of this kind.
    pub(super) fn new(kind: &'static Kind, detail: impl Into<String>) -> Self {
        Self {
            kind,
            detail: detail.into(),
            extras: Map::new(),
            retry_after_seconds: None,
            cause: None,
        }
    }

    /// Fields are wrong, at least one.
    pub(super) fn about_fields(kind: &'static Kind, faults: &[FieldFault]) -> Self {
        let detail: Vec<_> = faults
            .iter()
            .map(|fault| format!("{}: {}", fault.field, fault.detail))
            .collect();
        Self::new(kind, detail.join("; ")).with("errors", json!(faults))
    }

    /// One field breaks a rule.
    pub(super) fn invalid(field: impl Into<String>, detail: impl ToString) -> Self {
        Self::about_fields(&kinds::VALIDATION, &[FieldFault::new(field, detail)])
    }

    /// One field cannot be read.
    pub(super) fn malformed(field: impl Into<String>, detail: impl ToString) -> Self {
        Self::about_fields(&kinds::MALFORMED_REQUEST, &[FieldFault::new(field, detail)])
    }

    /// There is no such reservation.
    pub(super) fn no_reservation(id: impl std::fmt::Display) -> Self {
        Self::new(&kinds::NOT_FOUND, format!("There is no reservation {id}."))
    }

    /// There is no such case in quarantine.
    pub(super) fn no_case() -> Self {
        Self::new(&kinds::NOT_FOUND, "There is no such case in quarantine.")
    }

    /// There is nothing at the path.
    pub(super) fn no_such_path() -> Self {
        Self::new(&kinds::NOT_FOUND, "There is nothing at this path.")
    }

    /// The path does not take the method.
    pub(super) fn method_not_allowed(method: &Method) -> Self {
        Self::new(
            &kinds::METHOD_NOT_ALLOWED,
            format!("This path does not take {method}."),
        )
    }

    /// Something that should not happen. The caller does not learn the cause.
    pub(super) fn internal(cause: impl ToString) -> Self {
        Self::new(&kinds::INTERNAL, kinds::INTERNAL.detail).because(cause)
    }

    /// Something that may work later.
    pub(super) fn overloaded(detail: impl Into<String>) -> Self {
        Self::new(&kinds::OVERLOADED, detail).retry_after(RETRY_SECONDS)
    }

    /// With an extension member.
    pub(super) fn with(mut self, name: &str, value: Value) -> Self {
        self.extras.insert(name.to_owned(), value);
        self
    }

    /// With a cause for the log.
    pub(super) fn because(mut self, cause: impl ToString) -> Self {
        self.cause = Some(cause.to_string());
        self
    }

    /// With `Retry-After`.
    pub(super) fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after_seconds = Some(seconds);
        self
    }

    /// Names the request in a problem whose cause the caller does not learn.
    pub(super) fn naming_request(self, request_id: &str) -> Self {
        if self.kind.slug == kinds::INTERNAL.slug {
            self.with("request_id", json!(request_id))
        } else {
            self
        }
    }

    /// The status it is answered with.
    pub(super) fn status(&self) -> u16 {
        self.kind.status.as_u16()
    }

    /// What the log should say.
    pub(super) fn cause(&self) -> Option<&str> {
        self.cause.as_deref()
    }

    /// The body; `instance` is the path of the request.
    pub(super) fn body(&self, instance: &str) -> String {
        let document = Document {
            r#type: format!("/problems/{}", self.kind.slug),
            title: self.kind.title,
            status: self.kind.status.as_u16(),
            detail: &self.detail,
            instance,
            extras: &self.extras,
        };
        // Text and JSON values alone: there is nothing in it that cannot be written.
        serde_json::to_string(&document).unwrap_or_default()
    }
}

#[derive(serde::Serialize)]
struct Document<'a> {
    r#type: String,
    title: &'a str,
    status: u16,
    detail: &'a str,
    instance: &'a str,
    #[serde(flatten)]
    extras: &'a Map<String, Value>,
}

impl IntoResponse for Problem {
    /// The body names the request, which is not known here: the problem travels in the response's
    /// extensions to the outermost layer, which writes it.
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = self.kind.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, PROBLEM_JSON);
        if let Some(seconds) = self.retry_after_seconds {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        response.extensions_mut().insert(self);
        response
    }
}

impl From<EngineError> for Problem {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Overloaded {
                retry_after_seconds,
            } => Self::overloaded("Too much is waiting.").retry_after(retry_after_seconds),
            EngineError::KeyInUse => Self::new(
                &kinds::IDEMPOTENCY_KEY_IN_USE,
                kinds::IDEMPOTENCY_KEY_IN_USE.detail,
            )
            .retry_after(RETRY_SECONDS),
            EngineError::KeyReused => Self::new(
                &kinds::IDEMPOTENCY_KEY_REUSED,
                kinds::IDEMPOTENCY_KEY_REUSED.detail,
            ),
            EngineError::FateUnknown => Self::overloaded(
                "The database was lost while it was told to keep this, so it is not known whether \
                 it was done. Ask again with the same Idempotency-Key.",
            )
            .because(error),
            EngineError::Store(error) => Self::from(&*error),
            EngineError::ShuttingDown => Self::overloaded("The service is shutting down."),
        }
    }
}

impl From<&StoreError> for Problem {
    fn from(error: &StoreError) -> Self {
        match error {
            StoreError::Contended(_) => Self::overloaded("Others are in the way.").because(error),
            StoreError::Unavailable(_) => {
                Self::overloaded("The database cannot be reached.").because(error)
            }
            _ => Self::internal(error),
        }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        Self::from(&error)
    }
}
