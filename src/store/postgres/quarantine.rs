//! Messages that nothing can be done with until somebody has looked.

use async_trait::async_trait;
use sqlx::QueryBuilder;
use sqlx::postgres::PgArguments;
use sqlx::query::Query;

use super::error::store_error;
use super::instant::Instant;
use super::outbox::{INSERT_NEXT, bind, number, storable};
use super::read::{self, Statement, fetch};
use super::{Postgres, row, rows};
use crate::domain::{Message, OutboxEntry, Timestamp};
use crate::store::{
    CaseAction, CaseFilter, CaseState, Quarantine, QuarantineCase, RESOLVED, RecordedAction,
    SHOWN_ACTIONS, Sighting, StoreError,
};

pub(super) const RECORD: &str = "
    INSERT INTO quarantine AS q (source, key, payload, reason, attempts, first_seen, last_seen)
    SELECT $2, $3, $4, $5, 1, seen.at, seen.at
    FROM (SELECT coalesce($1, statement_timestamp())::timestamptz(3) AS at) AS seen
    ON CONFLICT (source, key) WHERE resolved_at IS NULL DO UPDATE
    SET payload = excluded.payload,
        reason = excluded.reason,
        attempts = q.attempts + 1,
        last_seen = greatest(q.last_seen, excluded.last_seen)";

macro_rules! select_cases {
    ($rest:literal) => {
        concat!(
            "
            SELECT
                q.id,
                q.source,
                q.key,
                q.payload,
                q.reason,
                q.attempts,
                q.first_seen,
                q.last_seen,
                q.resolved_at,
                q.resolution
            FROM quarantine AS q
            WHERE ",
            $rest
        )
    };
}

/// Whatever the filter, cases are walked along in the order of their numbers: open ones, or those
/// of one key, by an index of their own.
pub(super) fn list(filter: &CaseFilter, after: i64, limit: usize) -> QueryBuilder<sqlx::Postgres> {
    let mut query = QueryBuilder::new(select_cases!("q.id > "));
    query.push_bind(after);
    match filter.state {
        None => {}
        Some(CaseState::Open) => {
            query.push(" AND q.resolved_at IS NULL");
        }
        Some(CaseState::Resolved) => {
            query.push(" AND q.resolved_at IS NOT NULL");
        }
    }
    if let Some(source) = &filter.source {
        query.push(" AND q.source = ").push_bind(storable(source));
    }
    if let Some(key) = &filter.key {
        query.push(" AND q.key = ").push_bind(storable(key));
    }
    query.push(" ORDER BY q.id LIMIT ").push_bind(rows(limit));
    query
}

pub(super) const FIND: &str = select_cases!("q.id = $1");

pub(super) const ACTIONS: &str = "
    SELECT a.id, a.action, a.actor, a.at, a.outcome
    FROM quarantine_actions AS a
    WHERE a.case_id = $1
    ORDER BY a.id DESC
    LIMIT $2";

pub(super) const LOCK_CASE: &str = "
    SELECT q.resolved_at IS NULL AS open
    FROM quarantine AS q
    WHERE q.id = $1
    FOR UPDATE";

pub(super) const RESOLVE: &str = "
    UPDATE quarantine AS q
    SET resolved_at = $2,
        resolution = $3
    WHERE q.id = $1";

pub(super) const TAKE_PARKED: &str = "
    DELETE FROM outbox AS o
    WHERE o.reservation_id = $1
        AND o.due_at = $2
        AND o.copy = $3
        AND o.parked_at IS NOT NULL";

const INSERT_ACTION: &str = "
    INSERT INTO quarantine_actions (case_id, action, actor, at, outcome)
    VALUES ($1, $2, $3, $4, $5)";

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

    async fn list(
        &self,
        filter: &CaseFilter,
        after: i64,
        limit: usize,
    ) -> Result<Vec<QuarantineCase>, StoreError> {
        let found = fetch(self, list(filter, after, limit).build()).await?;
        let cases = found.iter().map(row::quarantine_case);
        Ok(cases.collect::<Result<_, _>>()?)
    }

    async fn find(
        &self,
        id: i64,
    ) -> Result<Option<(QuarantineCase, Vec<RecordedAction>)>, StoreError> {
        let found = fetch(self, sqlx::query(FIND).bind(id)).await?;
        let Some(case) = found.first() else {
            return Ok(None);
        };
        let case = row::quarantine_case(case)?;
        let latest = sqlx::query(ACTIONS).bind(id).bind(rows(SHOWN_ACTIONS));
        let latest = fetch(self, latest).await?;
        let actions = latest.iter().rev().map(row::recorded_action);
        Ok(Some((case, actions.collect::<Result<_, _>>()?)))
    }

    async fn act(&self, action: &CaseAction) -> Result<bool, StoreError> {
        let now = read::now(self).await?;
        let mut transaction = self.pool.begin().await.map_err(store_error)?;
        let locked = sqlx::query(LOCK_CASE)
            .bind(action.case)
            .fetch_optional(&mut *transaction)
            .await
            .map_err(store_error)?;
        let was_open = match locked {
            Some(row) => row::value(&row, "open")?,
            None => false,
        };
        let outcome = if was_open { &action.outcome } else { RESOLVED };
        let mut statements = vec![
            sqlx::query(INSERT_ACTION)
                .bind(action.case)
                .bind(action.kind.as_str())
                .bind(storable(&action.by))
                .bind(Instant(now))
                .bind(storable(outcome)),
        ];
        if let Some(resolution) = action.resolution.as_ref().filter(|_| was_open) {
            let resolve = sqlx::query(RESOLVE).bind(action.case).bind(Instant(now));
            statements.push(resolve.bind(storable(resolution)));
        }
        if let Some(message) = action.again.filter(|_| was_open) {
            statements.extend(publish_again(message, now));
        }
        for statement in statements {
            let done = statement.execute(&mut *transaction).await;
            done.map_err(store_error)?;
        }
        transaction.commit().await.map_err(store_error)?;
        Ok(was_open)
    }
}

/// The next copy is made before the parked one is taken away, by whose number it is counted.
fn publish_again(message: Message, now: Timestamp) -> [Statement<'static>; 2] {
    let next = OutboxEntry {
        job: message.job,
        again: true,
        publish_after: now,
    };
    let parked = sqlx::query(TAKE_PARKED)
        .bind(message.job.reservation.as_uuid())
        .bind(Instant(message.job.deadline))
        .bind(number(message.copy));
    [bind(INSERT_NEXT, &[&next]), parked]
}
