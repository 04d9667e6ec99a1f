//! The test world itself: what other tests stand on must hold.

#![cfg(test)]

use sqlx::{Connection as _, PgConnection};
use world::database::database;
use world::directory::TempDir;
use world::server::listening_on;
use world::trace::trace;

mod world;

#[tokio::test]
async fn a_test_database_is_empty_its_own_and_gone_afterwards() {
    let (one, other) = (database().await, database().await);
    assert_ne!(one.url(), other.url());
    let mut connection = one.connect().await;
    let tables: i64 =
        sqlx::query_scalar("select count(*) from pg_tables where schemaname = current_schema()")
            .fetch_one(&mut connection)
            .await
            .unwrap();
    assert_eq!(tables, 0);

    // It goes even while somebody is connected.
    let url = one.url();
    drop(one);
    assert!(PgConnection::connect(&url).await.is_err());
    other.connect().await.close().await.unwrap();
}

#[test]
fn a_directory_is_its_own_and_gone_afterwards() {
    let (one, other) = (TempDir::new(), TempDir::new());
    assert_ne!(one.path(), other.path());
    std::fs::write(one.path().join("file"), "content").unwrap();
    let path = one.path().to_owned();
    drop(one);
    assert!(!path.exists());
}

#[test]
fn the_recorded_traces_are_here_or_said_to_be_absent() {
    for name in ["carts.csv", "long_holds.csv.gz"] {
        if let Some(path) = trace(name) {
            assert!(path.metadata().unwrap().len() > 0);
        }
    }
}

#[test]
fn the_address_is_found_in_a_line_of_the_log() {
    let address = Some("http://127.0.0.1:34567".to_owned());
    for line in [
        "listening on http://127.0.0.1:34567",
        "2026-12-01T10:15:00Z  INFO holdfast: listening on http://127.0.0.1:34567 roles=api",
        "{\"message\":\"listening on http://127.0.0.1:34567\"}",
        "\u{1b}[2mlistening on http://127.0.0.1:34567\u{1b}[0m",
    ] {
        assert_eq!(listening_on(line), address);
    }
    let encrypted = listening_on("listening on https://127.0.0.1:1");
    assert_eq!(encrypted.as_deref(), Some("https://127.0.0.1:1"));
    assert_eq!(listening_on("listening"), None);
}
