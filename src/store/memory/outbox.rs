//! Expiry jobs on their way to a queue.

use async_trait::async_trait;

use super::rows::{End, OutboxRow, Rows};
use super::{Memory, quarantine};
use crate::domain::{Message, OutboxEntry, QueueRule, Reservation, State, Timestamp};
use crate::store::{
    Adopted, AdoptionCursor, Claimed, ClaimedMessage, NextPublication, Outbox, OutboxDepth, Parked,
    Postponed, Published, RELAY, Sighting, StoreError,
};

/// Changes a message that is still its relay's. Says how many those were.
fn change(
    rows: &mut Rows,
    message: Message,
    attempt: u32,
    change: impl FnOnce(&mut OutboxRow),
) -> usize {
    let row = rows.outbox.get(&message).cloned();
    match row.filter(|row| row.attempts == attempt && row.end.is_none()) {
        Some(mut row) => {
            change(&mut row);
            rows.put_message(message, row);
            1
        }
        None => 0,
    }
}

/// Does the hold still wait for this message?
fn is_wanted(rows: &Rows, message: Message) -> bool {
    let held = rows.reservations.get(&message.job.reservation);
    held.is_some_and(|held| held.state == State::Held && held.job() == message.job)
}

/// Is there no message that waits for this hold's deadline, or is at the queue, or was parked?
fn is_wanting(rows: &Rows, held: &Reservation, queue: &str) -> bool {
    let job = held.job();
    let copy = u32::MAX;
    let mut copies = rows
        .outbox
        .range(Message::first(job)..=Message { job, copy });
    copies.all(|(_, row)| match &row.end {
        Some(End::Published { queue: other }) => other != queue,
        Some(End::Parked) | None => false,
    })
}

#[async_trait]
impl Outbox for Memory {
    async fn claim(&self, limit: usize, lease_ms: i64) -> Result<Claimed, StoreError> {
        let now = self.clock.in_process();
        let mut rows = self.rows();
        let waiting = rows.waiting.iter();
        let due: Vec<Message> = waiting
            .take_while(|(attempt_at, _)| *attempt_at <= now)
            .take(limit)
            .map(|(_, message)| *message)
            .collect();
        let mut claimed = Claimed {
            now,
            messages: Vec::new(),
            skipped: 0,
        };
        for message in due {
            let wanted = is_wanted(&rows, message);
            let Some(mut row) = rows.take_message(message) else {
                continue;
            };
            if !wanted {
                claimed.skipped += 1;
                continue;
            }
            row.attempts += 1;
            row.attempt_at = now.saturating_add_millis(lease_ms.max(0));
            let attempt = row.attempts;
            claimed.messages.push(ClaimedMessage { message, attempt });
            rows.put_message(message, row);
        }
        Ok(claimed)
    }

    async fn mark_published(
        &self,
        published: &[Published],
        queue: &str,
    ) -> Result<usize, StoreError> {
        let mut rows = self.rows();
        let changed = published.iter().map(|it| {
            change(&mut rows, it.message, it.attempt, |row| {
                let queue = queue.to_owned();
                row.end = Some(End::Published { queue });
                row.last_error = None;
            })
        });
        Ok(changed.sum())
    }

    async fn retry_later(&self, postponed: &[Postponed]) -> Result<usize, StoreError> {
        let mut rows = self.rows();
        let changed = postponed.iter().map(|it| {
            change(&mut rows, it.message, it.attempt, |row| {
                row.attempt_at = it.at.max(row.publish_after);
                row.last_error = Some(it.error.clone());
            })
        });
        Ok(changed.sum())
    }

    async fn park(&self, parked: &[Parked]) -> Result<usize, StoreError> {
        let now = self.clock.in_process();
        let mut rows = self.rows();
        let mut count = 0;
        for it in parked {
            let changed = change(&mut rows, it.message, it.attempt, |row| {
                row.end = Some(End::Parked);
                row.last_error = Some(it.reason.clone());
            });
            if changed > 0 {
                let sighting = Sighting {
                    source: RELAY.to_owned(),
                    key: it.message.key(),
                    payload: it.message.payload().into_bytes(),
                    reason: it.reason.clone(),
                };
                quarantine::record(&mut rows, sighting, now);
                count += 1;
            }
        }
        Ok(count)
    }

    async fn adopt(
        &self,
        queue: &str,
        rule: QueueRule,
        limit: usize,
        after: Option<AdoptionCursor>,
    ) -> Result<Adopted, StoreError> {
        let now = self.clock.in_process();
        let mut rows = self.rows();
        let from = after.map_or(Timestamp::EPOCH, |after| after.attempt_at);
        let held = rows.attempts_from(from);
        let step: Vec<AdoptionCursor> = held
            .map(|(attempt_at, id)| AdoptionCursor { attempt_at, id })
            .filter(|held| after.is_none_or(|after| *held > after))
            .take(limit)
            .collect();
        let mut adopted = 0;
        for held in &step {
            let Some(held) = rows.reservations.get(&held.id) else {
                continue;
            };
            if is_wanting(&rows, held, queue) {
                let job = held.job();
                rows.put_entry(&OutboxEntry {
                    job,
                    again: true,
                    publish_after: rule.publish_after(job.deadline, now),
                });
                adopted += 1;
            }
        }
        let after = step.last().copied().filter(|_| step.len() >= limit);
        Ok(Adopted { adopted, after })
    }

    async fn next_publication(&self) -> Result<NextPublication, StoreError> {
        Ok(NextPublication {
            now: self.clock.in_process(),
            publish_after: self.rows().waiting.first().map(|(at, _)| *at),
        })
    }

    async fn depth(&self, limit: usize) -> Result<OutboxDepth, StoreError> {
        let now = self.clock.in_process();
        let rows = self.rows();
        let first = || rows.waiting.iter().take(limit);
        let since = first().filter_map(|(_, message)| rows.outbox.get(message));
        Ok(OutboxDepth {
            now,
            waiting: first().count(),
            oldest: since
                .map(|row| row.publish_after)
                .filter(|publish_after| *publish_after <= now)
                .min(),
        })
    }
}
