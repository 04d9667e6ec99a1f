//! Rows that somebody spoiled by hand, on real databases: their own hold stays, and nobody else
//! notices.

use std::time::Duration;

use holdfast::domain::{EventKind, Outcome, ReservationId, State};
use holdfast::engine::Cases;
use holdfast::store::HOLD;
use holdfast::worker::{Expirer, Next, Worker as _};

use crate::auditor::assert_sound;
use crate::repairs::repair;
use crate::shop::{Home, InNoTime, Shop, noon, postgres, reserve, sqlite};

/// As many shelves as there are, each with as many holds.
const SHELVES: usize = 10;
const HOLDS: usize = 50;
/// How long all of them are held, in milliseconds.
const HOLD_MS: i64 = 60_000;

/// What is spoiled of one hold.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Spoiled {
    /// The counter of a row of stock that it holds was lowered.
    Counter,
    /// A row of stock that it holds vanished.
    Stock,
    /// Its metadata no longer parses.
    Metadata,
    /// Its lines no longer parse.
    Lines,
}

impl Spoiled {
    const ALL: [Self; 4] = [Self::Counter, Self::Stock, Self::Metadata, Self::Lines];

    async fn spoil(self, home: &Home, id: ReservationId) {
        let id = id.as_uuid();
        let changed = home
            .tamper(&match self {
                Self::Counter => "update stock set held = 0 where sku = 'SPOILED'".to_owned(),
                Self::Stock => "delete from stock where sku = 'SPOILED'".to_owned(),
                Self::Metadata => {
                    format!(
                        "update reservations set metadata = '{{\"gift\": 1}}' where id = '{id}'"
                    )
                }
                Self::Lines => {
                    format!("update reservations set lines = '[{{\"sku\": 1}}]' where id = '{id}'")
                }
            })
            .await;
        assert_eq!(changed, 1);
    }

