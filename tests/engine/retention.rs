//! Deleting what nobody needs any more: what the worker does, and what goes on to be right.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use holdfast::domain::{Changes, EventKind, LedgerEntry, Message, ReservationId, State, Via};
use holdfast::engine::{Runtime, Task};
use holdfast::metrics::{Metrics, TableLabel};
use holdfast::store::{Horizons, Store};
use holdfast::worker::{Keep, Next, Retention, Worker as _};

use crate::auditor::assert_sound;
use crate::scripted::queued;
use crate::shop::{
    Home, InNoTime, Shop, cancel, entropy_of, extend, homes, keyed, memory, pay, pay_with,
    reacquire, reserve,
};

const DAY: Duration = Duration::from_secs(86_400);
const DAY_MS: i64 = 86_400_000;

/// What is kept by default.
const KEEP: Keep = Keep {
    answers: DAY,
    messages: DAY.saturating_mul(7),
    ledger: DAY.saturating_mul(30),
    reservations: None,
    events: None,
};

fn worker(store: &Arc<dyn Store>, metrics: &Arc<Metrics>, keep: Keep) -> Retention {
    Retention::new(
        Arc::clone(store),
        InNoTime::start(),
        Arc::clone(metrics),
        keep,
    )
}

/// Lets the worker work until it wants to rest for long, and says how many batches it took.
async fn round(worker: &mut Retention) -> usize {
    for batches in 1.. {
        if let Next::After(rest) = worker.run_once().await.unwrap() {
            assert!((900..=1_800).contains(&rest.as_secs()), "{rest:?}");
            return batches;
        }
    }
    unreachable!()
}

fn deleted(metrics: &Metrics, table: &'static str) -> u64 {
    let label = TableLabel { table };
    metrics.retention_deleted.get_or_create(&label).get()
}

/// So many jobs of reservations that were made and done now.
async fn fill_ledger(home: &Home, jobs: u64) {
    let now = home.store.now().await.unwrap();
    let entry = |number| LedgerEntry {
        job: holdfast::domain::Job {
            reservation: ReservationId::new(now, entropy_of(number)),
            deadline: now.saturating_add_millis(1_000),
        },
        outcome: "stale",
        via: Via::Push,
        at: now.saturating_add_millis(1_000),
    };
    let numbers: Vec<u64> = (0..jobs).collect();
    for some in numbers.chunks(5_000) {
        let changes = Changes {
            ledger: some.iter().copied().map(entry).collect(),
            ..Changes::default()
        };
        let mut transaction = home.store.begin().await.unwrap();
        transaction.write_transitions(&changes, now).await.unwrap();
        transaction.commit().await.unwrap();
    }
}

/// umbraco/Umbraco.Commerce.Issues#874: a clean-up that was switched on late deleted everything in
/// one statement, and sales waited for it.
#[tokio::test]
async fn a_backlog_is_deleted_in_bounded_batches() {
    for home in homes().await {
        fill_ledger(&home, 20_000).await;
        home.clock.advance(31 * DAY_MS);
        let metrics = Arc::new(Metrics::new());
        let mut worker = worker(&home.store, &metrics, KEEP);
        let mut most = 0;
        let mut before = 0;
        while let Next::Again = worker.run_once().await.unwrap() {
            let now = deleted(&metrics, "ledger");
            most = most.max(now - before);
            before = now;
        }
        assert_eq!((before, most), (20_000, 500), "{}", home.name);
        // Nothing is left, and it takes a look at each table to see it.
        assert_eq!(round(&mut worker).await, 5);
        assert_eq!(deleted(&metrics, "ledger"), 20_000);
    }
}

/// A stopwatch by which everything takes a while.
struct Slow(AtomicU64);

impl Runtime for Slow {
    fn spawn(&self, task: Task) {
        tokio::spawn(task);
    }

    fn sleep(&self, _: Duration) -> Task {
        Box::pin(std::future::ready(()))
    }

    fn elapsed(&self) -> Duration {
        Duration::from_millis(self.0.fetch_add(40, Ordering::Relaxed))
    }

    fn fill_random(&self, bytes: &mut [u8]) {
        bytes.fill(255);
    }
}

#[tokio::test]
async fn between_two_batches_it_rests_as_long_as_one_takes() {
    let home = memory();
    fill_ledger(&home, 1_000).await;
    home.clock.advance(31 * DAY_MS);
    let runtime = Arc::new(Slow(AtomicU64::new(0)));
    let metrics = Arc::new(Metrics::new());
    let store = Arc::clone(&home.store);
    let mut worker = Retention::new(store, runtime, metrics, KEEP);
    // Answers, messages, three batches of the ledger, reservations; and after the events, which are
    // the last, for long.
    for _ in 0..6 {
        let next = worker.run_once().await.unwrap();
        assert_eq!(next, Next::After(Duration::from_millis(40)));
    }
    let next = worker.run_once().await.unwrap();
    assert_eq!(next, Next::After(Duration::from_secs(1_800)));
}

async fn assert_no_drift(home: &Home) {
    let drifts = home.store.audit().await.unwrap();
    assert!(drifts.is_empty(), "{}: {drifts:#?}", home.name);
}

