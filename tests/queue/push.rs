//! Pushes of the emulator to a subscriber of ours, verified by the driver.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use holdfast::domain::{Job, Timestamp};
use holdfast::lab::emulator::{Faults, Stats};
use holdfast::queue::webhook::{SIGNATURE, Secret};
use holdfast::queue::{DeliveryMode, Fault, Queue as _, Untrusted};
use holdfast::store::ManualClock;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::service::{NOON_MS, SECRET, Stand, TOKEN, message, rest, rest_settings};

/// A status, and a Retry-After if it is not empty.
type Scripted = (u16, &'static str);

/// A subscriber that answers what it was told to, and 200 after that.
struct Subscriber {
    url: String,
    pushes: mpsc::UnboundedReceiver<(HeaderMap, Bytes)>,
    answers: Arc<Mutex<VecDeque<Scripted>>>,
}

impl Subscriber {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let (pushed, pushes) = mpsc::unbounded_channel();
        let answers = Arc::new(Mutex::new(VecDeque::new()));
        let scripted = Arc::clone(&answers);
        let router = Router::new().fallback(async move |headers: HeaderMap, body: Bytes| {
            let answer = scripted.lock().unwrap().pop_front();
            let _ = pushed.send((headers, body));
            respond(answer.unwrap_or((200, "")))
        });
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self {
            url,
            pushes,
            answers,
        }
    }

    fn will_answer(&self, answers: impl IntoIterator<Item = Scripted>) {
        self.answers.lock().unwrap().extend(answers);
    }

    async fn next(&mut self) -> (HeaderMap, Bytes) {
        let next = tokio::time::timeout(Duration::from_secs(20), self.pushes.recv());
        next.await.expect("a push comes").unwrap()
    }

    async fn next_job(&mut self) -> Job {
        Job::from_payload(&self.next().await.1).unwrap()
    }
}

fn respond((status, retry_after): Scripted) -> Response {
    let status = StatusCode::from_u16(status).unwrap();
    if retry_after.is_empty() {
        return status.into_response();
    }
    (status, [("retry-after", retry_after)]).into_response()
}

async fn pushing() -> (Stand, Subscriber) {
    let subscriber = Subscriber::start().await;
    let stand = Stand::start("push").await;
    let url = subscriber.url.parse().unwrap();
    stand.emulator.set_push_url(Some(url)).unwrap();
    (stand, subscriber)
}

