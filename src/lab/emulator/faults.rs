//! What the emulator does wrong when it is told to.

use serde::{Deserialize, Serialize};

/// What goes wrong. All zeros, which is the default, is a queue that does as it says.
///
/// Of what happens to `every` nth, 1 means each and 0 means none. Of milliseconds and seconds, 0
/// means none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Faults {
    /// Delivers every nth message twice.
    pub duplicate_every: u64,
    /// Accepts every nth message and never delivers it.
    pub drop_every: u64,
    /// Accepts every nth message, and answers 500 all the same.
    pub lose_answer_every: u64,
    /// Delivers later than it was told.
    pub delay_ms: u32,
    /// Delivers earlier than it was told.
    pub early_ms: u32,
    /// Delivers every second message this much later, behind those that follow it.
    pub reorder_ms: u32,
    /// Cuts longer delays down to this one, in silence.
    pub clamp_delay_seconds: u32,
    /// Refuses every nth call with 429.
    pub limit_every: u64,
    /// What its Retry-After asks for; without it none is sent.
    pub retry_after_seconds: u32,
    /// Writes Retry-After as a date rather than as seconds.
    pub retry_after_date: bool,
    /// Fails every nth call with 500, and does nothing.
    pub fail_every: u64,
    /// Answers each call this much later.
    pub slow_ms: u32,
}

impl Faults {
    /// When a message is delivered that is accepted at `now_ms` as the `number`th.
    pub(super) fn ready_ms(&self, now_ms: i64, delay_seconds: u32, number: u64) -> i64 {
        let delay_seconds = match self.clamp_delay_seconds {
            0 => delay_seconds,
            most => delay_seconds.min(most),
        };
        let behind = if number.is_multiple_of(2) {
            0
        } else {
            self.reorder_ms
        };
        now_ms + i64::from(delay_seconds) * 1_000 + i64::from(self.delay_ms) + i64::from(behind)
            - i64::from(self.early_ms)
    }
}

/// Is the `number`th, counted from 1, one of every `every`?
pub(super) fn is_nth(number: u64, every: u64) -> bool {
    every > 0 && number.is_multiple_of(every)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_faults_a_message_comes_when_it_should() {
        let none = Faults::default();
        assert_eq!(none.ready_ms(5_000, 3, 1), 8_000);
        assert!((1..100).all(|number| !is_nth(number, 0)));
    }

    #[test]
    fn each_fault_moves_it_its_own_way() {
        let faults = Faults {
            delay_ms: 7,
            early_ms: 100,
            reorder_ms: 2_000,
            clamp_delay_seconds: 10,
            ..Faults::default()
        };
        assert_eq!(faults.ready_ms(0, 10, 2), 9_907);
        assert_eq!(faults.ready_ms(0, 60, 2), 9_907);
        assert_eq!(faults.ready_ms(0, 60, 1), 11_907);
        let third: Vec<u64> = (1..=9).filter(|number| is_nth(*number, 3)).collect();
        assert_eq!(third, [3, 6, 9]);
    }

    #[test]
    fn unknown_names_are_refused() {
        assert!(serde_json::from_str::<Faults>(r#"{"drop_every":2}"#).is_ok());
        assert!(serde_json::from_str::<Faults>(r#"{"drop":2}"#).is_err());
    }
}
