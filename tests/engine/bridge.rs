//! A queue that takes delays up to a horizon, and a service behind it on virtual time: the clock
//! goes from one thing that is to be done to the next, and the relay is driven in bounded runs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::iter;
use holdfast::domain::{
    EventKind, Message, QueueRule, ReservationId, RetryBudget, Rules, Timestamp, Via,
};
use holdfast::engine::{Bounds, Delivered, Deliveries, Runtime, Settings};
use holdfast::queue::{
    Delivery, DeliveryMode, Fault, Findings, Limits, Publication, Queue, QueueState, Receipt,
    Untrusted,
};
use holdfast::store::{ManualClock, Store};
use holdfast::worker::{Expirer, Relay, RelaySettings};
use http::HeaderMap;

use crate::scripted::{ByHand, GRACE, Sleep};
use crate::shop::{Home, Shop, settings};

/// Seven days, to the millisecond.
pub const HORIZON_MS: i64 = 604_800_000;
/// Three years.
pub const LONGEST_HOLD_SECONDS: i64 = 3 * 366 * 86_400;
/// How many callers, or deliveries, there are at once; an engine takes more.
const AT_ONCE: usize = 500;

/// What a queue does with a delay that is longer than it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TooLong {
    /// It says no.
    Refused,
    /// It says yes, and brings the message after so many milliseconds.
    CutTo(i64),
}

/// A queue with a horizon, on the clock that decides.
pub struct Horizon {
    clock: Arc<ManualClock>,
    /// The longest delay that it says it takes, in milliseconds.
    says_ms: i64,
    /// The longest delay that it takes, in milliseconds.
    takes_ms: i64,
    too_long: TooLong,
    state: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    keys: BTreeSet<String>,
    waiting: BTreeMap<Timestamp, Vec<Message>>,
    refused: usize,
    longest_ms: i64,
}

impl Horizon {
    /// A queue that takes seven days, says so, and refuses what is longer.
    pub fn honest(clock: &Arc<ManualClock>) -> Arc<Self> {
        Self::open(clock, HORIZON_MS, TooLong::Refused)
    }

    /// A queue that takes seven days, and says something else.
    pub fn open(clock: &Arc<ManualClock>, says_ms: i64, too_long: TooLong) -> Arc<Self> {
        Arc::new(Self {
            clock: Arc::clone(clock),
            says_ms,
            takes_ms: HORIZON_MS,
            too_long,
            state: Mutex::default(),
        })
    }

    /// How many publications it refused.
    pub fn refused(&self) -> usize {
        self.state.lock().unwrap().refused
    }

    /// How many messages it accepted, under names of their own.
    pub fn accepted(&self) -> usize {
        self.state.lock().unwrap().keys.len()
    }

    /// The longest delay that it was asked for.
    pub fn longest_ms(&self) -> i64 {
        self.state.lock().unwrap().longest_ms
    }

    /// What waits in it, with the instants at which it will bring it.
    pub fn waiting(&self) -> Vec<(Timestamp, Message)> {
        let state = self.state.lock().unwrap();
        let each = |(at, messages): (&Timestamp, &Vec<Message>)| {
            let at = *at;
            messages
                .iter()
                .map(move |message| (at, *message))
                .collect::<Vec<_>>()
        };
        state.waiting.iter().flat_map(each).collect()
    }

    fn next(&self) -> Option<Timestamp> {
        self.state.lock().unwrap().waiting.keys().next().copied()
    }

    fn due(&self) -> Vec<Message> {
        let now = self.clock.now();
        let mut state = self.state.lock().unwrap();
        let later = state.waiting.split_off(&now.saturating_add_millis(1));
        let due = std::mem::replace(&mut state.waiting, later);
        due.into_values().flatten().collect()
    }

