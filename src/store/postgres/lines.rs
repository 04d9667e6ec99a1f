//! The open lines: a row for each row of stock that a reservation holds, as long as it holds it.
//!
//! Whoever changes them has locked their reservation, so a row that was found stays where it is.

use std::collections::{BTreeMap, BTreeSet};

use sqlx::query::Query;

use super::instant::Instant;
use super::transaction::PostgresTransaction;
use super::transitions::Transition;
use super::{array, columns, row};
use crate::domain::{OpenLine, Reservation, State, Timestamp};
use crate::store::StoreError;

/// The open lines of a reservation as long as its deadline in the database is `expires_at`, with
/// the units of each.
fn open_lines(
    reservation: &Reservation,
    expires_at: Timestamp,
) -> impl Iterator<Item = (OpenLine, i64)> + use<> {
    let reservation_id = reservation.id;
    reservation.units().into_iter().map(move |(key, units)| {
        let line = OpenLine {
            key,
            expires_at,
            reservation: reservation_id,
        };
        (line, units)
    })
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
    let lines: Vec<_> = held
        .flat_map(|held| open_lines(held, held.expires_at))
        .collect();
    open(transaction, &lines).await
}

async fn open(
    transaction: &mut PostgresTransaction,
    lines: &[(OpenLine, i64)],
) -> Result<(), StoreError> {
    if lines.is_empty() {
        return Ok(());
    }
    let query = named(INSERT_LINES, lines.iter().map(|(line, _)| line))
        .bind(array(lines, |(_, units)| *units));
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
    let left = transitions.filter(|Transition { guard, reservation }| {
        guard.state == State::Held && reservation.state != State::Held
    });
    let lines: Vec<_> = left
        .flat_map(|left| open_lines(left.reservation, left.guard.expires_at))
        .collect();
    take_away(transaction, &lines).await
}

async fn take_away(
    transaction: &mut PostgresTransaction,
    lines: &[(OpenLine, i64)],
) -> Result<(), StoreError> {
    if lines.is_empty() {
        return Ok(());
    }
    let query = named(CLOSE_LINES, lines.iter().map(|(line, _)| line));
    transaction
        .change("the delete of open lines", lines.len(), query)
        .await
}

/// What is parked is found by its attempt, and is little. Lines that cannot be read count as none.
pub(super) const CLAIMED_UNITS: &str = r#"
    SELECT
        (
            SELECT coalesce(sum(l.quantity), 0)
            FROM open_lines AS l
            WHERE l.location = $1 AND l.sku = $2
        )::bigint
        + (
            SELECT coalesce(sum(number::numeric), 0)
            FROM reservations AS r
            CROSS JOIN LATERAL jsonb_path_query(r.lines, '$[*]') AS line
            CROSS JOIN LATERAL
                jsonb_path_query(line, '$.quantity ? (@.type() == "number")') AS number
            WHERE r.state = 'held'
                AND r.attempt_at = $3
                AND line ->> 'location' = $1
                AND line ->> 'sku' = $2
        )::bigint AS units"#;

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
    let moved = transitions
        .iter()
        .filter(|Transition { guard, reservation }| {
            reservation.state == State::Held && reservation.expires_at != guard.expires_at
        });
    let lines: Vec<_> = moved
        .flat_map(|moved| {
            let moved_to = moved.reservation.expires_at;
            let lines = open_lines(moved.reservation, moved.guard.expires_at);
            lines.map(move |(line, _)| (line, moved_to))
        })
        .collect();
    if lines.is_empty() {
        return Ok(());
    }
    let query = named(MOVE_LINES, lines.iter().map(|(line, _)| line))
        .bind(array(&lines, |(_, moved_to)| Instant(*moved_to)));
    transaction
        .change("the update of open lines", lines.len(), query)
        .await
}

pub(super) const FIND_LINES: &str = "
    SELECT l.location, l.sku, l.expires_at, l.reservation_id, l.quantity
    FROM unnest($1::text[], $2::text[], $3::timestamptz[], $4::uuid[])
            AS u (location, sku, expires_at, reservation_id)
        CROSS JOIN LATERAL (
            SELECT *
            FROM open_lines
            WHERE location = u.location
                AND sku = u.sku
                AND expires_at = u.expires_at
                AND reservation_id = u.reservation_id
            OFFSET 0
        ) AS l";

/// The units of those of these lines that exist.
pub(super) async fn find(
    transaction: &mut PostgresTransaction,
    lines: &BTreeSet<OpenLine>,
) -> Result<BTreeMap<OpenLine, i64>, StoreError> {
    let rows = transaction.fetch(named(FIND_LINES, lines)).await?;
    rows.iter()
        .map(|found| Ok((row::open_line(found)?, row::value(found, "quantity")?)))
        .collect()
}

/// Takes lines away, and puts others in.
pub(super) async fn replace(
    transaction: &mut PostgresTransaction,
    closed: &BTreeMap<OpenLine, i64>,
    opened: &BTreeMap<OpenLine, i64>,
) -> Result<(), StoreError> {
    let rows = |lines: &BTreeMap<OpenLine, i64>| {
        let rows = lines.iter().map(|(line, units)| (line.clone(), *units));
        rows.collect::<Vec<_>>()
    };
    take_away(transaction, &rows(closed)).await?;
    open(transaction, &rows(opened)).await
}

/// A statement whose first four parameters are the names of open lines.
fn named<'l>(
    sql: &'static str,
    lines: impl IntoIterator<Item = &'l OpenLine>,
) -> Query<'l, sqlx::Postgres, sqlx::postgres::PgArguments> {
    let lines: Vec<&OpenLine> = lines.into_iter().collect();
    let (locations, skus) = columns(lines.iter().map(|line| &line.key));
    sqlx::query(sql)
        .bind(locations)
        .bind(skus)
        .bind(array(&lines, |line| Instant(line.expires_at)))
        .bind(array(&lines, |line| line.reservation.as_uuid()))
}
