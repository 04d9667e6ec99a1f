//! Runs of the workers that a caller asks for.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use axum::body::Body;
use axum::http::{Method, StatusCode};
use serde_json::json;

use super::super::{Runs, Settings};
use super::shelf::Shelf;
use super::{Service, request};
use crate::engine::{Bounds, EngineError, RelayRun, SweepRun};

const RELAY: &str = "/v1/operations/relay/run";
const SWEEP: &str = "/v1/operations/sweep/run";

/// Longer than other requests may take here.
const LONG: Duration = Duration::from_millis(300);

/// The example in the document can be sent as it is.
#[tokio::test]
async fn the_examples_of_runs_can_be_sent() {
    let service = service(Arc::new(Slow::default()));
    let document = service.get("/openapi.json").await.json();
    let content = &document["paths"][RELAY]["post"]["requestBody"]["content"];
    let example = content["application/json"]["example"].to_string();
    assert_eq!(service.post(RELAY, example).await.status, StatusCode::OK);
}

/// Takes its time, and remembers what it was asked for.
#[derive(Default)]
struct Slow(Mutex<Vec<Bounds>>);

#[async_trait]
impl Runs for Slow {
    async fn relay(&self, bounds: Bounds) -> Option<Result<RelayRun, EngineError>> {
        self.0.lock().unwrap().push(bounds);
        tokio::time::sleep(LONG).await;
        Some(Ok(RelayRun {
            published: 3,
            skipped: 1,
            more: true,
            duration_ms: 300,
            ..RelayRun::default()
        }))
    }

    async fn sweep(&self, _: Bounds) -> Result<SweepRun, EngineError> {
        Err(EngineError::ShuttingDown)
    }
}

fn service(runs: Arc<dyn Runs>) -> Service {
    let settings = Settings {
        runs: Some(runs),
        request_timeout: LONG / 3,
        ..Settings::default()
    };
    Service::new(Shelf::default(), settings)
}

#[tokio::test]
async fn a_run_may_take_longer_than_other_requests() {
    let runs = Arc::new(Slow::default());
    let service = service(runs.clone());
    let answer = service
        .post(RELAY, r#"{"max_rows":7,"max_seconds":600}"#)
        .await;
    assert_eq!(answer.status, StatusCode::OK);
    let expected = json!({
        "published": 3,
        "postponed": 0,
        "parked": 0,
        "skipped": 1,
        "more": true,
        "duration_ms": 300,
    });
    assert_eq!(answer.json(), expected);
    // No body at all is `{}`.
    let bare = request(Method::POST, RELAY).body(Body::empty()).unwrap();
    assert_eq!(service.send(bare).await.status, StatusCode::OK);
    let asked = runs.0.lock().unwrap().clone();
    let bounds = |rows, seconds| Bounds::new(rows, seconds).unwrap();
    assert_eq!(asked, [bounds(7, 600), bounds(10_000, 60)]);
    assert_eq!(service.post(SWEEP, "{}").await.slug(), "overloaded");
}

#[tokio::test]
async fn bounds_that_make_no_sense_are_named() {
    let service = service(Arc::new(Slow::default()));
    for (body, field) in [
        (r#"{"max_rows":0}"#, "max_rows"),
        (r#"{"max_rows":1000001}"#, "max_rows"),
        (r#"{"max_rows":1.5}"#, "max_rows"),
        (r#"{"max_seconds":0}"#, "max_seconds"),
        (r#"{"max_seconds":601}"#, "max_seconds"),
        (r#"{"max_seconds":"60"}"#, "max_seconds"),
        (r#"{"max_time":60}"#, "max_time"),
    ] {
        for path in [RELAY, SWEEP] {
            let fault = service.post(path, body).await.fault();
            assert_eq!(fault, ("validation".to_owned(), field.to_owned()), "{body}");
        }
    }
}
