//! What a queue must do to carry expiry jobs, whichever it is.
//!
//! A queue is told to bring a message back after a delay. It may bring it late, early, twice, out
//! of order or never, and nothing breaks: the guarded transition decides, and the sweep releases
//! what no queue brought. So this port asks for little. A driver's own words stay in its file, and
//! nobody above the port knows which queue it is.

mod client;
pub mod fault;
pub mod rest;
pub mod retry;
mod state;
pub mod webhook;

use async_trait::async_trait;
use http::HeaderMap;

use crate::domain::{Message, Timestamp};

pub use client::{ClientFault, Trust, http_client};
pub use fault::Fault;
pub use state::{QueueState, Side};
pub use webhook::Untrusted;

/// One queue.
#[async_trait]
pub trait Queue: Send + Sync + 'static {
    /// The driver's word, as in `/v1/deliveries/{queue}` and in the outbox: `rest`.
    fn name(&self) -> &'static str;

    /// What the queue takes, and how it gives back. They do not change while the process runs.
    fn limits(&self) -> Limits;

    /// Publishes messages, and answers for each in the order of the batch. `now` is the instant at
    /// which the delays were computed.
    ///
    /// A receipt says that the queue has the message, now or from an earlier publication under the
    /// same [`Message::key`]. A fault says nothing about whether it has it: an answer may have been
    /// lost. Publishing the same message again is always right, and what a queue does not count
    /// exactly is rounded down, so that a delivery is early by less than that rather than late.
    /// What exceeds the limits is refused here and not sent.
    async fn publish(&self, batch: &[Publication], now: Timestamp) -> Vec<Result<Receipt, Fault>>;

    /// Takes up to `max` messages that are due from a queue that is pulled, at once and without
    /// waiting for one. Each is hidden from other receivers for `visibility_ms`, and comes again
    /// after that unless it was acknowledged or rejected.
    async fn receive(&self, max: usize, visibility_ms: i64) -> Result<Vec<Delivery>, Fault>;

    /// Ends a delivery that was received. Call it only after the transition is committed. A
    /// delivery that the queue no longer knows counts as acknowledged.
    async fn acknowledge(&self, receipt: &Receipt) -> Result<(), Fault>;

    /// Ends a delivery that can never be done, after it was put into quarantine: to a dead-letter
    /// queue if the queue has one, else like an acknowledgement.
    async fn reject(&self, receipt: &Receipt) -> Result<(), Fault>;

    /// Has a delivery that was received come again after `delay_ms`. Only where
    /// [`Limits::retries_later`] says so; elsewhere the job is published anew as another copy.
    async fn retry_later(&self, receipt: &Receipt, delay_ms: i64) -> Result<(), Fault>;

    /// Is this request a push of the queue? If so, the payload in it, which may be anything yet:
    /// a job is read from it by [`Job::from_payload`](crate::domain::Job::from_payload). `body` is
    /// the body as it came in, byte for byte.
    fn authenticate(
        &self,
        headers: &HeaderMap,
        body: &[u8],
        now: Timestamp,
    ) -> Result<Vec<u8>, Untrusted>;

    /// Asks the queue how it wants to be used, and compares that with how this driver uses it. It
    /// publishes nothing.
    async fn check(&self) -> Result<Findings, Fault>;
}

/// What a queue takes, and how it gives back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest delay in milliseconds. A job that is due later waits in the outbox.
    pub max_delay_ms: i64,
    /// The longest payload in bytes.
    pub max_payload_bytes: usize,
    /// How messages come back.
    pub delivery: DeliveryMode,
    /// Can a delivery be told to come again later?
    pub retries_later: bool,
}

/// How messages come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryMode {
    /// The queue calls us: see [`Queue::authenticate`].
    Push,
    /// We call the queue: see [`Queue::receive`].
    Pull,
}

/// A message to be brought back after a delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Publication {
    /// What to publish.
    pub message: Message,
    /// After how many milliseconds it is to come back; 0 or less is at once.
    pub delay_ms: i64,
}

/// The queue's own name for a message, which only its driver can read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Receipt(pub String);

/// A message that came back by a pull.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// By what to acknowledge it.
    pub receipt: Receipt,
    /// The payload as it was published, if it was ours.
    pub payload: Vec<u8>,
}

/// What a queue says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// What was found, one line each.
    pub found: Vec<String>,
    /// What does not fit this driver, one line each that says what to change.
    pub mismatches: Vec<String>,
}
