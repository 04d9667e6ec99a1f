//! What the emulator of a queue is told.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use reqwest::Url;

use crate::queue::webhook::Secret;

/// What the emulator of a queue needs to know.
#[derive(Clone, Debug, Args)]
pub struct EmulatorSettings {
    /// Where to listen; port 0 takes a free one.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:9090")]
    pub listen: SocketAddr,
    /// The bearer token that callers need.
    #[arg(long, value_name = "TOKEN")]
    pub token: String,
    /// By what pushes are signed: `whsec_...`; several with commas between sign each push.
    #[arg(long = "secret", value_name = "SECRETS", value_delimiter = ',')]
    pub secrets: Vec<Secret>,
    /// Where to push messages to; without it they are to be consumed.
    #[arg(long, value_name = "URL", requires = "secrets")]
    pub push_url: Option<Url>,
    /// A PEM file of the authorities that the subscriber's certificate may come from, instead of
    /// the system's.
    #[arg(long, value_name = "FILE")]
    pub push_ca: Option<PathBuf>,
    /// What to do wrong.
    #[command(flatten)]
    pub faults: FaultSettings,
}

/// What the emulator does wrong from the start. `PUT /faults` takes the same names as JSON, with
/// `_` for `-`.
#[derive(Clone, Debug, Args)]
#[command(
    next_help_heading = "Faults, which `PUT /faults` sets later under the same names with `_` for `-`"
)]
pub struct FaultSettings {
    /// Deliver every nth message twice; 1 is each, 0 is none.
    #[arg(long, value_name = "N", default_value = "0")]
    pub duplicate_every: u64,
    /// Accept every nth message and never deliver it.
    #[arg(long, value_name = "N", default_value = "0")]
    pub drop_every: u64,
    /// Accept every nth message, and answer 500 all the same.
    #[arg(long, value_name = "N", default_value = "0")]
    pub lose_answer_every: u64,
    /// Deliver later than was said.
    #[arg(long, value_name = "MS", default_value = "0")]
    pub delay_ms: u32,
    /// Deliver earlier than was said.
    #[arg(long, value_name = "MS", default_value = "0")]
    pub early_ms: u32,
    /// Deliver every second message this much later, behind those that follow it.
    #[arg(long, value_name = "MS", default_value = "0")]
    pub reorder_ms: u32,
    /// Cut longer delays down to this one, in silence.
    #[arg(long, value_name = "SECONDS", default_value = "0")]
    pub clamp_delay_seconds: u32,
    /// Refuse every nth call with 429.
    #[arg(long, value_name = "N", default_value = "0")]
    pub limit_every: u64,
    /// What the Retry-After of a 429 asks for; 0 sends none.
    #[arg(long, value_name = "SECONDS", default_value = "0")]
    pub retry_after_seconds: u32,
    /// Write Retry-After as a date rather than as seconds.
    #[arg(long)]
    pub retry_after_date: bool,
    /// Fail every nth call with 500, and do nothing.
    #[arg(long, value_name = "N", default_value = "0")]
    pub fail_every: u64,
    /// Answer each call this much later.
    #[arg(long, value_name = "MS", default_value = "0")]
    pub slow_ms: u32,
}
