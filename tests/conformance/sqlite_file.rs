//! What is true of the store in a file alone: the file, its one writer, and what somebody with
//! other tools can do to it.

use std::collections::BTreeSet;
use std::sync::Arc;

use holdfast::domain::{Reservation, Timestamp};
use holdfast::store::sqlite::Sqlite;
use holdfast::store::{
    Clock, CorruptRow, ManualClock, ReservationFilter, StockFilter, Store, StoreError, Wait,
};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions, Row};

use crate::stores::Directory;
use crate::world::{World, at, expire, key, line, put_off, reserve, set};

/// A store on a file that can be tampered with.
struct Opened {
    directory: Directory,
    store: Sqlite,
    world: World,
}

impl Opened {
    async fn new() -> Self {
        let directory = Directory::new();
        let clock = ManualClock::at(at(0));
        let opened = Sqlite::open(&directory.url(), Clock::Manual(clock.clone())).await;
        let store = opened.unwrap();
        let world = World {
            store: Arc::new(store.clone()),
            clock,
            queue: None,
        };
        Self {
            directory,
            store,
            world,
        }
    }

    /// A connection that believes in nothing.
    async fn outsider(&self) -> SqliteConnection {
        let options = SqliteConnectOptions::new()
            .filename(self.directory.file())
            .pragma("ignore_check_constraints", "ON");
        options.connect().await.unwrap()
    }

    async fn tamper(&self, sql: &'static str) {
        let mut outsider = self.outsider().await;
        let done = sqlx::query(sql).execute(&mut outsider).await.unwrap();
        assert!(done.rows_affected() > 0, "{sql} changed nothing");
    }

    /// One hold of two cups of tea for a minute.
    async fn hold(&self) -> Reservation {
        self.world.run(&[set("tea", 10)]).await;
        self.world.reservation(reserve(&[line("tea", 2)], 60)).await
    }

