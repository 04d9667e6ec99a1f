//! A buyer's claim on stock.

use std::collections::BTreeMap;

use super::{
    CustomerId, Deferral, Job, Location, Merchant, PaymentReference, Reference, ReservationId, Sku,
    StockKey, Text, Timestamp,
};

/// The most lines of one reservation.
pub const MAX_LINES: usize = 1_000;
/// The most units of one line.
pub const MAX_QUANTITY: i64 = 1_000_000_000;

/// Pairs of text that the caller keeps with a reservation; Holdfast only stores them.
pub type Metadata = BTreeMap<Text<64>, Text<512>>;

/// Where a reservation stands. `Held` is the only state that holds stock, and it is left exactly
/// once (P2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// The stock is set aside.
    Held,
    /// The stock is sold.
    Paid,
    /// The buyer or the shop gave it back.
    Cancelled,
    /// The deadline passed, and it went back by itself.
    Expired,
}

impl State {
    /// All states, in the order in which they are documented.
    pub const ALL: [Self; 4] = [Self::Held, Self::Paid, Self::Cancelled, Self::Expired];

    /// The word for it in the API, the database, events and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Paid => "paid",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
        }
    }

    /// The state that `word` names.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == word)
    }
}

/// So many units of one SKU at one place.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Line {
    /// What.
    pub sku: Sku,
    /// From where, and whereto it returns.
    pub location: Location,
    /// Units, 1 to [`MAX_QUANTITY`].
    pub quantity: i64,
}

impl Line {
    /// The row of stock that the line draws from.
    pub fn stock_key(&self) -> StockKey {
        StockKey {
            location: self.location.clone(),
            sku: self.sku.clone(),
        }
    }
}

/// One reservation, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// Its name.
    pub id: ReservationId,
    /// Where it stands, by what was done to it; see [`Reservation::state_at`] for readers.
    pub state: State,
    /// What it claims. Lines of the same SKU and location count as their sum.
    pub lines: Vec<Line>,
    /// The deadline: alive while now < deadline, dead at now == deadline and after.
    pub expires_at: Timestamp,
    /// When the expirer next tries; never before the deadline.
    pub attempt_at: Timestamp,
    /// The hold as it was asked for, in whole seconds from creation to the first deadline.
    pub hold_seconds: i64,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// When it left `held`; set exactly when the state is not `held`.
    pub closed_at: Option<Timestamp>,
    /// How often it was extended.
    pub extensions: i64,
    /// On whose behalf it was made.
    pub merchant: Merchant,
    /// Who holds it.
    pub customer_id: Option<CustomerId>,
    /// The caller's own name for it.
    pub reference: Option<Reference>,
    /// The payment that won; only on a paid reservation.
    pub payment_reference: Option<PaymentReference>,
    /// Whether the payment came after the deadline and the stock was taken anew.
    pub reacquired: bool,
    /// The caller's own pairs.
    pub metadata: Metadata,
    /// What has kept it since its deadline.
    pub waits: Waits,
}

/// What has put the release of a hold off since its deadline. Together with the time for which it
/// waited for its turn, and that of the work itself, these are its lateness.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// How often its release was tried and failed.
    pub attempts: i64,
    /// How long it was made to wait for its permit, in milliseconds.
    pub limiter_ms: i64,
    /// How long it was made to wait after something stood in its way, in milliseconds.
    pub retry_ms: i64,
}

impl Reservation {
    /// Held, and its deadline has passed.
    pub fn is_due(&self, now: Timestamp) -> bool {
        self.state == State::Held && now >= self.expires_at
    }

    /// The state as readers see it. Past its deadline a hold reads as expired even before it is
    /// released, so that reads never disagree with commands.
    pub fn state_at(&self, now: Timestamp) -> State {
        if self.is_due(now) {
            State::Expired
        } else {
            self.state
        }
    }

    /// The job that ends this hold at its present deadline.
    pub fn job(&self) -> Job {
        Job {
            reservation: self.id,
            deadline: self.expires_at,
        }
    }

    /// Held, and its release was given up until an operator has looked at it.
    pub fn is_parked(&self) -> bool {
        self.state == State::Held && self.attempt_at == Timestamp::MAX
    }

    /// Has it wait for its next attempt, and says so in its waits.
    pub fn put_off(&mut self, deferral: Deferral, now: Timestamp) {
        let added = deferral.waits(now);
        self.attempt_at = deferral.attempt_at.max(self.expires_at);
        self.waits.attempts += added.attempts;
        self.waits.limiter_ms += added.limiter_ms;
        self.waits.retry_ms += added.retry_ms;
    }

    /// The units claimed of each row of stock.
    pub fn units(&self) -> BTreeMap<StockKey, i64> {
        units(&self.lines)
    }
}

/// The units that `lines` claim of each row of stock. The sum cannot overflow: there are at most
/// [`MAX_LINES`] lines of at most [`MAX_QUANTITY`] units.
pub(super) fn units(lines: &[Line]) -> BTreeMap<StockKey, i64> {
    let mut units = BTreeMap::new();
    for line in lines {
        let sum: &mut i64 = units.entry(line.stock_key()).or_default();
        *sum = sum.saturating_add(line.quantity);
    }
    units
}
