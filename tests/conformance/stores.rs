//! The stores that the suite runs on.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use holdfast::store::memory::Memory;
use holdfast::store::postgres::Postgres;
use holdfast::store::sqlite::Sqlite;
use holdfast::store::{Clock, ManualClock};

use crate::database::database;
use crate::world::{World, at};

/// Runs a test on a store in memory.
pub async fn with_memory<Running: Future<Output = ()>>(test: impl FnOnce(World) -> Running) {
    let clock = ManualClock::at(at(0));
    let store = Arc::new(Memory::new(Clock::Manual(clock.clone())));
    test(World {
        store,
        clock,
        queue: None,
    })
    .await;
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
        queue: None,
    };
    test(world).await;
    store.close().await;
}

/// Runs a test on a database of its own.
pub async fn with_postgres<Running: Future<Output = ()>>(test: impl FnOnce(World) -> Running) {
    let clock = ManualClock::at(at(0));
    let database = database().await;
    let connected = Postgres::connect(&database.url(), Clock::Manual(clock.clone())).await;
    let store = connected.unwrap();
    store.migrate().await.unwrap();
    let store = Arc::new(store);
    test(World {
        store,
        clock,
        queue: None,
    })
    .await;
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
