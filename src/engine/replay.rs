//! What an operator does about cases in quarantine: tries them again, or lets them rest.
//!
//! A replay ends in the same command as every expiry, or in another copy of the message for the
//! relay. The guard decides, so that a case may be replayed twice, or by two at once, and still
//! nothing is done twice. What was done about a case is written down with who did it.

mod many;

use std::fmt;
use std::sync::Arc;

use super::{Engine, EngineError, Reply, Runtime};
use crate::domain::{
    Command, Early, Job, JobOutcome, Message, Outcome, Reason, ReservationId, State, Via,
};
use crate::store::{
    ActionKind, CaseAction, HOLD, QuarantineCase, RELAY, RESOLVED, Sighting, StoreError,
};

pub use many::{ManyReplayed, ReplayMany};

/// The cases in quarantine, for an operator. Clones share everything.
#[derive(Clone)]
pub struct Cases {
    engine: Engine,
    runtime: Arc<dyn Runtime>,
}

/// What came of the replay of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replayed {
    /// What the guard said to its job.
    Job(JobOutcome),
    /// Its message waits in the outbox again, to be published at once.
    Rearmed,
    /// It is still nothing that could be done, and why.
    Invalid(String),
    /// A row refuses to be changed, and why.
    Blocked(String),
    /// The case was resolved before, and nothing was done.
    Resolved,
}

impl Replayed {
    /// The words for all of them.
    pub const WORDS: [&str; 14] = [
        "expired",
        "deferred",
        "rearmed",
        "duplicate",
        "stale",
        "paid",
        "cancelled",
        "already_expired",
        RESOLVED,
        "not_due",
        "parked",
        "unknown",
        "invalid",
        "blocked",
    ];

    /// The word for it.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Job(outcome) => outcome.as_str(),
            Self::Rearmed => "rearmed",
            Self::Invalid(_) => "invalid",
            Self::Blocked(_) => "blocked",
            Self::Resolved => RESOLVED,
        }
    }

    /// Why the case stays open, where the word does not say all.
    pub fn detail(&self) -> Option<String> {
        match self {
            Self::Invalid(reason) | Self::Blocked(reason) => Some(reason.clone()),
            Self::Job(JobOutcome::NotDue { deadline, .. }) => {
                Some(format!("the hold is due at {deadline}"))
            }
            Self::Job(JobOutcome::Deferred { attempt_at, .. }) => Some(format!(
                "the hold is released at {attempt_at} at the earliest"
            )),
            Self::Job(JobOutcome::Parked) => {
                Some("the release of the hold was given up, and has a case of its own".to_owned())
            }
            Self::Job(JobOutcome::Unknown) => Some("there is no such reservation".to_owned()),
            Self::Job(_) | Self::Rearmed | Self::Resolved => None,
        }
    }

    /// Is nothing left to be done about the case?
    fn is_end(&self) -> bool {
        match self {
            Self::Job(outcome) => matches!(
                outcome,
                // One that has to wait for its turn is not forgotten any more.
                JobOutcome::Expired
                    | JobOutcome::Deferred { .. }
                    | JobOutcome::Duplicate
                    | JobOutcome::Stale
                    | JobOutcome::Paid
                    | JobOutcome::Cancelled
                    | JobOutcome::AlreadyExpired
            ),
            Self::Rearmed | Self::Resolved => true,
            Self::Invalid(_) | Self::Blocked(_) => false,
        }
    }
}

impl fmt::Display for Replayed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.as_str())?;
        match self.detail() {
            Some(detail) => write!(out, ": {detail}"),
            None => Ok(()),
        }
    }
}

/// What came of a dismissal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dismissed {
    /// The case is settled, by this or by something before.
    Done,
    /// The case is about a hold that stands. Nobody would try to release it, nor look for it.
    StillHeld,
    /// There is no such case.
    NoCase,
}

impl Cases {
    /// The cases in the store of `engine`.
    pub fn new(engine: Engine, runtime: Arc<dyn Runtime>) -> Self {
        Self { engine, runtime }
    }

