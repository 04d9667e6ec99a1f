//! The embedded store: one SQLite file, one machine, nothing to install.
//!
//! SQLite has one writer at a time. So has this store: one connection, on which every batch is a
//! `BEGIN IMMEDIATE`. Nobody else can have locked a row that a batch wants, and what the port says
//! about rows that are locked elsewhere never happens here. Readers have connections of their own
//! and, in WAL mode, neither wait for the writer nor hold it up.

mod api_keys;
mod audit;
mod deferral;
mod error;
mod outbox;
mod quarantine;
mod read;
mod retention;
mod row;
mod statement;
mod suspects;
mod transaction;
mod write;

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::migrate::{MigrateError, Migrator};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{ConnectOptions, Connection};

use self::error::store_error;
use self::transaction::SqliteTransaction;
use super::{
    ApiKeys, Clock, Drift, Fate, NextAttempt, Outbox, Quarantine, RecordedEvent, ReservationFilter,
    Retention, StockFilter, Store, StoreError, Suspects, Transaction, TransactionId,
};
use crate::domain::{Reservation, ReservationId, Stock, StockKey, Timestamp};

static MIGRATIONS: Migrator = sqlx::migrate!("migrations/sqlite");

/// How long a batch waits for its turn, behind other batches and behind other processes.
const PATIENCE: Duration = Duration::from_secs(5);
/// The pause before a connection is tried again that another one stood in the way of.
const RETRY: Duration = Duration::from_millis(10);
/// Connections for reads.
const READERS: u32 = 4;

/// A database in one file.
#[derive(Clone, Debug)]
pub struct Sqlite {
    file: PathBuf,
    writer: SqlitePool,
    readers: SqlitePool,
    clock: Clock,
}

/// The right to serve a file, held until it is dropped or the process ends.
#[derive(Debug)]
pub struct ServingLock {
    _file: File,
}

impl Sqlite {
    /// Opens the file that `url` names, such as `sqlite://holdfast.db` or
    /// `sqlite:///var/lib/holdfast.db`; makes it if it is missing, and brings its schema up to
    /// date.
    pub async fn open(url: &str, clock: Clock) -> Result<Self, StoreError> {
        let options = SqliteConnectOptions::from_str(url).map_err(store_error)?;
        // A database in memory would be another one for each connection.
        let is_unnamed = options.get_filename().as_os_str().is_empty();
        if is_unnamed || url.contains(":memory:") || url.contains("mode=memory") {
            let message = format!("{url} names no file; use one such as sqlite://holdfast.db");
            return Err(StoreError::Unavailable(message));
        }
        let options = options
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            // What was answered is on the disk. NORMAL would lose the last commits with the power.
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            .busy_timeout(PATIENCE)
            // A long read keeps the log from being reused; this is what it shrinks back to.
            .pragma("journal_size_limit", "67108864")
            .disable_statement_logging();
        let writer = first_connection(options.clone().pragma("cache_size", "-8192")).await?;
        migrate(&writer).await?;
        let readers = pool(READERS)
            .connect_with(options.clone().pragma("query_only", "ON"))
            .await
            .map_err(store_error)?;
        Ok(Self {
            file: options.get_filename().to_owned(),
            writer,
            readers,
            clock,
        })
    }

    /// Claims the file for a process that serves it, since two would share the one writer's turn
    /// and their clocks would not share a floor. Other commands need no claim.
    pub fn lock_for_serving(&self) -> Result<ServingLock, StoreError> {
        // The lock is on a file of its own: closing a second handle on the database file would
        // release the locks that SQLite has on it in this process. It stands beside the file that
        // a symbolic link leads to.
        let file = std::fs::canonicalize(&self.file).unwrap_or_else(|_| self.file.clone());
        let mut path = file.into_os_string();
        path.push(".lock");
        let path = PathBuf::from(path);
        let failed =
            |error: std::io::Error| StoreError::Unavailable(format!("{}: {error}", path.display()));
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(failed)?;
        match file.try_lock() {
            Ok(()) => Ok(ServingLock { _file: file }),
            Err(TryLockError::WouldBlock) => Err(StoreError::Unavailable(format!(
                "{} is being served by another process",
                self.file.display()
            ))),
            Err(TryLockError::Error(error)) => Err(failed(error)),
        }
    }

    /// Closes the connections, after which nothing is left to write.
    pub async fn close(&self) {
        self.readers.close().await;
        self.writer.close().await;
    }
}

/// The connection that turns a new file to WAL. Of two that do so at once SQLite refuses one
/// without waiting, since each would wait for the other; so it is this one that tries again.
async fn first_connection(options: SqliteConnectOptions) -> Result<SqlitePool, StoreError> {
    let connecting = async {
        loop {
            let connected = pool(1).connect_with(options.clone()).await;
            match connected.map_err(store_error) {
                Err(StoreError::Contended(_)) => tokio::time::sleep(RETRY).await,
                settled => return settled,
            }
        }
    };
    let in_use = |_| StoreError::Contended("another process keeps the file busy".to_owned());
    tokio::time::timeout(PATIENCE, connecting)
        .await
        .map_err(in_use)?
}

