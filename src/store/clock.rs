//! The clock of this process, for the stores that have no clock of their own.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use super::Clock;
use crate::domain::Timestamp;

/// The latest instant that anybody in this process was told.
static FLOOR: AtomicI64 = AtomicI64::new(0);

impl Clock {
    /// What this clock shows, where [`Clock::Database`] is the clock of the process.
    pub fn in_process(&self) -> Timestamp {
        match self {
            Self::Database => process_now(),
            Self::Manual(clock) => clock.now(),
        }
    }
}

/// The wall clock, except that it stands still rather than going back: a clock that was set back
/// must not give a dead hold its life again.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place that reads the wall clock; everything else is handed an instant"
)]
fn process_now() -> Timestamp {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    let millis = since_epoch.map_or(0, |elapsed| {
        i64::try_from(elapsed.as_millis()).unwrap_or(i64::MAX)
    });
    let floor = FLOOR.fetch_max(millis, Ordering::SeqCst);
    Timestamp::from_millis(millis.max(floor)).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_of_the_process_never_goes_back() {
        let mut last = Timestamp::EPOCH;
        for _ in 0..1_000 {
            let now = process_now();
            assert!(now >= last);
            last = now;
        }
        assert!(last > Timestamp::EPOCH);
    }
}
