//! A shop: a database, the servers on it, and what is checked when it closes.

use std::future::Future;
use std::process::Output;
use std::time::Duration;

use serde_json::Value;
use sqlx::{Connection as _, PgConnection, SqliteConnection};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::books;
use crate::world::client::{Answer, Client};
use crate::world::database::{TestDatabase, database};
use crate::world::directory::TempDir;
use crate::world::server::{ServerProcess, run};

/// A server has up to 16 connections to PostgreSQL, which by default takes 100 in all.
static SERVERS_ON_POSTGRES: Semaphore = Semaphore::const_new(4);

/// How long something that is promised soon may take on a machine that is busy. Nothing is decided
/// by it but that a test ends.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// On what a shop stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Sqlite,
    Postgres,
}

enum Place {
    Sqlite(TempDir),
    Postgres(Box<TestDatabase>),
}

/// A database with its servers.
pub struct Shop {
    place: Place,
    servers: Vec<ServerProcess>,
    permits: Vec<SemaphorePermit<'static>>,
    /// What ended servers said.
    log: Vec<String>,
}

/// Opens a shop with one server, runs the test on it, and checks its books.
pub async fn on_store(kind: Kind, test: impl AsyncFnOnce(&mut Shop)) {
    let mut shop = Shop::open(kind, 1, &[]).await;
    test(&mut shop).await;
    shop.close().await;
}

impl Shop {
    /// Makes a database and starts so many servers on it.
    pub async fn open(kind: Kind, servers: usize, settings: &[(&str, &str)]) -> Self {
        let mut shop = Self::vacant(kind, servers).await;
        for _ in 0..servers {
            shop.start(settings);
        }
        shop
    }

    /// Makes a database with room for so many servers.
    pub async fn vacant(kind: Kind, servers: usize) -> Self {
        let mut permits = Vec::new();
        let place = match kind {
            Kind::Sqlite => Place::Sqlite(TempDir::new()),
            Kind::Postgres => {
                let many = u32::try_from(servers).unwrap();
                permits.push(SERVERS_ON_POSTGRES.acquire_many(many).await.unwrap());
                Place::Postgres(Box::new(database().await))
            }
        };
        let shop = Self {
            place,
            servers: Vec::new(),
            permits,
            log: Vec::new(),
        };
        if kind == Kind::Postgres {
            // The service gives up waiting before the database looks for a deadlock, which nobody
            // would count then. This makes the database look first, if it lets us.
            let look_first = "do $$ begin
                execute format('alter database %I set deadlock_timeout = ''20ms''',
                    current_database());
                exception when insufficient_privilege then null;
            end $$";
            shop.sql(look_first).await.unwrap();
        }
        let migrated = shop.run(&["migrate"]);
        assert!(migrated.status.success(), "{migrated:?}");
        shop
    }

    pub fn kind(&self) -> Kind {
        match self.place {
            Place::Sqlite(_) => Kind::Sqlite,
            Place::Postgres(_) => Kind::Postgres,
        }
    }

    pub fn url(&self) -> String {
        match &self.place {
            Place::Sqlite(directory) => directory.sqlite_url(),
            Place::Postgres(database) => database.url(),
        }
    }

    /// Starts one more server. Its log has what goes wrong, and not each request.
    pub fn start(&mut self, settings: &[(&str, &str)]) -> Client {
        let quiet = [("HOLDFAST_LOG", "warn,holdfast::serve=info")];
        let server = ServerProcess::start(&self.url(), &[&quiet, settings].concat());
        let client = server.client();
        self.servers.push(server);
        client
    }

    /// Stops all servers as an operator does, and starts one with other settings.
    pub async fn restart(&mut self, settings: &[(&str, &str)]) -> Client {
        for server in std::mem::take(&mut self.servers) {
            self.log.extend(server.log());
            assert!(server.terminate().await.success());
        }
        self.start(settings)
    }

    /// Takes a server out, to do something to it.
    pub fn take_server(&mut self) -> ServerProcess {
        let server = self.servers.pop().unwrap();
        self.log.extend(server.log());
        server
    }

    /// A client of the first server.
    pub fn client(&self) -> Client {
        self.servers[0].client()
    }

    /// A client of each server.
    pub fn clients(&self) -> Vec<Client> {
        self.servers.iter().map(ServerProcess::client).collect()
    }

    pub fn server(&mut self) -> &mut ServerProcess {
        &mut self.servers[0]
    }

    /// Runs a command of the program on the shop's database.
    pub fn run(&self, arguments: &[&str]) -> Output {
        run(arguments, &[("HOLDFAST_DATABASE_URL", &self.url())])
    }

    /// Runs a statement behind the program's back.
    pub async fn sql(&self, statement: &'static str) -> Result<(), sqlx::Error> {
        let statement = sqlx::raw_sql(statement);
        match &self.place {
            Place::Sqlite(_) => statement.execute(&mut self.sqlite().await).await.map(drop),
            Place::Postgres(_) => statement
                .execute(&mut self.postgres().await)
                .await
                .map(drop),
        }
    }

