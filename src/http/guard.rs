//! Who may ask for what: the layer that stands before every handler.
//!
//! A path below `/v1` takes a key, and the key takes a scope; everything else is for everybody.
//! What is refused here reaches no handler, so that nothing is recorded under its Idempotency-Key.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRequestParts, MatchedPath, Request, State};
use axum::http::header::{AUTHORIZATION, HOST, ORIGIN, WWW_AUTHENTICATE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::problem::Problem;
use super::{App, cors, kinds};
use crate::access::{Caller, Denial, RateLimit, Standing};
use crate::domain::Scope;

pub(super) const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
pub(super) const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// Queues sign what they deliver, and have no key.
const DELIVERIES: &str = "/v1/deliveries/";

/// Who asks; in the extensions of every request that came through.
#[derive(Clone)]
pub(super) struct RequestedBy(pub Arc<Caller>);

/// What the caller is called where it is written down who did something.
pub(super) struct Actor(pub Arc<str>);

impl<S: Sync> FromRequestParts<S> for Actor {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let caller = parts.extensions.get::<RequestedBy>();
        let label = caller.map(|caller| Self(Arc::clone(&caller.0.label)));
        label.ok_or_else(|| Problem::internal("nobody looked who asks"))
    }
}

/// Lets a request through to its handler, or says why not.
pub(super) async fn guard(State(app): State<App>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    // What is signed needs no other proof, and comes by whatever name the queue was told.
    if app.access.is_open()
        && !is_signed(path)
        && let Err(problem) = comes_from_here(&app, &request)
    {
        return problem.into_response();
    }
    if takes_key(path) {
        admit(&app, request, next).await
    } else {
        next.run(request).await
    }
}

/// Is what comes here signed by its sender?
pub(super) fn is_signed(path: &str) -> bool {
    path.starts_with(DELIVERIES)
}

/// Does this path take a key? Routes are matched letter by letter, and so is this.
pub(super) fn takes_key(path: &str) -> bool {
    (path == "/v1" || path.starts_with("/v1/")) && !is_signed(path)
}

async fn admit(app: &App, mut request: Request, next: Next) -> Response {
    let entry = match app.access.admit(bearer(request.headers())) {
        Ok(entry) => entry,
        Err(denial) => return denied(denial),
    };
    let mut response = match entry.standing {
        Some((_, standing)) if standing.is_over => Problem::new(
            &kinds::RATE_LIMITED,
            "This key has sent more requests than its limit allows.",
        )
        .retry_after(whole_seconds(standing.next_in))
        .into_response(),
        _ => {
            let wanted = scopes(&request);
            if wanted.is_none_or(|wanted| entry.caller.reaches(wanted)) {
                let caller = RequestedBy(Arc::clone(&entry.caller));
                request.extensions_mut().insert(caller);
                next.run(request).await
            } else {
                lacking(wanted.unwrap_or_default()).into_response()
            }
        }
    };
    if let Some((limit, standing)) = entry.standing {
        show(limit, standing, response.headers_mut());
    }
    response
}

/// The scopes of which one is enough for this request; nothing for the operator alone, and none
/// where any key will do, because nothing is there.
fn scopes(request: &Request) -> Option<&'static [Scope]> {
    let path = request.extensions().get::<MatchedPath>()?.as_str();
    let of_what = path.strip_prefix("/v1/")?.split('/').next();
    let reads = matches!(
        *request.method(),
        Method::GET | Method::HEAD | Method::OPTIONS
    );
    Some(match of_what {
        Some("reservations") => &[Scope::Checkout],
        Some("stock") if !reads => &[Scope::Inventory],
        Some("stock" | "events") => &[Scope::Checkout, Scope::Inventory],
        // What is not named here is not for everybody.
        _ => &[],
    })
}

/// The secret that the request carries, if it carries one and no more.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let value = values.next()?.to_str().ok()?;
    let (scheme, secret) = value.split_once(' ')?;
    let is_alone = values.next().is_none();
    (is_alone && scheme.eq_ignore_ascii_case("bearer")).then(|| secret.trim())
}

fn denied(denial: Denial) -> Response {
    let detail = match denial {
        Denial::NoKey => "The request carries no key; send `Authorization: Bearer <key>`.",
        Denial::UnknownKey => {
            "The key is not known, or was revoked; `holdfast keys create` makes one."
        }
        Denial::NotKnown => {
            let detail = "The database cannot be reached to tell who may ask.";
            return Problem::overloaded(detail).into_response();
        }
    };
    let mut response = Problem::new(&kinds::UNAUTHORIZED, detail).into_response();
    let scheme = HeaderValue::from_static("Bearer");
    response.headers_mut().insert(WWW_AUTHENTICATE, scheme);
    response
}

fn lacking(wanted: &[Scope]) -> Problem {
    let names: Vec<_> = match wanted {
        [] => vec![Scope::Operator.as_str()],
        wanted => wanted.iter().map(|scope| scope.as_str()).collect(),
    };
    let detail = format!(
        "The key does not have the scope `{}`.",
        names.join("` or `")
    );
    Problem::new(&kinds::FORBIDDEN, detail)
}

