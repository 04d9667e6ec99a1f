//! The state machine: one total function over the state of a reservation and a command.
//!
//! ```text
//!                  extend (alive)
//!                    ┌──────┐
//!                    ▼      │
//!   reserve ──────▶ held ───┘
//!                    │
//!        ┌───────────┼───────────────┐
//!        │ check out │ cancel        │ expire
//!        │ (alive)   │ (alive)       │ (due)
//!        ▼           ▼               ▼
//!      paid      cancelled        expired
//!        ▲                           │
//!        └───────────────────────────┘
//!            check out, on_expired = reacquire: the stock is taken anew
//! ```
//!
//! *Alive* is now < deadline, *due* is now >= deadline. What the picture does not show is refused
//! or, for a repeat of what was already done, answered as the first time.

mod job;
mod stock;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::json;

use self::stock::lacking;
use super::{
    Changes, Command, CustomerId, Deadline, Decision, Event, EventKind, Guard, Lacking, Line,
    OnExpired, Outcome, Particulars, PaymentReference, Reason, Reference, Refusal, Reservation,
    ReservationChange, ReservationId, Reserve, Snapshot, State, StockDelta, Timestamp, Waits,
};

pub use self::job::QueueRule;
pub use self::stock::insufficient;

/// The shortest hold, in milliseconds.
const MIN_HOLD_MS: i64 = 1_000;

/// What the operator of the service has set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// The longest time from creation to deadline, extensions included, in seconds.
    pub max_hold_seconds: i64,
    /// The queue that brings expiry jobs back at their deadlines. With the timer there is none,
    /// and no job is published.
    pub queue: Option<QueueRule>,
}

/// Decides one command on what `snapshot` shows at `now`. Nothing is changed here: what shall
/// change is part of the decision.
pub fn decide(rules: Rules, snapshot: &Snapshot, command: &Command, now: Timestamp) -> Decision {
    match command {
        Command::Reserve(reserve) => decide_reserve(rules, snapshot, reserve, now),
        Command::Extend { id, until } => match find(snapshot, *id) {
            Ok(held) => decide_extend(rules, held, *until, now),
            Err(refusal) => refuse(refusal),
        },
        Command::CheckOut {
            id,
            payment_reference,
            on_expired,
        } => match find(snapshot, *id) {
            Ok(held) => {
                decide_check_out(snapshot, held, payment_reference.as_ref(), *on_expired, now)
            }
            Err(refusal) => refuse(refusal),
        },
        Command::Cancel { id, reason } => match find(snapshot, *id) {
            Ok(held) => decide_cancel(held, reason.as_ref(), now),
            Err(refusal) => refuse(refusal),
        },
        Command::Expire { job, via, early } => {
            job::expire(rules, snapshot, *job, *via, *early, now)
        }
        Command::SetStock { key, on_hand } => stock::set(snapshot, key, *on_hand, now),
        Command::AdjustStock { key, delta, reason } => {
            stock::adjust(snapshot, key, *delta, reason.as_ref(), now)
        }
    }
}

/// The particulars of an event of kind `created`.
#[derive(Serialize)]
struct Created<'a> {
    lines: &'a [Line],
    expires_at: Timestamp,
    customer_id: Option<&'a CustomerId>,
    reference: Option<&'a Reference>,
}

fn decide_reserve(
    rules: Rules,
    snapshot: &Snapshot,
    reserve: &Reserve,
    now: Timestamp,
) -> Decision {
    let units = reserve.units();
    // What is not there is refused before the deadline is looked at, so that the answer is the
    // same whether or not it could be proved without a lock.
    if let Some(refusal) = insufficient(&snapshot.stock, &units) {
        return refuse(refusal);
    }
    let earliest = now.saturating_add_millis(MIN_HOLD_MS);
    let asked = reserve.until.counted_from(now);
    let expires_at = match deadline(rules, asked, earliest, now, now) {
        Ok(expires_at) => expires_at,
        Err(refusal) => return refuse(refusal),
    };
    if let Some(lacking) = lacking(snapshot, &units) {
        return Decision::SetAside(lacking);
    }
    let reservation = Reservation {
        id: ReservationId::new(now, reserve.entropy),
        state: State::Held,
        lines: reserve.lines.clone(),
        expires_at,
        attempt_at: expires_at,
        hold_seconds: expires_at.millis_since(now) / 1_000,
        created_at: now,
        updated_at: now,
        closed_at: None,
        extensions: 0,
        merchant: reserve.merchant.clone(),
        customer_id: reserve.customer_id.clone(),
        reference: reserve.reference.clone(),
        payment_reference: None,
        reacquired: false,
        metadata: reserve.metadata.clone(),
        waits: Waits::default(),
    };
    let data = Particulars::of(&Created {
        lines: &reservation.lines,
        expires_at,
        customer_id: reservation.customer_id.as_ref(),
        reference: reservation.reference.as_ref(),
    });
    let delta = StockDelta {
        on_hand: 0,
        held: 1,
    };
    let created = change(None, reservation, delta, EventKind::Created, data);
    job::publish(rules, created, now)
}

