//! Answers under Idempotency-Keys.

use holdfast::domain::Changes;
use holdfast::store::{Answer, Key, LockedKeys, RecordedAnswer};

use crate::world::{World, at, constraint};

fn key(scope: &str, key: &str) -> Key {
    Key {
        scope: scope.to_owned(),
        key: key.to_owned(),
    }
}

fn answer(name: Key, body: &str) -> RecordedAnswer {
    RecordedAnswer {
        key: name,
        fingerprint: (0..32).map(|byte| byte * 8 + 1).collect(),
        answer: Answer {
            status: 201,
            location: Some("/v1/reservations/rsv_1".to_owned()),
            body: body.to_owned(),
        },
        created_at: at(5),
    }
}

async fn locked(world: &World, keys: &[Key]) -> LockedKeys {
    let mut transaction = world.store.begin().await.unwrap();
    let keys = keys.iter().cloned().collect();
    let locked = transaction.lock_keys(&keys).await.unwrap();
    transaction.rollback().await;
    locked
}

pub async fn answers_are_read_back_under_their_keys(world: World) {
    let first = answer(key("shop", "k"), "{\"name\":\"caf\u{e9} \\\"x\\\"\"}\n");
    let mut second = answer(key("shop", "K"), "");
    second.answer.location = None;
    second.answer.status = 409;
    let third = answer(key("other", "k"), "x");
    let all = [first.clone(), second.clone(), third.clone()];
    world.write(&Changes::default(), &all).await.unwrap();

    let wanted = [first.key.clone(), second.key.clone(), key("shop", "unused")];
    let found = locked(&world, &wanted).await;
    assert!(found.elsewhere.is_empty());
    let found: Vec<_> = found.recorded.into_iter().collect();
    let (first_key, second_key) = (first.key.clone(), second.key.clone());
    assert_eq!(found, [(second_key, second), (first_key, first)]);
    let none = locked(&world, &[]).await;
    assert!(none.recorded.is_empty());
}

pub async fn a_later_answer_replaces_an_earlier_one(world: World) {
    let name = key("shop", "k");
    let old = answer(name.clone(), "old");
    world.write(&Changes::default(), &[old]).await.unwrap();
    let mut new = answer(name.clone(), "new");
    new.fingerprint = vec![255; 32];
    new.created_at = at(86_400_001);
    new.answer.location = None;
    world
        .write(&Changes::default(), &[new.clone()])
        .await
        .unwrap();
    let found = locked(&world, std::slice::from_ref(&name)).await;
    assert_eq!(found.recorded.get(&name), Some(&new));
}

pub async fn a_fingerprint_has_32_bytes(world: World) {
    let mut short = answer(key("shop", "k"), "x");
    short.fingerprint.pop();
    let refused = world.write(&Changes::default(), &[short]).await;
    assert_eq!(constraint(refused), "idempotency_fingerprint_length");
}
