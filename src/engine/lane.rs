//! A lane: one writer that makes one transaction out of what many callers want.
//!
//! While a lane's transaction runs, commands queue up in its inbox; the next transaction takes
//! them all, up to a cap that keeps it at about 20 ms. No waiting is added: an idle lane runs a
//! lone command at once. A row that everybody wants is so locked, and the disk flushed, once per
//! batch and not once per caller.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::batch::Batch;
use super::cap::next_cap;
use super::parking;
use super::suspects::Suspects;
use super::ticket::{Aside, Claim, Done, Failure, Ticket, Verdict, answer, expiries, fail};
use super::word::reply_word;
use super::{Due, EngineError, INBOX_CAPACITY, Released, Reply, Runtime};
use crate::domain::{Command, Job, Lacking, PaceRule, RetryBudget, Rules, StockKey, Via};
use crate::metrics::{LaneLabel, Metrics, OutcomeLabel, ViaLabel};
use crate::store::{Fate, Store, StoreError, TransactionId, Wait};

/// How long a command rests that another transaction stands in the way of.
const ASIDE_PAUSE: Duration = Duration::from_millis(10);
/// How often, and at which distance, a database that is out of reach is tried again.
const UNAVAILABLE_RETRIES: usize = 2;
const UNAVAILABLE_PAUSE: Duration = Duration::from_millis(50);
/// For how long, and at which distance, the fate of a lost commit is asked.
const FATE_PATIENCE: Duration = Duration::from_secs(4);
const FATE_PAUSE: Duration = Duration::from_millis(100);

/// What comes into a lane's inbox.
pub(super) enum Ask {
    /// Decide this.
    Command(Box<Ticket>),
    /// Release what is due.
    Due(DueAsk),
    /// Finish what is in the inbox, take no more, then say so.
    Stop(oneshot::Sender<()>),
}

/// A request to release what is due.
pub(super) struct DueAsk {
    pub due: Due,
    pub reply: oneshot::Sender<Result<Released, EngineError>>,
}

pub(super) struct Lane {
    pub label: LaneLabel,
    pub inbox: mpsc::Receiver<Ask>,
    pub store: Arc<dyn Store>,
    pub runtime: Arc<dyn Runtime>,
    pub metrics: Arc<Metrics>,
    pub rules: Rules,
    pub pace: Option<Arc<PaceRule>>,
    pub retry_budget: RetryBudget,
    /// How long a command may wait for rows that others have locked.
    pub patience: Duration,
    pub state: LaneState,
}

/// What a lane remembers from batch to batch.
pub(super) struct LaneState {
    /// The most commands of the next batch.
    cap: usize,
    suspects: Suspects,
    /// Commands that could not be decided yet, no more than fit into an inbox, and when they are
    /// tried again.
    aside: VecDeque<Ticket>,
    /// Until when they rest, if they do. It is not put off by what is set aside meanwhile, or in
    /// a busy lane nothing would ever be tried again.
    aside_until: Option<Duration>,
    stopped: Option<oneshot::Sender<()>>,
}

impl Default for LaneState {
    fn default() -> Self {
        Self {
            cap: 64,
            suspects: Suspects::default(),
            aside: VecDeque::new(),
            aside_until: None,
            stopped: None,
        }
    }
}

/// What is run as one transaction, unless it has to be cut.
struct Part {
    tickets: Vec<Ticket>,
    claim: Option<Claim>,
}

/// What the parts of one batch did together.
#[derive(Default)]
struct Tally {
    released: Released,
    /// Due holds that stand in the way of commands set aside.
    units: BTreeMap<StockKey, i64>,
    jobs: Vec<Job>,
    error: Option<EngineError>,
}

impl Tally {
    fn demand(&mut self, lacking: Lacking) {
        match lacking {
            Lacking::Units(units) => {
                for (key, units) in units {
                    *self.units.entry(key).or_default() += units;
                }
            }
            Lacking::Release(job) => self.jobs.push(job),
        }
    }
}

impl Lane {
    /// Runs until it is told to stop.
    pub async fn run(mut self) {
        while let Some((tickets, due)) = self.next().await {
            self.serve(tickets, due).await;
        }
        if let Some(stopped) = self.state.stopped.take() {
            let _ = stopped.send(());
        }
    }

