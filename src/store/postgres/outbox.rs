//! Expiry jobs on their way to a queue. Each statement is a transaction of its own, except for
//! those by which a batch puts jobs in.

use async_trait::async_trait;
use sqlx::postgres::PgRow;

use super::error::store_error;
use super::instant::Instant;
use super::read::{Statement, fetch, fetch_one};
use super::transaction::PostgresTransaction;
use super::{Postgres, array, row, rows};
use crate::domain::{Job, Message, OutboxEntry, QueueRule, Timestamp};
use crate::store::{
    Adopted, AdoptionCursor, Claimed, ClaimedMessage, NextPublication, Outbox, OutboxDepth, Parked,
    Postponed, Published, RELAY, StoreError,
};

pub(super) const INSERT_FIRST: &str = "
    INSERT INTO outbox (reservation_id, due_at, copy, publish_after, attempt_at, attempts)
    SELECT u.reservation_id, u.due_at, 1, u.publish_after, u.publish_after, 0
    FROM unnest($1::uuid[], $2::timestamptz[], $3::timestamptz[])
        AS u (reservation_id, due_at, publish_after)";

/// Whoever else makes the next copy at the same time spares us ours.
pub(super) const INSERT_NEXT: &str = "
    INSERT INTO outbox (reservation_id, due_at, copy, publish_after, attempt_at, attempts)
    SELECT u.reservation_id, u.due_at, coalesce(last.copy, 0) + 1, u.publish_after,
        u.publish_after, 0
    FROM unnest($1::uuid[], $2::timestamptz[], $3::timestamptz[])
        AS u (reservation_id, due_at, publish_after)
    LEFT JOIN LATERAL (
        SELECT o.copy
        FROM outbox AS o
        WHERE o.reservation_id = u.reservation_id AND o.due_at = u.due_at
        ORDER BY o.copy DESC
        LIMIT 1
    ) AS last ON true
    ON CONFLICT (reservation_id, due_at, copy) DO NOTHING";

/// Puts in what a batch decided. The entries come sorted, as all keys do.
pub(super) async fn insert(
    transaction: &mut PostgresTransaction,
    entries: impl Iterator<Item = &OutboxEntry>,
) -> Result<(), StoreError> {
    let (next, first): (Vec<_>, Vec<_>) = entries.partition(|entry| entry.again);
    if !first.is_empty() {
        let query = bind(INSERT_FIRST, &first);
        transaction
            .change("the insert into the outbox", first.len(), query)
            .await?;
    }
    if !next.is_empty() {
        transaction.execute(bind(INSERT_NEXT, &next)).await?;
    }
    Ok(())
}