/// A job that comes again long after the ledger has forgotten it changes nothing: the ledger never
/// decides.
#[tokio::test]
async fn a_whole_life_is_forgotten_step_by_step() {
    for home in homes().await {
        let mut it = queued(&home);
        it.shop.stock_up("A", 10).await;
        let expired = it.shop.hold("A", 1, 60).await;
        let paid = it.shop.hold("A", 1, 60).await;
        let cancelled = it.shop.hold("A", 1, 60).await;
        let reacquired = it.shop.hold("A", 1, 60).await;
        let extended = it.shop.hold("A", 1, 60).await;
        let ahead = it.shop.hold("A", 1, 30 * 86_400).await;
        it.shop
            .engine
            .submit(reserve(&[("A", 1)], 60), Some(keyed("k", 1)))
            .await
            .unwrap();
        it.relay().await;
        it.shop.done(extend(extended.id, 120)).await;
        it.shop.done(pay(paid.id)).await;
        it.shop.done(cancel(cancelled.id)).await;
        it.clock.advance(60_000);
        for held in [&expired, &reacquired] {
            let message = Message::first(held.job());
            assert_eq!(it.deliver(message).await, "expired");
        }
        it.shop.done(reacquire(reacquired.id)).await;
        // One payment too late, of which the flag stays.
        let late = pay_with(expired.id, "pi_late", holdfast::domain::OnExpired::Reject);
        assert_eq!(it.shop.word(late.clone()).await, "too-late");
        it.pass(600_000).await;
        assert_sound(home.store.as_ref()).await;

        // By default: answers after a day, messages after a week, the ledger after a month.
        let metrics = Arc::clone(&it.shop.metrics);
        let mut worker = worker(&home.store, &metrics, KEEP);
        round(&mut worker).await;
        let counts = |metrics: &Metrics| {
            let tables = ["idempotency", "outbox", "ledger", "reservations", "events"];
            tables.map(|table| deleted(metrics, table))
        };
        assert_eq!(counts(&metrics), [0; 5], "{}", home.name);
        it.clock.advance(DAY_MS);
        round(&mut worker).await;
        assert_eq!(counts(&metrics), [1, 0, 0, 0, 0], "{}", home.name);
        it.clock.advance(7 * DAY_MS);
        let next = home.store.outbox().next_publication().await.unwrap();
        round(&mut worker).await;
        // Seven were published, one of them for a deadline that moved and was published again then.
        assert_eq!(counts(&metrics), [1, 7, 0, 0, 0], "{}", home.name);
        let later = home.store.outbox().next_publication().await.unwrap();
        assert_eq!(next.publish_after, later.publish_after);
        assert!(next.publish_after.is_some(), "the long hold waits");
        it.clock.set(ahead.expires_at);
        it.relay().await;
        let job = Message::first(ahead.job());
        assert!(it.queue.messages().contains(&job), "{}", home.name);
        assert_eq!(it.deliver(job).await, "expired");
        round(&mut worker).await;
        it.clock.advance(DAY_MS);
        round(&mut worker).await;
        assert_eq!(counts(&metrics)[2], 4, "{}", home.name);
        let horizons = home.store.retention().horizons().await.unwrap();
        let month_ago = it.clock.now().saturating_add_millis(-30 * DAY_MS);
        assert_eq!(horizons.ledger, Some(month_ago));
        assert_sound(home.store.as_ref()).await;

        // Old deliveries, which the ledger has forgotten.
        let before = home.store.events(0, 1_000).await.unwrap();
        let shelf = it.shop.on_shelf("A").await;
        for (held, outcome) in [
            (&expired, "already_expired"),
            (&paid, "paid"),
            (&cancelled, "cancelled"),
            (&reacquired, "paid"),
            (&extended, "stale"),
        ] {
            let message = Message::first(held.job());
            assert_eq!(it.deliver(message).await, outcome, "{}", home.name);
        }
        assert_eq!(home.store.events(0, 1_000).await.unwrap(), before);
        assert_eq!(it.shop.on_shelf("A").await, shelf);
        assert_eq!(it.shop.word(late).await, "too-late");
        let refused =
            |event: &&holdfast::store::RecordedEvent| event.event.kind == EventKind::PaymentRefused;
        let after = home.store.events(0, 1_000).await.unwrap();
        assert_eq!(after.iter().filter(refused).count(), 1);
        assert_sound(home.store.as_ref()).await;

        forget_reservations(&home, &it.shop, it.clock.now()).await;
    }
}

/// Reservations, and then the events, go as well if somebody says so.
async fn forget_reservations(home: &Home, shop: &Shop, now: holdfast::domain::Timestamp) {
    let alive = shop.hold("A", 1, 30 * 86_400).await;
    home.clock.advance(20 * DAY_MS);
    let keep = Keep {
        reservations: Some(DAY.saturating_mul(14)),
        ledger: DAY.saturating_mul(14),
        events: Some(DAY),
        ..KEEP
    };
    let mut worker = worker(&home.store, &shop.metrics, keep);
    round(&mut worker).await;
    assert_no_drift(home).await;
    assert_eq!(shop.state(alive.id).await, State::Held);
    let any = holdfast::store::ReservationFilter::default();
    let (left, _) = home.store.list_reservations(&any, None, 100).await.unwrap();
    let left: Vec<_> = left.iter().map(|row| row.id).collect();
    assert_eq!(left, [alive.id], "{}", home.name);
    assert_eq!(home.store.events(0, 1_000).await.unwrap(), []);
    let horizons = home.store.retention().horizons().await.unwrap();
    let Horizons { events, .. } = horizons;
    assert_eq!(events, Some(now.saturating_add_millis(19 * DAY_MS)));
    // Life goes on, and the log with the next number.
    shop.done(pay(alive.id)).await;
    let log = home.store.events(0, 1_000).await.unwrap();
    assert_eq!(log[0].seq, horizons.last_deleted_event + 1);
    assert_no_drift(home).await;
}
