//! Opens the store that the settings name.

use std::path::Path;
use std::sync::Arc;

use crate::settings::DatabaseUrl;
use crate::store::postgres::Postgres;
use crate::store::sqlite::{ServingLock, Sqlite};
use crate::store::{Clock, Store, StoreError};

/// A store, and what goes with it.
pub struct Database {
    /// The store.
    pub store: Arc<dyn Store>,
    /// How many lanes serve shoppers on it: as many as it has writers, and not more than two,
    /// since each further one only waits.
    pub sales_lanes: usize,
    /// The right to serve the file, where only one process may.
    _serving: Option<ServingLock>,
}

/// Opens a database whose schema is up to date. An embedded one is made and migrated if need be;
/// a server's is refused, since several programs may be using it.
pub async fn open(url: &DatabaseUrl, clock: Clock) -> Result<Database, StoreError> {
    match url {
        DatabaseUrl::Sqlite(url) => Ok(embedded(Sqlite::open(url, clock).await?, None)),
        DatabaseUrl::Postgres(url) => {
            let postgres = Postgres::connect(url, clock).await?;
            postgres.check_schema().await?;
            Ok(Database {
                store: Arc::new(postgres),
                sales_lanes: 2,
                _serving: None,
            })
        }
    }
}

/// Opens a database that is there already, to look at it. A file that is missing is not made: a
/// name that was mistyped would look like a database in which all is well.
pub async fn open_existing(url: &DatabaseUrl, clock: Clock) -> Result<Database, StoreError> {
    refuse_missing(url)?;
    open(url, clock).await
}

/// Refuses a file that is not there, rather than having it made.
pub fn refuse_missing(url: &DatabaseUrl) -> Result<(), StoreError> {
    match missing_file(url) {
        None => Ok(()),
        Some(file) => Err(StoreError::Unavailable(format!(
            "there is no file {file}; set HOLDFAST_DATABASE_URL"
        ))),
    }
}

/// The file that the address names and that is not there.
pub fn missing_file(url: &DatabaseUrl) -> Option<&str> {
    let DatabaseUrl::Sqlite(address) = url else {
        return None;
    };
    let file = address
        .trim_start_matches("sqlite:")
        .trim_start_matches("//");
    let file = file.split('?').next().unwrap_or_default();
    (!Path::new(file).exists()).then_some(file)
}

/// Opens a database to serve it. An embedded one is served by one process only.
pub async fn open_for_serving(url: &DatabaseUrl) -> Result<Database, StoreError> {
    match url {
        DatabaseUrl::Sqlite(url) => {
            let sqlite = Sqlite::open(url, Clock::Database).await?;
            let serving = sqlite.lock_for_serving()?;
            Ok(embedded(sqlite, Some(serving)))
        }
        DatabaseUrl::Postgres(_) => open(url, Clock::Database).await,
    }
}

/// Brings a database's schema up to date.
pub async fn migrate(url: &DatabaseUrl) -> Result<(), StoreError> {
    match url {
        DatabaseUrl::Sqlite(url) => Sqlite::open(url, Clock::Database).await.map(drop),
        DatabaseUrl::Postgres(url) => {
            Postgres::connect(url, Clock::Database)
                .await?
                .migrate()
                .await
        }
    }
}

fn embedded(sqlite: Sqlite, serving: Option<ServingLock>) -> Database {
    Database {
        store: Arc::new(sqlite),
        sales_lanes: 1,
        _serving: serving,
    }
}
