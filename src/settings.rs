//! What the operator says: the command line and the `HOLDFAST_*` variables, read once.
//!
//! Whoever needs a setting is handed its value; nobody else reads the environment. What makes no
//! sense refuses to start, in one line that says what to change.

mod door;
mod emulator;
mod quarantine;
mod queue;
mod release;
mod retention;
mod run;

use std::ffi::OsString;
use std::fmt;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::{StringValueParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum};

pub use emulator::{EmulatorSettings, FaultSettings};
pub use quarantine::{DismissCase, ListCases, QuarantineTask, ReplayCases, ShowCase};
pub use queue::QueueSettings;
pub use release::{PacedBy, RateOverrides, ReleaseRate, ReleaseSettings};
pub use retention::RetentionSettings;
pub use run::{RunSettings, SweepSettings};

pub use door::{ChosenSecret, CreateKey, DoorSettings, KeysTask, RevokeKey};

/// Ten years; a longer hold is a mistake of units.
const LONGEST_HOLD_SECONDS: i64 = 315_576_000;

/// Where options that every command has stand in its help.
const LAST: usize = 1_000;

/// Holds stock for a buyer for a fixed time, sells it or gives it back: once, and on time.
#[derive(Clone, Debug, Parser)]
#[command(name = "holdfast", version, max_term_width = 100)]
pub struct Invocation {
    /// What to do.
    #[command(subcommand)]
    pub task: Task,
    /// What to say about it.
    #[command(flatten)]
    pub log: LogSettings,
}

/// What the program can do.
#[derive(Clone, Debug, Subcommand)]
pub enum Task {
    /// Serve the API, and release holds when they are due.
    Serve(Box<Settings>),
    /// Publish what is to be published to the queue now, and end.
    Relay(Box<RunSettings>),
    /// Release what is to be released now, and end.
    Sweep(Box<RunSettings>),
    /// Bring the database's schema up to date.
    Migrate(DatabaseSettings),
    /// Print the OpenAPI document of the API.
    Openapi,
    /// Recompute from the rows what they promise, and report every row that breaks it.
    Audit(AuditSettings),
    /// Make API keys, list them and take them away.
    #[command(subcommand)]
    Keys(KeysTask),
    /// Look at what nothing could be done with, try it again, or settle it. Results are lines of JSON.
    #[command(subcommand)]
    Quarantine(QuarantineTask),
    /// Look at the queue that carries expiry jobs.
    #[command(subcommand)]
    Queue(QueueTask),
    /// Prove rather than serve.
    #[command(subcommand)]
    Lab(Lab),
}

/// What can be asked about the queue.
#[derive(Clone, Debug, Subcommand)]
pub enum QueueTask {
    /// Ask the queue how it wants to be used, and say what does not fit. It publishes nothing.
    Check(QueueSettings),
}

/// What proves rather than serves.
#[derive(Clone, Debug, Subcommand)]
pub enum Lab {
    /// Run a recorded trace of shoppers through the engine, and count what became of their carts.
    Replay(ReplaySettings),
    /// Be a queue, in memory, that keeps to its protocol and breaks it when told to.
    Emulator(EmulatorSettings),
}

/// What a replay needs to know.
#[derive(Clone, Debug, Args)]
pub struct ReplaySettings {
    /// The trace: CSV with the columns `ts_ms,visitor,event,item,qty`, sorted by time.
    #[arg(long, value_name = "FILE")]
    pub trace: PathBuf,
    /// How long each cart is held.
    #[arg(long, value_name = "SECONDS", default_value = "900", value_parser = hold_seconds())]
    pub hold_seconds: i64,
    /// An empty database to replay into, instead of a throwaway file.
    #[arg(
        long,
        env = "HOLDFAST_DATABASE_URL",
        hide_env_values = true,
        value_name = "URL",
        value_parser = DatabaseUrlParser
    )]
    pub database_url: Option<DatabaseUrl>,
}

/// What goes into the log, and how.
#[derive(Clone, Debug, Args)]
pub struct LogSettings {
    /// What goes into the log: a level, or levels by target such as `info,sqlx=warn`.
    #[arg(
        long = "log",
        env = "HOLDFAST_LOG",
        global = true,
        display_order = LAST,
        value_name = "FILTER",
        default_value = "info",
        value_parser = log_filter
    )]
    pub filter: String,
    /// How a line of the log is written.
    #[arg(
        long = "log-format",
        env = "HOLDFAST_LOG_FORMAT",
        global = true,
        display_order = LAST,
        value_name = "FORMAT",
        default_value = "text"
    )]
    pub format: LogFormat,
}

/// How a line of the log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// For machines, one object per line.
    Json,
}

/// Where the rows live.
#[derive(Clone, Debug, Args)]
pub struct DatabaseSettings {
    /// Where the rows live: a file for one machine, or PostgreSQL.
    // The value may hold a password, and `--help` shows the values that it finds.
    #[arg(
        long = "database-url",
        env = "HOLDFAST_DATABASE_URL",
        hide_env_values = true,
        value_name = "URL",
        default_value = "sqlite://holdfast.db",
        value_parser = DatabaseUrlParser
    )]
    pub url: DatabaseUrl,
}

