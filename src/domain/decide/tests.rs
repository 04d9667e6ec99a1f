mod outbox;
mod rules;

use super::*;
use crate::domain::{
    Early, Job, JobId, JobOutcome, Location, Reservation, Sku, Stock, StockKey, Text, Via,
    default_merchant,
};

const RULES: Rules = Rules {
    max_hold_seconds: 86_400,
    queue: None,
};
/// A deadline, as its milliseconds; `now` is placed around it.
const DEADLINE: i64 = 1_796_126_400_000;

/// What a reservation may look like to a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// A millisecond before its deadline.
    Alive,
    /// At its deadline to the millisecond.
    Due,
    Paid,
    /// Paid with the payment `pi_1`.
    PaidNamed,
    Cancelled,
    /// By the job that the ledger shows.
    Expired,
    /// So long ago that the ledger has forgotten by which job.
    ExpiredLongAgo,
    /// Paid with `pi_1` after it had expired.
    Reacquired,
    Missing,
}

const SHAPES: [Shape; 9] = [
    Shape::Alive,
    Shape::Due,
    Shape::Paid,
    Shape::PaidNamed,
    Shape::Cancelled,
    Shape::Expired,
    Shape::ExpiredLongAgo,
    Shape::Reacquired,
    Shape::Missing,
];

/// For each command the outcome on each shape, in the order of `SHAPES`. `name:` is a refusal.
/// After the word stands what changes: `+` the reservation, with its one event and its stock;
/// `?` one event about a refused payment; `L` a row of the ledger. No mark: nothing changes.
const TABLE: &[(&str, &str)] = &[
    (
        "extend later",
        "held+ expired: paid: paid: cancelled: expired: expired: paid: missing:",
    ),
    (
        "extend not later",
        "limit: expired: paid: paid: cancelled: expired: expired: paid: missing:",
    ),
    (
        "extend too far",
        "limit: expired: paid: paid: cancelled: expired: expired: paid: missing:",
    ),
    (
        "extend out of time",
        "limit: expired: paid: paid: cancelled: expired: expired: paid: missing:",
    ),
    (
        "check out",
        "paid+ expired: paid paid: cancelled: expired: expired: paid: missing:",
    ),
    (
        "check out pi_1",
        "paid+ expired:? paid:? paid cancelled:? expired:? expired:? paid missing:",
    ),
    (
        "check out pi_2",
        "paid+ expired:? paid:? paid:? cancelled:? expired:? expired:? paid:? missing:",
    ),
    (
        "reacquire",
        "paid+ release paid paid: cancelled: reacquired+ reacquired+ paid: missing:",
    ),
    (
        "reacquire pi_1",
        "paid+ release paid:? paid cancelled:? reacquired+ reacquired+ paid missing:",
    ),
    (
        "reacquire pi_2",
        "paid+ release paid:? paid:? cancelled:? reacquired+ reacquired+ paid:? missing:",
    ),
    (
        "cancel",
        "cancelled+ expired: paid: paid: cancelled expired: expired: paid: missing:",
    ),
    (
        "expire",
        "not_due expired+L paidL paidL cancelledL duplicate already_expired duplicate unknown",
    ),
    (
        "expire an earlier deadline",
        "staleL staleL staleL staleL staleL staleL staleL staleL unknown",
    ),
    (
        "expire a later deadline",
        "staleL staleL staleL staleL staleL staleL staleL staleL unknown",
    ),
];

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(millis).unwrap()
}

fn text<const MAX: usize>(text: &str) -> Text<MAX> {
    Text::new(text).unwrap()
}

fn key() -> StockKey {
    StockKey {
        location: text("default"),
        sku: text("SKU-1"),
    }
}

fn id() -> ReservationId {
    ReservationId::new(at(DEADLINE - 60_000), [7; 10])
}

fn line(quantity: i64) -> Line {
    let (sku, location): (Sku, Location) = (text("SKU-1"), text("default"));
    Line {
        sku,
        location,
        quantity,
    }
}