    /// Tries a case again on behalf of `by`, and settles it if that brought it to its end; `None`
    /// if there is no such case. After an error the case is as it was, and can be replayed again.
    pub async fn replay(&self, id: i64, by: &str) -> Result<Option<Replayed>, EngineError> {
        let Some(case) = self.find(id).await? else {
            return Ok(None);
        };
        let mut again = None;
        let replayed = match (&case.resolution, asked(&case.sighting)) {
            (Some(_), _) => Replayed::Resolved,
            (None, Err(invalid)) => invalid,
            (None, Ok(Asked::Job(job))) => self.expire(job).await?,
            (None, Ok(Asked::Hold(id))) => self.take_up(id).await?,
            (None, Ok(Asked::Message(message))) => {
                again = Some(message);
                self.foresee_message(message.job).await?
            }
        };
        let action = CaseAction {
            case: id,
            kind: ActionKind::Replay,
            by: by.to_owned(),
            outcome: replayed.to_string(),
            resolution: (replayed.is_end()).then(|| format!("replayed: {}", replayed.as_str())),
            again: again.filter(|_| replayed == Replayed::Rearmed),
        };
        let was_open = self.act(&action).await?;
        Ok(Some(if was_open {
            replayed
        } else {
            Replayed::Resolved
        }))
    }

    /// Settles a case without doing anything about it.
    pub async fn dismiss(
        &self,
        id: i64,
        reason: &Reason,
        by: &str,
    ) -> Result<Dismissed, EngineError> {
        let Some(case) = self.find(id).await? else {
            return Ok(Dismissed::NoCase);
        };
        if case.resolution.is_none() && self.is_held(&case.sighting).await? {
            return Ok(Dismissed::StillHeld);
        }
        let told = format!("dismissed: {reason}");
        let action = CaseAction {
            case: id,
            kind: ActionKind::Dismiss,
            by: by.to_owned(),
            outcome: told.clone(),
            resolution: Some(told),
            again: None,
        };
        self.act(&action).await?;
        Ok(Dismissed::Done)
    }

    async fn find(&self, id: i64) -> Result<Option<QuarantineCase>, EngineError> {
        let found = self.engine.store().quarantine().find(id).await;
        Ok(found.map_err(Arc::new)?.map(|(case, _)| case))
    }

    async fn act(&self, action: &CaseAction) -> Result<bool, EngineError> {
        let (case, by, outcome) = (action.case, &action.by, &action.outcome);
        let kind = action.kind.as_str();
        tracing::info!(case, kind, by, outcome, "an operator acts on quarantine");
        let acted = self.engine.store().quarantine().act(action).await;
        Ok(acted.map_err(Arc::new)?)
    }

    /// Has a hold released that was given up.
    async fn take_up(&self, id: ReservationId) -> Result<Replayed, EngineError> {
        let job = match self.job_of(id).await? {
            Ok(job) => job,
            Err(replayed) => return Ok(replayed),
        };
        match self.engine.resume(id).await {
            Ok(_) => self.expire(job).await,
            Err(EngineError::Store(error)) => blocked(error),
            Err(error) => Err(error),
        }
    }

    async fn expire(&self, job: Job) -> Result<Replayed, EngineError> {
        let command = Command::Expire {
            job,
            via: Via::Replay,
            early: Early::Report,
        };
        match self.engine.submit(command, None).await {
            Ok(Reply::Decided(Outcome::Job(outcome))) => Ok(Replayed::Job(outcome)),
            // An expiry comes to nothing else; whoever asked finds out by asking again.
            Ok(_) => Err(EngineError::FateUnknown),
            Err(EngineError::Store(error)) => blocked(error),
            Err(error) => Err(error),
        }
    }