/// What an audit needs to know.
#[derive(Clone, Debug, Args)]
pub struct AuditSettings {
    /// Say how counters would be put right from the held reservations, as JSON, a line for each.
    #[arg(long)]
    pub repair: bool,
    /// Put them right; safe while the service runs.
    #[arg(long, requires = "repair")]
    pub apply: bool,
    /// Where the rows live.
    #[command(flatten)]
    pub database: DatabaseSettings,
}

/// What `serve` needs to know.
#[derive(Clone, Debug, Args)]
pub struct Settings {
    /// Where to listen; port 0 takes a free one.
    #[arg(
        long,
        env = "HOLDFAST_LISTEN",
        value_name = "IP:PORT",
        default_value = "127.0.0.1:8080"
    )]
    pub listen: SocketAddr,
    /// Where the rows live.
    #[command(flatten)]
    pub database: DatabaseSettings,
    /// Which parts of the service this process is: `api` answers callers, `worker` releases what
    /// is due and publishes; separated by a comma.
    #[arg(
        long,
        env = "HOLDFAST_ROLES",
        value_name = "ROLES",
        default_value = "api,worker"
    )]
    pub roles: Roles,
    /// Which queue carries the expiry jobs.
    #[command(flatten)]
    pub queue: QueueSettings,
    /// How long a hold lasts that does not say.
    #[arg(
        long,
        env = "HOLDFAST_HOLD_SECONDS",
        value_name = "SECONDS",
        default_value = "900",
        value_parser = hold_seconds()
    )]
    pub hold_seconds: i64,
    /// The longest time from a reservation's creation to its deadline, extensions included.
    #[arg(
        long,
        env = "HOLDFAST_MAX_HOLD_SECONDS",
        value_name = "SECONDS",
        default_value = "2592000",
        value_parser = hold_seconds()
    )]
    pub max_hold_seconds: i64,
    /// How often what was missed is looked for.
    #[command(flatten)]
    pub sweep: SweepSettings,
    /// How due holds are released.
    #[command(flatten)]
    pub release: ReleaseSettings,
    /// How long a request may take before it is answered with 503.
    #[arg(
        long = "request-timeout-seconds",
        env = "HOLDFAST_REQUEST_TIMEOUT_SECONDS",
        value_name = "SECONDS",
        default_value = "10",
        value_parser = seconds(1..=300)
    )]
    pub request_timeout: Duration,
    /// How long requests that are under way may take to finish after SIGTERM.
    #[arg(
        long = "shutdown-seconds",
        env = "HOLDFAST_SHUTDOWN_SECONDS",
        value_name = "SECONDS",
        default_value = "25",
        value_parser = seconds(1..=600)
    )]
    pub shutdown: Duration,
    /// Web pages that may call the API: exact origins, separated by commas, or `*`.
    #[arg(
        long,
        env = "HOLDFAST_CORS_ORIGINS",
        value_name = "ORIGINS",
        default_value = "",
        hide_default_value = true
    )]
    pub cors_origins: CorsOrigins,
    /// Who is let in, and how.
    #[command(flatten)]
    pub door: DoorSettings,
    /// For how long what is over is kept.
    #[command(flatten)]
    pub retention: RetentionSettings,
}

impl Invocation {
    /// Reads the command line and the environment of the process. If they make no sense, or ask
    /// for help, it says so and ends the process.
    pub fn read() -> Self {
        Self::from_arguments(std::env::args_os()).unwrap_or_else(|error| error.exit())
    }

    /// Reads `arguments`, the first of which is the program's name, and the environment.
    fn from_arguments(
        arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>,
    ) -> Result<Self, clap::Error> {
        let matches = Self::command().try_get_matches_from(arguments)?;
        // `try_parse_from` would add lines on usage to what the settings say in one.
        let invocation = Self::from_arg_matches(&matches)?;
        match &invocation.task {
            Task::Serve(settings) => settings.check().map_err(refusal)?,
            Task::Relay(settings) | Task::Sweep(settings) => {
                settings.release.check().map_err(refusal)?;
            }
            _ => {}
        }
        Ok(invocation)
    }
}

impl Settings {
    /// Refuses settings that make no sense together, in one line that says what to change.
    pub fn check(&self) -> Result<(), String> {
        if self.hold_seconds > self.max_hold_seconds {
            return Err(format!(
                "a hold would last {} s and may last {} s at most; lower HOLDFAST_HOLD_SECONDS or \
                 raise HOLDFAST_MAX_HOLD_SECONDS",
                self.hold_seconds, self.max_hold_seconds
            ));
        }
        self.retention.check()?;
        self.release.check()?;
        self.door.check()
    }
}

