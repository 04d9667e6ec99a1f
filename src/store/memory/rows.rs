//! The committed rows.

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

use crate::domain::{
    JobId, LedgerEntry, PaymentReference, Reservation, ReservationId, State, Stock, StockKey,
    Timestamp,
};
use crate::store::{Key, RecordedAnswer, RecordedEvent};

/// The tables. What is found by something other than its key is kept under that as well.
#[derive(Debug, Default)]
pub(super) struct Rows {
    pub(super) stock: BTreeMap<StockKey, Stock>,
    pub(super) reservations: BTreeMap<ReservationId, Reservation>,
    pub(super) ledger: BTreeMap<JobId, LedgerEntry>,
    pub(super) refused_payments: BTreeSet<(ReservationId, PaymentReference)>,
    /// The one with the number `n` is at `n - 1`.
    pub(super) events: Vec<RecordedEvent>,
    pub(super) answers: BTreeMap<Key, RecordedAnswer>,
    /// Held reservations by when they are next tried.
    attempts: BTreeSet<(Timestamp, ReservationId)>,
    /// The units of held reservations by deadline.
    open_lines: BTreeMap<(StockKey, Timestamp, ReservationId), i64>,
}

impl Rows {
    /// Inserts or replaces a reservation.
    pub(super) fn put_reservation(&mut self, reservation: Reservation) {
        let id = reservation.id;
        if let Some(before) = self.reservations.get(&id) {
            self.attempts.remove(&(before.attempt_at, id));
            for key in before.units().into_keys() {
                self.open_lines.remove(&(key, before.expires_at, id));
            }
        }
        if reservation.state == State::Held {
            self.attempts.insert((reservation.attempt_at, id));
            for (key, units) in reservation.units() {
                let line = (key, reservation.expires_at, id);
                self.open_lines.insert(line, units);
            }
        }
        self.reservations.insert(id, reservation);
    }

    /// Held reservations that are next tried at `from` or later, the earliest first.
    pub(super) fn attempts_from(
        &self,
        from: Timestamp,
    ) -> impl Iterator<Item = (Timestamp, ReservationId)> {
        let first = (from, ReservationId::from_uuid(Uuid::nil()));
        self.attempts.range(first..).copied()
    }

    /// Due reservations with units of `key` and how many, the oldest deadline first.
    pub(super) fn due_lines(
        &self,
        key: &StockKey,
        now: Timestamp,
    ) -> impl Iterator<Item = (ReservationId, i64)> {
        let first = ReservationId::from_uuid(Uuid::nil());
        let last = ReservationId::from_uuid(Uuid::max());
        let due = (key.clone(), Timestamp::EPOCH, first)..=(key.clone(), now, last);
        let lines = self.open_lines.range(due);
        lines.map(|((_, _, id), units)| (*id, *units))
    }

    /// The due units of one row of stock.
    pub(super) fn due_units(&self, key: &StockKey, now: Timestamp) -> i64 {
        self.due_lines(key, now).map(|(_, units)| units).sum()
    }
}
