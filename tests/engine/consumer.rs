//! Deliveries that are pulled: acknowledged after the commit and not before.

use std::sync::Arc;

use holdfast::domain::{Message, State};
use holdfast::queue::{Delivery, QueueState, Receipt};
use holdfast::worker::{Consumer, Next, Worker as _};

use crate::auditor::assert_sound;
use crate::faulty::{Fault, Step, faulty};
use crate::scripted::{Loop, queued};
use crate::shop::memory;

fn consumer(it: &Loop) -> Consumer {
    Consumer::new(
        it.queue.clone(),
        it.deliveries.clone(),
        Arc::new(QueueState::default()),
        Arc::clone(&it.shop.runtime),
    )
}

fn delivery(message: Message) -> Delivery {
    Delivery {
        receipt: Receipt(message.key()),
        payload: message.payload().into_bytes(),
    }
}

#[tokio::test]
async fn p5_a_delivery_is_acknowledged_after_the_commit_and_not_before() {
    let mut home = memory();
    let (store, plan) = faulty(&home.store);
    home.store = store;
    let it = queued(&home);
    it.shop.stock_up("A", 1).await;
    let held = it.shop.hold("A", 1, 60).await;
    home.clock.advance(60_000);
    let mut consumer = consumer(&it);
    let message = Message::first(held.job());

    it.queue.waiting.lock().unwrap().push(delivery(message));
    let gate = plan.gate(Step::Commit);
    assert_eq!(consumer.run_once().await.unwrap(), Next::Again);
    gate.reached.notified().await;
    assert_eq!(it.queue.acknowledged(), 0, "it is not committed yet");
    gate.open.add_permits(1);
    it.queue.told.notified().await;
    assert_eq!(it.shop.state(held.id).await, State::Expired);
    // It comes again, as after a crash before the acknowledgement, and is done with.
    it.queue.waiting.lock().unwrap().push(delivery(message));
    consumer.run_once().await.unwrap();
    it.queue.told.notified().await;
    assert_eq!(it.queue.acknowledged(), 2);
    assert_sound(home.store.as_ref()).await;
}

#[tokio::test]
async fn p5_a_delivery_that_could_not_be_worked_on_is_not_acknowledged() {
    let mut home = memory();
    let (store, plan) = faulty(&home.store);
    home.store = store;
    let it = queued(&home);
    it.shop.stock_up("A", 1).await;
    let held = it.shop.hold("A", 1, 60).await;
    home.clock.advance(60_000);
    let mut consumer = consumer(&it);
    let message = Message::first(held.job());

    plan.always(Step::Begin, Fault::Unavailable);
    it.queue.waiting.lock().unwrap().push(delivery(message));
    consumer.run_once().await.unwrap();
    // Stopping waits for what is under way.
    consumer.finish().await;
    assert_eq!(it.queue.acknowledged(), 0);
    assert_eq!(it.shop.state(held.id).await, State::Held);
}
