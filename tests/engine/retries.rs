//! Releases that fail: tried again within their budget, and given up where a person can see it.

use std::collections::{BTreeMap, BTreeSet};

use holdfast::domain::{
    Deferral, DeferralCause, EventKind, Message, ReservationId, State, Timestamp,
};
use holdfast::engine::Due;
use holdfast::store::{HOLD, QuarantineCase, Wait};

use crate::auditor::assert_sound;
use crate::faulty::faulty;
use crate::scripted::{Sleep, queued_on};
use crate::shop::{Home, Shop, expire, homes, memory, noon, reacquire, reserve, set_stock};

async fn open_cases(home: &Home) -> Vec<QuarantineCase> {
    home.store.quarantine().open(1_000, 0).await.unwrap()
}

/// A shop with a hold of something poisoned, whose release fails, and 499 neighbours.
async fn poisoned(home: &Home) -> (Shop, std::sync::Arc<crate::faulty::Plan>, ReservationId) {
    let (store, plan) = faulty(&home.store);
    let shop = Shop::open(&store);
    shop.stock_up("bad", 1).await;
    shop.stock_up("good", 499).await;
    let bad = shop.hold("bad", 1, 60).await;
    for _ in 0..499 {
        shop.hold("good", 1, 60).await;
    }
    plan.poison("bad");
    home.clock.advance(60_000);
    (shop, plan, bad.id)
}

#[tokio::test]
async fn p12_a_poisoned_hold_holds_up_nobody_and_is_given_up_within_its_budget() {
    for home in homes().await {
        let (shop, plan, bad) = poisoned(&home).await;
        let due = home.clock.now();
        assert_eq!(shop.release_all().await, 499, "{}", home.name);
        let events = home.store.events(0, 10_000).await.unwrap();
        let late = events.iter().map(|it| &it.event).filter(|event| {
            event.kind == EventKind::Expired && event.data.value()["lateness_ms"] != 0
        });
        assert_eq!(late.count(), 0, "{}: its neighbours are on time", home.name);
        let mut attempts = 1;
        loop {
            let hold = shop.find(bad).await;
            if hold.is_parked() {
                break;
            }
            assert_eq!(hold.waits.attempts, attempts, "{}", home.name);
            assert!(hold.attempt_at.millis_since(due) <= 900_000);
            // Until then nothing tries it.
            home.clock.set(hold.attempt_at.saturating_add_millis(-1));
            if home.clock.now() > due {
                assert_eq!(shop.engine.expire_due(Due::ALL).await.unwrap().claimed, 0);
            }
            home.clock.set(hold.attempt_at);
            assert_eq!(shop.engine.expire_due(Due::ALL).await.unwrap().released, 0);
            attempts += 1;
        }
        assert_eq!(attempts, 10, "{}", home.name);
        let cases = open_cases(&home).await;
        assert_eq!(cases.len(), 1, "{}", home.name);
        assert_eq!(cases[0].sighting.source, HOLD);
        assert_eq!(cases[0].sighting.key, bad.to_string());
        // It is seen, it is no longer tried, and it is not taken for something to be had.
        let hold = shop.find(bad).await;
        assert_eq!((hold.state, hold.attempt_at), (State::Held, Timestamp::MAX));
        home.clock.advance(86_400_000);
        assert_eq!(shop.engine.expire_due(Due::ALL).await.unwrap().claimed, 0);
        assert_eq!(shop.on_shelf("bad").await.due, 0, "{}", home.name);
        assert_eq!(shop.word(reserve(&[("bad", 1)], 60)).await, "insufficient");
        assert_eq!(shop.word(reacquire(bad)).await, "too-late");
        assert_eq!(shop.word(expire(hold.job())).await, "parked");
        assert_eq!(home.store.audit().await.unwrap(), [], "{}", home.name);
        assert_sound(home.store.as_ref()).await;
        // Mended and taken up again, it is released once.
        plan.poison("");
        assert!(shop.engine.resume(bad).await.unwrap());
        assert!(!shop.engine.resume(bad).await.unwrap());
        assert_eq!(shop.release_all().await, 1, "{}", home.name);
        assert_eq!(shop.word(expire(hold.job())).await, "duplicate");
        assert_sound(home.store.as_ref()).await;
    }
}

#[tokio::test]
async fn what_fails_again_after_it_was_taken_up_is_the_same_case() {
    for home in homes().await {
        let (shop, _plan, bad) = poisoned(&home).await;
        shop.release_all().await;
        while !shop.find(bad).await.is_parked() {
            home.clock.set(shop.find(bad).await.attempt_at);
            shop.engine.expire_due(Due::ALL).await.unwrap();
        }
        assert!(shop.engine.resume(bad).await.unwrap());
        assert_eq!(shop.release_all().await, 0);
        assert!(shop.find(bad).await.is_parked(), "{}", home.name);
        let cases = open_cases(&home).await;
        assert_eq!(cases.len(), 1, "{}", home.name);
        assert_eq!(cases[0].attempts, 2, "{}", home.name);
    }
}