    async fn assert_drifts(&self, expected: &[(&'static str, &str)]) {
        let expected: BTreeSet<_> = (expected.iter())
            .map(|(promise, row)| (*promise, (*row).to_owned()))
            .collect();
        assert_eq!(self.world.drifts().await, expected);
    }
}

#[tokio::test]
async fn rows_that_were_tampered_with_are_found() {
    let opened = Opened::new().await;
    let held = opened.hold().await;
    let reservation = format!("reservation {}", held.id);
    opened.assert_drifts(&[]).await;
    let tea = "stock tea at default";

    opened.tamper("UPDATE stock SET held = 11").await;
    opened.assert_drifts(&[("P1", tea), ("P8", tea)]).await;
    opened.tamper("DELETE FROM stock").await;
    opened.assert_drifts(&[("P8", tea)]).await;
    opened
        .tamper("INSERT INTO stock VALUES ('default', 'tea', 10, 2, 0)")
        .await;
    opened.assert_drifts(&[]).await;

    opened.tamper("UPDATE open_lines SET quantity = 3").await;
    opened.assert_drifts(&[("P8", &reservation)]).await;
    opened.tamper("DELETE FROM open_lines").await;
    opened.assert_drifts(&[("P8", &reservation)]).await;
    opened
        .tamper(
            "INSERT INTO open_lines
             SELECT 'default', 'tea', expires_at, id, 2
             FROM reservations",
        )
        .await;
    opened.assert_drifts(&[]).await;
    opened
        .tamper("UPDATE open_lines SET expires_at = expires_at + 1")
        .await;
    opened.assert_drifts(&[("P8", &reservation)]).await;
    opened
        .tamper("UPDATE open_lines SET expires_at = expires_at - 1")
        .await;
    opened.tamper("UPDATE reservations SET lines = '{'").await;
    opened
        .assert_drifts(&[("P8", tea), ("P8", &reservation)])
        .await;
    opened
        .tamper(
            "UPDATE reservations
             SET lines = '[{\"sku\": \"tea\", \"location\": \"default\", \"quantity\": 2}]'",
        )
        .await;
    opened.assert_drifts(&[]).await;

    opened.tamper("UPDATE event_head SET seq = 3").await;
    opened.assert_drifts(&[("P9", "event 3")]).await;
    opened.tamper("DELETE FROM event_head").await;
    opened.assert_drifts(&[("P9", "event 3")]).await;
    opened.tamper("INSERT INTO event_head VALUES (1, 2)").await;
    opened.tamper("DELETE FROM events WHERE seq = 1").await;
    opened.assert_drifts(&[("P9", "event 1")]).await;
    opened.tamper("DELETE FROM events WHERE seq = 2").await;
    let lost = [("P9", "event 1"), ("P9", &*reservation)];
    opened.assert_drifts(&lost).await;
}

#[tokio::test]
async fn what_cannot_be_understood_is_corrupt_and_held_apart() {
    let tampering: [(&str, &str); 9] = [
        ("state", "UPDATE reservations SET state = 'Held'"),
        ("lines", "UPDATE reservations SET lines = '{'"),
        ("lines", "UPDATE reservations SET lines = '[]'"),
        (
            "lines",
            "UPDATE reservations SET lines = replace(lines, 'tea', ' tea')",
        ),
        (
            "lines",
            "UPDATE reservations SET lines = replace(lines, ':2', ':-2')",
        ),
        ("metadata", "UPDATE reservations SET metadata = '{\"a\":1}'"),
        ("attempt_at", "UPDATE reservations SET attempt_at = 1 << 62"),
        ("reference", "UPDATE reservations SET reference = '..'"),
        (
            "customer_id",
            "UPDATE reservations SET customer_id = 'a' || char(0)",
        ),
    ];
    for (column, sql) in tampering {
        let opened = Opened::new().await;
        let held = opened.hold().await;
        opened.tamper(sql).await;
        let told = |corrupt: &CorruptRow| {
            assert_eq!((corrupt.table, corrupt.column), ("reservations", column));
            assert_eq!(corrupt.row, held.id.to_string());
        };
        let read = opened.store.reservation(held.id).await;
        match read {
            Err(StoreError::Corrupt(corrupt)) => told(&corrupt),
            other => panic!("{sql}: {other:?}"),
        }
        let any = ReservationFilter::default();
        let listed = opened.store.list_reservations(&any, None, 10).await;
        assert!(matches!(listed, Err(StoreError::Corrupt(_))), "{sql}");
        let mut transaction = opened.store.begin().await.unwrap();
        let ids = BTreeSet::from([held.id]);
        let locked = transaction.lock_reservations(&ids, Wait::Briefly).await;
        let locked = locked.unwrap();
        transaction.rollback().await;
        assert!(locked.rows.is_empty());
        told(&locked.corrupt[&held.id]);
    }
}

#[tokio::test]
async fn a_corrupt_hold_keeps_nobody_from_the_others() {
    let opened = Opened::new().await;
    let corrupt = opened.hold().await;
    let sound = opened
        .world
        .reservation(reserve(&[line("tea", 1)], 61))
        .await;
    opened
        .tamper("UPDATE reservations SET metadata = '[]' WHERE hold_seconds = 60")
        .await;
    opened.world.clock.set(at(61_000));
    let mut transaction = opened.store.begin().await.unwrap();
    let claimed = transaction
        .claim_due(Timestamp::EPOCH, 0, 10)
        .await
        .unwrap();
    assert_eq!(claimed.rows, std::slice::from_ref(&sound));
    assert!(claimed.corrupt.contains_key(&corrupt.id));
    let claimed = transaction.claim_due_of(&key("tea"), 1, 10).await.unwrap();
    assert_eq!(claimed.rows, std::slice::from_ref(&sound));
    assert!(claimed.corrupt.contains_key(&corrupt.id));
    let deferrals = put_off([corrupt.id], at(121_000));
    transaction.defer(&deferrals, at(61_000)).await.unwrap();
    transaction.commit().await.unwrap();
    opened.world.run(&[expire(&sound)]).await;
    let unreleased = format!("reservation {}", corrupt.id);
    opened.assert_drifts(&[("P7", &unreleased)]).await;
}

#[tokio::test]
async fn stock_events_and_answers_can_be_corrupt_too() {
    let opened = Opened::new().await;
    opened.hold().await;
    opened.tamper("UPDATE stock SET sku = '.'").await;
    opened
        .tamper("UPDATE events SET kind = 'seen' WHERE seq = 1")
        .await;
    let listed = opened
        .store
        .list_stock(&StockFilter::default(), None, 9)
        .await;
    let Err(StoreError::Corrupt(corrupt)) = listed else {
        panic!("{listed:?}");
    };
    assert_eq!((corrupt.table, corrupt.column), ("stock", "sku"));
    let read = opened.store.events(0, 9).await;
    let Err(StoreError::Corrupt(corrupt)) = read else {
        panic!("{read:?}");
    };
    assert_eq!((corrupt.table, corrupt.column), ("events", "kind"));
    assert_eq!(corrupt.row, "1");
    assert_eq!(opened.store.events(1, 9).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_file_is_served_once_at_a_time() {
    let opened = Opened::new().await;
    let lock = opened.store.lock_for_serving().unwrap();
    let other = Sqlite::open(&opened.directory.url(), Clock::Database).await;
    let other = other.unwrap();
    let refused = other.lock_for_serving().unwrap_err().to_string();
    let expected = format!(
        "the database is out of reach: {} is being served by another process",
        opened.directory.file().display()
    );
    assert_eq!(refused, expected);
    other.audit().await.unwrap();
    drop(lock);
    other.lock_for_serving().unwrap();
}

#[tokio::test]
async fn what_was_committed_is_there_when_the_file_is_opened_again() {
    let opened = Opened::new().await;
    let held = opened.hold().await;
    opened.store.close().await;
    let again = Sqlite::open(&opened.directory.url(), Clock::Database).await;
    let again = again.unwrap();
    assert_eq!(again.reservation(held.id).await.unwrap().0, Some(held));
    assert!(again.now().await.unwrap() > Timestamp::EPOCH);
}

#[tokio::test]
async fn a_new_file_can_be_opened_by_two_at_once() {
    let directory = Directory::new();
    let url = directory.url();
    let (first, second) = tokio::join!(
        Sqlite::open(&url, Clock::Database),
        Sqlite::open(&url, Clock::Database),
    );
    let world = World {
        store: Arc::new(first.unwrap()),
        clock: ManualClock::at(at(0)),
        queue: None,
    };
    world.run(&[set("tea", 1)]).await;
    assert_eq!(second.unwrap().events(0, 9).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_schema_from_the_future_is_refused() {
    let opened = Opened::new().await;
    opened
        .tamper(
            "INSERT INTO _sqlx_migrations
             VALUES (9999, 'later', CURRENT_TIMESTAMP, TRUE, x'00', 0)",
        )
        .await;
    let refused = Sqlite::open(&opened.directory.url(), Clock::Database).await;
    let message = refused.unwrap_err().to_string();
    assert!(message.contains("9999"), "{message}");
}

#[tokio::test]
async fn what_is_no_file_is_refused() {
    for url in ["sqlite::memory:", "sqlite://x?mode=memory"] {
        let refused = Sqlite::open(url, Clock::Database).await;
        let message = refused.unwrap_err().to_string();
        assert!(message.contains("names no file"), "{message}");
    }
    let refused = Sqlite::open("sqlite:///no/such/place/x.db", Clock::Database).await;
    assert!(matches!(refused, Err(StoreError::Unavailable(_))));
}

/// The writer waits for another process as long as it has patience; readers do not wait at all.
#[tokio::test]
async fn a_batch_waits_for_its_turn_and_then_gives_up() {
    let opened = Opened::new().await;
    opened.hold().await;
    let other = Sqlite::open(&opened.directory.url(), Clock::Database).await;
    let other = other.unwrap();
    let turn = opened.store.begin().await.unwrap();
    let (refused, read) = tokio::join!(other.begin(), other.events(0, 9));
    assert!(matches!(refused, Err(StoreError::Contended(_))));
    assert_eq!(read.unwrap().len(), 2);
    turn.rollback().await;
    other.begin().await.unwrap().rollback().await;
}

#[tokio::test]
async fn commits_are_on_the_disk_and_writes_are_strict() {
    let opened = Opened::new().await;
    let mut outsider = opened.outsider().await;
    let mode = sqlx::query("PRAGMA journal_mode").fetch_one(&mut outsider);
    assert_eq!(mode.await.unwrap().get::<String, _>(0), "wal");
    let loose = sqlx::query(
        "SELECT name FROM pragma_table_list
         WHERE schema = 'main'
           AND NOT strict
           AND name NOT IN ('sqlite_schema', '_sqlx_migrations')",
    );
    assert!(loose.fetch_all(&mut outsider).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_file_is_served_once_by_whatever_name_it_is_called() {
    let opened = Opened::new().await;
    let _lock = opened.store.lock_for_serving().unwrap();
    let link = opened.directory.file().with_file_name("link.db");
    std::os::unix::fs::symlink(opened.directory.file(), &link).unwrap();
    let url = format!("sqlite://{}", link.display());
    let other = Sqlite::open(&url, Clock::Database).await.unwrap();
    assert!(other.lock_for_serving().is_err());
}

#[tokio::test]
async fn a_database_without_a_file_is_refused() {
    for url in ["sqlite://", "sqlite::memory:", "sqlite://x?mode=memory"] {
        let refused = Sqlite::open(url, Clock::Database).await.err().unwrap();
        assert!(refused.to_string().contains("names no file"), "{refused}");
    }
}
