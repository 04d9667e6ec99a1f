//! Deleting what nobody needs any more.

use std::ops::Bound::{Excluded, Unbounded};

use async_trait::async_trait;

use super::Memory;
use super::rows::{OutboxRow, Rows};
use crate::domain::{EventKind, JobId, Message, Reservation, ReservationId, State, Timestamp};
use crate::store::retention::{cutoff, first_name_of};
use crate::store::{Horizons, Key, Retention, Step, StoreError};

/// The next names behind `after`, up to but without those of reservations made at `latest`, each
/// with whether its row is to be deleted.
struct Walk<Name> {
    looked_at: Vec<(Name, bool)>,
    limit: usize,
}

impl<Name: Clone> Walk<Name> {
    fn doomed(&self) -> impl Iterator<Item = &Name> {
        let doomed = self.looked_at.iter().filter(|(_, is_old)| *is_old);
        doomed.map(|(name, _)| name)
    }

    fn step(&self) -> Step<Name> {
        let last = self.looked_at.last().map(|(name, _)| name.clone());
        Step {
            deleted: self.doomed().count(),
            after: last.filter(|_| self.looked_at.len() >= self.limit),
        }
    }
}

/// Is there nothing that this message may still be needed for?
fn is_old_message(rows: &Rows, message: Message, row: &OutboxRow, cutoff: Timestamp) -> bool {
    let hold = rows.reservations.get(&message.job.reservation);
    if hold.is_some_and(|hold| hold.state == State::Held) {
        return false;
    }
    let deadline = message.job.deadline;
    let over_since = match &row.end {
        Some(_) => deadline,
        None => hold.and_then(|hold| hold.closed_at).unwrap_or(deadline),
    };
    over_since <= cutoff && !is_in_quarantine(rows, |key| key == message.key())
}

fn is_in_quarantine(rows: &Rows, is_meant: impl Fn(&str) -> bool) -> bool {
    let mut cases = rows.quarantine.values();
    cases.any(|case| case.resolution.is_none() && is_meant(&case.sighting.key))
}

fn is_old_reservation(rows: &Rows, row: &Reservation, cutoff: Timestamp) -> bool {
    let jobs = row.id.job_ids();
    let name = row.id.to_string();
    row.state != State::Held
        && row.updated_at <= cutoff
        && rows.ledger.range(jobs.clone()).next().is_none()
        && !is_in_quarantine(rows, |key| {
            key == name || *jobs.start <= *key && *key < *jobs.end
        })
}

/// Moves a horizon if something was deleted, and never back.
fn move_horizon(horizon: &mut Option<Timestamp>, deleted: usize, cutoff: Timestamp) {
    if deleted > 0 {
        *horizon = (*horizon).max(Some(cutoff));
    }
}

#[async_trait]
impl Retention for Memory {
    async fn delete_answers(&self, age_ms: i64, limit: usize) -> Result<usize, StoreError> {
        let cutoff = cutoff(self.clock.in_process(), age_ms);
        let mut rows = self.rows();
        let answers = rows.answers.values();
        let mut old: Vec<(Timestamp, Key)> = answers
            .filter(|answer| answer.created_at <= cutoff)
            .map(|answer| (answer.created_at, answer.key.clone()))
            .collect();
        old.sort();
        old.truncate(limit);
        for (_, key) in &old {
            rows.answers.remove(key);
        }
        Ok(old.len())
    }

    async fn delete_messages(
        &self,
        age_ms: i64,
        limit: usize,
        after: Option<Message>,
    ) -> Result<Step<Message>, StoreError> {
        let cutoff = cutoff(self.clock.in_process(), age_ms);
        let mut rows = self.rows();
        let end = first_name_of(cutoff);
        let next = rows
            .outbox
            .range((after.map_or(Unbounded, Excluded), Unbounded))
            .take_while(|(message, _)| message.job.reservation < end)
            .take(limit);
        let looked_at = next
            .map(|(message, row)| (*message, is_old_message(&rows, *message, row, cutoff)))
            .collect();
        let walk = Walk { looked_at, limit };
        for message in walk.doomed() {
            rows.take_message(*message);
        }
        Ok(walk.step())
    }

    async fn delete_ledger(
        &self,
        age_ms: i64,
        limit: usize,
        after: Option<JobId>,
    ) -> Result<Step<JobId>, StoreError> {
        let cutoff = cutoff(self.clock.in_process(), age_ms);
        let mut rows = self.rows();
        let end = first_name_of(cutoff).job_ids().start;
        let next = rows
            .ledger
            .range((after.map_or(Unbounded, Excluded), Unbounded))
            .take_while(|(job, _)| **job < end)
            .take(limit);
        let looked_at = next
            .map(|(job, entry)| (job.clone(), entry.at <= cutoff))
            .collect();
        let walk = Walk { looked_at, limit };
        for job in walk.doomed() {
            rows.ledger.remove(job);
        }
        let step = walk.step();
        move_horizon(&mut rows.horizons.ledger, step.deleted, cutoff);
        Ok(step)
    }

    async fn delete_reservations(
        &self,
        age_ms: i64,
        limit: usize,
        after: Option<ReservationId>,
    ) -> Result<Step<ReservationId>, StoreError> {
        let cutoff = cutoff(self.clock.in_process(), age_ms);
        let mut rows = self.rows();
        let end = first_name_of(cutoff);
        let next = rows
            .reservations
            .range((after.map_or(Unbounded, Excluded), Unbounded))
            .take_while(|(id, _)| **id < end)
            .take(limit);
        let looked_at = next
            .map(|(id, row)| (*id, is_old_reservation(&rows, row, cutoff)))
            .collect();
        let walk = Walk { looked_at, limit };
        for id in walk.doomed() {
            rows.reservations.remove(id);
        }
        let step = walk.step();
        move_horizon(&mut rows.horizons.reservations, step.deleted, cutoff);
        Ok(step)
    }

    async fn delete_events(&self, age_ms: i64, limit: usize) -> Result<usize, StoreError> {
        let cutoff = cutoff(self.clock.in_process(), age_ms);
        let mut rows = self.rows();
        let is_old = |recorded: &&crate::store::RecordedEvent| {
            let event = &recorded.event;
            let owner = event.reservation_id;
            let is_needed = event.kind == EventKind::PaymentRefused
                && owner.is_some_and(|id| rows.reservations.contains_key(&id));
            event.at <= cutoff && !is_needed
        };
        let old = rows.events.iter().take(limit).take_while(is_old).count();
        for recorded in rows.events.drain(..old).collect::<Vec<_>>() {
            rows.horizons.last_deleted_event = recorded.seq;
            if recorded.event.kind == EventKind::PaymentRefused {
                let owner = recorded.event.reservation_id;
                rows.refused_payments.retain(|(id, _)| Some(*id) != owner);
            }
        }
        move_horizon(&mut rows.horizons.events, old, cutoff);
        Ok(old)
    }

    async fn horizons(&self) -> Result<Horizons, StoreError> {
        Ok(self.rows().horizons)
    }
}
