//! Reads without a lane: each is one statement, and so one snapshot.

use std::collections::BTreeMap;

use serde_json::json;
use sqlx::sqlite::{SqlitePool, SqliteRow};
use sqlx::{QueryBuilder, Sqlite};

use super::error::store_error;
use super::row::{self, select_reservations};
use super::write::json_array;
use crate::domain::{Reservation, ReservationId, State, Stock, StockKey, Timestamp};
use crate::store::{CorruptRow, RecordedEvent, ReservationFilter, StockFilter, StoreError};

pub(super) async fn next_attempt(
    readers: &SqlitePool,
    from: Timestamp,
) -> Result<Option<Timestamp>, StoreError> {
    let millis: Option<i64> = sqlx::query_scalar(
        "
        SELECT min(attempt_at)
        FROM reservations
        WHERE state = 'held'
          AND attempt_at >= ?1
        ",
    )
    .bind(from.as_millis())
    .fetch_one(readers)
    .await
    .map_err(store_error)?;
    let in_range = |millis| {
        Timestamp::from_millis(millis).ok_or_else(|| CorruptRow {
            table: "reservations",
            column: "attempt_at",
            row: "the earliest that is held".to_owned(),
            detail: "lies outside the years 1970 to 9999".to_owned(),
        })
    };
    Ok(millis.map(in_range).transpose()?)
}

pub(super) async fn stock(
    readers: &SqlitePool,
    wanted: &BTreeMap<StockKey, i64>,
    now: Timestamp,
) -> Result<BTreeMap<StockKey, Stock>, StoreError> {
    let wanted =
        json_array(wanted.iter().map(
            |(key, units)| json!({ "location": key.location, "sku": key.sku, "units": units }),
        ))?;
    let rows = sqlx::query(
        "
        WITH wanted AS (
            SELECT value ->> 'location' AS location,
                   value ->> 'sku' AS sku,
                   value ->> 'units' AS units
            FROM json_each(?1)
        )
        SELECT stock.location,
               stock.sku,
               stock.on_hand,
               stock.held,
               stock.updated_at,
               CASE
                   WHEN stock.on_hand - stock.held >= wanted.units THEN 0
                   ELSE (
                       SELECT coalesce(sum(open_lines.quantity), 0)
                       FROM open_lines
                       WHERE open_lines.location = stock.location
                         AND open_lines.sku = stock.sku
                         AND open_lines.expires_at <= ?2
                   )
               END AS due
        FROM wanted
        JOIN stock ON stock.location = wanted.location AND stock.sku = wanted.sku
        ",
    )
    .bind(wanted)
    .bind(now.as_millis())
    .fetch_all(readers)
    .await
    .map_err(store_error)?;
    let keyed = |row: &SqliteRow| row::stock(row).map(|stock| (stock.key.clone(), stock));
    Ok(rows.iter().map(keyed).collect::<Result<_, _>>()?)
}

pub(super) async fn list_stock(
    readers: &SqlitePool,
    filter: &StockFilter,
    after: Option<&StockKey>,
    limit: usize,
    now: Timestamp,
) -> Result<Vec<Stock>, StoreError> {
    let mut query = QueryBuilder::<Sqlite>::new(
        "
        SELECT location,
               sku,
               on_hand,
               held,
               updated_at,
               (
                   SELECT coalesce(sum(open_lines.quantity), 0)
                   FROM open_lines
                   WHERE open_lines.location = stock.location
                     AND open_lines.sku = stock.sku
                     AND open_lines.expires_at <=
        ",
    );
    query.push_bind(now.as_millis());
    query.push(") AS due FROM stock WHERE TRUE");
    if let Some(location) = &filter.location {
        query.push(" AND location = ").push_bind(location.as_str());
    }
    if !filter.skus.is_empty() {
        query.push(" AND sku IN (SELECT value FROM json_each(");
        query.push_bind(json_array(&filter.skus)?).push("))");
    }
    if let Some(after) = after {
        query.push(" AND (location, sku) > (");
        query.push_bind(after.location.as_str()).push(", ");
        query.push_bind(after.sku.as_str()).push(")");
    }
    query.push(" ORDER BY location, sku LIMIT ");
    query.push_bind(at_most(limit));
    let rows = query
        .build()
        .fetch_all(readers)
        .await
        .map_err(store_error)?;
    Ok(rows.iter().map(row::stock).collect::<Result<_, _>>()?)
}

pub(super) async fn reservation(
    readers: &SqlitePool,
    id: ReservationId,
) -> Result<Option<Reservation>, StoreError> {
    let row = sqlx::query(select_reservations!(
        "
        FROM reservations
        WHERE id = ?1
        "
    ))
    .bind(id.as_uuid().to_string())
    .fetch_optional(readers)
    .await
    .map_err(store_error)?;
    Ok(row.as_ref().map(row::reservation).transpose()?)
}

pub(super) async fn list_reservations(
    readers: &SqlitePool,
    filter: &ReservationFilter,
    before: Option<ReservationId>,
    limit: usize,
    now: Timestamp,
) -> Result<Vec<Reservation>, StoreError> {
    let mut query =
        QueryBuilder::<Sqlite>::new(select_reservations!("FROM reservations WHERE TRUE"));
    // The sign in front of `state` keeps SQLite from the index of attempts: the page is wanted in
    // the order of the ids, and would have to be sorted out of everything that is held.
    match filter.state {
        None => {}
        Some(State::Held) => {
            query.push(" AND +state = 'held' AND expires_at > ");
            query.push_bind(now.as_millis());
        }
        Some(State::Expired) => {
            query.push(" AND (+state = 'expired' OR +state = 'held' AND expires_at <= ");
            query.push_bind(now.as_millis()).push(")");
        }
        Some(state @ (State::Paid | State::Cancelled)) => {
            query.push(" AND +state = ").push_bind(state.as_str());
        }
    }
    if let Some(customer_id) = &filter.customer_id {
        query.push(" AND customer_id = ");
        query.push_bind(customer_id.as_str());
    }
    if let Some(reference) = &filter.reference {
        query.push(" AND reference = ");
        query.push_bind(reference.as_str());
    }
    if let Some(before) = before {
        query.push(" AND id < ");
        query.push_bind(before.as_uuid().to_string());
    }
    query.push(" ORDER BY id DESC LIMIT ");
    query.push_bind(at_most(limit));
    let rows = query
        .build()
        .fetch_all(readers)
        .await
        .map_err(store_error)?;
    Ok(rows
        .iter()
        .map(row::reservation)
        .collect::<Result<_, _>>()?)
}

pub(super) async fn events(
    readers: &SqlitePool,
    after: i64,
    limit: usize,
) -> Result<Vec<RecordedEvent>, StoreError> {
    let rows = sqlx::query(
        "
        SELECT seq, reservation_id, kind, at, data
        FROM events
        WHERE seq > ?1
        ORDER BY seq
        LIMIT ?2
        ",
    )
    .bind(after)
    .bind(at_most(limit))
    .fetch_all(readers)
    .await
    .map_err(store_error)?;
    Ok(rows.iter().map(row::event).collect::<Result<_, _>>()?)
}

/// A limit as SQLite counts it.
pub(super) fn at_most(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}
