//! What a decision changes, and the sum of what a batch changes.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::{
    AdmissionKey, Job, Reservation, ReservationId, State, StockKey, Timestamp, Via, Waits,
};

/// The sum of the changes of a batch: what the store writes in one transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// New and changed reservations. Boxed, because a map makes room for several at once, and most
    /// decisions change one.
    pub reservations: BTreeMap<ReservationId, Box<ReservationChange>>,
    /// Rows of stock to make, with nothing in them, if they do not exist.
    pub new_stock: BTreeSet<StockKey>,
    /// What to add to which row of stock, applied after [`Changes::new_stock`].
    pub stock: BTreeMap<StockKey, StockDelta>,
    /// What became of expiry jobs.
    pub ledger: Vec<LedgerEntry>,
    /// Expiry jobs to be published; of each reservation the last one.
    pub outbox: BTreeMap<ReservationId, OutboxEntry>,
    /// Holds that are due and have to wait.
    pub deferrals: BTreeMap<ReservationId, Deferral>,
    /// The theoretical arrivals of the next permits, in microseconds since 1970.
    pub arrivals_us: BTreeMap<AdmissionKey, i64>,
    /// One event for each change of state, in the order of the decisions (P9).
    pub events: Vec<Event>,
}

/// When a due hold is tried next. Nothing else of it changes, least of all its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deferral {
    /// When; the store never makes it earlier than the deadline.
    pub attempt_at: Timestamp,
    /// Why.
    pub cause: DeferralCause,
}

/// Why a due hold has to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeferralCause {
    /// Its permit comes later.
    Limited,
    /// Another transaction stands in the way.
    Blocked,
    /// Its release failed.
    Failed,
}

impl Deferral {
    /// What it adds to the waits of a hold that is put off at `now`.
    pub fn waits(self, now: Timestamp) -> Waits {
        let wait_ms = self.attempt_at.millis_since(now).max(0);
        let (attempts, limiter_ms, retry_ms) = match self.cause {
            DeferralCause::Limited => (0, wait_ms, 0),
            DeferralCause::Blocked => (0, 0, wait_ms),
            DeferralCause::Failed => (1, 0, wait_ms),
        };
        Waits {
            attempts,
            limiter_ms,
            retry_ms,
        }
    }
}

/// One reservation's change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservationChange {
    /// What must still be so in the database; `None` for a new row.
    pub guard: Option<Guard>,
    /// The row as it shall be.
    pub reservation: Reservation,
}

/// What an update demands of the row it changes, although the row is locked: in its statement
/// stand this state, this deadline, and that a hold is expired only when due and otherwise
/// changed only when not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard {
    /// The state that was decided on.
    pub state: State,
    /// The deadline that was decided on.
    pub expires_at: Timestamp,
}

/// What to add to a row of stock, in units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StockDelta {
    /// To what is on hand.
    pub on_hand: i64,
    /// To what is held.
    pub held: i64,
}

/// What became of an expiry job, for good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerEntry {
    /// Which job.
    pub job: Job,
    /// `expired`, `paid`, `cancelled` or `stale`.
    pub outcome: &'static str,
    /// By which path it came.
    pub via: Via,
    /// When it was decided.
    pub at: Timestamp,
}

/// An expiry job to be published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutboxEntry {
    /// Which job.
    pub job: Job,
    /// Whether it was published before. The store then gives it the number of the next copy, and
    /// else 1.
    pub again: bool,
    /// Not before this instant; see [`super::QueueRule`].
    pub publish_after: Timestamp,
}

/// Something that happened. The store numbers events without gaps, in commit order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// What kind of thing.
    pub kind: EventKind,
    /// To which reservation; `None` for stock operations.
    pub reservation_id: Option<ReservationId>,
    /// When.
    pub at: Timestamp,
    /// Which members it has depends on the kind.
    pub data: Particulars,
}

/// The particulars of an event: a JSON object. It is kept as it is written, because most are
/// written once and never looked into.
#[derive(Clone, Debug)]
pub struct Particulars(Box<str>);

impl Particulars {
    /// What `members` is as JSON.
    pub fn of(members: &impl Serialize) -> Self {
        // What has no form as JSON, which nothing here is, would leave nothing to say.
        let json = serde_json::to_string(members).unwrap_or_else(|_| "{}".to_owned());
        Self(json.into())
    }

    /// The object as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The object, to look into.
    pub fn value(&self) -> Value {
        serde_json::from_str(&self.0).unwrap_or_default()
    }
}

impl PartialEq for Particulars {
    /// By the members, in whatever order.
    fn eq(&self, other: &Self) -> bool {
        self.value() == other.value()
    }
}

impl Eq for Particulars {}

impl Serialize for Particulars {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Particulars {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Value::deserialize(deserializer).map(|members| Self::of(&members))
    }
}

/// The kinds of event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EventKind {
    /// A reservation was made.
    Created,
    /// Its deadline moved.
    Extended,
    /// It was paid.
    Paid,
    /// It was cancelled.
    Cancelled,
    /// It expired.
    Expired,
    /// A payment was named for a reservation that could not be sold; there may be money to
    /// return. At most one for each reservation and payment reference.
    PaymentRefused,
    /// What is on hand was set.
    StockSet,
    /// What is on hand was changed.
    StockAdjusted,
    /// Counters, or the open lines of a reservation, were put right from the held reservations.
    StockRepaired,
}

impl EventKind {
    /// All kinds.
    pub const ALL: [Self; 9] = [
        Self::Created,
        Self::Extended,
        Self::Paid,
        Self::Cancelled,
        Self::Expired,
        Self::PaymentRefused,
        Self::StockSet,
        Self::StockAdjusted,
        Self::StockRepaired,
    ];

    /// The word for it in the API and the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Extended => "extended",
            Self::Paid => "paid",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
            Self::PaymentRefused => "payment-refused",
            Self::StockSet => "stock-set",
            Self::StockAdjusted => "stock-adjusted",
            Self::StockRepaired => "stock-repaired",
        }
    }

    /// The kind that `word` names.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == word)
    }
}

impl Changes {
    /// Nothing at all?
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Puts `next`, which was decided after all that is in here, on top. A reservation that
    /// changed twice keeps its first guard and its last row; stock deltas add up. A job is
    /// published for the last deadline only, and not at all if the hold has ended.
    pub fn add(&mut self, next: Self) {
        for (id, change) in next.reservations {
            if change.reservation.state != State::Held {
                self.outbox.remove(&id);
            }
            self.deferrals.remove(&id);
            match self.reservations.get_mut(&id) {
                Some(earlier) => earlier.reservation = change.reservation,
                None => {
                    self.reservations.insert(id, change);
                }
            }
        }
        self.new_stock.extend(next.new_stock);
        for (key, delta) in next.stock {
            let sum = self.stock.entry(key).or_default();
            sum.on_hand += delta.on_hand;
            sum.held += delta.held;
        }
        self.ledger.extend(next.ledger);
        for (id, entry) in next.outbox {
            let earlier = self.outbox.entry(id).or_insert(entry);
            // One row is enough for a job that is to be published anyway.
            if earlier.job != entry.job {
                *earlier = entry;
            }
        }
        self.deferrals.extend(next.deferrals);
        self.arrivals_us.extend(next.arrivals_us);
        self.events.extend(next.events);
    }
}
