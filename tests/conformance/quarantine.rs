//! Messages that were put aside.

use holdfast::domain::{Message, QueueRule};
use holdfast::store::{
    ActionKind, CaseAction, CaseFilter, CaseState, MAX_KEPT_PAYLOAD, MAX_QUARANTINE_KEY, Parked,
    Published, QuarantineCase, RecordedAction, Resolution, SHOWN_ACTIONS, Sighting,
};

use crate::world::{World, at, constraint, line, reserve, set};

fn sighting(source: &str, key: &str, reason: &str) -> Sighting {
    Sighting {
        source: source.to_owned(),
        key: key.to_owned(),
        payload: vec![0, 159, 146, 150],
        reason: reason.to_owned(),
    }
}

pub async fn a_case_is_opened_once_and_counted(world: World) {
    let quarantine = world.store.quarantine();
    assert!(quarantine.open(10, 0).await.unwrap().is_empty());
    for (source, key, reason, at_ms) in [
        ("rest", "m-1", "is no job", 0),
        ("rest", "m-2", "is no job", 10),
        ("other", "m-1", "is no job", 20),
        ("rest", "m-1", "is still no job", 30),
    ] {
        world.clock.set(at(at_ms));
        let seen = sighting(source, key, reason);
        quarantine.record(&seen).await.unwrap();
    }
    let open = quarantine.open(10, 0).await.unwrap();
    let shown: Vec<_> = open
        .iter()
        .map(|case| {
            (
                case.sighting.key.as_str(),
                case.attempts,
                case.first_seen,
                case.last_seen,
            )
        })
        .collect();
    let expected = [
        ("m-1", 2, at(0), at(30)),
        ("m-2", 1, at(10), at(10)),
        ("m-1", 1, at(20), at(20)),
    ];
    assert_eq!(shown, expected);
    assert_eq!(open[0].sighting, sighting("rest", "m-1", "is still no job"));
    let page = quarantine.open(1, open[0].id).await.unwrap();
    assert_eq!(page, [open[1].clone()]);
    assert!(quarantine.open(10, open[2].id).await.unwrap().is_empty());
}

pub async fn a_case_is_bounded(world: World) {
    let quarantine = world.store.quarantine();
    let mut long = sighting("rest", &"k".repeat(MAX_QUARANTINE_KEY), "too long");
    long.payload = vec![7; MAX_KEPT_PAYLOAD + 1];
    quarantine.record(&long).await.unwrap();
    let open = quarantine.open(10, 0).await.unwrap();
    assert_eq!(open[0].sighting.payload.len(), MAX_KEPT_PAYLOAD);
    for key in [String::new(), "k".repeat(MAX_QUARANTINE_KEY + 1)] {
        let refused = quarantine.record(&sighting("rest", &key, "")).await;
        assert_eq!(constraint(refused), "quarantine_key_length");
    }
}

fn replay(case: i64, by: &str, outcome: &str, resolution: Option<&str>) -> CaseAction {
    CaseAction {
        case,
        kind: ActionKind::Replay,
        by: by.to_owned(),
        outcome: outcome.to_owned(),
        resolution: resolution.map(str::to_owned),
        again: None,
    }
}

fn recorded(kind: ActionKind, by: &str, at_ms: i64, outcome: &str) -> RecordedAction {
    RecordedAction {
        kind,
        by: by.to_owned(),
        at: at(at_ms),
        outcome: outcome.to_owned(),
    }
}

async fn ids(world: &World, filter: &CaseFilter, after: i64, limit: usize) -> Vec<i64> {
    let cases = world.store.quarantine().list(filter, after, limit).await;
    cases.unwrap().iter().map(|case| case.id).collect()
}

pub async fn cases_are_listed_by_what_is_asked_for(world: World) {
    let quarantine = world.store.quarantine();
    for (source, key) in [("rest", "a"), ("relay", "a"), ("rest", "b"), ("hold", "c")] {
        quarantine
            .record(&sighting(source, key, "?"))
            .await
            .unwrap();
    }
    let all = ids(&world, &CaseFilter::default(), 0, 10).await;
    let [one, two, three, four] = all[..] else {
        panic!("{all:?}");
    };
    let settle = replay(two, "ann", "expired", Some("replayed: expired"));
    assert!(quarantine.act(&settle).await.unwrap());
    let filter = |source: &str, key: &str, state| {
        let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        CaseFilter {
            source: given(source),
            key: given(key),
            state,
        }
    };
    let (open, resolved) = (Some(CaseState::Open), Some(CaseState::Resolved));
    for (filter, expected) in [
        (filter("", "", None), vec![one, two, three, four]),
        (filter("", "", open), vec![one, three, four]),
        (filter("", "", resolved), vec![two]),
        (filter("rest", "", None), vec![one, three]),
        (filter("relay", "", open), vec![]),
        (filter("", "a", None), vec![one, two]),
        (filter("", "a", open), vec![one]),
        (filter("rest", "b", open), vec![three]),
        (filter("rest", "c", None), vec![]),
    ] {
        assert_eq!(ids(&world, &filter, 0, 10).await, expected, "{filter:?}");
    }
    let open = CaseFilter::open();
    assert_eq!(ids(&world, &open, 0, 2).await, [one, three]);
    assert_eq!(ids(&world, &open, three, 2).await, [four]);
    assert_eq!(ids(&world, &open, i64::MAX, 2).await, [0; 0]);
}

