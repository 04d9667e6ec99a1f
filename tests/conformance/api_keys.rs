//! Who may use the API.

use holdfast::domain::{ApiKey, ApiKeyId, Scope, Scopes};

use crate::world::{World, at, constraint, text};

/// A key whose secret hashes to this byte, 32 times.
fn key(name: &str, made_at: i64, byte: u8, scopes: &[Scope]) -> ApiKey {
    ApiKey {
        id: ApiKeyId::new(at(made_at), [byte; 10]),
        name: text(name),
        merchant: holdfast::domain::default_merchant(),
        scopes: Scopes::new(scopes.iter().copied()).unwrap(),
        secret_hash: [byte; 32],
        created_at: at(made_at),
        revoked_at: None,
    }
}

pub async fn a_key_is_read_back_as_it_was_made(world: World) {
    let keys = world.store.api_keys();
    assert!(keys.all().await.unwrap().is_empty());
    let shop = key("the shop's", 10, 200, &[Scope::Checkout, Scope::Inventory]);
    let older = key("Lager München", 0, 255, &[Scope::Operator]);
    for made in [&shop, &older] {
        keys.create(made).await.unwrap();
    }
    assert_eq!(keys.all().await.unwrap(), [older, shop]);
}

pub async fn a_key_is_revoked_once_and_for_good(world: World) {
    let keys = world.store.api_keys();
    let (one, other) = (
        key("one", 0, 1, &[Scope::Checkout]),
        key("other", 1, 2, &[Scope::Checkout]),
    );
    keys.create(&one).await.unwrap();
    keys.create(&other).await.unwrap();
    assert!(keys.revoke(one.id, at(50)).await.unwrap());
    assert!(!keys.revoke(one.id, at(60)).await.unwrap());
    let unknown = ApiKeyId::new(at(0), [9; 10]);
    assert!(!keys.revoke(unknown, at(60)).await.unwrap());
    let revoked = ApiKey {
        revoked_at: Some(at(50)),
        ..one
    };
    assert_eq!(keys.all().await.unwrap(), [revoked, other]);
}

pub async fn neither_a_key_nor_a_secret_is_stored_twice(world: World) {
    let keys = world.store.api_keys();
    let first = key("first", 0, 1, &[Scope::Checkout]);
    keys.create(&first).await.unwrap();
    let same_id = ApiKey {
        secret_hash: [2; 32],
        ..first.clone()
    };
    assert_eq!(constraint(keys.create(&same_id).await), "api_keys_pkey");
    let same_secret = ApiKey {
        id: ApiKeyId::new(at(1), [1; 10]),
        ..first.clone()
    };
    // SQLite does not say which of two constraints it was.
    assert!(constraint(keys.create(&same_secret).await).starts_with("api_keys_"));
    assert_eq!(keys.all().await.unwrap(), [first]);
}
