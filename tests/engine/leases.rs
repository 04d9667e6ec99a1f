//! Work that somebody took and may never finish: taken up again when the lease ends, by whoever is
//! there, and left alone before, however slow its owner is.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use holdfast::domain::{EventKind, Message};
use holdfast::engine::{Deliveries, TokioRuntime};
use holdfast::lab::emulator::{self, Emulator, Faults};
use holdfast::queue::rest::{self, Rest};
use holdfast::queue::{Queue, QueueState};
use holdfast::store::Clock;
use holdfast::worker::{Consumer, Next, Worker as _};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::auditor::assert_sound;
use crate::scripted::{Loop, Scripted, queued};
use crate::shop::{Home, homes};

const ROWS: usize = 500;
/// For how long a relay has what it claimed, in milliseconds.
const LEASE_MS: i64 = 60_000;
/// For how long a queue hides from others what a consumer took, in milliseconds.
const VISIBILITY_MS: i64 = 30_000;

/// Many holds at once, which end in an hour.
async fn holds(it: &Loop) {
    it.shop.stock_up("A", 1_000).await;
    let made: Vec<_> = (0..ROWS)
        .map(|_| {
            let shop = it.shop.clone();
            tokio::spawn(async move { shop.hold("A", 1, 3_600).await })
        })
        .collect();
    for hold in made {
        hold.await.unwrap();
    }
}

/// How often each of these came.
fn counted(messages: Vec<Message>) -> BTreeMap<Message, usize> {
    let mut counted = BTreeMap::new();
    for message in messages {
        *counted.entry(message).or_default() += 1;
    }
    counted
}

/// A relay at work whose queue thinks about each answer.
struct Slow {
    queue: Arc<Scripted>,
    gate: Arc<Semaphore>,
    /// How many messages it claimed, and which of them the queue has.
    claimed: usize,
    accepted: Vec<Message>,
    working: JoinHandle<()>,
}

impl Slow {
    /// Lets one claim that many. They go out in parts of sixteen, four at once.
    fn start(mut it: Loop, claimed: usize) -> Self {
        let queue = Arc::clone(&it.queue);
        let gate = Arc::new(Semaphore::new(0));
        *queue.gate.lock().unwrap() = Some(Arc::clone(&gate));
        let working = tokio::spawn(async move {
            it.relay.run_once().await.unwrap();
        });
        Self {
            queue,
            gate,
            claimed,
            accepted: Vec::new(),
            working,
        }
    }

    /// Waits until the queue has so many, and thinks about the last of them.
    async fn has(&mut self, count: usize) {
        while self.accepted.len() < count.min(self.claimed) {
            self.accepted.extend(self.queue.messages());
            tokio::task::yield_now().await;
        }
    }
}

/// Two relays whose queue answers in the last moment, and a third that looks for work all the time.
#[tokio::test]
async fn p12_a_relay_that_is_slow_and_alive_keeps_what_it_has() {
    for home in homes().await {
        let it = queued(&home);
        holds(&it).await;
        let mut rival = queued(&home);
        let mut first = Slow::start(it, 256);
        first.has(1).await;
        let second = Slow::start(queued(&home), ROWS - 256);
        let mut slow = [first, second];
        let began = home.clock.now();
        for round in 1..=4 {
            for relay in &mut slow {
                relay.has(64 * round).await;
            }
            let next = rival.relay.run_once().await.unwrap();
            assert!(matches!(next, Next::After(_)), "{next:?}");
            assert_eq!(rival.queue.messages(), [], "{}: not its own", home.name);
            home.clock.advance(14_000);
            for relay in &slow {
                relay.gate.add_permits(4);
            }
        }
        let mut accepted = Vec::new();
        for relay in slow {
            relay.working.await.unwrap();
            accepted.extend(relay.accepted);
        }
        let took_ms = home.clock.now().millis_since(began);
        assert!((50_000..LEASE_MS).contains(&took_ms), "{took_ms}");
        // Both have marked what they published, so that nothing is left when the leases end.
        home.clock.advance(LEASE_MS);
        rival.relay().await;
        assert_eq!(rival.queue.messages(), [], "{}: nothing is left", home.name);
        let counted = counted(accepted);
        assert_eq!(counted.len(), ROWS, "{}", home.name);
        assert!(counted.values().all(|times| *times == 1), "{}", home.name);
        assert_sound(home.store.as_ref()).await;
    }
}