fn decide_extend(rules: Rules, held: &Reservation, until: Deadline, now: Timestamp) -> Decision {
    if let Some(refusal) = not_alive(held, now) {
        return refuse(refusal);
    }
    let earliest = held.expires_at.saturating_add_millis(1);
    let asked = until.counted_from(held.expires_at);
    let expires_at = match deadline(rules, asked, earliest, held.created_at, now) {
        Ok(expires_at) => expires_at,
        Err(refusal) => return refuse(refusal),
    };
    let extended = Reservation {
        expires_at,
        attempt_at: expires_at,
        updated_at: now,
        extensions: held.extensions + 1,
        waits: Waits::default(),
        ..held.clone()
    };
    let data = Particulars::of(&json!({ "from": held.expires_at, "expires_at": expires_at }));
    let delta = StockDelta::default();
    let extended = change(Some(held), extended, delta, EventKind::Extended, data);
    job::publish(rules, extended, now)
}

fn decide_check_out(
    snapshot: &Snapshot,
    held: &Reservation,
    payment: Option<&PaymentReference>,
    on_expired: OnExpired,
    now: Timestamp,
) -> Decision {
    if held.state == State::Paid && held.payment_reference.as_ref() == payment {
        return unchanged(held);
    }
    if held.state_at(now) == State::Expired
        && on_expired == OnExpired::Reacquire
        && !held.is_parked()
    {
        if held.is_due(now) {
            return Decision::SetAside(Lacking::Release(held.job()));
        }
        let units = held.units();
        if let Some(refusal) = insufficient(&snapshot.stock, &units) {
            return refuse_payment(snapshot, held, payment, refusal, now);
        }
        return match lacking(snapshot, &units) {
            Some(lacking) => Decision::SetAside(lacking),
            None => pay(held, payment, true, now),
        };
    }
    match not_alive(held, now) {
        None => pay(held, payment, false, now),
        Some(refusal) => refuse_payment(snapshot, held, payment, refusal, now),
    }
}

fn pay(
    held: &Reservation,
    payment: Option<&PaymentReference>,
    reacquired: bool,
    now: Timestamp,
) -> Decision {
    let paid = Reservation {
        state: State::Paid,
        updated_at: now,
        closed_at: held.closed_at.or(Some(now)),
        payment_reference: payment.cloned(),
        reacquired,
        ..held.clone()
    };
    // What was held leaves both counts; what is taken anew was not held any more.
    let delta = StockDelta {
        on_hand: -1,
        held: if reacquired { 0 } else { -1 },
    };
    let data = Particulars::of(&json!({
        "lines": paid.lines,
        "payment_reference": payment,
        "reacquired": reacquired,
    }));
    change(Some(held), paid, delta, EventKind::Paid, data)
}

/// Refuses a checkout. If it named a payment, that is recorded once, because the money may have
/// been taken.
fn refuse_payment(
    snapshot: &Snapshot,
    held: &Reservation,
    payment: Option<&PaymentReference>,
    refusal: Refusal,
    now: Timestamp,
) -> Decision {
    let mut changes = Changes::default();
    if let Some(payment) = payment
        && !snapshot
            .refused_payments
            .contains(&(held.id, payment.clone()))
    {
        changes.events.push(Event {
            kind: EventKind::PaymentRefused,
            reservation_id: Some(held.id),
            at: now,
            data: Particulars::of(&json!({
                "payment_reference": payment,
                "state": held.state_at(now).as_str(),
            })),
        });
    }
    Decision::Done {
        outcome: Outcome::Refused(refusal),
        changes,
    }
}

