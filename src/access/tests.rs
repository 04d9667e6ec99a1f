use std::future::pending;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::domain::{ApiKey, ApiKeyId, Text, Timestamp};
use crate::engine::Task;
use crate::store::memory::Memory;
use crate::store::{Clock, ManualClock, Store};

/// A runtime whose stopwatch is moved by hand, and in which nothing ever wakes up.
#[derive(Default)]
struct StoppedRuntime(AtomicU64);

impl StoppedRuntime {
    fn set(&self, millis: u64) {
        self.0.store(millis, Ordering::SeqCst);
    }
}

impl Runtime for StoppedRuntime {
    fn spawn(&self, _: Task) {}

    fn sleep(&self, _: Duration) -> Task {
        Box::pin(pending())
    }

    fn elapsed(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::SeqCst))
    }

    fn fill_random(&self, bytes: &mut [u8]) {
        bytes.fill(7);
    }
}

struct House {
    store: Arc<Memory>,
    runtime: Arc<StoppedRuntime>,
    keys: Arc<Keys>,
}

impl House {
    async fn new() -> Self {
        let clock = ManualClock::at(Timestamp::EPOCH);
        let store = Arc::new(Memory::new(Clock::Manual(clock)));
        let runtime = Arc::new(StoppedRuntime::default());
        let keys = Keys::read(store.clone(), runtime.clone()).await.unwrap();
        Self {
            store,
            runtime,
            keys: Arc::new(keys),
        }
    }

    fn door(&self, bootstrap: Option<&str>, limit: Option<RateLimit>) -> Access {
        let settings = Settings {
            bootstrap: bootstrap.map(Secret::chosen),
            limit,
            is_loopback: true,
        };
        Access::new(settings, self.keys.clone(), self.runtime.clone())
    }

    async fn give(&self, secret: &str, scope: Scope) -> ApiKeyId {
        let key = ApiKey {
            id: ApiKeyId::new(Timestamp::EPOCH, [secret.as_bytes()[0]; 10]),
            name: Text::new(secret).unwrap(),
            merchant: crate::domain::default_merchant(),
            scopes: Scopes::from(scope),
            secret_hash: secret::hash(secret),
            created_at: Timestamp::EPOCH,
            revoked_at: None,
        };
        self.store.api_keys().create(&key).await.unwrap();
        key.id
    }
}

const CHOSEN: &str = "0123456789abcdef0123456789abcdef";

/// `foobar` is a vector of RFC 4648, whose alphabet this is in small letters.
#[test]
fn a_secret_is_base32_and_is_not_shown() {
    let zero = Secret::from_entropy([0; 32]);
    assert_eq!(zero.reveal(), format!("hf_{}", "a".repeat(52)));
    let full = Secret::from_entropy([255; 32]);
    assert_eq!(full.reveal(), format!("hf_{}q", "7".repeat(51)));
    let mut text = [b'o'; 32];
    text[..6].copy_from_slice(b"foobar");
    let word = Secret::from_entropy(text);
    assert!(
        word.reveal().starts_with("hf_mzxw6ytbo"),
        "{}",
        word.reveal()
    );
    assert_eq!(format!("{word:?}"), "Secret(..)");
}

#[tokio::test]
async fn without_keys_it_is_open_and_with_one_it_is_not() {
    let house = House::new().await;
    let door = house.door(None, None);
    assert!(door.is_open());
    assert_eq!(&*door.admit(None).unwrap().caller.name, "public");
    let id = house.give("one", Scope::Checkout).await;
    house.keys.refresh().await.unwrap();
    assert!(!door.is_open());
    assert_eq!(door.admit(None).unwrap_err(), Denial::NoKey);
    assert_eq!(door.admit(Some("two")).unwrap_err(), Denial::UnknownKey);
    let admitted = door.admit(Some("one")).unwrap();
    assert_eq!(*admitted.caller.name, id.to_string());
    assert!(admitted.caller.reaches(&[Scope::Checkout]));
    assert!(!admitted.caller.reaches(&[Scope::Inventory]));
    // When the last key is gone, nobody is let in.
    house
        .store
        .api_keys()
        .revoke(id, Timestamp::EPOCH)
        .await
        .unwrap();
    house.keys.refresh().await.unwrap();
    assert_eq!(door.admit(Some("one")).unwrap_err(), Denial::UnknownKey);
    assert_eq!(door.admit(None).unwrap_err(), Denial::NoKey);
}

