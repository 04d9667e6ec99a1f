//! Queues that are slow, impatient or gone, and relays that die or come too late: what is published
//! then, and what is said about it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;
use holdfast::domain::{EventKind, Message};
use holdfast::queue::Fault;
use holdfast::store::{Parked, Published, Store};
use holdfast::worker::{Next, Worker as _};
use tokio::sync::Semaphore;

use crate::auditor::assert_sound;
use crate::faulty::faulty;
use crate::scripted::{MAX_DELAY_MS, Sleep, queued, queued_on};
use crate::shop::{Shop, cancel, extend, homes, memory};

const LEASE_MS: i64 = 60_000;

async fn hold(shop: &Shop, count: i64, seconds: i64) -> Vec<Message> {
    shop.stock_up("A", count).await;
    let mut messages = Vec::new();
    for _ in 0..count {
        messages.push(Message::first(shop.hold("A", 1, seconds).await.job()));
    }
    messages
}

/// The queue counts from when it is told, and it may be told long after the claim: what it is told
/// then is what is left then.
#[tokio::test]
async fn p6_delays_are_computed_when_they_are_told_however_slow_the_queue_is() {
    let home = memory();
    let mut it = queued(&home);
    hold(&it.shop, 256, 600).await;
    *it.queue.slow.lock().unwrap() = Some((Arc::clone(&it.clock), 9_000));
    it.relay().await;
    let too_late = it.queue.too_late.lock().unwrap().clone();
    assert_eq!(too_late.len(), 256);
    let latest = too_late.iter().max();
    assert_eq!(
        latest,
        Some(&0),
        "told to come so many ms after the deadline"
    );
}

/// A queue that asks to be asked again at once gets a moment all the same.
#[tokio::test]
async fn patience_for_no_time_at_all_is_no_reason_to_hammer() {
    for home in homes().await {
        let mut it = queued(&home);
        hold(&it.shop, 1, 60).await;
        for _ in 0..10 {
            it.queue.says(Fault::RetryAfter {
                wait: Duration::ZERO,
                answer: "503".to_owned(),
            });
        }
        it.relay().await;
        let left = it.queue.script.lock().unwrap().len();
        assert_eq!(left, 9, "{}: asked once in one instant", home.name);
        it.pass(10_000).await;
        assert_eq!(it.queue.messages().len(), 1, "{}", home.name);
    }
}

/// A relay that dies when the queue has everything and nothing is marked: all goes out again, and
/// comes back twice.
#[tokio::test]
async fn p2_p12_a_crash_between_publishing_and_marking_makes_duplicates_and_no_loss() {
    for home in homes().await {
        let mut it = queued(&home);
        let messages = hold(&it.shop, 20, 120).await;
        let gate = Arc::new(Semaphore::new(0));
        *it.queue.gate.lock().unwrap() = Some(Arc::clone(&gate));
        let queue = Arc::clone(&it.queue);
        let dies = tokio::spawn(async move { it.relay.run_once().await.is_ok() });
        let mut accepted = Vec::new();
        while accepted.len() < 20 {
            accepted.extend(queue.messages());
            tokio::task::yield_now().await;
        }
        dies.abort();
        assert!(dies.await.is_err(), "it was waiting for the answers");

        let mut it = queued(&home);
        it.relay().await;
        assert_eq!(
            it.queue.messages(),
            [],
            "{}: the lease still runs",
            home.name
        );
        it.clock.advance(LEASE_MS);
        it.relay().await;
        assert_eq!(it.queue.messages().len(), 20, "{}", home.name);
        it.clock.advance(60_000);
        for message in messages {
            assert_eq!(it.deliver(message).await, "expired");
            assert_eq!(it.deliver(message).await, "duplicate");
        }
        let events = home.store.events(0, 1_000).await.unwrap();
        let expired = events
            .iter()
            .filter(|it| it.event.kind == EventKind::Expired);
        assert_eq!(expired.count(), 20, "{}", home.name);
        assert_sound(home.store.as_ref()).await;
    }
}

/// Waits until all of these are some relay's.
async fn until_claimed(store: &Arc<dyn Store>, count: usize) {
    let outbox = store.outbox();
    assert_eq!(outbox.depth(1_000).await.unwrap().waiting, count);
    loop {
        let next = outbox.next_publication().await.unwrap();
        if next.publish_after > Some(next.now) {
            return;
        }
        tokio::task::yield_now().await;
    }
}

