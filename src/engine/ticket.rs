//! What goes through a lane, and what comes of it.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::oneshot;

use super::{Due, EngineError, Keyed, Reply};
use crate::domain::{Command, Early, Job, Lacking, ReservationId, StockKey, Via, Waits};
use crate::store::{CorruptRow, StoreError};

/// One command on its way through a lane.
pub(super) struct Ticket {
    pub command: Command,
    pub keyed: Option<Keyed>,
    /// Who waits for the answer; nobody, for an expiry that the lane itself wants.
    pub caller: Option<Caller>,
}

/// Who waits for an answer.
pub(super) struct Caller {
    pub reply: oneshot::Sender<Result<Reply, EngineError>>,
    /// When the command came, by the runtime's stopwatch.
    pub arrived: Duration,
    /// Whether it waits for a key rather than for rows.
    pub awaits_key: bool,
}

/// Due holds that a batch looks up itself, besides its commands.
pub(super) enum Claim {
    /// The earliest that are due.
    Due { due: Due, limit: usize },
    /// The oldest due ones of these rows of stock, with so many units (P11).
    Of(BTreeMap<StockKey, i64>),
}

impl Claim {
    pub fn via(&self) -> Via {
        match self {
            Self::Due { due, .. } => due.via,
            Self::Of(_) => Via::Demand,
        }
    }
}

/// What a batch says to one of its commands.
pub(super) enum Verdict {
    /// Decided, and durable.
    Answered(Reply),
    /// Not decided, and it will not be.
    Failed(EngineError),
    /// Not decided yet.
    Aside(Aside),
}

/// Why a command was not decided yet.
pub(super) enum Aside {
    /// Another transaction is busy with its Idempotency-Key.
    Key,
    /// Another transaction has locked a row that it needs.
    Rows,
    /// Due holds must be released first.
    Due(Lacking),
}

/// A hold that was released.
pub(super) struct Release {
    /// By which path.
    pub via: Via,
    /// How long after its deadline, in milliseconds.
    pub lateness_ms: i64,
    /// What had put it off.
    pub waits: Waits,
}

/// What a batch did.
#[derive(Default)]
pub(super) struct Done {
    /// One verdict for each item, in order.
    pub verdicts: Vec<Verdict>,
    /// The holds that were released.
    pub releases: Vec<Release>,
    /// How many due holds have to wait for their permits.
    pub denials: usize,
    /// How many due holds the claim found.
    pub claimed: usize,
    /// Holds that could not be understood, and were given up.
    pub stuck: Vec<(ReservationId, CorruptRow)>,
}

/// Why a batch did nothing, or may have.
pub(super) struct Failure {
    pub error: StoreError,
    /// The jobs that the claim had found.
    pub claimed: Vec<Job>,
    /// What the batch did, if it turns out to have been committed.
    pub done: Done,
}

/// Expiries that nobody waits for.
pub(super) fn expiries(jobs: Vec<Job>, via: Via) -> Vec<Ticket> {
    jobs.into_iter()
        .map(|job| Ticket {
            command: Command::Expire {
                job,
                via,
                early: Early::Report,
            },
            keyed: None,
            caller: None,
        })
        .collect()
}

/// Answers all of them with an error.
pub(super) fn fail(tickets: Vec<Ticket>, error: impl Fn() -> EngineError) {
    for mut ticket in tickets {
        answer(&mut ticket, Err(error()));
    }
}

/// Gives a caller the answer. One who has hung up does not get it, and nothing depends on that.
pub(super) fn answer(ticket: &mut Ticket, reply: Result<Reply, EngineError>) {
    if let Some(caller) = ticket.caller.take() {
        let _ = caller.reply.send(reply);
    }
}