#[tokio::test]
async fn where_others_can_reach_it_it_is_never_open() {
    let house = House::new().await;
    let settings = Settings {
        bootstrap: None,
        limit: None,
        is_loopback: false,
    };
    let door = Access::new(settings, house.keys.clone(), house.runtime.clone());
    assert!(!door.is_open());
    assert_eq!(door.admit(None).unwrap_err(), Denial::NoKey);
}

#[tokio::test]
async fn an_old_picture_is_not_believed() {
    let house = House::new().await;
    house.give("one", Scope::Checkout).await;
    house.keys.refresh().await.unwrap();
    let door = house.door(Some(CHOSEN), None);
    house.runtime.set(9_999);
    assert!(door.admit(Some("one")).is_ok());
    house.runtime.set(10_000);
    for secret in [Some("one"), Some("two"), None] {
        assert_eq!(door.admit(secret).unwrap_err(), Denial::NotKnown);
    }
    // It is in no database, and needs none.
    assert!(door.admit(Some(CHOSEN)).is_ok());
    house.keys.refresh().await.unwrap();
    assert!(door.admit(Some("one")).is_ok());
}

#[tokio::test]
async fn the_bootstrap_key_closes_the_door_and_opens_it() {
    let house = House::new().await;
    let door = house.door(Some(CHOSEN), None);
    assert!(!door.is_open());
    assert_eq!(door.admit(None).unwrap_err(), Denial::NoKey);
    let operator = door.admit(Some(CHOSEN)).unwrap().caller;
    assert!(operator.reaches(&[]));
    assert!(house.store.api_keys().all().await.unwrap().is_empty());
}

#[test]
fn a_burst_is_let_through_and_then_one_by_one() {
    let limit = RateLimit::new(10, 3).unwrap();
    let at = Duration::from_millis;
    let mut arrival = Duration::ZERO;
    let mut charge = |now| {
        let (next, standing) = limit.charge(arrival, at(now));
        arrival = next;
        standing
    };
    assert_eq!(charge(5_000).remaining, 2);
    assert_eq!(charge(5_000).remaining, 1);
    let last = charge(5_000);
    assert_eq!(
        (last.is_over, last.remaining, last.full_in, last.next_in),
        (false, 0, at(300), at(100))
    );
    let over = charge(5_040);
    assert_eq!(
        (over.is_over, over.remaining, over.full_in, over.next_in),
        (true, 0, at(260), at(60))
    );
    // What was refused was not counted.
    assert!(charge(5_099).is_over);
    assert!(!charge(5_100).is_over);
    assert!(charge(5_100).is_over);
    // A long rest saves no more than the burst.
    assert_eq!(charge(60_000).remaining, 2);
    assert_eq!(limit.window(), at(300));
    assert_eq!(RateLimit::new(0, 1), None);
    assert_eq!(RateLimit::new(1, 0), None);
}

#[tokio::test]
async fn each_key_has_a_limit_of_its_own() {
    let house = House::new().await;
    house.give("one", Scope::Checkout).await;
    house.give("two", Scope::Checkout).await;
    house.keys.refresh().await.unwrap();
    let door = house.door(None, RateLimit::new(1, 1));
    let is_over = |secret| {
        let (_, standing) = door.admit(Some(secret)).unwrap().standing.unwrap();
        standing.is_over
    };
    assert!(!is_over("one"));
    assert!(is_over("one"));
    assert!(!is_over("two"));
}
