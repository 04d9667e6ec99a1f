//! The rates by which expiry is paced.

use std::collections::{BTreeMap, BTreeSet};

use super::array;
use super::row;
use super::transaction::PostgresTransaction;
use crate::domain::AdmissionKey;
use crate::store::StoreError;

/// One by one in the order of the array, which is sorted; see [`super::lock`].
pub(super) const LOCK: &str = "
    SELECT a.key, a.theoretical_arrival_us
    FROM unnest($1::text[]) AS k (key)
    CROSS JOIN LATERAL (
        SELECT *
        FROM admission
        WHERE key = k.key
        OFFSET 0
        FOR NO KEY UPDATE
    ) AS a";

/// Keys that are used for the first time get their rows, in the same order.
pub(super) const MAKE: &str = "
    INSERT INTO admission (key, theoretical_arrival_us)
    SELECT k.key, 0
    FROM unnest($1::text[]) AS k (key)
    ON CONFLICT (key) DO NOTHING";

pub(super) async fn lock(
    transaction: &mut PostgresTransaction,
    keys: &BTreeSet<AdmissionKey>,
) -> Result<BTreeMap<AdmissionKey, i64>, StoreError> {
    let locked = lock_those_that_exist(transaction, keys).await?;
    if locked.len() == keys.len() {
        return Ok(locked);
    }
    let query = sqlx::query(MAKE).bind(array(keys, AdmissionKey::as_str));
    transaction.execute(query).await?;
    lock_those_that_exist(transaction, keys).await
}

async fn lock_those_that_exist(
    transaction: &mut PostgresTransaction,
    keys: &BTreeSet<AdmissionKey>,
) -> Result<BTreeMap<AdmissionKey, i64>, StoreError> {
    let query = sqlx::query(LOCK).bind(array(keys, AdmissionKey::as_str));
    let rows = transaction.fetch(query).await?;
    let locked = rows.iter().map(|row| {
        let key = AdmissionKey::from_stored(row::value(row, "key")?);
        Ok((key, row::value(row, "theoretical_arrival_us")?))
    });
    locked.collect()
}

pub(super) const WRITE: &str = "
    UPDATE admission AS a
    SET theoretical_arrival_us = u.arrival_us
    FROM unnest($1::text[], $2::bigint[]) AS u (key, arrival_us)
        CROSS JOIN LATERAL (
            SELECT ctid
            FROM admission
            WHERE key = u.key
            OFFSET 0
        ) AS found
    WHERE a.ctid = found.ctid";

pub(super) async fn write(
    transaction: &mut PostgresTransaction,
    arrivals_us: &BTreeMap<AdmissionKey, i64>,
) -> Result<(), StoreError> {
    if arrivals_us.is_empty() {
        return Ok(());
    }
    let query = sqlx::query(WRITE)
        .bind(array(arrivals_us.keys(), AdmissionKey::as_str))
        .bind(array(arrivals_us.values(), |arrival_us| *arrival_us));
    transaction
        .change("the update of admission", arrivals_us.len(), query)
        .await
}
