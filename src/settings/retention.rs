//! For how long is kept what nobody needs any more.

use std::time::Duration;

use clap::Args;

use super::seconds;

/// A day: for so long the API promises to give an answer again.
const DAY_SECONDS: u64 = 86_400;
/// Queues redeliver for days, and the longest of them not for two weeks.
const SHORTEST_LEDGER_SECONDS: u64 = 14 * DAY_SECONDS;
/// A hundred years; more is a mistake of units.
const LONGEST_SECONDS: u64 = 36_525 * DAY_SECONDS;

/// For how long rows are kept. What lives is kept in any case: holds, the messages that wait for
/// them, open cases in quarantine.
#[derive(Clone, Debug, Args)]
pub struct RetentionSettings {
    /// How long an answer is kept under its Idempotency-Key; at least the day that is promised.
    #[arg(
        long = "keep-idempotency-seconds",
        env = "HOLDFAST_KEEP_IDEMPOTENCY_SECONDS",
        value_name = "SECONDS",
        default_value = "86400",
        value_parser = seconds(DAY_SECONDS..=LONGEST_SECONDS)
    )]
    pub keep_idempotency: Duration,
    /// How long a message to the queue is kept when its hold has ended.
    #[arg(
        long = "keep-outbox-seconds",
        env = "HOLDFAST_KEEP_OUTBOX_SECONDS",
        value_name = "SECONDS",
        default_value = "604800",
        value_parser = seconds(0..=LONGEST_SECONDS)
    )]
    pub keep_outbox: Duration,
    /// How long the ledger knows that an expiry job was done; longer than any queue redelivers.
    #[arg(
        long = "keep-ledger-seconds",
        env = "HOLDFAST_KEEP_LEDGER_SECONDS",
        value_name = "SECONDS",
        default_value = "2592000",
        value_parser = seconds(SHORTEST_LEDGER_SECONDS..=LONGEST_SECONDS)
    )]
    pub keep_ledger: Duration,
    /// How long a reservation is kept that is paid, cancelled or expired; unset, for ever.
    #[arg(
        long = "keep-reservations-seconds",
        env = "HOLDFAST_KEEP_RESERVATIONS_SECONDS",
        value_name = "SECONDS",
        value_parser = seconds(0..=LONGEST_SECONDS)
    )]
    pub keep_reservations: Option<Duration>,
    /// How long an event is kept; unset, for ever.
    #[arg(
        long = "keep-events-seconds",
        env = "HOLDFAST_KEEP_EVENTS_SECONDS",
        value_name = "SECONDS",
        value_parser = seconds(0..=LONGEST_SECONDS)
    )]
    pub keep_events: Option<Duration>,
}

impl RetentionSettings {
    /// Refuses settings that make no sense together, in one line that says what to change.
    pub(super) fn check(&self) -> Result<(), String> {
        let Some(reservations) = self.keep_reservations else {
            // A refused payment is told of once for as long as there is its reservation, by an
            // event that no later one may be deleted before.
            return match self.keep_events {
                Some(_) => Err(
                    "events that say that a payment was refused are kept as long as their \
                     reservations, and all later ones with them; set \
                     HOLDFAST_KEEP_RESERVATIONS_SECONDS as well, or unset \
                     HOLDFAST_KEEP_EVENTS_SECONDS"
                        .to_owned(),
                ),
                None => Ok(()),
            };
        };
        if reservations < self.keep_ledger {
            return Err(format!(
                "a reservation outlives what the ledger knows of it, and would be kept for {} s \
                 only, not for {} s; raise HOLDFAST_KEEP_RESERVATIONS_SECONDS or lower \
                 HOLDFAST_KEEP_LEDGER_SECONDS",
                reservations.as_secs(),
                self.keep_ledger.as_secs()
            ));
        }
        Ok(())
    }
}
