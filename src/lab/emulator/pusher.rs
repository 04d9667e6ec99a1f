//! Brings messages to the subscriber when they are due, and again until it has them.

use std::sync::Arc;
use std::time::Duration;

use http::header::{CONTENT_TYPE, RETRY_AFTER};
use reqwest::{Client, Url};
use tokio::sync::{Semaphore, watch};

use crate::domain::Backoff;
use crate::domain::Timestamp;
use crate::queue::retry::asked_wait;
use crate::queue::webhook::{ID, SIGNATURE, Secret, TIMESTAMP};
use crate::queue::{ClientFault, Trust, http_client};

use super::App;
use super::backlog::{Handed, NextPush};

/// How many pushes are under way at once; as many connections are kept.
const PUSHES_AT_ONCE: usize = 256;
/// How long the subscriber has to answer.
const TIMEOUT: Duration = Duration::from_secs(15);
/// How long to wait after a push that was not taken.
const BACKOFF: Backoff = Backoff {
    first_ms: 1_000,
    most_ms: 60_000,
};

/// Whom messages are pushed to.
pub(super) struct Subscriber {
    url: Url,
    client: Client,
}

impl Subscriber {
    /// A subscriber whose certificate comes from an authority in the file, or one of the system's.
    pub(super) fn new(url: Url, ca: Option<&std::path::Path>) -> Result<Self, ClientFault> {
        let trust = match ca {
            _ if url.scheme() == "http" => Trust::Nobody,
            Some(file) => Trust::File(file),
            None => Trust::System,
        };
        let client = http_client(trust, PUSHES_AT_ONCE, TIMEOUT)?;
        Ok(Self { url, client })
    }
}

/// Pushes until it is told to stop; what is under way then is given up.
pub(super) async fn push_until_stopped(app: Arc<App>, mut stop: watch::Receiver<bool>) {
    let slots = Arc::new(Semaphore::new(PUSHES_AT_ONCE));
    tokio::select! {
        _ = stop.wait_for(|is_stopped| *is_stopped) => {}
        () = push(app, slots) => {}
    }
}

async fn push(app: Arc<App>, slots: Arc<Semaphore>) {
    loop {
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else {
            return;
        };
        let (handed, subscriber) = next(&app).await;
        let app = Arc::clone(&app);
        tokio::spawn(async move {
            attempt(&app, &subscriber, handed).await;
            drop(slot);
        });
    }
}

/// Waits for the next message that is due while there is somebody to push it to.
async fn next(app: &App) -> (Handed, Arc<Subscriber>) {
    loop {
        let now_ms = app.now().as_millis();
        let subscriber = app.subscriber();
        let next = match &subscriber {
            Some(_) => app.backlog().next_push(now_ms),
            None => NextPush::Never,
        };
        match (next, subscriber) {
            (NextPush::Now(handed), Some(subscriber)) => return (handed, subscriber),
            (NextPush::At(at), _) => {
                let wait_ms = u64::try_from(at - now_ms).unwrap_or_default();
                tokio::select! {
                    () = tokio::time::sleep(Duration::from_millis(wait_ms)) => {}
                    () = app.wake.notified() => {}
                }
            }
            _ => app.wake.notified().await,
        }
    }
}

async fn attempt(app: &App, subscriber: &Subscriber, handed: Handed) {
    let now = app.now();
    let timestamp_s = now.as_millis().div_euclid(1_000);
    let sent = subscriber
        .client
        .post(subscriber.url.clone())
        .header(CONTENT_TYPE, "application/json")
        .header(ID, &handed.message_id)
        .header(TIMESTAMP, timestamp_s)
        .header(SIGNATURE, signatures(&app.secrets, &handed, timestamp_s))
        .body(handed.payload)
        .send()
        .await;
    let now = app.now();
    let (answer, asked) = match sent {
        Ok(answer) => {
            let asked = asked_for(&answer, now);
            let status = answer.status();
            // Read to its end, so that the connection can be used again.
            let _ = answer.bytes().await;
            if status.is_success() {
                let mut backlog = app.backlog();
                backlog.count_answer(status.as_str());
                backlog.end(handed.place);
                return;
            }
            (status.as_str().to_owned(), asked)
        }
        Err(_) => ("lost".to_owned(), None),
    };
    let wait = asked.unwrap_or_else(|| BACKOFF.wait(handed.attempts, app.runtime.random()));
    let wait_ms = i64::try_from(wait.as_millis()).unwrap_or(i64::MAX);
    let mut backlog = app.backlog();
    backlog.count_answer(&answer);
    backlog.wait(handed.place, now.saturating_add_millis(wait_ms).as_millis());
    drop(backlog);
    app.wake.notify_one();
}

/// One signature for each secret.
fn signatures(secrets: &[Secret], handed: &Handed, timestamp_s: i64) -> String {
    let signatures: Vec<String> = secrets
        .iter()
        .map(|secret| secret.sign(&handed.message_id, timestamp_s, &handed.payload))
        .collect();
    signatures.join(" ")
}

fn asked_for(answer: &reqwest::Response, now: Timestamp) -> Option<Duration> {
    let asked = answer.headers().get(RETRY_AFTER)?.to_str().ok()?;
    asked_wait(asked, Some(now))
}
