//! The first driver: queues that are called over HTTP with JSON, as Infrai's is.
//!
//! Calls stand under a base such as `https://host/v1`: `queue/publish`, `queue/consume`,
//! `queue/ack`, and `discovery/queue.publish`, which says how to publish. Delays are whole
//! seconds. An Idempotency-Key is remembered for a day. Pushes are signed as [`super::webhook`]
//! says.

mod address;
mod discovery;

use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, UNIX_EPOCH};

use async_trait::async_trait;
use futures_util::StreamExt as _;
use http::header::{AUTHORIZATION, CONTENT_TYPE, DATE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue};
use reqwest::{Client, RequestBuilder, Response, Url};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::domain::Timestamp;

use super::client::{ClientFault, Trust, causes, http_client};
use super::fault::{Fault, Trouble};
use super::webhook::{self, Secret, Untrusted};
use super::{Delivery, DeliveryMode, Findings, Limits, Publication, Queue, Receipt};

pub use address::{Address, ENCRYPTED, PLAIN, is_loopback};

/// The longest delay that the service takes, in seconds: seven days.
pub const MAX_DELAY_SECONDS: i64 = 604_800;
/// The longest payload that the service takes, in bytes.
pub const MAX_PAYLOAD_BYTES: usize = 262_144;

/// How many publications are under way at once; as many connections are kept.
const PUBLISHES_AT_ONCE: usize = 64;
/// How long an answer may take, the connection included.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The most messages that are received at once.
const MOST_RECEIVED: usize = 100;
/// The most bytes of an answer that are read, apart from the payloads in it.
const MAX_ANSWER_BYTES: usize = 65_536;
/// How much of an answer is shown to people, in characters.
const SHOWN_CHARACTERS: usize = 200;

/// What the driver needs to know.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where the queue is.
    pub address: Address,
    /// By what it knows us.
    pub token: Token,
    /// By what we know its pushes: several while one is exchanged for another, none if it never
    /// pushes.
    pub secrets: Vec<Secret>,
    /// The file of the authorities that its certificate may come from, instead of the system's.
    pub ca: Option<PathBuf>,
}

/// A bearer token. It is never shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token(HeaderValue);

impl FromStr for Token {
    type Err = &'static str;

    fn from_str(token: &str) -> Result<Self, &'static str> {
        if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("is not made of visible ASCII characters");
        }
        let mut value = HeaderValue::try_from(format!("Bearer {token}"))
            .map_err(|_| "does not fit into a header")?;
        value.set_sensitive(true);
        Ok(Self(value))
    }
}

/// A queue of this kind.
pub struct Rest {
    settings: Settings,
    client: Client,
    publish: Url,
    consume: Url,
    acknowledge: Url,
    discovery: Url,
}

#[derive(Serialize)]
struct PublishBody<'a> {
    queue: &'a str,
    payload: &'a RawValue,
    delay_seconds: i64,
}

#[derive(Serialize)]
struct ConsumeBody<'a> {
    queue: &'a str,
    max_messages: usize,
    visibility_seconds: i64,
}

#[derive(Serialize)]
struct AcknowledgeBody<'a> {
    queue: &'a str,
    message_id: &'a str,
}

#[derive(Deserialize)]
struct Envelope<T> {
    data: T,
}

#[derive(Deserialize)]
struct Published {
    message_id: String,
}

#[derive(Deserialize)]
struct Consumed {
    messages: Vec<ConsumedMessage>,
}

#[derive(Deserialize)]
struct ConsumedMessage {
    message_id: String,
    payload: Box<RawValue>,
}

impl Rest {
    /// A driver of this queue. It connects when it is first used.
    pub fn open(settings: Settings) -> Result<Self, ClientFault> {
        let address = &settings.address;
        let trust = match &settings.ca {
            _ if !address.is_encrypted() => Trust::Nobody,
            Some(file) => Trust::File(file),
            None => Trust::System,
        };
        Ok(Self {
            client: http_client(trust, PUBLISHES_AT_ONCE, TIMEOUT)?,
            publish: address.call("queue/publish"),
            consume: address.call("queue/consume"),
            acknowledge: address.call("queue/ack"),
            discovery: address.call("discovery/queue.publish"),
            settings,
        })
    }

