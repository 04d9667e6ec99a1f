//! Deleting what nobody needs any more, and nothing else.

use std::collections::BTreeSet;

use holdfast::domain::{
    Changes, EventKind, Message, OnExpired, QueueRule, Reservation, ReservationId, State,
};
use holdfast::store::{
    ActionKind, Answer, CaseAction, HOLD, Horizons, Key, Parked, Published, RecordedAnswer,
    ReservationFilter, Sighting, Step,
};

use crate::world::{World, at, cancel, check_out, expire, extend, line, reserve, set};

const MINUTE_MS: i64 = 60_000;
const DAY_MS: i64 = 86_400_000;
const QUEUE: QueueRule = QueueRule {
    max_delay_ms: 7 * DAY_MS,
};

/// So many holds of a minute.
async fn holds(world: &World, count: usize) -> Vec<Reservation> {
    let mut held = Vec::new();
    for _ in 0..count {
        held.push(world.reservation(reserve(&[line("tea", 1)], 60)).await);
    }
    held
}

async fn expire_all(world: &World, held: &[Reservation]) {
    let jobs: Vec<_> = held.iter().map(expire).collect();
    world.run(&jobs).await;
}

/// All steps of a walk: how many rows each deleted.
macro_rules! walk {
    ($world:expr, $verb:ident, $age_ms:expr, $limit:expr) => {{
        let mut deleted = Vec::new();
        let mut after = None;
        loop {
            let retention = $world.store.retention();
            let step = retention.$verb($age_ms, $limit, after).await.unwrap();
            deleted.push(step.deleted);
            after = step.after;
            if after.is_none() {
                break deleted;
            }
        }
    }};
}

async fn horizons(world: &World) -> Horizons {
    world.store.retention().horizons().await.unwrap()
}

/// The reservations that are there.
async fn there(world: &World) -> BTreeSet<ReservationId> {
    let any = ReservationFilter::default();
    let (rows, _) = world
        .store
        .list_reservations(&any, None, 1_000)
        .await
        .unwrap();
    rows.into_iter().map(|row| row.id).collect()
}

fn names<'r>(rows: impl IntoIterator<Item = &'r Reservation>) -> BTreeSet<ReservationId> {
    rows.into_iter().map(|row| row.id).collect()
}

async fn assert_no_drift(world: &World) {
    assert_eq!(world.drifts().await, BTreeSet::new());
}

fn answer(key: &str, created_at: i64) -> RecordedAnswer {
    RecordedAnswer {
        key: Key {
            scope: "shop".to_owned(),
            key: key.to_owned(),
        },
        fingerprint: vec![1; 32],
        answer: Answer {
            status: 201,
            location: None,
            body: "{}".to_owned(),
        },
        created_at: at(created_at),
    }
}

pub async fn old_answers_go_and_young_ones_stay(world: World) {
    let answers = [
        answer("c", 0),
        answer("a", 2),
        answer("b", 1),
        answer("young", 3),
    ];
    world.write(&Changes::default(), &answers).await.unwrap();
    world.clock.set(at(DAY_MS + 2));
    let retention = world.store.retention();
    assert_eq!(retention.delete_answers(DAY_MS, 2).await.unwrap(), 2);
    let keys = answers.iter().map(|answer| answer.key.clone()).collect();
    let recorded = async || {
        let mut transaction = world.store.begin().await.unwrap();
        let locked = transaction.lock_keys(&keys).await.unwrap();
        transaction.rollback().await;
        let left = locked.recorded.into_keys().map(|key| key.key);
        left.collect::<Vec<_>>()
    };
    // The oldest first.
    assert_eq!(recorded().await, ["a", "young"]);
    assert_eq!(retention.delete_answers(DAY_MS, 2).await.unwrap(), 1);
    assert_eq!(retention.delete_answers(DAY_MS, 2).await.unwrap(), 0);
    assert_eq!(recorded().await, ["young"]);
    assert_eq!(horizons(&world).await, Horizons::default());
}

async fn claim(world: &World) -> Vec<(Message, u32)> {
    let claimed = world.store.outbox().claim(100, 1_000).await.unwrap();
    let messages = claimed.messages.iter();
    messages.map(|it| (it.message, it.attempt)).collect()
}

