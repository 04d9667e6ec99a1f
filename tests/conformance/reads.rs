//! Reads without a lane.

use std::collections::BTreeMap;

use holdfast::domain::{
    Command, Event, EventKind, OnExpired, Particulars, ReservationId, State, StockKey, Timestamp,
};
use holdfast::store::{RecordedEvent, ReservationFilter, StockFilter};
use serde_json::json;

use crate::world::{
    World, at, cancel, check_out, decide_in, expire, key, key_at, line, reserve, set, text,
};

async fn list(
    world: &World,
    filter: &ReservationFilter,
    before: Option<ReservationId>,
    limit: usize,
) -> Vec<ReservationId> {
    let listed = world.store.list_reservations(filter, before, limit).await;
    let (rows, now) = listed.unwrap();
    assert_eq!(now, world.clock.now());
    rows.iter().map(|reservation| reservation.id).collect()
}

pub async fn reservations_are_listed_newest_first(world: World) {
    world.run(&[set("tea", 100)]).await;
    let mut made = Vec::new();
    for _ in 0..7 {
        world.clock.advance(1);
        made.push(world.reservation(reserve(&[line("tea", 1)], 60)).await);
    }
    made.reverse();
    let all: Vec<_> = made.iter().map(|reservation| reservation.id).collect();
    let any = ReservationFilter::default();
    let (rows, _) = world
        .store
        .list_reservations(&any, None, 100)
        .await
        .unwrap();
    assert_eq!(rows, made);
    let (mut paged, mut before) = (Vec::new(), None);
    loop {
        let page = list(&world, &any, before, 3).await;
        before = page.last().copied();
        if page.is_empty() {
            break;
        }
        paged.extend(page);
    }
    assert_eq!(paged, all);
    assert!(list(&world, &any, None, 0).await.is_empty());
}

pub async fn reservations_are_listed_as_they_read(world: World) {
    world.run(&[set("tea", 100)]).await;
    let mut all = Vec::new();
    for seconds in [10, 10, 60, 60, 60] {
        all.push(world.reservation(reserve(&[line("tea", 1)], seconds)).await);
    }
    let [released, due, held, cancelled, paid] = all.try_into().unwrap();
    world.run(&[cancel(cancelled.id)]).await;
    world
        .run(&[check_out(paid.id, "pi_1", OnExpired::Reject)])
        .await;
    world.clock.set(at(10_000));
    world.run(&[expire(&released)]).await;
    for (state, expected) in [
        (State::Held, vec![held.id]),
        (State::Expired, vec![due.id, released.id]),
        (State::Cancelled, vec![cancelled.id]),
        (State::Paid, vec![paid.id]),
    ] {
        let filter = ReservationFilter {
            state: Some(state),
            ..ReservationFilter::default()
        };
        assert_eq!(list(&world, &filter, None, 10).await, expected, "{state:?}");
    }
    let (stored, now) = world.store.reservation(due.id).await.unwrap();
    assert_eq!(stored.map(|row| row.state), Some(State::Held));
    assert_eq!(now, at(10_000));
    let unknown = "rsv_00000000000000000000000000".parse().unwrap();
    assert_eq!(world.store.reservation(unknown).await.unwrap().0, None);
}

pub async fn reservations_are_listed_by_customer_and_reference(world: World) {
    world.run(&[set("tea", 100)]).await;
    let mut ids = Vec::new();
    for (customer, reference) in [("ann", "1"), ("ann", "2"), ("Ann", "1"), ("ann", "1")] {
        let mut command = reserve(&[line("tea", 1)], 60);
        if let Command::Reserve(reserve) = &mut command {
            reserve.customer_id = Some(text(customer));
            reserve.reference = Some(text(reference));
        }
        ids.push(world.reservation(command).await.id);
    }
    world.reservation(reserve(&[line("tea", 1)], 60)).await;
    world.run(&[cancel(ids[3])]).await;
    let filter = |customer: Option<&str>, reference: Option<&str>, state| ReservationFilter {
        state,
        customer_id: customer.map(text),
        reference: reference.map(text),
    };
    for (filter, expected) in [
        (
            filter(Some("ann"), None, None),
            vec![ids[3], ids[1], ids[0]],
        ),
        (filter(Some("Ann"), None, None), vec![ids[2]]),
        (filter(None, Some("1"), None), vec![ids[3], ids[2], ids[0]]),
        (filter(Some("ann"), Some("1"), None), vec![ids[3], ids[0]]),
        (
            filter(Some("ann"), Some("1"), Some(State::Held)),
            vec![ids[0]],
        ),
        (filter(Some("bob"), None, None), vec![]),
    ] {
        assert_eq!(
            list(&world, &filter, None, 10).await,
            expected,
            "{filter:?}"
        );
    }
    let ann = filter(Some("ann"), None, None);
    assert_eq!(list(&world, &ann, Some(ids[3]), 1).await, [ids[1]]);
}

