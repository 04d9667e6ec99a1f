//! Instants in whole milliseconds.

use std::fmt;
use std::str::FromStr;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// An instant: whole milliseconds since 1970-01-01T00:00:00Z.
///
/// Milliseconds everywhere, so that a deadline compares equal in the database, in a job id and in
/// JSON. What is finer is cut off where it enters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

/// Why a text is not an instant we take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimestampFault {
    /// Not RFC 3339, or a day that does not exist.
    #[error("is not an RFC 3339 instant with an offset, such as 2026-12-01T10:15:00.250Z")]
    Malformed,
    /// The second 60 exists in RFC 3339, but not in any clock we compare with.
    #[error("names a leap second, which no clock here can show")]
    LeapSecond,
    /// Before 1970 or after 9999.
    #[error("lies outside the years 1970 to 9999")]
    OutOfRange,
}

impl Timestamp {
    /// 1970-01-01T00:00:00.000Z.
    pub const EPOCH: Self = Self(0);
    /// 9999-12-31T23:59:59.999Z, the last instant that every store and format here can write.
    /// As an `attempt_at` it means "never".
    pub const MAX: Self = Self(253_402_300_799_999);

    /// The instant `millis` milliseconds after the epoch, if it lies between 1970 and 9999.
    pub fn from_millis(millis: i64) -> Option<Self> {
        (Self::EPOCH.0..=Self::MAX.0)
            .contains(&millis)
            .then_some(Self(millis))
    }

    /// Milliseconds since the epoch.
    pub fn as_millis(self) -> i64 {
        self.0
    }

    /// This instant and `seconds` more, unless that leaves the years 1970 to 9999.
    pub fn checked_add_seconds(self, seconds: i64) -> Option<Self> {
        self.checked_add_millis(seconds.checked_mul(1_000)?)
    }

    /// This instant and `millis` milliseconds more, unless that leaves the years 1970 to 9999.
    pub fn checked_add_millis(self, millis: i64) -> Option<Self> {
        Self::from_millis(self.0.checked_add(millis)?)
    }

    /// This instant and `millis` milliseconds more, stopping at the ends of the range.
    pub fn saturating_add_millis(self, millis: i64) -> Self {
        Self(
            self.0
                .saturating_add(millis)
                .clamp(Self::EPOCH.0, Self::MAX.0),
        )
    }

    /// Milliseconds from `earlier` to this instant; negative if `earlier` is the later one.
    pub fn millis_since(self, earlier: Self) -> i64 {
        self.0 - earlier.0
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let instant = OffsetDateTime::from(*self);
        write!(
            out,
            "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z",
            instant.year(),
            u8::from(instant.month()),
            instant.day(),
            instant.hour(),
            instant.minute(),
            instant.second(),
            instant.millisecond(),
        )
    }
}

impl FromStr for Timestamp {
    type Err = TimestampFault;

    /// Reads an RFC 3339 instant. An offset is needed and honoured, lower-case `t` and `z` are
    /// fine, digits beyond the millisecond are cut off.
    fn from_str(text: &str) -> Result<Self, TimestampFault> {
        let text = text.to_ascii_uppercase();
        // `YYYY-MM-DDTHH:MM:SS`: the library would turn a second 60 into the last nanosecond of
        // the minute, which is not what was written.
        if text.get(17..19) == Some("60") {
            return Err(TimestampFault::LeapSecond);
        }
        let instant =
            OffsetDateTime::parse(&text, &Rfc3339).map_err(|_| TimestampFault::Malformed)?;
        Self::try_from(instant)
    }
}

impl TryFrom<OffsetDateTime> for Timestamp {
    type Error = TimestampFault;

    fn try_from(instant: OffsetDateTime) -> Result<Self, TimestampFault> {
        i64::try_from(instant.unix_timestamp_nanos().div_euclid(1_000_000))
            .ok()
            .and_then(Self::from_millis)
            .ok_or(TimestampFault::OutOfRange)
    }
}

impl From<Timestamp> for OffsetDateTime {
    fn from(timestamp: Timestamp) -> Self {
        // A `Timestamp` is always within the years that `OffsetDateTime` can show.
        OffsetDateTime::from_unix_timestamp_nanos(i128::from(timestamp.0) * 1_000_000)
            .unwrap_or(OffsetDateTime::UNIX_EPOCH)
    }
}

impl serde::Serialize for Timestamp {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for Timestamp {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(text: &str) -> Result<i64, TimestampFault> {
        text.parse::<Timestamp>().map(Timestamp::as_millis)
    }

    /// mojaloop/project#514: an offset that was ignored made a deadline lie in the past.
    #[test]
    fn offsets_are_honoured_and_finer_digits_cut_off() {
        let noon = 1_796_126_400_000;
        assert_eq!(millis("2026-12-01T12:00:00Z"), Ok(noon));
        assert_eq!(millis("2026-12-01t12:00:00z"), Ok(noon));
        assert_eq!(millis("2026-12-01T17:30:00+05:30"), Ok(noon));
        assert_eq!(millis("2026-12-01T09:00:00-03:00"), Ok(noon));
        assert_eq!(millis("2026-12-01T12:00:00.123999999Z"), Ok(noon + 123));
    }

    #[test]
    fn what_is_no_instant_is_refused() {
        for text in [
            "",
            "1796126400",
            "2026-12-01",
            "2026-12-01T12:00:00",
            "2026-02-30T12:00:00Z",
            "10000-01-01T00:00:00Z",
            "2026-12-01 12:00:00+25:00",
            "2026-12-01T12:00:00é",
        ] {
            assert_eq!(millis(text), Err(TimestampFault::Malformed), "{text}");
        }
        assert_eq!(
            millis("2026-12-31T23:59:60Z"),
            Err(TimestampFault::LeapSecond)
        );
        assert_eq!(
            millis("1969-12-31T23:59:59Z"),
            Err(TimestampFault::OutOfRange)
        );
        assert_eq!(
            millis("9999-12-31T23:59:59.9-01:00"),
            Err(TimestampFault::OutOfRange)
        );
    }

    #[test]
    fn an_instant_is_written_as_it_is_read() {
        for text in [
            "1970-01-01T00:00:00.000Z",
            "2026-12-01T10:15:00.250Z",
            "9999-12-31T23:59:59.999Z",
        ] {
            assert_eq!(text.parse::<Timestamp>().unwrap().to_string(), text);
        }
        assert_eq!(Timestamp::MAX.to_string(), "9999-12-31T23:59:59.999Z");
    }

    #[test]
    fn arithmetic_is_checked() {
        let one = Timestamp::from_millis(1).unwrap();
        assert_eq!(one.checked_add_seconds(i64::MAX), None);
        assert_eq!(one.checked_add_seconds(-1), None);
        assert_eq!(Timestamp::MAX.checked_add_millis(1), None);
        assert_eq!(one.saturating_add_millis(i64::MAX), Timestamp::MAX);
        assert_eq!(one.saturating_add_millis(i64::MIN), Timestamp::EPOCH);
    }
}
