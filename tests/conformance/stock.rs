//! Rows of stock.

use std::collections::{BTreeMap, BTreeSet};

use holdfast::domain::{Changes, MAX_ON_HAND, StockDelta, StockKey};
use holdfast::store::Wait;

use crate::world::{World, at, constraint, key, key_at, row_count, set};

fn delta(key: StockKey, on_hand: i64, held: i64) -> Changes {
    Changes {
        stock: BTreeMap::from([(key, StockDelta { on_hand, held })]),
        ..Changes::default()
    }
}

pub async fn rows_are_made_for_those_who_want_them(world: World) {
    world.run(&[set("old", 3)]).await;
    world.clock.advance(10);
    let keys = BTreeSet::from([key("old"), key("wanted"), key("unwanted")]);

    let mut transaction = world.store.begin().await.unwrap();
    transaction.make_stock(&keys).await.unwrap();
    let locked = transaction.lock_stock(&keys, Wait::Briefly).await.unwrap();
    let shelves: Vec<_> = (locked.rows.iter())
        .map(|stock| (stock.key.sku.as_str(), stock.on_hand, stock.held, stock.due))
        .collect();
    let expected = [("old", 3, 0, 0), ("unwanted", 0, 0, 0), ("wanted", 0, 0, 0)];
    assert_eq!(shelves, expected);
    let changes = Changes {
        new_stock: BTreeSet::from([key("old"), key("wanted")]),
        ..delta(key("wanted"), 0, 0)
    };
    let now = transaction.now().await.unwrap();
    transaction.write_rest(&changes, &[], now).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(world.shelf(&key("old")).await, Some((3, 0, 0)));
    assert_eq!(world.shelf(&key("wanted")).await, Some((0, 0, 0)));
    assert_eq!(world.shelf(&key("unwanted")).await, None);

    let mut transaction = world.store.begin().await.unwrap();
    let keys = BTreeSet::from([key("never")]);
    transaction.make_stock(&keys).await.unwrap();
    transaction.rollback().await;
    assert_eq!(world.shelf(&key("never")).await, None);
}

pub async fn deltas_add_up(world: World) {
    world.run(&[set("tea", 10), set("other", 1)]).await;
    world.clock.advance(1_000);
    world.write(&delta(key("tea"), -2, 5), &[]).await.unwrap();
    world.write(&delta(key("tea"), -3, -3), &[]).await.unwrap();
    assert_eq!(world.shelf(&key("tea")).await, Some((5, 2, 0)));
    let wanted = BTreeMap::from([(key("tea"), 0), (key("other"), 0)]);
    let stock = world.store.stock(&wanted).await.unwrap();
    assert_eq!(stock[&key("tea")].updated_at, at(1_000));
    assert_eq!(stock[&key("other")].updated_at, at(0));
}

pub async fn a_shelf_cannot_hold_what_is_not_there(world: World) {
    world.run(&[set("tea", 10)]).await;
    for (on_hand, held) in [(0, 11), (0, -1), (-1, 10)] {
        let refused = world.write(&delta(key("tea"), on_hand, held), &[]).await;
        assert_eq!(constraint(refused), "stock_held_within_on_hand");
    }
    let refused = world.write(&delta(key("tea"), MAX_ON_HAND, 0), &[]).await;
    assert_eq!(constraint(refused), "stock_on_hand_in_range");
    assert_eq!(world.shelf(&key("tea")).await, Some((10, 0, 0)));
}

pub async fn a_delta_needs_its_row(world: World) {
    world.run(&[set("tea", 10)]).await;
    let mut changes = delta(key("tea"), 1, 0);
    changes.stock.extend(delta(key("none"), 1, 0).stock);
    assert_eq!(row_count(world.write(&changes, &[]).await), (2, 1));
    assert_eq!(world.shelf(&key("tea")).await, Some((10, 0, 0)));
}

pub async fn rows_are_locked_in_the_order_of_their_bytes(world: World) {
    let mut keys = BTreeSet::new();
    for location in ["b", "B", "\u{e9}"] {
        for sku in ["a", "A", "a b", "a-b", "ab", "\u{e9}", "z", "10", "9"] {
            keys.insert(key_at(location, sku));
        }
    }
    let changes = Changes {
        new_stock: keys.clone(),
        ..Changes::default()
    };
    world.write(&changes, &[]).await.unwrap();
    let mut transaction = world.store.begin().await.unwrap();
    keys.insert(key("missing"));
    let locked = transaction.lock_stock(&keys, Wait::Skip).await.unwrap();
    transaction.rollback().await;
    keys.remove(&key("missing"));
    let found: Vec<_> = locked.rows.into_iter().map(|stock| stock.key).collect();
    assert_eq!(found, keys.into_iter().collect::<Vec<_>>());
    assert!(locked.elsewhere.is_empty());
}