/// Two lines of the same SKU, 3 units together, and 10 on hand.
fn snapshot(shape: Shape) -> (Snapshot, Timestamp) {
    let now = match shape {
        Shape::Alive | Shape::Paid | Shape::PaidNamed | Shape::Cancelled => DEADLINE - 1,
        _ => DEADLINE,
    };
    let state = match shape {
        Shape::Alive | Shape::Due => State::Held,
        Shape::Cancelled => State::Cancelled,
        Shape::Expired | Shape::ExpiredLongAgo => State::Expired,
        _ => State::Paid,
    };
    let named = matches!(shape, Shape::PaidNamed | Shape::Reacquired);
    let reservation = Reservation {
        id: id(),
        state,
        lines: vec![line(1), line(2)],
        expires_at: at(DEADLINE),
        attempt_at: at(DEADLINE),
        hold_seconds: 60,
        created_at: at(DEADLINE - 60_000),
        updated_at: at(DEADLINE - 60_000),
        closed_at: (state != State::Held).then(|| at(now)),
        extensions: 0,
        merchant: default_merchant(),
        customer_id: None,
        reference: None,
        payment_reference: named.then(|| text("pi_1")),
        reacquired: shape == Shape::Reacquired,
        metadata: BTreeMap::new(),
        waits: Waits::default(),
    };
    let held = if state == State::Held { 3 } else { 0 };
    let stock = Stock {
        key: key(),
        on_hand: 10,
        held,
        due: if shape == Shape::Due { held } else { 0 },
        updated_at: at(DEADLINE - 60_000),
    };
    let mut snapshot = Snapshot::default();
    snapshot.stock.insert(key(), stock);
    if matches!(shape, Shape::Expired | Shape::Reacquired) {
        snapshot.ledger.insert(reservation.job().id());
    }
    if shape != Shape::Missing {
        snapshot.reservations.insert(id(), reservation);
    }
    (snapshot, at(now))
}

fn command(name: &str) -> Command {
    let (verb, payment) = name
        .split_once(" pi_")
        .map_or((name, None), |(verb, number)| {
            (verb, Some(text(&format!("pi_{number}"))))
        });
    let extend = |until| Command::Extend { id: id(), until };
    let check_out = |on_expired| Command::CheckOut {
        id: id(),
        payment_reference: payment.clone(),
        on_expired,
    };
    let expire = |deadline| Command::Expire {
        job: Job {
            reservation: id(),
            deadline: at(deadline),
        },
        via: Via::Push,
        early: Early::Report,
    };
    match verb {
        "extend later" => extend(Deadline::In { seconds: 60 }),
        "extend not later" => extend(Deadline::At(at(DEADLINE))),
        "extend too far" => extend(Deadline::In { seconds: 86_400 }),
        "extend out of time" => extend(Deadline::In { seconds: i64::MAX }),
        "check out" => check_out(OnExpired::Reject),
        "reacquire" => check_out(OnExpired::Reacquire),
        "cancel" => Command::Cancel {
            id: id(),
            reason: None,
        },
        "expire" => expire(DEADLINE),
        "expire an earlier deadline" => expire(DEADLINE - 1),
        "expire a later deadline" => expire(DEADLINE + 1),
        other => panic!("no such command: {other}"),
    }
}

/// A decision in the words of `TABLE`.
fn said(decision: &Decision) -> String {
    let (outcome, changes) = match decision {
        Decision::SetAside(Lacking::Release(_)) => return "release".to_owned(),
        Decision::SetAside(Lacking::Units(_)) => return "units".to_owned(),
        Decision::Done { outcome, changes } => (outcome, changes),
    };
    let word = match outcome {
        Outcome::Reservation { reservation, .. } if reservation.reacquired => {
            if changes.is_empty() {
                "paid".to_owned()
            } else {
                "reacquired".to_owned()
            }
        }
        Outcome::Reservation { reservation, .. } => reservation.state.as_str().to_owned(),
        Outcome::Stock(_) => "stock".to_owned(),
        Outcome::Job(job) => job.as_str().to_owned(),
        Outcome::Refused(refusal) => match refusal {
            Refusal::NotHeld { state, .. } => format!("{}:", state.as_str()),
            Refusal::Expired { .. } => "expired:".to_owned(),
            Refusal::HoldLimit { .. } => "limit:".to_owned(),
            Refusal::NotFound { .. } => "missing:".to_owned(),
            Refusal::InsufficientStock { .. } => "insufficient:".to_owned(),
            Refusal::StockBelowHeld { .. } => "below-held:".to_owned(),
            Refusal::StockAboveMaximum { .. } => "above-maximum:".to_owned(),
        },
    };
    let is_refused_payment =
        matches!(&changes.events[..], [one] if one.kind == EventKind::PaymentRefused);
    format!(
        "{word}{}{}{}",
        if changes.reservations.is_empty() {
            ""
        } else {
            "+"
        },
        if is_refused_payment { "?" } else { "" },
        if changes.ledger.is_empty() { "" } else { "L" },
    )
}

