//! What is stored, and what is refused.

use std::collections::BTreeSet;

use holdfast::domain::{
    Changes, Command, Deadline, EventKind, Guard, JobOutcome, OnExpired, Outcome, Refusal,
    ReservationChange, State, StockDelta,
};
use holdfast::store::{
    Answer, Key, RecordedAnswer, ReservationFilter, StockFilter, Store, StoreError, Wait,
};

use crate::database::{
    Database, at, check_out, decide_all, expire, key, line, reserve, with_database,
};

#[tokio::test]
async fn a_hold_lives_and_ends_in_every_way() {
    with_database(|database| async move {
        database.set_stock("tea", 10).await;
        let lines = [line("tea", 1), line("tea", 2)];
        let paid = database.hold(&lines, 60).await;
        let cancelled = database.hold(&lines, 60).await;
        let expired = database.hold(&lines, 60).await;
        assert_eq!(database.held("tea").await, (10, 9, 0));
        assert_eq!(
            database.store.reservation(paid.id).await.unwrap().0,
            Some(paid.clone())
        );

        let until = Deadline::In { seconds: 30 };
        database
            .run(&[
                Command::Extend {
                    id: expired.id,
                    until,
                },
                check_out(paid.id, "pi_1", OnExpired::Reject),
                Command::Cancel {
                    id: cancelled.id,
                    reason: None,
                },
            ])
            .await;
        database.assert_sound().await;
        assert_eq!(database.held("tea").await, (7, 3, 0));

        database.clock.advance(90_000);
        assert_eq!(database.held("tea").await, (7, 3, 3));
        let (stale, _) = database.store.reservation(expired.id).await.unwrap();
        let job = expire(&stale.unwrap());
        let done = database.run(&[expire(&expired), job.clone(), job]).await;
        assert_eq!(
            done,
            [
                JobOutcome::Stale,
                JobOutcome::Expired,
                JobOutcome::Duplicate
            ]
            .map(Outcome::Job)
        );
        database.assert_sound().await;

        let done = database
            .run(&[check_out(expired.id, "pi_2", OnExpired::Reject)])
            .await;
        assert!(matches!(done[0], Outcome::Refused(Refusal::Expired { .. })));
        database
            .run(&[check_out(expired.id, "pi_2", OnExpired::Reject)])
            .await;
        database
            .run(&[check_out(expired.id, "pi_3", OnExpired::Reacquire)])
            .await;
        database.assert_sound().await;
        assert_eq!(database.held("tea").await, (4, 0, 0));

        let (end, _) = database.store.reservation(expired.id).await.unwrap();
        let end = end.unwrap();
        assert_eq!(
            (end.state, end.reacquired, end.extensions),
            (State::Paid, true, 1)
        );
        let events = database.store.events(0, 100).await.unwrap();
        let kinds: Vec<EventKind> = events.iter().map(|event| event.event.kind).collect();
        assert_eq!(
            kinds,
            [
                EventKind::StockSet,
                EventKind::Created,
                EventKind::Created,
                EventKind::Created,
                EventKind::Extended,
                EventKind::Paid,
                EventKind::Cancelled,
                EventKind::Expired,
                EventKind::PaymentRefused,
                EventKind::Paid,
            ]
        );
        assert!(events.iter().map(|event| event.seq).eq(1..=10));
    })
    .await;
}

/// One batch may make a hold and end it, or expire one and sell it anew.
#[tokio::test]
async fn two_changes_of_a_reservation_in_one_batch() {
    with_database(|database| async move {
        database.set_stock("tea", 10).await;
        let due = database.hold(&[line("tea", 1)], 1).await;
        database.clock.advance(1_000);
        database
            .run(&[
                expire(&due),
                check_out(due.id, "pi_1", OnExpired::Reacquire),
            ])
            .await;
        database.assert_sound().await;

        let mut transaction = database.store.begin().await.unwrap();
        let (outcomes, mut changes, now) =
            decide_all(transaction.as_mut(), &[reserve(&[line("tea", 2)], 60)])
                .await
                .unwrap();
        let Outcome::Reservation { reservation, .. } = &outcomes[0] else {
            panic!("{outcomes:?}")
        };
        let change = changes.reservations.get_mut(&reservation.id).unwrap();
        change.reservation.state = State::Cancelled;
        change.reservation.closed_at = Some(now);
        changes.stock.clear();
        let mut cancelled = changes.events[0].clone();
        cancelled.kind = EventKind::Cancelled;
        changes.events.push(cancelled);
        transaction.write_transitions(&changes, now).await.unwrap();
        transaction.write_rest(&changes, &[], now).await.unwrap();
        transaction.commit().await.unwrap();
        database.assert_sound().await;
    })
    .await;
}

/// Writes one transition of the only hold, made at 0 with a deadline at 60 s, under a guard.
async fn guarded(database: &Database, guard: Guard, to: State, now: i64) -> Result<(), StoreError> {
    let (rows, _) = database
        .store
        .list_reservations(&ReservationFilter::default(), None, 1)
        .await?;
    let mut transaction = database.store.begin().await?;
    let mut changes = Changes::default();
    let mut reservation = rows[0].clone();
    reservation.state = to;
    reservation.closed_at = Some(at(now));
    changes.reservations.insert(
        reservation.id,
        Box::new(ReservationChange {
            guard: Some(guard),
            reservation,
        }),
    );
    transaction.write_transitions(&changes, at(now)).await?;
    transaction.rollback().await;
    Ok(())
}

