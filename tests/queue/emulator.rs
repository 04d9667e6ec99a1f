//! The emulator, asked as anybody may ask it.

use reqwest::{Client, Method, StatusCode};
use serde_json::{Value, json};

use crate::service::{Stand, TOKEN};
use crate::world::client::http;

struct Asker {
    client: Client,
    url: String,
    stand: Stand,
}

impl Asker {
    async fn new() -> Self {
        let stand = Stand::start("pull").await;
        Self {
            client: http(),
            url: format!("http://{}", stand.emulator.address()),
            stand,
        }
    }

    async fn ask(&self, method: Method, path: &str, body: String) -> (StatusCode, Value) {
        let request = self.client.request(method, format!("{}{path}", self.url));
        let answer = request.bearer_auth(TOKEN).body(body).send().await.unwrap();
        let status = answer.status();
        assert_eq!(answer.headers()["content-type"], "application/json");
        (status, answer.json().await.unwrap())
    }

    async fn post(&self, path: &str, body: &Value) -> (StatusCode, Value) {
        self.ask(Method::POST, path, body.to_string()).await
    }

    async fn publish(&self, key: &str, delay_seconds: u32) -> Value {
        let body = json!({ "queue": "holds", "payload": {}, "delay_seconds": delay_seconds });
        let request = self.client.post(format!("{}/v1/queue/publish", self.url));
        let request = request.bearer_auth(TOKEN).header("Idempotency-Key", key);
        let answer = request.body(body.to_string()).send().await.unwrap();
        assert_eq!(answer.status(), 200);
        answer.json::<Value>().await.unwrap()["data"]["message_id"].take()
    }
}

/// A request to publish that is fine, with one member set to this.
fn with(name: &str, value: Value) -> Value {
    let mut body = json!({ "queue": "holds", "payload": {}, "delay_seconds": 0 });
    body[name] = value;
    body
}

