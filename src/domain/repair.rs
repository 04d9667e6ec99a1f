//! What to do about counters that do not say what the held reservations hold.
//!
//! The reservation is the record: `held` and the open lines are counted from it, and can be
//! counted again. What this takes away or puts in says so in one event of kind `stock-repaired`.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{
    Changes, Event, EventKind, MAX_ON_HAND, Particulars, Reservation, ReservationId, State, Stock,
    StockDelta, StockKey, Timestamp,
};

/// The name of an open line: which row of stock, until when, for whom.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OpenLine {
    /// The row of stock.
    pub key: StockKey,
    /// The deadline of the reservation.
    pub expires_at: Timestamp,
    /// Who holds it.
    pub reservation: ReservationId,
}

/// A row of stock, counted anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recount {
    /// Which row.
    pub key: StockKey,
    /// The row as it is, if there is one.
    pub stock: Option<Stock>,
    /// The units that held reservations claim of it.
    pub claimed: i64,
    /// Whether there are held reservations whose claims are not known, so that it may be more.
    pub at_least: bool,
}

/// Why a row of stock is left as it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unmendable {
    /// More is held than there is, and what is on the shelf cannot be counted from here (P1).
    #[error(
        "held reservations claim {claimed} units, and {on_hand} are on hand; count the shelf, set \
         on_hand to {claimed} or more, or cancel some of them, and repair again"
    )]
    MoreThanOnHand {
        /// What held reservations claim.
        claimed: i64,
        /// What the row says is there.
        on_hand: i64,
    },
    /// A smaller count could give away what a hold has that nobody can read (P1).
    #[error(
        "shows {held} held, and {claimed} can be counted; it is not lowered as long as there are \
         held reservations whose claims are not known"
    )]
    InDoubt {
        /// What the row says is held.
        held: i64,
        /// What can be counted.
        claimed: i64,
    },
}

/// What makes a row of stock say what held reservations claim of it; nothing, if it does.
///
/// Of a row that vanished nobody can tell what else was on the shelf, so the new one has just what
/// is claimed: none of it is for sale until somebody counts, and says so.
pub fn mend_stock(recount: &Recount, now: Timestamp) -> Result<Option<Changes>, Unmendable> {
    let claimed = recount.claimed;
    let (wrong, on_hand, held) = match &recount.stock {
        Some(stock) if !(0..=stock.on_hand).contains(&claimed) => {
            let on_hand = stock.on_hand;
            return Err(Unmendable::MoreThanOnHand { claimed, on_hand });
        }
        Some(stock) if stock.held == claimed => return Ok(None),
        Some(stock) if stock.held > claimed && recount.at_least => {
            let held = stock.held;
            return Err(Unmendable::InDoubt { held, claimed });
        }
        Some(stock) => ("held-differs", stock.on_hand, stock.held),
        None if claimed == 0 => return Ok(None),
        None if claimed > MAX_ON_HAND => {
            let on_hand = MAX_ON_HAND;
            return Err(Unmendable::MoreThanOnHand { claimed, on_hand });
        }
        None => ("row-missing", 0, 0),
    };
    let delta = StockDelta {
        on_hand: if recount.stock.is_none() { claimed } else { 0 },
        held: claimed - held,
    };
    let counts = |on_hand: i64, held: i64| json!({ "on_hand": on_hand, "held": held });
    let data = json!({
        "sku": recount.key.sku,
        "location": recount.key.location,
        "wrong": wrong,
        "before": recount.stock.as_ref().map(|_| counts(on_hand, held)),
        "after": counts(on_hand + delta.on_hand, claimed),
    });
    let made = recount.stock.is_none().then(|| recount.key.clone());
    Ok(Some(Changes {
        new_stock: made.into_iter().collect(),
        stock: [(recount.key.clone(), delta)].into(),
        events: vec![repaired(None, &data, now)],
        ..Changes::default()
    }))
}

/// What makes the open lines of a reservation say what it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineRepair {
    /// Lines that are to go.
    pub closed: BTreeMap<OpenLine, i64>,
    /// Lines that are missing.
    pub opened: BTreeMap<OpenLine, i64>,
    /// The event that says so.
    pub event: Event,
}

/// What makes the open lines of a reservation, of which `found` are there, say what it holds;
/// nothing, if they do. One that does not exist holds nothing, and neither does one that is not
/// held any more.
pub fn mend_lines(
    id: ReservationId,
    reservation: Option<&Reservation>,
    found: &BTreeMap<OpenLine, i64>,
    now: Timestamp,
) -> Option<LineRepair> {
    let held = reservation.filter(|reservation| reservation.state == State::Held);
    let wanted = held.map(open_lines).unwrap_or_default();
    let without = |lines: &BTreeMap<OpenLine, i64>, others: &BTreeMap<OpenLine, i64>| {
        let mut lines = lines.clone();
        lines.retain(|line, units| others.get(line) != Some(units));
        lines
    };
    let closed = without(found, &wanted);
    let opened = without(&wanted, found);
    if closed.is_empty() && opened.is_empty() {
        return None;
    }
    let data = json!({
        "wrong": "open-lines-differ",
        "before": described(&closed),
        "after": described(&opened),
    });
    let event = repaired(Some(id), &data, now);
    Some(LineRepair {
        closed,
        opened,
        event,
    })
}

/// The open lines that a held reservation has: none, if its release was given up, so that its units
/// do not count as due.
pub fn open_lines(held: &Reservation) -> BTreeMap<OpenLine, i64> {
    if held.is_parked() {
        return BTreeMap::new();
    }
    let line = |key| OpenLine {
        key,
        expires_at: held.expires_at,
        reservation: held.id,
    };
    let units = held.units().into_iter();
    units.map(|(key, units)| (line(key), units)).collect()
}

fn described(lines: &BTreeMap<OpenLine, i64>) -> Value {
    let described = lines.iter().map(|(line, quantity)| {
        json!({
            "sku": line.key.sku,
            "location": line.key.location,
            "quantity": quantity,
            "expires_at": line.expires_at,
        })
    });
    described.collect()
}

fn repaired(reservation_id: Option<ReservationId>, data: &Value, now: Timestamp) -> Event {
    Event {
        kind: EventKind::StockRepaired,
        reservation_id,
        at: now,
        data: Particulars::of(data),
    }
}

#[cfg(test)]
mod tests;