#[tokio::test]
async fn the_guard_refuses_what_was_not_decided_on() {
    with_database(|database| async move {
        database.set_stock("tea", 10).await;
        database.hold(&[line("tea", 1)], 60).await;
        let right = Guard {
            state: State::Held,
            expires_at: at(60_000),
        };
        let moved = Guard {
            expires_at: at(60_001),
            ..right
        };
        let closed = Guard {
            state: State::Expired,
            ..right
        };
        for (guard, to, now, passes) in [
            (right, State::Cancelled, 59_999, true),
            (right, State::Paid, 59_999, true),
            (right, State::Expired, 60_000, true),
            (right, State::Cancelled, 60_000, false),
            (right, State::Paid, 60_000, false),
            (right, State::Expired, 59_999, false),
            (moved, State::Cancelled, 59_999, false),
            (closed, State::Paid, 59_999, false),
        ] {
            match guarded(&database, guard, to, now).await {
                Ok(()) => assert!(passes, "{guard:?} {to:?} {now}"),
                Err(StoreError::RowCount {
                    expected: 1,
                    changed: 0,
                    ..
                }) => {
                    assert!(!passes, "{guard:?} {to:?} {now}");
                }
                Err(other) => panic!("{other}"),
            }
        }
    })
    .await;
}

#[tokio::test]
async fn stock_that_was_made_for_nothing_is_taken_away() {
    with_database(|database| async move {
        let mut transaction = database.store.begin().await.unwrap();
        let made = BTreeSet::from([key("coffee"), key("tea")]);
        transaction.make_stock(&made).await.unwrap();
        let locked = transaction.lock_stock(&made, Wait::Briefly).await.unwrap();
        assert_eq!(locked.rows.len(), 2);
        let mut changes = Changes::default();
        changes.new_stock.insert(key("tea"));
        changes.stock.insert(
            key("tea"),
            StockDelta {
                on_hand: 3,
                held: 0,
            },
        );
        transaction.write_rest(&changes, &[], at(5)).await.unwrap();
        transaction.commit().await.unwrap();
        let stock = database
            .store
            .list_stock(&StockFilter::default(), None, 10)
            .await
            .unwrap();
        assert_eq!(stock.len(), 1);
        assert_eq!(
            (&stock[0].key, stock[0].on_hand, stock[0].updated_at),
            (&key("tea"), 3, at(5))
        );
    })
    .await;
}

#[tokio::test]
async fn constraints_are_named_and_a_failed_transaction_cannot_be_committed() {
    with_database(|database| async move {
        database.set_stock("tea", 1).await;
        let mut transaction = database.store.begin().await.unwrap();
        transaction
            .lock_stock(&[key("tea")].into(), Wait::Briefly)
            .await
            .unwrap();
        let mut changes = Changes::default();
        changes.stock.insert(
            key("tea"),
            StockDelta {
                on_hand: 0,
                held: 2,
            },
        );
        let error = transaction
            .write_rest(&changes, &[], at(0))
            .await
            .unwrap_err();
        assert!(
            matches!(&error, StoreError::Constraint { constraint, .. }
                if constraint == "stock_held_within_on_hand"),
            "{error}"
        );
        assert!(error.is_about_rows());
        assert!(matches!(
            transaction.commit().await,
            Err(StoreError::Unavailable(_))
        ));
        assert_eq!(database.held("tea").await, (1, 0, 0));

        let mut transaction = database.store.begin().await.unwrap();
        changes.stock.clear();
        changes.stock.insert(key("nothing"), StockDelta::default());
        let error = transaction
            .write_rest(&changes, &[], at(0))
            .await
            .unwrap_err();
        assert!(matches!(error, StoreError::RowCount { .. }), "{error}");
    })
    .await;
}

#[tokio::test]
async fn an_answer_is_kept_and_may_be_replaced() {
    with_database(|database| async move {
        let answer = |name: &str, status| RecordedAnswer {
            key: Key {
                scope: "shop".to_owned(),
                key: name.to_owned(),
            },
            fingerprint: vec![7; 32],
            answer: Answer {
                status,
                location: Some("/v1/x".to_owned()),
                body: "{}".to_owned(),
            },
            created_at: at(1),
        };
        let nothing = Changes::default();
        for status in [201, 409] {
            let answers = [answer("b", status), answer("a", status)];
            let mut transaction = database.store.begin().await.unwrap();
            transaction
                .write_rest(&nothing, &answers, at(1))
                .await
                .unwrap();
            transaction.commit().await.unwrap();
            let mut transaction = database.store.begin().await.unwrap();
            let keys = answers.iter().map(|answer| answer.key.clone()).collect();
            let locked = transaction.lock_keys(&keys).await.unwrap();
            assert!(
                locked
                    .recorded
                    .into_values()
                    .eq([answer("a", status), answer("b", status)])
            );
        }
    })
    .await;
}