/// What a relay says whose lease ran out while the queue thought about it counts no more: neither
/// that a message is to be parked, nor that it is to be tried later, nor that it is published.
#[tokio::test]
async fn p12_a_relay_that_lost_its_lease_changes_nothing() {
    for home in homes().await {
        for fault in [
            Some(Fault::Refused("422".to_owned())),
            Some(Fault::Backoff("500".to_owned())),
            None,
        ] {
            let mut it = queued(&home);
            let message = hold(&it.shop, 1, 600).await.remove(0);
            let gate = Arc::new(Semaphore::new(0));
            *it.queue.gate.lock().unwrap() = Some(Arc::clone(&gate));
            it.queue.script.lock().unwrap().extend(fault.clone());
            let outbox = home.store.outbox();
            let clock = Arc::clone(&it.clock);
            let rival = async {
                until_claimed(&home.store, 1).await;
                clock.advance(LEASE_MS);
                let claimed = outbox.claim(10, LEASE_MS).await.unwrap();
                assert_eq!(claimed.messages.len(), 1, "{}", home.name);
                gate.add_permits(1);
                claimed.messages[0]
            };
            let (late, rival) = join(it.relay.run_once(), rival).await;
            late.unwrap();
            let cases = home.store.quarantine().open(10, 0).await.unwrap();
            assert_eq!(cases, [], "{}: {fault:?}", home.name);
            let next = outbox.next_publication().await.unwrap();
            let lease_ends = next.now.saturating_add_millis(LEASE_MS);
            assert_eq!(next.publish_after, Some(lease_ends), "{fault:?}");
            let published = Published {
                message,
                attempt: rival.attempt,
                receipt: None,
            };
            let marked = outbox.mark_published(&[published], "scripted").await;
            assert_eq!(marked.unwrap(), 1, "{}: {fault:?}: the rival's", home.name);
            let parked = Parked {
                message,
                attempt: rival.attempt - 1,
                reason: "late".to_owned(),
            };
            assert_eq!(outbox.park(&[parked]).await.unwrap(), 0);
            it.shop.done(cancel(message.job.reservation)).await;
        }
        assert_sound(home.store.as_ref()).await;
    }
}

/// What is wrong is said as long as it is wrong, and no longer.
#[tokio::test]
async fn what_is_wrong_with_publishing_is_said_until_it_is_over() {
    let home = memory();
    let mut it = queued(&home);
    hold(&it.shop, 2, 60).await;
    for fault in [
        Fault::Backoff("500: out of order".to_owned()),
        Fault::Unavailable("401: who are you".to_owned()),
    ] {
        *it.queue.away.lock().unwrap() = Some(fault.clone());
        it.pass(2_000).await;
        assert_eq!(it.state.trouble(), Some(fault.to_string()));
    }
    it.queue.comes_back();
    it.pass(31_000).await;
    assert_eq!(it.state.trouble(), None);
    assert_eq!(it.queue.messages().len(), 2);
}

/// A queue that shows itself to everybody may still not take our messages.
#[tokio::test]
async fn a_queue_that_only_answers_questions_is_not_well() {
    let home = memory();
    let mut it = queued(&home);
    hold(&it.shop, 2, 600).await;
    let fault = Fault::Unavailable("401: who are you".to_owned());
    *it.queue.refuses_us.lock().unwrap() = Some(fault.clone());
    for _ in 0..600 {
        it.pass(100).await;
        assert_eq!(it.state.trouble(), Some(fault.to_string()));
    }
}

/// The queue comes back when nothing is left to be published to it for a long time.
#[tokio::test]
async fn a_queue_that_comes_back_to_an_idle_outbox_is_well() {
    for home in homes().await {
        let mut it = queued(&home);
        let messages = hold(&it.shop, 2, 600).await;
        let far_s = MAX_DELAY_MS / 1_000 + 3_600;
        it.shop
            .done(extend(messages[1].job.reservation, far_s))
            .await;
        it.queue.goes_away();
        it.relay().await;
        assert_eq!(it.state.trouble(), Some("gone".to_owned()));
        it.shop.done(cancel(messages[0].job.reservation)).await;
        it.pass(31_000).await;
        assert_eq!(it.state.trouble(), Some("gone".to_owned()), "{}", home.name);
        it.queue.comes_back();
        it.pass(31_000).await;
        assert_eq!(it.state.trouble(), None, "{}", home.name);
        assert_eq!(it.relay().await, Duration::from_millis(500));
    }
}

/// The stopwatch starts before the claim, so that a claim whose answer takes long makes nothing late.
#[tokio::test]
async fn p6_a_claim_that_takes_long_makes_no_message_late() {
    let home = memory();
    let (store, plan) = faulty(&home.store);
    let mut it = queued_on(&store, &home.clock, Sleep::MovesTheClock);
    hold(&it.shop, 1, 60).await;
    plan.slow_claims(&home.clock, 3_000);
    assert!(matches!(it.relay.run_once().await, Ok(Next::After(_))));
    assert_eq!(it.queue.accepted()[0].delay_ms, 57_000);
}
