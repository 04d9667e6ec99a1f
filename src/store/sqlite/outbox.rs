//! Expiry jobs on their way to a queue. There is one writer, so what a relay reads in its
//! transaction nobody else can change before it ends.

use async_trait::async_trait;
use serde_json::{Value, json};
use sqlx::sqlite::{Sqlite as Driver, SqliteConnection};
use sqlx::{Row, Transaction};

use super::error::store_error;
use super::read::at_most;
use super::statement::{
    CLAIM, HELD, INSERT_NEXT, INSERT_OUTBOX, LEASE, MARK_PUBLISHED, PARK, RECORD, RETRY_LATER,
    SKIP, Statement,
};
use super::{Sqlite, row};
use crate::domain::{Message, OutboxEntry, QueueRule, Timestamp};
use crate::store::{
    Adopted, AdoptionCursor, Claimed, ClaimedMessage, NextPublication, Outbox, OutboxDepth, Parked,
    Postponed, Published, RELAY, StoreError,
};

/// Puts in what a batch decided.
pub(super) async fn insert(
    connection: &mut SqliteConnection,
    entries: impl Iterator<Item = &OutboxEntry>,
    now: Timestamp,
) -> Result<(), StoreError> {
    let (next, first): (Vec<_>, Vec<_>) = entries.partition(|entry| entry.again);
    let first = first.into_iter().map(entry_row).collect();
    INSERT_OUTBOX.run(connection, first, now).await?;
    let next = next.into_iter().map(entry_row).collect();
    INSERT_NEXT.run_on_some(connection, next, now).await?;
    Ok(())
}

fn entry_row(entry: &OutboxEntry) -> Value {
    json!({
        "reservation_id": entry.job.reservation.as_uuid().to_string(),
        "due_at": entry.job.deadline.as_millis(),
        "publish_after": entry.publish_after.as_millis(),
    })
}

pub(super) fn message_row(message: Message, attempt: u32) -> Value {
    json!({
        "reservation_id": message.job.reservation.as_uuid().to_string(),
        "due_at": message.job.deadline.as_millis(),
        "copy": message.copy,
        "attempt": attempt,
    })
}

impl Sqlite {
    /// A transaction that has the writer to itself.
    pub(super) async fn begin_writing(&self) -> Result<Transaction<'static, Driver>, StoreError> {
        let begun = self.writer.begin_with("BEGIN IMMEDIATE").await;
        begun.map_err(store_error)
    }

    /// Runs one statement in a transaction of its own, and says how many of the rows it changed.
    async fn write(
        &self,
        statement: &Statement,
        rows: Vec<Value>,
        now: Timestamp,
    ) -> Result<usize, StoreError> {
        let mut writer = self.begin_writing().await?;
        let changed = statement.run_on_some(&mut writer, rows, now).await?;
        writer.commit().await.map_err(store_error)?;
        Ok(changed)
    }
}

#[async_trait]
impl Outbox for Sqlite {
    async fn claim(&self, limit: usize, lease_ms: i64) -> Result<Claimed, StoreError> {
        let mut writer = self.begin_writing().await?;
        let now = self.clock.in_process();
        let found = sqlx::query(CLAIM)
            .bind(now.as_millis())
            .bind(at_most(limit))
            .fetch_all(&mut *writer)
            .await
            .map_err(store_error)?;
        let mut messages = Vec::new();
        let (mut leased, mut skipped) = (Vec::new(), Vec::new());
        let leased_until = now.saturating_add_millis(lease_ms.max(0));
        for row in &found {
            let (message, attempts) = row::message(row)?;
            let mut changed = message_row(message, attempts);
            if row.try_get("wanted").map_err(store_error)? {
                changed["attempt_at"] = json!(leased_until.as_millis());
                leased.push(changed);
                let attempt = attempts + 1;
                messages.push(ClaimedMessage { message, attempt });
            } else {
                skipped.push(changed);
            }
        }
        let count = skipped.len();
        LEASE.run(&mut writer, leased, now).await?;
        SKIP.run(&mut writer, skipped, now).await?;
        writer.commit().await.map_err(store_error)?;
        Ok(Claimed {
            now,
            messages,
            skipped: count,
        })
    }

