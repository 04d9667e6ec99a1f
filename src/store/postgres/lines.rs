//! The open lines: a row for each row of stock that a reservation holds, as long as it holds it.
//!
//! Whoever changes them has locked their reservation, so a row that was found stays where it is.

use super::instant::Instant;
use super::transaction::PostgresTransaction;
use super::transitions::Transition;
use super::{array, columns};
use crate::domain::{Reservation, State, StockKey, Timestamp};
use crate::store::StoreError;

/// The units that a reservation holds of one row of stock.
struct OpenLine<'c> {
    key: StockKey,
    units: i64,
    /// The deadline by which the row is found.
    expires_at: Timestamp,
    reservation: &'c Reservation,
}

/// The open lines of reservations, each of which has this deadline in the database.
fn open_lines<'c>(
    reservations: impl Iterator<Item = (&'c Reservation, Timestamp)>,
) -> Vec<OpenLine<'c>> {
    reservations
        .flat_map(|(reservation, expires_at)| {
            let units = reservation.units().into_iter();
            units.map(move |(key, units)| OpenLine {
                key,
                units,
                expires_at,
                reservation,
            })
        })
        .collect()
}

pub(super) const INSERT_LINES: &str = "
    INSERT INTO open_lines (location, sku, expires_at, reservation_id, quantity)
    SELECT u.location, u.sku, u.expires_at, u.reservation_id, u.quantity
    FROM unnest($1::text[], $2::text[], $3::timestamptz[], $4::uuid[], $5::bigint[])
        AS u (location, sku, expires_at, reservation_id, quantity)";

/// Inserts the open lines of the fresh reservations that are still held at the end of the batch.
pub(super) async fn insert(
    transaction: &mut PostgresTransaction,
    fresh: &[&Reservation],
) -> Result<(), StoreError> {
    let held = fresh.iter().filter(|fresh| fresh.state == State::Held);
    let lines = open_lines(held.map(|held| (*held, held.expires_at)));
    if lines.is_empty() {
        return Ok(());
    }
    let (locations, skus) = columns(lines.iter().map(|line| &line.key));
    let query = sqlx::query(INSERT_LINES)
        .bind(locations)
        .bind(skus)
        .bind(array(lines.iter(), |line| Instant(line.expires_at)))
        .bind(array(lines.iter(), |line| line.reservation.id.as_uuid()))
        .bind(array(lines.iter(), |line| line.units));
    transaction
        .change("the insert of open lines", lines.len(), query)
        .await
}

pub(super) const CLOSE_LINES: &str = "
    DELETE FROM open_lines AS l
    USING unnest($1::text[], $2::text[], $3::timestamptz[], $4::uuid[])
            AS u (location, sku, expires_at, reservation_id)
        CROSS JOIN LATERAL (
            SELECT ctid
            FROM open_lines
            WHERE location = u.location
                AND sku = u.sku
                AND expires_at = u.expires_at
                AND reservation_id = u.reservation_id
            OFFSET 0
        ) AS found
    WHERE l.ctid = found.ctid";

/// Takes the open lines of those away that left `held`.
pub(super) async fn close<'c>(
    transaction: &mut PostgresTransaction,
    transitions: impl Iterator<Item = &'c Transition<'c>>,
) -> Result<(), StoreError> {
    let lines = open_lines(transitions.filter_map(|transition| {
        let Transition { guard, reservation } = transition;
        (guard.state == State::Held && reservation.state != State::Held)
            .then_some((*reservation, guard.expires_at))
    }));
    if lines.is_empty() {
        return Ok(());
    }
    let (locations, skus) = columns(lines.iter().map(|line| &line.key));
    let query = sqlx::query(CLOSE_LINES)
        .bind(locations)
        .bind(skus)
        .bind(array(lines.iter(), |line| Instant(line.expires_at)))
        .bind(array(lines.iter(), |line| line.reservation.id.as_uuid()));
    transaction
        .change("the delete of open lines", lines.len(), query)
        .await
}

pub(super) const MOVE_LINES: &str = "
    UPDATE open_lines AS l
    SET expires_at = u.moved_to
    FROM unnest($1::text[], $2::text[], $3::timestamptz[], $4::uuid[], $5::timestamptz[])
            AS u (location, sku, expires_at, reservation_id, moved_to)
        CROSS JOIN LATERAL (
            SELECT ctid
            FROM open_lines
            WHERE location = u.location
                AND sku = u.sku
                AND expires_at = u.expires_at
                AND reservation_id = u.reservation_id
            OFFSET 0
        ) AS found
    WHERE l.ctid = found.ctid";

/// Moves the open lines of those whose deadline moved.
pub(super) async fn extend(
    transaction: &mut PostgresTransaction,
    transitions: &[Transition<'_>],
) -> Result<(), StoreError> {
    let lines = open_lines(transitions.iter().filter_map(|transition| {
        let Transition { guard, reservation } = transition;
        (reservation.state == State::Held && reservation.expires_at != guard.expires_at)
            .then_some((*reservation, guard.expires_at))
    }));
    if lines.is_empty() {
        return Ok(());
    }
    let (locations, skus) = columns(lines.iter().map(|line| &line.key));
    let query = sqlx::query(MOVE_LINES)
        .bind(locations)
        .bind(skus)
        .bind(array(lines.iter(), |line| Instant(line.expires_at)))
        .bind(array(lines.iter(), |line| line.reservation.id.as_uuid()))
        .bind(array(lines.iter(), |line| {
            Instant(line.reservation.expires_at)
        }));
    transaction
        .change("the update of open lines", lines.len(), query)
        .await
}
