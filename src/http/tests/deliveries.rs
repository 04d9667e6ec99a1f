//! What a queue pushes: by what it is known, and what it is told.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request, StatusCode};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::super::{Receiver, Settings, api};
use super::shelf::Shelf;
use super::{Answered, json};
use crate::access::Access;
use crate::domain::{
    Command, Deadline, Job, Line, OnExpired, Outcome, QueueRule, Reservation, ReservationId,
    Reserve, Rules, Text, Timestamp,
};
use crate::engine::{self, Deliveries, Engine, Reply, Runtime, TokioRuntime};
use crate::metrics::Metrics;
use crate::queue::{
    Delivery, DeliveryMode, Fault, Findings, Limits, Publication, Queue, Receipt, Untrusted,
};
use crate::store::memory::Memory;
use crate::store::{Clock, ManualClock};

const PATH: &str = "/v1/deliveries/scripted";
const MAX_PAYLOAD: usize = 1_000;
const MAX_DELAY_MS: i64 = 604_800_000;

/// A queue whose pushes are known by a word.
struct Scripted;

#[async_trait]
impl Queue for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn limits(&self) -> Limits {
        Limits {
            max_delay_ms: MAX_DELAY_MS,
            max_payload_bytes: MAX_PAYLOAD,
            delivery: DeliveryMode::Push,
            retries_later: false,
        }
    }

    async fn publish(&self, _: &[Publication], _: Timestamp) -> Vec<Result<Receipt, Fault>> {
        Vec::new()
    }

    async fn receive(&self, _: usize, _: i64) -> Result<Vec<Delivery>, Fault> {
        Ok(Vec::new())
    }

    async fn acknowledge(&self, _: &Receipt) -> Result<(), Fault> {
        Ok(())
    }

    async fn reject(&self, _: &Receipt) -> Result<(), Fault> {
        Ok(())
    }

    async fn retry_later(&self, _: &Receipt, _: i64) -> Result<(), Fault> {
        Ok(())
    }

    fn authenticate(
        &self,
        headers: &HeaderMap,
        body: &[u8],
        _: Timestamp,
    ) -> Result<Vec<u8>, Untrusted> {
        match headers.get("webhook-signature") {
            Some(word) if word == "friend" => Ok(body.to_vec()),
            _ => Err(Untrusted::Signature),
        }
    }

    async fn check(&self) -> Result<Findings, Fault> {
        Ok(Findings::default())
    }
}

/// A service with a queue.
struct Queued {
    router: Router,
    engine: Engine,
    metrics: Arc<Metrics>,
    clock: Arc<ManualClock>,
}

impl Queued {
    fn new() -> Self {
        let clock = ManualClock::at(at(1_000_000));
        let store = Memory::new(Clock::Manual(Arc::clone(&clock)));
        let runtime: Arc<dyn Runtime> = Arc::new(TokioRuntime::start());
        let metrics = Arc::new(Metrics::new());
        let settings = engine::Settings {
            rules: Rules {
                max_hold_seconds: 3_600,
                queue: Some(QueueRule {
                    max_delay_ms: MAX_DELAY_MS,
                }),
            },
            pace: None,
            retry_budget: crate::domain::RetryBudget::default(),
            sales_lanes: 1,
            patience: Settings::default().request_timeout,
        };
        let engine = Engine::start(Arc::new(store), runtime, &metrics, settings);
        Self::on(engine, metrics, clock)
    }

    fn on(engine: Engine, metrics: Arc<Metrics>, clock: Arc<ManualClock>) -> Self {
        let runtime: Arc<dyn Runtime> = Arc::new(TokioRuntime::start());
        let deliveries = Deliveries::new(
            engine.clone(),
            Arc::clone(&runtime),
            Arc::clone(&metrics),
            "scripted",
        );
        let settings = Settings {
            receiver: Some(Receiver::new(Arc::new(Scripted), deliveries)),
            ..Settings::default()
        };
        let api = api(
            engine.clone(),
            Arc::clone(&metrics),
            runtime,
            Arc::new(Access::open()),
            settings,
        );
        Self {
            router: api.all,
            engine,
            metrics,
            clock,
        }
    }

    async fn send(&self, path: &str, signature: &str, body: impl Into<Body>) -> Answered {
        let push = json(axum::http::Method::POST, path).header("webhook-signature", signature);
        let request: Request<Body> = push.body(body.into()).unwrap();
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        Answered {
            status: parts.status,
            headers: parts.headers,
            body: to_bytes(body, usize::MAX).await.unwrap(),
        }
    }

    /// What becomes of a push that is the queue's.
    async fn outcome(&self, body: impl Into<Body>) -> Value {
        let answered = self.send(PATH, "friend", body).await;
        assert_eq!(answered.status, StatusCode::OK, "{answered:?}");
        answered.json()["outcome"].clone()
    }

    async fn outcome_of(&self, job: Job) -> Value {
        self.outcome(payload(job)).await
    }

    async fn done(&self, command: Command) -> Outcome {
        match self.engine.submit(command, None).await {
            Ok(Reply::Decided(outcome)) => outcome,
            other => panic!("{other:?}"),
        }
    }

