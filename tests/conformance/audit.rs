//! Each kind of drift, made by leaving out a part of what belongs together.

use holdfast::domain::{Changes, EventKind, OnExpired, Reservation};

use crate::world::{World, at, cancel, check_out, expire, extend, line, put_off, reserve, set};

/// Four holds of one cup of tea each for a minute.
async fn holds(world: &World) -> [Reservation; 4] {
    world.run(&[set("tea", 10)]).await;
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(world.reservation(reserve(&[line("tea", 1)], 60)).await);
    }
    held.try_into().unwrap()
}

async fn assert_drifts(world: &World, expected: &[(&'static str, String)]) {
    let expected = expected.iter().cloned().collect();
    assert_eq!(world.drifts().await, expected);
}

fn about(promise: &'static str, reservation: &Reservation) -> (&'static str, String) {
    (promise, format!("reservation {}", reservation.id))
}

fn tea(promise: &'static str) -> (&'static str, String) {
    (promise, "stock tea at default".to_owned())
}

pub async fn a_whole_life_leaves_no_drift(world: World) {
    assert_drifts(&world, &[]).await;
    let [first, second, third, fourth] = holds(&world).await;
    world.run(&[extend(first.id, 60), cancel(second.id)]).await;
    world
        .run(&[check_out(third.id, "pi_3", OnExpired::Reject)])
        .await;
    world.clock.set(at(60_000));
    world.run(&[expire(&third), expire(&fourth)]).await;
    world
        .run(&[check_out(fourth.id, "pi_4", OnExpired::Reacquire)])
        .await;
    world
        .run(&[check_out(second.id, "pi_2", OnExpired::Reject)])
        .await;
    assert_drifts(&world, &[]).await;
    world.clock.set(at(600_000));
    assert_drifts(&world, &[]).await;
}

pub async fn stock_that_nobody_holds_is_found(world: World) {
    holds(&world).await;
    let mut changes = world.decide(&[reserve(&[line("tea", 1)], 60)]).await;
    changes.reservations.clear();
    changes.events.clear();
    world.write(&changes, &[]).await.unwrap();
    assert_drifts(&world, &[tea("P8")]).await;
}

pub async fn holds_that_no_stock_knows_are_found(world: World) {
    let [first, ..] = holds(&world).await;
    let mut changes = world.decide(&[reserve(&[line("tea", 1)], 60)]).await;
    changes.stock.clear();
    world.write(&changes, &[]).await.unwrap();
    assert_drifts(&world, &[tea("P8")]).await;
    // The same the other way round: it is released, and the stock is not told.
    let mut changes = world.decide(&[cancel(first.id)]).await;
    changes.stock.clear();
    world.write(&changes, &[]).await.unwrap();
    assert_drifts(&world, &[]).await;
}

pub async fn a_hold_that_was_left_in_silence_is_found(world: World) {
    let [first, second, ..] = holds(&world).await;
    let mut changes = world.decide(&[cancel(first.id)]).await;
    changes.events.clear();
    world.write(&changes, &[]).await.unwrap();
    assert_drifts(&world, &[about("P2", &first)]).await;
    let mut changes = world.decide(&[cancel(second.id)]).await;
    changes.events[0].kind = EventKind::Paid;
    world.write(&changes, &[]).await.unwrap();
    let expected = [about("P2", &first), about("P2", &second)];
    assert_drifts(&world, &expected).await;
}

pub async fn an_end_that_did_not_happen_is_found(world: World) {
    let [first, second, ..] = holds(&world).await;
    let cancelled = world.decide(&[cancel(first.id)]).await;
    let events = Changes {
        events: cancelled.events,
        ..Changes::default()
    };
    world.write(&events, &[]).await.unwrap();
    assert_drifts(&world, &[about("P2", &first)]).await;
    // Twice is once too often.
    let cancelled = world.decide(&[cancel(second.id)]).await;
    world.write(&cancelled, &[]).await.unwrap();
    let events = Changes {
        events: cancelled.events,
        ..Changes::default()
    };
    world.write(&events, &[]).await.unwrap();
    let expected = [about("P2", &first), about("P2", &second)];
    assert_drifts(&world, &expected).await;
}

pub async fn a_reservation_that_nobody_created_is_found(world: World) {
    holds(&world).await;
    let mut changes = world.decide(&[reserve(&[line("tea", 1)], 60)]).await;
    changes.events.clear();
    let created = changes.reservations.values().next().unwrap();
    let created = created.reservation.clone();
    world.write(&changes, &[]).await.unwrap();
    assert_drifts(&world, &[about("P9", &created)]).await;
}

pub async fn releases_that_ledger_and_events_tell_differently_are_found(world: World) {
    let [first, second, third, _] = holds(&world).await;
    world.clock.set(at(60_000));
    let mut changes = world.decide(&[expire(&first)]).await;
    changes.ledger.clear();
    world.write(&changes, &[]).await.unwrap();
    assert_drifts(&world, &[about("P9", &first)]).await;
    // A ledger row without its release.
    let released = world.decide(&[expire(&second)]).await;
    let ledger = Changes {
        ledger: released.ledger,
        ..Changes::default()
    };
    world.write(&ledger, &[]).await.unwrap();
    let mut expected = vec![about("P9", &first), about("P9", &second)];
    assert_drifts(&world, &expected).await;
    // Both, but of different times.
    let mut changes = world.decide(&[expire(&third)]).await;
    changes.ledger[0].at = at(60_001);
    world.write(&changes, &[]).await.unwrap();
    expected.push(about("P9", &third));
    assert_drifts(&world, &expected).await;
}

pub async fn a_hold_that_cannot_be_released_is_found(world: World) {
    let [first, second, ..] = holds(&world).await;
    let mut transaction = world.store.begin().await.unwrap();
    let put_off = async |transaction: &mut Box<dyn holdfast::store::Transaction>, id, until| {
        let deferrals = put_off([id], at(until));
        transaction.defer(&deferrals, at(0)).await.unwrap();
    };
    put_off(&mut transaction, first.id, 120_001).await;
    put_off(&mut transaction, second.id, 120_000).await;
    transaction.commit().await.unwrap();
    world.clock.set(at(59_999));
    assert_drifts(&world, &[]).await;
    world.clock.set(at(60_000));
    assert_drifts(&world, &[about("P7", &first)]).await;
}
