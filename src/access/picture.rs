//! The keys that live, as they were a moment ago.
//!
//! Instances do not tell each other about keys. Each reads all of them, which are few, twice a
//! second and more, so that a key that was revoked anywhere is refused everywhere within a second.
//! An instance that cannot read them does not guess for long.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::watch;

use crate::domain::{KeyHash, Merchant, Scope, Scopes};
use crate::engine::Runtime;
use crate::store::{Store, StoreError};

/// Between two readings. With the time that a reading takes it is less than half a second.
const REST: Duration = Duration::from_millis(300);

/// How old a picture may be that is still believed.
const BELIEVED_FOR: Duration = Duration::from_secs(10);

/// Whoever sends requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The id of the key, and the scope of the caller's idempotency keys.
    pub name: Arc<str>,
    /// What people call it: the name of the key.
    pub label: Arc<str>,
    /// On whose behalf it sends them.
    pub merchant: Merchant,
    scopes: Scopes,
}

impl Caller {
    pub(super) fn new(
        name: impl Into<Arc<str>>,
        label: &str,
        merchant: Merchant,
        scopes: Scopes,
    ) -> Self {
        Self {
            name: name.into(),
            label: label.into(),
            merchant,
            scopes,
        }
    }

    /// May it do what takes one of these scopes?
    pub fn reaches(&self, wanted: &[Scope]) -> bool {
        self.scopes.reach(wanted)
    }
}

/// The living keys of a store.
pub struct Keys {
    store: Arc<dyn Store>,
    runtime: Arc<dyn Runtime>,
    picture: RwLock<Picture>,
}

#[derive(Default)]
struct Picture {
    living: BTreeMap<KeyHash, Arc<Caller>>,
    /// Whether there is any key, be it revoked. Whoever takes away the last key does not mean to
    /// let everybody in.
    is_empty: bool,
    /// When its reading began, by the runtime's stopwatch.
    taken_at: Duration,
}

impl Keys {
    /// Reads the keys of a store.
    pub async fn read(
        store: Arc<dyn Store>,
        runtime: Arc<dyn Runtime>,
    ) -> Result<Self, StoreError> {
        let keys = Self {
            store,
            runtime,
            picture: RwLock::default(),
        };
        keys.refresh().await?;
        Ok(keys)
    }

    /// Reads them again.
    pub async fn refresh(&self) -> Result<(), StoreError> {
        // What was read is as old as the beginning of the reading.
        let taken_at = self.runtime.elapsed();
        let all = self.store.api_keys().all().await?;
        let is_empty = all.is_empty();
        let living = all.into_iter().filter(|key| key.revoked_at.is_none());
        let living = living
            .map(|key| {
                let (id, label) = (key.id.to_string(), key.name.as_str());
                let caller = Caller::new(id, label, key.merchant, key.scopes);
                (key.secret_hash, Arc::new(caller))
            })
            .collect();
        let picture = Picture {
            living,
            is_empty,
            taken_at,
        };
        // A picture is replaced whole, so a thread that panicked has left none half done.
        *self.picture.write().unwrap_or_else(PoisonError::into_inner) = picture;
        Ok(())
    }

    /// Reads them again and again until `stop` turns true.
    pub async fn keep_fresh(self: Arc<Self>, mut stop: watch::Receiver<bool>) {
        let mut is_failing = false;
        loop {
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => return,
                () = self.runtime.sleep(REST) => {}
            }
            // A reading that does not end is given up, lest it be the last one.
            let read = tokio::select! {
                read = self.refresh() => read,
                () = self.runtime.sleep(BELIEVED_FOR / 2) => {
                    Err(StoreError::Unavailable("no answer came in time".to_owned()))
                }
            };
            match read {
                Ok(()) => is_failing = false,
                // Once is enough: it is tried several times a second.
                Err(error) if !is_failing => {
                    tracing::warn!(%error, "API keys cannot be read; will try again");
                    is_failing = true;
                }
                Err(_) => {}
            }
        }
    }

    /// Is there no key at all, not even a revoked one?
    pub fn are_none(&self) -> bool {
        self.look(|picture| picture.is_empty)
    }

    /// Is it known which keys live?
    pub(super) fn are_known(&self, now: Duration) -> bool {
        self.look(|picture| now.saturating_sub(picture.taken_at) < BELIEVED_FOR)
    }

    /// Whose secret this is, if the key lives.
    pub(super) fn find(&self, hash: &KeyHash) -> Option<Arc<Caller>> {
        self.look(|picture| picture.living.get(hash).cloned())
    }

    fn look<T>(&self, look: impl FnOnce(&Picture) -> T) -> T {
        look(&self.picture.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// No keys, for ever.
    #[cfg(test)]
    pub(super) fn none(runtime: Arc<dyn Runtime>) -> Self {
        let picture = Picture {
            is_empty: true,
            taken_at: Duration::MAX,
            ..Picture::default()
        };
        Self {
            store: Arc::new(crate::store::memory::Memory::new(
                crate::store::Clock::Database,
            )),
            runtime,
            picture: RwLock::new(picture),
        }
    }
}