#[tokio::test]
async fn a_hold_that_was_given_up_without_a_case_is_found_by_the_audit() {
    for home in homes().await {
        let shop = Shop::open(&home.store);
        shop.stock_up("A", 1).await;
        let hold = shop.hold("A", 1, 60).await;
        home.clock.advance(60_000);
        let mut transaction = home.store.begin().await.unwrap();
        transaction
            .lock_reservations(&[hold.id].into(), Wait::Briefly)
            .await
            .unwrap();
        let deferral = Deferral {
            attempt_at: Timestamp::MAX,
            cause: DeferralCause::Blocked,
        };
        let now = home.clock.now();
        let deferrals = BTreeMap::from([(hold.id, deferral)]);
        transaction.defer(&deferrals, now).await.unwrap();
        transaction.commit().await.unwrap();
        let drifts = home.store.audit().await.unwrap();
        let promises: BTreeSet<_> = drifts.iter().map(|drift| drift.promise).collect();
        assert!(promises.contains("P12"), "{}: {drifts:?}", home.name);
    }
}

#[tokio::test]
async fn a_delivery_of_a_hold_that_rests_is_told_when_and_of_one_given_up_is_done_with() {
    for home in homes().await {
        let (store, plan) = faulty(&home.store);
        let it = queued_on(&store, &home.clock, Sleep::MovesTheClock);
        it.shop.stock_up("bad", 1).await;
        let hold = it.shop.hold("bad", 1, 60).await;
        plan.poison("bad");
        home.clock.advance(60_000);
        let message = Message::first(hold.job());
        let failed = it.shop.word(expire(hold.job())).await;
        assert_eq!(failed, "store", "{}", home.name);
        let rests = it.shop.find(hold.id).await;
        assert!(rests.attempt_at > home.clock.now());
        // However often the queue comes in between, nothing is tried and nothing is counted.
        for _ in 0..5 {
            assert_eq!(it.deliver(message).await, "deferred");
        }
        assert_eq!(it.shop.find(hold.id).await, rests);
        while !it.shop.find(hold.id).await.is_parked() {
            home.clock.set(it.shop.find(hold.id).await.attempt_at);
            it.shop.word(expire(hold.job())).await;
        }
        assert_eq!(it.deliver(message).await, "quarantined", "{}", home.name);
        assert_eq!(open_cases(&home).await.len(), 1);
    }
}

/// How late the fresh ones are, and in how many batches all that is due was found.
async fn lateness_of_fresh(retrying: usize) -> (Vec<i64>, usize) {
    let home = memory();
    let shop = Shop::open(&home.store);
    shop.done(set_stock("A", 1_000_000)).await;
    let mut put_off = BTreeMap::new();
    for number in 0..retrying {
        let hold = shop.hold("A", 1, 60).await;
        // Between a second and a minute from noon on, as the backoff has it.
        let wait_ms = 60_000 + i64::try_from(number % 60_000).unwrap();
        let deferral = Deferral {
            attempt_at: noon().saturating_add_millis(wait_ms + 1_000),
            cause: DeferralCause::Failed,
        };
        put_off.insert(hold.id, deferral);
    }
    let mut fresh = Vec::new();
    for number in 0..100 {
        let hold = shop.hold("A", 1, 61 + number % 10).await;
        fresh.push(hold.id);
    }
    home.clock.advance(60_000);
    let mut transaction = home.store.begin().await.unwrap();
    let now = home.clock.now();
    transaction.defer(&put_off, now).await.unwrap();
    transaction.commit().await.unwrap();
    let mut batches = 0;
    for _ in 0..11 {
        home.clock.advance(1_000);
        loop {
            batches += 1;
            if shop.engine.expire_due(Due::ALL).await.unwrap().claimed == 0 {
                break;
            }
        }
    }
    let mut lateness = Vec::new();
    for id in fresh {
        let hold = shop.find(id).await;
        lateness.push(hold.closed_at.unwrap().millis_since(hold.expires_at));
    }
    (lateness, batches)
}

#[tokio::test]
async fn p7_a_hundred_thousand_that_retry_leave_the_fresh_ones_as_late_as_they_were() {
    let (alone, few) = lateness_of_fresh(0).await;
    let (beside, many) = lateness_of_fresh(100_000).await;
    assert_eq!(alone, beside);
    assert_eq!(alone, [0; 100]);
    // Those whose time has not come are not even looked at: 11 seconds of 60 are.
    let most = 100_000 * 11 / 60 / 64 + 11 + 11;
    assert!(few <= 30 && many <= most, "{few} {many} {most}");
}