    async fn publish_one(
        &self,
        publication: Publication,
        now: Timestamp,
    ) -> Result<Receipt, Fault> {
        let payload = publication.message.payload();
        // Rounded down: what comes early is waited out, what comes late is late.
        let delay_seconds = publication.delay_ms.max(0) / 1_000;
        if payload.len() > MAX_PAYLOAD_BYTES || delay_seconds > MAX_DELAY_SECONDS {
            let said = format!(
                "{} bytes in {delay_seconds} s are more than {MAX_PAYLOAD_BYTES} bytes in \
                 {MAX_DELAY_SECONDS} s",
                payload.len()
            );
            return Err(Fault::of(Trouble::OverLimit, said, Some(now)));
        }
        let refused = |error: serde_json::Error| Fault::Refused(error.to_string());
        let body = PublishBody {
            queue: &self.settings.address.queue,
            payload: serde_json::from_str(&payload).map_err(refused)?,
            delay_seconds,
        };
        let request = self
            .post(&self.publish, &body)
            .header("idempotency-key", publication.message.key());
        let answer = ask(request, &self.publish, Some(now)).await?;
        let published: Envelope<Published> =
            read_json(answer, &self.publish, MAX_ANSWER_BYTES).await?;
        Ok(Receipt(published.data.message_id))
    }

    fn post(&self, url: &Url, body: &impl Serialize) -> RequestBuilder {
        // What is serialised here is text and numbers, which cannot fail.
        let body = serde_json::to_vec(body).unwrap_or_default();
        self.client
            .post(url.clone())
            .header(AUTHORIZATION, self.settings.token.0.clone())
            .header(CONTENT_TYPE, "application/json")
            .body(body)
    }
}

#[async_trait]
impl Queue for Rest {
    fn name(&self) -> &'static str {
        "rest"
    }

    fn limits(&self) -> Limits {
        Limits {
            max_delay_ms: MAX_DELAY_SECONDS * 1_000,
            max_payload_bytes: MAX_PAYLOAD_BYTES,
            delivery: self.settings.address.delivery,
            retries_later: false,
        }
    }

    async fn publish(&self, batch: &[Publication], now: Timestamp) -> Vec<Result<Receipt, Fault>> {
        let publishes: Vec<_> = batch
            .iter()
            .map(|publication| self.publish_one(*publication, now))
            .collect();
        futures_util::stream::iter(publishes)
            .buffered(PUBLISHES_AT_ONCE)
            .collect()
            .await
    }

    async fn receive(&self, max: usize, visibility_ms: i64) -> Result<Vec<Delivery>, Fault> {
        if self.settings.address.delivery == DeliveryMode::Push {
            return Err(Fault::Refused("this queue pushes".to_owned()));
        }
        let max_messages = max.min(MOST_RECEIVED);
        if max_messages == 0 {
            return Ok(Vec::new());
        }
        let body = ConsumeBody {
            queue: &self.settings.address.queue,
            max_messages,
            // Rounded up: what is hidden for too short a time comes twice.
            visibility_seconds: visibility_ms.saturating_add(999).max(1_000) / 1_000,
        };
        let answer = ask(self.post(&self.consume, &body), &self.consume, None).await?;
        let most = max_messages * (MAX_PAYLOAD_BYTES + 1_024) + MAX_ANSWER_BYTES;
        let consumed: Envelope<Consumed> = read_json(answer, &self.consume, most).await?;
        let messages = consumed.data.messages.into_iter();
        Ok(messages
            .map(|message| Delivery {
                receipt: Receipt(message.message_id),
                payload: message.payload.get().into(),
            })
            .collect())
    }

    async fn acknowledge(&self, receipt: &Receipt) -> Result<(), Fault> {
        let body = AcknowledgeBody {
            queue: &self.settings.address.queue,
            message_id: &receipt.0,
        };
        let url = &self.acknowledge;
        let sent = send(self.post(url, &body), url).await?;
        // It is gone already, which is all that an acknowledgement asks for.
        if sent.status() == reqwest::StatusCode::NOT_FOUND {
            return Ok(());
        }
        judge(sent, url, None).await.map(drop)
    }

    async fn reject(&self, receipt: &Receipt) -> Result<(), Fault> {
        self.acknowledge(receipt).await
    }

    async fn retry_later(&self, _receipt: &Receipt, _delay_ms: i64) -> Result<(), Fault> {
        Err(Fault::Refused("this queue has no retry-later".to_owned()))
    }

    fn authenticate(
        &self,
        headers: &HeaderMap,
        body: &[u8],
        now: Timestamp,
    ) -> Result<Vec<u8>, Untrusted> {
        webhook::verify(&self.settings.secrets, headers, body, now)?;
        Ok(body.to_vec())
    }

    async fn check(&self) -> Result<Findings, Fault> {
        let request = self.client.get(self.discovery.clone());
        let answer = ask(request, &self.discovery, None).await?;
        let said = read_json(answer, &self.discovery, MAX_ANSWER_BYTES).await?;
        let mut findings = discovery::compare(&said, &self.publish);
        // Whoever reads that all fits must not think that the token does.
        findings
            .found
            .push("the token: not tried, since a queue says this to everybody".to_owned());
        Ok(findings)
    }
}

