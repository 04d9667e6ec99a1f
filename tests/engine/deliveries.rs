//! Expiry jobs that come back: twice, early, late, in the wrong order, for nothing, and all at once.

use futures_util::future::join_all;
use holdfast::domain::{EventKind, Job, Message, ReservationId, State, Via};
use holdfast::store::Store;

use crate::auditor::assert_sound;
use crate::faulty::{Fault, Step, faulty};
use crate::scripted::queued;
use crate::shop::{cancel, extend, homes, pay};

async fn expired_events(store: &dyn Store) -> usize {
    let events = store.events(0, 1_000).await.unwrap();
    let expired = |it: &&_| {
        let holdfast::store::RecordedEvent { event, .. } = it;
        event.kind == EventKind::Expired
    };
    events.iter().filter(expired).count()
}

#[tokio::test]
async fn p2_every_tenth_delivery_twice_releases_each_hold_once() {
    for home in homes().await {
        let mut it = queued(&home);
        it.shop.stock_up("A", 50).await;
        for _ in 0..50 {
            it.shop.hold("A", 1, 60).await;
        }
        it.relay().await;
        it.clock.advance(60_000);
        for (number, message) in it.queue.messages().into_iter().enumerate() {
            assert_eq!(it.deliver(message).await, "expired");
            if number % 10 == 0 {
                assert_eq!(it.deliver(message).await, "duplicate", "{}", home.name);
            }
        }
        assert_eq!(expired_events(home.store.as_ref()).await, 50);
        assert_eq!(it.shop.on_shelf("A").await.held, 0);
        assert_sound(home.store.as_ref()).await;
    }
}

#[tokio::test]
async fn p3_a_delivery_that_is_a_little_early_is_waited_for() {
    for home in homes().await {
        let it = queued(&home);
        it.shop.stock_up("A", 1).await;
        let held = it.shop.hold("A", 1, 60).await;
        it.clock.advance(58_001);
        assert_eq!(it.deliver(Message::first(held.job())).await, "expired");
        assert_eq!(it.clock.now(), held.expires_at, "{}: not before", home.name);
        assert_sound(home.store.as_ref()).await;
    }
}

#[tokio::test]
async fn p3_a_delivery_that_is_much_too_early_is_published_again() {
    for home in homes().await {
        let mut it = queued(&home);
        it.shop.stock_up("A", 1).await;
        let held = it.shop.hold("A", 1, 60).await;
        it.relay().await;
        let first = it.queue.messages();
        it.clock.advance(57_999);
        assert_eq!(it.deliver(first[0]).await, "rearmed", "{}", home.name);
        assert_eq!(it.shop.state(held.id).await, State::Held);
        it.relay().await;
        assert_eq!(it.queue.messages(), [], "it would come early again");
        it.clock.advance(2_001);
        it.relay().await;
        let again = it.queue.messages();
        assert_eq!(
            again,
            [Message {
                copy: 2,
                ..first[0]
            }]
        );
        assert_eq!(it.deliver(again[0]).await, "expired");
        assert_sound(home.store.as_ref()).await;
    }
}

#[tokio::test]
async fn p4_deliveries_around_an_extension_in_either_order() {
    for home in homes().await {
        let it = queued(&home);
        it.shop.stock_up("A", 2).await;
        for old_first in [true, false] {
            let old = it.shop.hold("A", 1, 60).await;
            it.shop.done(extend(old.id, 60)).await;
            let new = it.shop.find(old.id).await;
            it.clock.advance(120_000);
            let mut jobs = [(old.job(), "stale"), (new.job(), "expired")];
            if !old_first {
                // Afterwards the old job finds a hold that has ended at another deadline.
                jobs.reverse();
            }
            for (job, outcome) in jobs {
                assert_eq!(
                    it.deliver(Message::first(job)).await,
                    outcome,
                    "{}",
                    home.name
                );
            }
        }
        assert_eq!(expired_events(home.store.as_ref()).await, 2);
        assert_sound(home.store.as_ref()).await;
    }
}

#[tokio::test]
async fn p2_deliveries_after_the_hold_has_ended_change_nothing() {
    for home in homes().await {
        let it = queued(&home);
        it.shop.stock_up("A", 3).await;
        let paid = it.shop.hold("A", 1, 60).await;
        let cancelled = it.shop.hold("A", 1, 60).await;
        it.shop.done(pay(paid.id)).await;
        it.shop.done(cancel(cancelled.id)).await;
        it.clock.advance(60_000);
        for (held, outcomes) in [
            (paid, ["paid", "duplicate"]),
            (cancelled, ["cancelled", "duplicate"]),
        ] {
            for outcome in outcomes {
                let message = Message::first(held.job());
                assert_eq!(it.deliver(message).await, outcome, "{}", home.name);
            }
        }
        assert_eq!(expired_events(home.store.as_ref()).await, 0);
        assert_sound(home.store.as_ref()).await;
    }
}

