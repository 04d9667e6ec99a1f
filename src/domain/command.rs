//! What can be asked, and what comes of it.

use std::collections::BTreeMap;

use super::{
    Changes, CustomerId, Job, Line, Merchant, Metadata, PaymentReference, Reason, Reference,
    Reservation, ReservationId, State, Stock, StockKey, Timestamp, reservation,
};

/// Something to be done to reservations or stock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Set stock aside.
    Reserve(Reserve),
    /// Move the deadline of a living hold to a later instant.
    Extend {
        /// Which hold.
        id: ReservationId,
        /// To when; seconds count from the present deadline.
        until: Deadline,
    },
    /// Sell what is held.
    CheckOut {
        /// Which hold.
        id: ReservationId,
        /// The payment, if it has a name.
        payment_reference: Option<PaymentReference>,
        /// What to do if the deadline has passed.
        on_expired: OnExpired,
    },
    /// Give back what is held.
    Cancel {
        /// Which hold.
        id: ReservationId,
        /// Why; it goes into the event.
        reason: Option<Reason>,
    },
    /// Release a hold whose deadline has passed. Every path to expiry ends here.
    Expire {
        /// Which hold, at which deadline.
        job: Job,
        /// By which path the job came.
        via: Via,
        /// What to do if the deadline has not come.
        early: Early,
    },
    /// Set what is on hand, as after a count.
    SetStock {
        /// Which row; it is made if it does not exist.
        key: StockKey,
        /// Units, 0 to [`super::MAX_ON_HAND`].
        on_hand: i64,
    },
    /// Change what is on hand, as after a delivery or a breakage.
    AdjustStock {
        /// Which row; it is made if it does not exist.
        key: StockKey,
        /// Units to add, or to take away if negative.
        delta: i64,
        /// Why; it goes into the event.
        reason: Option<Reason>,
    },
}

impl Command {
    /// The word for it in metrics and logs.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Reserve(_) => "reserve",
            Self::Extend { .. } => "extend",
            Self::CheckOut { .. } => "checkout",
            Self::Cancel { .. } => "cancel",
            Self::Expire { .. } => "expire",
            Self::SetStock { .. } => "set_stock",
            Self::AdjustStock { .. } => "adjust_stock",
        }
    }

    /// The reservation that the command is about, unless it makes one.
    pub const fn reservation(&self) -> Option<ReservationId> {
        match self {
            Self::Extend { id, .. } | Self::CheckOut { id, .. } | Self::Cancel { id, .. } => {
                Some(*id)
            }
            Self::Expire { job, .. } => Some(job.reservation),
            Self::Reserve(_) | Self::SetStock { .. } | Self::AdjustStock { .. } => None,
        }
    }

    /// The units of stock that the command itself names: those that a reserve wants, and none,
    /// but the row, for a stock operation.
    pub fn units(&self) -> BTreeMap<StockKey, i64> {
        match self {
            Self::Reserve(reserve) => reserve.units(),
            Self::SetStock { key, .. } | Self::AdjustStock { key, .. } => [(key.clone(), 0)].into(),
            _ => BTreeMap::new(),
        }
    }
}

/// The particulars of a new reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserve {
    /// Randomness for the name; the rest of the name is the instant of creation.
    pub entropy: [u8; 10],
    /// What is wanted: 1 to [`super::MAX_LINES`] lines, all of it or nothing.
    pub lines: Vec<Line>,
    /// Until when; seconds count from the creation.
    pub until: Deadline,
    /// On whose behalf it is wanted.
    pub merchant: Merchant,
    /// Who wants it.
    pub customer_id: Option<CustomerId>,
    /// The caller's own name for it.
    pub reference: Option<Reference>,
    /// The caller's own pairs.
    pub metadata: Metadata,
}

impl Reserve {
    /// The units wanted of each row of stock.
    pub fn units(&self) -> BTreeMap<StockKey, i64> {
        reservation::units(&self.lines)
    }
}

/// A deadline as it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deadline {
    /// So many seconds on.
    In {
        /// Seconds.
        seconds: i64,
    },
    /// At this instant.
    At(Timestamp),
}

impl Deadline {
    /// The instant meant, if there is one between 1970 and 9999; seconds count from `start`.
    pub fn counted_from(self, start: Timestamp) -> Option<Timestamp> {
        match self {
            Self::In { seconds } => start.checked_add_seconds(seconds),
            Self::At(instant) => Some(instant),
        }
    }
}

/// What a checkout does when the deadline has passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnExpired {
    /// Refuse.
    #[default]
    Reject,
    /// Take the stock again, if there is enough.
    Reacquire,
}

/// The path by which an expiry job came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Via {
    /// The expirer found the hold by itself, at its deadline.
    Timer,
    /// The expirer found a hold that a queue should have ended some time before.
    Sweep,
    /// A reserve needed the units (P11), or a late payment the reservation.
    Demand,
    /// A queue handed the job to us.
    Push,
    /// We fetched the job from a queue.
    Pull,
    /// An operator had a case in quarantine tried again.
    Replay,
}

