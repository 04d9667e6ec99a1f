//! A queue that is pulled: how each delivery ends, who waits for whom, and what is said when it is
//! gone.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::poll_immediate;
use futures_util::stream::FuturesUnordered;
use holdfast::domain::{Message, State, Via};
use holdfast::queue::{Delivery, Fault, Receipt};
use holdfast::worker::{Next, Worker as _};
use tokio::sync::Semaphore;

use crate::auditor::assert_sound;
use crate::faulty::{Step, faulty};
use crate::scripted::{Loop, Sleep, queued, queued_on};
use crate::shop::{homes, memory, pay};

fn delivery(number: usize, payload: impl Into<Vec<u8>>) -> Delivery {
    Delivery {
        receipt: Receipt(number.to_string()),
        payload: payload.into(),
    }
}

fn brings(it: &Loop, deliveries: Vec<Delivery>) {
    it.queue.waiting.lock().unwrap().extend(deliveries);
}

/// What comes of this while the others have as many turns as they can want. On a clock that stands
/// still, what has not come by then never comes.
async fn in_turns<T>(work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    for _ in 0..100_000 {
        if let Some(done) = poll_immediate(work.as_mut()).await {
            return done;
        }
        tokio::task::yield_now().await;
    }
    panic!("it never comes");
}

/// What a delivery asks for is done and acknowledged; what is no job is rejected.
#[tokio::test]
async fn p12_each_delivery_is_ended_as_befits_it() {
    for home in homes().await {
        let it = queued(&home);
        it.shop.stock_up("A", 2).await;
        let due = it.shop.hold("A", 1, 60).await;
        let paid = it.shop.hold("A", 1, 60).await;
        it.shop.done(pay(paid.id)).await;
        it.clock.advance(60_000);
        let message = |held: &holdfast::domain::Reservation| Message::first(held.job()).payload();
        brings(
            &it,
            vec![
                delivery(0, message(&due)),
                delivery(1, message(&due)),
                delivery(2, message(&paid)),
                delivery(3, "no job"),
            ],
        );
        let mut consumer = it.consumer();
        assert_eq!(consumer.run_once().await.unwrap(), Next::Again);
        let rest = Next::After(Duration::from_millis(100));
        assert_eq!(consumer.run_once().await.unwrap(), rest, "nothing is there");
        consumer.finish().await;
        assert_eq!(it.queue.acknowledged(), 3, "{}", home.name);
        let rejected = it.queue.rejected.lock().unwrap().clone();
        assert_eq!(rejected, [Receipt("3".to_owned())]);
        assert_eq!(it.shop.state(due.id).await, State::Expired);
        let cases = home.store.quarantine().open(10, 0).await.unwrap();
        assert_eq!(cases.len(), 1, "{}", home.name);
        assert_sound(home.store.as_ref()).await;
    }
}

/// Whoever wants to stop waits for what is under way.
#[tokio::test]
async fn what_is_under_way_is_finished() {
    let home = memory();
    let (store, plan) = faulty(&home.store);
    let it = queued_on(&store, &home.clock, Sleep::MovesTheClock);
    it.shop.stock_up("A", 1).await;
    let held = it.shop.hold("A", 1, 60).await;
    it.clock.advance(60_000);
    let gate = plan.gate(Step::Commit);
    brings(&it, vec![delivery(0, Message::first(held.job()).payload())]);
    let mut consumer = it.consumer();
    consumer.run_once().await.unwrap();
    gate.reached.notified().await;
    {
        let mut finish = std::pin::pin!(consumer.finish());
        let early = poll_immediate(finish.as_mut()).await;
        assert!(early.is_none(), "it is under way");
        plan.ungate();
        finish.await;
    }
    assert_eq!(it.queue.acknowledged(), 1);
}

#[tokio::test]
async fn what_is_wrong_with_pulling_is_said_until_it_is_over() {
    let home = memory();
    let it = queued(&home);
    let mut consumer = it.consumer();
    for fault in [
        Fault::Unavailable("gone".to_owned()),
        Fault::Backoff("500".to_owned()),
    ] {
        let said = fault.to_string();
        it.queue.refuses_pulls.lock().unwrap().push_back(fault);
        let next = consumer.run_once().await.unwrap();
        assert!(matches!(next, Next::After(_)), "{next:?}");
        assert_eq!(it.state.trouble(), Some(said));
    }
    consumer.run_once().await.unwrap();
    assert_eq!(it.state.trouble(), None);
}

/// That a pull works does not hide that nothing can be published.
#[tokio::test]
async fn pulling_does_not_hide_what_is_wrong_with_publishing() {
    let home = memory();
    let mut it = queued(&home);
    it.shop.stock_up("A", 1).await;
    it.shop.hold("A", 1, 60).await;
    it.queue.goes_away();
    it.relay().await;
    it.consumer().run_once().await.unwrap();
    assert_eq!(it.state.trouble(), Some("gone".to_owned()));
}

/// Those who are early wait without the permit that those who are due need.
#[tokio::test]
async fn p3_the_early_do_not_keep_those_waiting_who_are_due() {
    let home = memory();
    let it = queued_on(&home.store, &home.clock, Sleep::ForEver);
    it.shop.stock_up("A", 65).await;
    let due = it.shop.hold("A", 1, 59).await;
    let mut deliveries = Vec::new();
    for number in 0..64 {
        let early = it.shop.hold("A", 1, 60).await;
        deliveries.push(delivery(number, Message::first(early.job()).payload()));
    }
    it.clock.advance(59_000);
    brings(&it, deliveries);
    let mut consumer = it.consumer();
    consumer.run_once().await.unwrap();
    brings(&it, vec![delivery(64, Message::first(due.job()).payload())]);
    // It waits for a permit, which comes free when an early one begins to wait.
    in_turns(consumer.run_once()).await.unwrap();
    in_turns(it.queue.told.notified()).await;
    assert_eq!(it.queue.acknowledged(), 1);
    assert_eq!(it.shop.state(due.id).await, State::Expired);
    assert_eq!(it.shop.metrics.early_deliveries_waiting.get(), 64);
}

/// The one too many is published again instead.
#[tokio::test]
async fn p3_no_more_than_1024_wait_at_once() {
    let home = memory();
    let it = queued_on(&home.store, &home.clock, Sleep::ForEver);
    it.shop.stock_up("A", 1).await;
    let held = it.shop.hold("A", 1, 60).await;
    it.clock.advance(59_000);
    let payload = Message::first(held.job()).payload();
    let mut all: FuturesUnordered<_> = (0..1_025)
        .map(|_| it.deliveries.deliver(payload.as_bytes(), Via::Pull, None))
        .collect();
    let first = in_turns(all.next()).await.unwrap().unwrap();
    assert_eq!(first.as_str(), "rearmed");
    assert_eq!(it.shop.metrics.early_deliveries_waiting.get(), 1_024);
    // Whoever hangs up waits no longer.
    drop(all);
    assert_eq!(it.shop.metrics.early_deliveries_waiting.get(), 0);
    let slots = Arc::new(Semaphore::new(1));
    let slot = Arc::clone(&slots).try_acquire_owned().unwrap();
    let mut again = std::pin::pin!(it.deliveries.deliver(
        payload.as_bytes(),
        Via::Pull,
        Some(slot)
    ));
    while it.shop.metrics.early_deliveries_waiting.get() == 0 {
        let done = poll_immediate(again.as_mut()).await;
        assert!(done.is_none(), "it waits");
        tokio::task::yield_now().await;
    }
    assert_eq!(slots.available_permits(), 1);
}
