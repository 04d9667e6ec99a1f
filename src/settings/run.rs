//! One bounded run of a worker, started from outside.

use std::time::Duration;

use clap::Args;

use super::{DatabaseSettings, QueueSettings, ReleaseSettings, seconds};

/// What one run needs to know. Where the rows live, the queue and the sweep are those of `serve`.
#[derive(Clone, Debug, Args)]
pub struct RunSettings {
    /// Do it once, within bounds. There is no other way; `serve` does it all the time.
    #[arg(long, required = true)]
    pub once: bool,
    /// How many messages, or due holds, are handled at most; unset, 10,000.
    #[arg(long, value_name = "ROWS")]
    pub max_rows: Option<u32>,
    /// After how long nothing further is begun, at most 600; unset, 60.
    #[arg(long, value_name = "SECONDS")]
    pub max_seconds: Option<u32>,
    /// Where the rows live.
    #[command(flatten)]
    pub database: DatabaseSettings,
    /// Which queue carries the expiry jobs.
    #[command(flatten)]
    pub queue: QueueSettings,
    /// How long a queue is waited for.
    #[command(flatten)]
    pub sweep: SweepSettings,
    /// How due holds are released.
    #[command(flatten)]
    pub release: ReleaseSettings,
}

/// How often what was missed is looked for.
#[derive(Clone, Copy, Debug, Args)]
pub struct SweepSettings {
    /// How often all due holds are looked for from the earliest on, whatever was seen before; and
    /// with a queue, how long it has after a deadline before they are released without it.
    #[arg(
        long = "sweep-seconds",
        env = "HOLDFAST_SWEEP_SECONDS",
        value_name = "SECONDS",
        default_value = "300",
        value_parser = seconds(1..=86_400)
    )]
    pub period: Duration,
}