fn decide_cancel(held: &Reservation, reason: Option<&Reason>, now: Timestamp) -> Decision {
    if held.state == State::Cancelled {
        return unchanged(held);
    }
    if let Some(refusal) = not_alive(held, now) {
        return refuse(refusal);
    }
    let data = Particulars::of(&json!({ "lines": held.lines, "reason": reason }));
    let cancelled = ended(held, State::Cancelled, now);
    change(
        Some(held),
        cancelled,
        GIVEN_BACK,
        EventKind::Cancelled,
        data,
    )
}

/// What is added to stock for each unit that goes back to where it came from.
const GIVEN_BACK: StockDelta = StockDelta {
    on_hand: 0,
    held: -1,
};

/// A hold after it left `held` at `now`.
fn ended(held: &Reservation, state: State, now: Timestamp) -> Reservation {
    Reservation {
        state,
        updated_at: now,
        closed_at: Some(now),
        ..held.clone()
    }
}

/// The deadline `asked` for, if it is one, not before `earliest` and not beyond the longest hold.
fn deadline(
    rules: Rules,
    asked: Option<Timestamp>,
    earliest: Timestamp,
    created_at: Timestamp,
    now: Timestamp,
) -> Result<Timestamp, Refusal> {
    let latest = latest(rules, created_at);
    asked
        .filter(|asked| (earliest..=latest).contains(asked))
        .ok_or(Refusal::HoldLimit {
            now,
            earliest,
            latest,
        })
}

/// The last deadline that a reservation made at `created_at` may ever have. It stays below
/// [`Timestamp::MAX`], which means "never".
fn latest(rules: Rules, created_at: Timestamp) -> Timestamp {
    created_at
        .checked_add_seconds(rules.max_hold_seconds)
        .unwrap_or(Timestamp::MAX)
        .min(Timestamp::MAX.saturating_add_millis(-1))
}

/// Why a reservation cannot be extended, sold or cancelled any more, if it cannot.
fn not_alive(held: &Reservation, now: Timestamp) -> Option<Refusal> {
    if held.is_due(now) || held.state == State::Expired {
        return Some(Refusal::Expired {
            id: held.id,
            expires_at: held.expires_at,
        });
    }
    (held.state != State::Held).then(|| Refusal::NotHeld {
        id: held.id,
        state: held.state,
        payment_reference: held.payment_reference.clone(),
    })
}

fn find(snapshot: &Snapshot, id: ReservationId) -> Result<&Reservation, Refusal> {
    snapshot
        .reservations
        .get(&id)
        .ok_or(Refusal::NotFound { id })
}

fn refuse(refusal: Refusal) -> Decision {
    Decision::Done {
        outcome: Outcome::Refused(refusal),
        changes: Changes::default(),
    }
}

fn unchanged(reservation: &Reservation) -> Decision {
    Decision::Done {
        outcome: Outcome::Reservation {
            reservation: Box::new(reservation.clone()),
            created: false,
        },
        changes: Changes::default(),
    }
}

/// Stores `after`, adds `per_unit` of each of its units to the stock, and says so in one event.
fn change(
    before: Option<&Reservation>,
    after: Reservation,
    per_unit: StockDelta,
    kind: EventKind,
    data: Particulars,
) -> Decision {
    let outcome = Outcome::Reservation {
        reservation: Box::new(after.clone()),
        created: before.is_none(),
    };
    let changes = changed(before, after, per_unit, kind, data);
    Decision::Done { outcome, changes }
}

/// What [`change`] changes.
fn changed(
    before: Option<&Reservation>,
    after: Reservation,
    per_unit: StockDelta,
    kind: EventKind,
    data: Particulars,
) -> Changes {
    let stock = if per_unit == StockDelta::default() {
        BTreeMap::new()
    } else {
        after
            .units()
            .into_iter()
            .map(|(key, units)| {
                let delta = StockDelta {
                    on_hand: per_unit.on_hand * units,
                    held: per_unit.held * units,
                };
                (key, delta)
            })
            .collect()
    };
    let guard = before.map(|before| Guard {
        state: before.state,
        expires_at: before.expires_at,
    });
    let event = Event {
        kind,
        reservation_id: Some(after.id),
        at: after.updated_at,
        data,
    };
    let row = Box::new(ReservationChange {
        guard,
        reservation: after,
    });
    Changes {
        reservations: [(row.reservation.id, row)].into(),
        stock,
        events: vec![event],
        ..Changes::default()
    }
}
