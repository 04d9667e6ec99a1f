//! Looks for counters that are not what held reservations claim.

use futures_util::TryStreamExt as _;
use sqlx::postgres::PgRow;

use super::audit::{BEGIN, claimed};
use super::error::store_error;
use super::row::{self, reservation_columns};
use super::{Postgres, rows};
use crate::store::{CorruptRow, StoreError, Suspects};

const STOCK: &str = concat!(
    claimed!(),
    ",
    totals AS (
        SELECT c.location, c.sku, sum(c.units) AS units
        FROM claimed AS c
        GROUP BY c.location, c.sku
    )
    SELECT coalesce(s.location, c.location) AS location, coalesce(s.sku, c.sku) AS sku
    FROM stock AS s
    FULL JOIN totals AS c ON c.location = s.location AND c.sku = s.sku
    WHERE (
            coalesce(s.held, 0) <> coalesce(c.units, 0)
            OR s.held NOT BETWEEN 0 AND s.on_hand
        )
        AND coalesce(s.location, c.location) IS NOT NULL
        AND coalesce(s.sku, c.sku) IS NOT NULL
    LIMIT $1"
);

const LINES: &str = concat!(
    claimed!(),
    "
    SELECT
        l.location,
        l.sku,
        l.expires_at,
        coalesce(c.id, l.reservation_id) AS reservation_id,
        l.quantity IS NOT NULL AS open
    FROM claimed AS c
    FULL JOIN open_lines AS l
        ON l.reservation_id = c.id
        AND l.location = c.location
        AND l.sku = c.sku
        AND l.expires_at = c.expires_at
    WHERE l.quantity IS DISTINCT FROM CASE WHEN NOT c.parked THEN c.units END
    ORDER BY coalesce(c.id, l.reservation_id)
    LIMIT $1"
);

const HELD: &str = concat!(
    "SELECT ",
    reservation_columns!(),
    "
    FROM reservations AS r
    WHERE r.state = 'held'"
);

/// For the test that looks whether the database takes them.
#[cfg(test)]
pub(super) const LOOKS: [(&str, &str); 3] = [("stock", STOCK), ("lines", LINES), ("held", HELD)];

/// What one snapshot shows, at most `limit` rows of each kind.
pub(super) async fn find(store: &Postgres, limit: usize) -> Result<Suspects, StoreError> {
    let mut snapshot = store.pool.begin_with(BEGIN).await.map_err(store_error)?;
    let mut found = Suspects::default();
    let mut held = sqlx::query(HELD).fetch(&mut *snapshot);
    while let Some(row) = held.try_next().await.map_err(store_error)? {
        if found.unreadable.len() == limit {
            break;
        }
        let id = row::reservation_id(&row, "reservations", "id")?;
        found.unreadable.extend(row::reservation(&row, id).err());
    }
    drop(held);
    let lines = sqlx::query(LINES)
        .bind(rows(limit))
        .fetch_all(&mut *snapshot)
        .await
        .map_err(store_error)?;
    for row in &lines {
        if let Err(corrupt) = take_line(row, &mut found) {
            found.unreadable.push(corrupt);
        }
    }
    let stock = sqlx::query(STOCK)
        .bind(rows(limit))
        .fetch_all(&mut *snapshot)
        .await
        .map_err(store_error)?;
    for row in &stock {
        match row::stock_key(row, "stock") {
            Ok(key) => {
                found.stock.insert(key);
            }
            Err(corrupt) => found.unreadable.push(corrupt),
        }
    }
    snapshot.rollback().await.map_err(store_error)?;
    found.more = [lines.len(), stock.len(), found.unreadable.len()]
        .iter()
        .any(|rows| *rows >= limit);
    Ok(found)
}

fn take_line(row: &PgRow, found: &mut Suspects) -> Result<(), CorruptRow> {
    let id = row::reservation_id(row, "open_lines", "reservation_id")?;
    let lines = found.lines.entry(id).or_default();
    if row::value(row, "open")? {
        lines.insert(row::open_line(row)?);
    }
    Ok(())
}
