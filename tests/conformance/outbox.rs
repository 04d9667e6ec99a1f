//! Expiry jobs on their way to a queue.

use std::collections::BTreeSet;

use holdfast::domain::{
    Command, Early, Job, Message, OnExpired, QueueRule, Reservation, Timestamp, Via,
};
use holdfast::store::{Answer, Claimed, Key, Parked, Postponed, Published, RecordedAnswer};

use crate::world::{World, at, cancel, check_out, constraint, extend, line, put_off, reserve, set};

const DAY_SECONDS: i64 = 86_400;
const WEEK: QueueRule = QueueRule {
    max_delay_ms: 604_800_000,
};
const LEASE_MS: i64 = 30_000;

/// Holds with these deadlines in seconds, whose jobs go to a queue that takes a week.
async fn holds(world: &mut World, seconds: &[i64]) -> Vec<Reservation> {
    world.queue = Some(WEEK);
    world.run(&[set("tea", 1_000)]).await;
    let mut made = Vec::new();
    for seconds in seconds {
        made.push(
            world
                .reservation(reserve(&[line("tea", 1)], *seconds))
                .await,
        );
    }
    made
}

async fn claim(world: &World) -> Claimed {
    world.store.outbox().claim(10, LEASE_MS).await.unwrap()
}

fn first(reservation: &Reservation) -> Message {
    Message::first(reservation.job())
}

fn copy(reservation: &Reservation, copy: u32) -> Message {
    let job = reservation.job();
    Message { job, copy }
}

fn messages(claimed: &Claimed) -> Vec<(Message, u32)> {
    let messages = claimed.messages.iter();
    messages.map(|it| (it.message, it.attempt)).collect()
}

async fn publish(world: &World, message: Message, attempt: u32, queue: &str) -> usize {
    let receipt = Some(format!("msg-{attempt}"));
    let published = Published {
        message,
        attempt,
        receipt,
    };
    let outbox = world.store.outbox();
    outbox.mark_published(&[published], queue).await.unwrap()
}

async fn postpone(world: &World, message: Message, attempt: u32, until: Timestamp) -> usize {
    let postponed = Postponed {
        message,
        attempt,
        at: until,
        error: "503 \0".to_owned(),
    };
    let outbox = world.store.outbox();
    outbox.retry_later(&[postponed]).await.unwrap()
}

async fn park(world: &World, message: Message, attempt: u32) -> usize {
    let parked = Parked {
        message,
        attempt,
        reason: "the queue says 400".to_owned(),
    };
    world.store.outbox().park(&[parked]).await.unwrap()
}

/// All steps of a walk over the held reservations.
async fn adopt(world: &World, queue: &str) -> usize {
    let mut adopted = 0;
    let mut after = None;
    loop {
        let step = world.store.outbox().adopt(queue, WEEK, 2, after).await;
        let step = step.unwrap();
        adopted += step.adopted;
        after = step.after;
        if after.is_none() {
            return adopted;
        }
    }
}

async fn next(world: &World) -> Option<Timestamp> {
    let next = world.store.outbox().next_publication().await.unwrap();
    assert_eq!(next.now, world.clock.now());
    next.publish_after
}

fn answer_that_is_refused() -> RecordedAnswer {
    RecordedAnswer {
        key: Key {
            scope: "shop".to_owned(),
            key: "k".to_owned(),
        },
        fingerprint: Vec::new(),
        answer: Answer {
            status: 201,
            location: None,
            body: String::new(),
        },
        created_at: at(0),
    }
}

pub async fn a_job_is_in_the_outbox_with_its_hold_or_not_at_all(mut world: World) {
    world.run(&[set("tea", 10)]).await;
    world.reservation(reserve(&[line("tea", 1)], 60)).await;
    assert_eq!(
        next(&world).await,
        None,
        "with the timer nothing is published"
    );
    world.queue = Some(WEEK);
    let changes = world.decide(&[reserve(&[line("tea", 1)], 60)]).await;
    assert_eq!(changes.outbox.len(), 1);
    // What is written after it refuses, and takes it along.
    let refused = world.write(&changes, &[answer_that_is_refused()]).await;
    assert_eq!(constraint(refused), "idempotency_fingerprint_length");
    assert_eq!(next(&world).await, None);
    world.write(&changes, &[]).await.unwrap();
    assert_eq!(next(&world).await, Some(at(0)));
    let job = changes.outbox.values().next().unwrap().job;
    assert_eq!(messages(&claim(&world).await), [(Message::first(job), 1)]);
    // A job is there for the first time once.
    let mut again = changes.clone();
    again.reservations.clear();
    again.stock.clear();
    again.events.clear();
    assert_eq!(constraint(world.write(&again, &[]).await), "outbox_pkey");
    assert!(world.drifts().await.is_empty());
}

