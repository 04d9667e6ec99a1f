//! The committed rows.

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

use crate::domain::{
    AdmissionKey, ApiKey, ApiKeyId, JobId, LedgerEntry, Message, OutboxEntry, PaymentReference,
    Reservation, ReservationId, State, Stock, StockKey, Timestamp,
};
use crate::store::{Horizons, Key, QuarantineCase, RecordedAction, RecordedAnswer, RecordedEvent};

/// A message on its way to a queue.
#[derive(Clone, Debug)]
pub(super) struct OutboxRow {
    pub(super) publish_after: Timestamp,
    pub(super) attempt_at: Timestamp,
    pub(super) attempts: u32,
    pub(super) last_error: Option<String>,
    pub(super) end: Option<End>,
}

/// Why a message waits no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// This queue has it.
    Published { queue: String },
    /// It was given up.
    Parked,
}

/// The tables. What is found by something other than its key is kept under that as well.
#[derive(Debug, Default)]
pub(super) struct Rows {
    pub(super) stock: BTreeMap<StockKey, Stock>,
    pub(super) reservations: BTreeMap<ReservationId, Reservation>,
    pub(super) ledger: BTreeMap<JobId, LedgerEntry>,
    pub(super) refused_payments: BTreeSet<(ReservationId, PaymentReference)>,
    /// In the order of their numbers, from the first that was not deleted.
    pub(super) events: Vec<RecordedEvent>,
    pub(super) answers: BTreeMap<Key, RecordedAnswer>,
    pub(super) outbox: BTreeMap<Message, OutboxRow>,
    /// The theoretical arrivals of the next permits.
    pub(super) arrivals_us: BTreeMap<AdmissionKey, i64>,
    pub(super) api_keys: BTreeMap<ApiKeyId, ApiKey>,
    /// By number.
    pub(super) quarantine: BTreeMap<i64, QuarantineCase>,
    /// By the number of the case, in order.
    pub(super) actions: BTreeMap<i64, Vec<RecordedAction>>,
    /// How far back rows were deleted because of their age.
    pub(super) horizons: Horizons,
    /// Messages that are neither published nor parked, by when they are next tried.
    pub(super) waiting: BTreeSet<(Timestamp, Message)>,
    /// Held reservations by when they are next tried.
    attempts: BTreeSet<(Timestamp, ReservationId)>,
    /// The units of held reservations by deadline.
    open_lines: BTreeMap<(StockKey, Timestamp, ReservationId), i64>,
}

impl Rows {
    /// Inserts or replaces a message.
    pub(super) fn put_message(&mut self, message: Message, row: OutboxRow) {
        self.take_message(message);
        if row.end.is_none() {
            self.waiting.insert((row.attempt_at, message));
        }
        self.outbox.insert(message, row);
    }

    /// Takes a message out.
    pub(super) fn take_message(&mut self, message: Message) -> Option<OutboxRow> {
        let row = self.outbox.remove(&message)?;
        self.waiting.remove(&(row.attempt_at, message));
        Some(row)
    }

    /// Puts a job in that is to be published.
    pub(super) fn put_entry(&mut self, entry: &OutboxEntry) {
        let copies = Message::first(entry.job)..=Message {
            job: entry.job,
            copy: u32::MAX,
        };
        let last = self.outbox.range(copies).next_back();
        let message = Message {
            job: entry.job,
            copy: last.map_or(0, |(message, _)| message.copy) + 1,
        };
        let row = OutboxRow {
            publish_after: entry.publish_after,
            attempt_at: entry.publish_after,
            attempts: 0,
            last_error: None,
            end: None,
        };
        self.put_message(message, row);
    }

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
        }
        if reservation.state == State::Held && !reservation.is_parked() {
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
