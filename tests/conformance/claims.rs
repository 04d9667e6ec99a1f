//! What is due: claiming it, putting it off, counting it.

use std::collections::{BTreeMap, BTreeSet};

use holdfast::domain::{Reservation, ReservationId, StockKey, Timestamp};
use holdfast::store::NextAttempt;

use crate::world::{World, at, cancel, extend, key, line, put_off, reserve, set};

async fn claim(world: &World, from: Timestamp, limit: usize) -> Vec<Reservation> {
    claim_after(world, from, 0, limit).await
}

async fn claim_after(
    world: &World,
    from: Timestamp,
    grace_ms: i64,
    limit: usize,
) -> Vec<Reservation> {
    let mut transaction = world.store.begin().await.unwrap();
    let claimed = transaction.claim_due(from, grace_ms, limit).await.unwrap();
    transaction.rollback().await;
    assert!(claimed.elsewhere.is_empty() && claimed.corrupt.is_empty());
    claimed.rows
}

async fn claim_of(world: &World, key: &StockKey, units: i64, limit: usize) -> Vec<ReservationId> {
    let mut transaction = world.store.begin().await.unwrap();
    let claimed = transaction.claim_due_of(key, units, limit).await.unwrap();
    transaction.rollback().await;
    assert!(claimed.elsewhere.is_empty() && claimed.corrupt.is_empty());
    ids(&claimed.rows)
}

async fn defer(world: &World, ids: &[ReservationId], attempt_at: Timestamp) {
    let mut transaction = world.store.begin().await.unwrap();
    let deferrals = put_off(ids.iter().copied(), attempt_at);
    let now = world.clock.now();
    transaction.defer(&deferrals, now).await.unwrap();
    transaction.commit().await.unwrap();
}

fn ids(rows: &[Reservation]) -> Vec<ReservationId> {
    rows.iter().map(|reservation| reservation.id).collect()
}

/// Holds with these deadlines in seconds, each of so many units of tea.
async fn holds(world: &World, holds: &[(i64, i64)]) -> Vec<Reservation> {
    world.run(&[set("tea", 1_000), set("milk", 1_000)]).await;
    let mut made = Vec::new();
    for (seconds, units) in holds {
        let lines = [line("tea", *units), line("milk", 1)];
        made.push(world.reservation(reserve(&lines, *seconds)).await);
    }
    made
}

pub async fn holds_are_claimed_when_due_the_earliest_first(world: World) {
    let made = holds(&world, &[(30, 1), (10, 1), (20, 1), (20, 1)]).await;
    world.clock.set(at(9_999));
    assert!(claim(&world, Timestamp::EPOCH, 10).await.is_empty());
    world.clock.set(at(10_000));
    let claimed = claim(&world, Timestamp::EPOCH, 10).await;
    assert_eq!(claimed, [made[1].clone()]);
    world.clock.set(at(30_000));
    let claimed = claim(&world, Timestamp::EPOCH, 10).await;
    let order: Vec<_> = claimed.iter().map(|row| row.expires_at).collect();
    assert_eq!(order, [at(10_000), at(20_000), at(20_000), at(30_000)]);
    let first = claim(&world, Timestamp::EPOCH, 2).await;
    assert_eq!(first.len(), 2);
    assert_eq!(first[0].id, made[1].id);
    world.run(&[crate::world::expire(&made[1])]).await;
    let claimed = claim(&world, Timestamp::EPOCH, 10).await;
    assert_eq!(claimed.len(), 3, "what was released is not claimed again");
}

pub async fn a_claim_starts_where_it_is_told(world: World) {
    let made = holds(&world, &[(10, 1), (20, 1)]).await;
    world.clock.set(at(30_000));
    assert_eq!(ids(&claim(&world, at(10_000), 10).await), ids(&made));
    assert_eq!(ids(&claim(&world, at(10_001), 10).await), [made[1].id]);
    assert!(claim(&world, at(20_001), 10).await.is_empty());
}

pub async fn a_sweep_leaves_holds_to_others_for_its_grace(world: World) {
    let made = holds(&world, &[(10, 1), (20, 1)]).await;
    world.clock.set(at(14_999));
    assert!(
        claim_after(&world, Timestamp::EPOCH, 5_000, 10)
            .await
            .is_empty()
    );
    world.clock.set(at(15_000));
    let claimed = claim_after(&world, Timestamp::EPOCH, 5_000, 10).await;
    assert_eq!(claimed, [made[0].clone()]);
    world.clock.set(at(25_000));
    assert_eq!(claim_after(&world, at(10_001), 5_000, 10).await.len(), 1);
    assert!(
        claim_after(&world, Timestamp::EPOCH, i64::MAX, 10)
            .await
            .is_empty()
    );
}

