//! A shop to test in: an engine on a store, a clock that is moved by hand, and short words for
//! commands and what comes of them.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use holdfast::domain::{
    Command, Deadline, Early, Job, JobOutcome, Line, OnExpired, Outcome, Refusal, Reservation,
    ReservationId, Reserve, Rules, State, Stock, StockKey, Text, Timestamp, Via,
};
use holdfast::engine::{
    Due, Engine, EngineError, Keyed, Reply, Runtime, Settings, Task, TokioRuntime,
};
use holdfast::metrics::Metrics;
use holdfast::store::memory::Memory;
use holdfast::store::postgres::Postgres;
use holdfast::store::sqlite::Sqlite;
use holdfast::store::{Answer, Clock, Key, ManualClock, StockFilter, Store};
use sqlx::{Connection as _, SqliteConnection};

use crate::world::database::{TestDatabase, database};
use crate::world::directory::TempDir;

/// When tests begin that move the clock by hand.
pub const NOON: &str = "2026-12-01T12:00:00Z";

/// Where the rows live, and what must stay until the test ends.
pub struct Home {
    pub name: &'static str,
    pub store: Arc<dyn Store>,
    pub clock: Arc<ManualClock>,
    pub database: Option<TestDatabase>,
    directory: Option<TempDir>,
}

pub fn noon() -> Timestamp {
    NOON.parse().unwrap()
}

pub fn memory() -> Home {
    let clock = ManualClock::at(noon());
    Home {
        name: "memory",
        store: Arc::new(Memory::new(Clock::Manual(Arc::clone(&clock)))),
        clock,
        database: None,
        directory: None,
    }
}

pub async fn sqlite() -> Home {
    let clock = ManualClock::at(noon());
    let directory = TempDir::new();
    let kept = Clock::Manual(Arc::clone(&clock));
    let store = Sqlite::open(&directory.sqlite_url(), kept).await.unwrap();
    Home {
        name: "sqlite",
        store: Arc::new(store),
        clock,
        database: None,
        directory: Some(directory),
    }
}

pub async fn postgres() -> Home {
    let clock = ManualClock::at(noon());
    let database = database().await;
    let kept = Clock::Manual(Arc::clone(&clock));
    Home {
        name: "postgres",
        store: Arc::new(connect(&database, kept).await),
        clock,
        database: Some(database),
        directory: None,
    }
}

/// A PostgreSQL database whose own clock decides.
pub async fn postgres_in_real_time() -> Home {
    let database = database().await;
    Home {
        name: "postgres",
        store: Arc::new(connect(&database, Clock::Database).await),
        clock: ManualClock::at(noon()),
        database: Some(database),
        directory: None,
    }
}

async fn connect(database: &TestDatabase, clock: Clock) -> Postgres {
    let store = Postgres::connect(&database.url(), clock).await.unwrap();
    store.migrate().await.unwrap();
    store
}

impl Home {
    pub fn database(&self) -> &TestDatabase {
        self.database.as_ref().expect("a home on PostgreSQL")
    }

    /// Runs a statement behind the program's back, whatever the constraints of SQLite say to it,
    /// and says how many rows it changed.
    pub async fn tamper(&self, statement: &str) -> u64 {
        let statement = sqlx::AssertSqlSafe(statement.to_owned());
        if let Some(database) = &self.database {
            let mut hand = database.connect().await;
            let done = sqlx::query(statement).execute(&mut hand).await.unwrap();
            return done.rows_affected();
        }
        let mut hand = self.sqlite().await;
        let unchecked = "pragma ignore_check_constraints = on";
        sqlx::query(unchecked).execute(&mut hand).await.unwrap();
        let done = sqlx::query(statement).execute(&mut hand).await.unwrap();
        hand.close().await.unwrap();
        done.rows_affected()
    }

    /// Reads one integer behind the program's back.
    pub async fn count(&self, query: &str) -> i64 {
        let query = sqlx::AssertSqlSafe(query.to_owned());
        let counted = if let Some(database) = &self.database {
            let mut hand = database.connect().await;
            sqlx::query_scalar(query).fetch_one(&mut hand).await
        } else {
            let mut hand = self.sqlite().await;
            sqlx::query_scalar(query).fetch_one(&mut hand).await
        };
        counted.unwrap()
    }

    async fn sqlite(&self) -> SqliteConnection {
        let directory = self.directory.as_ref().expect("a home with a database");
        let url = directory.sqlite_url();
        SqliteConnection::connect(&url).await.unwrap()
    }

    /// A second program on the same database.
    pub async fn neighbour(&self, clock: Clock) -> Arc<dyn Store> {
        let url = self.database().url();
        Arc::new(Postgres::connect(&url, clock).await.unwrap())
    }
}

pub async fn homes() -> [Home; 3] {
    [memory(), sqlite().await, postgres().await]
}