/// Binds entries to one of the inserts.
pub(super) fn bind(sql: &'static str, entries: &[&OutboxEntry]) -> Statement<'static> {
    let rows = || entries.iter();
    sqlx::query(sql)
        .bind(array(rows(), |entry| entry.job.reservation.as_uuid()))
        .bind(array(rows(), |entry| Instant(entry.job.deadline)))
        .bind(array(rows(), |entry| Instant(entry.publish_after)))
}

/// There is always a row, so that there is always a now. A row that another relay changed a moment
/// ago is left out.
pub(super) const CLAIM: &str = "
    WITH due AS MATERIALIZED (
        SELECT o.ctid AS place, o.reservation_id, o.due_at, o.attempt_at
        FROM outbox AS o
        WHERE o.published_at IS NULL
            AND o.parked_at IS NULL
            AND o.attempt_at <= coalesce($1, statement_timestamp())
        ORDER BY o.attempt_at
        LIMIT $2
        FOR NO KEY UPDATE SKIP LOCKED
    ), judged AS MATERIALIZED (
        SELECT due.*, coalesce(r.state = 'held' AND r.expires_at = due.due_at, false) AS wanted
        FROM due
        LEFT JOIN LATERAL (
            SELECT state, expires_at
            FROM reservations
            WHERE id = due.reservation_id
            OFFSET 0
        ) AS r ON true
    ), leased AS (
        UPDATE outbox AS o
        SET attempts = o.attempts + 1,
            attempt_at = greatest(
                o.publish_after,
                coalesce($1, statement_timestamp()) + $3::float8 * interval '1 ms'
            )
        FROM judged AS j
        WHERE o.ctid = j.place AND j.wanted
        RETURNING o.reservation_id, o.due_at, o.copy, o.attempts, j.attempt_at AS was_attempt_at
    ), skipped AS (
        DELETE FROM outbox AS o
        USING judged AS j
        WHERE o.ctid = j.place AND NOT j.wanted
        RETURNING 1
    )
    SELECT
        coalesce($1, statement_timestamp()) AS now,
        (SELECT count(*) FROM skipped) AS skipped,
        leased.reservation_id,
        leased.due_at,
        leased.copy,
        leased.attempts
    FROM (SELECT) AS one
    LEFT JOIN leased ON true
    ORDER BY leased.was_attempt_at, leased.reservation_id, leased.copy";

/// That the message still waits is asked in a way that the index of what waits does not answer: as
/// long as that is nearly empty, the planner would read all of it rather than look rows up by key.
pub(super) const MARK_PUBLISHED: &str = "
    UPDATE outbox AS o
    SET published_at = coalesce($1, statement_timestamp()),
        queue = $2,
        receipt = u.receipt,
        last_error = NULL
    FROM unnest($3::uuid[], $4::timestamptz[], $5::integer[], $6::integer[], $7::text[])
        AS u (reservation_id, due_at, copy, attempt, receipt)
        CROSS JOIN LATERAL (
            SELECT ctid
            FROM outbox
            WHERE reservation_id = u.reservation_id
                AND due_at = u.due_at
                AND copy = u.copy
            OFFSET 0
        ) AS found
    WHERE o.ctid = found.ctid
        AND o.attempts = u.attempt
        AND coalesce(o.published_at, o.parked_at) IS NULL";

pub(super) const RETRY_LATER: &str = "
    UPDATE outbox AS o
    SET attempt_at = greatest(o.publish_after, u.attempt_at),
        last_error = u.error
    FROM unnest(
            $1::uuid[],
            $2::timestamptz[],
            $3::integer[],
            $4::integer[],
            $5::timestamptz[],
            $6::text[]
        ) AS u (reservation_id, due_at, copy, attempt, attempt_at, error)
        CROSS JOIN LATERAL (
            SELECT ctid
            FROM outbox
            WHERE reservation_id = u.reservation_id
                AND due_at = u.due_at
                AND copy = u.copy
            OFFSET 0
        ) AS found
    WHERE o.ctid = found.ctid
        AND o.attempts = u.attempt
        AND coalesce(o.published_at, o.parked_at) IS NULL";

pub(super) const PARK: &str = "
    WITH parked AS (
        UPDATE outbox AS o
        SET parked_at = coalesce($1, statement_timestamp()),
            last_error = u.reason
        FROM unnest(
                $3::uuid[],
                $4::timestamptz[],
                $5::integer[],
                $6::integer[],
                $7::text[],
                $8::bytea[],
                $9::text[]
            ) AS u (reservation_id, due_at, copy, attempt, key, payload, reason)
            CROSS JOIN LATERAL (
                SELECT ctid
                FROM outbox
                WHERE reservation_id = u.reservation_id
                    AND due_at = u.due_at
                    AND copy = u.copy
                OFFSET 0
            ) AS found
        WHERE o.ctid = found.ctid
            AND o.attempts = u.attempt
            AND coalesce(o.published_at, o.parked_at) IS NULL
        RETURNING u.key, u.payload, u.reason
    )
    INSERT INTO quarantine AS q (source, key, payload, reason, attempts, first_seen, last_seen)
    SELECT $2, p.key, p.payload, p.reason, 1, seen.at, seen.at
    FROM parked AS p
    CROSS JOIN (SELECT coalesce($1, statement_timestamp())::timestamptz(3) AS at) AS seen
    ON CONFLICT (source, key) WHERE resolved_at IS NULL DO UPDATE
    SET payload = excluded.payload,
        reason = excluded.reason,
        attempts = q.attempts + 1,
        last_seen = greatest(q.last_seen, excluded.last_seen)";

/// Walks along the index of what is held, and looks each hold's messages up.
pub(super) const HELD: &str = "
    SELECT
        coalesce($1, statement_timestamp()) AS now,
        held.id,
        held.expires_at,
        held.attempt_at,
        living.copy IS NULL AS wanting
    FROM (
        SELECT r.id, r.expires_at, r.attempt_at
        FROM reservations AS r
        WHERE r.state = 'held'
            AND r.attempt_at >= $3
            AND (r.attempt_at, r.id) > ($3, $4)
        ORDER BY r.attempt_at, r.id
        LIMIT $5
    ) AS held
    LEFT JOIN LATERAL (
        SELECT o.copy
        FROM outbox AS o
        WHERE o.reservation_id = held.id
            AND o.due_at = held.expires_at
            AND (o.published_at IS NULL OR o.queue = $2)
        LIMIT 1
    ) AS living ON true
    ORDER BY held.attempt_at, held.id";

pub(super) const NEXT_PUBLICATION: &str = "
    SELECT
        coalesce($1, statement_timestamp()) AS now,
        (
            SELECT o.attempt_at
            FROM outbox AS o
            WHERE o.published_at IS NULL AND o.parked_at IS NULL
                AND o.attempt_at >= '-infinity'
            ORDER BY o.attempt_at
            LIMIT 1
        ) AS attempt_at";

pub(super) const DEPTH: &str = "
    SELECT
        coalesce($1, statement_timestamp()) AS now,
        count(first.publish_after) AS waiting,
        min(first.publish_after) FILTER (
            WHERE first.publish_after <= coalesce($1, statement_timestamp())
        ) AS oldest
    FROM (
        SELECT o.publish_after
        FROM outbox AS o
        WHERE o.published_at IS NULL AND o.parked_at IS NULL
            AND o.attempt_at >= '-infinity'
        ORDER BY o.attempt_at
        LIMIT $2
    ) AS first";

/// Messages under the attempts of their relay, in the order of their keys, as columns to be bound.
struct Fenced {
    reservations: Vec<uuid::Uuid>,
    deadlines: Vec<Instant>,
    copies: Vec<i32>,
    attempts: Vec<i32>,
}

impl Fenced {
    fn new(messages: impl Iterator<Item = (Message, u32)> + Clone) -> Self {
        Self {
            reservations: array(messages.clone(), |(it, _)| it.job.reservation.as_uuid()),
            deadlines: array(messages.clone(), |(it, _)| Instant(it.job.deadline)),
            copies: array(messages.clone(), |(it, _)| number(it.copy)),
            attempts: array(messages, |(_, attempt)| number(attempt)),
        }
    }

    fn bind(self, query: Statement<'_>) -> Statement<'_> {
        query
            .bind(self.reservations)
            .bind(self.deadlines)
            .bind(self.copies)
            .bind(self.attempts)
    }
}

/// A small number, as the database counts.
pub(super) fn number(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// Text that may have come from anywhere. The database has no form for a NUL.
pub(super) fn storable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

/// References in the order of the messages, so that all who lock several rows do it in one order.
fn sorted<T>(items: &[T], message: impl Fn(&T) -> Message) -> Vec<&T> {
    let mut items: Vec<&T> = items.iter().collect();
    items.sort_by_key(|item| message(item));
    items
}

async fn execute(store: &Postgres, query: Statement<'_>) -> Result<usize, StoreError> {
    let done = query.execute(&store.pool).await.map_err(store_error)?;
    Ok(usize::try_from(done.rows_affected()).unwrap_or(usize::MAX))
}

#[async_trait]
impl Outbox for Postgres {
    async fn claim(&self, limit: usize, lease_ms: i64) -> Result<Claimed, StoreError> {
        let query = sqlx::query(CLAIM)
            .bind(Instant::by_hand(&self.clock))
            .bind(rows(limit))
            .bind(lease_ms as f64);
        claimed(&fetch(self, query).await?)
    }

    async fn mark_published(
        &self,
        published: &[Published],
        queue: &str,
    ) -> Result<usize, StoreError> {
        if published.is_empty() {
            return Ok(0);
        }
        let published = sorted(published, |it| it.message);
        let fenced = Fenced::new(published.iter().map(|it| (it.message, it.attempt)));
        let query = sqlx::query(MARK_PUBLISHED)
            .bind(Instant::by_hand(&self.clock))
            .bind(queue);
        let query = fenced
            .bind(query)
            .bind(array(&published, |it| it.receipt.as_deref().map(storable)));
        execute(self, query).await
    }

    async fn retry_later(&self, postponed: &[Postponed]) -> Result<usize, StoreError> {
        if postponed.is_empty() {
            return Ok(0);
        }
        let postponed = sorted(postponed, |it| it.message);
        let fenced = Fenced::new(postponed.iter().map(|it| (it.message, it.attempt)));
        let query = fenced
            .bind(sqlx::query(RETRY_LATER))
            .bind(array(&postponed, |it| Instant(it.at)))
            .bind(array(&postponed, |it| storable(&it.error)));
        execute(self, query).await
    }

    async fn park(&self, parked: &[Parked]) -> Result<usize, StoreError> {
        if parked.is_empty() {
            return Ok(0);
        }
        let parked = sorted(parked, |it| it.message);
        let fenced = Fenced::new(parked.iter().map(|it| (it.message, it.attempt)));
        let query = sqlx::query(PARK)
            .bind(Instant::by_hand(&self.clock))
            .bind(RELAY);
        let query = fenced
            .bind(query)
            .bind(array(&parked, |it| it.message.key()))
            .bind(array(&parked, |it| it.message.payload().into_bytes()))
            .bind(array(&parked, |it| storable(&it.reason)));
        execute(self, query).await
    }

    async fn adopt(
        &self,
        queue: &str,
        rule: QueueRule,
        limit: usize,
        after: Option<AdoptionCursor>,
    ) -> Result<Adopted, StoreError> {
        let from = after.map_or(Timestamp::EPOCH, |after| after.attempt_at);
        let id = after.map_or(uuid::Uuid::nil(), |after| after.id.as_uuid());
        let query = sqlx::query(HELD)
            .bind(Instant::by_hand(&self.clock))
            .bind(queue)
            .bind(Instant(from))
            .bind(id)
            .bind(rows(limit));
        let held = fetch(self, query).await?;
        let mut entries = Vec::new();
        let mut last = None;
        for row in &held {
            let id = row::reservation_id(row, "reservations", "id")?;
            let job = Job {
                reservation: id,
                deadline: row::value::<Instant>(row, "expires_at")?.0,
            };
            if row::value(row, "wanting")? {
                let now = row::value::<Instant>(row, "now")?.0;
                entries.push(OutboxEntry {
                    job,
                    again: true,
                    publish_after: rule.publish_after(job.deadline, now),
                });
            }
            let attempt_at = row::value::<Instant>(row, "attempt_at")?.0;
            last = Some(AdoptionCursor { attempt_at, id });
        }
        entries.sort_by_key(|entry| entry.job);
        let adopted = if entries.is_empty() {
            0
        } else {
            let entries: Vec<&OutboxEntry> = entries.iter().collect();
            execute(self, bind(INSERT_NEXT, &entries)).await?
        };
        let after = last.filter(|_| held.len() >= limit);
        Ok(Adopted { adopted, after })
    }

    async fn next_publication(&self) -> Result<NextPublication, StoreError> {
        let query = sqlx::query(NEXT_PUBLICATION).bind(Instant::by_hand(&self.clock));
        let row = fetch_one(self, query).await?;
        let publish_after: Option<Instant> = row::value(&row, "attempt_at")?;
        Ok(NextPublication {
            now: row::value::<Instant>(&row, "now")?.0,
            publish_after: publish_after.map(|instant| instant.0),
        })
    }

    async fn depth(&self, limit: usize) -> Result<OutboxDepth, StoreError> {
        let query = sqlx::query(DEPTH)
            .bind(Instant::by_hand(&self.clock))
            .bind(rows(limit));
        let row = fetch_one(self, query).await?;
        let waiting: i64 = row::value(&row, "waiting")?;
        let oldest: Option<Instant> = row::value(&row, "oldest")?;
        Ok(OutboxDepth {
            now: row::value::<Instant>(&row, "now")?.0,
            waiting: usize::try_from(waiting).unwrap_or_default(),
            oldest: oldest.map(|instant| instant.0),
        })
    }
}

/// The rows of [`CLAIM`], of which the only one may be without a message.
fn claimed(rows: &[PgRow]) -> Result<Claimed, StoreError> {
    let mut claimed = Claimed {
        now: Timestamp::EPOCH,
        messages: Vec::with_capacity(rows.len()),
        skipped: 0,
    };
    for row in rows {
        claimed.now = row::value::<Instant>(row, "now")?.0;
        let skipped: i64 = row::value(row, "skipped")?;
        claimed.skipped = usize::try_from(skipped).unwrap_or_default();
        if row::value::<Option<uuid::Uuid>>(row, "reservation_id")?.is_none() {
            continue;
        }
        let attempt: i32 = row::value(row, "attempts")?;
        claimed.messages.push(ClaimedMessage {
            message: row::message(row)?,
            attempt: attempt.unsigned_abs(),
        });
    }
    Ok(claimed)
}
