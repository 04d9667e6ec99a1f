//! The pace of expiry: who waits, for how long, and who does not.

use std::collections::BTreeMap;
use std::sync::Arc;

use holdfast::domain::{
    AdmissionDimension, AdmissionLimit, Command, EventKind, Line, Message, PaceRule, Reservation,
    Reserve, State, Timestamp, Via,
};
use holdfast::engine::{Due, Settings};

use crate::auditor::assert_sound;
use crate::scripted::queued_at_a_pace;
use crate::shop::{
    Home, InNoTime, Shop, cancel, entropy, homes, memory, pay, postgres, reserve, settings, text,
};

fn pace(dimension: AdmissionDimension, rate: f64, burst: u32) -> Arc<PaceRule> {
    Arc::new(PaceRule {
        dimension,
        limit: AdmissionLimit::per_second(rate, burst).unwrap(),
        overrides: BTreeMap::new(),
        kept_ms: 5_000,
    })
}

fn paced(home: &Home, pace: Arc<PaceRule>) -> Shop {
    let settings = Settings {
        pace: Some(pace),
        ..settings(1)
    };
    Shop::open_with(&home.store, InNoTime::start(), settings)
}

fn of_merchant(merchant: &str, sku: &str, seconds: i64) -> Command {
    let Command::Reserve(reserve) = reserve(&[(sku, 1)], seconds) else {
        unreachable!()
    };
    Command::Reserve(Reserve {
        merchant: text(merchant),
        ..reserve
    })
}

/// Releases what can be released, step by step, until nothing is held. Says how late each
/// reservation was, in milliseconds.
async fn drain(home: &Home, shop: &Shop, held: usize, step_ms: i64) -> Vec<i64> {
    let mut released = 0;
    for _ in 0..10_000 {
        released += shop.release_all().await;
        if released == held {
            return latenesses(home).await;
        }
        home.clock.advance(step_ms);
    }
    panic!("{released} of {held} released in 10,000 steps");
}

async fn latenesses(home: &Home) -> Vec<i64> {
    let events = home.store.events(0, 100_000).await.unwrap();
    let expired = events.iter().map(|recorded| &recorded.event);
    let expired = expired.filter(|event| event.kind == EventKind::Expired);
    expired
        .map(|event| event.data.value()["lateness_ms"].as_i64().unwrap())
        .collect()
}

#[tokio::test]
async fn a_storm_goes_at_its_pace_and_the_deadlines_stay() {
    for home in homes().await {
        let shop = paced(&home, pace(AdmissionDimension::Global, 10.0, 5));
        shop.stock_up("A", 50).await;
        let mut made = Vec::new();
        for _ in 0..50 {
            made.push(shop.hold("A", 1, 60).await);
        }
        home.clock.advance(60_000);
        assert_eq!(shop.release_all().await, 5, "{}", home.name);
        for hold in &made {
            let now = shop.find(hold.id).await;
            assert_eq!(now.expires_at, hold.expires_at);
            if now.state == State::Held {
                assert!(now.attempt_at > home.clock.now());
                assert_eq!(
                    now.waits.limiter_ms,
                    now.attempt_at.millis_since(now.expires_at)
                );
                assert_eq!((now.waits.attempts, now.waits.retry_ms), (0, 0));
            }
        }
        let lateness = drain(&home, &shop, 45, 20).await;
        let last = lateness.iter().max().unwrap();
        // 45 permits at 10 in a second; each slot has up to an interval of jitter.
        assert!((4_400..=4_720).contains(last), "{}: {last}", home.name);
        let audit = home.store.audit().await.unwrap();
        assert_eq!(audit, [], "{}", home.name);
        assert_sound(home.store.as_ref()).await;
    }
}

