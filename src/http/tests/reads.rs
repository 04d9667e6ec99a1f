//! Reads: by the deadline, and page by page.

use super::shelf::{Shelf, event, reservation, stock};
use super::{Answered, Service, Settings};
use crate::domain::State;

fn service(shelf: Shelf) -> Service {
    Service::new(shelf, Settings::default())
}

/// Follows `next_cursor` to the end, and returns the member `name` of all items.
async fn walk(service: &Service, uri: &str, cursor: &str, name: &str) -> Vec<serde_json::Value> {
    let mut items = Vec::new();
    let mut next = String::new();
    loop {
        let page = service.get(&format!("{uri}{next}")).await.json();
        let shown = page["items"].as_array().unwrap();
        items.extend(shown.iter().map(|item| item[name].clone()));
        match page["next_cursor"].as_str() {
            Some(text) => next = format!("&{cursor}={text}"),
            None => return items,
        }
    }
}

#[tokio::test]
async fn a_reservation_has_all_its_members() {
    let row = reservation(7, "c");
    let uri = format!("/v1/reservations/{}", row.id);
    let answered = service(Shelf {
        now: 99_999,
        reservations: vec![row.clone()],
        ..Shelf::default()
    })
    .get(&uri)
    .await;
    assert_eq!(answered.header("Content-Type"), "application/json");
    assert_eq!(
        answered.json(),
        serde_json::json!({
            "id": row.id,
            "state": "held",
            "lines": [{ "sku": "SKU-1", "location": "default", "quantity": 2 }],
            "expires_at": "1970-01-01T00:01:40.000Z",
            "hold_seconds": 99,
            "extensions": 0,
            "created_at": "1970-01-01T00:00:01.000Z",
            "updated_at": "1970-01-01T00:00:01.000Z",
            "closed_at": null,
            "merchant": "default",
            "customer_id": "c",
            "reference": null,
            "payment_reference": null,
            "reacquired": false,
            "metadata": {},
        })
    );
}

/// tigerbeetle/tigerbeetle#2118: on an idle system a hold still read as held after its deadline.
#[tokio::test]
async fn a_hold_reads_as_expired_from_its_deadline_on() {
    let row = reservation(7, "c");
    let uri = format!("/v1/reservations/{}", row.id);
    for (now, state) in [(99_999, "held"), (100_000, "expired"), (200_000, "expired")] {
        let service = service(Shelf {
            now,
            reservations: vec![row.clone()],
            ..Shelf::default()
        });
        assert_eq!(service.get(&uri).await.json()["state"], state);
        let held = service.get("/v1/reservations?state=held").await.json();
        let listed = held["items"].as_array().unwrap().len();
        assert_eq!(listed, usize::from(state == "held"));
        let all = service.get("/v1/reservations").await.json();
        assert_eq!(all["items"][0]["state"], state);
    }
}

/// activepieces/activepieces#14323: a page that ended among rows of one instant lost the others.
#[tokio::test]
async fn every_reservation_stands_on_one_page() {
    let mut rows: Vec<_> = (1..=21)
        .map(|n| reservation(n, ["a", "b"][usize::from(n % 2)]))
        .collect();
    rows.sort_by_key(|row| row.id);
    rows[3].state = State::Cancelled;
    let service = service(Shelf {
        now: 50_000,
        reservations: rows.clone(),
        ..Shelf::default()
    });
    let newest_first: Vec<_> = rows
        .iter()
        .rev()
        .map(|row| serde_json::json!(row.id))
        .collect();
    for limit in [1, 7, 20, 21, 22, 1_000] {
        let uri = format!("/v1/reservations?limit={limit}");
        assert_eq!(walk(&service, &uri, "cursor", "id").await, newest_first);
        let uri = format!("{uri}&customer_id=a&state=held");
        assert_eq!(walk(&service, &uri, "cursor", "id").await.len(), 9);
    }
}

#[tokio::test]
async fn a_cursor_belongs_to_its_list_and_filter() {
    let service = service(Shelf {
        reservations: (1..=3).map(|n| reservation(n, "a")).collect(),
        stock: vec![stock("default", "A"), stock("default", "B")],
        ..Shelf::default()
    });
    let cursor_of =
        |answered: Answered| answered.json()["next_cursor"].as_str().unwrap().to_owned();
    let cursor = cursor_of(service.get("/v1/reservations?limit=1&customer_id=a").await);
    let shelf = cursor_of(service.get("/v1/stock?limit=1").await);
    for uri in [
        format!("/v1/reservations?cursor={cursor}"),
        format!("/v1/reservations?customer_id=b&cursor={cursor}"),
        format!("/v1/reservations?customer_id=a&state=held&cursor={cursor}"),
        format!("/v1/reservations?customer_id=a&cursor={}", &cursor[2..]),
        format!("/v1/reservations?customer_id=a&cursor={shelf}"),
        "/v1/reservations?cursor=".to_owned(),
        "/v1/reservations?cursor=%00".to_owned(),
        format!("/v1/stock?location=default&cursor={shelf}"),
        format!("/v1/stock?cursor={cursor}"),
    ] {
        let answered = service.get(&uri).await;
        let expected = ("malformed-request".into(), "cursor".into());
        assert_eq!(answered.fault(), expected, "{uri}");
    }
    let uri = format!("/v1/reservations?customer_id=a&limit=2&cursor={cursor}");
    assert_eq!(
        service.get(&uri).await.json()["items"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
}

#[tokio::test]
async fn stock_is_read_by_name_and_listed_in_order() {
    let service = service(Shelf {
        stock: vec![
            stock("default", "A"),
            stock("default", "a/b?c"),
            stock("north", "A"),
        ],
        ..Shelf::default()
    });
    assert_eq!(
        service.get("/v1/stock/A").await.json(),
        serde_json::json!({
            "sku": "A",
            "location": "default",
            "on_hand": 10,
            "held": 4,
            "available": 7,
            "updated_at": "1970-01-01T00:00:01.000Z",
        })
    );
    let answered = service.get("/v1/stock/a%2Fb%3Fc").await;
    assert_eq!(answered.json()["sku"], "a/b?c");
    let answered = service.get("/v1/stock/A?location=north").await;
    assert_eq!(answered.json()["location"], "north");
    assert_eq!(service.get("/v1/stock/C").await.slug(), "not-found");

    let all = walk(&service, "/v1/stock?limit=1", "cursor", "location").await;
    assert_eq!(all, ["default", "default", "north"]);
    let some = walk(
        &service,
        "/v1/stock?sku=A&sku=C&sku=A&limit=1",
        "cursor",
        "location",
    )
    .await;
    assert_eq!(some, ["default", "north"]);
}

#[tokio::test]
async fn events_are_read_from_any_point() {
    let service = service(Shelf {
        events: (1..=5).map(event).collect(),
        ..Shelf::default()
    });
    let all = walk(&service, "/v1/events?limit=2", "after", "seq").await;
    assert_eq!(all, [1, 2, 3, 4, 5]);
    let last = service.get("/v1/events?after=4").await.json();
    assert_eq!(
        last,
        serde_json::json!({
            "items": [{
                "seq": 5,
                "kind": "stock-set",
                "reservation_id": null,
                "at": "1970-01-01T00:00:01.000Z",
                "data": { "on_hand": 10 },
            }],
            "next_cursor": null,
        })
    );
    assert_eq!(
        service.get("/v1/events?after=5").await.json()["items"],
        serde_json::json!([])
    );
}
