//! A queue that does what a test says, and a runtime in which waiting moves the clock.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use holdfast::domain::{Message, PaceRule, QueueRule, RetryBudget, Rules, Timestamp};
use holdfast::engine::{Deliveries, Runtime, Settings, Task};
use holdfast::queue::{
    Delivery, DeliveryMode, Fault, Findings, Limits, Publication, Queue, QueueState, Receipt,
    Untrusted,
};
use holdfast::store::{ManualClock, Store};
use holdfast::worker::{Consumer, Expirer, Next, Relay, RelaySettings, Worker};
use http::HeaderMap;
use tokio::sync::{Notify, Semaphore};

use crate::shop::{Home, RULES, Shop, settings};

/// How many publications the queue has in its hands at once, as the first driver's.
const AT_ONCE: usize = 64;
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
    /// What it says to every publication, though it answers questions.
    pub refuses_us: Mutex<Option<Fault>>,
    accepted: Mutex<Vec<Publication>>,
    /// How long it takes for as many publications as it has in its hands at once, if it is slow.
    pub slow: Mutex<Option<(Arc<ManualClock>, i64)>>,
    /// By how much, in milliseconds, each publication will come after its deadline.
    pub too_late: Mutex<Vec<i64>>,
    /// It has what it was given, and answers nothing before it has this permit.
    pub gate: Mutex<Option<Arc<Semaphore>>>,
    /// What is there to be pulled.
    pub waiting: Mutex<Vec<Delivery>>,
    /// What it says to the next pulls; afterwards it gives what is there.
    pub refuses_pulls: Mutex<VecDeque<Fault>>,
    /// What was acknowledged, and told of at once.
    acknowledged: Mutex<Vec<Receipt>>,
    pub told: Notify,
    /// What was rejected.
    pub rejected: Mutex<Vec<Receipt>>,
}

impl Scripted {
    /// Waits at the gate, if there is one.
    async fn pass_gate(&self) {
        let gate = self.gate.lock().unwrap().clone();
        if let Some(gate) = gate {
            gate.acquire().await.unwrap().forget();
        }
    }

    /// Begins to send these: time passes, if it is slow.
    async fn send(&self, batch: &[Publication]) {
        let slow = self.slow.lock().unwrap().clone();
        let Some((clock, took_ms)) = slow else {
            return;
        };
        let sent_at = clock.now();
        let too_late = |it: &Publication| {
            let left_ms = it.message.job.deadline.millis_since(sent_at);
            it.delay_ms.max(0) - left_ms.max(0)
        };
        self.too_late
            .lock()
            .unwrap()
            .extend(batch.iter().map(too_late));
        tokio::task::yield_now().await;
        clock.set(clock.now().max(sent_at.saturating_add_millis(took_ms)));
    }

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
        for some in batch.chunks(AT_ONCE) {
            self.send(some).await;
        }
        let answer = |publication: &Publication| {
            let away = self.away.lock().unwrap().clone();
            if let Some(fault) = away.or_else(|| self.refuses_us.lock().unwrap().clone()) {
                return Err(fault);
            }
            if let Some(fault) = self.script.lock().unwrap().pop_front() {
                return Err(fault);
            }
            self.accepted.lock().unwrap().push(*publication);
            Ok(Receipt(publication.message.key()))
        };
        let answers = batch.iter().map(answer).collect();
        self.pass_gate().await;
        answers
    }

    async fn receive(&self, _: usize, _: i64) -> Result<Vec<Delivery>, Fault> {
        if let Some(fault) = self.refuses_pulls.lock().unwrap().pop_front() {
            return Err(fault);
        }
        Ok(std::mem::take(&mut *self.waiting.lock().unwrap()))
    }

    async fn acknowledge(&self, receipt: &Receipt) -> Result<(), Fault> {
        self.acknowledged.lock().unwrap().push(receipt.clone());
        self.told.notify_one();
        Ok(())
    }

    async fn reject(&self, receipt: &Receipt) -> Result<(), Fault> {
        self.rejected.lock().unwrap().push(receipt.clone());
        Ok(())
    }

    async fn retry_later(&self, _: &Receipt, _: i64) -> Result<(), Fault> {
        Ok(())
    }

    fn authenticate(&self, _: &HeaderMap, body: &[u8], _: Timestamp) -> Result<Vec<u8>, Untrusted> {
        Ok(body.to_vec())
    }

    async fn check(&self) -> Result<Findings, Fault> {
        match self.away.lock().unwrap().clone() {
            Some(fault) => Err(fault),
            None => Ok(Findings::default()),
        }
    }
}

