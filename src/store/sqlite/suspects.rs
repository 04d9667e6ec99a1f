//! Looks for counters that are not what held reservations claim.

use futures_util::TryStreamExt as _;
use sqlx::Row;
use sqlx::sqlite::{SqlitePool, SqliteRow};

use super::audit::held_lines;
use super::error::store_error;
use super::read::at_most;
use super::row::{self, select_reservations};
use crate::store::{CorruptRow, StoreError, Suspects};

const STOCK: &str = concat!(
    "
    WITH claimed AS (
        SELECT line.value ->> 'location' AS location,
               line.value ->> 'sku' AS sku,
               sum(line.value ->> 'quantity') AS units",
    held_lines!(),
    "
        GROUP BY 1, 2
    )
    SELECT location, sku
    FROM claimed
    FULL JOIN stock USING (location, sku)
    WHERE (
              coalesce(claimed.units, 0) <> coalesce(stock.held, 0)
              OR NOT stock.held BETWEEN 0 AND stock.on_hand
          )
      AND location IS NOT NULL
      AND sku IS NOT NULL
    LIMIT ?1
"
);

const LINES: &str = concat!(
    "
    WITH claimed AS (
        SELECT line.value ->> 'location' AS location,
               line.value ->> 'sku' AS sku,
               reservations.expires_at AS expires_at,
               reservations.id AS reservation_id,
               sum(line.value ->> 'quantity') AS units",
    held_lines!(),
    "
          AND reservations.attempt_at < 253402300799999
        GROUP BY reservations.id, 1, 2
    )
    SELECT location, sku, expires_at, reservation_id, open_lines.quantity IS NOT NULL AS open
    FROM claimed
    FULL JOIN open_lines USING (location, sku, expires_at, reservation_id)
    WHERE claimed.units IS NOT open_lines.quantity
    ORDER BY reservation_id
    LIMIT ?1
"
);

const HELD: &str = select_reservations!(
    "
    FROM reservations
    WHERE state = 'held'
"
);

/// For the test that looks at their plans.
#[cfg(test)]
pub(super) const LOOKS: [(&str, &str); 2] = [("stock", STOCK), ("lines", LINES)];

/// What one snapshot shows, at most `limit` rows of each kind.
pub(super) async fn find(readers: &SqlitePool, limit: usize) -> Result<Suspects, StoreError> {
    let mut snapshot = readers.begin().await.map_err(store_error)?;
    let mut found = Suspects::default();
    let mut held = sqlx::query(HELD).fetch(&mut *snapshot);
    while let Some(row) = held.try_next().await.map_err(store_error)? {
        if found.unreadable.len() == limit {
            break;
        }
        found.unreadable.extend(row::reservation(&row).err());
    }
    drop(held);
    let lines = sqlx::query(LINES)
        .bind(at_most(limit))
        .fetch_all(&mut *snapshot)
        .await
        .map_err(store_error)?;
    for row in &lines {
        if let Err(corrupt) = take_line(row, &mut found) {
            found.unreadable.push(corrupt);
        }
    }
    let stock = sqlx::query(STOCK)
        .bind(at_most(limit))
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

fn take_line(row: &SqliteRow, found: &mut Suspects) -> Result<(), CorruptRow> {
    let id = row::reservation_id(row, "open_lines", "reservation_id")?;
    let lines = found.lines.entry(id).or_default();
    if row.try_get("open").unwrap_or_default() {
        lines.insert(row::open_line(row)?);
    }
    Ok(())
}
