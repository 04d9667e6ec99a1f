//! The port to the outbox: expiry jobs on their way to a queue.
//!
//! [`super::Transaction::write_rest`] puts a job in, with the change that it belongs to. Everything
//! here is a transaction of its own, set by set, and bounded by what it is handed. What a relay has
//! claimed is its own until the lease ends; whoever comes later with an older attempt changes
//! nothing.

use async_trait::async_trait;

use super::StoreError;
use crate::domain::{Message, QueueRule, ReservationId, Timestamp};

/// The jobs that wait for their publication, and those that were published.
#[async_trait]
pub trait Outbox: Send + Sync {
    /// Takes messages that are to be published now and that no other relay has, the earliest
    /// attempt first, at most `limit`, for `lease_ms` milliseconds. Those whose hold has ended or
    /// has another deadline by now are taken out of the outbox instead.
    async fn claim(&self, limit: usize, lease_ms: i64) -> Result<Claimed, StoreError>;

    /// Writes down that the queue called `queue` accepted these, and says how many of them were
    /// still the caller's.
    async fn mark_published(
        &self,
        published: &[Published],
        queue: &str,
    ) -> Result<usize, StoreError>;

    /// Gives messages back, to be tried later. Says how many were still the caller's.
    async fn retry_later(&self, postponed: &[Postponed]) -> Result<usize, StoreError>;

    /// Gives messages up: they go into quarantine, and are not tried again. Their holds still
    /// expire, by the sweep. Says how many were still the caller's.
    async fn park(&self, parked: &[Parked]) -> Result<usize, StoreError>;

    /// Looks at the next `limit` held reservations behind `after`, and puts another copy of the
    /// job into the outbox for each whose present deadline has no message that waits, was
    /// published to `queue`, or was parked.
    async fn adopt(
        &self,
        queue: &str,
        rule: QueueRule,
        limit: usize,
        after: Option<AdoptionCursor>,
    ) -> Result<Adopted, StoreError>;

    /// When there is next something to claim, and the database's now.
    async fn next_publication(&self) -> Result<NextPublication, StoreError>;

    /// What waits, looking at the first `limit` messages only.
    async fn depth(&self, limit: usize) -> Result<OutboxDepth, StoreError>;
}

/// What a relay has claimed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// The database's now, from which delays are computed.
    pub now: Timestamp,
    /// The messages, the earliest attempt first.
    pub messages: Vec<ClaimedMessage>,
    /// How many were taken out, because nothing is left to be done by them. They count for the
    /// limit.
    pub skipped: usize,
}

/// A message that a relay has until its lease ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimedMessage {
    /// What to publish.
    pub message: Message,
    /// How often it was claimed, this time included. By this number its relay is known.
    pub attempt: u32,
}

/// A message that a queue accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// Which one.
    pub message: Message,
    /// The attempt under which it was claimed.
    pub attempt: u32,
    /// The name that the queue gave it.
    pub receipt: Option<String>,
}

/// A message that is to be tried later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Postponed {
    /// Which one.
    pub message: Message,
    /// The attempt under which it was claimed.
    pub attempt: u32,
    /// When to try again.
    pub at: Timestamp,
    /// Why it failed.
    pub error: String,
}

/// A message that is given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parked {
    /// Which one.
    pub message: Message,
    /// The attempt under which it was claimed.
    pub attempt: u32,
    /// Why.
    pub reason: String,
}

/// How far a walk over the held reservations has come. It goes by the next attempt, for which there
/// is an index of what is held; names alone would lead through all reservations that ever were.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AdoptionCursor {
    /// The `attempt_at` of the last one.
    pub attempt_at: Timestamp,
    /// Its name.
    pub id: ReservationId,
}

/// What one step of a walk over the held reservations did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adopted {
    /// How many jobs were put into the outbox.
    pub adopted: usize,
    /// Where to go on; `None` at the end.
    pub after: Option<AdoptionCursor>,
}

/// The answer to [`Outbox::next_publication`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextPublication {
    /// The database's now.
    pub now: Timestamp,
    /// When the first message is to be tried, if any waits.
    pub publish_after: Option<Timestamp>,
}

/// What waits in the outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutboxDepth {
    /// The database's now.
    pub now: Timestamp,
    /// Messages that are neither published nor parked, counted up to the limit.
    pub waiting: usize,
    /// Since when the longest-waiting of these could have been published, if any could.
    pub oldest: Option<Timestamp>,
}