pub async fn a_message_is_claimed_when_its_time_has_come_the_earliest_first(mut world: World) {
    let made = holds(&mut world, &[60, 8 * DAY_SECONDS, 30]).await;
    assert_eq!(next(&world).await, Some(at(0)));
    let one = world.store.outbox().claim(1, LEASE_MS).await.unwrap();
    assert_eq!((one.now, one.messages.len(), one.skipped), (at(0), 1, 0));
    let rest = claim(&world).await;
    let both: BTreeSet<Message> = [&one, &rest]
        .into_iter()
        .flat_map(|claimed| claimed.messages.iter().map(|it| it.message))
        .collect();
    assert_eq!(both, [first(&made[0]), first(&made[2])].into());
    for (message, attempt) in messages(&one).into_iter().chain(messages(&rest)) {
        assert_eq!(publish(&world, message, attempt, "q").await, 1);
    }
    let day_and_margin = DAY_SECONDS * 1_000 + 60_000;
    assert_eq!(next(&world).await, Some(at(day_and_margin)));
    world.clock.set(at(day_and_margin - 1));
    assert!(claim(&world).await.messages.is_empty());
    world.clock.set(at(day_and_margin));
    assert_eq!(messages(&claim(&world).await), [(first(&made[1]), 1)]);
    // Of several, those come first that were to be tried first.
    postpone(&world, first(&made[1]), 1, at(day_and_margin + 500)).await;
    let later = world.reservation(reserve(&[line("tea", 1)], 60)).await;
    world.clock.advance(1_000);
    let order = messages(&claim(&world).await);
    assert_eq!(order, [(first(&later), 1), (first(&made[1]), 2)]);
}

pub async fn a_lease_that_ended_gives_the_message_to_another(mut world: World) {
    let made = holds(&mut world, &[600]).await;
    let message = first(&made[0]);
    assert_eq!(messages(&claim(&world).await), [(message, 1)]);
    assert_eq!(next(&world).await, Some(at(LEASE_MS)));
    world.clock.set(at(LEASE_MS - 1));
    assert!(claim(&world).await.messages.is_empty());
    world.clock.set(at(LEASE_MS));
    assert_eq!(messages(&claim(&world).await), [(message, 2)]);
    assert_eq!(publish(&world, message, 1, "q").await, 0);
    assert_eq!(postpone(&world, message, 1, at(0)).await, 0);
    assert_eq!(park(&world, message, 1).await, 0);
    assert!(
        world
            .store
            .quarantine()
            .open(10, 0)
            .await
            .unwrap()
            .is_empty()
    );
    assert_eq!(next(&world).await, Some(at(2 * LEASE_MS)));
    assert_eq!(publish(&world, message, 2, "q").await, 1);
    assert_eq!(publish(&world, message, 2, "q").await, 0, "once is enough");
    assert_eq!(postpone(&world, message, 2, at(0)).await, 0);
    assert_eq!(park(&world, message, 2).await, 0);
    assert_eq!(next(&world).await, None);
}

pub async fn no_message_is_claimed_twice(mut world: World) {
    let made = holds(&mut world, &[60; 40]).await;
    let mut claiming = Vec::new();
    for _ in 0..4 {
        let store = world.store.clone();
        claiming.push(tokio::spawn(async move {
            let mut mine = Vec::new();
            for _ in 0..40 {
                mine.extend(store.outbox().claim(3, LEASE_MS).await.unwrap().messages);
            }
            mine
        }));
    }
    let mut all = Vec::new();
    for mine in claiming {
        all.extend(mine.await.unwrap());
    }
    assert!(all.iter().all(|it| it.attempt == 1));
    let claimed: BTreeSet<Message> = all.iter().map(|it| it.message).collect();
    assert_eq!((all.len(), claimed.len()), (made.len(), made.len()));
}