    /// Reads one integer behind the program's back.
    pub async fn count(&self, query: &'static str) -> i64 {
        let query = sqlx::AssertSqlSafe(query);
        match &self.place {
            Place::Sqlite(_) => {
                sqlx::query_scalar(query)
                    .fetch_one(&mut self.sqlite().await)
                    .await
            }
            Place::Postgres(_) => {
                sqlx::query_scalar(query)
                    .fetch_one(&mut self.postgres().await)
                    .await
            }
        }
        .unwrap()
    }

    /// Reads one column of texts behind the program's back.
    pub async fn texts(&self, query: &'static str) -> Vec<String> {
        let query = sqlx::AssertSqlSafe(query);
        match &self.place {
            Place::Sqlite(_) => {
                sqlx::query_scalar(query)
                    .fetch_all(&mut self.sqlite().await)
                    .await
            }
            Place::Postgres(_) => {
                sqlx::query_scalar(query)
                    .fetch_all(&mut self.postgres().await)
                    .await
            }
        }
        .unwrap()
    }

    pub async fn sqlite(&self) -> SqliteConnection {
        SqliteConnection::connect(&self.url()).await.unwrap()
    }

    /// A connection of somebody else, who may lock what they like.
    pub async fn postgres(&self) -> PgConnection {
        PgConnection::connect(&self.url()).await.unwrap()
    }

    /// Fails unless `holdfast audit` finds every row as promised.
    pub fn audit(&self) {
        let audit = self.run(&["audit"]);
        assert!(audit.status.success(), "{audit:?}");
    }

    /// Checks the books, stops the servers, and audits the rows that they leave.
    pub async fn close(mut self) {
        if let Some(server) = self.servers.first() {
            books::check(&server.client()).await;
        }
        for server in std::mem::take(&mut self.servers) {
            self.log.extend(server.log());
            assert!(server.terminate().await.success());
        }
        self.audit();
        let panics: Vec<_> = self
            .log
            .iter()
            .filter(|line| line.contains("panic"))
            .collect();
        assert!(panics.is_empty(), "{panics:?}");
        if let Place::Postgres(_) = self.place {
            // The servers are gone, so that everything is counted. P1's total order of locks.
            let deadlocks = "select deadlocks from pg_stat_database
                where datname = current_database()";
            assert_eq!(self.count(deadlocks).await, 0, "deadlocks");
        }
        drop(self.permits);
    }
}

/// Asks again and again until the answer is there; the database is the truth, and there is nothing
/// else that would say when.
pub async fn until<T>(mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let asked = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let answer = tokio::time::timeout(PATIENCE, asked).await;
    answer.expect("what was waited for did not come")
}

/// Waits until a reservation has been released, and returns it.
pub async fn released(client: &Client, id: &str) -> Value {
    let released = async {
        loop {
            let body = client.get_reservation(id).await.expect(200);
            if !body["closed_at"].is_null() {
                return body;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let released = tokio::time::timeout(PATIENCE, released).await;
    released.expect("a due hold was not released")
}

/// Does all of these at once, and returns what came of each, in order.
pub async fn at_once<T: Send + 'static>(
    tasks: impl IntoIterator<Item = impl Future<Output = T> + Send + 'static>,
) -> Vec<T> {
    let tasks: Vec<_> = tasks.into_iter().map(tokio::spawn).collect();
    let mut done = Vec::with_capacity(tasks.len());
    for task in tasks {
        done.push(task.await.unwrap());
    }
    done
}

/// How many of these answers have the status.
pub fn with_status(answers: &[Answer], status: u16) -> usize {
    answers
        .iter()
        .filter(|answer| answer.status == status)
        .count()
}

/// The id of the reservation that was made.
#[track_caller]
pub fn id(answer: Answer) -> String {
    answer.expect(201)["id"].as_str().unwrap().to_owned()
}

/// The id in a body.
pub fn id_of(body: &Value) -> &str {
    body["id"].as_str().unwrap()
}

/// Numbers that look random and are the same in every run.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// One of 0 to `sides - 1`.
    pub fn roll(&mut self, sides: u64) -> u64 {
        // Marsaglia's xorshift.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

/// An instant of the API, in milliseconds since 1970.
pub fn millis(instant: &Value) -> i64 {
    let instant = instant.as_str().unwrap();
    assert!(instant.ends_with('Z') && instant.len() == 24, "{instant}");
    let parsed =
        time::OffsetDateTime::parse(instant, &time::format_description::well_known::Rfc3339);
    i64::try_from(parsed.unwrap().unix_timestamp_nanos() / 1_000_000).unwrap()
}

/// Milliseconds since 1970 as an instant of the API.
pub fn instant(millis: i64) -> String {
    let instant = time::OffsetDateTime::from_unix_timestamp_nanos(i128::from(millis) * 1_000_000);
    let instant = instant.unwrap();
    let (hour, minute, second, millisecond) = instant.to_hms_milli();
    let date = instant.date();
    format!("{date}T{hour:02}:{minute:02}:{second:02}.{millisecond:03}Z")
}