/// Sends a request, and passes on an answer that is a success.
async fn ask(
    request: RequestBuilder,
    url: &Url,
    now: Option<Timestamp>,
) -> Result<Response, Fault> {
    judge(send(request, url).await?, url, now).await
}

async fn send(request: RequestBuilder, url: &Url) -> Result<Response, Fault> {
    request.send().await.map_err(|error| {
        let trouble = if error.is_connect() {
            Trouble::Unreachable
        } else {
            Trouble::Lost
        };
        Fault::of(trouble, failed(url, error), None)
    })
}

async fn judge(
    mut response: Response,
    url: &Url,
    now: Option<Timestamp>,
) -> Result<Response, Fault> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    // What it says is for people; that it cannot be read changes nothing.
    let said = read(&mut response, MAX_ANSWER_BYTES).await;
    let said = said.ok().flatten().unwrap_or_default();
    let answer = format!("{url} answered {status} {}", shown(&said));
    let headers = response.headers();
    let trouble = Trouble::Status {
        status: status.as_u16(),
        retry_after: headers.get(RETRY_AFTER).and_then(|it| it.to_str().ok()),
    };
    // The clock that wrote a date in Retry-After also wrote the answer's own.
    Err(Fault::of(
        trouble,
        answer.trim().to_owned(),
        date(headers).or(now),
    ))
}

async fn read_json<T: DeserializeOwned>(
    mut response: Response,
    url: &Url,
    most: usize,
) -> Result<T, Fault> {
    let body = read(&mut response, most)
        .await
        .map_err(|error| Fault::of(Trouble::Lost, failed(url, error), None))?;
    let garbage = |said: String| Fault::of(Trouble::Garbage, said, None);
    let body = body.ok_or_else(|| garbage(format!("{url} answered more than {most} bytes")))?;
    serde_json::from_slice(&body).map_err(|error| {
        garbage(format!(
            "{url} answered what is not expected ({error}): {}",
            shown(&body)
        ))
    })
}

/// The body of an answer, if it has no more than `most` bytes.
async fn read(response: &mut Response, most: usize) -> reqwest::Result<Option<Vec<u8>>> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if chunk.len() > most - body.len() {
            return Ok(None);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Some(body))
}

/// The answer's own date.
fn date(headers: &HeaderMap) -> Option<Timestamp> {
    let date = headers.get(DATE)?.to_str().ok()?;
    let date = httpdate::parse_http_date(date).ok()?;
    let since_epoch = date.duration_since(UNIX_EPOCH).ok()?;
    Timestamp::from_millis(i64::try_from(since_epoch.as_millis()).ok()?)
}

/// Why a request failed, in one line that names its address once.
fn failed(url: &Url, error: reqwest::Error) -> String {
    format!("{url} cannot be asked: {}", causes(&error.without_url()))
}

/// The beginning of an answer, in one line.
fn shown(body: &[u8]) -> String {
    String::from_utf8_lossy(body)
        .chars()
        .take(SHOWN_CHARACTERS)
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .collect()
}
