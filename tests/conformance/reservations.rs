//! Reservations and what is written with them.

use std::collections::{BTreeMap, BTreeSet};

use holdfast::domain::{
    Changes, Command, Guard, OnExpired, Outcome, Reservation, ReservationChange, ReservationId,
    State, Timestamp,
};
use holdfast::store::{Answer, Fate, Key, RecordedAnswer, TransactionId, Wait};
use uuid::Uuid;

use crate::world::{
    World, at, cancel, check_out, constraint, decide_in, expire, extend, key, line, line_at,
    reserve, row_count, set, text,
};

pub async fn a_reservation_is_read_back_as_it_was_written(world: World) {
    let mut command = reserve(
        &[
            line("tea", 2),
            line_at("caf\u{e9} 咖啡", "a/b?c \"quoted\" \\ 'x'", 1_000_000_000),
            line("tea", 3),
        ],
        90,
    );
    let elsewhere = crate::world::key_at("caf\u{e9} 咖啡", "a/b?c \"quoted\" \\ 'x'");
    let stock_elsewhere = Command::SetStock {
        key: elsewhere.clone(),
        on_hand: 1_000_000_000,
    };
    world.run(&[set("tea", 10), stock_elsewhere]).await;
    if let Command::Reserve(reserve) = &mut command {
        reserve.customer_id = Some(text("customer \u{1f600}"));
        reserve.reference = Some(text("order;--"));
        reserve.metadata = BTreeMap::from([
            (text("zebra"), text("1")),
            (text("A key"), text("[\"not\", {\"json\": null}]")),
        ]);
    }
    world.clock.advance(250);
    let created = world.reservation(command).await;
    assert_eq!(world.stored(created.id).await, created);
    assert_eq!(created.expires_at, at(90_250));
    assert_eq!(world.shelf(&key("tea")).await, Some((10, 5, 0)));
    let full = (1_000_000_000, 1_000_000_000, 0);
    assert_eq!(world.shelf(&elsewhere).await, Some(full));

    world.clock.advance(1_000);
    let extended = world.reservation(extend(created.id, 60)).await;
    assert_eq!(world.stored(created.id).await, extended);
    let paid = world.reservation(check_out(created.id, "pi_1", OnExpired::Reject));
    let paid = paid.await;
    assert_eq!(world.stored(created.id).await, paid);
    assert_eq!(paid.state, State::Paid);
    assert_eq!(world.shelf(&key("tea")).await, Some((5, 0, 0)));

    let mut transaction = world.store.begin().await.unwrap();
    let ids = BTreeSet::from([created.id, ReservationId::from_uuid(Uuid::max())]);
    let locked = transaction.lock_reservations(&ids, Wait::Briefly).await;
    transaction.rollback().await;
    let locked = locked.unwrap();
    assert_eq!(locked.rows, [paid]);
    assert!(locked.elsewhere.is_empty() && locked.corrupt.is_empty());
}

/// A hold of one cup of tea for a minute.
async fn hold(world: &World) -> Reservation {
    world.run(&[set("tea", 10)]).await;
    world.reservation(reserve(&[line("tea", 1)], 60)).await
}

/// The change of one row, without the rest of what belongs to it.
fn change(guard: Guard, reservation: Reservation) -> Changes {
    let id = reservation.id;
    let guard = Some(guard);
    let change = Box::new(ReservationChange { guard, reservation });
    Changes {
        reservations: BTreeMap::from([(id, change)]),
        ..Changes::default()
    }
}

fn guard(reservation: &Reservation) -> Guard {
    Guard {
        state: reservation.state,
        expires_at: reservation.expires_at,
    }
}

fn closed(reservation: &Reservation, state: State, now: Timestamp) -> Reservation {
    Reservation {
        state,
        closed_at: Some(now),
        updated_at: now,
        ..reservation.clone()
    }
}

pub async fn a_hold_is_left_once_and_under_its_guard(world: World) {
    let held = hold(&world).await;
    let cancelled = closed(&held, State::Cancelled, at(0));
    let moved = Guard {
        expires_at: at(60_001),
        ..guard(&held)
    };
    let paid = Guard {
        state: State::Paid,
        ..guard(&held)
    };
    for wrong in [moved, paid] {
        let refused = world.write(&change(wrong, cancelled.clone()), &[]).await;
        assert_eq!(row_count(refused), (1, 0), "{wrong:?}");
    }
    let mut unknown = cancelled.clone();
    unknown.id = ReservationId::from_uuid(Uuid::max());
    let refused = world.write(&change(guard(&held), unknown), &[]).await;
    assert_eq!(row_count(refused), (1, 0));
    assert_eq!(world.stored(held.id).await, held);

    let right = change(guard(&held), cancelled.clone());
    world.write(&right, &[]).await.unwrap();
    assert_eq!(row_count(world.write(&right, &[]).await), (1, 0));
    assert_eq!(world.stored(held.id).await, cancelled);
}

