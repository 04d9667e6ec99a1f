//! Expiry jobs on their way out: what the relay publishes, when, and what it does when the queue
//! does not take it.

use std::sync::Arc;
use std::time::Duration;

use holdfast::domain::{EventKind, Message, State, Timestamp};
use holdfast::engine::Bounds;
use holdfast::queue::Fault;
use holdfast::worker::{Next, Worker as _};

use crate::auditor::assert_sound;
use crate::scripted::{GRACE, Loop, queued};
use crate::shop::{Home, cancel, extend, homes, pay};

const LEASE_MS: i64 = 60_000;

/// How late each hold expired, in milliseconds.
async fn lateness(home: &Home) -> Vec<i64> {
    let events = home.store.events(0, 1_000).await.unwrap();
    events
        .iter()
        .filter(|it| it.event.kind == EventKind::Expired)
        .map(|it| it.event.data.value()["lateness_ms"].as_i64().unwrap())
        .collect()
}

#[tokio::test]
async fn p12_a_job_is_published_once_with_the_delay_that_is_left() {
    for home in homes().await {
        let mut it = queued(&home);
        it.shop.stock_up("A", 10).await;
        let held = it.shop.hold("A", 1, 60).await;
        it.clock.advance(10_250);
        it.relay().await;
        let accepted = it.queue.accepted();
        assert_eq!(accepted.len(), 1, "{}", home.name);
        assert_eq!(accepted[0].message, Message::first(held.job()));
        assert_eq!(accepted[0].delay_ms, 49_750);
        it.relay().await;
        assert_eq!(it.queue.messages(), [], "it was marked");
        it.shop.done(extend(held.id, 60)).await;
        it.relay().await;
        let moved = it.shop.find(held.id).await;
        assert_eq!(it.queue.messages(), [Message::first(moved.job())]);
    }
}

/// What is over, or will be over at another time, is not published.
#[tokio::test]
async fn p4_what_is_paid_cancelled_or_moved_is_not_published() {
    for home in homes().await {
        let mut it = queued(&home);
        it.shop.stock_up("A", 10).await;
        let paid = it.shop.hold("A", 1, 60).await;
        let cancelled = it.shop.hold("A", 1, 60).await;
        let moved = it.shop.hold("A", 1, 60).await;
        it.shop.done(pay(paid.id)).await;
        it.shop.done(cancel(cancelled.id)).await;
        it.shop.done(extend(moved.id, 60)).await;
        it.relay().await;
        let moved = it.shop.find(moved.id).await;
        assert_eq!(it.queue.messages(), [Message::first(moved.job())]);
    }
}

/// A relay that dies between publishing and marking leaves a message that is published again.
#[tokio::test]
async fn p12_what_a_dead_relay_had_is_published_when_its_lease_ends() {
    for home in homes().await {
        let mut it = queued(&home);
        it.shop.stock_up("A", 500).await;
        for _ in 0..500 {
            it.shop.hold("A", 1, 3_600).await;
        }
        let outbox = home.store.outbox();
        let dead = outbox.claim(500, LEASE_MS).await.unwrap();
        assert_eq!(dead.messages.len(), 500);
        it.relay().await;
        assert_eq!(it.queue.messages(), [], "they are not ours");
        it.clock.advance(LEASE_MS);
        it.relay().await;
        assert_eq!(it.queue.messages().len(), 500, "{}", home.name);
        // The dead one comes back, and what it says counts no more.
        let late: Vec<_> = dead
            .messages
            .iter()
            .map(|claimed| holdfast::store::Published {
                message: claimed.message,
                attempt: claimed.attempt,
                receipt: None,
            })
            .collect();
        let marked = outbox.mark_published(&late, "scripted").await.unwrap();
        assert_eq!(marked, 0);
    }
}

