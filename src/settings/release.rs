//! How due holds are released: how fast, and for how long it is tried.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::whole;

/// The slowest and the fastest rate, in releases per second.
const RATES: std::ops::RangeInclusive<f64> = 0.000_01..=1_000_000.0;
/// The most that may be released at once after a rest.
const MAX_BURST: u32 = 1_000_000;

/// How due holds are released. Instances on one database share a rate, and are to be told the same.
#[derive(Clone, Debug, Args)]
pub struct ReleaseSettings {
    /// How many holds expire per second at most; unset, as many as can.
    #[arg(
        long,
        env = "HOLDFAST_ADMISSION_RATE",
        value_name = "PER_SECOND",
        value_parser = rate
    )]
    pub admission_rate: Option<f64>,
    /// How many may expire at once after a rest; unset, those of a second.
    #[arg(
        long,
        env = "HOLDFAST_ADMISSION_BURST",
        value_name = "HOLDS",
        value_parser = whole(1..=MAX_BURST.into())
    )]
    pub admission_burst: Option<u64>,
    /// What has a rate of its own: everything together, each location, or each merchant.
    #[arg(
        long,
        env = "HOLDFAST_ADMISSION_KEY",
        value_name = "KEY",
        default_value = "global"
    )]
    pub admission_key: PacedBy,
    /// Other rates for some locations or merchants: `NAME=RATE` or `NAME=RATE/BURST`, separated by
    /// commas.
    #[arg(
        long,
        env = "HOLDFAST_ADMISSION_OVERRIDES",
        value_name = "RATES",
        default_value = "",
        hide_default_value = true
    )]
    pub admission_overrides: RateOverrides,
    /// How often the release of a hold, or the publication of its job, is tried that fails, before
    /// it is kept for an operator to look at.
    #[arg(
        long,
        env = "HOLDFAST_RETRY_ATTEMPTS",
        value_name = "TIMES",
        default_value = "10",
        value_parser = whole(1..=1_000)
    )]
    pub retry_attempts: u64,
    /// For how long past the deadline it is tried.
    #[arg(
        long,
        env = "HOLDFAST_RETRY_SECONDS",
        value_name = "SECONDS",
        default_value = "900",
        value_parser = whole(1..=86_400)
    )]
    pub retry_seconds: u64,
}

/// What has a rate of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PacedBy {
    /// Everything together.
    Global,
    /// Each location.
    Location,
    /// Each merchant; the merchant is the one of the API key.
    Merchant,
}

/// A rate per second, and what may come at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReleaseRate {
    /// Releases per second.
    pub per_second: f64,
    /// Releases at once.
    pub burst: u32,
}

/// Rates of some locations or merchants, by their names.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RateOverrides(pub BTreeMap<String, ReleaseRate>);

impl ReleaseSettings {
    /// Refuses settings that make no sense together, in one line that says what to change.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.admission_rate.is_none()
            && (self.admission_burst.is_some() || !self.admission_overrides.0.is_empty())
        {
            return Err(
                "HOLDFAST_ADMISSION_BURST and HOLDFAST_ADMISSION_OVERRIDES limit nothing \
                        by themselves; set HOLDFAST_ADMISSION_RATE as well"
                    .to_owned(),
            );
        }
        if self.admission_key == PacedBy::Global && !self.admission_overrides.0.is_empty() {
            return Err(
                "HOLDFAST_ADMISSION_OVERRIDES are for locations or merchants; set \
                        HOLDFAST_ADMISSION_KEY to `location` or `merchant`"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// The rate that holds where no other one does, if there is any.
    pub fn rate(&self) -> Option<ReleaseRate> {
        let per_second = self.admission_rate?;
        let burst = self.admission_burst.and_then(|burst| burst.try_into().ok());
        Some(ReleaseRate {
            per_second,
            burst: burst.unwrap_or_else(|| burst_of(per_second)),
        })
    }
}

/// Those of a second, and at least one.
fn burst_of(per_second: f64) -> u32 {
    let whole = Duration::from_secs_f64(per_second.ceil()).as_secs();
    u32::try_from(whole)
        .unwrap_or(MAX_BURST)
        .clamp(1, MAX_BURST)
}

fn rate(text: &str) -> Result<f64, String> {
    let rate: Option<f64> = text.parse().ok();
    rate.filter(|rate| RATES.contains(rate)).ok_or_else(|| {
        format!(
            "is not a number of holds per second, from {} to {}",
            RATES.start(),
            RATES.end()
        )
    })
}

impl FromStr for RateOverrides {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut rates = BTreeMap::new();
        for part in text.split(',').filter(|part| !part.trim().is_empty()) {
            let (name, asked) = read_override(part.trim()).ok_or_else(|| {
                format!("{part:?} is not NAME=RATE or NAME=RATE/BURST, such as acme=5/20")
            })?;
            if rates.insert(name.to_owned(), asked).is_some() {
                return Err(format!("{name:?} has two rates; leave one of them out"));
            }
        }
        Ok(Self(rates))
    }
}

fn read_override(part: &str) -> Option<(&str, ReleaseRate)> {
    // The last sign, because a name may have one in it.
    let (name, asked) = part.rsplit_once('=')?;
    let (per_second, burst) = match asked.split_once('/') {
        Some((per_second, burst)) => (per_second, Some(burst)),
        None => (asked, None),
    };
    let per_second = rate(per_second).ok()?;
    let burst = match burst {
        Some(burst) => burst.parse().ok()?,
        None => burst_of(per_second),
    };
    let is_valid = !name.is_empty() && (1..=MAX_BURST).contains(&burst);
    is_valid.then_some((name, ReleaseRate { per_second, burst }))
}
