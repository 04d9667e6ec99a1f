//! Holds whose release fails: put off, and given up when their budget is used up. A hold that was
//! given up stays held, and its case in quarantine says why, until an operator has mended it.

use std::collections::BTreeMap;

use crate::domain::{
    Backoff, Deferral, DeferralCause, Job, Message, Reservation, ReservationId, Retry, RetryBudget,
    Timestamp, Tried,
};
use crate::store::{HOLD, Sighting, Store, StoreError, Wait};

/// How long a hold waits whose release failed.
const BACKOFF: Backoff = Backoff {
    first_ms: 250,
    most_ms: 60_000,
};

/// Puts off a hold whose release failed, or gives it up, in a transaction of its own. One that is
/// not due any more, or that somebody else has, stays as it is.
pub(super) async fn put_off(
    store: &dyn Store,
    job: Job,
    error: &StoreError,
    budget: RetryBudget,
    random: u64,
) -> Result<(), StoreError> {
    let id = job.reservation;
    let mut transaction = store.begin().await?;
    let locked = transaction
        .lock_reservations(&[id].into(), Wait::Skip)
        .await?;
    let now = transaction.now().await?;
    let hold = locked.rows.first().filter(|hold| hold.is_due(now));
    let retry = match hold {
        Some(hold) if !hold.is_parked() => after(hold, error, budget, now, random),
        Some(_) => Retry::GiveUp,
        None if locked.corrupt.contains_key(&id) => Retry::GiveUp,
        None => {
            transaction.rollback().await;
            return Ok(());
        }
    };
    match retry {
        Retry::At(attempt_at) => {
            let cause = DeferralCause::Failed;
            let deferral = Deferral { attempt_at, cause };
            let deferrals = BTreeMap::from([(id, deferral)]);
            transaction.defer(&deferrals, now).await?;
        }
        Retry::GiveUp => {
            tracing::error!(reservation = %id, %error, "the release of a hold is given up");
            let sightings = BTreeMap::from([(id, sighting(id, Some(job), error))]);
            transaction.park(&sightings, now).await?;
        }
    }
    transaction.commit().await
}

/// Takes up a hold again that was given up, and says whether it was.
pub(super) async fn resume(store: &dyn Store, id: ReservationId) -> Result<bool, StoreError> {
    let mut transaction = store.begin().await?;
    let mut locked = transaction
        .lock_reservations(&[id].into(), Wait::Briefly)
        .await?;
    if let Some(row) = locked.corrupt.remove(&id) {
        transaction.rollback().await;
        return Err(row.into());
    }
    if !locked.rows.iter().any(Reservation::is_parked) {
        transaction.rollback().await;
        return Ok(false);
    }
    let now = transaction.now().await?;
    transaction.unpark(&[id].into(), now).await?;
    transaction.commit().await?;
    Ok(true)
}

fn after(
    hold: &Reservation,
    error: &StoreError,
    budget: RetryBudget,
    now: Timestamp,
    random: u64,
) -> Retry {
    let tried = Tried {
        attempts: hold.waits.attempts + 1,
        deadline: hold.expires_at,
        retry_ms: hold.waits.retry_ms,
    };
    budget.after(error.setback(), tried, BACKOFF, now, random)
}

/// What the quarantine is told of a hold that is given up. Whose row cannot be understood is known
/// by its name alone.
pub(super) fn sighting(
    id: ReservationId,
    job: Option<Job>,
    reason: &impl std::fmt::Display,
) -> Sighting {
    let payload = match job {
        Some(job) => Message::first(job).payload(),
        None => serde_json::json!({ "reservation_id": id }).to_string(),
    };
    Sighting {
        source: HOLD.to_owned(),
        key: id.to_string(),
        payload: payload.into_bytes(),
        reason: reason.to_string(),
    }
}
