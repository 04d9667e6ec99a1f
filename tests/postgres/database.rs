//! A database for one test, and the smallest engine that can fill it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use holdfast::domain::{
    Changes, Command, Deadline, Decision, Early, Job, Line, OnExpired, Outcome, Reservation,
    ReservationId, Reserve, Rules, Snapshot, StockKey, Text, Timestamp, Via, decide,
};
use holdfast::store::postgres::Postgres;
use holdfast::store::{Clock, ManualClock, Store, StoreError, Transaction, Wait};
use sqlx::postgres::PgPool;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

/// Where the tests' clock starts.
pub const START: i64 = 1_800_000_000_000;

pub struct Database {
    pub store: Postgres,
    pub clock: Arc<ManualClock>,
    pub url: String,
    /// Sessions that are not the store's.
    pub others: PgPool,
}

pub fn server() -> String {
    std::env::var("HOLDFAST_TEST_POSTGRES_URL")
        .unwrap_or_else(|_| "postgres://postgres@127.0.0.1:5432/postgres".to_owned())
}

/// A name that no other test, and no other run, uses at the same time.
fn fresh_name() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("holdfast_test_{}_{count}", std::process::id())
}

/// Runs a test on a database with the schema and nothing in it.
pub async fn with_database<Test, Running>(test: Test)
where
    Test: FnOnce(Database) -> Running + Send + 'static,
    Running: Future<Output = ()> + Send + 'static,
{
    let name = fresh_name();
    let mut admin = PgConnection::connect(&server()).await.unwrap();
    let run = |sql: String| sqlx::raw_sql(AssertSqlSafe(sql));
    run(format!("CREATE DATABASE {name}"))
        .execute(&mut admin)
        .await
        .unwrap();
    let (before, _) = server()
        .rsplit_once('/')
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .unwrap();
    let url = format!("{before}/{name}");
    let ended = tokio::spawn(async move {
        let clock = ManualClock::at(at(0));
        let store = Postgres::connect(&url, Clock::Manual(clock.clone()))
            .await
            .unwrap();
        store.migrate().await.unwrap();
        let others = PgPool::connect(&url).await.unwrap();
        test(Database {
            store,
            clock,
            url,
            others,
        })
        .await;
    })
    .await;
    run(format!("DROP DATABASE {name} WITH (FORCE)"))
        .execute(&mut admin)
        .await
        .unwrap();
    if let Err(failed) = ended {
        std::panic::resume_unwind(failed.into_panic());
    }
}

/// So many milliseconds after the start.
pub fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(START + millis).unwrap()
}

pub fn text<const MAX: usize>(text: &str) -> Text<MAX> {
    Text::new(text).unwrap()
}

pub fn key(sku: &str) -> StockKey {
    StockKey {
        location: text("default"),
        sku: text(sku),
    }
}

pub fn line(sku: &str, quantity: i64) -> Line {
    Line {
        sku: text(sku),
        location: text("default"),
        quantity,
    }
}

impl Database {
    /// Decides commands as one batch and stores what was decided.
    pub async fn run(&self, commands: &[Command]) -> Vec<Outcome> {
        let mut transaction = self.store.begin().await.unwrap();
        let (outcomes, changes, now) = decide_all(transaction.as_mut(), commands).await.unwrap();
        transaction.write_transitions(&changes, now).await.unwrap();
        transaction.write_rest(&changes, &[], now).await.unwrap();
        transaction.commit().await.unwrap();
        outcomes
    }

    pub async fn set_stock(&self, sku: &str, on_hand: i64) {
        let key = key(sku);
        let done = self.run(&[Command::SetStock { key, on_hand }]).await;
        assert!(matches!(done[..], [Outcome::Stock(_)]), "{done:?}");
    }

    /// Makes one hold.
    pub async fn hold(&self, lines: &[Line], seconds: i64) -> Reservation {
        match self.run(&[reserve(lines, seconds)]).await.remove(0) {
            Outcome::Reservation { reservation, .. } => *reservation,
            other => panic!("{other:?}"),
        }
    }