/// A runtime in which a sleep takes no time, and moves the stopwatch.
#[derive(Default)]
pub struct Stopwatch(Mutex<Duration>);

struct Nap {
    watch: Arc<Stopwatch>,
    duration: Duration,
    yielded: bool,
}

impl Future for Nap {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.yielded {
            *self.watch.0.lock().unwrap() += self.duration;
            return Poll::Ready(());
        }
        self.yielded = true;
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

pub struct InNoTime(pub Arc<Stopwatch>);

impl InNoTime {
    pub fn start() -> Arc<Self> {
        Arc::new(Self(Arc::default()))
    }

    pub fn advance(&self, duration: Duration) {
        *self.0.0.lock().unwrap() += duration;
    }
}

impl Runtime for InNoTime {
    fn spawn(&self, task: Task) {
        tokio::spawn(task);
    }

    fn sleep(&self, duration: Duration) -> Task {
        Box::pin(Nap {
            watch: Arc::clone(&self.0),
            duration,
            yielded: false,
        })
    }

    fn elapsed(&self) -> Duration {
        *self.0.0.lock().unwrap()
    }

    fn fill_random(&self, bytes: &mut [u8]) {
        bytes.fill(7);
    }
}

pub const RULES: Rules = Rules {
    max_hold_seconds: 2_592_000,
    queue: None,
};

pub fn settings(sales_lanes: usize) -> Settings {
    Settings {
        rules: RULES,
        pace: None,
        retry_budget: holdfast::domain::RetryBudget::default(),
        sales_lanes,
        patience: Duration::from_secs(2),
    }
}

/// An engine, and the words for using it.
#[derive(Clone)]
pub struct Shop {
    pub engine: Engine,
    pub store: Arc<dyn Store>,
    pub metrics: Arc<Metrics>,
    pub runtime: Arc<dyn Runtime>,
}

impl Shop {
    /// One lane for shoppers, no time spent on pauses.
    pub fn open(store: &Arc<dyn Store>) -> Self {
        Self::open_with(store, InNoTime::start(), settings(1))
    }

    /// In real time, with two lanes for shoppers.
    pub fn open_in_real_time(store: &Arc<dyn Store>) -> Self {
        // A busy machine that takes its time is not what is tested.
        let patience = Duration::from_secs(20);
        let settings = Settings {
            patience,
            ..settings(2)
        };
        Self::open_with(store, Arc::new(TokioRuntime::start()), settings)
    }

    pub fn open_with(
        store: &Arc<dyn Store>,
        runtime: Arc<dyn Runtime>,
        settings: Settings,
    ) -> Self {
        let metrics = Arc::new(Metrics::new());
        Self {
            engine: Engine::start(Arc::clone(store), Arc::clone(&runtime), &metrics, settings),
            store: Arc::clone(store),
            metrics,
            runtime,
        }
    }

    pub async fn ask(&self, command: Command) -> Result<Outcome, EngineError> {
        match self.engine.submit(command, None).await? {
            Reply::Decided(outcome) => Ok(outcome),
            Reply::Replayed(answer) => panic!("replayed without a key: {answer:?}"),
        }
    }

    pub async fn done(&self, command: Command) -> Outcome {
        let asked = format!("{command:?}");
        self.ask(command)
            .await
            .unwrap_or_else(|error| panic!("{asked}: {error}"))
    }

    /// What comes of a command, in one word.
    pub async fn word(&self, command: Command) -> String {
        word(&self.ask(command).await)
    }

    pub async fn stock_up(&self, name: &str, on_hand: i64) {
        let outcome = self.done(set_stock(name, on_hand)).await;
        assert!(matches!(outcome, Outcome::Stock(_)), "{outcome:?}");
    }

    pub async fn hold(&self, name: &str, quantity: i64, seconds: i64) -> Reservation {
        match self.done(reserve(&[(name, quantity)], seconds)).await {
            Outcome::Reservation { reservation, .. } => *reservation,
            other => panic!("{quantity} of {name}: {other:?}"),
        }
    }

    pub async fn find(&self, id: ReservationId) -> Reservation {
        let (found, _) = self.store.reservation(id).await.unwrap();
        found.unwrap_or_else(|| panic!("{id} is gone"))
    }

    pub async fn state(&self, id: ReservationId) -> State {
        self.find(id).await.state
    }

    pub async fn on_shelf(&self, name: &str) -> Stock {
        let filter = StockFilter {
            skus: vec![text(name)],
            location: None,
        };
        let mut found = self.store.list_stock(&filter, None, 1).await.unwrap();
        found.pop().unwrap_or_else(|| panic!("no {name}"))
    }

