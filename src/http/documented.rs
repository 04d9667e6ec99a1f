//! The problems of each operation in the API document.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use utoipa::openapi::content::ContentBuilder;
use utoipa::openapi::example::ExampleBuilder;
use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::schema::{KnownFormat, ObjectBuilder, SchemaFormat, Type};
use utoipa::openapi::{Ref, RefOr, Response, ResponseBuilder};

use super::kinds::{self, Kind};

/// What a body can have wrong with it.
pub(super) const CHANGED: &[&Kind] = &[
    &kinds::MALFORMED_REQUEST,
    &kinds::REQUEST_TIMEOUT,
    &kinds::PAYLOAD_TOO_LARGE,
    &kinds::UNSUPPORTED_MEDIA_TYPE,
    &kinds::VALIDATION,
];

/// What a body and an Idempotency-Key can have wrong with them.
pub(super) const KEYED: &[&Kind] = &[
    &kinds::MALFORMED_REQUEST,
    &kinds::REQUEST_TIMEOUT,
    &kinds::PAYLOAD_TOO_LARGE,
    &kinds::UNSUPPORTED_MEDIA_TYPE,
    &kinds::VALIDATION,
    &kinds::IDEMPOTENCY_KEY_IN_USE,
    &kinds::IDEMPOTENCY_KEY_REUSED,
];

/// What a query with a cursor can have wrong with it.
pub(super) const LISTED: &[&Kind] = &[&kinds::MALFORMED_REQUEST, &kinds::VALIDATION];

/// What can happen to every request.
const EVERY: &[&Kind] = &[&kinds::INTERNAL, &kinds::OVERLOADED];

/// Declares a set of problems, to be named among the responses of an operation.
macro_rules! documented {
    ($name:ident: $($kinds:expr),+) => {
        struct $name;

        impl utoipa::IntoResponses for $name {
            fn responses() -> std::collections::BTreeMap<
                String,
                utoipa::openapi::RefOr<utoipa::openapi::Response>,
            > {
                crate::http::documented::responses(&[$($kinds),+])
            }
        }
    };
}
pub(super) use documented;

/// One response for each status, with an example for each kind of problem that has it.
pub(super) fn responses(groups: &[&[&'static Kind]]) -> BTreeMap<String, RefOr<Response>> {
    let mut by_status: BTreeMap<u16, Vec<&Kind>> = BTreeMap::new();
    for kind in groups.iter().copied().chain([EVERY]).flatten() {
        by_status
            .entry(kind.status.as_u16())
            .or_default()
            .push(kind);
    }
    by_status
        .into_iter()
        .map(|(status, kinds)| (status.to_string(), RefOr::T(response(&kinds))))
        .collect()
}

fn response(kinds: &[&Kind]) -> Response {
    let description: Vec<_> = kinds
        .iter()
        .map(|kind| format!("`{}`: {}.", kind.slug, kind.title))
        .collect();
    let examples = kinds.iter().map(|kind| {
        let example = ExampleBuilder::new()
            .summary(kind.title)
            .value(Some(example(kind)))
            .build();
        (kind.slug, example)
    });
    let content = ContentBuilder::new()
        .schema(Some(Ref::from_schema_name("Problem")))
        .examples_from_iter(examples)
        .build();
    let response = ResponseBuilder::new()
        .description(description.join(" "))
        .content("application/problem+json", content);
    if kinds.iter().any(|kind| asks_to_wait(kind)) {
        let seconds = ObjectBuilder::new()
            .schema_type(Type::Integer)
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::Int64)))
            .minimum(Some(0));
        let header = HeaderBuilder::new()
            .schema(Some(seconds))
            .description(Some("Seconds to wait before asking again."));
        response.header("Retry-After", header.build()).build()
    } else {
        response.build()
    }
}

fn asks_to_wait(kind: &Kind) -> bool {
    [
        kinds::IDEMPOTENCY_KEY_IN_USE.slug,
        kinds::RATE_LIMITED.slug,
        kinds::OVERLOADED.slug,
    ]
    .contains(&kind.slug)
}

/// A problem of this kind as it may be read.
pub(super) fn example(kind: &Kind) -> Value {
    let mut problem = json!({
        "type": format!("/problems/{}", kind.slug),
        "title": kind.title,
        "status": kind.status.as_u16(),
        "detail": kind.detail,
        "instance": "/v1/reservations",
    });
    if let (Some(problem), Ok(Value::Object(extras))) =
        (problem.as_object_mut(), serde_json::from_str(kind.extras))
    {
        problem.extend(extras);
    }
    problem
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_slug_of_its_own_and_an_example() {
        let mut slugs = std::collections::BTreeSet::new();
        for kind in kinds::ALL {
            assert!(slugs.insert(kind.slug), "{} stands twice", kind.slug);
            assert!(
                serde_json::from_str::<Value>(kind.extras).is_ok(),
                "{}",
                kind.slug
            );
            assert!(kind.status.is_client_error() || kind.status.is_server_error());
        }
    }
}
