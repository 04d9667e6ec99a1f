//! What an operator asks about cases in quarantine, and does about them.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Method, StatusCode};
use serde_json::{Value, json};

use super::super::{Settings, api};
use super::{Service, json as with_json, request};
use crate::access::Access;
use crate::domain::{Job, Message, Rules, Timestamp};
use crate::engine::{self, Engine, Runtime, TokioRuntime};
use crate::metrics::Metrics;
use crate::store::memory::Memory;
use crate::store::{Clock, HOLD, ManualClock, RELAY, Sighting, Store};

const LIST: &str = "/v1/operations/quarantine";

/// A service with a store and an engine.
struct Desk {
    service: Service,
    store: Arc<dyn Store>,
    clock: Arc<ManualClock>,
}

impl Desk {
    fn open() -> Self {
        let clock = ManualClock::at(Timestamp::from_millis(1_796_126_400_000).unwrap());
        let store: Arc<dyn Store> = Arc::new(Memory::new(Clock::Manual(Arc::clone(&clock))));
        let runtime: Arc<dyn Runtime> = Arc::new(TokioRuntime::start());
        let metrics = Arc::new(Metrics::new());
        let settings = engine::Settings {
            rules: Rules {
                max_hold_seconds: 3_600,
                queue: None,
            },
            pace: None,
            retry_budget: crate::domain::RetryBudget::default(),
            sales_lanes: 1,
            patience: Settings::default().request_timeout,
        };
        let engine = Engine::start(Arc::clone(&store), runtime.clone(), &metrics, settings);
        let access = Arc::new(Access::open());
        let api = api(
            engine,
            metrics.clone(),
            runtime,
            access,
            Settings::default(),
        );
        let service = Service {
            router: api.all,
            metrics,
        };
        Self {
            service,
            store,
            clock,
        }
    }

    /// Opens a case, and returns its path.
    async fn case(&self, source: &str, key: &str, payload: &[u8]) -> String {
        let sighting = Sighting {
            source: source.to_owned(),
            key: key.to_owned(),
            payload: payload.to_vec(),
            reason: "puzzling".to_owned(),
        };
        self.store.quarantine().record(&sighting).await.unwrap();
        let open = self.store.quarantine().open(1_000, 0).await.unwrap();
        format!("{LIST}/{}", open.last().unwrap().id)
    }