/// What must be true of any change, whatever the command: P2, P3 (the guard carries it to the
/// database), P8 and P9.
fn assert_lawful(before: &Snapshot, decision: &Decision, now: Timestamp, case: &str) {
    let Decision::Done { changes, .. } = decision else {
        return;
    };
    assert_eq!(
        changes.events.len(),
        usize::from(!changes.reservations.is_empty())
            + changes
                .events
                .iter()
                .filter(|event| event.kind == EventKind::PaymentRefused)
                .count(),
        "P9, {case}"
    );
    let mut expected = StockDelta::default();
    for change in changes.reservations.values() {
        let was = &before.reservations[&id()];
        let is = &change.reservation;
        let guard = change.guard.expect("it was there before");
        assert_eq!((guard.state, guard.expires_at), (was.state, was.expires_at));
        let step = (was.state, is.state);
        assert!(
            matches!(step, (State::Held, _) | (State::Expired, State::Paid)),
            "P2, {case}: {step:?}"
        );
        if was.state == State::Held {
            let is_expiry = is.state == State::Expired;
            assert_eq!(is_expiry, now >= was.expires_at, "P3, {case}");
        }
        assert_eq!(is.closed_at.is_none(), is.state == State::Held, "{case}");
        assert_eq!(is.updated_at, now, "{case}");
        let held = |row: &Reservation| if row.state == State::Held { 3 } else { 0 };
        expected.held = held(is) - held(was);
        expected.on_hand = if is.state == State::Paid { -3 } else { 0 };
    }
    let delta = changes.stock.get(&key()).copied().unwrap_or_default();
    assert_eq!(delta, expected, "P8, {case}");
}

#[test]
fn p2_every_command_on_every_state_has_its_one_outcome() {
    for (name, row) in TABLE {
        let cells: Vec<&str> = row.split(' ').collect();
        assert_eq!(cells.len(), SHAPES.len(), "{name}");
        for (shape, cell) in SHAPES.into_iter().zip(cells) {
            let case = format!("{name} on {shape:?}");
            let (before, now) = snapshot(shape);
            let decision = decide(RULES, &before, &command(name), now);
            assert_eq!(said(&decision), cell, "{case}");
            assert_lawful(&before, &decision, now, &case);
        }
    }
}

/// The same again, as after a lost answer, gives the same answer and changes nothing more; only
/// an extension by seconds is asked for anew, and a job is told that it was done.
#[test]
fn p2_what_was_done_is_not_done_again() {
    for (name, _) in TABLE {
        for shape in SHAPES {
            let case = format!("{name} on {shape:?}");
            let (mut snapshot, now) = snapshot(shape);
            let command = command(name);
            let Decision::Done { outcome, changes } = decide(RULES, &snapshot, &command, now)
            else {
                continue;
            };
            let changed = !changes.is_empty();
            snapshot.fold(&changes, now);
            let again = decide(RULES, &snapshot, &command, now);
            match (&outcome, *name) {
                (_, "extend later") => {}
                (Outcome::Job(_), _) if changed => {
                    let Decision::Done { outcome, changes } = again else {
                        panic!("{case}");
                    };
                    assert!(changes.is_empty(), "{case}");
                    let repeated = matches!(
                        outcome,
                        Outcome::Job(JobOutcome::Duplicate | JobOutcome::Stale)
                    );
                    assert!(repeated, "{case}: {outcome:?}");
                }
                _ => {
                    let changes = Changes::default();
                    assert_eq!(again, Decision::Done { outcome, changes }, "{case}");
                }
            }
        }
    }
}

#[test]
fn p3_a_hold_is_alive_until_the_deadline_and_dead_from_it_on() {
    let (before, _) = snapshot(Shape::Alive);
    for (offset, pays) in [(-1, true), (0, false), (1, false), (60_000, false)] {
        let now = at(DEADLINE + offset);
        let paid = said(&decide(RULES, &before, &command("check out"), now));
        let cancelled = said(&decide(RULES, &before, &command("cancel"), now));
        let expired = said(&decide(RULES, &before, &command("expire"), now));
        let words = [paid.as_str(), cancelled.as_str(), expired.as_str()];
        if pays {
            assert_eq!(words, ["paid+", "cancelled+", "not_due"], "{offset}");
        } else {
            assert_eq!(words, ["expired:", "expired:", "expired+L"], "{offset}");
        }
    }
}
