//! What an operator does about cases in quarantine, and that none of it does anything twice.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::join_all;
use holdfast::domain::{EventKind, Job, Message, Reason, Reservation, ReservationId, State};
use holdfast::engine::{Cases, Dismissed, ManyReplayed, ReplayMany, Replayed};
use holdfast::queue::Fault;
use holdfast::store::{
    ActionKind, CaseState, HOLD, QuarantineCase, RecordedAction, Sighting, Store, Wait,
};
use serde_json::json;

use crate::auditor::assert_sound;
use crate::faulty::faulty;
use crate::scripted::{Loop, Sleep, queued, queued_on};
use crate::shop::{cancel, extend, homes, memory, pay};

/// Opens a case, and says its number.
async fn case(store: &dyn Store, source: &str, key: &str, payload: &str) -> i64 {
    let sighting = Sighting {
        source: source.to_owned(),
        key: key.to_owned(),
        payload: payload.as_bytes().to_vec(),
        reason: "puzzling".to_owned(),
    };
    store.quarantine().record(&sighting).await.unwrap();
    let open = store.quarantine().open(10_000, 0).await.unwrap();
    let mut found = open.iter().filter(|case| case.sighting == sighting);
    found.next().unwrap().id
}

/// A case of a delivery of this job.
async fn delivery(store: &dyn Store, job: Job) -> i64 {
    let payload = Message::first(job).payload();
    case(store, "scripted", &job.id(), &payload).await
}

/// Gives the release of a hold up, as one is given up that cannot be released.
async fn park(store: &dyn Store, held: &Reservation) -> i64 {
    let mut transaction = store.begin().await.unwrap();
    let ids = [held.id].into();
    let locked = transaction.lock_reservations(&ids, Wait::Briefly).await;
    locked.unwrap();
    let now = transaction.now().await.unwrap();
    let sighting = Sighting {
        source: HOLD.to_owned(),
        key: held.id.to_string(),
        payload: Message::first(held.job()).payload().into_bytes(),
        reason: "a constraint refuses".to_owned(),
    };
    let sightings = [(held.id, sighting)].into();
    transaction.park(&sightings, now).await.unwrap();
    transaction.commit().await.unwrap();
    let cases = store.quarantine().open(1_000, 0).await.unwrap();
    cases.last().unwrap().id
}

async fn find(store: &dyn Store, id: i64) -> (QuarantineCase, Vec<RecordedAction>) {
    store.quarantine().find(id).await.unwrap().unwrap()
}

async fn is_open(store: &dyn Store, id: i64) -> bool {
    find(store, id).await.0.state() == CaseState::Open
}

fn cases(it: &Loop) -> Cases {
    Cases::new(it.shop.engine.clone(), Arc::clone(&it.runtime))
}

/// Replays a case, and says in one word what came of it.
async fn replay(it: &Loop, id: i64) -> &'static str {
    let replayed = cases(it).replay(id, "ann").await.unwrap();
    replayed.unwrap().as_str()
}