pub async fn what_operators_do_is_kept_and_a_case_is_settled_once(world: World) {
    let quarantine = world.store.quarantine();
    let seen = sighting("rest", "a", "is no job");
    quarantine.record(&seen).await.unwrap();
    let id = quarantine.open(1, 0).await.unwrap()[0].id;
    for (at_ms, action, was_open) in [
        (10, replay(id, "ann", "invalid: it is", None), true),
        (
            20,
            replay(id, "bob", "expired", Some("replayed: expired")),
            true,
        ),
        (
            30,
            replay(id, "ann", "duplicate", Some("replayed: duplicate")),
            false,
        ),
        (
            40,
            CaseAction {
                kind: ActionKind::Dismiss,
                ..replay(id, "ann", "dismissed: old", Some("dismissed: old"))
            },
            false,
        ),
    ] {
        world.clock.set(at(at_ms));
        assert_eq!(quarantine.act(&action).await.unwrap(), was_open, "{at_ms}");
    }
    let (case, actions) = quarantine.find(id).await.unwrap().unwrap();
    let expected = QuarantineCase {
        id,
        sighting: seen.clone(),
        attempts: 1,
        first_seen: at(0),
        last_seen: at(0),
        resolution: Some(Resolution {
            at: at(20),
            text: "replayed: expired".to_owned(),
        }),
    };
    assert_eq!(case, expected);
    let expected = [
        recorded(ActionKind::Replay, "ann", 10, "invalid: it is"),
        recorded(ActionKind::Replay, "bob", 20, "expired"),
        recorded(ActionKind::Replay, "ann", 30, "resolved"),
        recorded(ActionKind::Dismiss, "ann", 40, "resolved"),
    ];
    assert_eq!(actions, expected);
    // Of many actions the latest are shown.
    for number in 0..SHOWN_ACTIONS - 1 {
        world.clock.set(at(1_000 + i64::try_from(number).unwrap()));
        quarantine.act(&replay(id, "ann", "", None)).await.unwrap();
    }
    let (_, actions) = quarantine.find(id).await.unwrap().unwrap();
    assert_eq!(actions.len(), SHOWN_ACTIONS);
    assert_eq!(actions[0], expected[3]);
    assert_eq!(actions[1].at, at(1_000));
    // What comes again is another case, about which nobody has done anything.
    quarantine.record(&seen).await.unwrap();
    let open = quarantine.open(10, 0).await.unwrap();
    assert_eq!((open.len(), open[0].attempts), (1, 1));
    let (again, actions) = quarantine.find(open[0].id).await.unwrap().unwrap();
    assert_eq!((again, actions), (open[0].clone(), Vec::new()));
    assert_eq!(quarantine.find(open[0].id + 1).await.unwrap(), None);
    let unknown = replay(open[0].id + 1, "ann", "expired", None);
    let refused = quarantine.act(&unknown).await;
    assert!(refused.is_err(), "there is no such case");
}

pub async fn a_message_that_was_given_up_is_published_again_once(mut world: World) {
    world.queue = Some(QueueRule {
        max_delay_ms: 3_600_000,
    });
    world.run(&[set("tea", 5)]).await;
    let held = world.reservation(reserve(&[line("tea", 1)], 600)).await;
    let outbox = world.store.outbox();
    let claimed = outbox.claim(10, 1_000).await.unwrap();
    let first = Message::first(held.job());
    let parked = Parked {
        message: first,
        attempt: claimed.messages[0].attempt,
        reason: "too large".to_owned(),
    };
    assert_eq!(outbox.park(&[parked]).await.unwrap(), 1);
    let quarantine = world.store.quarantine();
    let id = quarantine.open(1, 0).await.unwrap()[0].id;
    let again = CaseAction {
        again: Some(first),
        ..replay(id, "ann", "rearmed", Some("replayed: rearmed"))
    };
    world.clock.set(at(5_000));
    for was_open in [true, false] {
        assert_eq!(quarantine.act(&again).await.unwrap(), was_open);
    }
    // At once, with no attempts yet, and under a key that nobody has seen.
    let claimed = outbox.claim(10, 1_000).await.unwrap();
    let messages: Vec<_> = claimed.messages.iter().collect();
    assert_eq!(messages.len(), 1, "{messages:?}");
    let second = Message { copy: 2, ..first };
    assert_eq!((messages[0].message, messages[0].attempt), (second, 1));
    // What was given up is no message any more: another queue gets one of its own.
    let published = Published {
        message: second,
        attempt: 1,
        receipt: None,
    };
    let marked = outbox.mark_published(&[published], "one").await;
    assert_eq!(marked.unwrap(), 1);
    let rule = world.queue.unwrap();
    let adopted = outbox.adopt("another", rule, 10, None).await.unwrap();
    assert_eq!(adopted.adopted, 1);
    let claimed = outbox.claim(10, 1_000).await.unwrap();
    let third = Message { copy: 3, ..first };
    assert_eq!(claimed.messages[0].message, third);
    // If it is given up again, that is another case.
    let parked = Parked {
        message: third,
        attempt: 1,
        reason: "still too large".to_owned(),
    };
    assert_eq!(outbox.park(&[parked]).await.unwrap(), 1);
    let open = quarantine.open(10, 0).await.unwrap();
    assert_eq!(open.len(), 1);
    assert_eq!(open[0].sighting.key, third.key());
}
