//! Mends counters from the held reservations, while the service runs.
//!
//! A snapshot says what to look at; what is done is decided anew under locks, taken in the total
//! order of the store port: reservations and their open lines in one transaction, each row of
//! stock in one of its own, and in both the event head last.
//!
//! Under the lock of a row of stock its open lines say what is claimed of it, by an index instead
//! of by reading all that is held: batches change a hold, its open lines and its stock in one
//! transaction, so whoever has the stock sees all three as they were before it or after it. Open
//! lines are put right first.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use super::Runtime;
use crate::domain::{
    Changes, Event, OpenLine, Recount, ReservationId, StockKey, Unmendable, mend_lines, mend_stock,
    open_lines,
};
use crate::store::{Store, StoreError, Suspects, Transaction, Wait};

/// How many suspects of each kind one look finds.
const SUSPECTS: usize = 10_000;
/// How many reservations' open lines are put right in one transaction.
const RESERVATIONS: usize = 100;
/// How often, and at which distance, rows are tried that others have locked.
const TRIES: usize = 50;
const PAUSE: Duration = Duration::from_millis(100);

/// Mends counters, or says how it would.
pub struct Repairer {
    store: Arc<dyn Store>,
    runtime: Arc<dyn Runtime>,
    apply: bool,
    run: RepairRun,
    /// What is left as it is, so that it is said once.
    left: BTreeSet<String>,
    /// In a dry run, the units by which open lines are to change, which are not changed.
    planned: BTreeMap<StockKey, i64>,
    /// Whether there are held reservations whose claims are not known.
    doubt: bool,
}

/// One thing that was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// The row, such as `stock SKU-1 at default`.
    pub row: String,
    /// What of it was put right, or would be, as its event says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repair: Option<Value>,
    /// Why it is left as it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left: Option<String>,
}

/// What a repair did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RepairRun {
    /// Whether it was done; if not, it is what would be done.
    pub applied: bool,
    /// Rows that were put right, each with an event.
    pub repaired: usize,
    /// Rows that are left as they are.
    pub left: usize,
    /// Whether there may be more that was not looked at.
    pub more: bool,
}

/// What came of one try at some reservations.
struct Tried {
    events: Vec<Event>,
    /// Those that others have locked.
    elsewhere: BTreeSet<ReservationId>,
    /// Those that cannot be understood, whose open lines stay as they are.
    corrupt: BTreeSet<ReservationId>,
}

/// The event of a row of stock that was mended, if it had to be, or why it cannot be.
type Mended = Result<Option<Event>, Unmendable>;

/// What is said of a row that nobody else let go of.
const LOCKED: &str = "others have it locked all the time; repair again";

impl Repairer {
    /// One that mends if it shall `apply` what it finds, and otherwise only says so.
    pub fn new(store: Arc<dyn Store>, runtime: Arc<dyn Runtime>, apply: bool) -> Self {
        Self {
            store,
            runtime,
            apply,
            run: RepairRun {
                applied: apply,
                ..RepairRun::default()
            },
            left: BTreeSet::new(),
            planned: BTreeMap::new(),
            doubt: false,
        }
    }

    /// Looks at everything, and tells each finding when it is done. After an error what was told
    /// is done, and the rest can be done by another run.
    pub async fn run(mut self, tell: &mut impl FnMut(Finding)) -> Result<RepairRun, StoreError> {
        loop {
            let before = self.run.repaired;
            let suspects = self.store.suspects(SUSPECTS).await?;
            self.run.more = suspects.more;
            self.repair(suspects, tell).await?;
            // A dry run would find the same again, and so would one that mended nothing.
            if !self.run.more || !self.apply || self.run.repaired == before {
                return Ok(self.run);
            }
        }
    }

