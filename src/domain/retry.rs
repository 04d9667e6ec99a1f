//! When what has failed is tried again, and when it is given up: the same for the publication of a
//! job and for the release of a hold.

use std::time::Duration;

use super::Timestamp;

/// What kind of failure it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setback {
    /// The other side asks to be left alone for so many milliseconds.
    Patience(i64),
    /// It failed, and may or may not work another time.
    Failed,
    /// The other side is not there, or somebody else is in the way: no fault of what was tried.
    Unavailable,
    /// It will never work, until somebody mends something.
    Hopeless,
}

/// What becomes of what has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// It is tried again then.
    At(Timestamp),
    /// It is given up, and kept for an operator to look at.
    GiveUp,
}

/// How long something is tried: until its attempts are used up, or its time, whichever comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryBudget {
    /// How often it is tried in all.
    pub attempts: i64,
    /// For how long, in milliseconds past the deadline. An outage does not use it up: it ends no
    /// sooner than so long after the first failure.
    pub past_deadline_ms: i64,
}

/// What was tried, and how it stands with its budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tried {
    /// How often, this time included.
    pub attempts: i64,
    /// The deadline of the hold.
    pub deadline: Timestamp,
    /// For how long it has been made to wait by earlier failures, in milliseconds.
    pub retry_ms: i64,
}

impl Default for RetryBudget {
    /// Ten times, for a quarter of an hour.
    fn default() -> Self {
        Self {
            attempts: 10,
            past_deadline_ms: 900_000,
        }
    }
}

impl RetryBudget {
    /// When to try again what has just failed at `now`, if at all. Before its deadline nothing is
    /// given up that has hope. `random` is any number.
    pub fn after(
        self,
        setback: Setback,
        tried: Tried,
        backoff: Backoff,
        now: Timestamp,
        random: u64,
    ) -> Retry {
        let failures = u32::try_from(tried.attempts).unwrap_or(u32::MAX);
        let backoff_ms =
            || i64::try_from(backoff.wait(failures, random).as_millis()).unwrap_or(i64::MAX);
        let wait_ms = match setback {
            Setback::Hopeless => return Retry::GiveUp,
            Setback::Patience(wait_ms) => wait_ms,
            Setback::Unavailable => backoff_ms(),
            Setback::Failed => {
                let past_ms = now.millis_since(tried.deadline);
                let left_ms = self.past_deadline_ms - past_ms.min(tried.retry_ms);
                if past_ms >= 0 && (tried.attempts >= self.attempts || left_ms <= 0) {
                    return Retry::GiveUp;
                }
                // The last try comes at the end of the budget, and none after it.
                backoff_ms().min(left_ms.max(0))
            }
        };
        Retry::At(now.saturating_add_millis(wait_ms))
    }
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

    const BACKOFF: Backoff = Backoff {
        first_ms: 100,
        most_ms: 1_000,
    };

    fn at(millis: i64) -> Timestamp {
        Timestamp::EPOCH.saturating_add_millis(millis)
    }

    #[test]
    fn waits_double_up_to_the_most_and_lie_anywhere_below() {
        let wait = |failures, random| BACKOFF.wait(failures, random).as_millis();
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

    #[test]
    fn only_failures_use_the_budget_up_and_only_after_the_deadline() {
        let budget = RetryBudget {
            attempts: 3,
            past_deadline_ms: 10_000,
        };
        let now = at(100_000);
        let after = |setback, attempts, past_ms: i64, retry_ms| {
            let tried = Tried {
                attempts,
                deadline: now.saturating_add_millis(-past_ms),
                retry_ms,
            };
            budget.after(setback, tried, BACKOFF, now, 50)
        };
        let at = |wait_ms| Retry::At(now.saturating_add_millis(wait_ms));
        for (setback, attempts, past_ms, retry_ms, expected) in [
            (Setback::Hopeless, 1, -1, 0, Retry::GiveUp),
            (Setback::Patience(7_000), 99, 99_000, 99_000, at(7_000)),
            (Setback::Unavailable, 99, 99_000, 99_000, at(50)),
            (Setback::Failed, 1, 0, 0, at(50)),
            (Setback::Failed, 2, 9_990, 9_990, at(10)),
            // The attempts are used up.
            (Setback::Failed, 3, 0, 0, Retry::GiveUp),
            (Setback::Failed, 99, -1, 0, at(50)),
            // The time is used up, but not by an outage before the first try.
            (Setback::Failed, 2, 10_000, 10_000, Retry::GiveUp),
            (Setback::Failed, 1, 99_000, 0, at(50)),
            (Setback::Failed, 2, 99_000, 9_999, at(1)),
        ] {
            let case = format!("{setback:?} {attempts} {past_ms} {retry_ms}");
            assert_eq!(
                after(setback, attempts, past_ms, retry_ms),
                expected,
                "{case}"
            );
        }
    }
}
