//! How many commands go into one batch.

use std::time::Duration;

/// How long one transaction should take.
const BATCH_TARGET: Duration = Duration::from_millis(20);
/// The smallest cap: a slow database must not starve a lane.
const BATCH_MIN: usize = 16;
/// The largest cap: a batch must fit into one statement and into memory.
const BATCH_MAX: usize = 1_024;

/// The cap after a batch of `size` that took `took` under `cap`.
pub(super) fn next_cap(cap: usize, size: usize, took: Duration) -> usize {
    let next = if took > BATCH_TARGET + BATCH_TARGET / 4 {
        // Shrink to what the target would have held, by half at most: one slow flush of the disk
        // says little about the next.
        let fits = size as u128 * BATCH_TARGET.as_micros() / took.as_micros().max(1);
        usize::try_from(fits).unwrap_or(cap).clamp(cap / 2, cap)
    } else if size >= cap && took < BATCH_TARGET / 2 {
        cap * 2
    } else if size >= cap && took < BATCH_TARGET {
        cap + cap / 8
    } else {
        cap
    };
    next.clamp(BATCH_MIN, BATCH_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cap_follows_the_time_a_full_batch_takes() {
        let ms = Duration::from_millis;
        assert_eq!(next_cap(64, 64, ms(5)), 128, "fast and full: twice as many");
        assert_eq!(next_cap(64, 64, ms(15)), 72, "near the target: a few more");
        assert_eq!(next_cap(64, 3, ms(5)), 64, "a small batch says nothing");
        assert_eq!(next_cap(64, 64, ms(22)), 64, "at the target: as it is");
        assert_eq!(
            next_cap(100, 100, ms(40)),
            50,
            "slow: what the target holds"
        );
        assert_eq!(next_cap(100, 100, ms(400)), 50, "very slow: half at most");
        assert_eq!(next_cap(16, 16, ms(400)), BATCH_MIN);
        assert_eq!(next_cap(1_024, 1_024, ms(1)), BATCH_MAX);
    }
}