    async fn repair(
        &mut self,
        suspects: Suspects,
        tell: &mut impl FnMut(Finding),
    ) -> Result<(), StoreError> {
        self.doubt = false;
        for corrupt in suspects.unreadable {
            self.doubt |= corrupt.column == "lines";
            let table = match corrupt.table {
                "reservations" => "reservation",
                table => table,
            };
            self.leave(format!("{table} {}", corrupt.row), &corrupt, tell);
        }
        let mut lines: Vec<_> = suspects.lines.into_iter().collect();
        while !lines.is_empty() {
            let rest = lines.split_off(lines.len().min(RESERVATIONS));
            self.repair_lines(lines.into_iter().collect(), tell).await?;
            lines = rest;
        }
        for key in suspects.stock {
            self.repair_stock(&key, tell).await?;
        }
        Ok(())
    }

    /// Puts the open lines of some reservations right.
    async fn repair_lines(
        &mut self,
        mut suspects: BTreeMap<ReservationId, BTreeSet<OpenLine>>,
        tell: &mut impl FnMut(Finding),
    ) -> Result<(), StoreError> {
        for _ in 0..TRIES {
            match self.try_lines(&suspects).await {
                Ok(tried) => {
                    for event in &tried.events {
                        self.tell_repair(event, tell);
                    }
                    // Those were told of when they were found.
                    self.doubt |= !tried.corrupt.is_empty();
                    suspects.retain(|id, _| tried.elsewhere.contains(id));
                    if suspects.is_empty() {
                        return Ok(());
                    }
                }
                Err(error) if passes(&error) => {}
                Err(error) => return Err(error),
            }
            self.runtime.sleep(PAUSE).await;
        }
        self.doubt = true;
        for id in suspects.into_keys() {
            self.leave(format!("reservation {id}"), &LOCKED, tell);
        }
        Ok(())
    }

    async fn try_lines(
        &mut self,
        suspects: &BTreeMap<ReservationId, BTreeSet<OpenLine>>,
    ) -> Result<Tried, StoreError> {
        let mut transaction = self.store.begin().await?;
        match self.mend_lines(transaction.as_mut(), suspects).await {
            Ok(tried) => {
                self.end(transaction, !tried.events.is_empty()).await?;
                Ok(tried)
            }
            Err(error) => {
                transaction.rollback().await;
                Err(error)
            }
        }
    }

    async fn mend_lines(
        &mut self,
        tx: &mut dyn Transaction,
        suspects: &BTreeMap<ReservationId, BTreeSet<OpenLine>>,
    ) -> Result<Tried, StoreError> {
        let ids = suspects.keys().copied().collect();
        let locked = tx.lock_reservations(&ids, Wait::Skip).await?;
        let rows: BTreeMap<_, _> = locked.rows.iter().map(|row| (row.id, row)).collect();
        let mut names: BTreeSet<OpenLine> = suspects.values().flatten().cloned().collect();
        names.extend(rows.values().flat_map(|row| open_lines(row).into_keys()));
        let mut found: BTreeMap<ReservationId, BTreeMap<OpenLine, i64>> = BTreeMap::new();
        for (line, units) in tx.open_lines(&names).await? {
            let lines = found.entry(line.reservation).or_default();
            lines.insert(line, units);
        }
        let now = tx.now().await?;
        let mut tried = Tried {
            events: Vec::new(),
            elsewhere: locked.elsewhere,
            corrupt: locked.corrupt.into_keys().collect(),
        };
        let (mut closed, mut opened) = (BTreeMap::new(), BTreeMap::new());
        for id in ids {
            if tried.elsewhere.contains(&id) || tried.corrupt.contains(&id) {
                continue;
            }
            let found = found.remove(&id).unwrap_or_default();
            if let Some(repair) = mend_lines(id, rows.get(&id).copied(), &found, now) {
                closed.extend(repair.closed);
                opened.extend(repair.opened);
                tried.events.push(repair.event);
            }
        }
        if self.apply {
            tx.replace_lines(&closed, &opened).await?;
            let changes = Changes {
                events: tried.events.clone(),
                ..Changes::default()
            };
            tx.write_rest(&changes, &[], now).await?;
        } else {
            self.plan(&closed, -1);
            self.plan(&opened, 1);
        }
        Ok(tried)
    }