    /// The job of a new hold that lasts a minute.
    async fn hold(&self) -> Job {
        let put = with_json(Method::PUT, "/v1/stock/A").body(Body::from(r#"{"on_hand":10}"#));
        let stocked = self.service.send(put.unwrap()).await;
        assert_eq!(stocked.status, StatusCode::OK, "{stocked:?}");
        let body = r#"{"lines":[{"sku":"A","quantity":1}],"hold_seconds":60}"#;
        let held = self.service.post("/v1/reservations", body).await.json();
        Job {
            reservation: serde_json::from_value(held["id"].clone()).unwrap(),
            deadline: serde_json::from_value(held["expires_at"].clone()).unwrap(),
        }
    }

    async fn post(&self, path: &str, body: &str) -> Value {
        let answered = self.service.post(path, body.to_owned()).await;
        assert_eq!(answered.status, StatusCode::OK, "{answered:?}");
        answered.json()
    }
}

fn payload(job: Job) -> Vec<u8> {
    Message::first(job).payload().into_bytes()
}

#[tokio::test]
async fn a_case_is_shown_with_what_was_received() {
    let desk = Desk::open();
    let text = desk.case("rest", "m-1", "né pas".as_bytes()).await;
    let bytes = desk.case("rest", "m-2", &[0, 159, 146, 150]).await;
    let expected = json!({
        "id": 1,
        "source": "rest",
        "key": "m-1",
        "state": "open",
        "reason": "puzzling",
        "attempts": 1,
        "first_seen": "2026-12-01T12:00:00.000Z",
        "last_seen": "2026-12-01T12:00:00.000Z",
        "resolved_at": null,
        "resolution": null,
        "payload": "né pas",
        "payload_encoding": "text",
        "actions": [],
    });
    assert_eq!(desk.service.get(&text).await.json(), expected);
    let shown = desk.service.get(&bytes).await.json();
    assert_eq!(shown["payload"], "AJ+Slg==");
    assert_eq!(shown["payload_encoding"], "base64");
    // A list is not burdened with what was received.
    let listed = desk.service.get(LIST).await.json();
    let members: Vec<&str> = ["payload", "payload_encoding", "actions"].into();
    let first = listed["items"][0].as_object().unwrap();
    assert!(members.iter().all(|name| !first.contains_key(*name)));
    assert_eq!(first["key"], "m-1");
}

#[tokio::test]
async fn what_operators_do_is_shown_with_the_case() {
    let desk = Desk::open();
    let text = desk.case("rest", "m-1", b"no job").await;
    let replay = format!("{text}/replay");
    let replayed = desk.post(&replay, "{}").await;
    assert_eq!(replayed["outcome"], "invalid");
    let detail = replayed["detail"].as_str().unwrap();
    assert!(detail.contains("is not an expiry job"), "{detail}");
    desk.clock.advance(1_000);
    let dismissed = desk
        .post(&format!("{text}/dismiss"), r#"{"reason":"a test"}"#)
        .await;
    assert_eq!(dismissed["state"], "resolved");
    assert_eq!(dismissed["resolution"], "dismissed: a test");
    assert_eq!(dismissed["resolved_at"], "2026-12-01T12:00:01.000Z");
    assert_eq!(dismissed, desk.service.get(&text).await.json());
    let actions = json!([
        {
            "action": "replay",
            "by": "local",
            "at": "2026-12-01T12:00:00.000Z",
            "outcome": format!("invalid: {detail}"),
        },
        {
            "action": "dismiss",
            "by": "local",
            "at": "2026-12-01T12:00:01.000Z",
            "outcome": "dismissed: a test",
        },
    ]);
    assert_eq!(dismissed["actions"], actions);
    // No body at all is `{}`.
    let bare = request(Method::POST, &replay).body(Body::empty()).unwrap();
    let again = desk.service.send(bare).await.json();
    assert_eq!(
        (&again["outcome"], &again["detail"]),
        (&json!("resolved"), &json!(null))
    );
}

#[tokio::test]
async fn a_hold_is_dismissed_only_when_it_has_ended() {
    let desk = Desk::open();
    let job = desk.hold().await;
    desk.clock.advance(60_000);
    let name = job.reservation.to_string();
    let path = desk.case(HOLD, &name, &payload(job)).await;
    let (dismiss, body) = (format!("{path}/dismiss"), r#"{"reason":"tired"}"#);
    let refused = desk.service.post(&dismiss, body).await;
    assert_eq!(
        (refused.status.as_u16(), refused.slug().as_str()),
        (409, "still-held")
    );
    let shown = desk.service.get(&path).await.json();
    assert_eq!(
        (&shown["state"], &shown["actions"]),
        (&json!("open"), &json!([]))
    );
    let replayed = desk.post(&format!("{path}/replay"), "{}").await;
    assert_eq!(replayed["outcome"], "expired");
    assert_eq!(replayed["case"]["state"], "resolved");
    assert_eq!(replayed["case"]["resolution"], "replayed: expired");
    let dismissed = desk.post(&dismiss, body).await;
    assert_eq!(
        dismissed["resolution"], "replayed: expired",
        "it stays as it was"
    );
    let read = desk.service.get(&format!("/v1/reservations/{name}")).await;
    assert_eq!(read.json()["closed_at"], "2026-12-01T12:01:00.000Z");
}

#[tokio::test]
async fn every_case_stands_on_one_page() {
    let desk = Desk::open();
    for number in 0..21 {
        let source = if number % 3 == 0 { RELAY } else { "rest" };
        desk.case(source, &format!("m-{number}"), b"{}").await;
    }
    desk.post(&format!("{LIST}/2/dismiss"), r#"{"reason":"a test"}"#)
        .await;
    for (filter, expected) in [
        ("", 21),
        ("source=relay&", 7),
        ("source=rest&state=open&", 13),
        ("state=resolved&", 1),
        ("key=m-4&", 1),
        ("source=hold&", 0),
    ] {
        for limit in [1, 7, 20, 21, 1_000] {
            let mut seen = Vec::new();
            let mut uri = format!("{LIST}?{filter}limit={limit}");
            loop {
                let page = desk.service.get(&uri).await.json();
                let items = page["items"].as_array().unwrap();
                seen.extend(items.iter().map(|item| item["id"].as_i64().unwrap()));
                let Some(cursor) = page["next_cursor"].as_str() else {
                    break;
                };
                uri = format!("{LIST}?{filter}limit={limit}&cursor={cursor}");
            }
            assert_eq!(seen.len(), expected, "{filter} {limit}");
            assert!(seen.is_sorted(), "{seen:?}");
        }
    }
    let first = desk
        .service
        .get(&format!("{LIST}?source=rest&limit=1"))
        .await
        .json();
    let cursor = first["next_cursor"].as_str().unwrap();
    let elsewhere = format!("{LIST}?source=relay&cursor={cursor}");
    let fault = desk.service.get(&elsewhere).await.fault();
    assert_eq!(fault, ("malformed-request".to_owned(), "cursor".to_owned()));
}

#[tokio::test]
async fn many_are_replayed_when_it_is_said() {
    let desk = Desk::open();
    let job = desk.hold().await;
    desk.clock.advance(60_000);
    desk.case("rest", &job.id(), &payload(job)).await;
    desk.case("rest", "m-1", b"{}").await;
    desk.case(RELAY, "m-2", b"{}").await;
    let path = format!("{LIST}/replay");
    let outcomes = json!({ "expired": 1, "invalid": 2 });
    let foreseen = json!({ "dry_run": true, "outcomes": outcomes, "after": 3, "more": false });
    let bare = request(Method::POST, &path).body(Body::empty()).unwrap();
    assert_eq!(desk.service.send(bare).await.json(), foreseen);
    assert_eq!(desk.post(&path, "{}").await, foreseen);
    assert_eq!(
        desk.service.get(&format!("{LIST}/1")).await.json()["actions"],
        json!([])
    );
    let some = r#"{"dry_run":false,"limit":1,"per_second":1000}"#;
    let expected = json!({
        "dry_run": false,
        "outcomes": { "expired": 1 },
        "after": 1,
        "more": true,
    });
    assert_eq!(desk.post(&path, some).await, expected);
    let rest = r#"{"dry_run":false,"source":"rest","after":1,"per_second":1000}"#;
    let expected = json!({
        "dry_run": false,
        "outcomes": { "invalid": 1 },
        "after": 2,
        "more": false,
    });
    assert_eq!(desk.post(&path, rest).await, expected);
}

#[tokio::test]
async fn what_makes_no_sense_is_named() {
    let desk = Desk::open();
    let path = desk.case("rest", "m-1", b"{}").await;
    let (many, dismiss) = (format!("{LIST}/replay"), format!("{path}/dismiss"));
    let replay = format!("{path}/replay");
    for (path, body, field) in [
        (&many, r#"{"limit":0}"#, "limit"),
        (&many, r#"{"limit":1001}"#, "limit"),
        (&many, r#"{"per_second":0}"#, "per_second"),
        (&many, r#"{"per_second":1001}"#, "per_second"),
        (&many, r#"{"after":-1}"#, "after"),
        (&many, r#"{"dry_run":"false"}"#, "dry_run"),
        (&many, r#"{"source":""}"#, "source"),
        (&many, r#"{"state":"open"}"#, "state"),
        (&replay, r#"{"dry_run":true}"#, "dry_run"),
        (&dismiss, "{}", "body"),
        (&dismiss, r#"{"reason":""}"#, "reason"),
        (&dismiss, r#"{"reason":"a\nb"}"#, "reason"),
        (&dismiss, r#"{"reason":null}"#, "reason"),
    ] {
        let fault = desk.service.post(path, body).await.fault();
        assert_eq!(fault, ("validation".to_owned(), field.to_owned()), "{body}");
    }
    for (query, field) in [
        ("state=closed", "state"),
        ("source=", "source"),
        ("key=%00", "key"),
        ("limit=0", "limit"),
        ("reason=x", "reason"),
    ] {
        let fault = desk.service.get(&format!("{LIST}?{query}")).await.fault();
        assert_eq!(
            fault,
            ("validation".to_owned(), field.to_owned()),
            "{query}"
        );
    }
    for name in ["2", "0", "-1", "m-1", "9223372036854775808", "1%2F"] {
        let path = format!("{LIST}/{name}");
        assert_eq!(desk.service.get(&path).await.slug(), "not-found", "{name}");
        for (action, body) in [("replay", "{}"), ("dismiss", r#"{"reason":"a test"}"#)] {
            let answered = desk.service.post(&format!("{path}/{action}"), body).await;
            assert_eq!(answered.slug(), "not-found", "{name}");
        }
    }
    let answered = desk.service.get(&many).await;
    assert_eq!(answered.slug(), "method-not-allowed");
}

/// The examples in the document can be sent as they are.
#[tokio::test]
async fn the_examples_of_quarantine_can_be_sent() {
    let desk = Desk::open();
    let path = desk.case("rest", "m-1", b"{}").await;
    let document = desk.service.get("/openapi.json").await.json();
    for (template, path) in [
        ("/v1/operations/quarantine/replay", format!("{LIST}/replay")),
        (
            "/v1/operations/quarantine/{id}/replay",
            format!("{path}/replay"),
        ),
        (
            "/v1/operations/quarantine/{id}/dismiss",
            format!("{path}/dismiss"),
        ),
    ] {
        let body = &document["paths"][template]["post"]["requestBody"];
        let example = body["content"]["application/json"]["example"].to_string();
        desk.post(&path, &example).await;
    }
}