/// Nothing is dropped in silence, and nothing comes again and again.
#[tokio::test]
async fn p12_what_is_no_job_goes_into_quarantine_once() {
    for home in homes().await {
        let it = queued(&home);
        let unknown = Message::first(Job {
            reservation: ReservationId::new(it.clock.now(), [9; 10]),
            deadline: it.clock.now(),
        });
        for _ in 0..2 {
            assert_eq!(it.deliver(unknown).await, "quarantined", "{}", home.name);
            assert_eq!(it.deliver_bytes(b"\0 no json").await, "quarantined");
        }
        let cases = home.store.quarantine().open(10, 0).await.unwrap();
        assert_eq!(cases.len(), 2, "{}", home.name);
        assert!(cases.iter().all(|case| case.attempts == 2));
        assert_eq!(cases[0].sighting.key, unknown.job.id());
        assert_eq!(cases[1].sighting.payload, b"\0 no json");
        let name = "sha256:46cc2139667541763dfeeef07460bcf141fc64fbdd29116cc02e2052cde342c8";
        assert_eq!(cases[1].sighting.key, name, "as `sha256sum` says");
        assert_sound(home.store.as_ref()).await;
    }
}

/// kalaspuff/tomodachi PR 2074: a message was remembered and its work was not done, so that each
/// further delivery was taken for a duplicate. What is remembered here is the work.
#[tokio::test]
async fn p5_a_job_whose_first_delivery_came_to_nothing_is_done_by_a_later_one() {
    for mut home in homes().await {
        let (store, plan) = faulty(&home.store);
        home.store = store;
        let it = queued(&home);
        it.shop.stock_up("A", 100).await;
        let mut jobs = Vec::new();
        for (step, fault) in [
            (Step::LockReservations, Fault::Unavailable),
            (Step::JobsDone, Fault::Unavailable),
            (Step::WriteTransitions, Fault::Unavailable),
            (Step::WriteRest, Fault::Unavailable),
            (Step::Commit, Fault::LostAborted),
        ] {
            let held = it.shop.hold("A", 1, 60).await;
            home.clock.advance(60_000);
            let message = Message::first(held.job());
            plan.always(step, fault);
            for _ in 0..2 {
                let payload = message.payload();
                let delivered = it.deliveries.deliver(payload.as_bytes(), Via::Push, None);
                assert!(delivered.await.is_err(), "{step:?} on {}", home.name);
                assert_eq!(it.shop.state(held.id).await, State::Held, "{step:?}");
            }
            plan.heal();
            // The same message, as often as it comes.
            for outcome in ["expired", "duplicate", "duplicate", "duplicate"] {
                assert_eq!(it.deliver(message).await, outcome, "{step:?}");
            }
            jobs.push(message);
        }
        // All of them once more, in reverse order: it is said what they came to.
        let many = jobs.len();
        for message in jobs.into_iter().rev() {
            assert_eq!(it.deliver(message).await, "duplicate", "{}", home.name);
        }
        // One whose hold has moved or was paid meanwhile is told so, and the hold stays.
        let moved = it.shop.hold("A", 1, 60).await;
        let paid = it.shop.hold("A", 1, 60).await;
        it.shop.done(extend(moved.id, 60)).await;
        it.shop.done(pay(paid.id)).await;
        home.clock.advance(60_000);
        for outcome in ["stale", "stale"] {
            assert_eq!(it.deliver(Message::first(moved.job())).await, outcome);
        }
        for outcome in ["paid", "duplicate"] {
            assert_eq!(it.deliver(Message::first(paid.job())).await, outcome);
        }
        assert_eq!(it.shop.state(moved.id).await, State::Held);
        assert_eq!(expired_events(home.store.as_ref()).await, many);
        assert_sound(home.store.as_ref()).await;
    }
}

#[tokio::test]
async fn p2_of_ten_deliveries_at_once_one_releases() {
    for home in homes().await {
        let it = queued(&home);
        it.shop.stock_up("A", 1).await;
        let held = it.shop.hold("A", 1, 60).await;
        it.clock.advance(60_000);
        let message = Message::first(held.job());
        let mut outcomes = join_all((0..10).map(|_| it.deliver(message))).await;
        outcomes.sort_unstable();
        assert_eq!(outcomes[..9], ["duplicate"; 9], "{}", home.name);
        assert_eq!(outcomes[9], "expired");
        assert_eq!(expired_events(home.store.as_ref()).await, 1);
        assert_sound(home.store.as_ref()).await;
    }
}