    fn plan(&mut self, lines: &BTreeMap<OpenLine, i64>, sign: i64) {
        for (line, units) in lines {
            *self.planned.entry(line.key.clone()).or_default() += sign * units;
        }
    }

    /// Makes one row of stock say what is claimed of it.
    async fn repair_stock(
        &mut self,
        key: &StockKey,
        tell: &mut impl FnMut(Finding),
    ) -> Result<(), StoreError> {
        let row = format!("stock {key}");
        for _ in 0..TRIES {
            match self.try_stock(key).await {
                Ok(Ok(None)) => return Ok(()),
                Ok(Ok(Some(event))) => {
                    self.tell_repair(&event, tell);
                    return Ok(());
                }
                Ok(Err(unmendable)) => {
                    self.leave(row, &unmendable, tell);
                    return Ok(());
                }
                Err(error) if passes(&error) => {}
                Err(error @ (StoreError::Constraint { .. } | StoreError::Corrupt(_))) => {
                    self.leave(row, &error, tell);
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
            self.runtime.sleep(PAUSE).await;
        }
        self.leave(row, &LOCKED, tell);
        Ok(())
    }

    async fn try_stock(&self, key: &StockKey) -> Result<Mended, StoreError> {
        let mut transaction = self.store.begin().await?;
        match self.mend_stock(transaction.as_mut(), key).await {
            Ok(mended) => {
                let is_mended = matches!(mended, Ok(Some(_)));
                self.end(transaction, is_mended).await?;
                Ok(mended)
            }
            Err(error) => {
                transaction.rollback().await;
                Err(error)
            }
        }
    }

    async fn mend_stock(
        &self,
        tx: &mut dyn Transaction,
        key: &StockKey,
    ) -> Result<Mended, StoreError> {
        let keys = BTreeSet::from([key.clone()]);
        let mut stock = tx.lock_stock(&keys, Wait::Briefly).await?.rows.pop();
        if stock.is_none() {
            // Made before it is counted, so that nobody makes it meanwhile.
            tx.make_stock(&keys).await?;
            let made = tx.lock_stock(&keys, Wait::Briefly).await?.rows.pop();
            stock = made.filter(|made| made.on_hand > 0 || made.held > 0);
        }
        let now = tx.now().await?;
        let claimed = tx.claimed_units(key).await?;
        let planned = self.planned.get(key).copied().unwrap_or_default();
        let recount = Recount {
            key: key.clone(),
            stock,
            claimed: claimed + planned,
            at_least: self.doubt,
        };
        let changes = match mend_stock(&recount, now) {
            Ok(changes) => changes.unwrap_or_default(),
            Err(unmendable) => return Ok(Err(unmendable)),
        };
        if self.apply {
            tx.write_rest(&changes, &[], now).await?;
        }
        Ok(Ok(changes.events.into_iter().next()))
    }

    /// Keeps what was done, if it shall be done.
    async fn end(
        &self,
        transaction: Box<dyn Transaction>,
        is_changed: bool,
    ) -> Result<(), StoreError> {
        if self.apply && is_changed {
            return transaction.commit().await;
        }
        transaction.rollback().await;
        Ok(())
    }

    fn tell_repair(&mut self, event: &Event, tell: &mut impl FnMut(Finding)) {
        let data = event.data.value();
        let row = match event.reservation_id {
            Some(id) => format!("reservation {id}"),
            None => format!(
                "stock {} at {}",
                text(&data["sku"]),
                text(&data["location"])
            ),
        };
        self.run.repaired += 1;
        tell(Finding {
            row,
            repair: Some(data),
            left: None,
        });
    }

    fn leave(&mut self, row: String, why: &impl std::fmt::Display, tell: &mut impl FnMut(Finding)) {
        if self.left.insert(row.clone()) {
            self.run.left += 1;
            tell(Finding {
                row,
                repair: None,
                left: Some(why.to_string()),
            });
        }
    }
}

/// Will the same again perhaps work? Counts that do not fit come from somebody who mends the same.
fn passes(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::Contended(_) | StoreError::RowCount { .. }
    )
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