pub async fn stock_is_listed_in_the_order_of_its_keys(world: World) {
    let mut keys = Vec::new();
    for location in ["B", "a", "\u{e9}"] {
        for sku in ["A", "a", "b c", "\u{e9}"] {
            keys.push(key_at(location, sku));
        }
    }
    keys.sort();
    for key in &keys {
        let key = key.clone();
        world.run(&[Command::SetStock { key, on_hand: 5 }]).await;
    }
    let mut command = reserve(&[crate::world::line_at("a", "A", 2)], 10);
    world.run(&[command.clone()]).await;
    command = reserve(&[crate::world::line_at("a", "A", 1)], 60);
    world.run(&[command]).await;
    world.clock.set(at(10_000));

    let listed = async |filter: &StockFilter, after: Option<&StockKey>, limit| {
        let rows = world.store.list_stock(filter, after, limit).await.unwrap();
        rows.into_iter().map(|stock| stock.key).collect::<Vec<_>>()
    };
    let any = StockFilter::default();
    assert_eq!(listed(&any, None, 100).await, keys);
    let (mut paged, mut after) = (Vec::new(), None);
    loop {
        let page = listed(&any, after.as_ref(), 5).await;
        after = page.last().cloned();
        if page.is_empty() {
            break;
        }
        paged.extend(page);
    }
    assert_eq!(paged, keys);
    let filter = |skus: &[&str], location: Option<&str>| StockFilter {
        skus: skus.iter().map(|sku| text(sku)).collect(),
        location: location.map(text),
    };
    for (filter, matches) in [
        (filter(&[], Some("a")), 4),
        (filter(&["\u{e9}", "A"], None), 6),
        (filter(&["\u{e9}", "A", "none"], Some("a")), 2),
        (filter(&["none"], None), 0),
    ] {
        let wanted = |key: &&StockKey| {
            (filter.skus.is_empty() || filter.skus.contains(&key.sku))
                && (filter.location.as_ref()).is_none_or(|location| *location == key.location)
        };
        let expected: Vec<_> = keys.iter().filter(wanted).cloned().collect();
        assert_eq!(expected.len(), matches);
        assert_eq!(listed(&filter, None, 100).await, expected);
        let later = listed(&filter, expected.first(), 100).await;
        assert_eq!(later, expected.get(1..).unwrap_or_default());
    }
    let rows = world
        .store
        .list_stock(&filter(&["A"], Some("a")), None, 1)
        .await;
    let row = rows.unwrap().remove(0);
    assert_eq!((row.on_hand, row.held, row.due), (5, 3, 2));
}

pub async fn due_units_are_counted_where_they_matter(world: World) {
    world.run(&[set("tea", 10), set("milk", 10)]).await;
    world
        .run(&[reserve(&[line("tea", 4), line("milk", 4)], 10)])
        .await;
    world.clock.set(at(10_000));
    let wanted = BTreeMap::from([(key("tea"), 6), (key("milk"), 7), (key("none"), 1)]);
    let stock = world.store.stock(&wanted).await.unwrap();
    let due: Vec<_> = stock
        .values()
        .map(|row| (row.key.clone(), row.due))
        .collect();
    assert_eq!(due, [(key("milk"), 4), (key("tea"), 0)]);
    assert_eq!(stock[&key("milk")].available(), 10);
    assert!(
        world
            .store
            .stock(&BTreeMap::new())
            .await
            .unwrap()
            .is_empty()
    );
}

