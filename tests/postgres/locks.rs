//! What is locked, in which order, and what happens when others have it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use holdfast::domain::{Deferral, DeferralCause, Timestamp};
use holdfast::store::{Key, Store, StoreError, Wait};

use crate::database::{at, key, line, reserve, with_database};

#[tokio::test]
async fn a_foreign_lock_is_waited_for_briefly_or_passed_by() {
    with_database(|database| async move {
        database.set_stock("coffee", 10).await;
        database.set_stock("tea", 10).await;
        let one = database.hold(&[line("tea", 1)], 60).await;
        let two = database.hold(&[line("tea", 1)], 60).await;
        let missing = holdfast::domain::ReservationId::new(at(0), [255; 10]);
        let ids = BTreeSet::from([one.id, two.id, missing]);
        let keys = BTreeSet::from([key("coffee"), key("nothing"), key("tea")]);

        let mut foreign = database.store.begin().await.unwrap();
        foreign
            .lock_reservations(&[two.id].into(), Wait::Briefly)
            .await
            .unwrap();
        foreign
            .lock_stock(&[key("tea")].into(), Wait::Briefly)
            .await
            .unwrap();

        let mut transaction = database.store.begin().await.unwrap();
        let begun = Instant::now();
        let error = transaction
            .lock_reservations(&ids, Wait::Briefly)
            .await
            .unwrap_err();
        assert!(matches!(error, StoreError::Contended(_)), "{error}");
        assert!((80..2_000).contains(&begun.elapsed().as_millis()));
        transaction.rollback().await;

        let mut transaction = database.store.begin().await.unwrap();
        let locked = transaction
            .lock_reservations(&ids, Wait::Skip)
            .await
            .unwrap();
        assert_eq!(locked.rows, [one]);
        assert_eq!(locked.elsewhere, [two.id].into());
        assert!(locked.corrupt.is_empty());
        let locked = transaction.lock_stock(&keys, Wait::Skip).await.unwrap();
        assert_eq!(locked.rows.len(), 1);
        assert_eq!(locked.elsewhere, [key("tea")].into());
        let error = transaction
            .lock_stock(&keys, Wait::Briefly)
            .await
            .unwrap_err();
        assert!(matches!(error, StoreError::Contended(_)), "{error}");
    })
    .await;
}

/// Two transactions that name the same rows the other way round never wait in a circle.
#[tokio::test]
async fn rows_are_locked_in_one_order() {
    with_database(|database| async move {
        for sku in ["c", "b", "a"] {
            database.set_stock(sku, 100).await;
        }
        // Someone has the middle row: whoever comes waits there, with the first row and without
        // the last one.
        let mut foreign = database.others.begin().await.unwrap();
        sqlx::raw_sql("SELECT * FROM stock WHERE sku = 'b' FOR UPDATE")
            .execute(&mut *foreign)
            .await
            .unwrap();
        let store = database.store.clone();
        let comer = tokio::spawn(async move {
            let keys = BTreeSet::from([key("a"), key("b"), key("c")]);
            loop {
                let mut transaction = store.begin().await.unwrap();
                let error = transaction
                    .lock_stock(&keys, Wait::Briefly)
                    .await
                    .unwrap_err();
                assert!(matches!(error, StoreError::Contended(_)), "{error}");
                transaction.rollback().await;
            }
        });
        loop {
            let free: Vec<String> =
                sqlx::query_scalar("SELECT sku FROM stock ORDER BY sku FOR UPDATE SKIP LOCKED")
                    .fetch_all(&database.others)
                    .await
                    .unwrap();
            if free == ["c"] {
                break;
            }
            // Between two tries; whoever waits never has the last row already.
            assert_eq!(free, ["a", "c"]);
        }
        comer.abort();
    })
    .await;
}

#[tokio::test]
async fn a_key_that_is_busy_elsewhere_is_left_out() {
    with_database(|database| async move {
        let named = |name: &str| Key {
            scope: "shop".to_owned(),
            key: name.to_owned(),
        };
        let mut foreign = database.store.begin().await.unwrap();
        let locked = foreign.lock_keys(&[named("a")].into()).await.unwrap();
        assert!(locked.elsewhere.is_empty());
        let mut transaction = database.store.begin().await.unwrap();
        let keys = BTreeSet::from([named("a"), named("b")]);
        let locked = transaction.lock_keys(&keys).await.unwrap();
        assert_eq!(locked.elsewhere, [named("a")].into());
        foreign.rollback().await;
        let mut later = database.store.begin().await.unwrap();
        let locked = later.lock_keys(&keys).await.unwrap();
        assert_eq!(locked.elsewhere, [named("b")].into());
    })
    .await;
}