impl Via {
    /// The word for it in the ledger, in events and in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Timer => "timer",
            Self::Sweep => "sweep",
            Self::Demand => "demand",
            Self::Push => "push",
            Self::Pull => "pull",
            Self::Replay => "replay",
        }
    }

    /// Was it brought by a queue, which has no idea when the hold is tried next?
    pub const fn is_brought(self) -> bool {
        matches!(self, Self::Push | Self::Pull)
    }

    /// Does the pace of releases hold for it? Not where a shopper waits (P11).
    pub const fn is_paced(self) -> bool {
        !matches!(self, Self::Demand)
    }
}

/// What an expiry job does that comes too early: before its deadline (P3), or before its permit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Early {
    /// Say so; whoever brought it comes again.
    #[default]
    Report,
    /// Say so, and have another copy of the job published for then, because whoever brought
    /// it does not come again.
    Rearm,
}

/// What `decide` says to one command.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly every decision is the large one"
)]
pub enum Decision {
    /// It is decided: the answer, and what must change together with it.
    Done {
        /// The answer.
        outcome: Outcome,
        /// What must be stored in the same transaction.
        changes: Changes,
    },
    /// Due holds stand in the way. They are expired first, in a transaction of their own, and
    /// then the command is decided anew (P11).
    SetAside(Lacking),
}

/// Which due holds stand in the way of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lacking {
    /// So many units of each of these; due holds have enough of them.
    Units(BTreeMap<StockKey, i64>),
    /// This hold itself, which is due and not released yet.
    Release(Job),
}

/// The answer to a command: a value for every case, errors included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The reservation as it now stands.
    Reservation {
        /// The row.
        reservation: Box<Reservation>,
        /// Whether the command made it.
        created: bool,
    },
    /// The row of stock as it now stands.
    Stock(Stock),
    /// What became of an expiry job.
    Job(JobOutcome),
    /// Why not.
    Refused(Refusal),
}

/// What became of an expiry job. All but `Expired` leave the reservation as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobOutcome {
    /// This job released the hold.
    Expired,
    /// The ledger shows that this job was done before.
    Duplicate,
    /// The deadline has moved since the job was made (P4).
    Stale,
    /// The hold was paid in time.
    Paid,
    /// The hold was cancelled in time.
    Cancelled,
    /// The hold had expired, and the ledger no longer shows by which job.
    AlreadyExpired,
    /// The deadline has not come (P3).
    NotDue {
        /// When it will.
        deadline: Timestamp,
        /// The clock that decided.
        now: Timestamp,
    },
    /// It is due, and has to wait: its permit comes later, or the last try failed.
    Deferred {
        /// Until when.
        attempt_at: Timestamp,
        /// The clock that decided.
        now: Timestamp,
    },
    /// It is due, and its release was given up: an operator has to look at it first.
    Parked,
    /// No such reservation.
    Unknown,
}

impl JobOutcome {
    /// The word for it in the ledger, in answers and in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Duplicate => "duplicate",
            Self::Stale => "stale",
            Self::Paid => "paid",
            Self::Cancelled => "cancelled",
            Self::AlreadyExpired => "already_expired",
            Self::NotDue { .. } => "not_due",
            Self::Deferred { .. } => "deferred",
            Self::Parked => "parked",
            Self::Unknown => "unknown",
        }
    }
}

/// Why a command was refused. It changed nothing, except that a refused checkout with a payment
/// reference leaves one event, because money may have been taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Not enough units, due ones counted in.
    InsufficientStock {
        /// Every row of stock that falls short.
        short: Vec<Shortage>,
    },
    /// The reservation has left `held`.
    NotHeld {
        /// Which one.
        id: ReservationId,
        /// Where it stands.
        state: State,
        /// The payment that won, on a paid one.
        payment_reference: Option<PaymentReference>,
    },
    /// The deadline has passed, whether or not the hold has been released.
    Expired {
        /// Which one.
        id: ReservationId,
        /// The deadline.
        expires_at: Timestamp,
    },
    /// Fewer units would be on hand than are held.
    StockBelowHeld {
        /// The row as it stands.
        stock: Stock,
        /// What would have been on hand.
        wanted: i64,
    },
    /// More units would be on hand than a row can count.
    StockAboveMaximum {
        /// The row as it stands.
        stock: Stock,
    },
    /// The deadline asked for is too near, too far, or not later.
    HoldLimit {
        /// The clock that decided.
        now: Timestamp,
        /// The earliest deadline that would have been taken.
        earliest: Timestamp,
        /// The latest deadline that would have been taken.
        latest: Timestamp,
    },
    /// No such reservation.
    NotFound {
        /// Which one.
        id: ReservationId,
    },
}

/// A row of stock that has too little.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Which row.
    pub key: StockKey,
    /// Units wanted of it.
    pub wanted: i64,
    /// Units to be had; 0 if the SKU is unknown.
    pub available: i64,
}
