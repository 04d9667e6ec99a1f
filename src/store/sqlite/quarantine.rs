//! Messages that nothing can be done with until somebody has looked.

use async_trait::async_trait;
use sqlx::QueryBuilder;
use sqlx::query::Query;
use sqlx::sqlite::{SqliteArguments, SqliteConnection};

use super::error::store_error;
use super::read::at_most;
use super::statement::{RECORD, Statement};
use super::{Sqlite, outbox, row};
use crate::domain::{Message, OutboxEntry, Timestamp};
use crate::store::{
    CaseAction, CaseFilter, CaseState, CorruptRow, Quarantine, QuarantineCase, RESOLVED,
    RecordedAction, SHOWN_ACTIONS, Sighting, StoreError,
};

macro_rules! select_cases {
    ($condition:literal) => {
        concat!(
            "
            SELECT id,
                   source,
                   key,
                   payload,
                   reason,
                   attempts,
                   first_seen,
                   last_seen,
                   resolved_at,
                   resolution
            FROM quarantine
            WHERE ",
            $condition
        )
    };
}

/// Whatever the filter, cases are walked along in the order of their numbers: open ones, or those
/// of one key, by an index of their own.
pub(super) fn list(filter: &CaseFilter, after: i64, limit: usize) -> QueryBuilder<sqlx::Sqlite> {
    let mut query = QueryBuilder::new(select_cases!("id > "));
    query.push_bind(after);
    match filter.state {
        None => {}
        Some(CaseState::Open) => {
            query.push(" AND resolved_at IS NULL");
        }
        Some(CaseState::Resolved) => {
            query.push(" AND resolved_at IS NOT NULL");
        }
    }
    // The sign in front of `source` keeps SQLite from the index by which an open case is found again:
    // all open cases of the source would be sorted for each page.
    if let Some(source) = &filter.source {
        query.push(" AND +source = ").push_bind(source.clone());
    }
    if let Some(key) = &filter.key {
        query.push(" AND key = ").push_bind(key.clone());
    }
    query.push(" ORDER BY id LIMIT ").push_bind(at_most(limit));
    query
}

pub(super) const ACTIONS: &str = "
    SELECT id, action, actor, at, outcome
    FROM quarantine_actions
    WHERE case_id = ?1
    ORDER BY id DESC
    LIMIT ?2
";

const OPEN: &str = "
    SELECT id
    FROM quarantine
    WHERE id = ?1
      AND resolved_at IS NULL
";

const INSERT_ACTION: &str = "
    INSERT INTO quarantine_actions (case_id, action, actor, at, outcome)
    VALUES (?1, ?2, ?3, ?4, ?5)
";

const RESOLVE: &str = "
    UPDATE quarantine
    SET resolved_at = ?2,
        resolution = ?3
    WHERE id = ?1
";

pub(super) const TAKE_PARKED: Statement = Statement {
    name: "take parked",
    sql: "
        DELETE FROM outbox
        WHERE (reservation_id, due_at, copy) IN (
            SELECT value ->> 'reservation_id', value ->> 'due_at', value ->> 'copy'
            FROM json_each(?1)
        )
          AND parked_at IS NOT NULL
    ",
};

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

    async fn list(
        &self,
        filter: &CaseFilter,
        after: i64,
        limit: usize,
    ) -> Result<Vec<QuarantineCase>, StoreError> {
        let found = list(filter, after, limit)
            .build()
            .fetch_all(&self.readers)
            .await
            .map_err(store_error)?;
        let cases = found.iter().map(row::quarantine_case);
        Ok(cases.collect::<Result<_, CorruptRow>>()?)
    }

    async fn find(
        &self,
        id: i64,
    ) -> Result<Option<(QuarantineCase, Vec<RecordedAction>)>, StoreError> {
        let found = sqlx::query(select_cases!("id = ?1"))
            .bind(id)
            .fetch_optional(&self.readers)
            .await
            .map_err(store_error)?;
        let Some(case) = found else {
            return Ok(None);
        };
        let latest = sqlx::query(ACTIONS)
            .bind(id)
            .bind(at_most(SHOWN_ACTIONS))
            .fetch_all(&self.readers)
            .await
            .map_err(store_error)?;
        let actions = latest.iter().rev().map(row::recorded_action);
        let actions = actions.collect::<Result<_, CorruptRow>>()?;
        Ok(Some((row::quarantine_case(&case)?, actions)))
    }

    async fn act(&self, action: &CaseAction) -> Result<bool, StoreError> {
        let mut writer = self.begin_writing().await?;
        let now = self.clock.in_process();
        let was_open = sqlx::query(OPEN)
            .bind(action.case)
            .fetch_optional(&mut *writer)
            .await
            .map_err(store_error)?
            .is_some();
        let outcome = if was_open { &action.outcome } else { RESOLVED };
        sqlx::query(INSERT_ACTION)
            .bind(action.case)
            .bind(action.kind.as_str())
            .bind(&action.by)
            .bind(now.as_millis())
            .bind(outcome)
            .execute(&mut *writer)
            .await
            .map_err(store_error)?;
        if let Some(resolution) = action.resolution.as_ref().filter(|_| was_open) {
            sqlx::query(RESOLVE)
                .bind(action.case)
                .bind(now.as_millis())
                .bind(resolution)
                .execute(&mut *writer)
                .await
                .map_err(store_error)?;
        }
        if let Some(message) = action.again.filter(|_| was_open) {
            publish_again(&mut writer, message, now).await?;
        }
        writer.commit().await.map_err(store_error)?;
        Ok(was_open)
    }
}

/// The next copy is made before the parked one is taken away, by whose number it is counted.
async fn publish_again(
    writer: &mut SqliteConnection,
    message: Message,
    now: Timestamp,
) -> Result<(), StoreError> {
    let next = OutboxEntry {
        job: message.job,
        again: true,
        publish_after: now,
    };
    outbox::insert(writer, [&next].into_iter(), now).await?;
    let parked = vec![outbox::message_row(message, 0)];
    TAKE_PARKED.run_on_some(writer, parked, now).await?;
    Ok(())
}
