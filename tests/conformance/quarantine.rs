//! Messages that were put aside.

use holdfast::store::{MAX_KEPT_PAYLOAD, MAX_QUARANTINE_KEY, Sighting};

use crate::world::{World, at, constraint};

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
