//! The program: reads what the operator wants, and calls the part that does it.

use std::error::Error;
use std::fs::File;
use std::io::{BufReader, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use holdfast::auditing;
use holdfast::database::{self, Database};
use holdfast::domain::{Location, RetryBudget, Rules, Timestamp};
use holdfast::engine::{self, Engine, Runtime, TokioRuntime};
use holdfast::http;
use holdfast::keys;
use holdfast::lab::emulator::{self, Emulator, Faults};
use holdfast::lab::replay::{Replay, Row, read_trace};
use holdfast::metrics::Metrics;
use holdfast::quarantine;
use holdfast::serve;
use holdfast::settings::{
    DatabaseUrl, EmulatorSettings, FaultSettings, Invocation, Lab, LogFormat, LogSettings,
    QueueSettings, QueueTask, ReplaySettings, Task,
};
use holdfast::store::{Clock, ManualClock};
use holdfast::worker::Expirer;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Longer than anything takes on virtual time.
const HOUR: Duration = Duration::from_secs(3_600);

/// How a task ended that did not fail.
enum Ending {
    /// All is well.
    Well,
    /// It did its work, and what it found is not as it should be.
    Found,
}

fn main() -> ExitCode {
    let invocation = Invocation::read();
    log(&invocation.log);
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error),
    };
    match runtime.block_on(perform(invocation.task)) {
        Ok(Ending::Well) => ExitCode::SUCCESS,
        Ok(Ending::Found) => ExitCode::from(1),
        Err(error) => fail(error.as_ref()),
    }
}

async fn perform(task: Task) -> Result<Ending, Box<dyn Error>> {
    match task {
        Task::Migrate(settings) => {
            database::migrate(&settings.url).await?;
            Ok(Ending::Well)
        }
        Task::Audit(settings) => Ok(if auditing::perform(&settings).await? {
            Ending::Well
        } else {
            Ending::Found
        }),
        Task::Queue(QueueTask::Check(settings)) => check_queue(&settings).await,
        Task::Lab(Lab::Replay(settings)) => replay(settings).await,
        Task::Lab(Lab::Emulator(settings)) => emulate(settings).await,
        Task::Serve(settings) => {
            serve::serve(*settings).await?;
            Ok(Ending::Well)
        }
        Task::Relay(settings) => {
            print_json(&serve::relay_once(*settings).await?)?;
            Ok(Ending::Well)
        }
        Task::Sweep(settings) => {
            print_json(&serve::sweep_once(*settings).await?)?;
            Ok(Ending::Well)
        }
        Task::Keys(task) => {
            keys::perform(task).await?;
            Ok(Ending::Well)
        }
        Task::Quarantine(task) => {
            quarantine::perform(task).await?;
            Ok(Ending::Well)
        }
        Task::Openapi => {
            print!("{}", http::openapi_json());
            Ok(Ending::Well)
        }
    }
}

/// Prints what the queue says of itself, and in one line what of it does not fit.
async fn check_queue(settings: &QueueSettings) -> Result<Ending, Box<dyn Error>> {
    let Some(queue) = settings.open()? else {
        println!(
            "timer: there is no queue to check; this process releases holds when they are due"
        );
        return Ok(Ending::Well);
    };
    let findings = queue.check().await.map_err(|fault| {
        format!("{fault}; start the queue, or change HOLDFAST_QUEUE_URL or HOLDFAST_QUEUE_CA")
    })?;
    for line in &findings.found {
        println!("{line}");
    }
    if let Some(url) = settings.push_url() {
        println!("pushes go to: {url}");
    }
    if findings.mismatches.is_empty() {
        return Ok(Ending::Well);
    }
    let mismatches = findings.mismatches.join("; ");
    eprintln!("holdfast: this queue does not fit: {mismatches}");
    Ok(Ending::Found)
}

/// Is a queue until SIGTERM or SIGINT.
async fn emulate(settings: EmulatorSettings) -> Result<Ending, Box<dyn Error>> {
    let settings = emulator::Settings {
        listen: settings.listen,
        token: settings.token,
        secrets: settings.secrets,
        push_url: settings.push_url,
        push_ca: settings.push_ca,
        faults: faults(&settings.faults),
    };
    let runtime = Arc::new(TokioRuntime::start());
    let emulator = Emulator::start(settings, Clock::Database, runtime).await?;
    let stop_signal = serve::stop_signal()?;
    tracing::info!("listening on http://{}", emulator.address());
    stop_signal.await;
    let stats = emulator.stats();
    emulator.shut_down().await;
    print_json(&stats)?;
    Ok(Ending::Well)
}