#[tokio::test]
async fn due_holds_are_claimed_earliest_first_and_never_twice() {
    with_database(|database| async move {
        database.set_stock("tea", 100).await;
        let third = database.hold(&[line("tea", 1)], 3).await;
        let first = database.hold(&[line("tea", 1)], 1).await;
        let second = database.hold(&[line("tea", 1)], 2).await;
        let later = database.hold(&[line("tea", 1)], 60).await;
        let next = database.store.next_attempt(Timestamp::EPOCH).await.unwrap();
        assert_eq!((next.now, next.attempt_at), (at(0), Some(at(1_000))));
        database.clock.advance(3_000);

        let mut one = database.store.begin().await.unwrap();
        let claimed = one.claim_due(Timestamp::EPOCH, 0, 2).await.unwrap();
        assert_eq!(claimed.rows, [first.clone(), second]);
        let mut other = database.store.begin().await.unwrap();
        let claimed = other.claim_due(Timestamp::EPOCH, 0, 10).await.unwrap();
        assert_eq!(claimed.rows, [third]);
        other.rollback().await;
        let mut other = database.store.begin().await.unwrap();
        assert!(
            other
                .claim_due(at(3_001), 0, 10)
                .await
                .unwrap()
                .rows
                .is_empty()
        );

        // Deferred, it is no longer tried, and no deadline is passed over.
        let deferral = Deferral {
            attempt_at: at(30_000),
            cause: DeferralCause::Blocked,
        };
        let deferrals = [first.id, later.id].map(|id| (id, deferral)).into();
        one.defer(&deferrals, at(3_001)).await.unwrap();
        one.commit().await.unwrap();
        let mut one = database.store.begin().await.unwrap();
        let locked = one
            .lock_reservations(&[first.id, later.id].into(), Wait::Briefly)
            .await;
        let attempts: Vec<_> = locked
            .unwrap()
            .rows
            .iter()
            .map(|row| row.attempt_at)
            .collect();
        assert_eq!(attempts, [at(30_000), at(60_000)]);
        assert_eq!(
            one.claim_due(Timestamp::EPOCH, 0, 10)
                .await
                .unwrap()
                .rows
                .len(),
            2
        );
    })
    .await;
}

#[tokio::test]
async fn just_enough_due_units_are_claimed() {
    with_database(|database| async move {
        database.set_stock("tea", 100).await;
        database.set_stock("coffee", 100).await;
        database.hold(&[line("coffee", 9)], 1).await;
        let first = database.hold(&[line("tea", 2), line("tea", 1)], 1).await;
        let second = database.hold(&[line("tea", 4), line("coffee", 1)], 2).await;
        let third = database.hold(&[line("tea", 5)], 3).await;
        database.clock.advance(3_000);
        for (units, limit, expected) in [
            (1, 10, vec![&first]),
            (3, 10, vec![&first]),
            (4, 10, vec![&first, &second]),
            (8, 10, vec![&first, &second, &third]),
            (999, 10, vec![&first, &second, &third]),
            (999, 1, vec![&first]),
            (0, 10, vec![]),
        ] {
            let mut transaction = database.store.begin().await.unwrap();
            let claimed = transaction
                .claim_due_of(&key("tea"), units, limit)
                .await
                .unwrap();
            let claimed: Vec<_> = claimed.rows.iter().collect();
            assert_eq!(claimed, expected, "{units} units");
            transaction.rollback().await;
        }

        let mut foreign = database.store.begin().await.unwrap();
        foreign
            .lock_reservations(&[second.id].into(), Wait::Briefly)
            .await
            .unwrap();
        let mut transaction = database.store.begin().await.unwrap();
        let claimed = transaction.claim_due_of(&key("tea"), 8, 10).await.unwrap();
        assert_eq!(claimed.rows, [first.clone(), third.clone()]);
        transaction.rollback().await;
        foreign.rollback().await;

        // One that cannot be understood does not stand before the others.
        sqlx::query("UPDATE reservations SET metadata = '{\"a\": 1}' WHERE id = $1")
            .bind(first.id.as_uuid())
            .execute(&database.others)
            .await
            .unwrap();
        let mut transaction = database.store.begin().await.unwrap();
        let claimed = transaction.claim_due_of(&key("tea"), 1, 10).await.unwrap();
        assert_eq!(claimed.rows, [second]);
        assert!(claimed.corrupt.contains_key(&first.id));
        let due = transaction
            .due_units(&[key("tea"), key("none")].into(), at(2_000))
            .await;
        assert_eq!(due.unwrap(), [(key("tea"), 7)].into());
    })
    .await;
}

/// The event head is worth a longer wait than other rows, because whoever has it is committing.
#[tokio::test]
async fn the_event_head_is_waited_for() {
    with_database(|database| async move {
        database.set_stock("tea", 10).await;
        let mut foreign = database.others.begin().await.unwrap();
        sqlx::raw_sql("UPDATE event_head SET seq = seq")
            .execute(&mut *foreign)
            .await
            .unwrap();
        let holder = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(400)).await;
            foreign.commit().await.unwrap();
        });
        database.run(&[reserve(&[line("tea", 1)], 60)]).await;
        holder.await.unwrap();
        database.assert_sound().await;
    })
    .await;
}

/// What another transaction changed while a lock was waited for is what the lock shows.
#[tokio::test]
async fn a_lock_that_was_waited_for_shows_the_row_as_it_was_left() {
    with_database(|database| async move {
        database.set_stock("tea", 10).await;
        let mut foreign = database.others.begin().await.unwrap();
        sqlx::raw_sql("UPDATE stock SET on_hand = 77")
            .execute(&mut *foreign)
            .await
            .unwrap();
        let holder = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(30)).await;
            foreign.commit().await.unwrap();
        });
        loop {
            let mut transaction = database.store.begin().await.unwrap();
            match transaction
                .lock_stock(&[key("tea")].into(), Wait::Briefly)
                .await
            {
                Ok(locked) => break assert_eq!(locked.rows[0].on_hand, 77),
                // On a busy machine the other one takes longer to commit.
                Err(StoreError::Contended(_)) => transaction.rollback().await,
                Err(error) => panic!("{error}"),
            }
        }
        holder.await.unwrap();
    })
    .await;
}