/// Says how the caller stands with its limit, in the fields of
/// draft-ietf-httpapi-ratelimit-headers.
fn show(limit: RateLimit, standing: Standing, headers: &mut HeaderMap) {
    let (quota, window) = (limit.burst(), whole_seconds(limit.window()));
    let (remaining, reset) = (standing.remaining, whole_seconds(standing.full_in));
    for (name, value) in [
        (RATE_LIMIT_POLICY, format!("\"key\";q={quota};w={window}")),
        (RATE_LIMIT, format!("\"key\";r={remaining};t={reset}")),
    ] {
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(name, value);
        }
    }
}

/// Rounded up, and never 0: who asks again too early is refused again.
fn whole_seconds(duration: Duration) -> u64 {
    let whole = duration.as_secs();
    (whole + u64::from(duration.subsec_nanos() > 0)).max(1)
}

/// Refuses what a page of somebody else has a browser on this machine send. While there is no key,
/// being on this machine is all that a request has to show, and a browser is.
fn comes_from_here(app: &App, request: &Request) -> Result<(), Problem> {
    let headers = request.headers();
    // Every browser sends it; a name that leads here by a trick of DNS is still another name.
    let mut hosts = headers.get_all(HOST).iter().map(HeaderValue::to_str);
    let mut target = request.uri().authority().into_iter();
    if !hosts.all(|host| host.is_ok_and(is_loopback))
        || !target.all(|authority| is_loopback(authority.as_str()))
    {
        return Err(Problem::new(
            &kinds::FORBIDDEN,
            "Without API keys only this machine is served, and `Host` names another one. Ask for \
             localhost or 127.0.0.1, or make a key with `holdfast keys create`.",
        ));
    }
    let changes = !matches!(
        *request.method(),
        Method::GET | Method::HEAD | Method::OPTIONS
    );
    let Some(origin) = headers.get(ORIGIN).filter(|_| changes) else {
        return Ok(());
    };
    let host = headers.get(HOST).map_or(&[][..], HeaderValue::as_bytes);
    let own = [b"http://", b"https://".as_slice()].map(|scheme| [scheme, host].concat());
    let is_own = own.iter().any(|own| own == origin.as_bytes());
    if is_own || cors::allows(&app.settings.cors_origins, origin) {
        return Ok(());
    }
    Err(Problem::new(
        &kinds::FORBIDDEN,
        "The request comes from a web page whose `Origin` is not allowed; HOLDFAST_CORS_ORIGINS \
         says which are.",
    ))
}

/// Is this value of `Host` a name or an address of this machine alone?
fn is_loopback(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name
        .strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'));
    let address: Result<IpAddr, _> = address.unwrap_or(name).parse();
    match address {
        Ok(address) => address.is_loopback(),
        Err(_) => name.eq_ignore_ascii_case("localhost"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_on_this_machine_or_not() {
        for host in [
            "localhost",
            "LocalHost:8080",
            "127.0.0.1",
            "127.9.9.9:80",
            "[::1]",
            "[::1]:8080",
        ] {
            assert!(is_loopback(host), "{host}");
        }
        for host in [
            "",
            "shop.example",
            "localhost.shop.example",
            "127.0.0.1.shop.example",
            "192.0.2.1:8080",
            "[2001:db8::1]:8080",
            "localhost:80@shop.example",
        ] {
            assert!(!is_loopback(host), "{host}");
        }
    }

    #[test]
    fn a_key_is_taken_below_v1_and_nowhere_else() {
        for path in [
            "/v1",
            "/v1/",
            "/v1/stock/A",
            "/v1/nothing",
            "/v1/deliveries",
        ] {
            assert!(takes_key(path), "{path}");
        }
        for path in ["/", "/livez", "/v10", "/docs/", "/v1/deliveries/rest"] {
            assert!(!takes_key(path), "{path}");
        }
    }

    #[test]
    fn a_bearer_token_is_read_if_it_is_the_only_one() {
        let read = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(AUTHORIZATION, HeaderValue::from_str(value).unwrap());
            }
            bearer(&headers).map(str::to_owned)
        };
        assert_eq!(read(&["Bearer hf_a"]).as_deref(), Some("hf_a"));
        assert_eq!(read(&["bearer  hf_a"]).as_deref(), Some("hf_a"));
        for values in [
            &[][..],
            &["hf_a"],
            &["Basic hf_a"],
            &["Bearer hf_a", "Bearer hf_a"],
        ] {
            assert_eq!(read(values), None, "{values:?}");
        }
    }

    #[test]
    fn when_nobody_knows_who_may_ask_it_is_worth_asking_again() {
        let response = denied(Denial::NotKnown);
        assert_eq!(response.status().as_u16(), 503);
        assert!(response.headers().contains_key("retry-after"));
    }

    #[test]
    fn seconds_are_rounded_up() {
        for (millis, seconds) in [(0, 1), (1, 1), (1_000, 1), (1_001, 2)] {
            assert_eq!(whole_seconds(Duration::from_millis(millis)), seconds);
        }
    }
}
