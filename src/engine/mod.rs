//! The owner of every change: commands in, outcomes out.
//!
//! A caller submits a command; the engine puts it into a lane and answers when the transaction
//! that decided it is committed. See [`lane`] for how a lane makes one transaction out of what
//! many callers want, and [`batch`] for what happens in that transaction.

mod runtime;

use std::sync::Arc;

use crate::domain::{Command, Outcome};
use crate::store::{Answer, Key, Store, StoreError};

pub use runtime::{Runtime, Task, TokioRuntime};

/// A handle on the engine; clones are handles on the same one.
#[derive(Clone)]
pub struct Engine {
    store: Arc<dyn Store>,
}

/// The Idempotency-Key under which a command came, and how its answer is written down.
pub struct Keyed {
    /// The key.
    pub key: Key,
    /// SHA-256 of the request.
    pub fingerprint: Vec<u8>,
    /// Turns the outcome into the answer that is recorded.
    pub render: Box<dyn Fn(&Outcome) -> Answer + Send + Sync>,
}

/// What the engine says to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It was decided, and what was decided is durable.
    Decided(Outcome),
    /// It was decided before under the same key; this was the answer.
    Replayed(Answer),
}

/// Why a command was not decided.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The inbox is full, or the rows did not come free in time. Nothing has happened.
    #[error("too much is waiting; try again in {retry_after_seconds} s")]
    Overloaded {
        /// When to try again.
        retry_after_seconds: u64,
    },
    /// Another request with the same Idempotency-Key is still being decided.
    #[error("a request with this Idempotency-Key is still being decided")]
    KeyInUse,
    /// The Idempotency-Key was used for another request.
    #[error("this Idempotency-Key was used for another request")]
    KeyReused,
    /// The database was lost during COMMIT and has not said since what became of it. The caller
    /// can ask again under the same key.
    #[error("it is not known whether this was done; ask again with the same Idempotency-Key")]
    FateUnknown,
    /// The database did not do it. Nothing has happened.
    #[error(transparent)]
    Store(#[from] Arc<StoreError>),
    /// The service is shutting down. Nothing has happened.
    #[error("the service is shutting down")]
    ShuttingDown,
}

impl Engine {
    /// Has a command decided, and returns when what was decided is durable. A caller that stops
    /// waiting changes nothing about that.
    pub async fn submit(
        &self,
        command: Command,
        keyed: Option<Keyed>,
    ) -> Result<Reply, EngineError> {
        let _ = (command, keyed);
        Err(EngineError::ShuttingDown)
    }

    /// An engine without lanes, which refuses every command and reads from `store`.
    #[cfg(test)]
    pub(crate) fn without_lanes(store: Arc<dyn Store>) -> Self {
        Self { store }
    }

    /// The store, for reads, which need no lane.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }
}
