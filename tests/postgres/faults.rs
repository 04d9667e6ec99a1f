//! What breaks, and what is said then.

use std::collections::BTreeSet;

use holdfast::domain::Timestamp;
use holdfast::store::postgres::Postgres;
use holdfast::store::{Clock, Fate, StockFilter, Store, StoreError, TransactionId, Wait};

use crate::database::{Database, decide_all, expire, line, reserve, server, with_database};

/// The store's session that has written something, and its transaction.
async fn writer(database: &Database) -> (i32, TransactionId) {
    let (pid, id): (i32, String) = sqlx::query_as(
        "SELECT pid, backend_xid::text
         FROM pg_stat_activity
         WHERE datname = current_database()
            AND application_name = 'holdfast'
            AND backend_xid IS NOT NULL",
    )
    .fetch_one(&database.others)
    .await
    .unwrap();
    (pid, TransactionId(id))
}

#[tokio::test]
async fn the_fate_of_a_lost_commit_can_be_asked() {
    with_database(|database| async move {
        database.set_stock("tea", 10).await;
        let mut transaction = database.store.begin().await.unwrap();
        let commands = [reserve(&[line("tea", 1)], 60)];
        let (_, changes, now) = decide_all(transaction.as_mut(), &commands).await.unwrap();
        transaction.write_rest(&changes, &[], now).await.unwrap();
        let (pid, id) = writer(&database).await;
        assert_eq!(
            database.store.fate(id.clone()).await.unwrap(),
            Fate::Unknown
        );
        sqlx::query("SELECT pg_terminate_backend($1, 5000)")
            .bind(pid)
            .execute(&database.others)
            .await
            .unwrap();
        match transaction.commit().await {
            Err(StoreError::CommitLost(lost)) => assert_eq!(lost, id),
            other => panic!("{other:?}"),
        }
        assert_eq!(database.store.fate(id).await.unwrap(), Fate::Aborted);

        let mut transaction = database.store.begin().await.unwrap();
        transaction.now().await.unwrap();
        let (_, id) = writer(&database).await;
        transaction.commit().await.unwrap();
        assert_eq!(database.store.fate(id).await.unwrap(), Fate::Committed);
        for unknown in ["", "99999999999", "nonsense"] {
            let fate = database.store.fate(TransactionId(unknown.to_owned())).await;
            assert_eq!(fate.unwrap(), Fate::Unknown);
        }
        assert_eq!(database.held("tea").await, (10, 0, 0));
    })
    .await;
}

#[tokio::test]
async fn a_statement_on_a_lost_connection_is_unavailable() {
    with_database(|database| async move {
        let mut transaction = database.store.begin().await.unwrap();
        transaction.now().await.unwrap();
        let (pid, _) = writer(&database).await;
        sqlx::query("SELECT pg_terminate_backend($1, 5000)")
            .bind(pid)
            .execute(&database.others)
            .await
            .unwrap();
        let error = transaction.now().await.unwrap_err();
        assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
        drop(transaction);
        database.store.begin().await.unwrap().now().await.unwrap();
    })
    .await;
    let nowhere = "postgres://nobody@127.0.0.1:1/nothing";
    let error = Postgres::connect(nowhere, Clock::Database)
        .await
        .unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
}

#[tokio::test]
async fn a_row_that_cannot_be_understood_stops_nobody_else() {
    with_database(|database| async move {
        database.set_stock("tea", 10).await;
        let bad = database.hold(&[line("tea", 1)], 1).await;
        let good = database.hold(&[line("tea", 1)], 1).await;
        database.clock.advance(1_000);
        for (sql, column) in [
            (
                "UPDATE reservations SET metadata = '{\"a\": 1}' WHERE id = $1",
                "metadata",
            ),
            (
                "UPDATE reservations SET lines = '[{\"sku\": 1}]' WHERE id = $1",
                "lines",
            ),
            (
                "UPDATE reservations SET attempt_at = 'infinity' WHERE id = $1",
                "attempt_at",
            ),
            (
                "UPDATE reservations SET customer_id = ' x' WHERE id = $1",
                "customer_id",
            ),
        ] {
            let mut foreign = database.others.begin().await.unwrap();
            sqlx::query(sql)
                .bind(bad.id.as_uuid())
                .execute(&mut *foreign)
                .await
                .unwrap();
            foreign.commit().await.unwrap();
            let mut transaction = database.store.begin().await.unwrap();
            let ids = BTreeSet::from([bad.id, good.id]);
            let locked = transaction
                .lock_reservations(&ids, Wait::Skip)
                .await
                .unwrap();
            assert_eq!(locked.rows, std::slice::from_ref(&good));
            assert_eq!(locked.corrupt.len(), 1);
            // Columns are read in the order in which they stand, so an earlier one may be named.
            let corrupt = &locked.corrupt[&bad.id];
            assert_eq!(
                (corrupt.table, corrupt.row.clone()),
                ("reservations", bad.id.to_string())
            );
            assert!(
                ["lines", "attempt_at", column].contains(&corrupt.column),
                "{corrupt}"
            );
            assert!(locked.elsewhere.is_empty());
        }
        let error = database.store.reservation(bad.id).await.unwrap_err();
        assert!(matches!(error, StoreError::Corrupt(_)), "{error}");

        database
            .sql("INSERT INTO stock VALUES ('default', ' x', 0, 0, now())")
            .await;
        let error = database
            .store
            .list_stock(&StockFilter::default(), None, 9)
            .await
            .unwrap_err();
        assert!(matches!(error, StoreError::Corrupt(_)), "{error}");
    })
    .await;
}