pub async fn just_enough_is_claimed_of_a_shelf(world: World) {
    let made = holds(&world, &[(30, 4), (10, 2), (20, 3), (60, 9)]).await;
    let all = ids(&made);
    world.clock.set(at(9_999));
    assert!(claim_of(&world, &key("tea"), 1, 10).await.is_empty());
    world.clock.set(at(30_000));
    let tea = key("tea");
    assert_eq!(claim_of(&world, &tea, 1, 10).await, [all[1]]);
    assert_eq!(claim_of(&world, &tea, 2, 10).await, [all[1]]);
    assert_eq!(claim_of(&world, &tea, 3, 10).await, [all[1], all[2]]);
    assert_eq!(claim_of(&world, &tea, 5, 10).await, [all[1], all[2]]);
    let due = [all[1], all[2], all[0]];
    assert_eq!(claim_of(&world, &tea, 6, 10).await, due);
    assert_eq!(claim_of(&world, &tea, 100, 10).await, due);
    assert_eq!(claim_of(&world, &tea, 100, 2).await, due[..2]);
    assert_eq!(claim_of(&world, &key("milk"), 2, 10).await, due[..2]);
    assert!(claim_of(&world, &key("none"), 1, 10).await.is_empty());
    // A hold that was put off is due all the same, and its units are wanted.
    defer(&world, &all[1..2], at(300_000)).await;
    assert_eq!(claim_of(&world, &tea, 1, 10).await, [all[1]]);
}

pub async fn a_moved_deadline_is_not_due(world: World) {
    let made = holds(&world, &[(10, 2), (10, 3), (10, 5)]).await;
    world
        .run(&[extend(made[0].id, 10), cancel(made[1].id)])
        .await;
    world.clock.set(at(10_000));
    assert_eq!(world.shelf(&key("tea")).await, Some((1_000, 7, 5)));
    assert_eq!(claim_of(&world, &key("tea"), 9, 10).await, [made[2].id]);
    let claimed = claim(&world, Timestamp::EPOCH, 10).await;
    assert_eq!(ids(&claimed), [made[2].id]);
    world.clock.set(at(20_000));
    assert_eq!(world.shelf(&key("tea")).await, Some((1_000, 7, 7)));
    assert!(world.drifts().await.is_empty());
}

pub async fn a_deferred_hold_is_tried_later_and_never_early(world: World) {
    let made = holds(&world, &[(10, 1), (20, 1), (10, 1)]).await;
    let all = ids(&made);
    world.run(&[cancel(all[2])]).await;
    defer(&world, &all, at(15_000)).await;
    assert_eq!(world.stored(all[0]).await.attempt_at, at(15_000));
    assert_eq!(world.stored(all[0]).await.expires_at, at(10_000));
    assert_eq!(world.stored(all[1]).await.attempt_at, at(20_000));
    assert_eq!(world.stored(all[2]).await.attempt_at, at(10_000));
    world.clock.set(at(14_999));
    assert!(claim(&world, Timestamp::EPOCH, 10).await.is_empty());
    world.clock.set(at(15_000));
    assert_eq!(ids(&claim(&world, Timestamp::EPOCH, 10).await), [all[0]]);
    defer(&world, &all[..1], Timestamp::MAX).await;
    assert!(claim(&world, Timestamp::EPOCH, 10).await.is_empty());
    assert_eq!(world.stored(all[0]).await.attempt_at, Timestamp::MAX);
}

pub async fn the_next_attempt_is_the_earliest(world: World) {
    let next = async |from| world.store.next_attempt(from).await.unwrap();
    let at_start = |attempt_at| NextAttempt {
        now: at(0),
        attempt_at,
    };
    assert_eq!(next(Timestamp::EPOCH).await, at_start(None));
    let made = holds(&world, &[(20, 1), (10, 1), (30, 1)]).await;
    assert_eq!(next(Timestamp::EPOCH).await, at_start(Some(at(10_000))));
    assert_eq!(next(at(10_000)).await, at_start(Some(at(10_000))));
    assert_eq!(next(at(10_001)).await, at_start(Some(at(20_000))));
    assert_eq!(next(at(30_001)).await, at_start(None));
    world
        .run(&[cancel(made[1].id), extend(made[0].id, 60)])
        .await;
    assert_eq!(next(Timestamp::EPOCH).await, at_start(Some(at(30_000))));
    world.clock.set(at(50_000));
    let overdue = NextAttempt {
        now: at(50_000),
        attempt_at: Some(at(30_000)),
    };
    assert_eq!(next(Timestamp::EPOCH).await, overdue);
}

pub async fn due_units_are_counted_by_deadline(world: World) {
    holds(&world, &[(10, 2), (20, 3)]).await;
    let keys = BTreeSet::from([key("tea"), key("milk"), key("none")]);
    let due_at = async |now| {
        let mut transaction = world.store.begin().await.unwrap();
        let mut due = transaction.due_units(&keys, now).await.unwrap();
        transaction.rollback().await;
        due.retain(|_, units| *units != 0);
        due
    };
    assert!(due_at(at(9_999)).await.is_empty());
    let expected = BTreeMap::from([(key("tea"), 2), (key("milk"), 1)]);
    assert_eq!(due_at(at(10_000)).await, expected);
    let expected = BTreeMap::from([(key("tea"), 5), (key("milk"), 2)]);
    assert_eq!(due_at(at(20_000)).await, expected);
}
