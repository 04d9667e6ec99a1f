//! What is on the shelf: is there enough of it, and how it is counted anew.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::refuse;
use crate::domain::{
    Changes, Decision, Event, EventKind, Lacking, MAX_ON_HAND, Outcome, Particulars, Reason,
    Refusal, Shortage, Snapshot, Stock, StockDelta, StockKey, Timestamp,
};

/// The refusal of these units, if they are not there even when the due ones are counted in. It
/// needs no lock: one snapshot that shows it proves it (P11).
pub fn insufficient(
    stock: &BTreeMap<StockKey, Stock>,
    units: &BTreeMap<StockKey, i64>,
) -> Option<Refusal> {
    let short: Vec<Shortage> = units
        .iter()
        .filter_map(|(key, wanted)| {
            let available = stock.get(key).map_or(0, Stock::available);
            (available < *wanted).then(|| Shortage {
                key: key.clone(),
                wanted: *wanted,
                available: available.max(0),
            })
        })
        .collect();
    (!short.is_empty()).then_some(Refusal::InsufficientStock { short })
}

/// The units that are there only when the due ones are counted in, and so must be released first.
pub(super) fn lacking(snapshot: &Snapshot, units: &BTreeMap<StockKey, i64>) -> Option<Lacking> {
    let lacking: BTreeMap<StockKey, i64> = units
        .iter()
        .filter_map(|(key, wanted)| {
            let free = snapshot.stock.get(key).map_or(0, Stock::free);
            (free < *wanted).then(|| (key.clone(), wanted - free))
        })
        .collect();
    (!lacking.is_empty()).then_some(Lacking::Units(lacking))
}

pub(super) fn set(snapshot: &Snapshot, key: &StockKey, on_hand: i64, now: Timestamp) -> Decision {
    let stock = row(snapshot, key, now);
    let data = json!({ "on_hand": on_hand });
    change_to(stock, Some(on_hand), EventKind::StockSet, data, now)
}

pub(super) fn adjust(
    snapshot: &Snapshot,
    key: &StockKey,
    delta: i64,
    reason: Option<&Reason>,
    now: Timestamp,
) -> Decision {
    let stock = row(snapshot, key, now);
    let wanted = stock.on_hand.checked_add(delta);
    let data = json!({ "delta": delta, "reason": reason });
    change_to(stock, wanted, EventKind::StockAdjusted, data, now)
}

/// Makes the row say `on_hand`, unless it cannot.
fn change_to(
    stock: Stock,
    on_hand: Option<i64>,
    kind: EventKind,
    mut data: Value,
    now: Timestamp,
) -> Decision {
    let Some(on_hand) = on_hand.filter(|on_hand| *on_hand <= MAX_ON_HAND) else {
        return refuse(Refusal::StockAboveMaximum { stock });
    };
    if on_hand < stock.held {
        let wanted = on_hand;
        return refuse(Refusal::StockBelowHeld { stock, wanted });
    }
    data["sku"] = json!(stock.key.sku);
    data["location"] = json!(stock.key.location);
    data["from"] = json!(stock.on_hand);
    data["on_hand"] = json!(on_hand);
    let delta = StockDelta {
        on_hand: on_hand - stock.on_hand,
        held: 0,
    };
    let changes = Changes {
        new_stock: [stock.key.clone()].into(),
        stock: [(stock.key.clone(), delta)].into(),
        events: vec![Event {
            kind,
            reservation_id: None,
            at: now,
            data: Particulars::of(&data),
        }],
        ..Changes::default()
    };
    let outcome = Outcome::Stock(Stock {
        on_hand,
        updated_at: now,
        ..stock
    });
    Decision::Done { outcome, changes }
}

fn row(snapshot: &Snapshot, key: &StockKey, now: Timestamp) -> Stock {
    snapshot
        .stock
        .get(key)
        .cloned()
        .unwrap_or_else(|| Stock::none(key.clone(), now))
}
