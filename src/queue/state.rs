//! Whether the queue can be reached, for whoever asks how the service is.

use std::sync::{Mutex, PoisonError};

/// What was last seen of the queue.
#[derive(Debug, Default)]
pub struct QueueState(Mutex<Option<String>>);

impl QueueState {
    /// It took what it was given.
    pub fn is_well(&self) {
        self.set(None);
    }

    /// It did not, for this reason.
    pub fn is_unwell(&self, reason: &str) {
        self.set(Some(reason.to_owned()));
    }

    /// What is wrong, if anything is.
    pub fn trouble(&self) -> Option<String> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn set(&self, trouble: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }
}