#[tokio::test]
async fn the_audit_finds_what_drifted() {
    for (sql, promise) in [
        (
            "ALTER TABLE stock DROP CONSTRAINT stock_held_within_on_hand;
          UPDATE stock SET on_hand = 1",
            "P1",
        ),
        ("UPDATE stock SET held = held + 1", "P8"),
        ("DELETE FROM stock", "P8"),
        (
            "UPDATE reservations SET lines = '[{\"sku\": 1}]' WHERE state = 'held'",
            "P8",
        ),
        ("UPDATE open_lines SET quantity = quantity + 1", "P8"),
        (
            "UPDATE open_lines SET expires_at = expires_at + interval '1 s'",
            "P8",
        ),
        ("DELETE FROM open_lines", "P8"),
        (
            "INSERT INTO open_lines VALUES ('default', 'x', now(), gen_random_uuid(), 1)",
            "P8",
        ),
        (
            "UPDATE reservations SET closed_at = closed_at + interval '1 s'",
            "P2",
        ),
        (
            "UPDATE reservations SET state = 'cancelled' WHERE state = 'expired'",
            "P2",
        ),
        (
            "UPDATE events SET kind = 'paid' WHERE kind = 'created'",
            "P9",
        ),
        ("DELETE FROM reservations WHERE state = 'expired'", "P2"),
        (
            "UPDATE reservations SET attempt_at = '9999-12-31Z' WHERE state = 'held'",
            "P7",
        ),
        ("DELETE FROM ledger", "P9"),
        (
            "INSERT INTO ledger SELECT 'x', reservation_id, outcome, via, at FROM ledger",
            "P9",
        ),
        ("DELETE FROM events WHERE seq = 2", "P9"),
        ("UPDATE event_head SET seq = seq + 1", "P9"),
        ("DELETE FROM event_head", "P9"),
    ] {
        with_database(move |database| async move {
            database.set_stock("tea", 10).await;
            let due = database.hold(&[line("tea", 2)], 1).await;
            database.hold(&[line("tea", 1), line("tea", 2)], 2).await;
            database.clock.advance(2_000);
            database.run(&[expire(&due)]).await;
            database.assert_sound().await;
            database.sql(sql).await;
            let found = database.store.audit().await.unwrap();
            assert!(
                found.iter().any(|drift| drift.promise == promise),
                "{sql}: {found:#?}"
            );
        })
        .await;
    }
}

#[tokio::test]
async fn a_schema_that_is_not_this_programs_is_named() {
    with_database(|database| async move {
        database.store.check_schema().await.unwrap();
        database.store.migrate().await.unwrap();
        for (sql, words) in [
            (
                "INSERT INTO _sqlx_migrations VALUES (9999, 'later', now(), true, '', 0)",
                "9999",
            ),
            (
                "DELETE FROM _sqlx_migrations WHERE version > 1",
                "holdfast migrate",
            ),
            (
                "UPDATE _sqlx_migrations SET checksum = 'x'",
                "holdfast migrate",
            ),
            ("DROP TABLE _sqlx_migrations", "holdfast migrate"),
        ] {
            database.sql(sql).await;
            match database.store.check_schema().await {
                Err(StoreError::Schema(says)) => {
                    assert!(says.contains(words), "{says}");
                    assert!(!says.contains('\n'));
                }
                other => panic!("{other:?}"),
            }
        }
    })
    .await;
    let store = Postgres::connect(&server(), Clock::Database).await.unwrap();
    assert!(matches!(
        store.check_schema().await,
        Err(StoreError::Schema(_))
    ));
    let error = store.next_attempt(Timestamp::EPOCH).await.unwrap_err();
    assert!(matches!(error, StoreError::Schema(_)), "{error}");
}
