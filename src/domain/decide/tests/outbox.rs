use super::*;
use crate::domain::OutboxEntry;

/// A week, as a queue may take it at most.
const WEEK_MS: i64 = 604_800_000;
const DAY_SECONDS: i64 = 86_400;

fn rules(queue: Option<QueueRule>) -> Rules {
    Rules {
        max_hold_seconds: 90 * DAY_SECONDS,
        queue,
    }
}

const QUEUED: Option<QueueRule> = Some(QueueRule {
    max_delay_ms: WEEK_MS,
});

fn reserve(seconds: i64) -> Command {
    Command::Reserve(Reserve {
        entropy: [1; 10],
        lines: vec![line(1)],
        until: Deadline::In { seconds },
        merchant: crate::domain::default_merchant(),
        customer_id: None,
        reference: None,
        metadata: BTreeMap::new(),
    })
}

fn changes(rules: Rules, snapshot: &Snapshot, command: &Command, now: Timestamp) -> Changes {
    match decide(rules, snapshot, command, now) {
        Decision::Done { changes, .. } => changes,
        aside @ Decision::SetAside(_) => panic!("{aside:?}"),
    }
}

fn early(early: Early) -> Command {
    let job = Job {
        reservation: id(),
        deadline: at(DEADLINE),
    };
    let via = Via::Pull;
    Command::Expire { job, via, early }
}

fn entries(changes: &Changes) -> Vec<OutboxEntry> {
    changes.outbox.values().copied().collect()
}

#[test]
fn a_job_is_published_as_soon_as_the_queue_takes_its_delay() {
    let rule = |max_delay_ms| QueueRule { max_delay_ms };
    let now = at(DEADLINE);
    for (max_delay_ms, delay_ms, expected_ms) in [
        (WEEK_MS, 1_000, 0),
        (WEEK_MS, WEEK_MS - 1, 0),
        (WEEK_MS, WEEK_MS, 0),
        (WEEK_MS, WEEK_MS + 1, 60_001),
        (WEEK_MS, 90 * 86_400_000, 90 * 86_400_000 - WEEK_MS + 60_000),
        // The margin of a queue that takes little is a tenth of that.
        (1_000, 1_001, 101),
        (0, 1_000, 1_000),
        (-1, 1_000, 1_000),
        (WEEK_MS, -5, 0),
        (i64::MAX, WEEK_MS, 0),
    ] {
        let deadline = now.saturating_add_millis(delay_ms);
        let publish_after = rule(max_delay_ms).publish_after(deadline, now);
        let case = format!("{delay_ms} at most {max_delay_ms}");
        assert_eq!(publish_after.millis_since(now), expected_ms, "{case}");
        assert!(publish_after <= deadline.max(now), "{case}");
    }
}

#[test]
fn every_deadline_has_its_job_if_there_is_a_queue_and_none_without() {
    let (snapshot, now) = snapshot(Shape::Alive);
    for command in [
        reserve(60),
        reserve(30 * DAY_SECONDS),
        command("extend later"),
    ] {
        let queued = changes(rules(QUEUED), &snapshot, &command, now);
        let row = queued.reservations.values().next().unwrap();
        let deadline = row.reservation.expires_at;
        let expected = OutboxEntry {
            job: row.reservation.job(),
            again: false,
            publish_after: QUEUED.unwrap().publish_after(deadline, now),
        };
        assert_eq!(entries(&queued), [expected]);
        let timed = changes(rules(None), &snapshot, &command, now);
        assert!(timed.outbox.is_empty());
        assert_eq!(timed.reservations, queued.reservations);
    }
    for other in ["cancel", "check out pi_1", "expire", "extend not later"] {
        let queued = changes(rules(QUEUED), &snapshot, &command(other), now);
        assert!(queued.outbox.is_empty(), "{other}");
    }
}

