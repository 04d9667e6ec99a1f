//! Paths and queries that are refused, by the name of the part.

use super::{RESERVATION, Service};

#[tokio::test]
async fn a_path_keeps_the_rule_too() {
    let service = Service::empty();
    let long = format!("/v1/stock/{}", "x".repeat(129));
    for uri in [
        "/v1/stock/a%00b",
        "/v1/stock/a%FF",
        "/v1/stock/%20a",
        "/v1/stock/%2E%2E",
        "/v1/stock/e%CC%81",
        "/v1/stock/a%E2%80%AEb",
        &long,
    ] {
        let answered = service.get(uri).await;
        assert_eq!(
            answered.fault(),
            ("validation".into(), "sku".into()),
            "{uri}"
        );
    }
    let answered = service.get("/v1/stock/A?location=%00").await;
    assert_eq!(answered.fault(), ("validation".into(), "location".into()));
    for uri in [
        "/v1/reservations/1",
        "/v1/reservations/%00",
        "/v1/reservations/%FF",
        "/v1/reservations/RSV_01JDZ3X9K2E5QS8V4M7N6P0R1T",
        RESERVATION,
    ] {
        assert_eq!(service.get(uri).await.slug(), "not-found", "{uri}");
    }
}

#[tokio::test]
async fn a_query_is_read_strictly() {
    let service = Service::empty();
    for (uri, field) in [
        ("/v1/reservations?limit=0", "limit"),
        ("/v1/reservations?limit=1001", "limit"),
        ("/v1/reservations?limit=-1", "limit"),
        ("/v1/reservations?limit=ten", "limit"),
        ("/v1/reservations?limit=", "limit"),
        ("/v1/reservations?limit=99999999999999999999999", "limit"),
        ("/v1/reservations?limit=1&limit=1", "limit"),
        ("/v1/reservations?state=sold", "state"),
        ("/v1/reservations?customer_id=%00", "customer_id"),
        ("/v1/reservations?reference=%FF", "reference"),
        ("/v1/reservations?colour=red", "colour"),
        ("/v1/stock?sku=A&sku=%00", "sku"),
        ("/v1/stock?location=a&location=b", "location"),
        ("/v1/stock/A?limit=1", "limit"),
        ("/v1/events?after=-1", "after"),
        ("/v1/events?after=9223372036854775808", "after"),
        ("/v1/events?after=+1", "after"),
        ("/v1/events?cursor=1", "cursor"),
    ] {
        let answered = service.get(uri).await;
        assert_eq!(
            answered.fault(),
            ("validation".into(), field.into()),
            "{uri}"
        );
    }
    let both = service.get("/v1/reservations?limit=0&colour=red").await;
    assert_eq!(both.json()["errors"].as_array().unwrap().len(), 2);
    let answered = service.post("/v1/reservations?colour=red", "{}").await;
    assert_eq!(answered.fault(), ("validation".into(), "colour".into()));
    let many = format!("/v1/stock?{}", vec!["sku=A"; 1_001].join("&"));
    assert_eq!(
        service.get(&many).await.fault(),
        ("validation".into(), "sku".into())
    );
}