    /// What would come of a case, as far as looking tells.
    async fn foresee(&self, case: &QuarantineCase) -> Result<Replayed, EngineError> {
        match asked(&case.sighting) {
            Err(invalid) => Ok(invalid),
            Ok(Asked::Job(job)) => self.foresee_job(job).await,
            Ok(Asked::Message(message)) => self.foresee_message(message.job).await,
            Ok(Asked::Hold(id)) => match self.job_of(id).await? {
                Ok(job) => Ok(match self.foresee_job(job).await? {
                    Replayed::Job(JobOutcome::Parked) => Replayed::Job(JobOutcome::Expired),
                    other => other,
                }),
                Err(replayed) => Ok(replayed),
            },
        }
    }

    /// A message is wanted for as long as its hold stands, due or not.
    async fn foresee_message(&self, job: Job) -> Result<Replayed, EngineError> {
        Ok(match self.foresee_job(job).await? {
            Replayed::Job(JobOutcome::Expired | JobOutcome::NotDue { .. } | JobOutcome::Parked) => {
                Replayed::Rearmed
            }
            other => other,
        })
    }

    async fn foresee_job(&self, job: Job) -> Result<Replayed, EngineError> {
        let (found, now) = match self.engine.store().reservation(job.reservation).await {
            Ok(found) => found,
            Err(error) => return blocked(Arc::new(error)),
        };
        Ok(Replayed::Job(match found {
            None => JobOutcome::Unknown,
            Some(found) if found.expires_at != job.deadline => JobOutcome::Stale,
            Some(found) => match found.state {
                State::Paid => JobOutcome::Paid,
                State::Cancelled => JobOutcome::Cancelled,
                State::Expired => JobOutcome::AlreadyExpired,
                State::Held if now < found.expires_at => JobOutcome::NotDue {
                    deadline: found.expires_at,
                    now,
                },
                State::Held if found.is_parked() => JobOutcome::Parked,
                State::Held => JobOutcome::Expired,
            },
        }))
    }

    /// The job of a hold by the deadline that it has now: its row may have been mended, and while it
    /// could not be read nobody knew of a deadline.
    async fn job_of(&self, id: ReservationId) -> Result<Result<Job, Replayed>, EngineError> {
        match self.engine.store().reservation(id).await {
            Ok((Some(found), _)) => Ok(Ok(found.job())),
            Ok((None, _)) => Ok(Err(Replayed::Job(JobOutcome::Unknown))),
            Err(error) => blocked(Arc::new(error)).map(Err),
        }
    }

    /// Is this about a hold whose release was given up, and that stands? One that cannot be read
    /// is believed to.
    async fn is_held(&self, sighting: &Sighting) -> Result<bool, EngineError> {
        let id = sighting.key.parse::<ReservationId>();
        let Some(id) = id.ok().filter(|_| sighting.source == HOLD) else {
            return Ok(false);
        };
        match self.engine.store().reservation(id).await {
            Ok((found, _)) => Ok(found.is_some_and(|found| found.state == State::Held)),
            Err(error) => blocked(Arc::new(error)).map(|_| true),
        }
    }
}

/// What a case asks for.
enum Asked {
    /// This job, which a queue has brought.
    Job(Job),
    /// This message, which the relay has given up.
    Message(Message),
    /// The release of this hold.
    Hold(ReservationId),
}

fn asked(sighting: &Sighting) -> Result<Asked, Replayed> {
    if sighting.source == HOLD {
        let id = sighting.key.parse().map(Asked::Hold);
        return id.map_err(|fault| Replayed::Invalid(format!("the key {fault}")));
    }
    let invalid = |reason: String| Replayed::Invalid(format!("the payload {reason}"));
    let job = Job::from_payload(&sighting.payload).map_err(|fault| invalid(fault.to_string()))?;
    if sighting.source != RELAY {
        return Ok(Asked::Job(job));
    }
    let message = Message::of_key(job, &sighting.key).map(Asked::Message);
    message.ok_or_else(|| invalid("is not the one that the key names".to_owned()))
}

/// What a row says that refuses; everything else is an error, and may work later.
fn blocked(error: Arc<StoreError>) -> Result<Replayed, EngineError> {
    if error.is_about_rows() {
        Ok(Replayed::Blocked(error.to_string()))
    } else {
        Err(EngineError::Store(error))
    }
}
