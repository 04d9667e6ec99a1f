//! Holds that were made in one burst, and end in one.

use std::collections::BTreeMap;
use std::time::Duration;

use holdfast::domain::{EventKind, Outcome, Reservation, ReservationId};
use holdfast::worker::{Expirer, Next, Worker as _};

use crate::auditor::assert_sound;
use crate::shop::{Home, InNoTime, Shop, homes, reserve};

/// For how long all are held, and over how long they were made.
const HOLD_SECONDS: i64 = 900;
const BURST_MS: i64 = 5_000;
/// How far the clock moves at once.
const STEP_MS: i64 = 250;

/// One hold of one unit of each of these shelves, all at once.
async fn burst(shop: &Shop, shelves: impl Iterator<Item = usize>) -> Vec<Option<Reservation>> {
    let asked: Vec<_> = shelves
        .map(|shelf| {
            let (shop, name) = (shop.clone(), format!("SHELF-{shelf}"));
            let command = reserve(&[(&name, 1)], HOLD_SECONDS);
            tokio::spawn(async move { shop.done(command).await })
        })
        .collect();
    let mut made = Vec::new();
    for answer in asked {
        made.push(match answer.await.unwrap() {
            Outcome::Reservation { reservation, .. } => Some(*reservation),
            _ => None,
        });
    }
    made
}

/// Each hold's release, and how late it was, in milliseconds.
async fn lateness(home: &Home) -> BTreeMap<ReservationId, i64> {
    let events = home.store.events(0, 1_000_000).await.unwrap();
    let mut lateness = BTreeMap::new();
    for recorded in events {
        let event = recorded.event;
        if event.kind == EventKind::Expired {
            let late = event.data.value()["lateness_ms"].as_i64().unwrap();
            let again = lateness.insert(event.reservation_id.unwrap(), late);
            assert_eq!(again, None, "released once");
        }
    }
    lateness
}

/// fleetdm/fleet#3271, mozilla/fxa-oauth-server#370: what began in one burst came back in echoes.
#[tokio::test]
async fn p7_what_began_in_one_burst_ends_on_time_under_a_storm_of_retries() {
    for home in homes().await {
        let shelves = if home.name == "memory" { 1_000 } else { 100 };
        let shop = Shop::open(&home.store);
        for shelf in 0..shelves {
            shop.stock_up(&format!("SHELF-{shelf}"), 20).await;
        }
        let steps = BURST_MS / STEP_MS;
        let mut held = Vec::new();
        for _ in 0..steps {
            held.extend(burst(&shop, 0..shelves).await);
            home.clock.advance(STEP_MS);
        }
        let held: Vec<_> = held.into_iter().flatten().collect();
        assert_eq!(held.len(), shelves * 20, "{}: all is sold out", home.name);
        // A deadline is where it belongs: nothing is spread out over time, least of all forwards.
        assert!(held.iter().all(|hold| hold.attempt_at == hold.expires_at));

        home.clock
            .advance(HOLD_SECONDS * 1_000 - BURST_MS - STEP_MS);
        let runtime = InNoTime::start();
        let mut expirer = Expirer::timer(shop.engine.clone(), runtime, Duration::from_secs(300));
        let mut resold = 0;
        for step in 0..=steps {
            // Everybody else asks all the time, and gets what is due whether or not it is released.
            let got = burst(&shop, (0..shelves).step_by(10)).await;
            let got = got.into_iter().flatten().count();
            assert_eq!(got, if step == 0 { 0 } else { shelves.div_ceil(10) });
            resold += got;
            while expirer.run_once().await.unwrap() == Next::Again {}
            home.clock.advance(STEP_MS);
        }
        let lateness = lateness(&home).await;
        assert_eq!(lateness.len(), held.len(), "{}", home.name);
        // On the clock of the database nobody was early, and nobody late: every step looks once.
        let late = lateness.values().filter(|late| **late != 0).count();
        assert_eq!(late, 0, "{}: {lateness:?}", home.name);
        let first = shop.on_shelf("SHELF-0").await;
        assert_eq!((first.on_hand, first.held), (20, steps), "{}", home.name);
        assert_eq!(
            resold,
            shelves.div_ceil(10) * usize::try_from(steps).unwrap()
        );
        assert_sound(home.store.as_ref()).await;
    }
}
