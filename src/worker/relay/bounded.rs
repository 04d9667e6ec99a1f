//! One bounded run of the relay, for whoever drives it from outside.

use std::sync::Arc;
use std::time::Duration;

use super::{ADOPTED_AT_ONCE, CLAIMED_AT_ONCE, Relay};
use crate::engine::{Bounds, EngineError, RelayRun};
use crate::worker::millis;

impl Relay {
    /// Publishes what is to be published now, until nothing is left or a bound is reached; then
    /// looks for holds without a message, those that are due first, and publishes theirs. Any
    /// number of runs and workers may be under way at once.
    ///
    /// If the queue takes nothing, the run ends after the first try.
    pub async fn run_bounded(&mut self, bounds: Bounds) -> Result<RelayRun, EngineError> {
        let began = self.runtime.elapsed();
        let until = began.saturating_add(bounds.max_time);
        let mut run = RelayRun::default();
        self.failures = 0;
        self.publish_until(bounds, until, &mut run).await?;
        let mut left = bounds.max_rows;
        while left > 0 && self.runtime.elapsed() < until {
            let some = left.min(ADOPTED_AT_ONCE);
            left -= some;
            if !self.adopt(some).await? {
                break;
            }
        }
        self.publish_until(bounds, until, &mut run).await?;
        let next = self.store.outbox().next_publication().await;
        let next = next.map_err(Arc::new)?;
        run.more = next.publish_after.is_some_and(|at| at <= next.now);
        run.duration_ms = millis(self.runtime.elapsed().saturating_sub(began));
        Ok(run)
    }

    /// Takes messages until none can be had, a bound is reached or the queue takes nothing.
    async fn publish_until(
        &mut self,
        bounds: Bounds,
        until: Duration,
        run: &mut RelayRun,
    ) -> Result<(), EngineError> {
        loop {
            let left = bounds.max_rows.saturating_sub(run.handled());
            if left == 0 || self.failures > 0 || self.runtime.elapsed() >= until {
                return Ok(());
            }
            let limit = left.min(CLAIMED_AT_ONCE);
            let taken = self.take(limit).await?;
            run.published += taken.published;
            run.postponed += taken.postponed;
            run.parked += taken.parked;
            run.skipped += taken.skipped;
            if taken.handled() < limit {
                return Ok(());
            }
        }
    }
}