/// Connections that live as long as the store does.
fn pool(connections: u32) -> SqlitePoolOptions {
    SqlitePoolOptions::new()
        .min_connections(1)
        .max_connections(connections)
        .acquire_timeout(PATIENCE)
        .idle_timeout(None)
        .max_lifetime(None)
        .test_before_acquire(false)
        // When SQLite itself ended a transaction (a full disk does that), the driver still counts
        // it as open and would refuse to begin another one, for good. Such a connection goes.
        .before_acquire(|connection, _| Box::pin(async { Ok(!connection.is_in_transaction()) }))
}

/// Brings the schema up to date. When it is, this only reads, and waits for nobody.
async fn migrate(writer: &SqlitePool) -> Result<(), StoreError> {
    match migrate_in(writer, "BEGIN").await {
        // Another process was about to do the same, and may have done it by now.
        Err(StoreError::Contended(_)) => migrate_in(writer, "BEGIN IMMEDIATE").await,
        done => done,
    }
}

async fn migrate_in(writer: &SqlitePool, begin: &'static str) -> Result<(), StoreError> {
    let mut transaction = writer.begin_with(begin).await.map_err(store_error)?;
    match MIGRATIONS.run(&mut *transaction).await {
        Ok(()) => transaction.commit().await.map_err(store_error),
        Err(MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _)) => {
            Err(store_error(error))
        }
        Err(error) => Err(StoreError::Schema(format!(
            "the schema is not the one this program was built for: {error}"
        ))),
    }
}

#[async_trait]
impl Store for Sqlite {
    async fn begin(&self) -> Result<Box<dyn Transaction>, StoreError> {
        let transaction = SqliteTransaction::begin(&self.writer, self.clock.clone()).await?;
        Ok(Box::new(transaction))
    }

    async fn fate(&self, _: TransactionId) -> Result<Fate, StoreError> {
        // SQLite gives transactions no names to ask by.
        Ok(Fate::Unknown)
    }

    async fn now(&self) -> Result<Timestamp, StoreError> {
        Ok(self.clock.in_process())
    }

    async fn next_attempt(&self, from: Timestamp) -> Result<NextAttempt, StoreError> {
        let attempt_at = read::next_attempt(&self.readers, from).await?;
        let now = self.clock.in_process();
        Ok(NextAttempt { now, attempt_at })
    }

    async fn stock(
        &self,
        wanted: &BTreeMap<StockKey, i64>,
    ) -> Result<BTreeMap<StockKey, Stock>, StoreError> {
        read::stock(&self.readers, wanted, self.clock.in_process()).await
    }

    async fn list_stock(
        &self,
        filter: &StockFilter,
        after: Option<&StockKey>,
        limit: usize,
    ) -> Result<Vec<Stock>, StoreError> {
        read::list_stock(&self.readers, filter, after, limit, self.clock.in_process()).await
    }

    async fn reservation(
        &self,
        id: ReservationId,
    ) -> Result<(Option<Reservation>, Timestamp), StoreError> {
        let now = self.clock.in_process();
        let reservation = read::reservation(&self.readers, id).await?;
        Ok((reservation, now))
    }

    async fn list_reservations(
        &self,
        filter: &ReservationFilter,
        before: Option<ReservationId>,
        limit: usize,
    ) -> Result<(Vec<Reservation>, Timestamp), StoreError> {
        let now = self.clock.in_process();
        let rows = read::list_reservations(&self.readers, filter, before, limit, now).await?;
        Ok((rows, now))
    }

    async fn events(&self, after: i64, limit: usize) -> Result<Vec<RecordedEvent>, StoreError> {
        read::events(&self.readers, after, limit).await
    }

    fn api_keys(&self) -> &dyn ApiKeys {
        self
    }

    fn outbox(&self) -> &dyn Outbox {
        self
    }

    fn quarantine(&self) -> &dyn Quarantine {
        self
    }

    fn retention(&self) -> &dyn Retention {
        self
    }

    async fn audit(&self) -> Result<Vec<Drift>, StoreError> {
        audit::audit(&self.readers, self.clock.in_process()).await
    }

    async fn suspects(&self, limit: usize) -> Result<Suspects, StoreError> {
        suspects::find(&self.readers, limit).await
    }
}

#[cfg(test)]
mod tests {
    use sqlx::Row;

    use super::*;
    use crate::store::{CaseFilter, CaseState};

