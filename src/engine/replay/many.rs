//! The replay of many cases.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::Cases;
use crate::engine::EngineError;
use crate::store::CaseFilter;

/// How long the replay of many goes on before it says that more remains.
const LONGEST: Duration = Duration::from_secs(60);
/// How many cases are read together; each may be 64 KiB.
const READ_AT_ONCE: usize = 100;

/// Which cases to replay, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayMany {
    /// Only open cases that were found there.
    pub source: Option<String>,
    /// Only those with larger numbers.
    pub after: i64,
    /// At most so many.
    pub limit: usize,
    /// At most so many per second; at least 1.
    pub per_second: u32,
    /// Only say what would come of them, as far as looking tells.
    pub dry_run: bool,
}

impl ReplayMany {
    /// The most cases, and the most per second.
    pub const MOST: u32 = 1_000;
    /// The most cases of a replay that does not say.
    pub const DEFAULT_LIMIT: u32 = 100;
    /// How many per second a replay tries that does not say.
    pub const DEFAULT_PER_SECOND: u32 = 50;
}

/// What came of the replay of many cases.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ManyReplayed {
    /// Whether nothing was done.
    pub dry_run: bool,
    /// How many cases came to each outcome.
    pub outcomes: BTreeMap<&'static str, usize>,
    /// The number of the last case, from where the next replay goes on.
    pub after: i64,
    /// Whether there are more open cases behind it.
    pub more: bool,
}

impl Cases {
    /// Tries open cases again, in the order of their numbers, one after the other. After an error
    /// those that came before it are done.
    pub async fn replay_many(
        &self,
        asked: &ReplayMany,
        by: &str,
    ) -> Result<ManyReplayed, EngineError> {
        let filter = CaseFilter {
            source: asked.source.clone(),
            ..CaseFilter::open()
        };
        let began = self.runtime.elapsed();
        let pace = Duration::from_secs(1) / asked.per_second.max(1);
        let mut done = ManyReplayed {
            dry_run: asked.dry_run,
            outcomes: BTreeMap::new(),
            after: asked.after,
            more: false,
        };
        let mut left = asked.limit;
        let mut slot = began;
        loop {
            // One more than may be done tells whether there are more.
            let read = READ_AT_ONCE.min(left.saturating_add(1));
            let quarantine = self.engine.store().quarantine();
            let page = quarantine.list(&filter, done.after, read).await;
            let page = page.map_err(Arc::new)?;
            for case in &page {
                let now = self.runtime.elapsed();
                let at = if asked.dry_run { now } else { slot.max(now) };
                if left == 0 || at.saturating_sub(began) > LONGEST {
                    done.more = true;
                    return Ok(done);
                }
                let replayed = if asked.dry_run {
                    Some(self.foresee(case).await?)
                } else {
                    self.runtime.sleep(at.saturating_sub(now)).await;
                    slot = at + pace;
                    self.replay(case.id, by).await?
                };
                if let Some(replayed) = replayed {
                    *done.outcomes.entry(replayed.as_str()).or_default() += 1;
                }
                done.after = case.id;
                left -= 1;
            }
            if page.len() < read {
                return Ok(done);
            }
        }
    }
}
