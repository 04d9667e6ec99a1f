//! The program as an operator starts it: exit codes, and one line that says what to do.

use std::process::Output;

use sqlx::Executor as _;

use crate::on_each_store;
use crate::shop::{Kind, Shop};
use crate::world::database::database;
use crate::world::directory::TempDir;
use crate::world::server::run;

on_each_store!(
    audit_finds_what_was_tampered_with,
    audit_says_how_far_back_rows_were_deleted,
);

/// Fails unless the program ended with this code and one line on stderr that has these words.
pub fn assert_refused(output: &Output, code: i32, words: &[&str]) {
    let said = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert_eq!(said.trim_end().lines().count(), 1, "one line: {said}");
    assert!(!said.contains("panicked"), "{said}");
    for word in words {
        assert!(said.contains(word), "{word} is missing: {said}");
    }
}

/// What a server says that does not start on this address and database.
fn serve(listen: &str, database_url: &str) -> Output {
    let settings = [
        ("HOLDFAST_LISTEN", listen),
        ("HOLDFAST_DATABASE_URL", database_url),
    ];
    run(&["serve"], &settings)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_server_on_the_same_file_is_refused() {
    let mut shop = Shop::open(Kind::Sqlite, 1, &[]).await;
    shop.client().put_stock("A", 1).await.expect(200);
    assert_refused(
        &serve("127.0.0.1:0", &shop.url()),
        2,
        &["holdfast.db", "another process"],
    );
    // The first one goes on, other commands may look, and a killed server leaves no lock behind.
    shop.client().reserve_one("A", 1, 600).await.expect(201);
    shop.audit();
    shop.take_server().kill9();
    shop.start(&[]);
    shop.close().await;
}

#[test]
fn an_address_that_others_can_reach_is_refused() {
    let directory = TempDir::new();
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:8080"] {
        let refused = serve(address, &directory.sqlite_url());
        assert_refused(&refused, 2, &["HOLDFAST_LISTEN", "127.0.0.1"]);
    }
    assert!(
        !directory.path().join("holdfast.db").exists(),
        "nothing was begun"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_is_taken_is_refused() {
    let mut shop = Shop::open(Kind::Sqlite, 1, &[]).await;
    let taken = shop.server().url().trim_start_matches("http://").to_owned();
    let other = TempDir::new();
    assert_refused(
        &serve(&taken, &other.sqlite_url()),
        2,
        &[&taken, "HOLDFAST_LISTEN"],
    );
    shop.close().await;
}

/// elizaOS/eliza#11592: a migration that was never run was noticed by nobody.
#[tokio::test(flavor = "multi_thread")]
async fn a_schema_that_is_behind_is_refused_with_the_command() {
    let database = database().await;
    for command in [&["serve"][..], &["audit"], &["sweep", "--once"]] {
        let settings = [
            ("HOLDFAST_LISTEN", "127.0.0.1:0"),
            ("HOLDFAST_DATABASE_URL", &database.url()),
        ];
        assert_refused(&run(command, &settings), 2, &["holdfast migrate"]);
    }
    let settings = [("HOLDFAST_DATABASE_URL", database.url())];
    let settings = settings
        .each_ref()
        .map(|(name, value)| (*name, value.as_str()));
    for _ in 0..2 {
        let migrated = run(&["migrate"], &settings);
        assert!(migrated.status.success(), "{migrated:?}");
    }
    assert!(run(&["audit"], &settings).status.success());
    // One step is missing again.
    let mut connection = database.connect().await;
    connection
        .execute("delete from _sqlx_migrations where version = (select max(version) from _sqlx_migrations)")
        .await
        .unwrap();
    assert_refused(
        &serve("127.0.0.1:0", &database.url()),
        2,
        &["holdfast migrate"],
    );
    // And one is there that this program does not know.
    connection
        .execute(
            "insert into _sqlx_migrations
                 (version, description, installed_on, success, checksum, execution_time)
             values (9999, 'later', now(), true, '', 0)",
        )
        .await
        .unwrap();
    assert_eq!(serve("127.0.0.1:0", &database.url()).status.code(), Some(2));
}

#[test]
fn a_database_that_cannot_be_reached_is_said_in_one_line() {
    let directory = TempDir::new();
    let missing = directory.path().join("no/such/directory/holdfast.db");
    let in_the_way = format!("sqlite://{}", directory.path().display());
    // Nobody listens on port 1; a password is not repeated.
    for url in [
        "postgres://holdfast:secret@127.0.0.1:1/holdfast",
        &format!("sqlite://{}", missing.display()),
        &in_the_way,
    ] {
        for command in [&["serve"][..], &["migrate"], &["audit"]] {
            let settings = [
                ("HOLDFAST_LISTEN", "127.0.0.1:0"),
                ("HOLDFAST_DATABASE_URL", url),
            ];
            let refused = run(command, &settings);
            assert_refused(&refused, 2, &[]);
            assert!(!String::from_utf8_lossy(&refused.stderr).contains("secret"));
        }
    }
    assert_refused(
        &serve("127.0.0.1:0", "mysql://localhost/x"),
        2,
        &["HOLDFAST_DATABASE_URL"],
    );
}

#[test]
fn settings_that_make_no_sense_are_refused_in_one_line() {
    let directory = TempDir::new();
    for (name, value, words) in [
        ("HOLDFAST_MAX_HOLD_SECONDS", "60", "HOLDFAST_HOLD_SECONDS"),
        ("HOLDFAST_CORS_ORIGINS", "https://shop.example/cart", ""),
    ] {
        let settings = [
            ("HOLDFAST_LISTEN", "127.0.0.1:0"),
            ("HOLDFAST_DATABASE_URL", &directory.sqlite_url()),
            (name, value),
        ];
        let refused = run(&["serve"], &settings);
        assert_eq!(refused.status.code(), Some(2), "{name}");
        assert!(String::from_utf8_lossy(&refused.stderr).contains(words));
    }
}

async fn audit_says_how_far_back_rows_were_deleted(shop: &mut Shop) {
    let says = |shop: &Shop| String::from_utf8(shop.run(&["audit"]).stderr).unwrap();
    assert!(!says(shop).contains("ledger"));
    let delete = if shop.url().starts_with("sqlite") {
        "update retention set horizon = 1796126400250 where table_name = 'ledger'"
    } else {
        "update retention set horizon = '2026-12-01T12:00:00.250Z' where table_name = 'ledger'"
    };
    shop.sql(delete).await.unwrap();
    let said = says(shop);
    let horizon = "rows of ledger up to 2026-12-01T12:00:00.250Z were deleted for their age";
    assert!(said.contains(horizon), "{said}");
}

async fn audit_finds_what_was_tampered_with(shop: &mut Shop) {
    let client = shop.client();
    client.put_stock("A", 10).await.expect(200);
    client.reserve_one("A", 2, 600).await.expect(201);
    let clean = shop.run(&["audit"]);
    assert_eq!(clean.status.code(), Some(0));
    assert!(clean.stdout.is_empty(), "{clean:?}");
    let (line_away, line_back) = (
        "delete from open_lines",
        "insert into open_lines (location, sku, expires_at, reservation_id, quantity)
         select 'default', 'A', expires_at, id, 2 from reservations",
    );
    for (tamper, mend) in [
        (
            "update stock set held = held + 1",
            "update stock set held = held - 1",
        ),
        ("update stock set held = 0", "update stock set held = 2"),
        (line_away, line_back),
    ] {
        shop.sql(tamper).await.unwrap();
        let found = shop.run(&["audit"]);
        let said = String::from_utf8(found.stdout).unwrap();
        assert_eq!(found.status.code(), Some(1), "{tamper}: {said}");
        assert!(
            said.contains("P8") && said.contains('A'),
            "{tamper}: {said}"
        );
        shop.sql(mend).await.unwrap();
        assert_eq!(shop.run(&["audit"]).status.code(), Some(0), "{mend}");
    }
}

#[test]
fn an_audit_does_not_make_the_database_that_it_cannot_find() {
    let directory = TempDir::new();
    let file = directory.path().join("mistyped.db");
    let url = format!("sqlite://{}", file.display());
    let output = run(&["audit"], &[("HOLDFAST_DATABASE_URL", &url)]);
    assert_refused(&output, 2, &["there is no file", "HOLDFAST_DATABASE_URL"]);
    assert!(!file.exists());
}

/// A log that nobody can write to stopped every answer, and the expirer with them.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_cannot_be_written_stops_nothing() {
    let directory = TempDir::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let mut server = std::process::Command::new(env!("CARGO_BIN_EXE_holdfast"))
        .arg("serve")
        .env("HOLDFAST_LISTEN", address.to_string())
        .env("HOLDFAST_DATABASE_URL", directory.sqlite_url())
        .stderr(std::fs::File::create("/dev/full").unwrap())
        .spawn()
        .unwrap();
    // It cannot say when it listens, so it is asked until it answers or has ended.
    let answer = loop {
        assert_eq!(server.try_wait().unwrap(), None, "it ended");
        match crate::world::client::http()
            .get(format!("http://{address}/livez"))
            .send()
            .await
        {
            Ok(answer) => break answer,
            Err(_) => tokio::time::sleep(std::time::Duration::from_millis(20)).await,
        }
    };
    assert_eq!(answer.status().as_u16(), 200);
    server.kill().unwrap();
    server.wait().unwrap();
}
