//! What an operator does about cases in quarantine.

use clap::{Args, Subcommand};

use super::DatabaseSettings;

/// What is done about cases in quarantine.
#[derive(Clone, Debug, Subcommand)]
pub enum QuarantineTask {
    /// List cases, the oldest first, one in a line.
    List(ListCases),
    /// Show a case, with what was received and what was done about it.
    Show(ShowCase),
    /// Try a case again, or all that are open.
    Replay(ReplayCases),
    /// Settle a case without doing anything about it.
    Dismiss(DismissCase),
}

/// Which cases to list.
#[derive(Clone, Debug, Args)]
pub struct ListCases {
    /// Only those that were found there: `relay`, `hold`, or the name of a queue.
    #[arg(long, value_name = "SOURCE")]
    pub source: Option<String>,
    /// Only those with this key.
    #[arg(long, value_name = "KEY")]
    pub key: Option<String>,
    /// Only those in this state.
    #[arg(long, value_name = "STATE", value_parser = ["open", "resolved"])]
    pub state: Option<String>,
    /// Where the cases are.
    #[command(flatten)]
    pub database: DatabaseSettings,
}

/// Which case to show.
#[derive(Clone, Debug, Args)]
pub struct ShowCase {
    /// The number of the case.
    #[arg(value_name = "ID")]
    pub id: i64,
    /// Where the cases are.
    #[command(flatten)]
    pub database: DatabaseSettings,
}

/// Which cases to replay.
#[derive(Clone, Debug, Args)]
pub struct ReplayCases {
    /// The number of the case.
    #[arg(
        value_name = "ID",
        required_unless_present = "all",
        conflicts_with = "all"
    )]
    pub id: Option<i64>,
    /// Open cases in the order of their numbers. Without --apply nothing is done, and what would
    /// come of them is said.
    #[arg(long)]
    pub all: bool,
    /// Of all, only those that were found there.
    #[arg(long, value_name = "SOURCE", requires = "all")]
    pub source: Option<String>,
    /// Of all, only those with larger numbers.
    #[arg(
        long,
        value_name = "ID",
        requires = "all",
        value_parser = clap::value_parser!(i64).range(0..)
    )]
    pub after: Option<i64>,
    /// Of all, at most so many; unset, 100.
    #[arg(
        long,
        value_name = "CASES",
        requires = "all",
        value_parser = clap::value_parser!(u32).range(1..=1_000)
    )]
    pub limit: Option<u32>,
    /// Of all, at most so many per second; unset, 50.
    #[arg(
        long,
        value_name = "CASES",
        requires = "all",
        value_parser = clap::value_parser!(u32).range(1..=1_000)
    )]
    pub per_second: Option<u32>,
    /// Replay all, rather than say what would come of it.
    #[arg(long, requires = "all")]
    pub apply: bool,
    /// Where the cases are.
    #[command(flatten)]
    pub database: DatabaseSettings,
}

/// Which case to dismiss.
#[derive(Clone, Debug, Args)]
pub struct DismissCase {
    /// The number of the case.
    #[arg(value_name = "ID")]
    pub id: i64,
    /// Why; it is kept with the case.
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
    /// Where the cases are.
    #[command(flatten)]
    pub database: DatabaseSettings,
}