pub async fn a_hold_is_released_when_due_and_changed_only_before(world: World) {
    let held = hold(&world).await;
    let expired = change(guard(&held), closed(&held, State::Expired, at(60_000)));
    let others = [
        closed(&held, State::Cancelled, at(60_000)),
        closed(&held, State::Paid, at(60_000)),
        Reservation {
            expires_at: at(90_000),
            attempt_at: at(90_000),
            ..held.clone()
        },
    ];
    world.clock.set(at(59_999));
    let early = world.write(&expired, &[]).await;
    assert_eq!(row_count(early), (1, 0), "released a millisecond early");
    world.clock.set(at(60_000));
    for other in others {
        let late = world.write(&change(guard(&held), other), &[]).await;
        assert_eq!(row_count(late), (1, 0), "changed at its deadline");
    }
    assert_eq!(world.stored(held.id).await, held);
    world.write(&expired, &[]).await.unwrap();
    assert_eq!(world.stored(held.id).await.state, State::Expired);
}

pub async fn one_broken_guard_refuses_the_batch(world: World) {
    let first = hold(&world).await;
    let second = world.reservation(reserve(&[line("tea", 1)], 60)).await;
    let mut changes = world.decide(&[cancel(first.id), cancel(second.id)]).await;
    world.run(&[cancel(second.id)]).await;
    assert_eq!(row_count(world.write(&changes, &[]).await), (2, 1));
    assert_eq!(world.stored(first.id).await, first);
    changes = world.decide(&[cancel(first.id), cancel(second.id)]).await;
    world.write(&changes, &[]).await.unwrap();
    assert!(world.drifts().await.is_empty());
}

pub async fn what_changed_twice_in_a_batch_is_written_as_it_ends(world: World) {
    let held = hold(&world).await;
    let outcomes = world.run(&[extend(held.id, 60), extend(held.id, 60)]).await;
    let Some(Outcome::Reservation { reservation, .. }) = outcomes.last() else {
        panic!("{outcomes:?}");
    };
    assert_eq!(world.stored(held.id).await, **reservation);
    assert_eq!(reservation.expires_at, at(180_000));
    assert_eq!(reservation.extensions, 2);
    world.clock.set(at(60_000));
    assert_eq!(world.shelf(&key("tea")).await, Some((10, 1, 0)));
    world.run(&[extend(held.id, 60), cancel(held.id)]).await;
    let ended = world.stored(held.id).await;
    assert_eq!((ended.state, ended.extensions), (State::Cancelled, 3));
    assert_eq!(world.shelf(&key("tea")).await, Some((10, 0, 0)));

    // One that is made and ends in the same batch never held anything that others could see.
    let mut made = world.decide(&[reserve(&[line("tea", 2)], 60)]).await;
    let change = made.reservations.values_mut().next().unwrap();
    let now = at(60_000);
    change.reservation = closed(&change.reservation, State::Cancelled, now);
    let id = change.reservation.id;
    made.stock.clear();
    let mut event = made.events[0].clone();
    event.kind = holdfast::domain::EventKind::Cancelled;
    made.events.push(event);
    world.write(&made, &[]).await.unwrap();
    assert_eq!(world.stored(id).await.state, State::Cancelled);
    assert!(world.drifts().await.is_empty());
}

pub async fn a_released_hold_is_paid_anew(world: World) {
    let first = hold(&world).await;
    let second = world.reservation(reserve(&[line("tea", 2)], 60)).await;
    world.clock.set(at(60_000));
    world.run(&[expire(&first)]).await;
    world.clock.set(at(61_000));
    let late = |id| check_out(id, "pi_late", OnExpired::Reacquire);
    let paid = world.reservation(late(first.id)).await;
    assert!(paid.reacquired);
    assert_eq!(paid.closed_at, Some(at(60_000)));
    assert_eq!(world.stored(first.id).await, paid);
    // Released and paid anew in one batch: the first guard is that of a release.
    world.run(&[expire(&second), late(second.id)]).await;
    assert!(world.stored(second.id).await.reacquired);
    assert_eq!(world.shelf(&key("tea")).await, Some((7, 0, 0)));
    assert!(world.drifts().await.is_empty());
}

pub async fn rows_that_contradict_themselves_are_refused(world: World) {
    let held = hold(&world).await;
    let broken = [
        (
            "reservations_held_until_closed",
            closed(&held, State::Held, at(0)),
        ),
        (
            "reservations_held_until_closed",
            Reservation {
                state: State::Cancelled,
                ..held.clone()
            },
        ),
        (
            "reservations_attempt_not_early",
            Reservation {
                attempt_at: at(59_999),
                ..held.clone()
            },
        ),
        (
            "reservations_payment_when_paid",
            Reservation {
                payment_reference: Some(text("pi_1")),
                ..closed(&held, State::Cancelled, at(0))
            },
        ),
    ];
    for (name, row) in broken {
        let refused = world.write(&change(guard(&held), row.clone()), &[]).await;
        assert_eq!(constraint(refused), name);
        let mut fresh = change(guard(&held), row);
        let mut change = fresh.reservations.pop_first().unwrap().1;
        change.guard = None;
        change.reservation.id = ReservationId::from_uuid(Uuid::max());
        fresh.reservations.insert(change.reservation.id, change);
        assert_eq!(constraint(world.write(&fresh, &[]).await), name);
    }
    assert_eq!(world.stored(held.id).await, held);
}

