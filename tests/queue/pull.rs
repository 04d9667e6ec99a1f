//! What is asked of every driver.

use std::time::Duration;

use holdfast::domain::Message;
use holdfast::lab::emulator::Faults;
use holdfast::queue::{DeliveryMode, Fault, Publication};

use crate::service::{Stand, message};

pub async fn a_message_comes_when_it_is_due_and_not_much_before(stand: Stand) {
    assert_eq!(stand.queue.limits().delivery, DeliveryMode::Pull);
    stand.publish(message(1), 2_500).await.unwrap();
    // Less than a second before its time at the earliest, since some queues count seconds.
    stand.pass(1_500);
    assert_eq!(stand.take().await, []);
    stand.pass(1_000);
    assert_eq!(stand.take().await, [message(1).job]);
    stand.pass(86_400_000);
    assert_eq!(stand.take().await, []);
}

pub async fn what_is_overdue_comes_at_once(stand: Stand) {
    for (number, delay_ms) in [(1, 0), (2, -1), (3, i64::MIN), (4, 999)] {
        stand.publish(message(number), delay_ms).await.unwrap();
    }
    stand.pass(999);
    assert_eq!(stand.take().await.len(), 4);
}

pub async fn the_same_key_enqueues_once(stand: Stand) {
    let first = stand.publish(message(1), 1_000).await.unwrap();
    let again = stand.publish(message(1), 9_000).await.unwrap();
    assert_eq!(first, again);
    stand.pass(1_000);
    assert_eq!(stand.take().await, [message(1).job]);
    // Also when the message is done.
    assert_eq!(stand.publish(message(1), 0).await.unwrap(), first);
    stand.pass(60_000);
    assert_eq!(stand.take().await, []);
}

pub async fn another_copy_is_another_message(stand: Stand) {
    let first = stand.publish(message(1), 0).await.unwrap();
    let copy = Message {
        copy: 2,
        ..message(1)
    };
    assert_ne!(stand.publish(copy, 0).await.unwrap(), first);
    assert_eq!(stand.take().await, [message(1).job, message(1).job]);
}

/// A consumer that dies before it acknowledges.
pub async fn what_is_not_acknowledged_comes_again(stand: Stand) {
    stand.publish(message(1), 0).await.unwrap();
    let first = stand.queue.receive(10, 5_000).await.unwrap();
    assert_eq!(first.len(), 1);
    stand.pass(4_999);
    assert_eq!(stand.receive().await, []);
    stand.pass(1);
    let second = stand.receive().await;
    assert_eq!(second[0].payload, first[0].payload);
    stand.queue.acknowledge(&second[0].receipt).await.unwrap();
    stand.pass(86_400_000);
    assert_eq!(stand.receive().await, []);
    // What is gone already may be acknowledged again.
    stand.queue.acknowledge(&first[0].receipt).await.unwrap();
}

pub async fn what_is_rejected_is_gone(stand: Stand) {
    stand.publish(message(1), 0).await.unwrap();
    let received = stand.receive().await;
    stand.queue.reject(&received[0].receipt).await.unwrap();
    stand.pass(86_400_000);
    assert_eq!(stand.receive().await, []);
    if !stand.queue.limits().retries_later {
        let receipt = &received[0].receipt;
        assert!(stand.queue.retry_later(receipt, 1).await.is_err());
    }
}

pub async fn a_batch_is_answered_in_its_order(stand: Stand) {
    let batch: Vec<Publication> = (0..200)
        .map(|number| Publication {
            message: message(number),
            delay_ms: 0,
        })
        .collect();
    let now = stand.clock.now();
    let receipts = stand.queue.publish(&batch, now).await;
    assert_eq!(receipts.len(), batch.len());
    // Each message again, by itself, has the receipt that it had in the batch.
    for number in [0, 63, 64, 150, 199] {
        let again = stand.publish(message(number), 0).await;
        assert_eq!(again, receipts[usize::from(number)], "{number}");
    }
    let mut taken = 0;
    while taken < 200 {
        let some = stand.take().await.len();
        assert!(some > 0, "only {taken} of 200 came");
        taken += some;
    }
    assert_eq!(stand.queue.publish(&[], now).await, []);
    assert_eq!(stand.queue.receive(0, 1_000).await, Ok(vec![]));
}

