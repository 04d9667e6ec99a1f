//! Judges the rows by the events and the events by the rows, without the code that made either.

use std::collections::BTreeMap;

use holdfast::domain::{EventKind, Reservation, ReservationId, State, Stock, StockKey};
use holdfast::store::{RecordedEvent, ReservationFilter, StockFilter, Store};

use crate::shop::text;

/// All rows that the port shows.
#[derive(Debug, PartialEq)]
pub struct Books {
    pub stock: Vec<Stock>,
    pub reservations: Vec<Reservation>,
    pub events: Vec<RecordedEvent>,
}

pub async fn books(store: &dyn Store) -> Books {
    let all = StockFilter::default();
    let any = ReservationFilter::default();
    let (reservations, _) = store
        .list_reservations(&any, None, 1_000_000)
        .await
        .unwrap();
    Books {
        stock: store.list_stock(&all, None, 1_000_000).await.unwrap(),
        reservations,
        events: store.events(0, 1_000_000).await.unwrap(),
    }
}

/// P1, P2, P8 and P9, and what the store's own audit says.
pub async fn assert_sound(store: &dyn Store) -> Books {
    let drifts = store.audit().await.unwrap();
    assert!(drifts.is_empty(), "{drifts:#?}");
    let books = books(store).await;
    assert_stock_is_conserved(&books);
    assert_events_tell_the_states(&books);
    books
}

fn assert_stock_is_conserved(books: &Books) {
    let mut on_hand: BTreeMap<StockKey, i64> = BTreeMap::new();
    let mut held: BTreeMap<StockKey, i64> = BTreeMap::new();
    let rows: BTreeMap<ReservationId, &Reservation> =
        books.reservations.iter().map(|row| (row.id, row)).collect();
    for recorded in &books.events {
        let event = &recorded.event;
        match event.kind {
            EventKind::StockSet | EventKind::StockAdjusted => {
                let key = StockKey {
                    location: text(event.data.value()["location"].as_str().unwrap()),
                    sku: text(event.data.value()["sku"].as_str().unwrap()),
                };
                let before = event.data.value()["from"].as_i64().unwrap();
                let row = on_hand.entry(key).or_default();
                assert_eq!(*row, before, "P8: {event:?}");
                *row = event.data.value()["on_hand"].as_i64().unwrap();
            }
            // Of a row that vanished, the new one has what was claimed of it.
            EventKind::StockRepaired if event.reservation_id.is_none() => {
                let data = event.data.value();
                let key = StockKey {
                    location: text(data["location"].as_str().unwrap()),
                    sku: text(data["sku"].as_str().unwrap()),
                };
                let before = data["before"]["on_hand"].as_i64();
                let row = on_hand.entry(key).or_default();
                assert!(before.is_none_or(|before| before == *row), "P8: {event:?}");
                *row = data["after"]["on_hand"].as_i64().unwrap();
            }
            EventKind::Paid => {
                for (key, units) in units(rows[&event.reservation_id.unwrap()]) {
                    *on_hand.get_mut(&key).unwrap() -= units;
                }
            }
            _ => {}
        }
    }
    for row in books
        .reservations
        .iter()
        .filter(|row| row.state == State::Held)
    {
        for (key, units) in units(row) {
            *held.entry(key).or_default() += units;
        }
    }
    for row in &books.stock {
        assert!((0..=row.on_hand).contains(&row.held), "P1: {row:?}");
        assert_eq!(on_hand.remove(&row.key), Some(row.on_hand), "P8: {row:?}");
        assert_eq!(
            held.remove(&row.key).unwrap_or_default(),
            row.held,
            "P8: {row:?}"
        );
    }
    assert!(
        on_hand.is_empty() && held.is_empty(),
        "P8: {on_hand:?} {held:?}"
    );
}

fn assert_events_tell_the_states(books: &Books) {
    let mut told: BTreeMap<ReservationId, Vec<EventKind>> = BTreeMap::new();
    let mut refused = Vec::new();
    for (number, recorded) in (1..).zip(&books.events) {
        assert_eq!(recorded.seq, number, "P9: events have no gaps");
        let event = &recorded.event;
        if let Some(id) = event.reservation_id {
            if event.kind == EventKind::PaymentRefused {
                let refusal = (id, event.data.value()["payment_reference"].to_string());
                assert!(!refused.contains(&refusal), "P9: {event:?}");
                refused.push(refusal);
            } else if event.kind != EventKind::StockRepaired {
                told.entry(id).or_default().push(event.kind);
            }
        }
    }
    for row in &books.reservations {
        let mut expected = vec![EventKind::Created];
        expected.extend((0..row.extensions).map(|_| EventKind::Extended));
        match row.state {
            State::Held => {}
            State::Paid if row.reacquired => {
                expected.extend([EventKind::Expired, EventKind::Paid]);
            }
            State::Paid => expected.push(EventKind::Paid),
            State::Cancelled => expected.push(EventKind::Cancelled),
            State::Expired => expected.push(EventKind::Expired),
        }
        assert_eq!(told.remove(&row.id), Some(expected), "P2, P9: {row:?}");
    }
    assert!(told.is_empty(), "P9: {told:?}");
}

fn units(row: &Reservation) -> BTreeMap<StockKey, i64> {
    let mut units = BTreeMap::new();
    for line in &row.lines {
        let key = StockKey {
            location: line.location.clone(),
            sku: line.sku.clone(),
        };
        *units.entry(key).or_default() += line.quantity;
    }
    units
}
