//! What every queue driver must do, said once and asked of each; and what only one of them has,
//! beside it.
//!
//! The service behind a driver runs on a clock that is moved by hand, so that a delay of a week
//! takes no time.

#![cfg(test)]

mod emulator;
mod garbage;
mod program;
mod pull;
mod push;
mod service;
mod tls;
#[path = "../world/mod.rs"]
mod world;

/// The suite for one driver. `$with` starts its service, and hands both to a test.
macro_rules! conformance {
    ($driver:ident, $with:path: $($topic:ident :: $test:ident),+ $(,)?) => {
        mod $driver {
            $(
                #[tokio::test]
                async fn $test() {
                    $with(crate::$topic::$test).await;
                }
            )+
        }
    };
}

/// The suite for each of these drivers.
macro_rules! drivers {
    ($($driver:ident => $with:path),+ $(,)?) => {
        $(
            conformance! {
                $driver, $with:
                pull::a_message_comes_when_it_is_due_and_not_much_before,
                pull::what_is_overdue_comes_at_once,
                pull::the_same_key_enqueues_once,
                pull::another_copy_is_another_message,
                pull::what_is_not_acknowledged_comes_again,
                pull::what_is_rejected_is_gone,
                pull::a_batch_is_answered_in_its_order,
                pull::the_longest_delay_is_taken_and_no_longer_one,
                pull::early_and_duplicate_deliveries_are_passed_on,
                pull::deliveries_may_overtake_each_other,
                pull::a_lost_answer_is_not_a_lost_message,
                pull::patience_is_asked_for_and_failures_pass,
                pull::a_queue_that_is_gone_is_unavailable,
                pull::a_queue_that_is_as_expected_has_no_mismatch,
            }
        )+
    };
}

// One line for each driver.
drivers! {
    rest => crate::service::with_rest,
}