/// A request to publish a payload of so many bytes.
fn with_payload_of(bytes: usize) -> Value {
    let payload = json!({ "p": "x".repeat(bytes - r#"{"p":""}"#.len()) });
    assert_eq!(payload.to_string().len(), bytes);
    with("payload", payload)
}

#[tokio::test]
async fn limits_hold_to_the_byte_and_the_second() {
    let asker = Asker::new().await;
    for (body, status, code) in [
        (with("delay_seconds", json!(604_800)), 200, None),
        (
            with("delay_seconds", json!(604_801)),
            422,
            Some("delay-out-of-range"),
        ),
        (
            with("delay_seconds", json!(-1)),
            422,
            Some("delay-out-of-range"),
        ),
        (
            with("delay_seconds", json!(i64::MAX)),
            422,
            Some("delay-out-of-range"),
        ),
        (with_payload_of(262_144), 200, None),
        (with_payload_of(262_145), 413, Some("payload-too-large")),
        (with_payload_of(2_000_000), 413, Some("unreadable")),
    ] {
        let (answered, said) = asker.post("/v1/queue/publish", &body).await;
        assert_eq!(answered, status, "{said}");
        assert_eq!(said["error"]["code"].as_str(), code);
    }
    let stats = asker.stand.stats();
    assert_eq!((stats.published, stats.pending), (2, 2));
    assert_eq!(stats.refused["delay-out-of-range"], 3);
    assert_eq!(stats.refused["payload-too-large"], 1);
}

#[tokio::test]
async fn what_is_not_as_the_protocol_says_is_refused() {
    let asker = Asker::new().await;
    let mut lacking = with("queue", json!("holds"));
    lacking.as_object_mut().unwrap().remove("delay_seconds");
    for body in [
        lacking,
        with("priority", json!(1)),
        with("queue", json!(7)),
        with("queue", json!("")),
        with("delay_seconds", json!("5")),
        with("delay_seconds", json!(1.5)),
        with("payload", json!("text")),
        json!([]),
    ] {
        let (status, said) = asker.post("/v1/queue/publish", &body).await;
        assert_eq!(
            (status.as_u16(), &said["error"]["code"]),
            (422, &json!("invalid")),
            "{body}"
        );
    }
    for (path, body) in [
        ("/v1/queue/consume", json!({ "queue": "holds" })),
        (
            "/v1/queue/consume",
            json!({ "queue": "holds", "max_messages": 0, "visibility_seconds": 1 }),
        ),
        (
            "/v1/queue/consume",
            json!({ "queue": "holds", "max_messages": 1, "visibility_seconds": 0 }),
        ),
        ("/v1/queue/ack", json!({ "message_id": "m" })),
        ("/faults", json!({ "drop": 1 })),
    ] {
        let method = if path == "/faults" {
            Method::PUT
        } else {
            Method::POST
        };
        let (status, said) = asker.ask(method, path, body.to_string()).await;
        assert_eq!(status, 422, "{path}: {said}");
    }
    let unknown = json!({ "queue": "holds", "message_id": "msg_1" });
    assert_eq!(asker.post("/v1/queue/ack", &unknown).await.0, 404);
    let half = asker.ask(Method::POST, "/v1/queue/publish", "{".to_owned());
    assert_eq!(half.await.0, 400);
    assert_eq!(
        asker
            .ask(Method::GET, "/v1/queue/publish", String::new())
            .await
            .0,
        405
    );
    assert_eq!(
        asker.ask(Method::GET, "/v1/queues", String::new()).await.0,
        404
    );
    assert_eq!(asker.stand.stats().published, 0);
}

#[tokio::test]
async fn a_wrong_token_is_refused_and_discovery_needs_none() {
    let asker = Asker::new().await;
    for path in ["publish", "consume", "ack"] {
        let url = format!("{}/v1/queue/{path}", asker.url);
        for request in [
            asker.client.post(&url),
            asker.client.post(&url).bearer_auth("a-toke"),
        ] {
            assert_eq!(request.send().await.unwrap().status(), 401, "{path}");
        }
    }
    let discovery = format!("{}/v1/discovery/queue.publish", asker.url);
    assert_eq!(
        asker.client.get(discovery).send().await.unwrap().status(),
        200
    );
    let driver = crate::service::rest(&asker.url, "pull", "another-token");
    let fault = holdfast::queue::Queue::receive(&driver, 1, 1_000)
        .await
        .unwrap_err();
    assert!(
        matches!(fault, holdfast::queue::Fault::Unavailable(_)),
        "{fault:?}"
    );
}

#[tokio::test]
async fn a_key_is_known_for_a_day_with_quotes_or_without() {
    let asker = Asker::new().await;
    let first = asker.publish("k", 0).await;
    assert_eq!(asker.publish("\"k\"", 0).await, first);
    asker.stand.pass(86_399_999);
    assert_eq!(asker.publish("k", 0).await, first);
    asker.stand.pass(1);
    assert_ne!(asker.publish("k", 0).await, first);
    let stats = asker.stand.stats();
    assert_eq!((stats.published, stats.repeated), (2, 2));
}

#[tokio::test]
async fn queues_are_apart_and_forgetting_forgets_everything() {
    let asker = Asker::new().await;
    let first = asker.publish("k", 0).await;
    let consume = json!({ "queue": "other", "max_messages": 9, "visibility_seconds": 1 });
    let (_, none) = asker.post("/v1/queue/consume", &consume).await;
    assert_eq!(none["data"]["messages"], json!([]));
    let elsewhere = json!({ "queue": "other", "message_id": first });
    assert_eq!(asker.post("/v1/queue/ack", &elsewhere).await.0, 404);
    assert_eq!(asker.stand.stats().pending, 1);
    assert_eq!(asker.post("/forget", &json!({})).await.0, 200);
    assert_eq!(asker.stand.stats().pending, 0);
    assert_ne!(asker.publish("k", 0).await, first);
}

#[tokio::test]
async fn faults_are_set_and_cleared_at_run_time() {
    let asker = Asker::new().await;
    let faults = json!({ "limit_every": 2, "retry_after_seconds": 3, "clamp_delay_seconds": 5 });
    let (status, now) = asker.ask(Method::PUT, "/faults", faults.to_string()).await;
    assert_eq!((status.as_u16(), &now["limit_every"]), (200, &json!(2)));
    asker.publish("a", 500).await;
    let (status, _) = asker
        .post("/v1/queue/publish", &with("delay_seconds", json!(0)))
        .await;
    assert_eq!(status, 429);
    asker.stand.pass(5_000);
    assert_eq!(asker.stand.take_count().await, 1);
    let (_, cleared) = asker.ask(Method::DELETE, "/faults", String::new()).await;
    assert_eq!(cleared["limit_every"], 0);
    for _ in 0..3 {
        let (status, _) = asker
            .post("/v1/queue/publish", &with("delay_seconds", json!(0)))
            .await;
        assert_eq!(status, 200);
    }
    let (_, stats) = asker.ask(Method::GET, "/stats", String::new()).await;
    assert_eq!(stats["published"], 4);
    assert_eq!(stats["refused"], json!({ "limited": 1 }));
    assert_eq!(
        stats["lateness_ms"],
        json!({ "p50": 0, "p99": 0, "max": 0 })
    );
}
