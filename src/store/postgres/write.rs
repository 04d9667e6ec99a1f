//! What a batch decided: stored set by set, a statement for each table, whatever the number of
//! rows.

use std::collections::{BTreeMap, BTreeSet};

use super::instant::Instant;
use super::transaction::PostgresTransaction;
use super::{array, columns, lines, outbox, row};
use crate::domain::{
    Changes, Event, Reservation, ReservationId, StockDelta, StockKey, Text, Timestamp,
};
use crate::store::{RecordedAnswer, StoreError};

pub(super) const MAKE_STOCK: &str = "
    INSERT INTO stock (location, sku, on_hand, held, updated_at)
    SELECT k.location, k.sku, 0, 0, coalesce($3, statement_timestamp())
    FROM unnest($1::text[], $2::text[]) AS k (location, sku)
    ON CONFLICT (location, sku) DO NOTHING
    RETURNING location, sku";

/// The keys come sorted, and rows are made in the order in which they come.
pub(super) async fn make_stock(
    transaction: &mut PostgresTransaction,
    keys: &BTreeSet<StockKey>,
    now: Option<Instant>,
) -> Result<(), StoreError> {
    if keys.is_empty() {
        return Ok(());
    }
    let (locations, skus) = columns(keys);
    let query = sqlx::query(MAKE_STOCK).bind(locations).bind(skus).bind(now);
    for row in transaction.fetch(query).await? {
        transaction.made.insert(row::stock_key(&row, "stock")?);
    }
    Ok(())
}

pub(super) async fn rest(
    transaction: &mut PostgresTransaction,
    changes: &Changes,
    answers: &[RecordedAnswer],
    now: Timestamp,
) -> Result<(), StoreError> {
    unmake_stock(transaction, &changes.new_stock).await?;
    add_to_stock(transaction, &changes.stock, now).await?;
    let fresh: Vec<&Reservation> = changes
        .reservations
        .values()
        .filter(|change| change.guard.is_none())
        .map(|change| &change.reservation)
        .collect();
    insert_reservations(transaction, &fresh).await?;
    lines::insert(transaction, &fresh).await?;
    outbox::insert(transaction, changes.outbox.values()).await?;
    record_answers(transaction, answers).await?;
    append_events(transaction, &changes.events).await
}

pub(super) const UNMAKE_STOCK: &str = "
    DELETE FROM stock AS s
    USING unnest($1::text[], $2::text[]) AS u (location, sku)
        CROSS JOIN LATERAL (
            SELECT ctid
            FROM stock
            WHERE location = u.location AND sku = u.sku
            OFFSET 0
        ) AS found
    WHERE s.ctid = found.ctid";

/// Takes those rows away that were made for commands which were then refused.
async fn unmake_stock(
    transaction: &mut PostgresTransaction,
    wanted: &BTreeSet<StockKey>,
) -> Result<(), StoreError> {
    let made = std::mem::take(&mut transaction.made);
    let unwanted: BTreeSet<&StockKey> = made.difference(wanted).collect();
    if unwanted.is_empty() {
        return Ok(());
    }
    let (locations, skus) = columns(unwanted.iter().copied());
    let query = sqlx::query(UNMAKE_STOCK).bind(locations).bind(skus);
    transaction
        .change("the delete of stock", unwanted.len(), query)
        .await
}

/// Locks rows that nobody locked before in the order of their keys: the arrays are sorted, and so
/// is the one index of the table; a nested loop, the only join that is left on here, walks along
/// the one or the other. Rows are not found first and changed then, as elsewhere, because one
/// that another transaction changes in between must be waited for, not missed.
pub(super) const ADD_TO_STOCK: &str = "
    UPDATE stock AS s
    SET on_hand = s.on_hand + u.on_hand,
        held = s.held + u.held,
        updated_at = $1
    FROM unnest($2::text[], $3::text[], $4::bigint[], $5::bigint[])
        AS u (location, sku, on_hand, held)
    WHERE s.location = u.location AND s.sku = u.sku";

async fn add_to_stock(
    transaction: &mut PostgresTransaction,
    deltas: &BTreeMap<StockKey, StockDelta>,
    now: Timestamp,
) -> Result<(), StoreError> {
    if deltas.is_empty() {
        return Ok(());
    }
    let (locations, skus) = columns(deltas.keys());
    let query = sqlx::query(ADD_TO_STOCK)
        .bind(Instant(now))
        .bind(locations)
        .bind(skus)
        .bind(array(deltas.values(), |delta| delta.on_hand))
        .bind(array(deltas.values(), |delta| delta.held));
    transaction
        .change("the update of stock", deltas.len(), query)
        .await
}

pub(super) const INSERT_RESERVATIONS: &str = "
    INSERT INTO reservations (
        id,
        state,
        lines,
        expires_at,
        attempt_at,
        hold_seconds,
        created_at,
        updated_at,
        closed_at,
        extensions,
        customer_id,
        reference,
        payment_reference,
        reacquired,
        metadata,
        merchant
    )
    SELECT
        u.id,
        u.state,
        u.lines::jsonb,
        u.expires_at,
        u.attempt_at,
        u.hold_seconds,
        u.created_at,
        u.updated_at,
        u.closed_at,
        u.extensions,
        u.customer_id,
        u.reference,
        u.payment_reference,
        u.reacquired,
        u.metadata::jsonb,
        u.merchant
    FROM unnest(
            $1::uuid[],
            $2::text[],
            $3::text[],
            $4::timestamptz[],
            $5::timestamptz[],
            $6::bigint[],
            $7::timestamptz[],
            $8::timestamptz[],
            $9::timestamptz[],
            $10::bigint[],
            $11::text[],
            $12::text[],
            $13::text[],
            $14::boolean[],
            $15::text[],
            $16::text[]
        ) AS u (
            id,
            state,
            lines,
            expires_at,
            attempt_at,
            hold_seconds,
            created_at,
            updated_at,
            closed_at,
            extensions,
            customer_id,
            reference,
            payment_reference,
            reacquired,
            metadata,
            merchant
        )";

