//! The store for several instances: PostgreSQL.
//!
//! [`lock`] takes and reads what a batch decides on, [`transitions`] and [`mod@write`] store what it
//! decided, [`read`] serves everybody who only looks, and [`audit`] recomputes what the rows promise.

mod admission;
mod api_keys;
mod audit;
mod deferral;
mod error;
mod instant;
mod lines;
mod lock;
mod outbox;
#[cfg(test)]
mod plans;
mod quarantine;
mod read;
mod retention;
mod row;
mod suspects;
mod transaction;
mod transitions;
mod write;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::migrate::Migrator;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions, PgSslMode};
use sqlx::{Connection, Row};

use self::error::store_error;
use self::transaction::PostgresTransaction;
use super::{
    ApiKeys, Clock, Drift, Fate, NextAttempt, Outbox, Quarantine, RecordedEvent, ReservationFilter,
    Retention, StockFilter, Store, StoreError, Suspects, Transaction, TransactionId,
};
use crate::domain::{Reservation, ReservationId, Stock, StockKey, Timestamp};

static MIGRATIONS: Migrator = sqlx::migrate!("migrations/postgres");

/// The engine has a few lanes; the rest is for readers.
const CONNECTIONS: u32 = 16;

/// How long a caller waits for a connection.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(3);

/// A connection that lay idle for longer is asked whether it still lives before it is used. One
/// that was busy a moment ago is not: it would cost each batch a round trip.
const TRUSTED_FOR: Duration = Duration::from_secs(1);

/// What every session is told.
const SESSION: [(&str, &str); 10] = [
    // A statement sees what was committed before it, so a lock that was waited for shows the row
    // as the other transaction left it.
    ("default_transaction_isolation", "read committed"),
    // Nobody waits for long; the engine sets aside what did not come.
    ("lock_timeout", "100ms"),
    ("statement_timeout", "10s"),
    // A batch takes milliseconds. A process that is frozen in the middle of one, with the event
    // head in its hands, must not stop all others for longer than they wait.
    ("idle_in_transaction_session_timeout", "2s"),
    // Every statement is planned once and keeps its plan: planning takes as long as the work of a
    // small batch. The planner's guess at how large a table is would be out of date all the time,
    // since tables fill and empty in seconds, so it is not asked. Statements are written, and the
    // ways that read whole tables turned off, so that there is one plan for any size: each row is
    // found by its key. A test reads the plans.
    ("plan_cache_mode", "force_generic_plan"),
    ("enable_seqscan", "off"),
    ("enable_bitmapscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("jit", "off"),
];

/// A PostgreSQL database.
#[derive(Clone, Debug)]
pub struct Postgres {
    pool: PgPool,
    clock: Clock,
}

impl Postgres {
    /// Connects to the database at `url`, and looks whether it answers.
    pub async fn connect(url: &str, clock: Clock) -> Result<Self, StoreError> {
        let options = unencrypted_on_this_machine(url.parse().map_err(store_error)?);
        let pool = PgPoolOptions::new()
            .max_connections(CONNECTIONS)
            .acquire_timeout(ACQUIRE_TIMEOUT)
            .test_before_acquire(false)
            .before_acquire(|connection, usage| {
                Box::pin(async move {
                    if usage.idle_for > TRUSTED_FOR {
                        connection.ping().await?;
                    }
                    Ok(true)
                })
            })
            .connect_with(options.application_name("holdfast").options(SESSION))
            .await
            .map_err(store_error)?;
        Ok(Self { pool, clock })
    }

    /// Brings the schema up to date. Several may try at once; they take turns.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        // Not a connection that goes back to the pool: a migration may take its time.
        let mut connection = self.pool.acquire().await.map_err(store_error)?.detach();
        sqlx::raw_sql("SET statement_timeout = 0; SET lock_timeout = 0")
            .execute(&mut connection)
            .await
            .map_err(store_error)?;
        // The plain `run` makes a future that no thread may take over from another.
        let migrated = MIGRATIONS.run_direct(None, &mut connection, false).await;
        let closed = connection.close().await;
        migrated.map_err(|fault| StoreError::Schema(format!("cannot migrate: {fault}")))?;
        closed.map_err(store_error)
    }

    /// Is the schema the one this program was built for?
    pub async fn check_schema(&self) -> Result<(), StoreError> {
        let exists: bool = sqlx::query("SELECT to_regclass('_sqlx_migrations') IS NOT NULL")
            .fetch_one(&self.pool)
            .await
            .and_then(|row| row.try_get(0))
            .map_err(store_error)?;
        let mut applied = BTreeMap::new();
        if exists {
            let sql = "SELECT version, success, checksum FROM _sqlx_migrations";
            for row in sqlx::query(sql)
                .fetch_all(&self.pool)
                .await
                .map_err(store_error)?
            {
                let (version, success, checksum) = migration(&row).map_err(store_error)?;
                applied.insert(version, success.then_some(checksum));
            }
        }
        for wanted in MIGRATIONS.iter() {
            match applied.remove(&wanted.version) {
                Some(Some(checksum)) if checksum == wanted.checksum.as_ref() => {}
                Some(_) => {
                    return Err(StoreError::Schema(format!(
                        "migration {} of the database is not this program's, or did not finish; \
                         `holdfast migrate` says more",
                        wanted.version
                    )));
                }
                None => {
                    return Err(StoreError::Schema(format!(
                        "the database lacks migration {} ({}); run `holdfast migrate`",
                        wanted.version, wanted.description
                    )));
                }
            }
        }
        match applied.keys().next() {
            None => Ok(()),
            Some(version) => Err(StoreError::Schema(format!(
                "the database has migration {version}, which this program does not know; run the \
                 program whose `holdfast migrate` made it, or a newer one"
            ))),
        }
    }
}