/// The address of a database. It may hold a password, so it is shown without one; only the store
/// it belongs to gets to see it whole.
#[derive(Clone, PartialEq, Eq)]
pub enum DatabaseUrl {
    /// A file, as `sqlite://holdfast.db`.
    Sqlite(String),
    /// A server, as `postgres://holdfast@localhost/holdfast`.
    Postgres(String),
}

impl FromStr for DatabaseUrl {
    type Err = String;

    fn from_str(url: &str) -> Result<Self, String> {
        match url.split_once(':').map(|(scheme, _)| scheme) {
            Some("sqlite") => Ok(Self::Sqlite(url.to_owned())),
            Some("postgres" | "postgresql") => Ok(Self::Postgres(url.to_owned())),
            _ => Err(format!(
                "no database is known by the address `{}`; \
                 set HOLDFAST_DATABASE_URL to sqlite://FILE or postgres://USER@HOST/DATABASE",
                without_secrets(url)
            )),
        }
    }
}

impl fmt::Display for DatabaseUrl {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Sqlite(url) | Self::Postgres(url)) = self;
        out.write_str(&without_secrets(url))
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

/// The URL without its password, and without its query, where a password may stand too. It hides
/// too much rather than too little: what is not a proper URL may be one with a password in it.
fn without_secrets(url: &str) -> String {
    let (start, rest) = url.split_at(url.find("://").map_or(0, |at| at + 3));
    // The last `@`, because a password that was not encoded may hold one.
    let (user, place) = rest
        .rsplit_once('@')
        .map_or((None, rest), |(account, place)| {
            (account.split([':', '/', '?']).next(), place)
        });
    let account = user.map(|user| format!("{user}@")).unwrap_or_default();
    let place = place.split(['?', '#']).next().unwrap_or_default();
    format!("{start}{account}{place}")
}

/// Reads a [`DatabaseUrl`]. Clap's own parsers repeat a value that they refuse, and this one must
/// not be repeated whole.
#[derive(Clone)]
struct DatabaseUrlParser;

impl TypedValueParser for DatabaseUrlParser {
    type Value = DatabaseUrl;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<DatabaseUrl, clap::Error> {
        StringValueParser::new()
            .parse_ref(command, argument, value)?
            .parse()
            .map_err(refusal)
    }
}

/// Which parts of the service a process is; at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Roles {
    /// It answers callers.
    pub api: bool,
    /// It releases what is due, and publishes.
    pub worker: bool,
}

impl FromStr for Roles {
    type Err = &'static str;

    fn from_str(list: &str) -> Result<Self, &'static str> {
        let mut roles = Self {
            api: false,
            worker: false,
        };
        for role in list.split(',') {
            match role.trim() {
                "api" => roles.api = true,
                "worker" => roles.worker = true,
                _ => return Err("write `api`, `worker` or `api,worker`"),
            }
        }
        Ok(roles)
    }
}

/// The origins whose web pages may call the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CorsOrigins {
    /// All of them.
    Any,
    /// These, each written as a browser sends it; without any, a browser lets no page but our own.
    Exactly(Vec<String>),
}

impl FromStr for CorsOrigins {
    type Err = &'static str;

    fn from_str(list: &str) -> Result<Self, &'static str> {
        if list.trim() == "*" {
            return Ok(Self::Any);
        }
        list.split(',')
            .map(str::trim)
            .filter(|origin| !origin.is_empty())
            .map(|origin| {
                is_origin(origin).then(|| origin.to_owned()).ok_or(
                    "write `*` alone, or origins such as https://shop.example, \
                     in lower case and with nothing after the host and the port",
                )
            })
            .collect::<Result<_, _>>()
            .map(Self::Exactly)
    }
}

/// Could a browser send this as an origin? One that it never sends would never match.
fn is_origin(text: &str) -> bool {
    let host = text
        .strip_prefix("https://")
        .or_else(|| text.strip_prefix("http://"))
        .unwrap_or_default();
    let is_sent = |letter: char| {
        letter.is_ascii_lowercase() || letter.is_ascii_digit() || "-._:[]".contains(letter)
    };
    !host.is_empty() && host.chars().all(is_sent)
}

fn hold_seconds() -> impl TypedValueParser<Value = i64> {
    clap::value_parser!(i64).range(1..=LONGEST_HOLD_SECONDS)
}

fn seconds(range: RangeInclusive<u64>) -> impl TypedValueParser<Value = Duration> {
    clap::value_parser!(u64)
        .range(range)
        .map(Duration::from_secs)
}

/// A whole number in this range.
fn whole(range: RangeInclusive<u64>) -> impl TypedValueParser<Value = u64> {
    clap::value_parser!(u64).range(range)
}

fn log_filter(text: &str) -> Result<String, tracing_subscriber::filter::ParseError> {
    text.parse::<tracing_subscriber::EnvFilter>()?;
    Ok(text.to_owned())
}

fn refusal(reason: String) -> clap::Error {
    clap::Error::raw(ErrorKind::ValueValidation, reason + "\n")
}

#[cfg(test)]
mod tests;
