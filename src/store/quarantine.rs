//! The port to the quarantine: messages that nothing can be done with until somebody has looked.

use std::collections::BTreeSet;

use async_trait::async_trait;

use super::{Drift, StoreError};
use crate::domain::{ReservationId, Timestamp};

/// How many bytes of a payload are kept. What is longer is no expiry job, and its beginning tells
/// what it is.
pub const MAX_KEPT_PAYLOAD: usize = 65_536;
/// The longest key, in bytes.
pub const MAX_QUARANTINE_KEY: usize = 512;
/// The source of what the relay has given up.
pub const RELAY: &str = "relay";
/// The source of holds whose release was given up.
pub const HOLD: &str = "hold";

/// The messages that were put aside.
#[async_trait]
pub trait Quarantine: Send + Sync {
    /// Puts a message aside. One that is there already and open is the same case, seen once more.
    async fn record(&self, sighting: &Sighting) -> Result<(), StoreError>;

    /// Open cases with numbers larger than `after`, in order, at most `limit`.
    async fn open(&self, limit: usize, after: i64) -> Result<Vec<QuarantineCase>, StoreError>;
}

/// A message that nothing can be done with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// Where it was found.
    pub source: String,
    /// Its name there, 1 to [`MAX_QUARANTINE_KEY`] bytes.
    pub key: String,
    /// The message as it was received; the first [`MAX_KEPT_PAYLOAD`] bytes are kept.
    pub payload: Vec<u8>,
    /// What is wrong with it.
    pub reason: String,
}

impl Sighting {
    /// As much of the payload as is kept.
    pub(super) fn kept_payload(&self) -> &[u8] {
        &self.payload[..self.payload.len().min(MAX_KEPT_PAYLOAD)]
    }
}

/// A message in quarantine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuarantineCase {
    /// Its number; later cases have larger ones.
    pub id: i64,
    /// The message, as it was last seen.
    pub sighting: Sighting,
    /// How often it was seen.
    pub attempts: i64,
    /// When it was first seen.
    pub first_seen: Timestamp,
    /// When it was last seen.
    pub last_seen: Timestamp,
}

/// The holds of those that were given up which no open case tells of.
pub(super) fn parked_without_case(
    parked: impl IntoIterator<Item = ReservationId>,
    cases: impl IntoIterator<Item = String>,
) -> Vec<Drift> {
    let cases: BTreeSet<String> = cases.into_iter().collect();
    parked
        .into_iter()
        .filter(|id| !cases.contains(&id.to_string()))
        .map(|id| Drift {
            promise: "P12",
            row: format!("reservation {id}"),
            detail: "its release was given up, and no open case in quarantine says so".to_owned(),
        })
        .collect()
}
