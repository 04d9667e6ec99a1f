//! The port to retention: deleting what nobody needs any more.
//!
//! Everything here is a transaction of its own, bounded by `limit` rows that it looks at. Ages are
//! judged by the database's clock. A batch waits for no lock: it takes rows that nobody else has,
//! and leaves the others for the next time. Of several that delete from the same table at the same
//! time, one does it, and the others find nothing to do.
//!
//! Reservations, their jobs and their messages are walked through in the order of their names,
//! which begin with the instant of creation. So a walk ends where nothing can be old enough, and
//! what it has to keep it sees once, not with every batch.

use async_trait::async_trait;

use super::StoreError;
use crate::domain::{JobId, Message, ReservationId, Timestamp};

/// Deletes what is old, batch by batch. Ages are in milliseconds.
#[async_trait]
pub trait Retention: Send + Sync {
    /// Deletes answers that were given `age_ms` ago or earlier, the oldest first.
    async fn delete_answers(&self, age_ms: i64, limit: usize) -> Result<usize, StoreError>;

    /// Looks at the next messages behind `after`, and deletes those whose hold has ended and
    /// which were published or parked and were due `age_ms` ago, or which still wait although
    /// their hold ended `age_ms` ago. What waits for a hold that lives is never deleted, nor
    /// what was parked and is still an open case in quarantine.
    async fn delete_messages(
        &self,
        age_ms: i64,
        limit: usize,
        after: Option<Message>,
    ) -> Result<Step<Message>, StoreError>;

    /// Looks at the next jobs in the ledger behind `after`, and deletes those that were done
    /// `age_ms` ago or earlier.
    async fn delete_ledger(
        &self,
        age_ms: i64,
        limit: usize,
        after: Option<JobId>,
    ) -> Result<Step<JobId>, StoreError>;

    /// Looks at the next reservations behind `after`, and deletes those that are closed and last
    /// changed `age_ms` ago or earlier, unless the ledger still has a job of theirs or an open
    /// case in quarantine names them.
    async fn delete_reservations(
        &self,
        age_ms: i64,
        limit: usize,
        after: Option<ReservationId>,
    ) -> Result<Step<ReservationId>, StoreError>;

    /// Deletes from the beginning of the log events that happened `age_ms` ago or earlier. It
    /// stops at the first one that is younger, so that there is no gap behind the first number,
    /// and at the first refused payment whose reservation exists, because a payment is refused
    /// once for each.
    async fn delete_events(&self, age_ms: i64, limit: usize) -> Result<usize, StoreError>;

    /// How far back what was deleted reaches.
    async fn horizons(&self) -> Result<Horizons, StoreError>;
}

/// What one step of a walk did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step<Name> {
    /// How many rows were deleted.
    pub deleted: usize,
    /// Where to go on; `None` at the end.
    pub after: Option<Name>,
}

impl<Name> Step<Name> {
    /// The step of whoever finds that another one is at it.
    pub(super) const NONE: Self = Self {
        deleted: 0,
        after: None,
    };
}

/// How far back what was deleted reaches. What is younger than a horizon is all there; what is not
/// may be gone. `None` if nothing was ever deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Horizons {
    /// Of the ledger, by when a job was done.
    pub ledger: Option<Timestamp>,
    /// Of reservations, by when one last changed.
    pub reservations: Option<Timestamp>,
    /// Of events, by when one happened.
    pub events: Option<Timestamp>,
    /// The number of the last event that was deleted, 0 if none was.
    pub last_deleted_event: i64,
}

/// The instant `age_ms` before `now`.
pub(super) fn cutoff(now: Timestamp, age_ms: i64) -> Timestamp {
    now.saturating_add_millis(age_ms.max(0).saturating_neg())
}

/// No reservation whose name does not sort before this one was made before `instant`.
pub(super) fn first_name_of(instant: Timestamp) -> ReservationId {
    ReservationId::new(instant, [0; 10])
}
