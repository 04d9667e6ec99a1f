//! What is read without locks.

use holdfast::domain::{OnExpired, State, Timestamp};
use holdfast::store::postgres::Postgres;
use holdfast::store::{Clock, ReservationFilter, StockFilter, Store};

use crate::database::{at, check_out, expire, key, line, text, with_database};

#[tokio::test]
async fn stock_is_listed_in_byte_order_page_by_page() {
    with_database(|database| async move {
        for sku in ["b", "É", "a-1", "a_1", "Z", "a1"] {
            database.set_stock(sku, 5).await;
        }
        database.hold(&[line("b", 2)], 1).await;
        database.clock.advance(1_000);
        let mut seen = Vec::new();
        let mut after = None;
        loop {
            let page = database
                .store
                .list_stock(&StockFilter::default(), after.as_ref(), 4)
                .await
                .unwrap();
            let Some(last) = page.last() else { break };
            after = Some(last.key.clone());
            seen.extend(
                page.into_iter()
                    .map(|stock| (stock.key.sku.to_string(), stock.due)),
            );
        }
        let expected = [
            ("Z", 0),
            ("a-1", 0),
            ("a1", 0),
            ("a_1", 0),
            ("b", 2),
            ("É", 0),
        ];
        assert_eq!(seen, expected.map(|(sku, due)| (sku.to_owned(), due)));

        let filter = StockFilter {
            skus: vec![text("b"), text("none")],
            location: Some(text("default")),
        };
        let page = database.store.list_stock(&filter, None, 9).await.unwrap();
        assert_eq!(page.len(), 1);
        let filter = StockFilter {
            location: Some(text("elsewhere")),
            ..StockFilter::default()
        };
        assert!(
            database
                .store
                .list_stock(&filter, None, 9)
                .await
                .unwrap()
                .is_empty()
        );
    })
    .await;
}

#[tokio::test]
async fn due_units_are_counted_where_they_matter() {
    with_database(|database| async move {
        database.set_stock("tea", 5).await;
        database.hold(&[line("tea", 2)], 1).await;
        database.clock.advance(1_000);
        for (wanted, due) in [(3, 0), (4, 2)] {
            let stock = database
                .store
                .stock(&[(key("tea"), wanted), (key("none"), 1)].into())
                .await;
            let stock = stock.unwrap();
            assert_eq!(stock.len(), 1);
            assert_eq!(stock[&key("tea")].due, due);
        }
    })
    .await;
}

#[tokio::test]
async fn reservations_are_listed_by_the_state_they_read_as() {
    with_database(|database| async move {
        database.set_stock("tea", 100).await;
        let released = database.hold(&[line("tea", 1)], 1).await;
        let due = database.hold(&[line("tea", 1)], 1).await;
        let held = database.hold(&[line("tea", 1)], 60).await;
        let paid = database.hold(&[line("tea", 1)], 60).await;
        database
            .run(&[check_out(paid.id, "pi_1", OnExpired::Reject)])
            .await;
        database.clock.advance(1_000);
        database.run(&[expire(&released)]).await;
        for (state, expected) in [
            (None, vec![paid.id, held.id, due.id, released.id]),
            (Some(State::Held), vec![held.id]),
            (Some(State::Expired), vec![due.id, released.id]),
            (Some(State::Paid), vec![paid.id]),
            (Some(State::Cancelled), vec![]),
        ] {
            let filter = ReservationFilter {
                state,
                ..ReservationFilter::default()
            };
            let (rows, now) = database
                .store
                .list_reservations(&filter, None, 9)
                .await
                .unwrap();
            let mut ids: Vec<_> = rows.iter().map(|row| row.id).collect();
            assert!(ids.is_sorted_by(|one, other| one > other));
            assert_eq!(now, at(1_000));
            let mut expected = expected;
            ids.sort();
            expected.sort();
            assert_eq!(ids, expected, "{state:?}");
        }
        let filter = ReservationFilter {
            customer_id: Some(text("buyer-1")),
            ..ReservationFilter::default()
        };
        let (page, _) = database
            .store
            .list_reservations(&filter, None, 3)
            .await
            .unwrap();
        let (rest, _) = database
            .store
            .list_reservations(&filter, Some(page[2].id), 3)
            .await
            .unwrap();
        assert_eq!((page.len(), rest.len()), (3, 1));
        let filter = ReservationFilter {
            reference: Some(text("order-1")),
            ..ReservationFilter::default()
        };
        assert!(
            database
                .store
                .list_reservations(&filter, None, 3)
                .await
                .unwrap()
                .0
                .is_empty()
        );
        let unknown = holdfast::domain::ReservationId::new(at(0), [255; 10]);
        assert_eq!(
            database.store.reservation(unknown).await.unwrap(),
            (None, at(1_000))
        );
        assert_eq!(database.store.events(4, 2).await.unwrap()[0].seq, 5);
    })
    .await;
}

#[tokio::test]
async fn the_database_clock_decides_where_no_other_does() {
    with_database(|database| async move {
        let store = Postgres::connect(&database.url, Clock::Database)
            .await
            .unwrap();
        store.check_schema().await.unwrap();
        let before = store.now().await.unwrap();
        let mut transaction = store.begin().await.unwrap();
        let during = transaction.now().await.unwrap();
        transaction.commit().await.unwrap();
        let after = store.next_attempt(before).await.unwrap().now;
        assert!(before <= during && during <= after);
        let here = Timestamp::try_from(time::OffsetDateTime::now_utc()).unwrap();
        assert!(after.millis_since(here).abs() < 60_000);
        assert_eq!(store.audit().await.unwrap(), []);
    })
    .await;
}
