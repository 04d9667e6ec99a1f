//! The port to the quarantine: what nothing can be done with until somebody has looked.

use std::collections::BTreeSet;

use async_trait::async_trait;

use super::{Drift, StoreError};
use crate::domain::{Message, ReservationId, Timestamp};

/// How many bytes of a payload are kept. What is longer is no expiry job, and its beginning tells
/// what it is.
pub const MAX_KEPT_PAYLOAD: usize = 65_536;
/// The longest key, in bytes.
pub const MAX_QUARANTINE_KEY: usize = 512;
/// The source of what the relay has given up.
pub const RELAY: &str = "relay";
/// The source of holds whose release was given up. The key is the reservation; the payload is its
/// expiry job, or less if the row could not be read.
pub const HOLD: &str = "hold";
/// How many of the actions about a case are shown, the latest ones.
pub const SHOWN_ACTIONS: usize = 100;
/// What came of an action about a case that was resolved before it.
pub const RESOLVED: &str = "resolved";

/// The messages that were put aside.
#[async_trait]
pub trait Quarantine: Send + Sync {
    /// Puts a message aside. One that is there already and open is the same case, seen once more.
    async fn record(&self, sighting: &Sighting) -> Result<(), StoreError>;

    /// Cases with numbers larger than `after`, in order, at most `limit`.
    async fn list(
        &self,
        filter: &CaseFilter,
        after: i64,
        limit: usize,
    ) -> Result<Vec<QuarantineCase>, StoreError>;

    /// Open cases with numbers larger than `after`, in order, at most `limit`.
    async fn open(&self, limit: usize, after: i64) -> Result<Vec<QuarantineCase>, StoreError> {
        self.list(&CaseFilter::open(), after, limit).await
    }

    /// One case, and the last [`SHOWN_ACTIONS`] things that operators did about it, in order.
    async fn find(
        &self,
        id: i64,
    ) -> Result<Option<(QuarantineCase, Vec<RecordedAction>)>, StoreError>;

    /// Writes down what an operator did about a case that exists, and in the same transaction does
    /// to the case what goes with it. Says whether the case was open. If it was not, the action is
    /// written down with the outcome [`RESOLVED`], and nothing else happens.
    async fn act(&self, action: &CaseAction) -> Result<bool, StoreError>;
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
    /// How the case was settled; none while it is open.
    pub resolution: Option<Resolution>,
}

/// How a case was settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolution {
    /// When.
    pub at: Timestamp,
    /// By what.
    pub text: String,
}

/// Which cases to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CaseFilter {
    /// Only those that were found there.
    pub source: Option<String>,
    /// Only those with this key.
    pub key: Option<String>,
    /// Only those in this state.
    pub state: Option<CaseState>,
}

impl CaseFilter {
    /// All that are open.
    pub fn open() -> Self {
        Self {
            state: Some(CaseState::Open),
            ..Self::default()
        }
    }
}

/// Whether something is still to be done about a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaseState {
    /// Nobody has settled it.
    Open,
    /// It is settled, and kept.
    Resolved,
}

impl CaseState {
    /// Every state.
    pub const ALL: [Self; 2] = [Self::Open, Self::Resolved];

    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Resolved => RESOLVED,
        }
    }

    /// The state that a word names.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == word)
    }
}

impl QuarantineCase {
    /// Whether something is still to be done about it.
    pub fn state(&self) -> CaseState {
        match self.resolution {
            None => CaseState::Open,
            Some(_) => CaseState::Resolved,
        }
    }
}

/// What an operator can do about a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActionKind {
    /// Try it again.
    Replay,
    /// Let it rest.
    Dismiss,
}

impl ActionKind {
    /// Every kind.
    pub const ALL: [Self; 2] = [Self::Replay, Self::Dismiss];

    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Replay => "replay",
            Self::Dismiss => "dismiss",
        }
    }

    /// The kind that a word names.
    pub(super) fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == word)
    }
}

/// What an operator did, and what it changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaseAction {
    /// About which case.
    pub case: i64,
    /// What it was.
    pub kind: ActionKind,
    /// Who did it.
    pub by: String,
    /// What came of it.
    pub outcome: String,
    /// How the case is settled by it; without one it stays open.
    pub resolution: Option<String>,
    /// A message that was given up and is to be published at once, as the next copy of its job:
    /// that one has no attempts yet, and no relay and no queue has seen its key.
    pub again: Option<Message>,
}

/// What an operator did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedAction {
    /// What it was.
    pub kind: ActionKind,
    /// Who did it.
    pub by: String,
    /// When.
    pub at: Timestamp,
    /// What came of it.
    pub outcome: String,
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
