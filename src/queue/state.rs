//! Whether the queue can be reached, for whoever asks how the service is.

use std::sync::{Mutex, PoisonError};

/// What was last seen of the queue, from each of its sides: that it can be pulled must not hide
/// that nothing can be published to it.
#[derive(Debug, Default)]
pub struct QueueState {
    publishing: Mutex<Option<String>>,
    pulling: Mutex<Option<String>>,
}

/// What the queue was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// To take messages, or to say how it takes them.
    Publishing,
    /// To give messages back.
    Pulling,
}

impl QueueState {
    /// It did what it was asked for.
    pub fn is_well(&self, side: Side) {
        self.set(side, None);
    }

    /// It did not, for this reason.
    pub fn is_unwell(&self, side: Side, reason: &str) {
        self.set(side, Some(reason.to_owned()));
    }

    /// What is wrong, if anything is.
    pub fn trouble(&self) -> Option<String> {
        [&self.publishing, &self.pulling]
            .into_iter()
            .find_map(|side| side.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// Takes over what was seen, and says in the log when things have changed, and only then: a
    /// queue that is away for a night is one line at its beginning and one at its end.
    fn set(&self, side: Side, trouble: Option<String>) {
        let (state, act) = match side {
            Side::Publishing => (&self.publishing, "publish"),
            Side::Pulling => (&self.pulling, "pull"),
        };
        let mut known = state.lock().unwrap_or_else(PoisonError::into_inner);
        match (known.as_deref(), trouble.as_deref()) {
            (None, Some(trouble)) => tracing::warn!(
                trouble,
                "cannot {act}; holds are released by the sweep until the queue does as asked again"
            ),
            (Some(_), None) => tracing::info!("can {act} again"),
            _ => {}
        }
        *known = trouble;
    }
}