    pub async fn held(&self, sku: &str) -> (i64, i64, i64) {
        let wanted = BTreeMap::from([(key(sku), i64::MAX)]);
        let stock = self
            .store
            .stock(&wanted)
            .await
            .unwrap()
            .remove(&key(sku))
            .unwrap();
        (stock.on_hand, stock.held, stock.due)
    }

    pub async fn assert_sound(&self) {
        assert_eq!(self.store.audit().await.unwrap(), []);
    }

    /// Runs statements in a session of its own.
    pub async fn sql(&self, sql: &'static str) {
        sqlx::raw_sql(sql).execute(&self.others).await.unwrap();
    }
}

pub fn reserve(lines: &[Line], seconds: i64) -> Command {
    static COUNT: AtomicU64 = AtomicU64::new(1);
    let mut entropy = [0; 10];
    entropy[2..].copy_from_slice(&COUNT.fetch_add(1, Ordering::Relaxed).to_be_bytes());
    Command::Reserve(Reserve {
        entropy,
        lines: lines.to_vec(),
        until: Deadline::In { seconds },
        merchant: holdfast::domain::default_merchant(),
        customer_id: Some(text("buyer-1")),
        reference: None,
        metadata: [(text("gift"), text("yes"))].into(),
    })
}

pub fn expire(held: &Reservation) -> Command {
    Command::Expire {
        job: held.job(),
        via: Via::Timer,
        early: Early::Report,
    }
}

pub fn check_out(id: ReservationId, payment: &str, on_expired: OnExpired) -> Command {
    Command::CheckOut {
        id,
        payment_reference: Some(text(payment)),
        on_expired,
    }
}

/// Locks what the commands touch and decides them in order.
pub async fn decide_all(
    transaction: &mut dyn Transaction,
    commands: &[Command],
) -> Result<(Vec<Outcome>, Changes, Timestamp), StoreError> {
    let mut ids = BTreeSet::new();
    let mut keys = BTreeSet::new();
    let mut jobs = BTreeSet::new();
    let mut made = BTreeSet::new();
    for command in commands {
        match command {
            Command::Reserve(reserve) => keys.extend(reserve.units().into_keys()),
            Command::Expire { job, .. } => {
                ids.insert(job.reservation);
                jobs.insert(Job::id(job));
            }
            Command::Extend { id, .. }
            | Command::CheckOut { id, .. }
            | Command::Cancel { id, .. } => {
                ids.insert(*id);
            }
            Command::SetStock { key, .. } | Command::AdjustStock { key, .. } => {
                made.insert(key.clone());
            }
        }
    }
    let locked = transaction.lock_reservations(&ids, Wait::Briefly).await?;
    for reservation in &locked.rows {
        keys.extend(reservation.units().into_keys());
    }
    transaction.make_stock(&made).await?;
    keys.extend(made);
    let stock = transaction.lock_stock(&keys, Wait::Briefly).await?;
    let now = transaction.now().await?;
    let mut snapshot = Snapshot {
        reservations: locked.rows.into_iter().map(|row| (row.id, row)).collect(),
        stock: stock
            .rows
            .into_iter()
            .map(|row| (row.key.clone(), row))
            .collect(),
        ledger: transaction.jobs_done(&jobs).await?,
        refused_payments: transaction.refused_payments(&ids).await?,
        pace: None,
    };
    for (key, due) in transaction.due_units(&keys, now).await? {
        snapshot.stock.get_mut(&key).unwrap().due = due;
    }
    let rules = Rules {
        max_hold_seconds: 86_400,
        queue: None,
    };
    let mut outcomes = Vec::new();
    let mut all = Changes::default();
    for command in commands {
        match decide(rules, &snapshot, command, now) {
            Decision::Done { outcome, changes } => {
                snapshot.fold(&changes, now);
                all.add(changes);
                outcomes.push(outcome);
            }
            Decision::SetAside(lacking) => panic!("set aside: {lacking:?}"),
        }
    }
    Ok((outcomes, all, now))
}
