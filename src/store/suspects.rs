//! What does not look as the held reservations say, to be looked at again under locks.

use std::collections::{BTreeMap, BTreeSet};

use super::CorruptRow;
use crate::domain::{OpenLine, ReservationId, StockKey};

/// What one snapshot shows not to be as the held reservations say. Each list has at most as many
/// rows as were asked for, and nothing in it is locked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Suspects {
    /// Rows of stock that show another number of units than is held of them, or more of them than
    /// are on hand; also those that do not exist although something is held of them.
    pub stock: BTreeSet<StockKey>,
    /// Reservations whose open lines are not what they hold, each with those of its open lines
    /// that should not be as they are. It need not exist.
    pub lines: BTreeMap<ReservationId, BTreeSet<OpenLine>>,
    /// Held reservations, and names in other rows, that cannot be understood.
    pub unreadable: Vec<CorruptRow>,
    /// Whether a list was full, so that there may be more.
    pub more: bool,
}