    /// A hold of one unit for 60 s.
    async fn hold(&self) -> Reservation {
        let key = crate::domain::StockKey {
            location: text("default"),
            sku: text("A"),
        };
        let on_hand = 10;
        self.done(Command::SetStock { key, on_hand }).await;
        let reserve = Reserve {
            entropy: [1; 10],
            lines: vec![Line {
                sku: text("A"),
                location: text("default"),
                quantity: 1,
            }],
            until: Deadline::In { seconds: 60 },
            merchant: crate::domain::default_merchant(),
            customer_id: None,
            reference: None,
            metadata: BTreeMap::new(),
        };
        // Each at an instant of its own, so that each has a name of its own.
        self.clock.advance(1);
        match self.done(Command::Reserve(reserve)).await {
            Outcome::Reservation { reservation, .. } => *reservation,
            other => panic!("{other:?}"),
        }
    }

    async fn quarantined(&self) -> usize {
        let quarantine = self.engine.store().quarantine();
        quarantine.open(100, 0).await.unwrap().len()
    }
}

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(millis).unwrap()
}

fn text<const MAX: usize>(text: &str) -> Text<MAX> {
    Text::new(text).unwrap()
}

fn payload(job: Job) -> String {
    crate::domain::Message::first(job).payload()
}

#[tokio::test]
async fn each_outcome_is_told_by_its_word() {
    let it = Queued::new();
    let expired = it.hold().await;
    let paid = it.hold().await;
    let cancelled = it.hold().await;
    let moved = it.hold().await;
    it.done(Command::CheckOut {
        id: paid.id,
        payment_reference: None,
        on_expired: OnExpired::Reject,
    })
    .await;
    let id = cancelled.id;
    it.done(Command::Cancel { id, reason: None }).await;
    let id = moved.id;
    let until = Deadline::In { seconds: 600 };
    it.done(Command::Extend { id, until }).await;
    // More than two seconds early.
    assert_eq!(it.outcome_of(expired.job()).await, "rearmed");
    it.clock.advance(60_000);
    assert_eq!(it.outcome_of(expired.job()).await, "expired");
    assert_eq!(it.outcome_of(expired.job()).await, "duplicate");
    assert_eq!(it.outcome_of(paid.job()).await, "paid");
    assert_eq!(it.outcome_of(cancelled.job()).await, "cancelled");
    assert_eq!(it.outcome_of(moved.job()).await, "stale");
    assert_eq!(it.quarantined().await, 0);
    let nobody = Job {
        reservation: ReservationId::new(at(1), [9; 10]),
        deadline: at(2),
    };
    assert_eq!(it.outcome_of(nobody).await, "quarantined");
    for nonsense in ["", "{}", "null", "\u{feff}{}", "[[[["] {
        assert_eq!(it.outcome(nonsense).await, "quarantined", "{nonsense}");
    }
    assert_eq!(it.quarantined().await, 6);
}

/// Nothing but the signature is looked at before it is verified, and nothing is kept.
#[tokio::test]
async fn what_is_not_the_queues_is_counted_and_nothing_else() {
    let it = Queued::new();
    let due = it.hold().await;
    it.clock.advance(60_000);
    for body in [payload(due.job()), "no job".to_owned(), String::new()] {
        let answered = it.send(PATH, "foe", body).await;
        assert_eq!(answered.status, StatusCode::UNAUTHORIZED);
        assert_eq!(answered.slug(), "unauthorized");
    }
    assert_eq!(it.metrics.forged_deliveries.get(), 3);
    assert_eq!(it.quarantined().await, 0);
    let (row, _) = it.engine.store().reservation(due.id).await.unwrap();
    assert_eq!(row, Some(due));
}

#[tokio::test]
async fn a_body_may_be_as_large_as_the_queue_lets_it_be() {
    let it = Queued::new();
    for (size, status) in [
        (MAX_PAYLOAD, StatusCode::OK),
        (MAX_PAYLOAD + 1, StatusCode::PAYLOAD_TOO_LARGE),
        (3_000_000, StatusCode::PAYLOAD_TOO_LARGE),
    ] {
        let answered = it.send(PATH, "friend", "x".repeat(size)).await;
        assert_eq!(answered.status, status, "{size}");
    }
    assert_eq!(it.quarantined().await, 1);
    let large = it.send(PATH, "foe", "x".repeat(MAX_PAYLOAD + 1)).await;
    assert_eq!(large.slug(), "payload-too-large");
}

/// The queue has to bring it again.
#[tokio::test]
async fn what_cannot_be_done_now_is_asked_for_later() {
    let clock = ManualClock::at(at(1));
    let engine = Engine::without_lanes(Arc::new(Shelf::default()));
    let it = Queued::on(engine, Arc::new(Metrics::new()), clock);
    let job = Job {
        reservation: ReservationId::new(at(1), [9; 10]),
        deadline: at(2),
    };
    let answered = it.send(PATH, "friend", payload(job)).await;
    assert_eq!(answered.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answered.header("Retry-After"), "1");
    assert_eq!(answered.slug(), "overloaded");
}

#[tokio::test]
async fn only_the_queue_that_is_configured_has_an_address() {
    let body = json!({}).to_string();
    let it = Queued::new();
    let other = it.send("/v1/deliveries/rest", "friend", body.clone()).await;
    assert_eq!(other.slug(), "not-found");
    let none = super::Service::empty().post(PATH, body).await;
    assert_eq!(none.slug(), "not-found");
}