async fn insert_reservations(
    transaction: &mut PostgresTransaction,
    fresh: &[&Reservation],
) -> Result<(), StoreError> {
    if fresh.is_empty() {
        return Ok(());
    }
    let rows = || fresh.iter().copied();
    let query = sqlx::query(INSERT_RESERVATIONS)
        .bind(array(rows(), |row| row.id.as_uuid()))
        .bind(array(rows(), |row| row.state.as_str()))
        .bind(array(rows(), |row| json(&row.lines)))
        .bind(array(rows(), |row| Instant(row.expires_at)))
        .bind(array(rows(), |row| Instant(row.attempt_at)))
        .bind(array(rows(), |row| row.hold_seconds))
        .bind(array(rows(), |row| Instant(row.created_at)))
        .bind(array(rows(), |row| Instant(row.updated_at)))
        .bind(array(rows(), |row| row.closed_at.map(Instant)))
        .bind(array(rows(), |row| row.extensions))
        .bind(array(rows(), |row| {
            row.customer_id.as_ref().map(Text::as_str)
        }))
        .bind(array(rows(), |row| {
            row.reference.as_ref().map(Text::as_str)
        }))
        .bind(array(rows(), |row| {
            row.payment_reference.as_ref().map(Text::as_str)
        }))
        .bind(array(rows(), |row| row.reacquired))
        .bind(array(rows(), |row| json(&row.metadata)))
        .bind(array(rows(), |row| row.merchant.as_str()));
    transaction
        .change("the insert of reservations", fresh.len(), query)
        .await
}

/// Whether an old answer may be replaced was decided when it was read, under the key's lock.
pub(super) const RECORD_ANSWERS: &str = "
    INSERT INTO idempotency (scope, key, fingerprint, status, location, body, created_at)
    SELECT u.scope, u.key, u.fingerprint, u.status, u.location, u.body, u.created_at
    FROM unnest(
            $1::text[],
            $2::text[],
            $3::bytea[],
            $4::integer[],
            $5::text[],
            $6::text[],
            $7::timestamptz[]
        ) AS u (scope, key, fingerprint, status, location, body, created_at)
    ON CONFLICT (scope, key) DO UPDATE
    SET fingerprint = excluded.fingerprint,
        status = excluded.status,
        location = excluded.location,
        body = excluded.body,
        created_at = excluded.created_at";

async fn record_answers(
    transaction: &mut PostgresTransaction,
    answers: &[RecordedAnswer],
) -> Result<(), StoreError> {
    if answers.is_empty() {
        return Ok(());
    }
    let mut answers: Vec<&RecordedAnswer> = answers.iter().collect();
    answers.sort_by(|one, other| one.key.cmp(&other.key));
    let rows = || answers.iter().copied();
    let query = sqlx::query(RECORD_ANSWERS)
        .bind(array(rows(), |row| row.key.scope.as_str()))
        .bind(array(rows(), |row| row.key.key.as_str()))
        .bind(array(rows(), |row| row.fingerprint.as_slice()))
        .bind(array(rows(), |row| i32::from(row.answer.status)))
        .bind(array(rows(), |row| row.answer.location.as_deref()))
        .bind(array(rows(), |row| row.answer.body.as_str()))
        .bind(array(rows(), |row| Instant(row.created_at)));
    transaction
        .change("the insert of answers", answers.len(), query)
        .await
}

/// The head is the one row that all writers meet at, and the last that they lock, so whoever has
/// it is about to commit: it is worth waiting for longer than for any other. The condition sets
/// that time for the rest of the transaction; it is evaluated before the row is locked.
pub(super) const APPEND_EVENTS: &str = "
    WITH head AS (
        UPDATE event_head
        SET seq = seq + cardinality($1::uuid[])
        WHERE one AND set_config('lock_timeout', '5s', true) IS NOT NULL
        RETURNING seq - cardinality($1::uuid[]) AS before
    )
    INSERT INTO events (seq, reservation_id, kind, at, data)
    SELECT head.before + u.number, u.reservation_id, u.kind, u.at, u.data::jsonb
    FROM head
    CROSS JOIN unnest($1::uuid[], $2::text[], $3::timestamptz[], $4::text[])
        WITH ORDINALITY AS u (reservation_id, kind, at, data, number)";

async fn append_events(
    transaction: &mut PostgresTransaction,
    events: &[Event],
) -> Result<(), StoreError> {
    if events.is_empty() {
        return Ok(());
    }
    let query = sqlx::query(APPEND_EVENTS)
        .bind(array(events, |event| {
            event.reservation_id.map(ReservationId::as_uuid)
        }))
        .bind(array(events, |event| event.kind.as_str()))
        .bind(array(events, |event| Instant(event.at)))
        .bind(array(events, |event| event.data.as_str()));
    transaction
        .change("the insert of events", events.len(), query)
        .await
}

/// Lines and metadata are lists and maps of text and numbers, which JSON has a form for; what
/// had none would be refused as a null by the column.
fn json(value: &impl serde::Serialize) -> Option<String> {
    serde_json::to_string(value).ok()
}
