//! Feeds a recorded trace of shoppers through the production path on virtual time.
//!
//! Engine, expirer and store are those of `serve`; only the clock is moved by hand, from one row
//! of the trace, or one deadline, to the next. What is counted is read from the event log, not
//! from what the replay believes.

use std::collections::{BTreeMap, BTreeSet};
use std::io::BufRead;
use std::sync::Arc;

use serde::Serialize;

use crate::domain::{
    Command, Deadline, EventKind, Line, Location, OnExpired, Outcome, ReservationId, Reserve, Sku,
    State, StockKey, Timestamp, default_merchant,
};
use crate::engine::{Engine, EngineError, Reply, Runtime};
use crate::store::{Drift, ManualClock, RecordedEvent, StoreError};
use crate::worker::{Expirer, Next, Worker};

/// What lies on the shelf of every item; more than any trace takes.
const ON_HAND: i64 = 1_000_000_000;
/// Events read at once.
const EVENTS_PAGE: usize = 1_000;
/// How many times progress is shown.
const PROGRESS_STEPS: usize = 10;

/// One row of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// When.
    pub at: Timestamp,
    /// Who.
    pub visitor: String,
    /// What they did.
    pub action: Action,
    /// To what.
    pub item: Sku,
    /// To how many of it.
    pub quantity: i64,
}

/// What a shopper did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Put something into the cart.
    Cart,
    /// Took it out again.
    Remove,
    /// Bought it.
    Purchase,
}

/// What a replay counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Reservations made.
    pub created: u64,
    /// Those that were bought.
    pub paid: u64,
    /// Those that were taken out of the cart.
    pub cancelled: u64,
    /// Those that expired.
    pub expired: u64,
    /// Carts of what the visitor held already; they change nothing.
    pub repeated_carts: u64,
    /// Purchases of what the visitor did not hold.
    pub purchases_without_hold: u64,
    /// Removals of what the visitor did not hold.
    pub removes_without_hold: u64,
    /// The most reservations held at once.
    pub peak_held: u64,
    /// The most units of one item held at once.
    pub peak_held_one_item: i64,
    /// Reservations that left `held` more than once.
    pub double_releases: u64,
    /// Reservations still held after the last deadline.
    pub orphans: u64,
    /// Rows that `audit` found not to be as promised.
    pub drift: u64,
}

impl Totals {
    /// Did everything that was held leave `held` once, and do the rows agree?
    pub fn is_clean(&self) -> bool {
        self.double_releases == 0 && self.orphans == 0 && self.drift == 0
    }
}

