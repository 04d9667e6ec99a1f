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
        let again = now < self.until + DISTRUST_MAX;
        self.distrust = if again {
            (self.distrust * 2).clamp(DISTRUST_MIN, DISTRUST_MAX)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_waited_for_again_sooner_or_later() {
        let ms = Duration::from_millis;
        let mut suspects = Suspects::default();
        let mut now = ms(0);
        for rest in [50, 100, 200, 400, 500, 500] {
            suspects.distrust(now);
            let id = ReservationId::from_uuid(uuid::Uuid::nil());
            suspects.reservations.insert(id);
            suspects.review(now + ms(rest - 1));
            assert_eq!(suspects.reservations.len(), 1, "after {rest} ms");
            now += ms(rest);
            suspects.review(now);
            assert!(suspects.reservations.is_empty(), "after {rest} ms");
            now += ms(100);
        }
        // After a while without any, it is as it was at first.
        now += ms(1_000);
        suspects.distrust(now);
        assert_eq!(suspects.until, now + ms(50));
    }
}
