//! Counters that drifted, and how they are put right.

use std::sync::Arc;

use holdfast::domain::{Changes, EventKind, Reservation, StockDelta};
use holdfast::engine::{Finding, RepairRun, Repairer, TokioRuntime};
use serde_json::json;

use crate::world::{World, cancel, key, line, reserve, set};

/// Mends, or says how, and returns what was said besides.
async fn repair(world: &World, apply: bool) -> (RepairRun, Vec<Finding>) {
    let runtime = Arc::new(TokioRuntime::start());
    let repairer = Repairer::new(Arc::clone(&world.store), runtime, apply);
    let mut found = Vec::new();
    let run = repairer.run(&mut |finding| found.push(finding)).await;
    (run.unwrap(), found)
}

/// A repair that mended or left so many rows.
fn done(applied: bool, repaired: usize, left: usize) -> RepairRun {
    RepairRun {
        applied,
        repaired,
        left,
        more: false,
    }
}

/// Three cups of tea held, of ten.
async fn hold(world: &World) -> Reservation {
    world.run(&[set("tea", 10)]).await;
    world.reservation(reserve(&[line("tea", 3)], 60)).await
}

/// Adds to what a row says is held, and tells nobody.
async fn tamper(world: &World, sku: &str, held: i64) {
    let delta = StockDelta { on_hand: 0, held };
    let changes = Changes {
        stock: [(key(sku), delta)].into(),
        ..Changes::default()
    };
    world.write(&changes, &[]).await.unwrap();
}

/// Makes a hold of which no row of stock knows.
async fn hold_in_secret(world: &World, sku: &str, quantity: i64) -> Reservation {
    let mut changes = world.decide(&[reserve(&[line("tea", 1)], 60)]).await;
    changes.stock.clear();
    let change = changes.reservations.values_mut().next().unwrap();
    change.reservation.lines = vec![line(sku, quantity)];
    let held = change.reservation.clone();
    world.write(&changes, &[]).await.unwrap();
    held
}

pub async fn what_is_sound_stays_as_it_is(world: World) {
    assert_eq!(repair(&world, true).await, (done(true, 0, 0), vec![]));
    let held = hold(&world).await;
    let ended = world.reservation(reserve(&[line("tea", 2)], 60)).await;
    world.run(&[cancel(ended.id)]).await;
    let events = world.store.events(0, 100).await.unwrap();
    for apply in [false, true] {
        assert_eq!(repair(&world, apply).await, (done(apply, 0, 0), vec![]));
    }
    assert_eq!(world.store.events(0, 100).await.unwrap(), events);
    assert_eq!(world.shelf(&key("tea")).await, Some((10, 3, 0)));
    assert_eq!(world.stored(held.id).await, held);
}

pub async fn held_is_counted_anew(world: World) {
    hold(&world).await;
    for wrong in [2, 0, 7] {
        tamper(&world, "tea", wrong - 3).await;
        let said = json!({
            "sku": "tea",
            "location": "default",
            "wrong": "held-differs",
            "before": { "on_hand": 10, "held": wrong },
            "after": { "on_hand": 10, "held": 3 },
        });
        let finding = Finding {
            row: "stock tea at default".to_owned(),
            repair: Some(said),
            left: None,
        };
        // Saying how changes nothing.
        let (run, found) = repair(&world, false).await;
        assert_eq!((run, found), (done(false, 1, 0), vec![finding.clone()]));
        assert_eq!(world.shelf(&key("tea")).await, Some((10, wrong, 0)));
        let (run, found) = repair(&world, true).await;
        assert_eq!((run, found), (done(true, 1, 0), vec![finding]));
        assert_eq!(world.shelf(&key("tea")).await, Some((10, 3, 0)));
        assert!(world.drifts().await.is_empty());
        assert_eq!(repair(&world, true).await, (done(true, 0, 0), vec![]));
    }
}

pub async fn a_row_that_vanished_is_made_again(world: World) {
    hold(&world).await;
    let first = hold_in_secret(&world, "coffee", 2).await;
    hold_in_secret(&world, "coffee", 3).await;
    let (run, found) = repair(&world, false).await;
    assert_eq!((run, found.len()), (done(false, 1, 0), 1));
    assert_eq!(world.shelf(&key("coffee")).await, None);
    let (run, found) = repair(&world, true).await;
    assert_eq!(run, done(true, 1, 0));
    let said = json!({
        "sku": "coffee",
        "location": "default",
        "wrong": "row-missing",
        "before": null,
        "after": { "on_hand": 5, "held": 5 },
    });
    assert_eq!(found[0].repair, Some(said));
    assert_eq!(world.shelf(&key("coffee")).await, Some((5, 5, 0)));
    assert!(world.drifts().await.is_empty());
    // What comes back can be sold.
    world.run(&[cancel(first.id)]).await;
    assert_eq!(world.shelf(&key("coffee")).await, Some((5, 3, 0)));
}

pub async fn more_than_is_on_hand_is_left(world: World) {
    hold(&world).await;
    world.run(&[set("milk", 1)]).await;
    tamper(&world, "tea", 1).await;
    hold_in_secret(&world, "milk", 2).await;
    for apply in [false, true] {
        let (run, found) = repair(&world, apply).await;
        let about = |row: &str| found.iter().find(|finding| finding.row == row);
        let milk = about("stock milk at default").unwrap();
        assert_eq!(run, done(apply, 1, 1));
        let why = milk.left.as_deref().unwrap();
        assert!(why.contains("claim 2 units, and 1 are on hand"), "{why}");
        assert!(about("stock tea at default").unwrap().repair.is_some());
    }
    assert_eq!(world.shelf(&key("milk")).await, Some((1, 0, 0)));
    assert_eq!(world.shelf(&key("tea")).await, Some((10, 3, 0)));
    // As it is told: the shelf is counted, and then it can be mended.
    world.run(&[set("milk", 2)]).await;
    assert_eq!(repair(&world, true).await.0, done(true, 1, 0));
    assert_eq!(world.shelf(&key("milk")).await, Some((2, 2, 0)));
    assert!(world.drifts().await.is_empty());
}

pub async fn each_repair_is_one_event_and_found_by_nobody_again(world: World) {
    hold(&world).await;
    world.run(&[set("milk", 9)]).await;
    tamper(&world, "tea", 2).await;
    tamper(&world, "milk", 1).await;
    let before = world.store.events(0, 100).await.unwrap();
    let (one, other) = tokio::join!(repair(&world, true), repair(&world, true));
    assert_eq!(one.0.repaired + other.0.repaired, 2, "{one:?} {other:?}");
    let events = world.store.events(0, 100).await.unwrap();
    let (old, new) = events.split_at(before.len());
    assert_eq!(old, before);
    let kinds: Vec<_> = new.iter().map(|it| it.event.kind).collect();
    assert_eq!(kinds, [EventKind::StockRepaired; 2]);
    assert!(new.iter().all(|it| it.event.reservation_id.is_none()));
    assert!(new.iter().all(|it| it.event.at == world.clock.now()));
    assert!(world.drifts().await.is_empty());
}