/// By which paths holds expired.
async fn paths(store: &dyn Store) -> Vec<String> {
    let events = store.events(0, 10_000).await.unwrap();
    let expired = events
        .iter()
        .filter(|it| it.event.kind == EventKind::Expired);
    let data = expired.map(|it| serde_json::to_value(&it.event.data).unwrap());
    data.map(|data| data["via"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn p2_p12_a_delivery_is_replayed_and_what_has_ended_stays_as_it_is() {
    for home in homes().await {
        let it = queued(&home);
        let store = home.store.as_ref();
        it.shop.stock_up("A", 10).await;
        let mut held = Vec::new();
        for _ in 0..6 {
            held.push(it.shop.hold("A", 1, 60).await);
        }
        it.shop.done(pay(held[1].id)).await;
        it.shop.done(cancel(held[2].id)).await;
        it.shop.done(extend(held[3].id, 60)).await;
        it.clock.advance(60_000);
        let delivered = Message::first(held[4].job());
        assert_eq!(it.deliver(delivered).await, "expired");
        let later = it.shop.find(held[3].id).await.job();
        let unknown = Job {
            reservation: ReservationId::new(it.clock.now(), [9; 10]),
            deadline: it.clock.now(),
        };
        for (job, word, stays_open) in [
            (held[0].job(), "expired", false),
            (held[1].job(), "paid", false),
            (held[2].job(), "cancelled", false),
            (held[3].job(), "stale", false),
            (held[4].job(), "duplicate", false),
            (later, "not_due", true),
            (unknown, "unknown", true),
        ] {
            let id = delivery(store, job).await;
            assert_eq!(replay(&it, id).await, word, "{}", home.name);
            let (case, actions) = find(store, id).await;
            assert_eq!(case.state() == CaseState::Open, stays_open, "{word}");
            assert_eq!((actions.len(), actions[0].kind), (1, ActionKind::Replay));
            assert_eq!(
                (actions[0].by.as_str(), actions[0].at),
                ("ann", it.clock.now())
            );
            assert!(actions[0].outcome.starts_with(word), "{actions:?}");
            if !stays_open {
                let resolution = case.resolution.unwrap();
                assert_eq!(resolution.text, format!("replayed: {word}"));
                assert_eq!(replay(&it, id).await, "resolved", "{word}");
            }
        }
        assert_eq!(paths(store).await, ["push", "replay"], "{}", home.name);
        assert_eq!(it.shop.state(held[1].id).await, State::Paid);
        assert_eq!(it.shop.state(held[2].id).await, State::Cancelled);
        assert_eq!(it.shop.state(held[3].id).await, State::Held);
        // What was not due is, later.
        it.clock.advance(60_000);
        let id = delivery(store, later).await;
        assert_eq!(replay(&it, id).await, "expired");
        assert_sound(store).await;
    }
}

#[tokio::test]
async fn p12_what_is_still_no_job_stays_open_and_says_why() {
    for home in homes().await {
        let it = queued(&home);
        let store = home.store.as_ref();
        let id = case(store, "scripted", "m-1", "{}").await;
        for _ in 0..2 {
            let replayed = cases(&it).replay(id, "ann").await.unwrap().unwrap();
            let detail = replayed.detail().unwrap();
            assert!(detail.contains("missing field `job_id`"), "{detail}");
            assert_eq!(replayed.as_str(), "invalid");
        }
        let (case, actions) = find(store, id).await;
        assert_eq!((case.state(), actions.len()), (CaseState::Open, 2));
        assert!(actions[1].outcome.contains("missing field"), "{actions:?}");
        let reason = Reason::new("a test").unwrap();
        for _ in 0..2 {
            let dismissed = cases(&it).dismiss(id, &reason, "bob").await.unwrap();
            assert_eq!(dismissed, Dismissed::Done);
        }
        let (case, actions) = find(store, id).await;
        assert_eq!(case.resolution.unwrap().text, "dismissed: a test");
        let told: Vec<_> = actions[2..]
            .iter()
            .map(|it| (it.kind, it.by.as_str(), it.outcome.as_str()))
            .collect();
        let expected = [
            (ActionKind::Dismiss, "bob", "dismissed: a test"),
            (ActionKind::Dismiss, "bob", "resolved"),
        ];
        assert_eq!(told, expected);
        // What was let rest does nothing, though it could.
        it.shop.stock_up("A", 1).await;
        let held = it.shop.hold("A", 1, 60).await;
        it.clock.advance(60_000);
        let id = delivery(store, held.job()).await;
        let dismissed = cases(&it).dismiss(id, &reason, "bob").await.unwrap();
        assert_eq!(dismissed, Dismissed::Done);
        assert_eq!(replay(&it, id).await, "resolved");
        assert_eq!(it.shop.state(held.id).await, State::Held);
        assert_eq!(cases(&it).replay(id + 1, "ann").await.unwrap(), None);
        let dismissed = cases(&it).dismiss(id + 1, &reason, "bob").await.unwrap();
        assert_eq!(dismissed, Dismissed::NoCase);
    }
}

#[tokio::test]
async fn p2_of_ten_replays_at_once_one_releases() {
    for home in homes().await {
        let it = queued(&home);
        let store = home.store.as_ref();
        it.shop.stock_up("A", 1).await;
        let held = it.shop.hold("A", 1, 60).await;
        it.clock.advance(60_000);
        let id = delivery(store, held.job()).await;
        let words = join_all((0..10).map(|_| replay(&it, id))).await;
        let count = |word| words.iter().filter(|it| **it == word).count();
        assert_eq!(
            count("expired") + count("duplicate") + count("resolved"),
            10
        );
        // Whoever came first is told so, unless another one wrote it down first.
        assert!(count("expired") <= 1, "{}: {words:?}", home.name);
        assert_eq!(paths(store).await, ["replay"], "{}", home.name);
        let (case, actions) = find(store, id).await;
        assert!(case.resolution.is_some());
        assert_eq!(actions.len(), 10, "each of them is written down");
        assert_sound(store).await;
    }
}

#[tokio::test]
async fn p12_what_the_relay_has_given_up_is_published_again() {
    for home in homes().await {
        let mut it = queued(&home);
        let store = Arc::clone(&home.store);
        it.shop.stock_up("A", 10).await;
        let held = it.shop.hold("A", 1, 60).await;
        let paid = it.shop.hold("A", 1, 60).await;
        for _ in 0..2 {
            it.queue.says(Fault::Refused("422: no".to_owned()));
        }
        it.relay().await;
        let open = store.quarantine().open(10, 0).await.unwrap();
        assert_eq!(open.len(), 2, "{}", home.name);
        let of = |job: Job| {
            let mut found = open.iter().filter(|it| it.sighting.key == job.id());
            found.next().unwrap().id
        };
        it.shop.done(pay(paid.id)).await;
        assert_eq!(replay(&it, of(paid.job())).await, "paid");
        let id = of(held.job());
        let words = join_all((0..3).map(|_| replay(&it, id))).await;
        assert_eq!(words.iter().filter(|it| **it == "rearmed").count(), 1);
        it.relay().await;
        let again = Message {
            job: held.job(),
            copy: 2,
        };
        assert_eq!(it.queue.messages(), [again], "{}: once", home.name);
        assert!(!is_open(store.as_ref(), id).await);
        it.clock.advance(60_000);
        assert_eq!(it.deliver(again).await, "expired");
        assert_sound(store.as_ref()).await;
    }
}

#[tokio::test]
async fn p7_a_hold_that_was_given_up_is_released_by_its_replay_and_by_nothing_else() {
    for home in homes().await {
        let it = queued(&home);
        let store = home.store.as_ref();
        it.shop.stock_up("A", 2).await;
        let held = it.shop.hold("A", 1, 60).await;
        it.clock.advance(60_000);
        let id = park(store, &held).await;
        it.clock.advance(3_600_000);
        assert_eq!(it.shop.release_all().await, 0, "{}", home.name);
        let reason = Reason::new("away with it").unwrap();
        let refused = cases(&it).dismiss(id, &reason, "ann").await.unwrap();
        assert_eq!(refused, Dismissed::StillHeld);
        let (case, actions) = find(store, id).await;
        assert_eq!((case.state(), actions), (CaseState::Open, Vec::new()));
        assert_eq!(replay(&it, id).await, "expired", "{}", home.name);
        assert!(!is_open(store, id).await);
        assert_eq!(it.shop.on_shelf("A").await.held, 0);
        // One that has ended otherwise can be let rest.
        let other = it.shop.hold("A", 1, 60).await;
        it.clock.advance(60_000);
        let id = park(store, &other).await;
        assert!(it.shop.engine.resume(other.id).await.unwrap());
        assert_eq!(it.shop.release_all().await, 1);
        assert_eq!(it.shop.state(other.id).await, State::Expired);
        let dismissed = cases(&it).dismiss(id, &reason, "ann").await.unwrap();
        assert_eq!(dismissed, Dismissed::Done);
        assert_eq!(paths(store).await, ["replay", "timer"]);
        assert_sound(store).await;
    }
}

#[tokio::test]
async fn p12_a_row_that_refuses_keeps_its_case_open_until_it_is_mended() {
    for home in homes().await {
        let (store, plan) = faulty(&home.store);
        let it = queued_on(&store, &home.clock, Sleep::MovesTheClock);
        it.shop.stock_up("BAD", 1).await;
        let held = it.shop.hold("BAD", 1, 60).await;
        it.clock.advance(60_000);
        let id = park(store.as_ref(), &held).await;
        plan.poison("BAD");
        let replayed = cases(&it).replay(id, "ann").await.unwrap().unwrap();
        let Replayed::Blocked(reason) = &replayed else {
            panic!("{}: {replayed:?}", home.name);
        };
        assert!(find(store.as_ref(), id).await.1[0].outcome.contains(reason));
        assert!(is_open(store.as_ref(), id).await);
        plan.poison("");
        assert_eq!(replay(&it, id).await, "expired", "{}", home.name);
        assert!(!is_open(store.as_ref(), id).await);
        assert_sound(home.store.as_ref()).await;
    }
}

/// A hold is known by its name: whatever deadline it has by now, and whatever was kept of its job.
#[tokio::test]
async fn p12_the_case_of_a_hold_is_about_the_hold_as_it_stands() {
    for home in homes().await {
        let it = queued(&home);
        let store = home.store.as_ref();
        it.shop.stock_up("A", 1).await;
        let held = it.shop.hold("A", 1, 60).await;
        let id = park(store, &held).await;
        it.shop.done(extend(held.id, 60)).await;
        assert_eq!(replay(&it, id).await, "not_due", "{}", home.name);
        assert!(is_open(store, id).await, "{}", home.name);
        it.clock.advance(120_000);
        assert_eq!(replay(&it, id).await, "expired", "{}", home.name);
        assert!(!is_open(store, id).await, "{}", home.name);
        let held = it.shop.hold("A", 1, 60).await;
        it.shop.done(cancel(held.id)).await;
        let unreadable = json!({ "reservation_id": held.id }).to_string();
        let id = case(store, HOLD, &held.id.to_string(), &unreadable).await;
        assert_eq!(replay(&it, id).await, "cancelled", "{}", home.name);
        let nobody = ReservationId::new(it.clock.now(), [9; 10]).to_string();
        for (key, word) in [(nobody.as_str(), "unknown"), ("m-1", "invalid")] {
            let id = case(store, HOLD, key, "{}").await;
            assert_eq!(replay(&it, id).await, word, "{}", home.name);
        }
        assert_sound(store).await;
    }
}

fn many(after: i64, limit: usize, dry_run: bool) -> ReplayMany {
    ReplayMany {
        source: Some("scripted".to_owned()),
        after,
        limit,
        per_second: 10,
        dry_run,
    }
}

fn outcomes(replayed: &ManyReplayed) -> BTreeMap<&str, usize> {
    replayed.outcomes.clone()
}

#[tokio::test]
async fn many_are_foreseen_and_then_replayed_not_too_fast() {
    for home in homes().await {
        let it = queued(&home);
        let store = home.store.as_ref();
        it.shop.stock_up("A", 200).await;
        let mut ids = Vec::new();
        for number in 0..150 {
            let held = it.shop.hold("A", 1, 60).await;
            if number % 3 == 0 {
                it.shop.done(pay(held.id)).await;
            }
            ids.push(delivery(store, held.job()).await);
        }
        let elsewhere = case(store, "another", "m", "{}").await;
        ids.push(case(store, "scripted", "m", "{}").await);
        it.clock.advance(60_000);
        let foreseen = cases(&it).replay_many(&many(0, 1_000, true), "ann").await;
        let expected: BTreeMap<&str, usize> =
            [("expired", 100), ("paid", 50), ("invalid", 1)].into();
        let foreseen = foreseen.unwrap();
        assert_eq!(outcomes(&foreseen), expected, "{}", home.name);
        assert_eq!((foreseen.after, foreseen.more), (ids[150], false));
        assert!(paths(store).await.is_empty(), "nothing was done");
        assert!(find(store, ids[0]).await.1.is_empty());

        let before = it.clock.now();
        let some = cases(&it)
            .replay_many(&many(0, 120, false), "ann")
            .await
            .unwrap();
        assert_eq!(it.clock.now().millis_since(before), 11_900, "10 per second");
        assert_eq!(outcomes(&some), [("expired", 80), ("paid", 40)].into());
        assert_eq!((some.after, some.more), (ids[119], true));
        let rest = many(some.after, 31, false);
        let rest = cases(&it).replay_many(&rest, "ann").await.unwrap();
        let expected = [("expired", 20), ("paid", 10), ("invalid", 1)];
        assert_eq!(outcomes(&rest), expected.into());
        assert_eq!((rest.after, rest.more), (ids[150], false));
        let left = cases(&it)
            .replay_many(&many(0, 10, false), "ann")
            .await
            .unwrap();
        assert_eq!(outcomes(&left), [("invalid", 1)].into());
        assert!(is_open(store, elsewhere).await, "it is from elsewhere");
        assert_eq!(paths(store).await, ["replay"; 100]);
        assert_sound(store).await;
    }
}

#[tokio::test]
async fn the_replay_of_many_ends_after_a_minute() {
    let home = memory();
    let it = queued(&home);
    let mut ids = Vec::new();
    for number in 0..70 {
        let key = format!("m-{number:02}");
        ids.push(case(home.store.as_ref(), "scripted", &key, "{}").await);
    }
    let slowly = ReplayMany {
        per_second: 1,
        ..many(0, 1_000, false)
    };
    let some = cases(&it).replay_many(&slowly, "ann").await.unwrap();
    assert!(some.more);
    assert_eq!(outcomes(&some), [("invalid", 61)].into());
    assert_eq!(some.after, ids[60]);
}
