//! Messages that nothing can be done with until somebody has looked.

use async_trait::async_trait;
use sqlx::query::Query;
use sqlx::sqlite::SqliteArguments;

use super::error::store_error;
use super::read::at_most;
use super::statement::RECORD;
use super::{Sqlite, row};
use crate::domain::Timestamp;
use crate::store::{CorruptRow, Quarantine, QuarantineCase, Sighting, StoreError};

/// Records a sighting at `now`.
pub(super) fn record(
    sighting: &Sighting,
    now: Timestamp,
) -> Query<'_, sqlx::Sqlite, SqliteArguments> {
    sqlx::query(RECORD)
        .bind(&sighting.source)
        .bind(&sighting.key)
        .bind(sighting.kept_payload())
        .bind(&sighting.reason)
        .bind(now.as_millis())
}

#[async_trait]
impl Quarantine for Sqlite {
    async fn record(&self, sighting: &Sighting) -> Result<(), StoreError> {
        record(sighting, self.clock.in_process())
            .execute(&self.writer)
            .await
            .map_err(store_error)?;
        Ok(())
    }

    async fn open(&self, limit: usize, after: i64) -> Result<Vec<QuarantineCase>, StoreError> {
        let found = sqlx::query(
            "
            SELECT id, source, key, payload, reason, attempts, first_seen, last_seen
            FROM quarantine
            WHERE resolved_at IS NULL
              AND id > ?1
            ORDER BY id
            LIMIT ?2
            ",
        )
        .bind(after)
        .bind(at_most(limit))
        .fetch_all(&self.readers)
        .await
        .map_err(store_error)?;
        let cases = found.iter().map(row::quarantine_case);
        Ok(cases.collect::<Result<_, CorruptRow>>()?)
    }
}
