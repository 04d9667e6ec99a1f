//! What lies on the shelf.

use super::{Location, Sku, Timestamp};

/// The most units that one row of stock can count: enough for any shelf, and exact in every JSON
/// parser.
pub const MAX_ON_HAND: i64 = 1_000_000_000_000;

/// The name of one row of stock. Sorting by it is the order in which rows are locked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StockKey {
    /// Where it lies.
    pub location: Location,
    /// What it is.
    pub sku: Sku,
}

impl std::fmt::Display for StockKey {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{} at {}", self.sku, self.location)
    }
}

/// One row of stock, in units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stock {
    /// Which row.
    pub key: StockKey,
    /// What is there, held or not.
    pub on_hand: i64,
    /// What reservations in state `held` hold of it, 0 to `on_hand` (P1).
    pub held: i64,
    /// Held units whose deadline has passed: not released yet, but free by right.
    pub due: i64,
    /// When the row last changed.
    pub updated_at: Timestamp,
}

impl Stock {
    /// The row that does not exist: nothing there, nothing held.
    pub fn none(key: StockKey, now: Timestamp) -> Self {
        Self {
            key,
            on_hand: 0,
            held: 0,
            due: 0,
            updated_at: now,
        }
    }

    /// What a buyer can get. It counts by deadlines, not by releases, so that a read never says
    /// "one left" where a reserve would then find none, or the other way round (P11).
    pub fn available(&self) -> i64 {
        self.on_hand - self.held + self.due
    }

    /// What can be taken at once, without expiring anything first.
    pub fn free(&self) -> i64 {
        self.on_hand - self.held
    }
}
