//! What a decision sees.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Changes, EventKind, JobId, Pace, PaymentReference, Reservation, ReservationId, Stock, StockKey,
    Timestamp,
};

/// The rows that a batch has locked and read. Each decision of the batch is made on it, and then
/// folded into it for the next one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Reservations by name. One that is not here does not exist.
    pub reservations: BTreeMap<ReservationId, Reservation>,
    /// Stock by name, with its due units where those matter. A row that is not here, of those
    /// that a command decides on, does not exist and counts as zero.
    pub stock: BTreeMap<StockKey, Stock>,
    /// Jobs that the ledger shows as done.
    pub ledger: BTreeSet<JobId>,
    /// Payments that were refused before, and need no second event.
    pub refused_payments: BTreeSet<(ReservationId, PaymentReference)>,
    /// How fast holds may expire, if not at any pace.
    pub pace: Option<Pace>,
}

impl Snapshot {
    /// Makes the snapshot what it will be when `changes`, decided at `now`, are stored.
    pub fn fold(&mut self, changes: &Changes, now: Timestamp) {
        for key in &changes.new_stock {
            self.stock
                .entry(key.clone())
                .or_insert_with(|| Stock::none(key.clone(), now));
        }
        for (key, delta) in &changes.stock {
            // Rows that nobody decides on are not in the snapshot; their deltas go to the store.
            if let Some(stock) = self.stock.get_mut(key) {
                stock.on_hand += delta.on_hand;
                stock.held += delta.held;
                stock.updated_at = now;
            }
        }
        for (id, deferral) in &changes.deferrals {
            if let Some(hold) = self.reservations.get_mut(id) {
                hold.put_off(*deferral, now);
            }
        }
        if let Some(pace) = &mut self.pace {
            pace.arrivals_us.extend(changes.arrivals_us.clone());
        }
        for change in changes.reservations.values() {
            self.fold_reservation(&change.reservation, now);
        }
        for entry in &changes.ledger {
            self.ledger.insert(entry.job.id());
        }
        for event in &changes.events {
            if event.kind == EventKind::PaymentRefused
                && let (Some(id), Some(payment)) = (event.reservation_id, refused_payment(event))
            {
                self.refused_payments.insert((id, payment));
            }
        }
    }

    fn fold_reservation(&mut self, reservation: &Reservation, now: Timestamp) {
        let before = self
            .reservations
            .insert(reservation.id, reservation.clone());
        let Some(before) = before.filter(|before| before.is_due(now)) else {
            return;
        };
        if !reservation.is_due(now) {
            for (key, units) in before.units() {
                if let Some(stock) = self.stock.get_mut(&key) {
                    stock.due -= units;
                }
            }
        }
    }
}

/// The payment that an event of kind `payment-refused` names.
fn refused_payment(event: &super::Event) -> Option<PaymentReference> {
    let particulars = event.data.value();
    let text = particulars.get("payment_reference")?.as_str()?;
    PaymentReference::new(text).ok()
}
