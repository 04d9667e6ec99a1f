//! What went wrong between us and a queue, and what to do about it: one table, in one function.

use std::time::Duration;

use crate::domain::{Setback, Timestamp};

use super::retry;

/// Why a queue did not do what it was asked, by what is to be done now. Each holds what the queue
/// said, in one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It asks for patience: try again after this time, which is capped.
    #[error("{answer}; asks to wait {} s", wait.as_secs_f64())]
    RetryAfter {
        /// How long.
        wait: Duration,
        /// What it said.
        answer: String,
    },
    /// Something that passes: try again after a backoff (see [`crate::domain::Backoff`]).
    #[error("{0}")]
    Backoff(String),
    /// No message can be published at all until somebody mends something: the queue is not there,
    /// or does not take our token. Nothing is parked; everything waits, and one try now and then
    /// finds out whether it was mended.
    #[error("{0}")]
    Unavailable(String),
    /// This message will never be taken: park it, and show the answer.
    #[error("{0}")]
    Refused(String),
}

/// What happened to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble<'a> {
    /// No connection came about.
    Unreachable,
    /// The connection or the answer was lost, or did not come in time.
    Lost,
    /// An answer came that is none: not the JSON that it should be, or too much of it.
    Garbage,
    /// An answer that is no success.
    Status {
        /// The HTTP status.
        status: u16,
        /// Its Retry-After, if there was one.
        retry_after: Option<&'a str>,
    },
    /// The message exceeds the queue's limits, and was not sent.
    OverLimit,
}

/// The shortest wait when the queue says how long to wait, in milliseconds. One that wants to be
/// asked again at once, and says no again, is not to be hammered.
const LEAST_PATIENCE_MS: i64 = 500;

impl Fault {
    /// What kind of failure it is, as on the other side of the work.
    pub fn setback(&self) -> Setback {
        match self {
            Self::RetryAfter { wait, .. } => {
                let wait_ms = i64::try_from(wait.as_millis()).unwrap_or(i64::MAX);
                Setback::Patience(wait_ms.max(LEAST_PATIENCE_MS))
            }
            Self::Backoff(_) => Setback::Failed,
            Self::Unavailable(_) => Setback::Unavailable,
            Self::Refused(_) => Setback::Hopeless,
        }
    }

    /// What to do about a trouble. `answer` is what the queue said, for people; `now` is what a
    /// date in Retry-After is compared with, and without it such a date is ignored.
    pub fn of(trouble: Trouble<'_>, answer: String, now: Option<Timestamp>) -> Self {
        match trouble {
            // A wrong token is the operator's to mend, and no message is to blame for it.
            Trouble::Unreachable
            | Trouble::Status {
                status: 401 | 403, ..
            } => Self::Unavailable(answer),
            Trouble::Status {
                status: 429 | 503,
                retry_after,
            } => match retry_after.and_then(|asked| retry::asked_wait(asked, now)) {
                Some(wait) => Self::RetryAfter { wait, answer },
                None => Self::Backoff(answer),
            },
            // 408 is a timeout that the other side noticed first.
            Trouble::Status {
                status: 400..=407 | 409..=499,
                ..
            }
            | Trouble::OverLimit => Self::Refused(answer),
            // Also 5xx; and a redirect, which is not followed and as odd as any other garbage.
            Trouble::Lost | Trouble::Garbage | Trouble::Status { .. } => Self::Backoff(answer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(trouble: Trouble<'_>) -> Fault {
        let now = Timestamp::from_millis(1_796_126_400_000);
        Fault::of(trouble, "said".to_owned(), now)
    }

    fn status(status: u16, retry_after: Option<&str>) -> Fault {
        of(Trouble::Status {
            status,
            retry_after,
        })
    }

    #[test]
    fn each_status_has_its_consequence() {
        let said = "said".to_owned();
        for code in [400, 404, 405, 409, 413, 415, 422, 431] {
            assert_eq!(
                status(code, Some("1")),
                Fault::Refused(said.clone()),
                "{code}"
            );
        }
        for code in [401, 403] {
            assert_eq!(
                status(code, None),
                Fault::Unavailable(said.clone()),
                "{code}"
            );
        }
        for code in [100, 204, 301, 307, 408, 429, 500, 502, 503, 504, 599] {
            assert_eq!(status(code, None), Fault::Backoff(said.clone()), "{code}");
        }
    }

    #[test]
    fn patience_is_asked_for_in_two_forms_and_nonsense_is_ignored() {
        let wait = |seconds| Fault::RetryAfter {
            wait: Duration::from_secs(seconds),
            answer: "said".to_owned(),
        };
        assert_eq!(status(429, Some("7")), wait(7));
        assert_eq!(status(503, Some("Tue, 01 Dec 2026 12:00:09 GMT")), wait(9));
        assert_eq!(status(429, Some("soon")), Fault::Backoff("said".to_owned()));
        assert_eq!(status(500, Some("7")), Fault::Backoff("said".to_owned()));
    }

    #[test]
    fn what_is_no_answer_has_its_consequence_too() {
        let said = || "said".to_owned();
        assert_eq!(of(Trouble::Unreachable), Fault::Unavailable(said()));
        assert_eq!(of(Trouble::Lost), Fault::Backoff(said()));
        assert_eq!(of(Trouble::Garbage), Fault::Backoff(said()));
        assert_eq!(of(Trouble::OverLimit), Fault::Refused(said()));
    }
}