    fn accept(&self, publication: &Publication) -> Result<Receipt, Fault> {
        let mut state = self.state.lock().unwrap();
        let key = publication.message.key();
        let mut delay_ms = publication.delay_ms.max(0);
        state.longest_ms = state.longest_ms.max(delay_ms);
        if delay_ms > self.takes_ms {
            match self.too_long {
                TooLong::Refused => {
                    state.refused += 1;
                    return Err(Fault::Refused(format!("422: {delay_ms} ms is too long")));
                }
                TooLong::CutTo(cut_ms) => delay_ms = cut_ms,
            }
        }
        if state.keys.insert(key.clone()) {
            let at = self.clock.now().saturating_add_millis(delay_ms);
            state
                .waiting
                .entry(at)
                .or_default()
                .push(publication.message);
        }
        Ok(Receipt(key))
    }
}

#[async_trait]
impl Queue for Horizon {
    fn name(&self) -> &'static str {
        "horizon"
    }

    fn limits(&self) -> Limits {
        Limits {
            max_delay_ms: self.says_ms,
            max_payload_bytes: 1_000,
            delivery: DeliveryMode::Push,
            retries_later: false,
        }
    }

    async fn publish(&self, batch: &[Publication], _: Timestamp) -> Vec<Result<Receipt, Fault>> {
        batch.iter().map(|it| self.accept(it)).collect()
    }

    async fn receive(&self, _: usize, _: i64) -> Result<Vec<Delivery>, Fault> {
        Ok(Vec::new())
    }

    async fn acknowledge(&self, _: &Receipt) -> Result<(), Fault> {
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

/// A shop whose holds may last for years, behind a queue with a horizon.
pub struct Bridge {
    pub shop: Shop,
    pub queue: Arc<Horizon>,
    pub clock: Arc<ManualClock>,
    store: Arc<dyn Store>,
    relay: Relay,
    sweep: Expirer,
    deliveries: Deliveries,
    bounds: Bounds,
    /// Whether anybody drives the relay.
    pub is_up: bool,
    /// The most messages that one run had in its hands.
    pub most_rows: usize,
    /// How many runs there were.
    pub runs: usize,
    /// How many deliveries came to what.
    pub outcomes: BTreeMap<&'static str, usize>,
}

impl Bridge {
    /// Runs of the relay have at most `max_rows` messages.
    pub fn open(home: &Home, queue: &Arc<Horizon>, max_rows: u32) -> Self {
        let store = Arc::clone(&home.store);
        let clock = Arc::clone(&home.clock);
        let runtime: Arc<dyn Runtime> = Arc::new(ByHand::new(&clock, Sleep::MovesTheClock));
        let rules = Rules {
            max_hold_seconds: LONGEST_HOLD_SECONDS,
            queue: Some(QueueRule {
                max_delay_ms: queue.limits().max_delay_ms,
            }),
        };
        let settings = Settings {
            rules,
            ..settings(1)
        };
        let shop = Shop::open_with(&store, Arc::clone(&runtime), settings);
        let relay = Relay::new(
            Arc::clone(&store),
            queue.clone(),
            "horizon".to_owned(),
            Arc::new(QueueState::default()),
            Arc::clone(&runtime),
            Arc::clone(&shop.metrics),
            RelaySettings {
                sweep: GRACE,
                retry_budget: RetryBudget::default(),
            },
        );
        let sweep = Expirer::sweep(shop.engine.clone(), Arc::clone(&runtime), GRACE, GRACE);
        let metrics = Arc::clone(&shop.metrics);
        let deliveries = Deliveries::new(shop.engine.clone(), runtime, metrics, "horizon");
        Self {
            shop,
            queue: Arc::clone(queue),
            clock,
            store,
            relay,
            sweep,
            deliveries,
            bounds: Bounds::new(max_rows, Bounds::MOST_SECONDS).unwrap(),
            is_up: true,
            most_rows: 0,
            runs: 0,
            outcomes: BTreeMap::new(),
        }
    }

    /// Ends everything in this process and begins anew on the same rows.
    pub async fn restart(self, home: &Home) -> Self {
        self.shop.engine.shut_down().await;
        let max_rows = u32::try_from(self.bounds.max_rows).unwrap();
        Self {
            is_up: self.is_up,
            most_rows: self.most_rows,
            runs: self.runs,
            outcomes: self.outcomes,
            ..Self::open(home, &self.queue, max_rows)
        }
    }

    /// Lets everything that is to be done until then be done, each thing at its own instant, and
    /// leaves the clock there.
    pub async fn pass_until(&mut self, until: Timestamp) {
        loop {
            let next = self.work().await.filter(|next| *next <= until);
            let now = self.clock.now();
            self.clock.set(next.unwrap_or(until).max(now));
            if next.is_none() {
                return;
            }
        }
    }

    /// Does what is to be done at this instant, and says when there is next something to do.
    pub async fn work(&mut self) -> Option<Timestamp> {
        loop {
            let now = self.clock.now();
            let [publication, delivery, sweep] = self.coming().await;
            let is_now = |at: Option<Timestamp>| at.is_some_and(|at| at <= now);
            if is_now(publication) {
                self.drive_relay().await;
            } else if is_now(delivery) {
                self.deliver_due().await;
            } else if is_now(sweep) {
                while self.sweep.run_bounded(self.bounds).await.unwrap().more {}
            } else {
                return [publication, delivery, sweep].into_iter().flatten().min();
            }
        }
    }

    /// When there is next something to do: for the relay, if anybody drives it, for the queue, and
    /// for the sweep.
    async fn coming(&self) -> [Option<Timestamp>; 3] {
        let published = if self.is_up {
            let next = self.store.outbox().next_publication().await.unwrap();
            next.publish_after
        } else {
            None
        };
        let look = self.store.next_attempt(Timestamp::EPOCH).await.unwrap();
        let swept = look.attempt_at;
        let swept = swept.map(|at| at.saturating_add_millis(grace_ms()));
        [published, self.queue.next(), swept]
    }

    async fn deliver_due(&mut self) {
        let deliveries = &self.deliveries;
        let deliver = |message: Message| async move {
            let payload = message.payload();
            let ended = deliveries.deliver(payload.as_bytes(), Via::Push, None);
            ended.await.unwrap()
        };
        let ended: Vec<Delivered> = iter(self.queue.due().into_iter().map(deliver))
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        for outcome in ended {
            *self.outcomes.entry(outcome.as_str()).or_default() += 1;
        }
    }

    async fn drive_relay(&mut self) {
        loop {
            let run = self.relay.run_bounded(self.bounds).await.unwrap();
            let rows = run.handled();
            assert!(rows <= self.bounds.max_rows, "{run:?}");
            self.most_rows = self.most_rows.max(rows);
            self.runs += 1;
            if !run.more {
                return;
            }
        }
    }

    /// Makes holds of one unit each of `sku`, for so many seconds, and returns their deadlines.
    pub async fn hold_all(&self, sku: &str, seconds: &[i64]) -> Vec<(ReservationId, Timestamp)> {
        let mut made = Vec::with_capacity(seconds.len());
        for some in seconds.chunks(AT_ONCE) {
            let holds = join_all(some.iter().map(|seconds| self.shop.hold(sku, 1, *seconds))).await;
            for (hold, seconds) in holds.iter().zip(some) {
                let expected = self.clock.now().saturating_add_millis(seconds * 1_000);
                assert_eq!(hold.expires_at, expected);
                made.push((hold.id, hold.expires_at));
            }
        }
        made
    }

    /// By how many milliseconds each hold was released after its deadline, and by which path; each
    /// once.
    pub async fn releases(&self) -> BTreeMap<ReservationId, (Timestamp, String)> {
        let mut releases = BTreeMap::new();
        let mut seen = 0;
        loop {
            let events = self.store.events(seen, 1_000).await.unwrap();
            let Some(last) = events.last() else {
                return releases;
            };
            seen = last.seq;
            for it in events
                .iter()
                .filter(|it| it.event.kind == EventKind::Expired)
            {
                let via = it.event.data.value()["via"].as_str().unwrap().to_owned();
                let id = it.event.reservation_id.unwrap();
                let before = releases.insert(id, (it.event.at, via));
                assert_eq!(before, None, "{id} was released twice");
            }
        }
    }
}

/// A day, in milliseconds.
pub const DAY_MS: i64 = 86_400_000;

/// The grace of the sweep, in milliseconds.
pub fn grace_ms() -> i64 {
    i64::try_from(Duration::as_millis(&GRACE)).unwrap()
}