/// What it means to sleep.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Sleep {
    /// It is over at once, and has moved the clock that decides.
    MovesTheClock,
    /// It never ends.
    ForEver,
}

/// A runtime whose stopwatch is the clock that decides.
pub struct ByHand {
    clock: Arc<ManualClock>,
    began: Timestamp,
    sleep: Sleep,
}

impl ByHand {
    pub fn new(clock: &Arc<ManualClock>, sleep: Sleep) -> Self {
        Self {
            clock: Arc::clone(clock),
            began: clock.now(),
            sleep,
        }
    }
}

impl Runtime for ByHand {
    fn spawn(&self, task: Task) {
        tokio::spawn(task);
    }

    fn sleep(&self, duration: Duration) -> Task {
        if self.sleep == Sleep::ForEver {
            return Box::pin(std::future::pending());
        }
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
    /// What was last seen of the queue.
    pub state: Arc<QueueState>,
    pub runtime: Arc<dyn Runtime>,
}

pub fn queued(home: &Home) -> Loop {
    queued_on(&home.store, &home.clock, Sleep::MovesTheClock)
}

/// With a pace for expiry.
pub fn queued_at_a_pace(home: &Home, pace: Arc<PaceRule>) -> Loop {
    let pace = Some(pace);
    queued_with(&home.store, &home.clock, Sleep::MovesTheClock, pace)
}

pub fn queued_on(store: &Arc<dyn Store>, clock: &Arc<ManualClock>, sleep: Sleep) -> Loop {
    queued_with(store, clock, sleep, None)
}

fn queued_with(
    store: &Arc<dyn Store>,
    clock: &Arc<ManualClock>,
    sleep: Sleep,
    pace: Option<Arc<PaceRule>>,
) -> Loop {
    let runtime: Arc<dyn Runtime> = Arc::new(ByHand::new(clock, sleep));
    let state = Arc::new(QueueState::default());
    let rules = Rules {
        queue: Some(QueueRule {
            max_delay_ms: MAX_DELAY_MS,
        }),
        ..RULES
    };
    let settings = Settings {
        rules,
        pace,
        ..settings(1)
    };
    let shop = Shop::open_with(store, Arc::clone(&runtime), settings);
    let queue = Arc::new(Scripted::default());
    Loop {
        relay: Relay::new(
            Arc::clone(store),
            queue.clone(),
            "scripted".to_owned(),
            Arc::clone(&state),
            Arc::clone(&runtime),
            Arc::clone(&shop.metrics),
            RelaySettings {
                sweep: GRACE,
                retry_budget: RetryBudget::default(),
            },
        ),
        sweep: Expirer::sweep(shop.engine.clone(), Arc::clone(&runtime), GRACE, GRACE),
        deliveries: Deliveries::new(
            shop.engine.clone(),
            Arc::clone(&runtime),
            Arc::clone(&shop.metrics),
            "scripted",
        ),
        shop,
        queue,
        clock: Arc::clone(clock),
        state,
        runtime,
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

    /// A worker that pulls.
    pub fn consumer(&self) -> Consumer {
        Consumer::new(
            self.queue.clone(),
            self.deliveries.clone(),
            Arc::clone(&self.state),
            Arc::clone(&self.runtime),
        )
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
