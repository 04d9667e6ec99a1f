//! How fast holds expire: the generic cell rate algorithm (ITU-T I.371), in whole microseconds.
//!
//! A key's state is one number, the theoretical arrival time of its next permit. A release that
//! comes too soon is given the slot at which its permit will be there, and the permit is kept for
//! it, so that those who wait come one after the other, in the order in which they asked, and
//! nobody asks twice.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{Reservation, Timestamp};

/// The fastest rate, in permits per second: one in each microsecond.
pub const MAX_ADMISSION_RATE: f64 = 1_000_000.0;
/// The slowest rate, in permits per second: about one in a day.
pub const MIN_ADMISSION_RATE: f64 = 0.000_01;
/// The most permits that may come at once.
pub const MAX_ADMISSION_BURST: u32 = 1_000_000;
/// The most that a slot is put off by chance, in microseconds.
const MAX_JITTER_US: i64 = 1_000_000;

/// By what releases are told apart, each with a rate of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AdmissionDimension {
    /// Not at all.
    #[default]
    Global,
    /// By where the stock lies. A reservation of several locations needs a permit of each.
    Location,
    /// By who had it set aside.
    Merchant,
}

impl AdmissionDimension {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Global, Self::Location, Self::Merchant];

    /// The word for it in settings and in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Global => "global",
            Self::Location => "location",
            Self::Merchant => "merchant",
        }
    }
}

/// What a rate is kept for: `global`, or a dimension and a name in it, as in `merchant:acme`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AdmissionKey(Arc<str>);

impl AdmissionKey {
    /// The key that the database holds as `text`.
    pub fn from_stored(text: &str) -> Self {
        Self(text.into())
    }

    /// The key as the database holds it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name in its dimension, as settings have it.
    fn name(&self) -> &str {
        self.0.split_once(':').map_or("", |(_, name)| name)
    }
}

impl fmt::Display for AdmissionKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// A rate, and how many may come at once after a rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmissionLimit {
    interval_us: i64,
    burst: i64,
}

impl AdmissionLimit {
    /// `rate` permits per second, [`MIN_ADMISSION_RATE`] to [`MAX_ADMISSION_RATE`], and `burst` at
    /// once, 1 to [`MAX_ADMISSION_BURST`]; none if they are not. The interval is rounded up to
    /// whole microseconds, so that a rate is never exceeded.
    pub fn per_second(rate: f64, burst: u32) -> Option<Self> {
        let is_valid = (MIN_ADMISSION_RATE..=MAX_ADMISSION_RATE).contains(&rate)
            && (1..=MAX_ADMISSION_BURST).contains(&burst);
        let interval = Duration::try_from_secs_f64(1.0 / rate).ok()?;
        let interval_us = i64::try_from(interval.as_nanos().div_ceil(1_000)).ok()?;
        is_valid.then(|| Self {
            interval_us,
            burst: i64::from(burst),
        })
    }

    /// Permits per second in the long run.
    pub fn rate(self) -> f64 {
        1_000_000.0 / self.interval_us as f64
    }

    /// How far the theoretical arrival may lie ahead of now, in microseconds.
    fn tolerance_us(self) -> i64 {
        (self.burst - 1).saturating_mul(self.interval_us)
    }
}

/// What the operator has set about the pace of releases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PaceRule {
    /// By what releases are told apart.
    pub dimension: AdmissionDimension,
    /// What each key may do.
    pub limit: AdmissionLimit,
    /// What some keys may do instead, by their names.
    pub overrides: BTreeMap<String, AdmissionLimit>,
    /// How long after its slot a permit is kept, in milliseconds. It covers the time that a sweep
    /// leaves to a queue; what comes later, as after an outage, asks anew.
    pub kept_ms: i64,
}

impl PaceRule {
    /// The keys of which the release of this hold needs a permit each.
    pub fn keys(&self, hold: &Reservation) -> BTreeSet<AdmissionKey> {
        let key = |name: &str| AdmissionKey(format!("{}:{name}", self.dimension.as_str()).into());
        match self.dimension {
            AdmissionDimension::Global => [AdmissionKey(self.dimension.as_str().into())].into(),
            AdmissionDimension::Location => {
                let lines = hold.lines.iter();
                lines.map(|line| key(line.location.as_str())).collect()
            }
            AdmissionDimension::Merchant => [key(hold.merchant.as_str())].into(),
        }
    }

    fn limit_of(&self, key: &AdmissionKey) -> AdmissionLimit {
        self.overrides
            .get(key.name())
            .copied()
            .unwrap_or(self.limit)
    }
}

/// The rule, and how the keys that a batch needs stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pace {
    /// The rule.
    pub rule: Arc<PaceRule>,
    /// The theoretical arrival of each key's next permit, in microseconds since 1970. A key that
    /// is not here was never used.
    pub arrivals_us: BTreeMap<AdmissionKey, i64>,
}

/// What is said to a hold that is to be released.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Now. These arrivals are then stored; none for a permit that was kept.
    Granted(BTreeMap<AdmissionKey, i64>),
    /// At this instant, which is later than now, and for which its permits are kept. These
    /// arrivals are then stored; none if it had this slot before.
    Waits {
        /// When to come again.
        attempt_at: Timestamp,
        /// What is stored.
        arrivals_us: BTreeMap<AdmissionKey, i64>,
    },
}

impl Pace {
    /// Has a due hold its permits at `now`, and if not, when? It gets one of each of its keys or
    /// none.
    pub fn admit(&self, hold: &Reservation, now: Timestamp) -> Admission {
        if hold.waits.limiter_ms > 0 {
            let late_ms = now.millis_since(hold.attempt_at);
            if late_ms < 0 {
                return Admission::Waits {
                    attempt_at: hold.attempt_at,
                    arrivals_us: BTreeMap::new(),
                };
            }
            if late_ms <= self.rule.kept_ms {
                return Admission::Granted(BTreeMap::new());
            }
        }
        let now_us = now.as_millis().saturating_mul(1_000);
        let (mut slot_us, mut jitter_us) = (now_us, 0);
        let mut arrivals_us = BTreeMap::new();
        for key in self.rule.keys(hold) {
            let limit = self.rule.limit_of(&key);
            let arrival_us = self.arrivals_us.get(&key).copied().unwrap_or(0).max(now_us);
            slot_us = slot_us.max(arrival_us.saturating_sub(limit.tolerance_us()));
            jitter_us = jitter_us.max(limit.interval_us.min(MAX_JITTER_US));
            arrivals_us.insert(key, arrival_us.saturating_add(limit.interval_us));
        }
        if slot_us <= now_us {
            return Admission::Granted(arrivals_us);
        }
        let late_us = slot_us - now_us + i64::from(hold.id.chance()) % (jitter_us + 1);
        Admission::Waits {
            // Up to the next whole millisecond, so that it lies after now.
            attempt_at: now.saturating_add_millis((late_us + 999) / 1_000),
            arrivals_us,
        }
    }
}

#[cfg(test)]
mod tests;
