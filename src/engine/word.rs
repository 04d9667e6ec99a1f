//! What came of commands, in the words of the metrics.

use super::Reply;
use crate::domain::{Outcome, Refusal};

/// The word for a reply.
pub(super) fn reply_word(reply: &Reply) -> &'static str {
    match reply {
        Reply::Replayed(_) => "replayed",
        Reply::Decided(outcome) => outcome_word(outcome),
    }
}

fn outcome_word(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Reservation { created: true, .. } => "created",
        Outcome::Reservation { reservation, .. } => reservation.state.as_str(),
        Outcome::Stock(_) => "done",
        Outcome::Job(job) => job.as_str(),
        Outcome::Refused(Refusal::InsufficientStock { .. }) => "insufficient-stock",
        Outcome::Refused(Refusal::NotHeld { .. }) => "reservation-not-held",
        Outcome::Refused(Refusal::Expired { .. }) => "reservation-expired",
        Outcome::Refused(Refusal::StockBelowHeld { .. }) => "stock-below-held",
        Outcome::Refused(Refusal::StockAboveMaximum { .. }) => "stock-above-maximum",
        Outcome::Refused(Refusal::HoldLimit { .. }) => "hold-limit",
        Outcome::Refused(Refusal::NotFound { .. }) => "not-found",
    }
}
