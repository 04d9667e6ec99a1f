//! Messages that nothing can be done with until somebody has looked.

use async_trait::async_trait;
use sqlx::postgres::PgArguments;
use sqlx::query::Query;

use super::error::store_error;
use super::instant::Instant;
use super::outbox::storable;
use super::read::fetch;
use super::{Postgres, row, rows};
use crate::store::{Quarantine, QuarantineCase, Sighting, StoreError};

pub(super) const RECORD: &str = "
    INSERT INTO quarantine AS q (source, key, payload, reason, attempts, first_seen, last_seen)
    SELECT $2, $3, $4, $5, 1, seen.at, seen.at
    FROM (SELECT coalesce($1, statement_timestamp())::timestamptz(3) AS at) AS seen
    ON CONFLICT (source, key) WHERE resolved_at IS NULL DO UPDATE
    SET payload = excluded.payload,
        reason = excluded.reason,
        attempts = q.attempts + 1,
        last_seen = greatest(q.last_seen, excluded.last_seen)";

pub(super) const OPEN: &str = "
    SELECT q.id, q.source, q.key, q.payload, q.reason, q.attempts, q.first_seen, q.last_seen
    FROM quarantine AS q
    WHERE q.resolved_at IS NULL AND q.id > $1
    ORDER BY q.id
    LIMIT $2";

/// Records a sighting at `now`, or at the database's own.
pub(super) fn record(
    sighting: &Sighting,
    now: Option<Instant>,
) -> Query<'_, sqlx::Postgres, PgArguments> {
    sqlx::query(RECORD)
        .bind(now)
        .bind(&sighting.source)
        .bind(storable(&sighting.key))
        .bind(sighting.kept_payload())
        .bind(storable(&sighting.reason))
}

#[async_trait]
impl Quarantine for Postgres {
    async fn record(&self, sighting: &Sighting) -> Result<(), StoreError> {
        let query = record(sighting, Instant::by_hand(&self.clock));
        query.execute(&self.pool).await.map_err(store_error)?;
        Ok(())
    }

    async fn open(&self, limit: usize, after: i64) -> Result<Vec<QuarantineCase>, StoreError> {
        let query = sqlx::query(OPEN).bind(after).bind(rows(limit));
        let found = fetch(self, query).await?;
        let cases = found.iter().map(row::quarantine_case);
        Ok(cases.collect::<Result<_, _>>()?)
    }
}
