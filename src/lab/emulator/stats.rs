//! What the emulator counts.

use std::collections::BTreeMap;

use serde::Serialize;

/// What was counted since the emulator started, whatever it forgot meanwhile.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// Messages accepted under a key that was new, or without one.
    pub published: u64,
    /// Publications under a key that was known; nothing was enqueued.
    pub repeated: u64,
    /// Messages that were accepted and are never delivered, because a fault said so.
    pub dropped: u64,
    /// Messages that are delivered twice, because a fault said so.
    pub duplicated: u64,
    /// Calls that were refused, by the code of the error.
    pub refused: BTreeMap<String, u64>,
    /// Attempts to deliver: pushes, and messages that were handed to a consumer.
    pub deliveries: u64,
    /// Deliveries that were ended: by a 2xx, or by an acknowledgement.
    pub acknowledged: u64,
    /// What pushes were answered, by status; `lost` is no answer.
    pub answers: BTreeMap<String, u64>,
    /// Messages that are yet to be delivered, or to be acknowledged.
    pub pending: u64,
    /// How long after its time each message was delivered for the first time. When it is pulled,
    /// that is how long it waited for a consumer.
    pub lateness_ms: Lateness,
}

/// A distribution in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Lateness {
    /// Half of all are at most this.
    pub p50: i64,
    /// 99 of 100 are at most this.
    pub p99: i64,
    /// The largest.
    pub max: i64,
}

/// How often each lateness came.
#[derive(Debug, Default)]
pub(super) struct Histogram(BTreeMap<i64, u64>);

impl Histogram {
    pub(super) fn record(&mut self, lateness_ms: i64) {
        *self.0.entry(lateness_ms).or_default() += 1;
    }

    pub(super) fn summary(&self) -> Lateness {
        let total: u64 = self.0.values().sum();
        let at_most = |percent: u64| {
            let mut left = (total * percent).div_ceil(100);
            let found = self.0.iter().find(|(_, count)| {
                left = left.saturating_sub(**count);
                left == 0
            });
            found.map_or(0, |(lateness_ms, _)| *lateness_ms)
        };
        Lateness {
            p50: at_most(50),
            p99: at_most(99),
            max: self.0.keys().next_back().copied().unwrap_or(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_counts_from_below() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.summary(), Lateness::default());
        for lateness_ms in (1..=100).rev() {
            histogram.record(lateness_ms);
        }
        histogram.record(5_000);
        let Lateness { p50, p99, max } = histogram.summary();
        assert_eq!((p50, p99, max), (51, 100, 5_000));
    }
}