    /// Waits for something to do, and takes all that is there, up to the cap.
    async fn next(&mut self) -> Option<(Vec<Ticket>, Option<DueAsk>)> {
        let mut due = None;
        let mut tickets = Vec::new();
        let first = if self.state.aside.is_empty() {
            Some(self.inbox.recv().await?)
        } else {
            let rested = self.runtime.sleep(self.rest());
            if self.inbox.is_closed() && self.inbox.is_empty() {
                rested.await;
                None
            } else {
                tokio::select! {
                    biased;
                    ask = self.inbox.recv() => ask,
                    () = rested => None,
                }
            }
        };
        if self.rest().is_zero() {
            self.state.aside_until = None;
            let most = self.state.aside.len().min(self.state.cap);
            tickets.extend(self.state.aside.drain(..most));
        }
        let mut next = first;
        while let Some(ask) = next {
            match ask {
                Ask::Command(ticket) => tickets.push(*ticket),
                Ask::Due(ask) => due = Some(ask),
                Ask::Stop(stopped) => {
                    self.inbox.close();
                    self.state.stopped = Some(stopped);
                }
            }
            if tickets.len() >= self.state.cap || due.is_some() {
                break;
            }
            next = self.inbox.try_recv().ok();
        }
        let depth = i64::try_from(self.inbox.len()).unwrap_or(i64::MAX);
        self.metrics
            .lane_depth
            .get_or_create(&self.label)
            .set(depth);
        let waiting = self.still_wanted(tickets);
        Some((waiting, due))
    }

    /// How long commands that were set aside still rest.
    fn rest(&self) -> Duration {
        let until = self.state.aside_until.unwrap_or_default();
        until.saturating_sub(self.runtime.elapsed())
    }

    /// Leaves out callers who hung up, and answers those whose patience is at its end.
    fn still_wanted(&self, tickets: Vec<Ticket>) -> Vec<Ticket> {
        let now = self.runtime.elapsed();
        let mut wanted = Vec::with_capacity(tickets.len());
        for mut ticket in tickets {
            match &ticket.caller {
                Some(caller) if caller.reply.is_closed() => {}
                Some(caller) if now.saturating_sub(caller.arrived) > self.patience => {
                    let error = if caller.awaits_key {
                        EngineError::KeyInUse
                    } else {
                        EngineError::overloaded()
                    };
                    answer(&mut ticket, Err(error));
                }
                _ => wanted.push(ticket),
            }
        }
        wanted
    }

    /// Runs one batch, and what must come before commands that it set aside.
    async fn serve(&mut self, tickets: Vec<Ticket>, due: Option<DueAsk>) {
        let most = due.as_ref().map_or(usize::MAX, |ask| ask.due.most);
        let limit = self.state.cap.min(most);
        let claim = due.as_ref().map(|ask| Claim::Due {
            due: ask.due,
            limit,
        });
        let mut tally = self.run_parts(Part { tickets, claim }).await;
        tally.released.full = tally.released.claimed >= limit;
        if let Some(due) = due {
            let reply = match tally.error.take() {
                Some(error) => Err(error),
                None => Ok(tally.released),
            };
            let _ = due.reply.send(reply);
        }
        if tally.units.is_empty() && tally.jobs.is_empty() {
            return;
        }
        let demanded = self
            .run_parts(Part {
                tickets: expiries(tally.jobs, Via::Demand),
                claim: Some(Claim::Of(tally.units)),
            })
            .await;
        // When nothing could be released, somebody else is about to release it.
        if demanded.released.released > 0 {
            self.state.aside_until = None;
        }
    }

    async fn run_parts(&mut self, whole: Part) -> Tally {
        let mut tally = Tally::default();
        let mut parts = vec![whole];
        while let Some(part) = parts.pop() {
            if let Some((first, second)) = self.run_part(part, &mut tally).await {
                parts.push(second);
                parts.push(first);
            }
        }
        tally
    }