/// A queue that is pulled, on the clock of a home.
async fn pulled(home: &Home) -> (Emulator, Arc<dyn Queue>) {
    let secret: holdfast::queue::webhook::Secret =
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".parse().unwrap();
    let settings = emulator::Settings {
        listen: "127.0.0.1:0".parse().unwrap(),
        token: "a-token".to_owned(),
        secrets: vec![secret.clone()],
        push_url: None,
        push_ca: None,
        faults: Faults::default(),
    };
    let clock = Clock::Manual(Arc::clone(&home.clock));
    let runtime = Arc::new(TokioRuntime::start());
    let emulator = Emulator::start(settings, clock, runtime).await.unwrap();
    let address = emulator.address();
    let settings = rest::Settings {
        address: format!("rest+http://{address}/v1?queue=holds&mode=pull")
            .parse()
            .unwrap(),
        token: "a-token".parse().unwrap(),
        secrets: vec![secret],
        ca: None,
    };
    (emulator, Arc::new(Rest::open(settings).unwrap()))
}

/// Consumers that die with 500 deliveries in their hands have acknowledged none of them.
#[tokio::test]
async fn p5_what_dead_consumers_had_is_done_when_the_queue_brings_it_again() {
    for home in homes().await {
        let it = queued(&home);
        holds(&it).await;
        let (emulator, queue) = pulled(&home).await;
        let held = home.store.outbox().claim(ROWS, LEASE_MS).await.unwrap();
        let due: Vec<_> = held.messages.iter().map(|it| it.message).collect();
        assert_eq!(due.len(), ROWS);
        for messages in due.chunks(100) {
            let batch: Vec<_> = messages
                .iter()
                .map(|message| holdfast::queue::Publication {
                    message: *message,
                    delay_ms: message.job.deadline.millis_since(home.clock.now()),
                })
                .collect();
            let answers = queue.publish(&batch, home.clock.now()).await;
            assert!(answers.iter().all(Result::is_ok), "{answers:?}");
        }
        home.clock.advance(3_600_000);
        // Eight consumers' hands are full, and then they are gone.
        let mut taken = 0;
        while taken < ROWS {
            taken += queue.receive(64, VISIBILITY_MS).await.unwrap().len();
        }

        let deliveries = Deliveries::new(
            it.shop.engine.clone(),
            Arc::clone(&it.runtime),
            Arc::clone(&it.shop.metrics),
            "rest",
        );
        let state = Arc::new(QueueState::default());
        let mut living = Consumer::new(queue, deliveries, state, Arc::clone(&it.runtime));
        home.clock.advance(VISIBILITY_MS - 1);
        let nothing = Next::After(Duration::from_millis(100));
        assert_eq!(living.run_once().await.unwrap(), nothing, "not yet");
        home.clock.advance(1);
        while living.run_once().await.unwrap() == Next::Again {}
        living.finish().await;
        assert_eq!(emulator.stats().acknowledged, 500, "{}", home.name);
        assert_eq!(emulator.stats().deliveries, 1_000, "{}", home.name);
        let events = home.store.events(0, 10_000).await.unwrap();
        let expired: Vec<_> = events
            .iter()
            .filter(|it| it.event.kind == EventKind::Expired)
            .map(|it| it.event.data.value())
            .collect();
        assert_eq!(expired.len(), ROWS, "{}", home.name);
        for data in expired {
            assert_eq!(data["via"], "pull");
            assert_eq!(data["lateness_ms"], VISIBILITY_MS);
        }
        assert_sound(home.store.as_ref()).await;
        emulator.shut_down().await;
    }
}
