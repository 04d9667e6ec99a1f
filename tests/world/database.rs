use std::thread;

use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _, Executor as _, PgConnection};

/// A PostgreSQL database that nobody else uses, empty at first and gone when this is dropped.
pub struct TestDatabase {
    server: PgConnectOptions,
    name: String,
}

/// Makes a database on the server that `HOLDFAST_TEST_POSTGRES_URL` names.
pub async fn database() -> TestDatabase {
    let url = std::env::var("HOLDFAST_TEST_POSTGRES_URL").unwrap_or_else(|_| {
        panic!("HOLDFAST_TEST_POSTGRES_URL names no server; run `make test`, which finds one")
    });
    let server: PgConnectOptions = url
        .parse()
        .unwrap_or_else(|error| panic!("HOLDFAST_TEST_POSTGRES_URL is no address: {error}"));
    TestDatabase::make(server)
        .await
        .unwrap_or_else(|error| panic!("HOLDFAST_TEST_POSTGRES_URL gives no database: {error}"))
}

impl TestDatabase {
    async fn make(server: PgConnectOptions) -> sqlx::Result<Self> {
        let mut connection = PgConnection::connect_with(&server).await?;
        // The server names it, so that tests of several machines can share one server.
        let name: String = sqlx::query_scalar(
            "select 'holdfast_test_' || replace(gen_random_uuid()::text, '-', '')",
        )
        .fetch_one(&mut connection)
        .await?;
        connection
            .execute(sqlx::AssertSqlSafe(format!("create database {name}")))
            .await?;
        connection.close().await?;
        Ok(Self { server, name })
    }

    /// Its address, as `HOLDFAST_DATABASE_URL` takes it.
    pub fn url(&self) -> String {
        let database = self.server.clone().database(&self.name);
        database.to_url_lossy().to_string()
    }

    /// A connection of the test's own, to look at rows behind the program's back.
    pub async fn connect(&self) -> PgConnection {
        PgConnection::connect(&self.url()).await.unwrap()
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        let server = self.server.clone();
        let drop = format!("drop database {} with (force)", self.name);
        // The test's own runtime cannot be waited for in here, so that another one does it.
        let dropped = thread::spawn(move || {
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?
                .block_on(async {
                    let mut connection = PgConnection::connect_with(&server).await?;
                    connection.execute(sqlx::AssertSqlSafe(drop)).await?;
                    connection.close().await
                })
        });
        let dropped = dropped.join().expect("dropping a database does not panic");
        if !thread::panicking() {
            dropped.expect("a test's database can be dropped");
        }
    }
}
