//! Which pages of other origins may use the API in a browser.

use std::str::FromStr;
use std::time::Duration;

use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, LOCATION, RETRY_AFTER};
use axum::http::{HeaderName, HeaderValue, Method};
use tower_http::cors::{AllowOrigin, CorsLayer};

use super::answer::REPLAYED;
use super::guard::{RATE_LIMIT, RATE_LIMIT_POLICY};
use super::layers::{REQUEST_ID, TRACE_PARENT};

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// How long a browser need not ask again.
const MAX_AGE: Duration = Duration::from_secs(600);

/// Pages that may use the API in a browser: those of an origin such as `https://shop.example`, or
/// all of them, `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin(HeaderValue);

/// The text is not an origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is neither `*` nor an origin such as https://shop.example, without a path")]
pub struct OriginFault;

impl FromStr for Origin {
    type Err = OriginFault;

    fn from_str(text: &str) -> Result<Self, OriginFault> {
        let host = text
            .strip_prefix("https://")
            .or_else(|| text.strip_prefix("http://"));
        let is_host = |host: &str| {
            !host.is_empty()
                && host.bytes().all(|byte| {
                    byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.:[]".contains(&byte)
                })
        };
        if text == "*" || host.is_some_and(is_host) {
            HeaderValue::from_str(text)
                .map(Self)
                .map_err(|_| OriginFault)
        } else {
            Err(OriginFault)
        }
    }
}

/// May a page of this origin use the API?
pub(super) fn allows(origins: &[Origin], origin: &HeaderValue) -> bool {
    origins
        .iter()
        .any(|known| known.0 == "*" || known.0 == origin)
}

/// The layer that answers browsers.
pub(super) fn layer(origins: &[Origin]) -> CorsLayer {
    let all = origins.iter().any(|origin| origin.0 == "*");
    let allowed = if all {
        AllowOrigin::any()
    } else {
        AllowOrigin::list(origins.iter().map(|origin| origin.0.clone()))
    };
    CorsLayer::new()
        .allow_origin(allowed)
        .allow_methods([Method::GET, Method::POST, Method::PUT])
        .allow_headers([
            AUTHORIZATION,
            CONTENT_TYPE,
            IDEMPOTENCY_KEY,
            REQUEST_ID,
            TRACE_PARENT,
        ])
        .expose_headers([
            LOCATION,
            RATE_LIMIT,
            RATE_LIMIT_POLICY,
            REPLAYED,
            RETRY_AFTER,
            REQUEST_ID,
        ])
        .max_age(MAX_AGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_written_as_browsers_send_it() {
        for text in [
            "*",
            "https://shop.example",
            "http://127.0.0.1:3000",
            "http://[::1]:3000",
        ] {
            assert!(text.parse::<Origin>().is_ok(), "{text}");
        }
        for text in [
            "",
            "null",
            "shop.example",
            "https://",
            "https://shop.example/",
            "https://Shop.example",
            "https://a.example,https://b.example",
            "https://*",
        ] {
            assert_eq!(text.parse::<Origin>(), Err(OriginFault), "{text}");
        }
    }
}