/// Why a replay stopped.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The trace cannot be read.
    #[error("the trace cannot be read: {0}")]
    Read(#[from] std::io::Error),
    /// A row of the trace is not one.
    #[error("line {line} of the trace: {detail}")]
    Row {
        /// Its number, the header's being 1.
        line: usize,
        /// What is wrong with it.
        detail: String,
    },
    /// The database is somebody's.
    #[error("a replay needs an empty database, and this one has events; name another one")]
    NotEmpty,
    /// The engine did not decide.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The engine decided something that no replay can meet.
    #[error("unexpected answer to a row of the trace: {0}")]
    Unexpected(String),
    /// The store did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Reads a trace: a header `ts_ms,visitor,event,item,qty`, then rows in the order of `ts_ms`.
pub fn read_trace(reader: impl BufRead) -> Result<Vec<Row>, ReplayError> {
    let mut rows: Vec<Row> = Vec::new();
    for (index, text) in reader.lines().enumerate() {
        let line = index + 1;
        let fault = |detail: String| ReplayError::Row { line, detail };
        let text = text.map_err(|error| fault(error.to_string()))?;
        let text = text.trim_end_matches('\r');
        if line == 1 {
            if text != "ts_ms,visitor,event,item,qty" {
                return Err(fault(
                    "the header must be ts_ms,visitor,event,item,qty".to_owned(),
                ));
            }
            continue;
        }
        let row = parse_row(text).map_err(fault)?;
        if rows.last().is_some_and(|last| last.at > row.at) {
            return Err(fault("ts_ms is smaller than in the row above".to_owned()));
        }
        rows.push(row);
    }
    Ok(rows)
}

fn parse_row(text: &str) -> Result<Row, String> {
    let fields: Vec<&str> = text.split(',').collect();
    let [at, visitor, action, item, quantity] = fields[..] else {
        return Err(format!("5 fields are needed, not {}", fields.len()));
    };
    let at = at.parse().ok().and_then(Timestamp::from_millis);
    let quantity = quantity.parse().ok();
    Ok(Row {
        at: at.ok_or("ts_ms must be milliseconds since 1970")?,
        visitor: visitor.to_owned(),
        action: match action {
            "cart" => Action::Cart,
            "remove" => Action::Remove,
            "purchase" => Action::Purchase,
            other => {
                return Err(format!(
                    "event must be cart, remove or purchase, not {other}"
                ));
            }
        },
        item: Sku::new(item).map_err(|fault| format!("item {fault}"))?,
        quantity: quantity
            .filter(|quantity| (1..=crate::domain::MAX_QUANTITY).contains(quantity))
            .ok_or("qty must be a whole number from 1")?,
    })
}

/// A replay on its way through a trace.
pub struct Replay {
    engine: Engine,
    runtime: Arc<dyn Runtime>,
    clock: Arc<ManualClock>,
    expirer: Expirer,
    location: Location,
    hold_seconds: i64,
    /// The last reservation of each visitor and item.
    holds: BTreeMap<(String, Sku), ReservationId>,
    stocked: BTreeSet<Sku>,
    seen: i64,
    open: BTreeMap<ReservationId, Vec<Line>>,
    held_units: BTreeMap<Sku, i64>,
    totals: Totals,
}

impl Replay {
    /// A replay through `engine` and `expirer`, whose store follows `clock`.
    pub fn new(
        engine: Engine,
        runtime: Arc<dyn Runtime>,
        clock: Arc<ManualClock>,
        expirer: Expirer,
        location: Location,
        hold_seconds: i64,
    ) -> Self {
        Self {
            engine,
            runtime,
            clock,
            expirer,
            location,
            hold_seconds,
            holds: BTreeMap::new(),
            stocked: BTreeSet::new(),
            seen: 0,
            open: BTreeMap::new(),
            held_units: BTreeMap::new(),
            totals: Totals::default(),
        }
    }

    /// Replays `rows`, lets everything that is then still held expire, and audits the store.
    /// `progress` is told how many rows are done.
    pub async fn run(
        mut self,
        rows: &[Row],
        mut progress: impl FnMut(usize),
    ) -> Result<(Totals, Vec<Drift>), ReplayError> {
        if !self.engine.store().events(0, 1).await?.is_empty() {
            return Err(ReplayError::NotEmpty);
        }
        let step = (rows.len() / PROGRESS_STEPS).max(1);
        for (done, row) in rows.iter().enumerate() {
            self.expire_until(row.at).await?;
            self.clock.set(row.at.max(self.clock.now()));
            self.play(row).await?;
            self.read_events().await?;
            if (done + 1) % step == 0 {
                progress(done + 1);
            }
        }
        self.expire_until(Timestamp::MAX).await?;
        self.totals.orphans = self.open.len() as u64;
        let drift = self.engine.store().audit().await?;
        self.totals.drift = drift.len() as u64;
        Ok((self.totals, drift))
    }

    /// Moves the clock from deadline to deadline, and has each hold released at its own.
    async fn expire_until(&mut self, end: Timestamp) -> Result<(), ReplayError> {
        loop {
            let look = self.engine.store().next_attempt(Timestamp::EPOCH).await?;
            let Some(attempt_at) = look.attempt_at.filter(|at| *at <= end) else {
                return Ok(());
            };
            self.clock.set(attempt_at.max(self.clock.now()));
            while self.expirer.run_once().await? == Next::Again {}
            let before = self.seen;
            self.read_events().await?;
            if self.seen == before {
                return Err(ReplayError::Unexpected(format!(
                    "nothing was released at {attempt_at}"
                )));
            }
        }
    }

    async fn play(&mut self, row: &Row) -> Result<(), ReplayError> {
        let hold = (row.visitor.clone(), row.item.clone());
        let held = match self.holds.get(&hold) {
            Some(id) => {
                let (reservation, now) = self.engine.store().reservation(*id).await?;
                reservation
                    .filter(|reservation| reservation.state_at(now) == State::Held)
                    .map(|reservation| reservation.id)
            }
            None => None,
        };
        match (row.action, held) {
            (Action::Cart, Some(_)) => self.totals.repeated_carts += 1,
            (Action::Cart, None) => {
                let id = self.reserve(row).await?;
                self.holds.insert(hold, id);
            }
            (Action::Remove, None) => self.totals.removes_without_hold += 1,
            (Action::Purchase, None) => self.totals.purchases_without_hold += 1,
            (Action::Remove, Some(id)) => {
                self.submit(Command::Cancel { id, reason: None }).await?;
            }
            (Action::Purchase, Some(id)) => {
                let command = Command::CheckOut {
                    id,
                    payment_reference: None,
                    on_expired: OnExpired::Reject,
                };
                self.submit(command).await?;
            }
        }
        Ok(())
    }

    async fn reserve(&mut self, row: &Row) -> Result<ReservationId, ReplayError> {
        let key = StockKey {
            location: self.location.clone(),
            sku: row.item.clone(),
        };
        if self.stocked.insert(row.item.clone()) {
            let on_hand = ON_HAND;
            self.submit(Command::SetStock { key, on_hand }).await?;
        }
        let mut entropy = [0; 10];
        self.runtime.fill_random(&mut entropy);
        let command = Command::Reserve(Reserve {
            entropy,
            lines: vec![Line {
                sku: row.item.clone(),
                location: self.location.clone(),
                quantity: row.quantity,
            }],
            until: Deadline::In {
                seconds: self.hold_seconds,
            },
            merchant: default_merchant(),
            customer_id: None,
            reference: None,
            metadata: BTreeMap::new(),
        });
        match self.submit(command).await? {
            Outcome::Reservation { reservation, .. } => Ok(reservation.id),
            other => Err(ReplayError::Unexpected(format!("{other:?}"))),
        }
    }

    async fn submit(&self, command: Command) -> Result<Outcome, ReplayError> {
        match self.engine.submit(command, None).await? {
            Reply::Decided(Outcome::Refused(refusal)) => {
                Err(ReplayError::Unexpected(format!("{refusal:?}")))
            }
            Reply::Decided(outcome) => Ok(outcome),
            Reply::Replayed(answer) => Err(ReplayError::Unexpected(answer.body)),
        }
    }

    /// Counts what the event log says has happened.
    async fn read_events(&mut self) -> Result<(), ReplayError> {
        loop {
            let events = self.engine.store().events(self.seen, EVENTS_PAGE).await?;
            let full = events.len() == EVENTS_PAGE;
            for event in events {
                self.seen = event.seq;
                self.count(&event);
            }
            if !full {
                return Ok(());
            }
        }
    }

    fn count(&mut self, RecordedEvent { event, .. }: &RecordedEvent) {
        let Some(id) = event.reservation_id else {
            return;
        };
        match event.kind {
            EventKind::Created => {
                let lines = event.data.value()["lines"].take();
                let lines: Vec<Line> = serde_json::from_value(lines).unwrap_or_default();
                for line in &lines {
                    let held = self.held_units.entry(line.sku.clone()).or_default();
                    *held += line.quantity;
                    self.totals.peak_held_one_item = self.totals.peak_held_one_item.max(*held);
                }
                self.open.insert(id, lines);
                self.totals.created += 1;
                self.totals.peak_held = self.totals.peak_held.max(self.open.len() as u64);
                return;
            }
            EventKind::Paid => self.totals.paid += 1,
            EventKind::Cancelled => self.totals.cancelled += 1,
            EventKind::Expired => self.totals.expired += 1,
            _ => return,
        }
        let Some(lines) = self.open.remove(&id) else {
            self.totals.double_releases += 1;
            return;
        };
        for line in lines {
            *self.held_units.entry(line.sku).or_default() -= line.quantity;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "ts_ms,visitor,event,item,qty\n";

    #[test]
    fn a_row_is_read() {
        let rows = read_trace(format!("{HEADER}1664582400000,v,cart,5773203,2\r\n").as_bytes());
        let [row] = &rows.unwrap()[..] else {
            panic!("one row")
        };
        assert_eq!(row.at.to_string(), "2022-10-01T00:00:00.000Z");
        assert_eq!(row.action, Action::Cart);
        assert_eq!((row.visitor.as_str(), row.item.as_str()), ("v", "5773203"));
        assert_eq!(row.quantity, 2);
    }

    #[test]
    fn a_bad_row_is_named_by_its_line() {
        let bad = [
            ("1,v,cart,i", "5 fields"),
            ("x,v,cart,i,1", "ts_ms"),
            ("1,v,steal,i,1", "event"),
            ("1,v,cart,,1", "item"),
            ("1,v,cart,i,0", "qty"),
            ("1,v,cart,i,1.5", "qty"),
        ];
        for (row, word) in bad {
            let error = read_trace(format!("{HEADER}5,v,cart,i,1\n{row}\n").as_bytes());
            let text = error.unwrap_err().to_string();
            assert!(text.starts_with("line 3 of the trace: "), "{text}");
            assert!(text.contains(word), "{text}");
        }
        let unsorted = read_trace(format!("{HEADER}5,v,cart,i,1\n4,v,cart,i,1\n").as_bytes());
        assert!(unsorted.unwrap_err().to_string().starts_with("line 3"));
        assert!(read_trace("a,b\n".as_bytes()).is_err());
    }
}