/// Leaves encryption out where nothing crosses a network, unless the address asks for it. What is
/// merely preferred protects from nobody; and the driver sends an encrypted message in records of
/// 16 KiB without telling the system not to delay them, so that each statement of a large batch
/// would wait for an acknowledgement.
fn unencrypted_on_this_machine(options: PgConnectOptions) -> PgConnectOptions {
    let host = options.get_host();
    let address: Option<IpAddr> = host.trim_matches(['[', ']']).parse().ok();
    let is_here = host == "localhost" || address.is_some_and(|address| address.is_loopback());
    if is_here && matches!(options.get_ssl_mode(), PgSslMode::Prefer) {
        options.ssl_mode(PgSslMode::Disable)
    } else {
        options
    }
}

fn migration(row: &sqlx::postgres::PgRow) -> Result<(i64, bool, Vec<u8>), sqlx::Error> {
    Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?))
}

#[async_trait]
impl Store for Postgres {
    async fn begin(&self) -> Result<Box<dyn Transaction>, StoreError> {
        let transaction = self.pool.begin().await.map_err(store_error)?;
        let clock = self.clock.clone();
        Ok(Box::new(PostgresTransaction::new(transaction, clock)))
    }

    async fn fate(&self, transaction: TransactionId) -> Result<Fate, StoreError> {
        read::fate(self, &transaction).await
    }

    async fn now(&self) -> Result<Timestamp, StoreError> {
        read::now(self).await
    }

    async fn next_attempt(&self, from: Timestamp) -> Result<NextAttempt, StoreError> {
        read::next_attempt(self, from).await
    }

    async fn stock(
        &self,
        wanted: &BTreeMap<StockKey, i64>,
    ) -> Result<BTreeMap<StockKey, Stock>, StoreError> {
        read::stock(self, wanted).await
    }

    async fn list_stock(
        &self,
        filter: &StockFilter,
        after: Option<&StockKey>,
        limit: usize,
    ) -> Result<Vec<Stock>, StoreError> {
        read::list_stock(self, filter, after, limit).await
    }

    async fn reservation(
        &self,
        id: ReservationId,
    ) -> Result<(Option<Reservation>, Timestamp), StoreError> {
        read::reservation(self, id).await
    }

    async fn list_reservations(
        &self,
        filter: &ReservationFilter,
        before: Option<ReservationId>,
        limit: usize,
    ) -> Result<(Vec<Reservation>, Timestamp), StoreError> {
        read::list_reservations(self, filter, before, limit).await
    }

    async fn events(&self, after: i64, limit: usize) -> Result<Vec<RecordedEvent>, StoreError> {
        read::events(self, after, limit).await
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
        audit::audit(self).await
    }

    async fn suspects(&self, limit: usize) -> Result<Suspects, StoreError> {
        suspects::find(self, limit).await
    }
}

/// The columns of a list of keys, as arrays to be bound.
fn columns<'k>(keys: impl IntoIterator<Item = &'k StockKey>) -> (Vec<&'k str>, Vec<&'k str>) {
    keys.into_iter()
        .map(|key| (key.location.as_str(), key.sku.as_str()))
        .unzip()
}

/// The names of reservations, as an array to be bound.
fn uuids<'i>(ids: impl IntoIterator<Item = &'i ReservationId>) -> Vec<uuid::Uuid> {
    ids.into_iter().map(|id| id.as_uuid()).collect()
}

/// A limit, as the database counts.
fn rows(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

/// One column of many rows, to be bound.
fn array<Row, Value>(
    rows: impl IntoIterator<Item = Row>,
    column: impl FnMut(Row) -> Value,
) -> Vec<Value> {
    rows.into_iter().map(column).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_this_machine_only_what_was_asked_for_is_encrypted() {
        let mode = |url: &str| {
            let options = unencrypted_on_this_machine(url.parse().unwrap());
            format!("{:?}", options.get_ssl_mode())
        };
        assert_eq!(mode("postgres://shop@127.0.0.1/shop"), "Disable");
        assert_eq!(mode("postgres://shop@localhost/shop"), "Disable");
        assert_eq!(mode("postgres://shop@[::1]/shop"), "Disable");
        assert_eq!(
            mode("postgres://shop@127.0.0.1/shop?sslmode=require"),
            "Require"
        );
        assert_eq!(mode("postgres://shop@db.example/shop"), "Prefer");
    }
}
