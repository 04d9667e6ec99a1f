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

    fn set(&self, side: Side, trouble: Option<String>) {
        let side = match side {
            Side::Publishing => &self.publishing,
            Side::Pulling => &self.pulling,
        };
        *side.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }
}