pub async fn readers_see_what_was_committed(world: World) {
    world.run(&[set("tea", 10)]).await;
    let mut transaction = world.store.begin().await.unwrap();
    let commands = [reserve(&[line("tea", 1)], 60)];
    let decided = decide_in(transaction.as_mut(), &commands).await;
    let (_, changes, now) = decided.unwrap();
    transaction.write_rest(&changes, &[], now).await.unwrap();
    assert_eq!(world.shelf(&key("tea")).await, Some((10, 0, 0)));
    let any = ReservationFilter::default();
    assert!(list(&world, &any, None, 10).await.is_empty());
    assert_eq!(world.store.events(0, 10).await.unwrap().len(), 1);
    transaction.commit().await.unwrap();
    assert_eq!(world.shelf(&key("tea")).await, Some((10, 1, 0)));
    assert_eq!(list(&world, &any, None, 10).await.len(), 1);
    assert_eq!(world.store.events(0, 10).await.unwrap().len(), 2);
}

pub async fn the_clock_is_the_one_that_was_handed_in(world: World) {
    for now in [at(0), at(1), at(-5), Timestamp::MAX] {
        world.clock.set(now);
        assert_eq!(world.store.now().await.unwrap(), now);
        let mut transaction = world.store.begin().await.unwrap();
        assert_eq!(transaction.now().await.unwrap(), now);
        world.clock.set(at(7));
        assert_eq!(transaction.now().await.unwrap(), at(7));
        transaction.rollback().await;
    }
}

pub async fn events_are_numbered_without_gaps(world: World) {
    world.run(&[set("tea", 10), set("milk", 10)]).await;
    let mut transaction = world.store.begin().await.unwrap();
    let commands = [reserve(&[line("tea", 1)], 60)];
    let decided = decide_in(transaction.as_mut(), &commands).await;
    let (_, changes, now) = decided.unwrap();
    transaction.write_rest(&changes, &[], now).await.unwrap();
    transaction.rollback().await;
    let held = world.reservation(reserve(&[line("tea", 1)], 60)).await;
    world.run(&[cancel(held.id), set("tea", 3)]).await;

    let events = world.store.events(0, 100).await.unwrap();
    let told: Vec<_> = (events.iter())
        .map(|recorded| (recorded.seq, recorded.event.kind))
        .collect();
    let expected = [
        (1, EventKind::StockSet),
        (2, EventKind::StockSet),
        (3, EventKind::Created),
        (4, EventKind::Cancelled),
        (5, EventKind::StockSet),
    ];
    assert_eq!(told, expected);
    assert_eq!(world.store.events(2, 2).await.unwrap(), events[2..4]);
    assert!(world.store.events(5, 2).await.unwrap().is_empty());
    assert!(world.drifts().await.is_empty());
}

pub async fn events_are_read_back_as_they_were_written(world: World) {
    let event = |kind, id: Option<&str>| Event {
        kind,
        reservation_id: id.map(|id| id.parse().unwrap()),
        at: at(123),
        data: Particulars::of(&json!({
            "text": "caf\u{e9} \"x\" \\ 咖啡",
            "number": 1_000_000_000_000_i64,
            "nothing": null,
            "list": [{"sku": "a", "quantity": 1}],
        })),
    };
    let written: Vec<_> = (EventKind::ALL.into_iter())
        .map(|kind| event(kind, Some("rsv_01h455vb4pex5vsknk084sn02q")))
        .chain([event(EventKind::StockAdjusted, None)])
        .collect();
    let changes = holdfast::domain::Changes {
        events: written.clone(),
        ..Default::default()
    };
    world.write(&changes, &[]).await.unwrap();
    let read = world.store.events(0, 100).await.unwrap();
    let numbered = (1..).zip(written);
    let expected: Vec<_> = numbered
        .map(|(seq, event)| RecordedEvent { seq, event })
        .collect();
    assert_eq!(read, expected);
}
