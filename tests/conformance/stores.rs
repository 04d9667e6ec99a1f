//! The stores that the suite runs on.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use holdfast::store::memory::Memory;
use holdfast::store::postgres::Postgres;
use holdfast::store::sqlite::Sqlite;
use holdfast::store::{Clock, ManualClock};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::task::{LocalSet, spawn_local};

use crate::world::{World, at};

/// Runs a test on a store in memory.
pub async fn with_memory<Running: Future<Output = ()>>(test: impl FnOnce(World) -> Running) {
    let clock = ManualClock::at(at(0));
    let store = Arc::new(Memory::new(Clock::Manual(clock.clone())));
    test(World { store, clock }).await;
}

/// Runs a test on a file of its own.
pub async fn with_sqlite<Running: Future<Output = ()>>(test: impl FnOnce(World) -> Running) {
    let clock = ManualClock::at(at(0));
    let directory = Directory::new();
    let opened = Sqlite::open(&directory.url(), Clock::Manual(clock.clone())).await;
    let store = opened.unwrap();
    let world = World {
        store: Arc::new(store.clone()),
        clock,
    };
    test(world).await;
    store.close().await;
}

/// Runs a test on a database of its own, on the server that `HOLDFAST_TEST_POSTGRES_URL` names or
/// on this machine's.
pub async fn with_postgres<Running: Future<Output = ()> + 'static>(
    test: impl FnOnce(World) -> Running + 'static,
) {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let server = std::env::var("HOLDFAST_TEST_POSTGRES_URL")
        .unwrap_or_else(|_| "postgres://postgres@127.0.0.1:5432/postgres".to_owned());
    let name = format!("holdfast_conformance_{}_{count}", std::process::id());
    let url = format!("{}/{name}", server.rsplit_once('/').unwrap().0);
    let mut admin = PgConnection::connect(&server).await.unwrap();
    let create = AssertSqlSafe(format!("CREATE DATABASE {name}"));
    sqlx::raw_sql(create).execute(&mut admin).await.unwrap();
    // A task of its own, so that the database is dropped even if the test fails.
    let local = LocalSet::new();
    let ended = local
        .run_until(async move {
            spawn_local(async move {
                let clock = ManualClock::at(at(0));
                let connected = Postgres::connect(&url, Clock::Manual(clock.clone())).await;
                let store = connected.unwrap();
                store.migrate().await.unwrap();
                test(World {
                    store: Arc::new(store),
                    clock,
                })
                .await;
            })
            .await
        })
        .await;
    let drop = AssertSqlSafe(format!("DROP DATABASE {name} WITH (FORCE)"));
    sqlx::raw_sql(drop).execute(&mut admin).await.unwrap();
    if let Err(failed) = ended {
        std::panic::resume_unwind(failed.into_panic());
    }
}

/// A directory that goes when the test is over.
pub struct Directory(PathBuf);

impl Directory {
    pub fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("conformance-{}-{count}", std::process::id());
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn file(&self) -> PathBuf {
        self.0.join("holdfast.db")
    }

    pub fn url(&self) -> String {
        format!("sqlite://{}", self.file().display())
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // What is left behind is in the build directory, and in nobody's way.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