pub async fn the_longest_delay_is_taken_and_no_longer_one(stand: Stand) {
    let longest_ms = stand.queue.limits().max_delay_ms;
    stand.publish(message(1), longest_ms).await.unwrap();
    let refused = stand.publish(message(2), longest_ms + 1_000).await;
    assert!(matches!(refused, Err(Fault::Refused(_))), "{refused:?}");
    stand.pass(longest_ms - 1_000);
    assert_eq!(stand.take().await, []);
    stand.pass(1_000);
    assert_eq!(stand.take().await, [message(1).job]);
}

pub async fn early_and_duplicate_deliveries_are_passed_on(stand: Stand) {
    stand.break_with(Faults {
        duplicate_every: 1,
        early_ms: 4_000,
        ..Faults::default()
    });
    stand.publish(message(1), 10_000).await.unwrap();
    stand.pass(6_000);
    assert_eq!(stand.take().await, [message(1).job, message(1).job]);
    stand.pass(60_000);
    assert_eq!(stand.take().await, []);
}

pub async fn deliveries_may_overtake_each_other(stand: Stand) {
    stand.break_with(Faults {
        reorder_ms: 5_000,
        ..Faults::default()
    });
    for number in 1..=4 {
        stand.publish(message(number), 1_000).await.unwrap();
    }
    stand.pass(1_000);
    assert_eq!(stand.take().await, [message(2).job, message(4).job]);
    stand.pass(5_000);
    assert_eq!(stand.take().await, [message(1).job, message(3).job]);
}

pub async fn a_lost_answer_is_not_a_lost_message(stand: Stand) {
    stand.break_with(Faults {
        lose_answer_every: 1,
        ..Faults::default()
    });
    let lost = stand.publish(message(1), 1_000).await;
    assert!(matches!(lost, Err(Fault::Backoff(_))), "{lost:?}");
    stand.break_with(Faults::default());
    stand.publish(message(1), 1_000).await.unwrap();
    stand.pass(1_000);
    assert_eq!(stand.take().await, [message(1).job]);
}

pub async fn patience_is_asked_for_and_failures_pass(stand: Stand) {
    for retry_after_date in [false, true] {
        stand.break_with(Faults {
            limit_every: 1,
            retry_after_seconds: 7,
            retry_after_date,
            ..Faults::default()
        });
        let asked = |fault| match fault {
            Fault::RetryAfter { wait, .. } => wait,
            other => panic!("{other:?}"),
        };
        let seven = Duration::from_secs(7);
        assert_eq!(
            asked(stand.publish(message(1), 0).await.unwrap_err()),
            seven
        );
        let fault = stand.queue.receive(1, 1_000).await.unwrap_err();
        assert_eq!(asked(fault), seven);
    }
    for faults in [
        Faults {
            limit_every: 1,
            ..Faults::default()
        },
        Faults {
            fail_every: 1,
            ..Faults::default()
        },
    ] {
        stand.break_with(faults);
        let fault = stand.publish(message(1), 0).await.unwrap_err();
        assert!(matches!(fault, Fault::Backoff(_)), "{fault:?}");
    }
    assert_eq!(stand.stats().published, 0);
}

pub async fn a_queue_that_is_gone_is_unavailable(stand: Stand) {
    let Stand {
        queue,
        emulator,
        clock,
    } = stand;
    emulator.shut_down().await;
    let publication = Publication {
        message: message(1),
        delay_ms: 0,
    };
    let faults = [
        queue
            .publish(&[publication], clock.now())
            .await
            .remove(0)
            .map(drop),
        queue.receive(1, 1_000).await.map(drop),
        queue.check().await.map(drop),
    ];
    for fault in faults {
        assert!(matches!(fault, Err(Fault::Unavailable(_))), "{fault:?}");
    }
}

pub async fn a_queue_that_is_as_expected_has_no_mismatch(stand: Stand) {
    let findings = stand.queue.check().await.unwrap();
    assert_eq!(findings.mismatches, [""; 0]);
    assert_ne!(findings.found, [""; 0]);
    assert_eq!(stand.stats().published, 0);
}