/// Publishes all that can be, except for these, which are parked.
async fn publish_but(world: &World, parked: &[&Reservation]) {
    let outbox = world.store.outbox();
    for (message, attempt) in claim(world).await {
        if parked.iter().any(|held| held.job() == message.job) {
            let reason = "refused".to_owned();
            let parked = Parked {
                message,
                attempt,
                reason,
            };
            assert_eq!(outbox.park(&[parked]).await.unwrap(), 1);
        } else {
            let receipt = None;
            let published = Published {
                message,
                attempt,
                receipt,
            };
            assert_eq!(outbox.mark_published(&[published], "q").await.unwrap(), 1);
        }
    }
}

pub async fn messages_go_when_their_holds_are_over(mut world: World) {
    world.queue = Some(QUEUE);
    world.run(&[set("tea", 100)]).await;
    let held = holds(&world, 4).await;
    publish_but(&world, &[&held[3]]).await;
    // Until then nothing was due for a day.
    world.clock.set(at(DAY_MS));
    expire_all(&world, &held[..2]).await;
    world.run(&[expire(&held[3]), cancel(held[2].id)]).await;
    assert_eq!(walk!(world, delete_messages, DAY_MS, 10), [0]);
    // The day is counted from the deadline.
    world.clock.set(at(DAY_MS + MINUTE_MS - 1));
    assert_eq!(walk!(world, delete_messages, DAY_MS, 10), [0]);
    world.clock.set(at(DAY_MS + MINUTE_MS));
    // The third could not be cancelled so late, and is still held: due, and never released.
    assert_eq!(world.stored(held[2].id).await.state, State::Held);
    // In steps of two, each of which goes on where the last one stopped; the fourth is an open
    // case.
    assert_eq!(walk!(world, delete_messages, DAY_MS, 2), [2, 0, 0]);
    assert_eq!(walk!(world, delete_messages, DAY_MS, 10), [0]);
    assert_no_drift(&world).await;
}

/// A retention that goes by when a row was written deletes what is scheduled far ahead.
pub async fn a_message_that_waits_for_a_hold_is_never_deleted(mut world: World) {
    world.queue = Some(QUEUE);
    world.run(&[set("tea", 100)]).await;
    let month = || reserve(&[line("tea", 1)], 30 * 86_400);
    let waits = world.reservation(month()).await;
    let paid = world.reservation(month()).await;
    let extended = world.reservation(reserve(&[line("tea", 1)], 60)).await;
    publish_but(&world, &[]).await;
    world.run(&[extend(extended.id, 29 * 86_400)]).await;
    world
        .run(&[check_out(paid.id, "pi", OnExpired::Reject)])
        .await;
    let next = world.store.outbox().next_publication().await.unwrap();
    for day in 1..23 {
        world.clock.set(at(day * DAY_MS - 1));
        let deleted = walk!(world, delete_messages, DAY_MS, 10);
        assert_eq!(deleted, [0], "day {day}");
        if day == 1 {
            // What was paid for needs no message, and is not kept until it could be published.
            world.clock.set(at(DAY_MS));
            assert_eq!(walk!(world, delete_messages, DAY_MS, 10), [0]);
            world.clock.set(at(DAY_MS + 1));
            assert_eq!(walk!(world, delete_messages, DAY_MS, 10), [1]);
        }
    }
    let later = world.store.outbox().next_publication().await.unwrap();
    assert_eq!(next.publish_after, later.publish_after);
    world.clock.set(at(23 * DAY_MS + 2 * MINUTE_MS));
    let claimed: BTreeSet<_> = (claim(&world).await.into_iter())
        .map(|(message, _)| message.job.reservation)
        .collect();
    assert_eq!(claimed, BTreeSet::from([waits.id, extended.id]));
    assert_no_drift(&world).await;
}

pub async fn jobs_leave_the_ledger_when_they_were_done_long_ago(world: World) {
    world.run(&[set("tea", 100)]).await;
    let held = holds(&world, 5).await;
    world.clock.set(at(MINUTE_MS));
    expire_all(&world, &held[..3]).await;
    world.clock.set(at(2 * MINUTE_MS));
    expire_all(&world, &held[3..]).await;
    world.clock.set(at(DAY_MS + MINUTE_MS - 1));
    assert_eq!(walk!(world, delete_ledger, DAY_MS, 10), [0]);
    assert_eq!(horizons(&world).await.ledger, None);
    world.clock.set(at(DAY_MS + MINUTE_MS));
    assert_eq!(walk!(world, delete_ledger, DAY_MS, 2), [2, 1, 0]);
    assert_eq!(horizons(&world).await.ledger, Some(at(MINUTE_MS)));
    assert_no_drift(&world).await;
    // What the ledger no longer knows, the guard does.
    world.run(&[expire(&held[0])]).await;
    assert_eq!(
        world.shelf(&crate::world::key("tea")).await,
        Some((100, 0, 0))
    );
    assert_no_drift(&world).await;
    // Of recent jobs it still has to know.
    let jobs = held.iter().map(|held| held.job().id()).collect();
    let mut transaction = world.store.begin().await.unwrap();
    let known = transaction.jobs_done(&jobs).await.unwrap();
    transaction.rollback().await;
    let recent = held[3..].iter().map(|held| held.job().id());
    assert_eq!(known, recent.collect());
}

