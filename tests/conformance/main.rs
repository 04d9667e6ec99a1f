//! What every store must do, said once and asked of each: the port's outcomes do not depend on
//! which database stands behind it. What only one of them has is tested beside it.

#![cfg(test)]

mod answers;
mod api_keys;
mod audit;
mod claims;
#[expect(dead_code, reason = "other tests look at the rows themselves")]
#[path = "../world/database.rs"]
mod database;
mod outbox;
mod quarantine;
mod reads;
mod repairs;
mod reservations;
mod retention;
mod sqlite_file;
mod stock;
mod stores;
mod world;

/// The suite for one store. `$with` hands an empty one to a test and cleans up after it.
macro_rules! conformance {
    ($store:ident, $with:path: $($topic:ident :: $test:ident),+ $(,)?) => {
        mod $store {
            $(
                #[tokio::test]
                async fn $test() {
                    $with(crate::$topic::$test).await;
                }
            )+
        }
    };
}

/// The suite for each of these stores.
macro_rules! stores {
    ($($store:ident => $with:path),+ $(,)?) => {
        $(
            conformance! {
                $store, $with:
                answers::answers_are_read_back_under_their_keys,
                answers::a_later_answer_replaces_an_earlier_one,
                answers::a_fingerprint_has_32_bytes,
                api_keys::a_key_is_read_back_as_it_was_made,
                api_keys::a_key_is_revoked_once_and_for_good,
                api_keys::neither_a_key_nor_a_secret_is_stored_twice,
                stock::rows_are_made_for_those_who_want_them,
                stock::deltas_add_up,
                stock::a_shelf_cannot_hold_what_is_not_there,
                stock::a_delta_needs_its_row,
                stock::rows_are_locked_in_the_order_of_their_bytes,
                reservations::a_reservation_is_read_back_as_it_was_written,
                reservations::a_hold_is_left_once_and_under_its_guard,
                reservations::a_hold_is_released_when_due_and_changed_only_before,
                reservations::one_broken_guard_refuses_the_batch,
                reservations::what_changed_twice_in_a_batch_is_written_as_it_ends,
                reservations::a_released_hold_is_paid_anew,
                reservations::rows_that_contradict_themselves_are_refused,
                reservations::a_name_is_given_once,
                reservations::a_job_is_done_once,
                reservations::a_payment_is_refused_once,
                reservations::without_a_commit_nothing_happened,
                reservations::an_unknown_transaction_has_no_known_fate,
                claims::holds_are_claimed_when_due_the_earliest_first,
                claims::a_claim_starts_where_it_is_told,
                claims::a_sweep_leaves_holds_to_others_for_its_grace,
                claims::just_enough_is_claimed_of_a_shelf,
                claims::a_moved_deadline_is_not_due,
                claims::a_deferred_hold_is_tried_later_and_never_early,
                claims::the_next_attempt_is_the_earliest,
                claims::due_units_are_counted_by_deadline,
                outbox::a_job_is_in_the_outbox_with_its_hold_or_not_at_all,
                outbox::a_message_is_claimed_when_its_time_has_come_the_earliest_first,
                outbox::a_lease_that_ended_gives_the_message_to_another,
                outbox::no_message_is_claimed_twice,
                outbox::what_nobody_waits_for_is_skipped,
                outbox::a_retry_moves_the_attempt_and_nothing_else,
                outbox::what_is_parked_is_in_quarantine_and_not_tried_again,
                outbox::an_early_job_is_published_again_at_its_deadline,
                outbox::holds_without_a_message_are_adopted_once,
                outbox::holds_are_adopted_for_another_queue,
                outbox::adoption_goes_on_where_it_stopped,
                outbox::depth_counts_what_waits,
                outbox::a_batch_of_nothing_changes_nothing,
                quarantine::a_case_is_opened_once_and_counted,
                quarantine::a_case_is_bounded,
                quarantine::cases_are_listed_by_what_is_asked_for,
                quarantine::what_operators_do_is_kept_and_a_case_is_settled_once,
                quarantine::a_message_that_was_given_up_is_published_again_once,
                reads::reservations_are_listed_newest_first,
                reads::reservations_are_listed_as_they_read,
                reads::reservations_are_listed_by_customer_and_reference,
                reads::stock_is_listed_in_the_order_of_its_keys,
                reads::due_units_are_counted_where_they_matter,
                reads::readers_see_what_was_committed,
                reads::the_clock_is_the_one_that_was_handed_in,
                reads::events_are_numbered_without_gaps,
                reads::events_are_read_back_as_they_were_written,
                retention::old_answers_go_and_young_ones_stay,
                retention::messages_go_when_their_holds_are_over,
                retention::a_message_that_waits_for_a_hold_is_never_deleted,
                retention::jobs_leave_the_ledger_when_they_were_done_long_ago,
                retention::a_recent_job_that_the_ledger_lacks_is_still_found,
                retention::reservations_outlive_their_ledger_rows,
                retention::a_reservation_that_went_too_early_is_still_found,
                retention::events_go_from_the_beginning_of_the_log,
                retention::a_refused_payment_stays_as_long_as_its_reservation,
                retention::nothing_is_deleted_from_nothing,
                audit::a_whole_life_leaves_no_drift,
                audit::stock_that_nobody_holds_is_found,
                audit::holds_that_no_stock_knows_are_found,
                audit::a_hold_that_was_left_in_silence_is_found,
                audit::an_end_that_did_not_happen_is_found,
                audit::a_reservation_that_nobody_created_is_found,
                audit::releases_that_ledger_and_events_tell_differently_are_found,
                audit::a_hold_that_cannot_be_released_is_found,
                repairs::what_is_sound_stays_as_it_is,
                repairs::held_is_counted_anew,
                repairs::a_row_that_vanished_is_made_again,
                repairs::more_than_is_on_hand_is_left,
                repairs::each_repair_is_one_event_and_found_by_nobody_again,
            }
        )+
    };
}

// One line for each store.
stores! {
    memory => crate::stores::with_memory,
    sqlite => crate::stores::with_sqlite,
    postgres => crate::stores::with_postgres,
}
