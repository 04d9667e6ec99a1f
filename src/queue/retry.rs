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
}