#[test]
fn of_a_batch_only_the_last_deadline_of_a_living_hold_is_published() {
    let (mut snapshot, now) = snapshot(Shape::Alive);
    let mut sum = Changes::default();
    let mut run = |sum: &mut Changes, command: &Command| {
        let next = changes(rules(QUEUED), &snapshot, command, now);
        snapshot.fold(&next, now);
        sum.add(next);
    };
    run(&mut sum, &reserve(60));
    let (made, _) = sum.reservations.first_key_value().unwrap();
    let made = *made;
    let until = Deadline::In { seconds: 60 };
    run(&mut sum, &Command::Extend { id: made, until });
    run(&mut sum, &command("extend later"));
    let row = |sum: &Changes, id| sum.reservations[&id].reservation.job();
    let jobs: Vec<Job> = sum.outbox.values().map(|entry| entry.job).collect();
    let mut expected = vec![row(&sum, made), row(&sum, id())];
    expected.sort();
    assert_eq!(jobs, expected);
    assert!(sum.outbox.values().all(|entry| !entry.again));
    let reason = None;
    run(&mut sum, &Command::Cancel { id: made, reason });
    run(&mut sum, &command("check out"));
    assert!(sum.outbox.is_empty(), "{:?}", sum.outbox);
}

#[test]
fn p3_an_early_job_releases_nothing_and_comes_again_if_it_is_told_to() {
    let (before, now) = snapshot(Shape::Alive);
    let deadline = at(DEADLINE);
    let job = before.reservations[&id()].job();
    let not_due = Outcome::Job(JobOutcome::NotDue { deadline, now });
    let again = OutboxEntry {
        job,
        again: true,
        publish_after: deadline,
    };
    for (queue, what, expected) in [
        (QUEUED, Early::Report, vec![]),
        (QUEUED, Early::Rearm, vec![again]),
        (None, Early::Rearm, vec![]),
    ] {
        let decision = decide(rules(queue), &before, &early(what), now);
        let Decision::Done { outcome, changes } = decision else {
            panic!("{decision:?}");
        };
        assert_eq!(outcome, not_due);
        assert_eq!(entries(&changes), expected, "{queue:?} {what:?}");
        let outbox = changes.outbox.clone();
        assert_eq!(
            changes,
            Changes {
                outbox,
                ..Changes::default()
            }
        );
    }
    // When it is due, there is nothing to come again for.
    let (due, now) = snapshot(Shape::Due);
    let released = changes(rules(QUEUED), &due, &early(Early::Rearm), now);
    assert_eq!(released.ledger[0].outcome, "expired");
    assert!(released.outbox.is_empty());
    let (missing, now) = snapshot(Shape::Missing);
    let unknown = changes(rules(QUEUED), &missing, &early(Early::Rearm), now);
    assert!(unknown.is_empty());
}

#[test]
fn a_job_that_comes_early_twice_in_a_batch_comes_again_once() {
    let (mut snapshot, now) = snapshot(Shape::Alive);
    let mut sum = Changes::default();
    for _ in 0..2 {
        sum.add(changes(rules(QUEUED), &snapshot, &early(Early::Rearm), now));
    }
    assert_eq!(sum.outbox.len(), 1);
    // One whose hold is extended behind it is published for the new deadline only, and for the
    // first time, even if somebody brings that one as well.
    let extended = changes(rules(QUEUED), &snapshot, &command("extend later"), now);
    snapshot.fold(&extended, now);
    sum.add(extended);
    let job = snapshot.reservations[&id()].job();
    let (via, early) = (Via::Push, Early::Rearm);
    let rearm = Command::Expire { job, via, early };
    let rearmed = changes(rules(QUEUED), &snapshot, &rearm, now);
    assert!(entries(&rearmed)[0].again);
    sum.add(rearmed);
    let [entry] = entries(&sum)[..] else { panic!() };
    assert_eq!((entry.again, entry.job), (false, job));
    assert_eq!(job.deadline, at(DEADLINE + 60_000));
}