#[tokio::test]
async fn a_busy_merchant_uses_up_nobody_elses_permits_nor_the_lane() {
    for home in homes().await {
        let shop = paced(&home, pace(AdmissionDimension::Merchant, 5.0, 5));
        shop.stock_up("A", 1_000).await;
        // For two seconds, one merchant has 20 times its rate; 50 others have one hold each second.
        let mut quiet: Vec<Reservation> = Vec::new();
        for second in 0..2 {
            for _ in 0..100 {
                shop.done(of_merchant("busy", "A", 60 + second)).await;
            }
            for merchant in 0..50 {
                let command = of_merchant(&format!("quiet-{merchant}"), "A", 60 + second);
                match shop.done(command).await {
                    holdfast::domain::Outcome::Reservation { reservation, .. } => {
                        quiet.push(*reservation);
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        home.clock.advance(60_000);
        let mut released = 0;
        for second in 0..2 {
            released += shop.release_all().await;
            // Those of the others go at the instant at which they are due, in the same batches.
            for hold in &quiet[50 * second..50 * (second + 1)] {
                let now = shop.find(hold.id).await;
                assert_eq!(now.closed_at, Some(hold.expires_at), "{}", home.name);
            }
            home.clock.advance(1_000);
        }
        assert!(released <= 100 + 5 + 5 + 2, "{released}");
        let lateness = drain(&home, &shop, 300 - released, 100).await;
        let last = lateness.iter().max().unwrap();
        // 200 of them take 39 s at 5 in a second, after the burst.
        assert!((37_000..=40_000).contains(last), "{}: {last}", home.name);
        assert_sound(home.store.as_ref()).await;
    }
}

#[tokio::test]
async fn p11_what_a_shopper_waits_for_needs_no_permit_and_uses_none() {
    for home in homes().await {
        let shop = paced(&home, pace(AdmissionDimension::Global, 0.001, 1));
        shop.stock_up("A", 1).await;
        shop.stock_up("B", 2).await;
        shop.hold("B", 1, 60).await;
        shop.hold("A", 1, 60).await;
        shop.hold("B", 1, 60).await;
        home.clock.advance(60_000);
        // A shopper gets the unit before the lane has even looked, and the permit is still there.
        assert_eq!(shop.word(reserve(&[("A", 1)], 600)).await, "held");
        assert_eq!(shop.release_all().await, 1, "{}", home.name);
        assert_eq!(shop.on_shelf("B").await.held, 1);
        assert_eq!(shop.word(reserve(&[("B", 2)], 600)).await, "held");
        assert_sound(home.store.as_ref()).await;
    }
}

#[tokio::test]
async fn permits_are_spent_on_transitions_and_on_nothing_else() {
    for home in homes().await {
        let it = queued_at_a_pace(&home, pace(AdmissionDimension::Global, 0.001, 2));
        it.shop.stock_up("A", 9).await;
        let paid = it.shop.hold("A", 1, 60).await;
        let cancelled = it.shop.hold("A", 1, 60).await;
        let first = it.shop.hold("A", 1, 60).await;
        let second = it.shop.hold("A", 1, 60).await;
        let third = it.shop.hold("A", 1, 60).await;
        it.shop.done(pay(paid.id)).await;
        it.shop.done(cancel(cancelled.id)).await;
        it.clock.advance(60_000);
        let deliver = async |hold: &Reservation| it.deliver(Message::first(hold.job())).await;
        assert_eq!(deliver(&first).await, "expired");
        for _ in 0..20 {
            assert_eq!(deliver(&first).await, "duplicate");
            assert!(["cancelled", "duplicate"].contains(&deliver(&cancelled).await));
            assert!(["paid", "duplicate"].contains(&deliver(&paid).await));
        }
        assert_eq!(deliver(&second).await, "expired", "{}", home.name);
        // The third one keeps its slot however often it comes.
        assert_eq!(deliver(&third).await, "deferred");
        let slot = it.shop.find(third.id).await;
        assert_eq!(deliver(&third).await, "deferred");
        assert_eq!(it.shop.find(third.id).await, slot);
        it.clock.set(slot.attempt_at);
        assert_eq!(deliver(&third).await, "expired", "{}", home.name);
        assert_sound(home.store.as_ref()).await;
    }
}

#[tokio::test]
async fn what_was_pulled_and_has_to_wait_is_published_again_for_its_slot() {
    for home in homes().await {
        let mut it = queued_at_a_pace(&home, pace(AdmissionDimension::Global, 0.1, 1));
        it.shop.stock_up("A", 2).await;
        let one = it.shop.hold("A", 1, 60).await;
        let other = it.shop.hold("A", 1, 60).await;
        it.relay().await;
        it.queue.accepted();
        it.clock.advance(60_000);
        let pull = async |it: &crate::scripted::Loop, hold: &Reservation| {
            let payload = Message::first(hold.job()).payload();
            let deliveries = &it.deliveries;
            let delivered = deliveries
                .deliver(payload.as_bytes(), Via::Pull, None)
                .await;
            delivered.unwrap().as_str()
        };
        assert_eq!(pull(&it, &one).await, "expired");
        assert_eq!(pull(&it, &other).await, "rearmed");
        it.relay().await;
        assert_eq!(it.queue.accepted(), [], "{}", home.name);
        let slot = it.shop.find(other.id).await.attempt_at;
        it.clock.set(slot);
        it.relay().await;
        let again = it.queue.messages();
        assert_eq!(
            again,
            [Message {
                job: other.job(),
                copy: 2
            }],
            "{}",
            home.name
        );
        assert_eq!(pull(&it, &other).await, "expired");
        assert_sound(home.store.as_ref()).await;
    }
}

#[tokio::test]
async fn instances_on_one_database_share_a_pace_exactly() {
    let home = postgres().await;
    let rule = pace(AdmissionDimension::Global, 1.0, 10);
    let one = paced(&home, Arc::clone(&rule));
    let other = paced(&home, rule);
    one.stock_up("A", 40).await;
    for _ in 0..40 {
        one.hold("A", 1, 60).await;
    }
    home.clock.advance(60_000);
    let both = async |due: Due| {
        let (one, other) = tokio::join!(one.engine.expire_due(due), other.engine.expire_due(due));
        one.unwrap().released + other.unwrap().released
    };
    let few = Due {
        most: 7,
        ..Due::ALL
    };
    let mut released = 0;
    for _ in 0..10 {
        released += both(few).await;
    }
    assert_eq!(released, 10);
    home.clock.advance(3_000 + 1_000);
    released += both(Due::ALL).await;
    assert!((13..=14).contains(&released), "{released}");
    assert_sound(home.store.as_ref()).await;
}

#[tokio::test]
async fn each_location_of_a_reservation_has_to_let_it_go() {
    let home = memory();
    let shop = paced(&home, pace(AdmissionDimension::Location, 0.1, 1));
    let at = |locations: &[&str]| {
        let Command::Reserve(reserve) = reserve(&[("A", 1)], 60) else {
            unreachable!()
        };
        let line = |location: &&str| Line {
            location: text(location),
            ..reserve.lines[0].clone()
        };
        Command::Reserve(Reserve {
            entropy: entropy(),
            lines: locations.iter().map(line).collect(),
            ..reserve
        })
    };
    for location in ["x", "y"] {
        let key = holdfast::domain::StockKey {
            location: text(location),
            sku: text("A"),
        };
        shop.done(Command::SetStock { key, on_hand: 9 }).await;
    }
    shop.done(at(&["x"])).await;
    home.clock.advance(1);
    shop.done(at(&["x", "y"])).await;
    home.clock.advance(1);
    shop.done(at(&["y"])).await;
    home.clock.advance(60_000);
    // The first takes the permit of x. The second has to wait for x, and keeps the one of y.
    assert_eq!(shop.release_all().await, 1);
    assert_eq!(released_by(&home, shop.clone(), 9_999).await, 0);
    assert_eq!(released_by(&home, shop.clone(), 22_000).await, 2);
    assert_sound(home.store.as_ref()).await;
}

/// How many are released within so many milliseconds.
async fn released_by(home: &Home, shop: Shop, milliseconds: i64) -> usize {
    let until: Timestamp = home.clock.now().saturating_add_millis(milliseconds);
    let mut released = 0;
    while home.clock.now() < until {
        home.clock
            .advance(1.max(until.millis_since(home.clock.now()) / 50));
        released += shop.release_all().await;
    }
    released
}