pub async fn what_nobody_waits_for_is_skipped(mut world: World) {
    let made = holds(&mut world, &[60; 5]).await;
    world
        .run(&[cancel(made[0].id), extend(made[1].id, 60)])
        .await;
    world
        .run(&[check_out(made[2].id, "pi_1", OnExpired::Reject)])
        .await;
    // One that cannot be released is still to be published.
    let mut transaction = world.store.begin().await.unwrap();
    let stuck = put_off([made[3].id], at(10_000_000));
    transaction.defer(&stuck, at(0)).await.unwrap();
    transaction.commit().await.unwrap();
    let claimed = claim(&world).await;
    assert_eq!(claimed.skipped, 3);
    let published: BTreeSet<Message> = claimed.messages.iter().map(|it| it.message).collect();
    let moved = world.stored(made[1].id).await;
    let expected = [first(&moved), first(&made[3]), first(&made[4])];
    assert_eq!(published, expected.into());
    world.clock.set(at(LEASE_MS));
    assert_eq!(claim(&world).await.skipped, 0, "they are gone");
}

pub async fn a_retry_moves_the_attempt_and_nothing_else(mut world: World) {
    let made = holds(&mut world, &[600]).await;
    let message = first(&made[0]);
    claim(&world).await;
    assert_eq!(postpone(&world, message, 1, at(45_000)).await, 1);
    assert_eq!(next(&world).await, Some(at(45_000)));
    world.clock.set(at(44_999));
    assert!(claim(&world).await.messages.is_empty());
    world.clock.set(at(45_000));
    assert_eq!(messages(&claim(&world).await), [(message, 2)]);
    assert_eq!(postpone(&world, message, 2, at(-5)).await, 1);
    assert_eq!(
        next(&world).await,
        Some(at(0)),
        "never before it may be published"
    );
    assert_eq!(world.stored(made[0].id).await, made[0]);
}

pub async fn what_is_parked_is_in_quarantine_and_not_tried_again(mut world: World) {
    let made = holds(&mut world, &[600, 600]).await;
    claim(&world).await;
    world.clock.set(at(5));
    assert_eq!(park(&world, first(&made[0]), 1).await, 1);
    assert_eq!(park(&world, first(&made[0]), 1).await, 0);
    let open = world.store.quarantine().open(10, 0).await.unwrap();
    assert_eq!(open.len(), 1);
    let seen = &open[0].sighting;
    assert_eq!((seen.source.as_str(), open[0].attempts), ("relay", 1));
    assert_eq!(seen.key, first(&made[0]).key());
    assert_eq!(Job::from_payload(&seen.payload).unwrap(), made[0].job());
    assert_eq!(seen.reason, "the queue says 400");
    assert_eq!((open[0].first_seen, open[0].last_seen), (at(5), at(5)));
    assert_eq!(publish(&world, first(&made[0]), 1, "q").await, 0);
    world.clock.set(at(LEASE_MS));
    assert_eq!(messages(&claim(&world).await), [(first(&made[1]), 2)]);
    assert_eq!(adopt(&world, "q").await, 0, "nor by adoption");
    assert_eq!(adopt(&world, "another").await, 0);
    // Another deadline is another job.
    let moved = world.reservation(extend(made[0].id, 60)).await;
    assert_eq!(messages(&claim(&world).await), [(first(&moved), 1)]);
}

pub async fn an_early_job_is_published_again_at_its_deadline(mut world: World) {
    let made = holds(&mut world, &[60]).await;
    claim(&world).await;
    publish(&world, first(&made[0]), 1, "q").await;
    let rearm = |early| Command::Expire {
        job: made[0].job(),
        via: Via::Push,
        early,
    };
    world.run(&[rearm(Early::Report)]).await;
    assert_eq!(next(&world).await, None);
    world.run(&[rearm(Early::Rearm), rearm(Early::Rearm)]).await;
    assert_eq!(next(&world).await, Some(at(60_000)));
    world.clock.set(at(60_000));
    let claimed = messages(&claim(&world).await);
    assert_eq!(claimed, [(copy(&made[0], 2), 1)]);
    assert_eq!(claimed[0].0.key(), format!("{}#2", made[0].job().id()));
}