fn faults(said: &FaultSettings) -> Faults {
    Faults {
        duplicate_every: said.duplicate_every,
        drop_every: said.drop_every,
        lose_answer_every: said.lose_answer_every,
        delay_ms: said.delay_ms,
        early_ms: said.early_ms,
        reorder_ms: said.reorder_ms,
        clamp_delay_seconds: said.clamp_delay_seconds,
        limit_every: said.limit_every,
        retry_after_seconds: said.retry_after_seconds,
        retry_after_date: said.retry_after_date,
        fail_every: said.fail_every,
        slow_ms: said.slow_ms,
    }
}

/// Replays a trace, into a throwaway file if no database is named, and prints the totals.
async fn replay(settings: ReplaySettings) -> Result<Ending, Box<dyn Error>> {
    let file = File::open(&settings.trace)
        .map_err(|error| format!("{}: {error}", settings.trace.display()))?;
    let rows = read_trace(BufReader::new(file))?;
    let Some(url) = settings.database_url else {
        let directory = Throwaway::new()?;
        return replay_into(&directory.url(), &rows, settings.hold_seconds).await;
    };
    replay_into(&url, &rows, settings.hold_seconds).await
}

async fn replay_into(
    url: &DatabaseUrl,
    rows: &[Row],
    hold_seconds: i64,
) -> Result<Ending, Box<dyn Error>> {
    let clock = ManualClock::at(rows.first().map_or(Timestamp::EPOCH, |row| row.at));
    let Database {
        store, sales_lanes, ..
    } = database::open(url, Clock::Manual(Arc::clone(&clock))).await?;
    let runtime: Arc<dyn Runtime> = Arc::new(TokioRuntime::start());
    let engine = Engine::start(
        store,
        Arc::clone(&runtime),
        &Arc::new(Metrics::new()),
        engine::Settings {
            rules: Rules {
                max_hold_seconds: hold_seconds,
                queue: None,
            },
            pace: None,
            retry_budget: RetryBudget::default(),
            sales_lanes,
            patience: HOUR,
        },
    );
    let expirer = Expirer::timer(engine.clone(), Arc::clone(&runtime), HOUR);
    let location = Location::new("default")?;
    let replay = Replay::new(
        engine.clone(),
        runtime,
        clock,
        expirer,
        location,
        hold_seconds,
    );
    let total = rows.len();
    let progress = |done| eprintln!("{done} of {total} rows");
    let (totals, drift) = replay.run(rows, progress).await?;
    engine.shut_down().await;
    for row in &drift {
        eprintln!("{}", auditing::describe(row));
    }
    print_json(&totals)?;
    Ok(if totals.is_clean() {
        Ending::Well
    } else {
        Ending::Found
    })
}

/// Prints a result in one line.
fn print_json(result: &impl serde::Serialize) -> Result<(), serde_json::Error> {
    println!("{}", serde_json::to_string(result)?);
    Ok(())
}

/// A directory that is gone when the task is done.
struct Throwaway(PathBuf);

impl Throwaway {
    fn new() -> std::io::Result<Self> {
        let directory =
            std::env::temp_dir().join(format!("holdfast-replay-{}", std::process::id()));
        std::fs::create_dir_all(&directory)?;
        Ok(Self(directory))
    }

    fn url(&self) -> DatabaseUrl {
        DatabaseUrl::Sqlite(format!("sqlite://{}", self.0.join("replay.db").display()))
    }
}

impl Drop for Throwaway {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("holdfast: {} is left behind: {error}", self.0.display());
        }
    }
}

/// Sends the log to stderr, so that stdout has only what a task prints. When nobody reads it any
/// more, or the device is full, lines are lost and the service goes on: complaining about it would
/// need the same stderr, and would panic.
fn log(settings: &LogSettings) {
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(&settings.filter)
        .with_writer(std::io::stderr)
        .log_internal_errors(false)
        .with_ansi(std::io::stderr().is_terminal());
    match settings.format {
        LogFormat::Text => subscriber.init(),
        LogFormat::Json => subscriber.json().init(),
    }
}

/// Says in one line why the task failed.
fn fail(error: &dyn Error) -> ExitCode {
    eprintln!("holdfast: {error}");
    ExitCode::from(2)
}