    /// A store in a file of the temporary directory.
    async fn open(name: &str) -> (Sqlite, PathBuf) {
        let name = format!("holdfast-{name}-{}.db", std::process::id());
        let file = std::env::temp_dir().join(name);
        let url = format!("sqlite://{}", file.display());
        let store = Sqlite::open(&url, Clock::Database).await.unwrap();
        (store, file)
    }

    /// SQLite ends a transaction by itself when the disk is full, for one. The driver does not
    /// notice, and without a new connection no batch would ever begin again.
    #[tokio::test]
    async fn a_transaction_that_sqlite_ended_is_the_last_on_its_connection() {
        let (store, file) = open("ended").await;
        let mut ended = store.writer.begin_with("BEGIN IMMEDIATE").await.unwrap();
        sqlx::query("ROLLBACK").execute(&mut *ended).await.unwrap();
        assert!(ended.commit().await.is_err());
        let next = store.begin().await.unwrap();
        next.commit().await.unwrap();
        store.close().await;
        std::fs::remove_file(file).unwrap();
    }

    /// An audit may read each table whole, but not one of them again for each row of another.
    #[tokio::test]
    async fn no_check_of_an_audit_compares_each_row_with_each() {
        let (store, file) = open("audit-plans").await;
        let checks = audit::CHECKS.iter().map(|check| (check.promise, check.sql));
        for (name, sql) in checks.chain(suspects::LOOKS) {
            let explain = sqlx::AssertSqlSafe(format!("EXPLAIN QUERY PLAN {sql}"));
            let steps = sqlx::query(explain).fetch_all(&store.writer).await.unwrap();
            for step in steps {
                let step: &str = step.get("detail");
                let joins = step.starts_with("SCAN") && step.contains("LEFT-JOIN");
                assert!(!joins, "{name}: {step}");
            }
        }
        store.close().await;
        std::fs::remove_file(file).unwrap();
    }

    /// A page of cases costs what is on it, in the order of their numbers: open ones are found beside
    /// any number that are settled, and those of a key among all.
    #[tokio::test]
    async fn cases_are_walked_by_an_index() {
        let (store, file) = open("case-plans").await;
        let (open, resolved) = (Some(CaseState::Open), Some(CaseState::Resolved));
        let text = |text: &str| Some(text.to_owned());
        for (state, source, key, index) in [
            (None, None, None, "INTEGER PRIMARY KEY (rowid>?)"),
            (
                resolved,
                text("rest"),
                None,
                "INTEGER PRIMARY KEY (rowid>?)",
            ),
            (open, None, None, "INDEX quarantine_open (id>?)"),
            (open, text("rest"), None, "INDEX quarantine_open (id>?)"),
            (
                None,
                None,
                text("a"),
                "INDEX quarantine_key (key=? AND id>?)",
            ),
        ] {
            let filter = CaseFilter { source, key, state };
            let list = quarantine::list(&filter, 0, 1);
            let explain =
                sqlx::AssertSqlSafe(format!("EXPLAIN QUERY PLAN {}", list.sql().as_str()));
            let steps = sqlx::query(explain).fetch_all(&store.writer).await.unwrap();
            let steps: Vec<&str> = steps.iter().map(|step| step.get("detail")).collect();
            assert_eq!(
                steps,
                [format!("SEARCH quarantine USING {index}")],
                "{filter:?}"
            );
        }
        store.close().await;
        std::fs::remove_file(file).unwrap();
    }

    /// Whatever else a table holds, a statement looks only at the rows it is handed.
    #[tokio::test]
    async fn no_statement_of_a_batch_scans_a_table() {
        let (store, file) = open("plans").await;
        let writes = statement::ALL.map(|statement| (statement.name, statement.sql));
        let parked = quarantine::TAKE_PARKED;
        let cases = [(parked.name, parked.sql), ("actions", quarantine::ACTIONS)];
        let looks = statement::LOOKS.into_iter().chain(retention::LOOKS);
        for (name, sql) in writes.into_iter().chain(looks).chain(cases) {
            let explain = sqlx::AssertSqlSafe(format!("EXPLAIN QUERY PLAN {sql}"));
            let steps = sqlx::query(explain).fetch_all(&store.writer).await.unwrap();
            for step in steps {
                let step: &str = step.get("detail");
                let scans = step.starts_with("SCAN") && !step.starts_with("SCAN json_each");
                let known = ["SCAN change", "SCAN delta", "SCAN moved", "SCAN deferral"];
                let row_by_row = known.iter().any(|source| step.starts_with(source));
                assert!(!scans || row_by_row, "{name}: {step}");
                // Of what waits in the outbox, only what may be tried by now is read.
                if name == "claim outbox" && step.starts_with("SEARCH outbox") {
                    let bound = "outbox_attempt_at (attempt_at<?)";
                    assert!(step.ends_with(bound), "{name}: {step}");
                }
            }
        }
        store.close().await;
        std::fs::remove_file(file).unwrap();
    }
}
