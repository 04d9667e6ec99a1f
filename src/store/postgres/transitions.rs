//! Reservations on their way from one state to the next, each under its guard.

use super::instant::Instant;
use super::transaction::PostgresTransaction;
use super::{array, lines};
use crate::domain::{Changes, Guard, LedgerEntry, Reservation, State, Text, Timestamp};
use crate::store::StoreError;

/// A change of a reservation that was there before.
pub(super) struct Transition<'c> {
    /// What the database still shows.
    pub(super) guard: Guard,
    /// The row as it shall be.
    pub(super) reservation: &'c Reservation,
}

pub(super) async fn write(
    transaction: &mut PostgresTransaction,
    changes: &Changes,
    now: Timestamp,
) -> Result<(), StoreError> {
    let transitions = changes.reservations.values().filter_map(|change| {
        let guard = change.guard?;
        let reservation = &change.reservation;
        Some(Transition { guard, reservation })
    });
    let (released, moved): (Vec<_>, Vec<_>) = transitions.partition(Transition::is_release);
    if !released.is_empty() {
        release(transaction, &released, now).await?;
    }
    if !moved.is_empty() {
        move_reservations(transaction, &moved, now).await?;
        lines::extend(transaction, &moved).await?;
    }
    lines::close(transaction, released.iter().chain(&moved)).await?;
    append_to_ledger(transaction, &changes.ledger).await
}

impl Transition<'_> {
    /// Is it a hold that expires? Nothing else of it changes then.
    fn is_release(&self) -> bool {
        self.guard.state == State::Held && self.reservation.state == State::Expired
    }
}

/// What [`MOVE_RESERVATIONS`] does, for holds that expire. Storms are made of them, and they have
/// nothing to say but their names. The state is a parameter, because beside a literal the planner
/// would walk along the index of what is held.
pub(super) const RELEASE: &str = "
    UPDATE reservations AS r
    SET state = 'expired',
        updated_at = $1,
        closed_at = $1
    FROM unnest($2::uuid[], $3::timestamptz[]) AS u (id, expires_at)
        CROSS JOIN LATERAL (
            SELECT ctid
            FROM reservations
            WHERE id = u.id
            OFFSET 0
        ) AS found
    WHERE r.ctid = found.ctid
        AND r.state = $4
        AND r.expires_at = u.expires_at
        AND r.expires_at <= $1";

async fn release(
    transaction: &mut PostgresTransaction,
    released: &[Transition<'_>],
    now: Timestamp,
) -> Result<(), StoreError> {
    let query = sqlx::query(RELEASE)
        .bind(Instant(now))
        .bind(array(released, |it| it.reservation.id.as_uuid()))
        .bind(array(released, |it| Instant(it.guard.expires_at)))
        .bind(State::Held.as_str());
    transaction
        .change("the guarded release", released.len(), query)
        .await
}

/// The guard stands here although the rows are locked and were read: a hold is released when it
/// is due (and one that was sold anew in the same batch was released first), and otherwise
/// touched only when it is not.
pub(super) const MOVE_RESERVATIONS: &str = "
    UPDATE reservations AS r
    SET state = u.state,
        expires_at = u.expires_at,
        attempt_at = u.attempt_at,
        updated_at = u.updated_at,
        closed_at = u.closed_at,
        extensions = u.extensions,
        payment_reference = u.payment_reference,
        reacquired = u.reacquired
    FROM unnest(
            $2::uuid[],
            $3::text[],
            $4::timestamptz[],
            $5::text[],
            $6::timestamptz[],
            $7::timestamptz[],
            $8::timestamptz[],
            $9::timestamptz[],
            $10::bigint[],
            $11::text[],
            $12::boolean[]
        ) AS u (
            id,
            was_state,
            was_expires_at,
            state,
            expires_at,
            attempt_at,
            updated_at,
            closed_at,
            extensions,
            payment_reference,
            reacquired
        )
        CROSS JOIN LATERAL (
            SELECT ctid
            FROM reservations
            WHERE id = u.id
            OFFSET 0
        ) AS found
    WHERE r.ctid = found.ctid
        AND r.state = u.was_state
        AND r.expires_at = u.was_expires_at
        AND (
            r.state <> 'held'
            OR (r.expires_at <= $1) = (u.state = 'expired' OR u.reacquired)
        )";

async fn move_reservations(
    transaction: &mut PostgresTransaction,
    transitions: &[Transition<'_>],
    now: Timestamp,
) -> Result<(), StoreError> {
    let guards = || transitions.iter().map(|transition| transition.guard);
    let rows = || transitions.iter().map(|transition| transition.reservation);
    let query = sqlx::query(MOVE_RESERVATIONS)
        .bind(Instant(now))
        .bind(array(rows(), |row| row.id.as_uuid()))
        .bind(array(guards(), |guard| guard.state.as_str()))
        .bind(array(guards(), |guard| Instant(guard.expires_at)))
        .bind(array(rows(), |row| row.state.as_str()))
        .bind(array(rows(), |row| Instant(row.expires_at)))
        .bind(array(rows(), |row| Instant(row.attempt_at)))
        .bind(array(rows(), |row| Instant(row.updated_at)))
        .bind(array(rows(), |row| row.closed_at.map(Instant)))
        .bind(array(rows(), |row| row.extensions))
        .bind(array(rows(), |row| {
            row.payment_reference.as_ref().map(Text::as_str)
        }))
        .bind(array(rows(), |row| row.reacquired));
    transaction
        .change(
            "the guarded update of reservations",
            transitions.len(),
            query,
        )
        .await
}

pub(super) const APPEND_TO_LEDGER: &str = "
    INSERT INTO ledger (job_id, reservation_id, outcome, via, at)
    SELECT u.job_id, u.reservation_id, u.outcome, u.via, u.at
    FROM unnest($1::text[], $2::uuid[], $3::text[], $4::text[], $5::timestamptz[])
        AS u (job_id, reservation_id, outcome, via, at)";

async fn append_to_ledger(
    transaction: &mut PostgresTransaction,
    entries: &[LedgerEntry],
) -> Result<(), StoreError> {
    if entries.is_empty() {
        return Ok(());
    }
    // A unique key is a lock, so these are sorted like all others.
    let mut entries: Vec<(String, &LedgerEntry)> = entries
        .iter()
        .map(|entry| (entry.job.id(), entry))
        .collect();
    entries.sort_by(|(one, _), (other, _)| one.cmp(other));
    let rows = || entries.iter().map(|(_, entry)| *entry);
    let query = sqlx::query(APPEND_TO_LEDGER)
        .bind(array(entries.iter(), |(id, _)| id.as_str()))
        .bind(array(rows(), |entry| entry.job.reservation.as_uuid()))
        .bind(array(rows(), |entry| entry.outcome))
        .bind(array(rows(), |entry| entry.via.as_str()))
        .bind(array(rows(), |entry| Instant(entry.at)));
    transaction
        .change("the insert into the ledger", entries.len(), query)
        .await
}