pub async fn a_recent_job_that_the_ledger_lacks_is_still_found(world: World) {
    world.run(&[set("tea", 100)]).await;
    let held = holds(&world, 3).await;
    world.clock.set(at(MINUTE_MS));
    expire_all(&world, &held[..1]).await;
    world.clock.set(at(DAY_MS + MINUTE_MS));
    assert_eq!(walk!(world, delete_ledger, DAY_MS, 10), [1]);
    let mut changes = world.decide(&[expire(&held[1])]).await;
    changes.ledger.clear();
    world.write(&changes, &[]).await.unwrap();
    let missing = ("P9", format!("reservation {}", held[1].id));
    assert_eq!(world.drifts().await, BTreeSet::from([missing]));
}

pub async fn reservations_outlive_their_ledger_rows(world: World) {
    world.run(&[set("tea", 100)]).await;
    let held = holds(&world, 6).await;
    let long = world
        .reservation(reserve(&[line("tea", 1)], 86_400 * 20))
        .await;
    world
        .run(&[
            cancel(held[0].id),
            check_out(held[1].id, "pi", OnExpired::Reject),
        ])
        .await;
    world.clock.set(at(MINUTE_MS));
    expire_all(&world, &held[2..5]).await;
    world
        .run(&[check_out(held[2].id, "pi", OnExpired::Reacquire)])
        .await;
    // The second and the fourth are open cases, the third is a settled one.
    let quarantine = world.store.quarantine();
    for (source, key) in [
        ("rest", held[1].job().id() + "#2"),
        (HOLD, held[3].id.to_string()),
        (HOLD, held[2].id.to_string()),
    ] {
        let sighting = Sighting {
            source: source.to_owned(),
            key,
            payload: Vec::new(),
            reason: "puzzling".to_owned(),
        };
        quarantine.record(&sighting).await.unwrap();
    }
    let last = quarantine.open(10, 0).await.unwrap().pop().unwrap();
    let settle = CaseAction {
        case: last.id,
        kind: ActionKind::Dismiss,
        by: "ann".to_owned(),
        outcome: "dismissed".to_owned(),
        resolution: Some("dismissed".to_owned()),
        again: None,
    };
    assert!(quarantine.act(&settle).await.unwrap());
    world.clock.set(at(DAY_MS + MINUTE_MS));
    // The first was closed a minute earlier than the others; the ledger knows three; the sixth is due and held, the seventh lives.
    assert_eq!(walk!(world, delete_reservations, DAY_MS, 2), [1, 0, 0, 0]);
    assert_eq!(there(&world).await.len(), 6);
    assert_no_drift(&world).await;
    assert_eq!(walk!(world, delete_ledger, DAY_MS, 10), [3]);
    world.clock.set(at(DAY_MS + MINUTE_MS - 1));
    assert_eq!(walk!(world, delete_reservations, DAY_MS, 10), [0]);
    world.clock.set(at(DAY_MS + MINUTE_MS));
    assert_eq!(walk!(world, delete_reservations, DAY_MS, 10), [2]);
    let left = [&held[1], &held[3], &held[5], &long];
    assert_eq!(there(&world).await, names(left));
    assert_eq!(horizons(&world).await.reservations, Some(at(MINUTE_MS)));
    assert_no_drift(&world).await;
    // A job of one that is gone changes nothing.
    let (expired, _) = world.store.reservation(held[4].id).await.unwrap();
    assert_eq!(expired, None);
    let before = world.store.events(0, 1_000).await.unwrap();
    world.run(&[expire(&held[4])]).await;
    assert_eq!(world.store.events(0, 1_000).await.unwrap(), before);
    assert_no_drift(&world).await;
}