    /// As an operator does: counters by the program, what a hold says by hand.
    async fn mend(self, home: &Home, id: ReservationId) {
        let id = id.as_uuid();
        match self {
            Self::Counter | Self::Stock => {
                let (run, _) = repair(&home.store, true).await;
                assert_eq!((run.repaired, run.left), (1, 0), "{self:?}");
            }
            Self::Metadata => {
                let mend = format!("update reservations set metadata = '{{}}' where id = '{id}'");
                home.tamper(&mend).await;
            }
            Self::Lines => {
                let line = |sku: &str| {
                    format!(r#"{{"sku": "{sku}", "location": "default", "quantity": 1}}"#)
                };
                let lines = format!("[{}, {}]", line("SHELF-0"), line("SPOILED"));
                let mend = format!("update reservations set lines = '{lines}' where id = '{id}'");
                home.tamper(&mend).await;
            }
        }
    }
}

/// Lets an expirer do its work until it has rested for so long, in milliseconds of the clock.
async fn let_expire(home: &Home, shop: &Shop, rest_ms: i64) {
    let (engine, runtime) = (shop.engine.clone(), InNoTime::start());
    let mut expirer = Expirer::timer(engine, runtime, Duration::from_secs(300));
    let until = home.clock.now().saturating_add_millis(rest_ms);
    while home.clock.now() < until {
        if let Next::After(rest) = expirer.run_once().await.unwrap() {
            home.clock.advance(i64::try_from(rest.as_millis()).unwrap());
        }
    }
}

/// How late each release was, in milliseconds.
async fn releases(home: &Home) -> Vec<(ReservationId, i64)> {
    let events = home.store.events(0, 10_000).await.unwrap();
    let expired = events.iter().map(|recorded| &recorded.event);
    let expired = expired.filter(|event| event.kind == EventKind::Expired);
    expired
        .map(|event| {
            let lateness_ms = event.data.value()["lateness_ms"].as_i64().unwrap();
            (event.reservation_id.unwrap(), lateness_ms)
        })
        .collect()
}

/// It is held, is not said to have been released, and does not stand at the head of what is due.
async fn assert_stays_held(home: &Home, id: ReservationId) {
    let id = id.as_uuid();
    let held = format!(
        "select count(*) from reservations
        where id = '{id}' and state = 'held' and closed_at is null"
    );
    assert_eq!(home.count(&held).await, 1);
    let jobs = format!("select count(*) from ledger where reservation_id = '{id}'");
    assert_eq!(home.count(&jobs).await, 0);
    let put_off =
        format!("select count(*) from reservations where id = '{id}' and attempt_at > expires_at");
    assert_eq!(home.count(&put_off).await, 1);
}

/// Its release was given up, and an operator is told of it and of nothing else.
async fn case_of(home: &Home, id: ReservationId) -> i64 {
    let cases = home.store.quarantine().open(10, 0).await.unwrap();
    assert_eq!(cases.len(), 1);
    let sighting = &cases[0].sighting;
    assert_eq!(
        (sighting.source.as_str(), &sighting.key),
        (HOLD, &id.to_string())
    );
    cases[0].id
}

/// All holds but one, made at the same time.
async fn fill_shelves(shop: &Shop) {
    let holds: Vec<_> = (1..SHELVES * HOLDS)
        .map(|number| {
            let shop = shop.clone();
            let shelf = format!("SHELF-{}", number % SHELVES);
            tokio::spawn(async move { shop.hold(&shelf, 1, HOLD_MS / 1_000).await })
        })
        .collect();
    for hold in holds {
        hold.await.unwrap();
    }
}

#[tokio::test]
async fn p7_a_spoiled_row_keeps_its_own_hold_and_none_of_499_neighbours() {
    for spoiled in Spoiled::ALL {
        for home in [sqlite().await, postgres().await] {
            let case = format!("{spoiled:?} on {}", home.name);
            let shop = Shop::open(&home.store);
            shop.stock_up("SPOILED", 3).await;
            for shelf in 0..SHELVES {
                shop.stock_up(&format!("SHELF-{shelf}"), 100).await;
            }
            let lines = [("SHELF-0", 1), ("SPOILED", 1)];
            let bad = match shop.done(reserve(&lines, HOLD_MS / 1_000)).await {
                Outcome::Reservation { reservation, .. } => *reservation,
                other => panic!("{other:?}"),
            };
            fill_shelves(&shop).await;
            spoiled.spoil(&home, bad.id).await;

            home.clock.advance(HOLD_MS);
            let_expire(&home, &shop, 1_000).await;
            let released = releases(&home).await;
            assert_eq!(released.len(), SHELVES * HOLDS - 1, "{case}");
            let on_time = |(id, lateness_ms): &(ReservationId, i64)| {
                *id != bad.id && (0..1_000).contains(lateness_ms)
            };
            assert!(released.iter().all(on_time), "{case}: {released:?}");
            assert_stays_held(&home, bad.id).await;
            for shelf in 0..SHELVES {
                let stock = shop.on_shelf(&format!("SHELF-{shelf}")).await;
                let kept = i64::from(shelf == 0);
                assert_eq!((stock.on_hand, stock.held), (100, kept), "{case}");
            }

            // However long that goes on.
            let_expire(&home, &shop, 180_000).await;
            assert_eq!(releases(&home).await, released, "{case}");
            assert_stays_held(&home, bad.id).await;
            let word = shop.word(reserve(&[("SHELF-0", 99)], 1)).await;
            assert_eq!(word, "held", "{case}: the others' units are for sale");
            let_expire(&home, &shop, 2_000).await;

            let case_number = case_of(&home, bad.id).await;
            spoiled.mend(&home, bad.id).await;
            let cases = Cases::new(shop.engine.clone(), InNoTime::start());
            let replayed = cases.replay(case_number, "ann").await.unwrap().unwrap();
            assert_eq!(replayed.as_str(), "expired", "{case}");
            assert_eq!(home.store.quarantine().open(10, 0).await.unwrap(), []);
            assert_eq!(shop.state(bad.id).await, State::Expired, "{case}");
            let_expire(&home, &shop, HOLD_MS).await;
            let again = releases(&home).await;
            let once = again.iter().filter(|(id, _)| *id == bad.id).count();
            assert_eq!((once, again.len()), (1, released.len() + 2), "{case}");
            assert!(home.clock.now() > noon());
            assert_sound(home.store.as_ref()).await;
        }
    }
}