pub async fn a_name_is_given_once(world: World) {
    world.run(&[set("tea", 10)]).await;
    let changes = world.decide(&[reserve(&[line("tea", 1)], 60)]).await;
    world.write(&changes, &[]).await.unwrap();
    let again = world.write(&changes, &[]).await;
    assert_eq!(constraint(again), "reservations_pkey");
    assert_eq!(world.shelf(&key("tea")).await, Some((10, 1, 0)));
}

pub async fn a_job_is_done_once(world: World) {
    let held = hold(&world).await;
    let job = held.job().id();
    let other = "expire:rsv_00000000000000000000000000:1".to_owned();
    let jobs = BTreeSet::from([job.clone(), other]);
    let done = async || {
        let mut transaction = world.store.begin().await.unwrap();
        let done = transaction.jobs_done(&jobs).await.unwrap();
        transaction.rollback().await;
        done
    };
    assert!(done().await.is_empty());
    world.clock.set(at(60_000));
    let changes = world.decide(&[expire(&held)]).await;
    world.write(&changes, &[]).await.unwrap();
    assert_eq!(done().await, BTreeSet::from([job]));
    let ledger = Changes {
        ledger: changes.ledger,
        ..Changes::default()
    };
    assert_eq!(constraint(world.write(&ledger, &[]).await), "ledger_pkey");
}

pub async fn a_payment_is_refused_once(world: World) {
    let held = hold(&world).await;
    let second = world.reservation(reserve(&[line("tea", 1)], 60)).await;
    world.run(&[cancel(held.id), cancel(second.id)]).await;
    let late = |payment| check_out(held.id, payment, OnExpired::Reject);
    let changes = world.decide(&[late("pi_1"), late("pi_2")]).await;
    assert_eq!(changes.events.len(), 2);
    world.write(&changes, &[]).await.unwrap();
    let again = world.write(&changes, &[]).await;
    assert_eq!(constraint(again), "events_payment_refused_once");
    let other = check_out(second.id, "pi_1", OnExpired::Reject);
    world.run(&[other]).await;

    let mut transaction = world.store.begin().await.unwrap();
    let ids = BTreeSet::from([held.id]);
    let refused = transaction.refused_payments(&ids).await.unwrap();
    transaction.rollback().await;
    let expected = [(held.id, text("pi_1")), (held.id, text("pi_2"))];
    assert_eq!(refused, BTreeSet::from(expected));
    let (_, changes) = (refused, world.decide(&[late("pi_1")]).await);
    assert!(changes.is_empty(), "the second refusal is silent");
}

pub async fn without_a_commit_nothing_happened(world: World) {
    let held = hold(&world).await;
    let events = world.store.events(0, 100).await.unwrap();
    let name = Key {
        scope: "shop".to_owned(),
        key: "k".to_owned(),
    };
    let answer = RecordedAnswer {
        key: name.clone(),
        fingerprint: vec![1; 32],
        answer: Answer {
            status: 200,
            location: None,
            body: String::new(),
        },
        created_at: at(0),
    };
    for drop_it in [true, false] {
        let mut transaction = world.store.begin().await.unwrap();
        let commands = [
            cancel(held.id),
            reserve(&[line("tea", 1)], 60),
            set("new", 1),
        ];
        let decided = decide_in(transaction.as_mut(), &commands).await;
        let (_, changes, now) = decided.unwrap();
        transaction.write_transitions(&changes, now).await.unwrap();
        let answers = [answer.clone()];
        let written = transaction.write_rest(&changes, &answers, now).await;
        written.unwrap();
        if drop_it {
            drop(transaction);
        } else {
            transaction.rollback().await;
        }
        assert_eq!(world.stored(held.id).await, held);
        assert_eq!(world.shelf(&key("tea")).await, Some((10, 1, 0)));
        assert_eq!(world.shelf(&key("new")).await, None);
        assert_eq!(world.store.events(0, 100).await.unwrap(), events);
        let mut transaction = world.store.begin().await.unwrap();
        let keys = BTreeSet::from([name.clone()]);
        let locked = transaction.lock_keys(&keys).await.unwrap();
        assert!(locked.recorded.is_empty());
        transaction.rollback().await;
    }
    assert!(world.drifts().await.is_empty());
}

pub async fn an_unknown_transaction_has_no_known_fate(world: World) {
    let fate = world.store.fate(TransactionId("nonsense".to_owned())).await;
    assert_eq!(fate.unwrap(), Fate::Unknown);
}