/// What nobody may miss is missed, horizon or not.
pub async fn a_reservation_that_went_too_early_is_still_found(world: World) {
    world.run(&[set("tea", 100)]).await;
    let held = holds(&world, 1).await;
    world.run(&[cancel(held[0].id)]).await;
    world.clock.set(at(DAY_MS));
    // One whose row nobody wrote; then what lies before the horizon is deleted.
    let mut changes = world.decide(&[reserve(&[line("tea", 1)], 60)]).await;
    let lost = *changes.reservations.keys().next().unwrap();
    changes.reservations.clear();
    changes.stock.clear();
    world.write(&changes, &[]).await.unwrap();
    world.clock.set(at(2 * DAY_MS));
    assert_eq!(walk!(world, delete_reservations, DAY_MS, 10), [1]);
    let missing = ("P9", format!("reservation {lost}"));
    assert_eq!(world.drifts().await, BTreeSet::from([missing]));
}

pub async fn events_go_from_the_beginning_of_the_log(world: World) {
    world.run(&[set("tea", 100)]).await;
    let held = holds(&world, 3).await;
    world.run(&[cancel(held[0].id)]).await;
    world.clock.set(at(MINUTE_MS));
    expire_all(&world, &held[1..]).await;
    let all = world.store.events(0, 100).await.unwrap();
    assert_eq!(all.len(), 7);
    let retention = world.store.retention();
    world.clock.set(at(DAY_MS));
    assert_eq!(retention.delete_events(DAY_MS, 3).await.unwrap(), 3);
    assert_eq!(horizons(&world).await.last_deleted_event, 3);
    assert_eq!(world.store.events(0, 100).await.unwrap(), all[3..]);
    assert_no_drift(&world).await;
    // Only what is old.
    assert_eq!(retention.delete_events(DAY_MS, 100).await.unwrap(), 2);
    assert_eq!(retention.delete_events(DAY_MS, 100).await.unwrap(), 0);
    assert_eq!(world.store.events(0, 100).await.unwrap(), all[5..]);
    assert_no_drift(&world).await;
    world.clock.set(at(DAY_MS + MINUTE_MS));
    assert_eq!(retention.delete_events(DAY_MS, 100).await.unwrap(), 2);
    let expected = Horizons {
        events: Some(at(MINUTE_MS)),
        last_deleted_event: 7,
        ..Horizons::default()
    };
    assert_eq!(horizons(&world).await, expected);
    assert_eq!(world.store.events(0, 100).await.unwrap(), []);
    assert_no_drift(&world).await;
    // The log goes on with the next number.
    holds(&world, 1).await;
    let fresh = world.store.events(0, 100).await.unwrap();
    assert_eq!(fresh[0].seq, 8);
    assert_no_drift(&world).await;
}

pub async fn a_refused_payment_stays_as_long_as_its_reservation(world: World) {
    world.run(&[set("tea", 100)]).await;
    let held = holds(&world, 2).await;
    world.clock.set(at(MINUTE_MS));
    expire_all(&world, &held).await;
    let pay = check_out(held[0].id, "pi", OnExpired::Reject);
    world.run(std::slice::from_ref(&pay)).await;
    let refused = |events: &[holdfast::store::RecordedEvent]| {
        let kinds = events.iter().map(|it| it.event.kind);
        kinds
            .filter(|kind| *kind == EventKind::PaymentRefused)
            .count()
    };
    world.clock.set(at(2 * DAY_MS));
    let retention = world.store.retention();
    assert_eq!(retention.delete_events(DAY_MS, 100).await.unwrap(), 5);
    assert_eq!(retention.delete_events(DAY_MS, 100).await.unwrap(), 0);
    // Tried again, it is refused again, and that is known already.
    world.run(&[pay]).await;
    assert_eq!(refused(&world.store.events(0, 100).await.unwrap()), 1);
    assert_eq!(walk!(world, delete_ledger, DAY_MS, 10), [2]);
    assert_eq!(walk!(world, delete_reservations, DAY_MS, 10), [2]);
    assert_eq!(retention.delete_events(DAY_MS, 100).await.unwrap(), 1);
    assert_no_drift(&world).await;
}

pub async fn nothing_is_deleted_from_nothing(world: World) {
    let retention = world.store.retention();
    assert_eq!(retention.delete_answers(0, 10).await.unwrap(), 0);
    assert_eq!(retention.delete_events(0, 10).await.unwrap(), 0);
    let none = retention.delete_ledger(i64::MAX, 10, None).await.unwrap();
    let expected = Step {
        deleted: 0,
        after: None,
    };
    assert_eq!(none, expected);
    assert_eq!(walk!(world, delete_messages, 0, 10), [0]);
    assert_eq!(walk!(world, delete_reservations, 0, 10), [0]);
    assert_eq!(horizons(&world).await, Horizons::default());
}
