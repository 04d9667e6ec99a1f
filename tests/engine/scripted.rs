//! A queue that does what a test says, and a runtime in which waiting moves the clock.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use holdfast::domain::{Message, QueueRule, Rules, Timestamp};
use holdfast::engine::{Deliveries, Runtime, Settings, Task};
use holdfast::queue::{
    Delivery, DeliveryMode, Fault, Findings, Limits, Publication, Queue, QueueState, Receipt,
    Untrusted,
};
use holdfast::store::ManualClock;
use holdfast::worker::{Expirer, Next, Relay, Worker};
use http::HeaderMap;
use tokio::sync::Notify;

use crate::shop::{Home, RULES, Shop, settings};

/// Seven days, as the first driver's queue.
pub const MAX_DELAY_MS: i64 = 604_800_000;
/// After this long the sweep releases what no queue brought.
pub const GRACE: Duration = Duration::from_secs(300);

/// A queue that accepts everything, except as its script says.
#[derive(Default)]
pub struct Scripted {
    /// What it says to the next publications; afterwards it accepts.
    pub script: Mutex<VecDeque<Fault>>,
    /// What it says to every publication, if it is out of order.
    pub away: Mutex<Option<Fault>>,
    accepted: Mutex<Vec<Publication>>,
    /// What is there to be pulled.
    pub waiting: Mutex<Vec<Delivery>>,
    /// What was acknowledged, and told of at once.
    acknowledged: Mutex<Vec<Receipt>>,
    pub told: Notify,
}

impl Scripted {
    pub fn says(&self, fault: Fault) {
        self.script.lock().unwrap().push_back(fault);
    }

    pub fn goes_away(&self) {
        *self.away.lock().unwrap() = Some(Fault::Unavailable("gone".to_owned()));
    }

    pub fn comes_back(&self) {
        *self.away.lock().unwrap() = None;
    }

    pub fn acknowledged(&self) -> usize {
        self.acknowledged.lock().unwrap().len()
    }

    /// What it accepted since it was asked last.
    pub fn accepted(&self) -> Vec<Publication> {
        std::mem::take(&mut self.accepted.lock().unwrap())
    }

    pub fn messages(&self) -> Vec<Message> {
        self.accepted().iter().map(|it| it.message).collect()
    }
}

#[async_trait]
impl Queue for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn limits(&self) -> Limits {
        Limits {
            max_delay_ms: MAX_DELAY_MS,
            max_payload_bytes: 1_000,
            delivery: DeliveryMode::Push,
            retries_later: false,
        }
    }

    async fn publish(&self, batch: &[Publication], _: Timestamp) -> Vec<Result<Receipt, Fault>> {
        let answer = |publication: &Publication| {
            if let Some(fault) = self.away.lock().unwrap().clone() {
                return Err(fault);
            }
            if let Some(fault) = self.script.lock().unwrap().pop_front() {
                return Err(fault);
            }
            self.accepted.lock().unwrap().push(*publication);
            Ok(Receipt(publication.message.key()))
        };
        batch.iter().map(answer).collect()
    }

    async fn receive(&self, _: usize, _: i64) -> Result<Vec<Delivery>, Fault> {
        Ok(std::mem::take(&mut *self.waiting.lock().unwrap()))
    }

    async fn acknowledge(&self, receipt: &Receipt) -> Result<(), Fault> {
        self.acknowledged.lock().unwrap().push(receipt.clone());
        self.told.notify_one();
        Ok(())
    }

    async fn reject(&self, _: &Receipt) -> Result<(), Fault> {
        Ok(())
    }

    async fn retry_later(&self, _: &Receipt, _: i64) -> Result<(), Fault> {
        Ok(())
    }

    fn authenticate(&self, _: &HeaderMap, body: &[u8], _: Timestamp) -> Result<Vec<u8>, Untrusted> {
        Ok(body.to_vec())
    }

    async fn check(&self) -> Result<Findings, Fault> {
        Ok(Findings::default())
    }
}

/// A runtime in which a sleep is over at once, and has moved the clock that decides.
pub struct ByHand {
    clock: Arc<ManualClock>,
    began: Timestamp,
}

impl Runtime for ByHand {
    fn spawn(&self, task: Task) {
        tokio::spawn(task);
    }

    fn sleep(&self, duration: Duration) -> Task {
        let clock = Arc::clone(&self.clock);
        Box::pin(async move {
            tokio::task::yield_now().await;
            clock.advance(i64::try_from(duration.as_millis()).unwrap());
        })
    }

    fn elapsed(&self) -> Duration {
        let passed_ms = self.clock.now().millis_since(self.began);
        Duration::from_millis(u64::try_from(passed_ms).unwrap())
    }

    fn fill_random(&self, bytes: &mut [u8]) {
        bytes.fill(7);
    }
}

/// A shop whose holds are woken up by a scripted queue.
pub struct Loop {
    pub shop: Shop,
    pub queue: Arc<Scripted>,
    pub relay: Relay,
    pub sweep: Expirer,
    pub deliveries: Deliveries,
    pub clock: Arc<ManualClock>,
}

pub fn queued(home: &Home) -> Loop {
    let runtime: Arc<dyn Runtime> = Arc::new(ByHand {
        clock: Arc::clone(&home.clock),
        began: home.clock.now(),
    });
    let rules = Rules {
        queue: Some(QueueRule {
            max_delay_ms: MAX_DELAY_MS,
        }),
        ..RULES
    };
    let settings = Settings {
        rules,
        ..settings(1)
    };
    let shop = Shop::open_with(&home.store, Arc::clone(&runtime), settings);
    let queue = Arc::new(Scripted::default());
    Loop {
        relay: Relay::new(
            Arc::clone(&home.store),
            queue.clone(),
            "scripted".to_owned(),
            Arc::new(QueueState::default()),
            Arc::clone(&runtime),
            Arc::clone(&shop.metrics),
            GRACE,
        ),
        sweep: Expirer::sweep(shop.engine.clone(), Arc::clone(&runtime), GRACE, GRACE),
        deliveries: Deliveries::new(
            shop.engine.clone(),
            runtime,
            Arc::clone(&shop.metrics),
            "scripted",
        ),
        shop,
        queue,
        clock: Arc::clone(&home.clock),
    }
}

impl Loop {
    /// Lets the relay work until it wants to rest.
    pub async fn relay(&mut self) -> Duration {
        loop {
            if let Next::After(rest) = self.relay.run_once().await.unwrap() {
                return rest;
            }
        }
    }

    /// Lets relay and sweep work for so long, in steps of at most 100 ms.
    pub async fn pass(&mut self, milliseconds: i64) {
        let until = self.clock.now().saturating_add_millis(milliseconds);
        loop {
            self.relay().await;
            while self.sweep.run_once().await.unwrap() == Next::Again {}
            let left_ms = until.millis_since(self.clock.now());
            if left_ms <= 0 {
                return;
            }
            self.clock.advance(left_ms.min(100));
        }
    }

    /// Delivers a message, and says in one word what came of it.
    pub async fn deliver(&self, message: Message) -> &'static str {
        let payload = message.payload();
        self.deliver_bytes(payload.as_bytes()).await
    }

    pub async fn deliver_bytes(&self, payload: &[u8]) -> &'static str {
        let via = holdfast::domain::Via::Push;
        let delivered = self.deliveries.deliver(payload, via, None).await;
        delivered.unwrap().as_str()
    }
}