    /// Runs one transaction, again if another one was in the way. A part in which a row refuses
    /// comes back in two halves, until the row that refuses is alone.
    async fn run_part(&mut self, part: Part, tally: &mut Tally) -> Option<(Part, Part)> {
        let Part { tickets, claim } = part;
        if tickets.is_empty() && claim.is_none() {
            return None;
        }
        let mut wait = Wait::Briefly;
        let mut unavailable = 0;
        loop {
            let failure = match self.attempt(&tickets, claim.as_ref(), wait).await {
                Ok(done) => {
                    self.finish(tickets, done, tally);
                    return None;
                }
                Err(failure) => failure,
            };
            match failure.error {
                StoreError::CommitLost(_) => {
                    fail(tickets, || EngineError::FateUnknown);
                    tally.error = Some(EngineError::FateUnknown);
                    return None;
                }
                StoreError::Contended(detail) => {
                    tracing::debug!(lane = %self.label.lane, detail, "contended");
                    self.metrics.contended.get_or_create(&self.label).inc();
                    if wait == Wait::Skip {
                        self.set_aside(tickets);
                        return None;
                    }
                    self.state.suspects.distrust(self.runtime.elapsed());
                    wait = Wait::Skip;
                }
                error if error.is_about_rows() => {
                    let via = claim.as_ref().map_or(Via::Timer, Claim::via);
                    tally.released.claimed += failure.claimed.len();
                    let claimed = expiries(failure.claimed, via);
                    return self
                        .cut(tickets.into_iter().chain(claimed).collect(), error)
                        .await;
                }
                error if unavailable >= UNAVAILABLE_RETRIES => {
                    tracing::error!(lane = %self.label.lane, %error, "a batch failed");
                    fail_all(tickets, error, tally);
                    return None;
                }
                error => {
                    tracing::warn!(lane = %self.label.lane, %error, "a batch is tried again");
                    unavailable += 1;
                    self.runtime.sleep(UNAVAILABLE_PAUSE).await;
                }
            }
        }
    }

    /// Runs one transaction once. Where its COMMIT was lost, the database is asked what became of
    /// it, and the error stays only if it does not say.
    async fn attempt(
        &mut self,
        tickets: &[Ticket],
        claim: Option<&Claim>,
        wait: Wait,
    ) -> Result<Done, Failure> {
        let started = self.runtime.elapsed();
        self.state.suspects.review(started);
        let suspects = &mut self.state.suspects;
        let batch = Batch::new(self.rules, self.pace.as_ref(), tickets, wait, suspects);
        let mut failure = match batch.run(self.store.as_ref(), claim).await {
            Ok(done) => {
                self.measure(tickets.len() + done.claimed, started);
                return Ok(done);
            }
            Err(failure) => failure,
        };
        if let StoreError::CommitLost(transaction) = &failure.error {
            match self.fate(transaction.clone()).await {
                Fate::Committed => return Ok(failure.done),
                Fate::Aborted => {
                    failure.error = StoreError::Unavailable("lost during COMMIT".to_owned());
                }
                Fate::Unknown => {}
            }
        }
        Err(failure)
    }

    /// Asks what became of a transaction until the database knows.
    async fn fate(&self, transaction: TransactionId) -> Fate {
        tracing::warn!(lane = %self.label.lane, ?transaction, "lost during COMMIT");
        let until = self.runtime.elapsed() + FATE_PATIENCE;
        loop {
            match self.store.fate(transaction.clone()).await {
                Ok(Fate::Unknown) | Err(_) if self.runtime.elapsed() < until => {
                    self.runtime.sleep(FATE_PAUSE).await;
                }
                Ok(fate) => return fate,
                Err(_) => return Fate::Unknown,
            }
        }
    }

    /// Cuts a part in which a row refuses. What its claim found has become commands, so that it
    /// is cut as well.
    async fn cut(&mut self, mut tickets: Vec<Ticket>, error: StoreError) -> Option<(Part, Part)> {
        if tickets.len() > 1 {
            let second = tickets.split_off(tickets.len() / 2);
            let part = |tickets| Part {
                tickets,
                claim: None,
            };
            return Some((part(tickets), part(second)));
        }
        let Some(ticket) = tickets.pop() else {
            tracing::error!(%error, "due holds cannot be looked for");
            return None;
        };
        tracing::error!(command = ticket.command.as_str(), %error, "a row refuses");
        if let Command::Expire { job, .. } = &ticket.command {
            self.metrics.stuck_holds.inc();
            let (store, random) = (self.store.as_ref(), self.runtime.random());
            let put_off = parking::put_off(store, *job, &error, self.retry_budget, random).await;
            if let Err(error) = put_off {
                tracing::error!(reservation = %job.reservation, %error, "cannot put off a hold");
            }
        }
        let error = Arc::new(error);
        fail(vec![ticket], || EngineError::Store(Arc::clone(&error)));
        None
    }