#[tokio::test]
async fn p6_a_retry_moves_the_attempt_and_never_the_deadline() {
    for home in homes().await {
        let mut it = queued(&home);
        it.shop.stock_up("A", 10).await;
        let held = it.shop.hold("A", 1, 60).await;
        it.queue.says(Fault::RetryAfter {
            wait: Duration::from_secs(7),
            answer: "429".to_owned(),
        });
        it.relay().await;
        let next = home.store.outbox().next_publication().await.unwrap();
        let seven = it.clock.now().saturating_add_millis(7_000);
        assert_eq!(next.publish_after, Some(seven), "{}", home.name);
        assert_eq!(it.shop.find(held.id).await.expires_at, held.expires_at);
        it.clock.advance(6_999);
        it.relay().await;
        assert_eq!(it.queue.messages(), []);
        it.clock.advance(1);
        it.relay().await;
        let accepted = it.queue.accepted();
        assert_eq!(accepted[0].message, Message::first(held.job()));
        assert_eq!(accepted[0].delay_ms, 53_000);
    }
}

#[tokio::test]
async fn p12_what_the_queue_refuses_is_put_aside_and_its_hold_expires_all_the_same() {
    for home in homes().await {
        let mut it = queued(&home);
        it.shop.stock_up("A", 10).await;
        let held = it.shop.hold("A", 1, 60).await;
        it.queue.says(Fault::Refused("422: no".to_owned()));
        it.relay().await;
        let cases = home.store.quarantine().open(10, 0).await.unwrap();
        assert_eq!(cases.len(), 1, "{}", home.name);
        assert_eq!(cases[0].sighting.key, held.job().id());
        assert_eq!(cases[0].sighting.reason, "422: no");
        it.pass(60_000 + 301_000).await;
        assert_eq!(it.queue.messages(), [], "it is not tried again");
        assert_eq!(it.shop.state(held.id).await, State::Expired);
        let late = lateness(&home).await;
        assert!((300_000..=301_000).contains(&late[0]), "{late:?}");
        assert_sound(home.store.as_ref()).await;
    }
}

/// What a hold goes through when the queue is away for so long from its beginning on.
async fn away(home: &Home, milliseconds: i64) -> (Loop, Vec<i64>) {
    let mut it = queued(home);
    it.shop.stock_up("A", 10).await;
    let held = it.shop.hold("A", 1, 60).await;
    it.queue.goes_away();
    it.pass(milliseconds).await;
    it.queue.comes_back();
    it.pass(31_000).await;
    for message in it.queue.messages() {
        let left_ms = message.job.deadline.millis_since(it.clock.now());
        it.pass(left_ms.max(0)).await;
        it.deliver(message).await;
    }
    it.pass(361_000).await;
    assert_eq!(it.shop.state(held.id).await, State::Expired);
    assert_sound(home.store.as_ref()).await;
    let late = lateness(home).await;
    (it, late)
}

#[tokio::test]
async fn p7_a_queue_that_is_away_for_ten_seconds_costs_nothing() {
    for home in homes().await {
        let (_, late) = away(&home, 10_000).await;
        assert_eq!(late, [0], "{}", home.name);
    }
}

#[tokio::test]
async fn p7_a_queue_that_is_away_for_good_costs_the_grace_and_no_second_release() {
    for home in homes().await {
        // Longer than the hold and the grace together; when it comes back, nothing is left to do.
        let (it, late) = away(&home, 600_000).await;
        assert_eq!(late.len(), 1, "{}: released once", home.name);
        assert!((300_000..=301_000).contains(&late[0]), "{late:?}");
        assert_eq!(it.queue.messages(), [], "the job was over");
    }
}

/// A queue that loses what it has accepted.
#[tokio::test]
async fn p7_a_queue_that_forgets_everything_costs_the_grace() {
    for home in homes().await {
        let mut it = queued(&home);
        it.shop.stock_up("A", 20).await;
        for _ in 0..20 {
            it.shop.hold("A", 1, 60).await;
        }
        it.relay().await;
        let forgotten = it.queue.messages();
        assert_eq!(forgotten.len(), 20);
        it.pass(60_000 + 301_000).await;
        let late = lateness(&home).await;
        assert_eq!(late.len(), 20, "{}", home.name);
        assert!(late.iter().all(|late| (300_000..=301_000).contains(late)));
        for message in forgotten {
            assert_eq!(it.deliver(message).await, "duplicate", "it remembers again");
        }
        assert_sound(home.store.as_ref()).await;
    }
}