pub async fn holds_without_a_message_are_adopted_once(mut world: World) {
    world.run(&[set("tea", 10)]).await;
    let near = world.reservation(reserve(&[line("tea", 1)], 60)).await;
    let far = reserve(&[line("tea", 1)], 8 * DAY_SECONDS);
    let far = world.reservation(far).await;
    let paid = world.reservation(reserve(&[line("tea", 1)], 60)).await;
    world
        .run(&[check_out(paid.id, "pi_1", OnExpired::Reject)])
        .await;
    world.queue = Some(WEEK);
    world.reservation(reserve(&[line("tea", 1)], 90)).await;
    assert_eq!(adopt(&world, "q").await, 2);
    assert_eq!(adopt(&world, "q").await, 0);
    let claimed: BTreeSet<Message> = claim(&world)
        .await
        .messages
        .iter()
        .map(|it| it.message)
        .collect();
    assert!(claimed.contains(&first(&near)) && claimed.len() == 2);
    assert_eq!(
        adopt(&world, "q").await,
        0,
        "what a relay has is not adopted"
    );
    let expected = far
        .expires_at
        .saturating_add_millis(60_000 - WEEK.max_delay_ms);
    world.clock.set(expected);
    let late = claim(&world).await;
    assert!(messages(&late).contains(&(first(&far), 1)));
}

pub async fn holds_are_adopted_for_another_queue(mut world: World) {
    let made = holds(&mut world, &[600, 600]).await;
    claim(&world).await;
    publish(&world, first(&made[0]), 1, "old").await;
    assert_eq!(adopt(&world, "old").await, 0);
    assert_eq!(adopt(&world, "new").await, 1);
    assert_eq!(adopt(&world, "new").await, 0);
    assert_eq!(messages(&claim(&world).await), [(copy(&made[0], 2), 1)]);
    assert_eq!(publish(&world, copy(&made[0], 2), 1, "new").await, 1);
    assert_eq!(adopt(&world, "new").await, 0);
    assert_eq!(adopt(&world, "third").await, 1);
    assert_eq!(messages(&claim(&world).await), [(copy(&made[0], 3), 1)]);
}

pub async fn adoption_goes_on_where_it_stopped(mut world: World) {
    world.run(&[set("tea", 10)]).await;
    // Some have one deadline, and all are found all the same.
    for seconds in [60, 60, 60, 30, 90] {
        world.reservation(reserve(&[line("tea", 1)], seconds)).await;
    }
    world.queue = Some(WEEK);
    let outbox = world.store.outbox();
    let mut steps = Vec::new();
    let mut after = None;
    loop {
        let step = outbox.adopt("q", WEEK, 2, after).await.unwrap();
        steps.push(step.adopted);
        assert!(
            step.after
                .is_none_or(|next| after.is_none_or(|after| next > after))
        );
        after = step.after;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(steps, [2, 2, 1]);
    assert_eq!(claim(&world).await.messages.len(), 5);
}

pub async fn depth_counts_what_waits(mut world: World) {
    let made = holds(&mut world, &[60, 70, 8 * DAY_SECONDS]).await;
    let depth = async |limit| {
        let depth = world.store.outbox().depth(limit).await.unwrap();
        assert_eq!(depth.now, world.clock.now());
        (depth.waiting, depth.oldest)
    };
    assert_eq!(depth(10).await, (3, Some(at(0))));
    assert_eq!(depth(2).await, (2, Some(at(0))));
    claim(&world).await;
    publish(&world, first(&made[0]), 1, "q").await;
    postpone(&world, first(&made[1]), 1, at(5_000)).await;
    world.clock.set(at(1_000));
    assert_eq!(
        depth(10).await,
        (2, Some(at(0))),
        "a retry makes nothing younger"
    );
    park(&world, first(&made[1]), 1).await;
    assert_eq!(
        depth(10).await,
        (1, None),
        "what may not be published yet does not age"
    );
}

pub async fn a_batch_of_nothing_changes_nothing(world: World) {
    let outbox = world.store.outbox();
    assert_eq!(outbox.mark_published(&[], "q").await.unwrap(), 0);
    assert_eq!(outbox.retry_later(&[]).await.unwrap(), 0);
    assert_eq!(outbox.park(&[]).await.unwrap(), 0);
    let nothing = outbox.adopt("q", WEEK, 10, None).await.unwrap();
    assert_eq!((nothing.adopted, nothing.after), (0, None));
    let claimed = claim(&world).await;
    assert_eq!((claimed.messages.len(), claimed.skipped), (0, 0));
    assert_eq!(claimed.now, at(0));
}