    /// Releases all that is due, in as many batches as it takes.
    pub async fn release_all(&self) -> usize {
        let mut released = 0;
        loop {
            let batch = self.engine.expire_due(Due::ALL).await.unwrap();
            released += batch.released;
            if batch.claimed == 0 {
                return released;
            }
        }
    }
}

pub fn text<const MAX: usize>(text: &str) -> Text<MAX> {
    Text::new(text).unwrap()
}

pub fn sku(name: &str) -> StockKey {
    StockKey {
        location: text("default"),
        sku: text(name),
    }
}

/// Randomness that is never the same twice.
pub fn entropy() -> [u8; 10] {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    entropy_of(NEXT.fetch_add(1, Ordering::Relaxed))
}

pub fn entropy_of(number: u64) -> [u8; 10] {
    let mut bytes = [0; 10];
    bytes[2..].copy_from_slice(&number.to_be_bytes());
    bytes
}

pub fn reserve(lines: &[(&str, i64)], seconds: i64) -> Command {
    Command::Reserve(Reserve {
        entropy: entropy(),
        lines: lines
            .iter()
            .map(|(name, quantity)| Line {
                sku: text(name),
                location: text("default"),
                quantity: *quantity,
            })
            .collect(),
        until: Deadline::In { seconds },
        merchant: holdfast::domain::default_merchant(),
        customer_id: None,
        reference: None,
        metadata: BTreeMap::new(),
    })
}

pub fn set_stock(name: &str, on_hand: i64) -> Command {
    Command::SetStock {
        key: sku(name),
        on_hand,
    }
}

pub fn adjust(name: &str, delta: i64) -> Command {
    Command::AdjustStock {
        key: sku(name),
        delta,
        reason: None,
    }
}

pub fn extend(id: ReservationId, seconds: i64) -> Command {
    Command::Extend {
        id,
        until: Deadline::In { seconds },
    }
}

pub fn pay(id: ReservationId) -> Command {
    pay_with(id, "pi_1", OnExpired::Reject)
}

pub fn reacquire(id: ReservationId) -> Command {
    pay_with(id, "pi_1", OnExpired::Reacquire)
}

pub fn pay_with(id: ReservationId, payment: &str, on_expired: OnExpired) -> Command {
    Command::CheckOut {
        id,
        payment_reference: Some(text(payment)),
        on_expired,
    }
}

pub fn cancel(id: ReservationId) -> Command {
    Command::Cancel { id, reason: None }
}

pub fn expire(job: Job) -> Command {
    Command::Expire {
        job,
        via: Via::Push,
        early: Early::Report,
    }
}

/// A key, and a way to write the answer down that shows the whole outcome.
pub fn keyed(key: &str, fingerprint: u8) -> Keyed {
    Keyed {
        key: Key {
            scope: "shop".to_owned(),
            key: key.to_owned(),
        },
        fingerprint: vec![fingerprint; 32],
        render: Box::new(|outcome| Answer {
            status: match outcome {
                Outcome::Reservation { created: true, .. } => 201,
                Outcome::Reservation { .. } | Outcome::Stock(_) | Outcome::Job(_) => 200,
                Outcome::Refused(Refusal::NotFound { .. }) => 404,
                Outcome::Refused(Refusal::HoldLimit { .. }) => 422,
                Outcome::Refused(_) => 409,
            },
            location: None,
            body: word_of(outcome),
        }),
    }
}

pub fn word(answer: &Result<Outcome, EngineError>) -> String {
    match answer {
        Ok(outcome) => word_of(outcome),
        Err(EngineError::Overloaded { .. }) => "overloaded".to_owned(),
        Err(EngineError::KeyInUse) => "key-in-use".to_owned(),
        Err(EngineError::KeyReused) => "key-reused".to_owned(),
        Err(EngineError::FateUnknown) => "fate-unknown".to_owned(),
        Err(EngineError::Store(_)) => "store".to_owned(),
        Err(EngineError::ShuttingDown) => "shutting-down".to_owned(),
    }
}

pub fn word_of(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Reservation { reservation, .. } if reservation.reacquired => "reacquired",
        Outcome::Reservation { reservation, .. } => reservation.state.as_str(),
        Outcome::Stock(_) => "stock",
        Outcome::Job(JobOutcome::Expired) => "released",
        Outcome::Job(job) => job.as_str(),
        Outcome::Refused(Refusal::InsufficientStock { .. }) => "insufficient",
        Outcome::Refused(Refusal::NotHeld { .. }) => "not-held",
        Outcome::Refused(Refusal::Expired { .. }) => "too-late",
        Outcome::Refused(Refusal::StockBelowHeld { .. }) => "below-held",
        Outcome::Refused(Refusal::StockAboveMaximum { .. }) => "above-maximum",
        Outcome::Refused(Refusal::HoldLimit { .. }) => "hold-limit",
        Outcome::Refused(Refusal::NotFound { .. }) => "not-found",
    }
    .to_owned()
}