/// While nothing can be published the relay tries with one message, and all go out afterwards.
#[tokio::test]
async fn a_queue_that_takes_nothing_is_tried_with_one_message() {
    for home in homes().await {
        let mut it = queued(&home);
        it.shop.stock_up("A", 300).await;
        for _ in 0..300 {
            it.shop.hold("A", 1, 3_600).await;
        }
        it.queue.goes_away();
        let Next::After(_) = it.relay.run_once().await.unwrap() else {
            panic!("it rests");
        };
        it.clock.advance(30_000);
        let Next::After(_) = it.relay.run_once().await.unwrap() else {
            panic!("it rests");
        };
        it.queue.comes_back();
        it.pass(31_000).await;
        assert_eq!(it.queue.messages().len(), 300, "{}", home.name);
    }
}

/// A run ends at its bounds, and after the first try if the queue takes nothing; what it adopts
/// counts like what was there.
#[tokio::test]
async fn a_bounded_run_does_what_it_may_and_says_what_is_left() {
    for home in homes().await {
        let timer = crate::shop::Shop::open(&home.store);
        timer.stock_up("A", 1_000).await;
        for _ in 0..5 {
            timer.hold("A", 1, 3_600).await;
        }
        let mut it = queued(&home);
        let ended = it.shop.hold("A", 1, 3_600).await;
        it.shop.done(cancel(ended.id)).await;
        let bounds = |rows, seconds| Bounds::new(rows, seconds).unwrap();
        let run = it.relay.run_bounded(bounds(3, 60)).await.unwrap();
        assert_eq!((run.published, run.skipped, run.more), (2, 1, true));
        it.relay().await;
        assert_eq!(it.queue.messages().len(), 5, "{}", home.name);

        for _ in 0..600 {
            it.shop.hold("A", 1, 3_600).await;
        }
        it.queue.goes_away();
        let run = it.relay.run_bounded(bounds(600, 60)).await.unwrap();
        assert_eq!((run.published, run.postponed, run.more), (0, 256, true));
        it.queue.comes_back();
        // Each round takes nine seconds, so that only one step begins in time.
        *it.queue.slow.lock().unwrap() = Some((Arc::clone(&it.clock), 9_000));
        let run = it.relay.run_bounded(bounds(600, 1)).await.unwrap();
        assert_eq!((run.published, run.more), (256, true), "{}", home.name);
        assert!(run.duration_ms >= 9_000, "{run:?}");
        *it.queue.slow.lock().unwrap() = None;
        it.clock.advance(60_000);
        let run = it.relay.run_bounded(bounds(600, 60)).await.unwrap();
        assert_eq!((run.published, run.more), (344, false), "{}", home.name);
        assert_sound(home.store.as_ref()).await;
    }
}

/// Switching to a queue is a restart: holds that were made before it get their messages.
#[tokio::test]
async fn holds_from_before_the_queue_are_adopted() {
    for home in homes().await {
        let timer = crate::shop::Shop::open(&home.store);
        timer.stock_up("A", 10).await;
        let held = timer.hold("A", 1, 60).await;
        let mut it = queued(&home);
        it.relay().await;
        assert_eq!(it.queue.messages(), [Message::first(held.job())]);
        it.clock
            .set(Timestamp::EPOCH.saturating_add_millis(held.expires_at.as_millis()));
        assert_eq!(it.deliver(Message::first(held.job())).await, "expired");
        it.pass(GRACE.as_millis().try_into().unwrap()).await;
        assert_eq!(it.queue.messages(), []);
        assert_sound(home.store.as_ref()).await;
    }
}
