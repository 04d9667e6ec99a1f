//! Expiry jobs: what becomes of one that comes, and when one goes out.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{GIVEN_BACK, Rules, changed, ended};
use crate::domain::{
    Admission, AdmissionKey, Changes, Decision, Deferral, DeferralCause, Early, EventKind, Job,
    JobOutcome, LedgerEntry, Line, OutboxEntry, Outcome, Particulars, Reservation, Snapshot, State,
    Timestamp, Via,
};

/// The particulars of an event of kind `expired`.
#[derive(Serialize)]
struct Expired<'a> {
    lines: &'a [Line],
    lateness_ms: i64,
    via: &'static str,
}

/// How far a job that has to wait for its publication stays within the longest delay of its queue,
/// in milliseconds, so that a clock that differs from ours a little does not make it too long.
const MARGIN_MS: i64 = 60_000;

/// What the domain has to know of the queue that brings expiry jobs back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueRule {
    /// The longest delay that the queue takes, in milliseconds.
    pub max_delay_ms: i64,
}

impl QueueRule {
    /// The instant from which on a job for `deadline` may be published: `now` if the queue takes
    /// the delay from there, and otherwise as soon as it takes it with a margin to spare. The
    /// margin is at most a tenth of the longest delay, so that this is never after the deadline.
    pub fn publish_after(self, deadline: Timestamp, now: Timestamp) -> Timestamp {
        let max_delay_ms = self.max_delay_ms.max(0);
        if deadline.millis_since(now) <= max_delay_ms {
            return now;
        }
        let margin_ms = MARGIN_MS.min(max_delay_ms / 10);
        deadline.saturating_add_millis(margin_ms - max_delay_ms)
    }
}

/// Adds the publication of its job to the decision that gave a hold its deadline.
pub(super) fn publish(rules: Rules, mut decision: Decision, now: Timestamp) -> Decision {
    if let (Some(queue), Decision::Done { changes, .. }) = (rules.queue, &mut decision) {
        for (id, change) in &changes.reservations {
            let job = change.reservation.job();
            let entry = OutboxEntry {
                job,
                again: false,
                publish_after: queue.publish_after(job.deadline, now),
            };
            changes.outbox.insert(*id, entry);
        }
    }
    decision
}

pub(super) fn expire(
    rules: Rules,
    snapshot: &Snapshot,
    job: Job,
    via: Via,
    early: Early,
    now: Timestamp,
) -> Decision {
    let Some(held) = snapshot.reservations.get(&job.reservation) else {
        return Decision::job(JobOutcome::Unknown, Changes::default());
    };
    if held.state != State::Held && snapshot.ledger.contains(&job.id()) {
        return Decision::job(JobOutcome::Duplicate, Changes::default());
    }
    let (outcome, mut changes) = match held.state {
        _ if held.expires_at != job.deadline => (JobOutcome::Stale, Changes::default()),
        State::Paid => (JobOutcome::Paid, Changes::default()),
        State::Cancelled => (JobOutcome::Cancelled, Changes::default()),
        State::Expired => return Decision::job(JobOutcome::AlreadyExpired, Changes::default()),
        State::Held => match must_wait(snapshot, held, via, now) {
            Some(wait) => return wait.decision(rules, job, early),
            None => (JobOutcome::Expired, released(snapshot, held, via, now)),
        },
    };
    if !snapshot.ledger.contains(&job.id()) {
        changes.ledger.push(LedgerEntry {
            job,
            outcome: outcome.as_str(),
            via,
            at: now,
        });
    }
    Decision::job(outcome, changes)
}

/// Why a hold is not released now.
struct MustWait {
    outcome: JobOutcome,
    /// When the job would come right, if it came again.
    until: Option<Timestamp>,
    /// The slot that the hold gets by this, and the permits that are kept for it.
    slot: Option<(Deferral, BTreeMap<AdmissionKey, i64>)>,
}

fn must_wait(
    snapshot: &Snapshot,
    held: &Reservation,
    via: Via,
    now: Timestamp,
) -> Option<MustWait> {
    let deferred = |attempt_at| MustWait {
        outcome: JobOutcome::Deferred { attempt_at, now },
        until: Some(attempt_at),
        slot: None,
    };
    if now < held.expires_at {
        let deadline = held.expires_at;
        return Some(MustWait {
            outcome: JobOutcome::NotDue { deadline, now },
            until: Some(deadline),
            slot: None,
        });
    }
    if held.is_parked() {
        return Some(MustWait {
            outcome: JobOutcome::Parked,
            until: None,
            slot: None,
        });
    }
    // It failed before, and rests. The queue that brings it does not know that.
    if via.is_brought() && held.waits.attempts > 0 && now < held.attempt_at {
        return Some(deferred(held.attempt_at));
    }
    let (attempt_at, arrivals_us) = match admission(snapshot, held, via, now)? {
        Admission::Granted(_) => return None,
        Admission::Waits {
            attempt_at,
            arrivals_us,
        } => (attempt_at, arrivals_us),
    };
    let cause = DeferralCause::Limited;
    let deferral = Deferral { attempt_at, cause };
    let is_new = !arrivals_us.is_empty();
    Some(MustWait {
        slot: is_new.then_some((deferral, arrivals_us)),
        ..deferred(attempt_at)
    })
}

/// What the pace of releases says to this one; nothing where there is none.
fn admission(
    snapshot: &Snapshot,
    held: &Reservation,
    via: Via,
    now: Timestamp,
) -> Option<Admission> {
    let pace = snapshot.pace.as_ref().filter(|_| via.is_paced())?;
    Some(pace.admit(held, now))
}

impl MustWait {
    fn decision(self, rules: Rules, job: Job, early: Early) -> Decision {
        let mut changes = match (early, self.until) {
            (Early::Rearm, Some(until)) => rearm(rules, job, until),
            _ => Changes::default(),
        };
        if let Some((deferral, arrivals_us)) = self.slot {
            changes.deferrals.insert(job.reservation, deferral);
            changes.arrivals_us = arrivals_us;
        }
        Decision::job(self.outcome, changes)
    }
}

/// Gives back the stock of a hold that is due and has its permits.
fn released(snapshot: &Snapshot, held: &Reservation, via: Via, now: Timestamp) -> Changes {
    let data = Particulars::of(&Expired {
        lines: &held.lines,
        lateness_ms: now.millis_since(held.expires_at),
        via: via.as_str(),
    });
    let expired = ended(held, State::Expired, now);
    let mut changes = changed(Some(held), expired, GIVEN_BACK, EventKind::Expired, data);
    if let Some(Admission::Granted(arrivals_us)) = admission(snapshot, held, via, now) {
        changes.arrivals_us = arrivals_us;
    }
    changes
}

/// Has a job published once more, at this instant and not before: a queue that has brought it early
/// once would do so again, and go on until then.
fn rearm(rules: Rules, job: Job, publish_after: Timestamp) -> Changes {
    let entry = OutboxEntry {
        job,
        again: true,
        publish_after,
    };
    let mut changes = Changes::default();
    if rules.queue.is_some() {
        changes.outbox.insert(job.reservation, entry);
    }
    changes
}

impl Decision {
    fn job(outcome: JobOutcome, changes: Changes) -> Self {
        Self::Done {
            outcome: Outcome::Job(outcome),
            changes,
        }
    }
}
