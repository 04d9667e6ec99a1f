//! One bounded run of a worker, as somebody outside asks for it: how much it may do, and what it
//! did.

use std::time::Duration;

use serde::Serialize;

/// How much one run may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// At most so many rows: messages that are handled and as many holds that are looked at for
    /// one, or due holds.
    pub max_rows: usize,
    /// No further step is begun after so long.
    pub max_time: Duration,
}

/// A bound that makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be from 1 to {most}")]
pub struct BoundsFault {
    /// Which one: `max_rows` or `max_seconds`.
    pub bound: &'static str,
    /// The largest value that it may have.
    pub most: u32,
}

impl Bounds {
    /// The most rows that a run may be allowed.
    pub const MOST_ROWS: u32 = 1_000_000;
    /// The longest time that a run may be allowed, in seconds.
    pub const MOST_SECONDS: u32 = 600;
    /// The rows of a run of which nothing is said.
    pub const DEFAULT_ROWS: u32 = 10_000;
    /// The time of a run of which nothing is said, in seconds.
    pub const DEFAULT_SECONDS: u32 = 60;

    /// So many rows, and so many seconds.
    pub fn new(max_rows: u32, max_seconds: u32) -> Result<Self, BoundsFault> {
        for (bound, value, most) in [
            ("max_rows", max_rows, Self::MOST_ROWS),
            ("max_seconds", max_seconds, Self::MOST_SECONDS),
        ] {
            if !(1..=most).contains(&value) {
                return Err(BoundsFault { bound, most });
            }
        }
        Ok(Self {
            max_rows: usize::try_from(max_rows).unwrap_or(usize::MAX),
            max_time: Duration::from_secs(max_seconds.into()),
        })
    }
}

/// What a run of the relay did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RelayRun {
    /// Messages that the queue took.
    pub published: usize,
    /// Messages that it did not take now, and that are tried again later.
    pub postponed: usize,
    /// Messages that it will never take, and that are in quarantine.
    pub parked: usize,
    /// Messages that were taken out, because their hold has ended or moved.
    pub skipped: usize,
    /// Whether there is still something that could be published now.
    pub more: bool,
    /// How long it took.
    pub duration_ms: i64,
}

impl RelayRun {
    /// Messages that it had in its hands.
    pub fn handled(&self) -> usize {
        self.published + self.postponed + self.parked + self.skipped
    }
}

/// What a run of the expirer did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SweepRun {
    /// Holds that expired.
    pub released: usize,
    /// Due holds that were found and could not be released, because others have locked their rows
    /// or a row refuses. They are tried again later.
    pub blocked: usize,
    /// Whether there is still something that could be released now, whoever has it.
    pub more: bool,
    /// How long it took.
    pub duration_ms: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_have_bounds() {
        let most = Bounds::new(Bounds::MOST_ROWS, Bounds::MOST_SECONDS).unwrap();
        assert_eq!(most.max_time, Duration::from_secs(600));
        assert_eq!(Bounds::new(1, 1).unwrap().max_rows, 1);
        for (rows, seconds, bound) in [
            (0, 1, "max_rows"),
            (Bounds::MOST_ROWS + 1, 1, "max_rows"),
            (1, 0, "max_seconds"),
            (1, Bounds::MOST_SECONDS + 1, "max_seconds"),
        ] {
            assert_eq!(Bounds::new(rows, seconds).unwrap_err().bound, bound);
        }
    }
}
