//! How long to wait before the next try.

use std::time::{Duration, UNIX_EPOCH};

use crate::domain::Timestamp;

/// The longest that a queue is believed when it asks to wait; a date in the wrong year must not
/// stop publishing for a year.
pub const LONGEST_WAIT: Duration = Duration::from_secs(900);

/// What a Retry-After asks for, in seconds or as an HTTP date, up to [`LONGEST_WAIT`]. A date that
/// has passed asks for nothing. None if it is neither, or a date and nobody knows what `now` is.
pub fn asked_wait(retry_after: &str, now: Option<Timestamp>) -> Option<Duration> {
    let retry_after = retry_after.trim();
    let is_number =
        !retry_after.is_empty() && retry_after.bytes().all(|byte| byte.is_ascii_digit());
    let wait = if is_number {
        // What does not fit is longer than the longest.
        retry_after
            .parse()
            .map_or(LONGEST_WAIT, Duration::from_secs)
    } else {
        let then = httpdate::parse_http_date(retry_after).ok()?;
        let now_ms = u64::try_from(now?.as_millis()).unwrap_or_default();
        then.duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .saturating_sub(Duration::from_millis(now_ms))
    };
    Some(wait.min(LONGEST_WAIT))
}

/// Exponential backoff with full jitter: the nth wait lies anywhere between nothing and twice the
/// ceiling of the one before, so that many who failed together do not come back together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The longest first wait, in milliseconds.
    pub first_ms: u64,
    /// The longest wait of all, in milliseconds.
    pub most_ms: u64,
}

impl Backoff {
    /// How long to wait after this many failures, of which there is at least one. `random` is any
    /// number, the same for the same wait.
    pub fn wait(self, failures: u32, random: u64) -> Duration {
        let doublings = failures.saturating_sub(1).min(63);
        let ceiling = self
            .first_ms
            .saturating_mul(1 << doublings)
            .min(self.most_ms);
        let wait_ms = ceiling
            .checked_add(1)
            .map_or(random, |choices| random % choices);
        Duration::from_millis(wait_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: i64 = 1_796_126_400_000;

    fn asked(retry_after: &str) -> Option<u64> {
        let now = Timestamp::from_millis(NOON + 500);
        let wait = asked_wait(retry_after, now)?;
        Some(u64::try_from(wait.as_millis()).unwrap())
    }

    #[test]
    fn seconds_are_read_and_capped() {
        assert_eq!(asked("0"), Some(0));
        assert_eq!(asked(" 12 "), Some(12_000));
        assert_eq!(asked("900"), Some(900_000));
        assert_eq!(asked("901"), Some(900_000));
        assert_eq!(asked("99999999999999999999999"), Some(900_000));
    }

    #[test]
    fn dates_are_read_and_capped() {
        assert_eq!(asked("Tue, 01 Dec 2026 12:00:02 GMT"), Some(1_500));
        assert_eq!(asked("Tuesday, 01-Dec-26 12:00:02 GMT"), Some(1_500));
        assert_eq!(asked("Tue, 01 Dec 2026 12:00:00 GMT"), Some(0));
        assert_eq!(asked("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
        assert_eq!(asked("Fri, 01 Dec 2028 12:00:00 GMT"), Some(900_000));
    }

    #[test]
    fn nonsense_asks_for_nothing() {
        assert_eq!(asked_wait("Tue, 01 Dec 2026 12:00:02 GMT", None), None);
        for nonsense in [
            "",
            "-1",
            "+1",
            "1.5",
            "soon",
            "6m5s",
            "2026-12-01T12:00:02Z",
        ] {
            assert_eq!(asked(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn waits_double_up_to_the_most_and_lie_anywhere_below() {
        let backoff = Backoff {
            first_ms: 100,
            most_ms: 1_000,
        };
        let wait = |failures, random| backoff.wait(failures, random).as_millis();
        for (failures, ceiling) in [
            (0, 100),
            (1, 100),
            (2, 200),
            (4, 800),
            (5, 1_000),
            (u32::MAX, 1_000),
        ] {
            assert_eq!(wait(failures, 0), 0);
            assert_eq!(wait(failures, ceiling), u128::from(ceiling));
            assert_eq!(wait(failures, ceiling + 1), 0);
        }
        let boundless = Backoff {
            first_ms: u64::MAX,
            most_ms: u64::MAX,
        };
        assert_eq!(boundless.wait(9, u64::MAX), Duration::from_millis(u64::MAX));
    }
}