/// Waits until what was counted is so; the emulator counts an answer after the subscriber gave it.
async fn counted(stand: &Stand, is_so: impl Fn(&Stats) -> bool) -> Stats {
    for _ in 0..20_000 {
        let stats = stand.stats();
        if is_so(&stats) {
            return stats;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("{:?}", stand.stats());
}

fn answered(status: &str, times: u64) -> impl Fn(&Stats) -> bool {
    move |stats| stats.answers.get(status) == Some(&times)
}

#[tokio::test]
async fn a_push_comes_when_it_is_due_and_is_trusted() {
    let (stand, mut subscriber) = pushing().await;
    assert_eq!(stand.queue.limits().delivery, DeliveryMode::Push);
    stand.publish(message(1), 3_000).await.unwrap();
    stand.pass(2_999);
    // Another that is due now is pushed first, so the emulator has looked by then.
    stand.publish(message(2), 0).await.unwrap();
    assert_eq!(subscriber.next_job().await, message(2).job);
    stand.pass(1);
    let (headers, body) = subscriber.next().await;
    let now = stand.clock.now();
    let payload = stand.queue.authenticate(&headers, &body, now).unwrap();
    assert_eq!(payload, message(1).payload().into_bytes());
    let stats = counted(&stand, answered("200", 2)).await;
    assert_eq!((stats.acknowledged, stats.pending), (2, 0));
    assert_eq!(stats.lateness_ms.max, 0);
}

#[tokio::test]
async fn a_push_that_was_tampered_with_or_is_old_is_not_trusted() {
    let (stand, mut subscriber) = pushing().await;
    stand.publish(message(1), 0).await.unwrap();
    let (headers, body) = subscriber.next().await;
    let now = stand.clock.now();
    let authenticate = |headers, body, now| stand.queue.authenticate(headers, body, now);
    let mut changed = body.to_vec();
    changed.push(b' ');
    assert_eq!(
        authenticate(&headers, &changed, now),
        Err(Untrusted::Signature)
    );
    let later = now.saturating_add_millis(301_000);
    assert_eq!(
        authenticate(&headers, &body, later),
        Err(Untrusted::OutOfTime)
    );
    let mut unsigned = headers.clone();
    unsigned.remove(SIGNATURE);
    assert!(authenticate(&unsigned, &body, now).is_err());
    // While one secret is exchanged for another, both are good.
    let other: Secret = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX".parse().unwrap();
    let mut settings = rest_settings("http://127.0.0.1:9", "pull", TOKEN);
    for (secrets, trusted) in [
        (
            vec![other.clone(), SECRET.parse().unwrap()],
            Ok(body.to_vec()),
        ),
        (vec![other], Err(Untrusted::Signature)),
        (vec![], Err(Untrusted::NoSecret)),
    ] {
        settings.secrets = secrets;
        let rest = holdfast::queue::rest::Rest::open(settings.clone()).unwrap();
        assert_eq!(rest.authenticate(&headers, &body, now), trusted);
    }
}

#[tokio::test]
async fn a_push_that_is_not_taken_comes_again_under_its_name() {
    let (stand, mut subscriber) = pushing().await;
    subscriber.will_answer([(500, ""), (302, "")]);
    stand.publish(message(1), 0).await.unwrap();
    let (first, _) = subscriber.next().await;
    counted(&stand, answered("500", 1)).await;
    stand.pass(1_000);
    let (second, _) = subscriber.next().await;
    counted(&stand, answered("302", 1)).await;
    stand.pass(2_000);
    let (third, body) = subscriber.next().await;
    let stats = counted(&stand, answered("200", 1)).await;
    assert_eq!((stats.deliveries, stats.pending), (3, 0));
    assert_eq!(first["webhook-id"], second["webhook-id"]);
    assert_eq!(first["webhook-id"], third["webhook-id"]);
    // The timestamp is that of the attempt.
    assert_ne!(first["webhook-timestamp"], third["webhook-timestamp"]);
    let now = stand.clock.now();
    assert!(stand.queue.authenticate(&third, &body, now).is_ok());
}

#[tokio::test]
async fn a_subscriber_that_asks_for_patience_gets_it() {
    let (stand, mut subscriber) = pushing().await;
    // Every second push is that of another message, which is taken.
    let date = "Tue, 01 Dec 2026 12:02:00 GMT";
    subscriber.will_answer([(429, "30"), (200, ""), (503, date), (200, "")]);
    stand.publish(message(1), 0).await.unwrap();
    assert_eq!(subscriber.next_job().await, message(1).job);
    // Noon and 250 ms, then 30 s, then two minutes past noon.
    for (status, wait_ms, other) in [("429", 30_000, 2), ("503", 89_750, 3)] {
        counted(&stand, answered(status, 1)).await;
        stand.pass(wait_ms - 1);
        stand.publish(message(other), 0).await.unwrap();
        assert_eq!(subscriber.next_job().await, message(other).job);
        stand.pass(1);
        assert_eq!(subscriber.next_job().await, message(1).job);
    }
    counted(&stand, answered("200", 3)).await;
}

#[tokio::test]
async fn pushes_are_doubled_and_dropped_on_request() {
    let (stand, mut subscriber) = pushing().await;
    stand.break_with(Faults {
        duplicate_every: 2,
        drop_every: 3,
        ..Faults::default()
    });
    for number in 1..=4 {
        stand
            .publish(message(number), i64::from(number) * 1_000)
            .await
            .unwrap();
    }
    stand.pass(10_000);
    let mut jobs = Vec::new();
    for _ in 0..5 {
        jobs.push(subscriber.next_job().await);
    }
    jobs.sort();
    let expected = [1, 2, 2, 4, 4].map(|number| message(number).job);
    assert_eq!(jobs, expected);
    let stats = counted(&stand, answered("200", 5)).await;
    assert_eq!((stats.dropped, stats.duplicated, stats.pending), (1, 2, 0));
}

#[tokio::test]
async fn a_queue_that_pushes_is_not_consumed() {
    let (stand, _subscriber) = pushing().await;
    let fault = stand.queue.receive(1, 1_000).await.unwrap_err();
    assert!(matches!(fault, Fault::Refused(_)), "{fault:?}");
    let url = format!("http://{}", stand.emulator.address());
    let fault = rest(&url, "pull", TOKEN)
        .receive(1, 1_000)
        .await
        .unwrap_err();
    assert!(fault.to_string().contains("pushed"), "{fault:?}");
}

/// What nobody takes is kept until somebody does.
#[tokio::test]
async fn a_subscriber_may_be_gone_and_come_back() {
    let (stand, mut subscriber) = pushing().await;
    let nobody = "http://127.0.0.1:9/hook".parse().unwrap();
    stand.emulator.set_push_url(Some(nobody)).unwrap();
    stand.publish(message(1), 0).await.unwrap();
    counted(&stand, answered("lost", 1)).await;
    let url = subscriber.url.parse().unwrap();
    stand.emulator.set_push_url(Some(url)).unwrap();
    stand.pass(1_000);
    assert_eq!(subscriber.next_job().await, message(1).job);
}

#[tokio::test]
async fn pushes_need_a_secret() {
    let clock = ManualClock::at(Timestamp::from_millis(NOON_MS).unwrap());
    let emulator = crate::service::start_emulator(&clock, None).await;
    for url in ["ftp://127.0.0.1/", "data:,"] {
        assert!(emulator.set_push_url(Some(url.parse().unwrap())).is_err());
    }
}
