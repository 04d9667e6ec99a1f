//! Requests to the whole router, with a store that only reads and an engine that decides nothing:
//! what reaches the engine is answered 503.

mod answers;
mod bad_addresses;
mod bad_input;
mod deliveries;
mod quarantine;
mod reads;
mod runs;
mod service;
mod shelf;
mod wire;

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::http::request::Builder;
use axum::http::{HeaderMap, Method, Request, StatusCode};
use serde_json::Value;
use tower::ServiceExt;

use super::{Settings, api};
use crate::access::Access;
use crate::engine::{Engine, TokioRuntime};
use crate::metrics::Metrics;
use shelf::Shelf;

const RESERVATIONS: &str = "/v1/reservations";
const RESERVATION: &str = "/v1/reservations/rsv_01jdz3x9k2e5qs8v4m7n6p0r1t";

/// The router, and what it counts.
struct Service {
    router: Router,
    metrics: Arc<Metrics>,
}

/// An answer, read to its end.
#[derive(Debug)]
struct Answered {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl Service {
    fn new(shelf: Shelf, settings: Settings) -> Self {
        let metrics = Arc::new(Metrics::new());
        let api = api(
            Engine::without_lanes(Arc::new(shelf)),
            Arc::clone(&metrics),
            Arc::new(TokioRuntime::start()),
            Arc::new(Access::open()),
            settings,
        );
        let router = api.all;
        Self { router, metrics }
    }

    fn empty() -> Self {
        Self::new(Shelf::default(), Settings::default())
    }

    async fn send(&self, request: Request<Body>) -> Answered {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        Answered {
            status: parts.status,
            headers: parts.headers,
            body: to_bytes(body, usize::MAX).await.unwrap(),
        }
    }

    async fn get(&self, uri: &str) -> Answered {
        self.send(request(Method::GET, uri).body(Body::empty()).unwrap())
            .await
    }

    async fn post(&self, uri: &str, body: impl Into<Body>) -> Answered {
        self.send(json(Method::POST, uri).body(body.into()).unwrap())
            .await
    }
}

fn request(method: Method, uri: &str) -> Builder {
    Request::builder().method(method).uri(uri)
}

fn json(method: Method, uri: &str) -> Builder {
    request(method, uri).header("Content-Type", "application/json")
}

impl Answered {
    fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().unwrap())
    }

    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }

    /// The slug of the problem, after the rules that hold for every problem.
    #[track_caller]
    fn slug(&self) -> String {
        assert_eq!(self.header("Content-Type"), "application/problem+json");
        let problem = self.json();
        assert_eq!(problem["status"], self.status.as_u16());
        for member in ["title", "detail", "instance"] {
            assert!(problem[member].is_string(), "{problem}");
        }
        let slug = problem["type"].as_str().unwrap();
        slug.strip_prefix("/problems/").unwrap().to_owned()
    }

    /// The slug and the first field that is named.
    #[track_caller]
    fn fault(&self) -> (String, String) {
        let field = self.json()["errors"][0]["field"]
            .as_str()
            .unwrap_or("")
            .to_owned();
        (self.slug(), field)
    }

    /// Did the request pass all that is refused before the engine?
    fn reached_the_engine(&self) -> bool {
        self.status == StatusCode::SERVICE_UNAVAILABLE && self.slug() == "overloaded"
    }
}