    /// Answers those that were decided and keeps the others.
    fn finish(&mut self, tickets: Vec<Ticket>, done: Done, tally: &mut Tally) {
        for release in &done.releases {
            let label = ViaLabel {
                via: release.via.as_str(),
            };
            self.metrics
                .lateness_seconds
                .get_or_create(&label)
                .observe(release.lateness_ms as f64 / 1_000.0);
            tracing::debug!(
                via = release.via.as_str(),
                lateness_ms = release.lateness_ms,
                limiter_ms = release.waits.limiter_ms,
                retry_ms = release.waits.retry_ms,
                attempts = release.waits.attempts,
                "released"
            );
        }
        let denials = u64::try_from(done.denials).unwrap_or(u64::MAX);
        self.metrics.admission_denials.inc_by(denials);
        for (_, row) in &done.stuck {
            tracing::error!(%row, "a hold cannot be understood, and is given up");
            self.metrics.stuck_holds.inc();
        }
        tally.released.released += done.releases.len();
        tally.released.claimed += done.claimed;
        let mut aside = Vec::new();
        let mut first = Vec::new();
        for (mut ticket, verdict) in tickets.into_iter().zip(done.verdicts) {
            match verdict {
                Verdict::Answered(reply) => {
                    self.count(&ticket.command, &reply);
                    answer(&mut ticket, Ok(reply));
                }
                Verdict::Failed(error) => answer(&mut ticket, Err(error)),
                Verdict::Aside(why) => {
                    if let Some(caller) = &mut ticket.caller {
                        caller.awaits_key = matches!(why, Aside::Key);
                    }
                    match why {
                        Aside::Due(lacking) => {
                            tally.demand(lacking);
                            first.push(ticket);
                        }
                        Aside::Key | Aside::Rows => aside.push(ticket),
                    }
                }
            }
        }
        // Before the others, so that what is released for them is not given to somebody else.
        if !first.is_empty() {
            first.extend(std::mem::take(&mut self.state.aside));
            self.set_aside(first);
        }
        self.set_aside(aside);
    }

    /// Keeps commands for a later batch, but not expiries that nobody waits for: those are found
    /// again by whoever wanted them.
    fn set_aside(&mut self, tickets: Vec<Ticket>) {
        let until = self.runtime.elapsed() + ASIDE_PAUSE;
        self.state.aside_until.get_or_insert(until);
        for mut ticket in tickets.into_iter().filter(|ticket| ticket.caller.is_some()) {
            if self.state.aside.len() < INBOX_CAPACITY {
                self.state.aside.push_back(ticket);
            } else {
                answer(&mut ticket, Err(EngineError::overloaded()));
            }
        }
    }

    fn count(&self, command: &Command, reply: &Reply) {
        let label = OutcomeLabel {
            command: command.as_str(),
            outcome: reply_word(reply),
        };
        self.metrics.outcomes.get_or_create(&label).inc();
    }

    /// Records a transaction, and makes the next one larger or smaller, so that a full one takes
    /// about 20 ms. One that failed says nothing about sizes, least of all one that
    /// waited for a lock.
    fn measure(&mut self, size: usize, started: Duration) {
        let took = self.runtime.elapsed().saturating_sub(started);
        self.metrics
            .batch_size
            .get_or_create(&self.label)
            .observe(size as f64);
        self.metrics
            .batch_seconds
            .get_or_create(&self.label)
            .observe(took.as_secs_f64());
        tracing::debug!(
            lane = %self.label.lane,
            size,
            duration_ms = took.as_millis(),
            "batch"
        );
        self.state.cap = next_cap(self.state.cap, size, took);
    }
}

fn fail_all(tickets: Vec<Ticket>, error: StoreError, tally: &mut Tally) {
    let error = Arc::new(error);
    fail(tickets, || EngineError::Store(Arc::clone(&error)));
    tally.error = Some(EngineError::Store(error));
}
