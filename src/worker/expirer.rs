//! The expirer: finds due holds by itself and has them released.
//!
//! With nothing in front of it, it is the timer. It sleeps until the earliest attempt that the
//! database knows, by the database's own clock, and never longer than a safety look: that is how
//! it sees what other instances made. Since the shortest hold is a second and the safety look
//! comes twice as often, every hold is seen before it is due, and no instance has to tell another
//! (or itself) about a new one.
//!
//! Behind a queue, it is the sweep: it leaves each hold to the queue for a grace after its
//! deadline, and releases what the queue has not brought back by then.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::{Next, Worker, millis};
use crate::domain::{Timestamp, Via};
use crate::engine::{Bounds, Due, Engine, EngineError, Released, Runtime, SweepRun};

/// The longest sleep of the timer: half of the shortest hold. The sweep may sleep for its grace
/// besides.
const SAFETY_LOOK: Duration = Duration::from_millis(500);
/// The first rest after a look that found due holds, all locked by others; doubled up to
/// [`SAFETY_LOOK`].
const VAIN_LOOK: Duration = Duration::from_millis(100);
/// The longest sleep of all, so that an expirer that lives is seen to live.
const SIGN_OF_LIFE: Duration = Duration::from_secs(5);
/// How far the watermark stays behind the earliest held attempt, in milliseconds. A transaction
/// that was decided before the look and committed after it lies within this margin.
const WATERMARK_MARGIN_MS: i64 = 60_000;

/// The worker that releases due holds.
pub struct Expirer {
    engine: Engine,
    runtime: Arc<dyn Runtime>,
    /// How often to look from the beginning.
    sweep: Duration,
    /// How long a due hold is left to others, in milliseconds.
    grace_ms: i64,
    via: Via,
    /// No held reservation has an earlier attempt. Looks start here, because released holds leave
    /// dead entries at the beginning of the index that an old snapshot keeps from being removed.
    watermark: Timestamp,
    /// The last batch was full, so there is no need to look before the next one.
    is_storm: bool,
    /// When the next look starts from the beginning, by the runtime's stopwatch.
    next_sweep: Duration,
    vain_look: Duration,
}

impl Expirer {
    /// An expirer that releases holds when they are due. It looks from the beginning at once and
    /// then every `sweep`.
    pub fn timer(engine: Engine, runtime: Arc<dyn Runtime>, sweep: Duration) -> Self {
        Self {
            engine,
            runtime,
            sweep,
            grace_ms: 0,
            via: Via::Timer,
            watermark: Timestamp::EPOCH,
            is_storm: false,
            next_sweep: Duration::ZERO,
            vain_look: VAIN_LOOK,
        }
    }

    /// An expirer that releases holds that are still there so long after they were due, because a
    /// queue has not done it.
    pub fn sweep(
        engine: Engine,
        runtime: Arc<dyn Runtime>,
        sweep: Duration,
        grace: Duration,
    ) -> Self {
        Self {
            grace_ms: millis(grace),
            via: Via::Sweep,
            ..Self::timer(engine, runtime, sweep)
        }
    }

    /// The longest sleep after which no hold is seen too late for its release.
    fn longest_sleep(&self) -> Duration {
        let grace = Duration::from_millis(u64::try_from(self.grace_ms).unwrap_or_default());
        SAFETY_LOOK.saturating_add(grace).min(SIGN_OF_LIFE)
    }

    /// Releases what is to be released now, from the beginning and until nothing is left or a
    /// bound is reached. Any number of runs and workers may be under way at once.
    pub async fn run_bounded(&self, bounds: Bounds) -> Result<SweepRun, EngineError> {
        let began = self.runtime.elapsed();
        let mut run = SweepRun::default();
        let mut left = bounds.max_rows;
        while left > 0 && self.runtime.elapsed().saturating_sub(began) < bounds.max_time {
            let batch = self.release(Timestamp::EPOCH, left).await?;
            if batch.claimed == 0 {
                break;
            }
            run.released += batch.released;
            run.blocked += batch.claimed.saturating_sub(batch.released);
            left = left.saturating_sub(batch.claimed);
        }
        let store = self.engine.store();
        let look = store.next_attempt(Timestamp::EPOCH).await;
        let look = look.map_err(Arc::new)?;
        run.more = look
            .attempt_at
            .is_some_and(|at| at.saturating_add_millis(self.grace_ms) <= look.now);
        run.duration_ms = millis(self.runtime.elapsed().saturating_sub(began));
        Ok(run)
    }

    /// Releases one batch of at most `most`.
    async fn release(&self, from: Timestamp, most: usize) -> Result<Released, EngineError> {
        let due = Due {
            from,
            grace_ms: self.grace_ms,
            most,
            via: self.via,
        };
        self.engine.expire_due(due).await
    }

    /// Releases one batch as it comes, and remembers whether there may be another.
    async fn release_batch(&mut self, from: Timestamp) -> Result<Released, EngineError> {
        let released = self.release(from, usize::MAX).await?;
        self.is_storm = released.full;
        Ok(released)
    }

    /// Where the next look starts.
    fn start_of_look(&mut self) -> Timestamp {
        let elapsed = self.runtime.elapsed();
        if elapsed >= self.next_sweep {
            self.next_sweep = elapsed + self.sweep;
            Timestamp::EPOCH
        } else {
            self.watermark
        }
    }
}

#[async_trait]
impl Worker for Expirer {
    fn name(&self) -> &'static str {
        "expirer"
    }

    async fn run_once(&mut self) -> Result<Next, EngineError> {
        if std::mem::take(&mut self.is_storm) {
            let released = self.release_batch(self.watermark).await?;
            if released.claimed > 0 {
                return Ok(Next::Again);
            }
        }
        let from = self.start_of_look();
        let look = self
            .engine
            .store()
            .next_attempt(from)
            .await
            .map_err(Arc::new)?;
        // The look saw locked rows as well, so the watermark does not pass them.
        let earliest = look.attempt_at.unwrap_or(look.now).min(look.now);
        self.watermark = earliest.saturating_add_millis(-WATERMARK_MARGIN_MS);
        let until = look
            .attempt_at
            .map(|at| at.saturating_add_millis(self.grace_ms));
        let Some(attempt_at) = until.filter(|until| *until <= look.now) else {
            self.vain_look = VAIN_LOOK;
            let wait_ms = until.map_or(i64::MAX, |until| until.millis_since(look.now));
            let wait = Duration::from_millis(u64::try_from(wait_ms).unwrap_or_default());
            return Ok(Next::After(wait.min(self.longest_sleep())));
        };
        let released = self.release_batch(from).await?;
        if released.claimed > 0 {
            self.vain_look = VAIN_LOOK;
            return Ok(Next::Again);
        }
        tracing::debug!(%attempt_at, "due holds are locked by others");
        let rest = self.vain_look;
        self.vain_look = (rest * 2).min(SAFETY_LOOK);
        Ok(Next::After(rest))
    }
}
