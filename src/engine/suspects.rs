//! Which rows no batch waits for.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::domain::{ReservationId, StockKey};

/// For how long no batch waits for a row that was once waited for in vain, first and at most.
const DISTRUST_MIN: Duration = Duration::from_millis(50);
const DISTRUST_MAX: Duration = Duration::from_millis(500);

/// Rows that another transaction was last seen to have locked. While they are, no batch waits
/// for them, or all that is in the batch would wait as well.
///
/// That cannot go on for ever: a row that is merely busy is had by those who queue for it and
/// hardly ever by those who only look. So after a while it is waited for again, and if that was in
/// vain, not for twice as long.
#[derive(Default)]
pub(super) struct Suspects {
    pub reservations: BTreeSet<ReservationId>,
    pub stock: BTreeSet<StockKey>,
    distrust: Duration,
    until: Duration,
}

impl Suspects {
    /// At `now`, somebody waited in vain.
    pub fn distrust(&mut self, now: Duration) {
        let again = now < self.until + self.distrust;
        self.distrust = if again {
            (self.distrust * 2).min(DISTRUST_MAX)
        } else {
            DISTRUST_MIN
        };
        self.until = now + self.distrust;
    }

    /// Clears all suspects whose time is over at `now`.
    pub fn review(&mut self, now: Duration) {
        if now >= self.until {
            self.reservations.clear();
            self.stock.clear();
        }
    }
}