    async fn mark_published(
        &self,
        published: &[Published],
        queue: &str,
    ) -> Result<usize, StoreError> {
        let rows = published.iter().map(|it| {
            let mut row = message_row(it.message, it.attempt);
            row["queue"] = json!(queue);
            row["receipt"] = json!(it.receipt);
            row
        });
        let now = self.clock.in_process();
        self.write(&MARK_PUBLISHED, rows.collect(), now).await
    }

    async fn retry_later(&self, postponed: &[Postponed]) -> Result<usize, StoreError> {
        let rows = postponed.iter().map(|it| {
            let mut row = message_row(it.message, it.attempt);
            row["attempt_at"] = json!(it.at.as_millis());
            row["error"] = json!(it.error);
            row
        });
        let now = self.clock.in_process();
        self.write(&RETRY_LATER, rows.collect(), now).await
    }

    async fn park(&self, parked: &[Parked]) -> Result<usize, StoreError> {
        let mut writer = self.begin_writing().await?;
        let now = self.clock.in_process();
        let mut count = 0;
        for it in parked {
            let mut row = message_row(it.message, it.attempt);
            row["reason"] = json!(it.reason);
            if PARK.run_on_some(&mut writer, vec![row], now).await? == 0 {
                continue;
            }
            count += 1;
            sqlx::query(RECORD)
                .bind(RELAY)
                .bind(it.message.key())
                .bind(it.message.payload().into_bytes())
                .bind(&it.reason)
                .bind(now.as_millis())
                .execute(&mut *writer)
                .await
                .map_err(store_error)?;
        }
        writer.commit().await.map_err(store_error)?;
        Ok(count)
    }

    async fn adopt(
        &self,
        queue: &str,
        rule: QueueRule,
        limit: usize,
        after: Option<AdoptionCursor>,
    ) -> Result<Adopted, StoreError> {
        let mut writer = self.begin_writing().await?;
        let now = self.clock.in_process();
        let held = sqlx::query(HELD)
            .bind(queue)
            .bind(after.map_or(0, |after| after.attempt_at.as_millis()))
            .bind(after.map_or(String::new(), |after| after.id.as_uuid().to_string()))
            .bind(at_most(limit))
            .fetch_all(&mut *writer)
            .await
            .map_err(store_error)?;
        let mut entries = Vec::new();
        let mut last = None;
        for row in &held {
            let (job, attempt_at) = row::held(row)?;
            if row.try_get("wanting").map_err(store_error)? {
                entries.push(entry_row(&OutboxEntry {
                    job,
                    again: true,
                    publish_after: rule.publish_after(job.deadline, now),
                }));
            }
            let id = job.reservation;
            last = Some(AdoptionCursor { attempt_at, id });
        }
        let adopted = INSERT_NEXT.run_on_some(&mut writer, entries, now).await?;
        writer.commit().await.map_err(store_error)?;
        let after = last.filter(|_| held.len() >= limit);
        Ok(Adopted { adopted, after })
    }

    async fn next_publication(&self) -> Result<NextPublication, StoreError> {
        let row = sqlx::query(
            "
            SELECT min(attempt_at) AS attempt_at
            FROM outbox
            WHERE published_at IS NULL
              AND parked_at IS NULL
            ",
        )
        .fetch_one(&self.readers)
        .await
        .map_err(store_error)?;
        Ok(NextPublication {
            publish_after: row::optional_instant(&row, "outbox", "attempt_at")?,
            now: self.clock.in_process(),
        })
    }

    async fn depth(&self, limit: usize) -> Result<OutboxDepth, StoreError> {
        let now = self.clock.in_process();
        let row = sqlx::query(
            "
            SELECT count(*) AS waiting,
                   min(publish_after) FILTER (WHERE publish_after <= ?1) AS oldest
            FROM (
                SELECT publish_after
                FROM outbox
                WHERE published_at IS NULL
                  AND parked_at IS NULL
                ORDER BY attempt_at
                LIMIT ?2
            )
            ",
        )
        .bind(now.as_millis())
        .bind(at_most(limit))
        .fetch_one(&self.readers)
        .await
        .map_err(store_error)?;
        let waiting: i64 = row.try_get("waiting").map_err(store_error)?;
        Ok(OutboxDepth {
            now,
            waiting: usize::try_from(waiting).unwrap_or_default(),
            oldest: row::optional_instant(&row, "outbox", "oldest")?,
        })
    }
}
