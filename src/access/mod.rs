//! Who may come in: API keys, how many requests each may send, and what holds without any key.
//!
//! Every request is judged by a picture in memory of the keys that live, so that nobody waits for
//! the database at the door. The picture is never older than a moment; see [`picture`]. What a key
//! may do is for HTTP to say, which knows the routes.

mod picture;
mod rate;
mod secret;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::domain::{KeyHash, Scope, Scopes, default_merchant};
use crate::engine::Runtime;

pub use picture::{Caller, Keys};
pub use rate::{RateLimit, Standing};
pub use secret::Secret;

/// The name of whoever comes while there is no key.
const ANYBODY: &str = "public";
/// What whoever acts on this machine without a key is called where it is written down.
pub const LOCAL: &str = "local";
/// The name of whoever comes with the bootstrap key.
const BOOTSTRAP: &str = "bootstrap";

/// How the door is kept.
pub struct Settings {
    /// A key of the operator's choice, which may do everything and is stored nowhere.
    pub bootstrap: Option<Secret>,
    /// How many requests each key may send; without it, any number.
    pub limit: Option<RateLimit>,
    /// Whether only this machine can reach the service. Only then it is open without a key.
    pub is_loopback: bool,
}

/// The door.
pub struct Access {
    keys: Arc<Keys>,
    runtime: Arc<dyn Runtime>,
    bootstrap: Option<(KeyHash, Arc<Caller>)>,
    anybody: Arc<Caller>,
    limit: Option<RateLimit>,
    is_loopback: bool,
    /// The theoretical arrival of each key's next request; see [`RateLimit::charge`].
    arrivals: Mutex<BTreeMap<KeyHash, Duration>>,
}

/// Who was let in.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Who it is.
    pub caller: Arc<Caller>,
    /// How it stands with the caller's limit, if there is one, this request counted.
    pub standing: Option<(RateLimit, Standing)>,
}

/// Why nobody was let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denial {
    /// The request carries no key.
    NoKey,
    /// The key is not one that lives.
    UnknownKey,
    /// It is not known which keys live: the database has not been read for too long.
    NotKnown,
}

impl Access {
    /// A door with these keys.
    pub fn new(settings: Settings, keys: Arc<Keys>, runtime: Arc<dyn Runtime>) -> Self {
        let operator = |name, label| {
            let scopes = Scopes::from(Scope::Operator);
            Arc::new(Caller::new(name, label, default_merchant(), scopes))
        };
        let bootstrap = settings.bootstrap;
        Self {
            keys,
            runtime,
            bootstrap: bootstrap.map(|secret| (secret.hash(), operator(BOOTSTRAP, BOOTSTRAP))),
            anybody: operator(ANYBODY, LOCAL),
            limit: settings.limit,
            is_loopback: settings.is_loopback,
            arrivals: Mutex::default(),
        }
    }

    /// Is the service open to whoever reaches it, as long as there is no key?
    pub fn is_open(&self) -> bool {
        self.is_loopback && self.bootstrap.is_none() && self.keys.are_none()
    }

    /// Judges who comes with this secret, and counts the request against its limit.
    pub fn admit(&self, secret: Option<&str>) -> Result<Entry, Denial> {
        let now = self.runtime.elapsed();
        let hash = secret.map(secret::hash);
        // The bootstrap key is in no database, and helps while there is none.
        if let (Some(hash), Some((bootstrap, caller))) = (hash, &self.bootstrap)
            && hash == *bootstrap
        {
            return Ok(self.count(Arc::clone(caller), hash, now));
        }
        if !self.keys.are_known(now) {
            return Err(Denial::NotKnown);
        }
        if self.is_open() {
            return Ok(Entry {
                caller: Arc::clone(&self.anybody),
                standing: None,
            });
        }
        let hash = hash.ok_or(Denial::NoKey)?;
        let caller = self.keys.find(&hash).ok_or(Denial::UnknownKey)?;
        Ok(self.count(caller, hash, now))
    }

    fn count(&self, caller: Arc<Caller>, hash: KeyHash, now: Duration) -> Entry {
        let standing = self.limit.map(|limit| {
            // An arrival is replaced whole, so a thread that panicked has left none half done.
            let mut arrivals = self.arrivals.lock().unwrap_or_else(PoisonError::into_inner);
            let arrival = arrivals.entry(hash).or_default();
            let (next, standing) = limit.charge(*arrival, now);
            *arrival = next;
            (limit, standing)
        });
        Entry { caller, standing }
    }

    /// A door that stands open for as long as the process lives.
    #[cfg(test)]
    pub(crate) fn open() -> Self {
        let runtime: Arc<dyn Runtime> = Arc::new(crate::engine::TokioRuntime::start());
        let settings = Settings {
            bootstrap: None,
            limit: None,
            is_loopback: true,
        };
        let keys = Arc::new(Keys::none(Arc::clone(&runtime)));
        Self::new(settings, keys, runtime)
    }
}

#[cfg(test)]
mod tests;
