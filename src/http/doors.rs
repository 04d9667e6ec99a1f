//! What the API document says about keys, for every operation that takes one.

use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{OpenApi, RefOr, Response};

use super::{documented, guard, kinds};

/// The name of the scheme in the document.
const SCHEME: &str = "key";

/// Adds the scheme, and to each operation whether it takes a key and how the door says no.
pub(super) fn complete(document: &mut OpenApi) {
    let scheme = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some(
            "An API key, made by `holdfast keys create`. While there is no key at all, callers on \
             the same machine need none.",
        ))
        .build();
    document
        .components
        .get_or_insert_default()
        .add_security_scheme(SCHEME, SecurityScheme::Http(scheme));
    for (path, item) in &mut document.paths.paths {
        if guard::is_signed(path) {
            continue;
        }
        let takes_key = guard::takes_key(path);
        for operation in operations(item) {
            refuses(operation, takes_key);
            if takes_key {
                let scopes: [&str; 0] = [];
                operation.security = Some(vec![SecurityRequirement::new(SCHEME, scopes)]);
            }
        }
    }
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    let some = [
        &mut item.get,
        &mut item.put,
        &mut item.post,
        &mut item.delete,
        &mut item.patch,
    ];
    some.into_iter().flatten()
}

/// Adds the ways in which the door says no, except those that the operation describes itself.
fn refuses(operation: &mut Operation, takes_key: bool) {
    let mut kinds = vec![&kinds::FORBIDDEN];
    if takes_key {
        kinds.extend([&kinds::UNAUTHORIZED, &kinds::RATE_LIMITED]);
    }
    let known = &mut operation.responses.responses;
    for (status, mut response) in documented::responses(&[&kinds]) {
        if let RefOr::T(response) = &mut response {
            describe(&status, response);
        }
        known.entry(status).or_insert(response);
    }
}

fn describe(status: &str, response: &mut Response) {
    let headers: &[(&str, &str)] = match status {
        "401" => &[("WWW-Authenticate", "`Bearer`.")],
        "429" => &[
            (
                "RateLimit-Policy",
                "How many requests may come at once (`q`), and in how many seconds so many become \
                 free (`w`). On every answer to a key that has a limit.",
            ),
            (
                "RateLimit",
                "How many more may come now (`r`), and after how many seconds all may (`t`). On \
                 every answer to a key that has a limit.",
            ),
        ],
        _ => &[],
    };
    for (name, description) in headers {
        let text = ObjectBuilder::new().schema_type(Type::String);
        let header = HeaderBuilder::new()
            .schema(Some(text))
            .description(Some(*description))
            .build();
        response.headers.insert((*name).to_owned(), header.into());
    }
}
