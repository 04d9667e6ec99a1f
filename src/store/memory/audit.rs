//! Recomputes from the rows what they promise, as the databases do. What is derived here from
//! other rows as they are put (open lines, the numbers of events) cannot drift.

use std::collections::{BTreeMap, BTreeSet};

use super::rows::Rows;
use crate::domain::{EventKind, Reservation, ReservationId, State, StockKey, Timestamp};
use crate::store::quarantine::parked_without_case;
use crate::store::{CaseState, Drift, HOLD, Horizons, Suspects};

/// A hold that is tried again more than this after its deadline could not be released.
const PUT_OFF_MS: i64 = 60_000;

pub(super) fn audit(rows: &Rows, now: Timestamp) -> Vec<Drift> {
    let mut drifts = Vec::new();
    audit_stock(rows, &mut drifts);
    audit_reservations(rows, now, &mut drifts);
    audit_ledger(rows, &mut drifts);
    let parked = rows.reservations.values().filter(|row| row.is_parked());
    let open = rows.quarantine.values();
    let open = open.filter(|case| case.state() == CaseState::Open);
    let cases = open.map(|case| &case.sighting);
    let cases = cases.filter(|sighting| sighting.source == HOLD);
    drifts.extend(parked_without_case(
        parked.map(|row| row.id),
        cases.map(|sighting| sighting.key.clone()),
    ));
    drifts
}

/// Rows of stock that are not as held reservations say. Nothing else can be so here.
pub(super) fn suspects(rows: &Rows, limit: usize) -> Suspects {
    let claimed = claimed(rows);
    let keys: BTreeSet<_> = rows.stock.keys().chain(claimed.keys()).collect();
    let is_wrong = |key: &&StockKey| {
        let units = claimed.get(*key).copied().unwrap_or_default();
        let stock = rows.stock.get(*key);
        stock.map_or(0, |stock| stock.held) != units
            || stock.is_some_and(|stock| !(0..=stock.on_hand).contains(&stock.held))
    };
    let stock: BTreeSet<_> = keys.into_iter().filter(is_wrong).take(limit).collect();
    Suspects {
        more: stock.len() == limit,
        stock: stock.into_iter().cloned().collect(),
        ..Suspects::default()
    }
}

/// The units that held reservations claim of each row of stock.
fn claimed(rows: &Rows) -> BTreeMap<StockKey, i64> {
    let mut claimed: BTreeMap<StockKey, i64> = BTreeMap::new();
    for reservation in rows.reservations.values() {
        if reservation.state == State::Held {
            for (key, units) in reservation.units() {
                *claimed.entry(key).or_default() += units;
            }
        }
    }
    claimed
}

/// P1, and P8: what stock says is held is what reservations hold.
fn audit_stock(rows: &Rows, drifts: &mut Vec<Drift>) {
    let claimed = claimed(rows);
    let keys: BTreeSet<_> = rows.stock.keys().chain(claimed.keys()).collect();
    for key in keys {
        let row = format!("stock {key}");
        let stock = rows.stock.get(key);
        let units = claimed.get(key).copied().unwrap_or_default();
        if let Some(stock) = stock
            && !(0..=stock.on_hand).contains(&stock.held)
        {
            let detail = format!("{} of {} units are held", stock.held, stock.on_hand);
            drifts.push(drift("P1", row.clone(), detail));
        }
        let held = stock.map(|stock| stock.held);
        if held != Some(units) {
            let detail = format!("{held:?} held by the row, {units} by reservations");
            drifts.push(drift("P8", row, detail));
        }
    }
}

/// P2: a reservation leaves held once. P7: it is released in time. P9: one event created it.
fn audit_reservations(rows: &Rows, now: Timestamp, drifts: &mut Vec<Drift>) {
    let mut created: BTreeMap<ReservationId, usize> = BTreeMap::new();
    let mut closing: BTreeMap<ReservationId, Closing<'_>> = BTreeMap::new();
    for recorded in &rows.events {
        let Some(id) = recorded.event.reservation_id else {
            continue;
        };
        match recorded.event.kind {
            EventKind::Created => *created.entry(id).or_default() += 1,
            kind @ (EventKind::Paid | EventKind::Cancelled | EventKind::Expired) => {
                let closing = closing.entry(id).or_default();
                closing.first_at.get_or_insert(recorded.event.at);
                closing.last_at = Some(recorded.event.at);
                closing.kinds.push(kind.as_str());
            }
            _ => {}
        }
    }
    let known = rows.reservations.keys();
    let ids: BTreeSet<_> = known.chain(created.keys()).chain(closing.keys()).collect();
    for id in ids {
        let told = Told {
            creations: created.get(id).copied().unwrap_or_default(),
            closing: closing.get(id).cloned().unwrap_or_default(),
        };
        let name = format!("reservation {id}");
        match rows.reservations.get(id) {
            Some(row) => audit_row(row, &told, rows.horizons, now, &name, drifts),
            None => audit_absence(&told, rows.horizons, &name, drifts),
        }
    }
}

