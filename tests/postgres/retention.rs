//! Deleting beside others who have locked what is old.

use holdfast::domain::{Changes, Command, Job, LedgerEntry, Reservation, Via};
use holdfast::store::{Retention as _, Step, Store as _, Wait};

use crate::database::{Database, at, line, with_database};

const DAY_MS: i64 = 86_400_000;

/// Holds that were cancelled a day and more ago.
async fn cancelled(database: &Database) -> [Reservation; 2] {
    database.set_stock("tea", 10).await;
    let one = database.hold(&[line("tea", 1)], 60).await;
    let two = database.hold(&[line("tea", 1)], 60).await;
    let cancel = |id| Command::Cancel { id, reason: None };
    database.run(&[cancel(one.id), cancel(two.id)]).await;
    database.clock.set(at(2 * DAY_MS));
    [one, two]
}

/// What somebody else has is passed by, not waited for, and comes with the next round.
#[tokio::test]
async fn a_reservation_that_somebody_has_is_left_for_the_next_time() {
    with_database(|database| async move {
        let [one, two] = cancelled(&database).await;
        let mut shopper = database.store.begin().await.unwrap();
        let ids = [two.id].into();
        shopper
            .lock_reservations(&ids, Wait::Briefly)
            .await
            .unwrap();
        let everything = async || {
            let step = database.store.delete_reservations(DAY_MS, 10, None).await;
            step.unwrap().deleted
        };
        assert_eq!(everything().await, 1);
        let (gone, _) = database.store.reservation(one.id).await.unwrap();
        assert_eq!(gone, None);
        shopper.rollback().await;
        assert_eq!(everything().await, 1);
        database.assert_sound().await;
    })
    .await;
}

/// Instances take turns, and none waits for its own.
#[tokio::test]
async fn of_two_that_delete_from_a_table_one_finds_nothing_to_do() {
    with_database(|database| async move {
        cancelled(&database).await;
        let mut other = database.others.begin().await.unwrap();
        sqlx::query("SELECT FROM retention WHERE table_name = 'reservations' FOR UPDATE")
            .execute(&mut *other)
            .await
            .unwrap();
        let step = database.store.delete_reservations(DAY_MS, 10, None).await;
        let nothing = Step {
            deleted: 0,
            after: None,
        };
        assert_eq!(step.unwrap(), nothing);
        // The other tables are nobody's.
        assert_eq!(database.store.delete_events(DAY_MS, 2).await.unwrap(), 2);
        other.rollback().await.unwrap();
        let step = database.store.delete_reservations(DAY_MS, 10, None).await;
        assert_eq!(step.unwrap().deleted, 2);
    })
    .await;
}

/// A delivery that is about to write of a reservation keeps it.
#[tokio::test]
async fn a_job_that_is_written_while_its_reservation_is_old_keeps_it() {
    with_database(|database| async move {
        let [one, _] = cancelled(&database).await;
        let mut delivery = database.store.begin().await.unwrap();
        let ids = [one.id].into();
        delivery
            .lock_reservations(&ids, Wait::Briefly)
            .await
            .unwrap();
        let now = delivery.now().await.unwrap();
        let entry = LedgerEntry {
            job: Job {
                reservation: one.id,
                deadline: one.expires_at,
            },
            outcome: "cancelled",
            via: Via::Push,
            at: now,
        };
        let changes = Changes {
            ledger: vec![entry],
            ..Changes::default()
        };
        delivery.write_transitions(&changes, now).await.unwrap();
        let step = database.store.delete_reservations(DAY_MS, 10, None).await;
        assert_eq!(step.unwrap().deleted, 1);
        delivery.commit().await.unwrap();
        let step = database.store.delete_reservations(DAY_MS, 10, None).await;
        assert_eq!(step.unwrap().deleted, 0);
        database.assert_sound().await;
    })
    .await;
}