/// What the events that are still there tell of a reservation.
struct Told<'a> {
    creations: usize,
    closing: Closing<'a>,
}

/// The events by which a reservation left `held`, and was sold anew.
#[derive(Clone, Default)]
struct Closing<'a> {
    first_at: Option<Timestamp>,
    last_at: Option<Timestamp>,
    kinds: Vec<&'a str>,
}

/// A reservation that is there.
fn audit_row(
    row: &Reservation,
    told: &Told<'_>,
    horizons: Horizons,
    now: Timestamp,
    name: &str,
    drifts: &mut Vec<Drift>,
) {
    let state = row.state.as_str();
    let expected: &[&str] = if row.reacquired {
        &["expired", "paid"]
    } else if row.state == State::Held {
        &[]
    } else {
        &[state]
    };
    let Closing {
        first_at, kinds, ..
    } = &told.closing;
    let may_be_gone = row.closed_at.is_some() && row.closed_at <= horizons.events;
    if !may_be_gone && (kinds != expected || row.closed_at != *first_at) {
        let detail = format!("{state}, and its closing events are: {}", kinds.join(", "));
        drifts.push(drift("P2", name.to_owned(), detail));
    }
    let creations = told.creations;
    let may_be_gone = Some(row.created_at) <= horizons.events;
    if creations != 1 && !(creations == 0 && may_be_gone) {
        let detail = format!("{state}, and created by {creations} events");
        drifts.push(drift("P9", name.to_owned(), detail));
    }
    let put_off_ms = row.attempt_at.millis_since(row.expires_at) - row.waits.limiter_ms;
    if row.is_due(now) && !row.is_parked() && put_off_ms > PUT_OFF_MS {
        let detail = format!(
            "due since {}, put off until {}",
            row.expires_at, row.attempt_at
        );
        drifts.push(drift("P7", name.to_owned(), detail));
    }
}

/// A reservation that only events know. It was deleted if it had ended before the horizon.
fn audit_absence(told: &Told<'_>, horizons: Horizons, name: &str, drifts: &mut Vec<Drift>) {
    let Closing { last_at, kinds, .. } = &told.closing;
    if last_at.is_some() && *last_at <= horizons.reservations {
        return;
    }
    if !kinds.is_empty() {
        let kinds = kinds.join(", ");
        let detail = format!("no row, and its closing events are: {kinds}");
        drifts.push(drift("P2", name.to_owned(), detail));
    }
    if told.creations > 0 {
        let detail = format!("no row, and created by {} events", told.creations);
        drifts.push(drift("P9", name.to_owned(), detail));
    }
}

/// P9: the ledger's releases are the events' releases.
fn audit_ledger(rows: &Rows, drifts: &mut Vec<Drift>) {
    let horizon = rows.horizons.ledger.max(rows.horizons.events);
    let mut releases: BTreeMap<(ReservationId, Timestamp), (usize, usize)> = BTreeMap::new();
    for entry in rows.ledger.values() {
        if entry.outcome == State::Expired.as_str() {
            let release = (entry.job.reservation, entry.at);
            releases.entry(release).or_default().0 += 1;
        }
    }
    for recorded in &rows.events {
        if let (EventKind::Expired, Some(id)) = (recorded.event.kind, recorded.event.reservation_id)
        {
            let release = (id, recorded.event.at);
            releases.entry(release).or_default().1 += 1;
        }
    }
    for ((id, at), (entries, events)) in releases {
        if entries != events && Some(at) > horizon {
            let detail = format!("expired at {at}: {entries} ledger rows, {events} events");
            drifts.push(drift("P9", format!("reservation {id}"), detail));
        }
    }
}

fn drift(promise: &'static str, row: String, detail: String) -> Drift {
    Drift {
        promise,
        row,
        detail,
    }
}
