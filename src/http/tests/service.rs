//! What holds for every request, and the pages around the API.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, Method, StatusCode};
use serde_json::Value;

use super::super::kinds;
use super::shelf::{Shelf, Trouble};
use super::{RESERVATION, RESERVATIONS, Service, Settings, json, request};

fn troubled(trouble: Trouble) -> Service {
    let shelf = Shelf {
        trouble: Some(trouble),
        ..Shelf::default()
    };
    let settings = Settings {
        request_timeout: Duration::from_millis(50),
        ..Settings::default()
    };
    Service::new(shelf, settings)
}

#[tokio::test]
async fn unknown_paths_and_methods_are_problems() {
    let service = Service::empty();
    for uri in [
        "/",
        "/v1",
        "/v2/reservations",
        "/v1/stock/",
        "/docs/nothing.js",
    ] {
        let answered = service.get(uri).await;
        assert_eq!(answered.slug(), "not-found", "{uri}");
        assert_eq!(answered.json()["instance"], uri);
    }
    let delete = request(Method::DELETE, RESERVATIONS)
        .body(Body::empty())
        .unwrap();
    let answered = service.send(delete).await;
    assert_eq!(answered.slug(), "method-not-allowed");
    assert_eq!(answered.header("Allow"), "POST,GET,HEAD");
    let options = request(Method::OPTIONS, "/v1/stock/A")
        .body(Body::empty())
        .unwrap();
    let answered = service.send(options).await;
    assert_eq!(answered.status, StatusCode::NO_CONTENT);
    assert_eq!(answered.header("Allow"), "PUT,GET,HEAD");
    let head = request(Method::HEAD, "/livez").body(Body::empty()).unwrap();
    let answered = service.send(head).await;
    assert_eq!((answered.status, answered.body.len()), (StatusCode::OK, 0));
}

#[tokio::test]
async fn a_request_has_a_name() {
    let service = Service::empty();
    let get = |id: &[u8]| {
        request(Method::GET, "/livez")
            .header("X-Request-Id", HeaderValue::from_bytes(id).unwrap())
            .body(Body::empty())
            .unwrap()
    };
    let answered = service.send(get(b"mine-1")).await;
    assert_eq!(answered.header("X-Request-Id"), "mine-1");
    for bad in [b"".as_slice(), &[b'x'; 129], "é".as_bytes()] {
        let answered = service.send(get(bad)).await;
        let made = answered.header("X-Request-Id");
        assert_eq!(made.len(), 32, "{made}");
        assert!(made.bytes().all(|byte| byte.is_ascii_hexdigit()));
    }
}

#[tokio::test]
async fn what_breaks_inside_stays_inside() {
    for trouble in [Trouble::Corrupt, Trouble::Panic] {
        let answered = troubled(trouble).get(RESERVATION).await;
        assert_eq!(answered.slug(), "internal");
        let problem = answered.json();
        assert_eq!(problem["request_id"], answered.header("X-Request-Id"));
        let body = String::from_utf8(answered.body.to_vec()).unwrap();
        assert!(
            !body.contains("secret") && !body.contains("a bug"),
            "{body}"
        );
    }
}

#[tokio::test]
async fn what_may_pass_asks_to_come_back() {
    for trouble in [Trouble::Away, Trouble::Slow] {
        let answered = troubled(trouble).get(RESERVATION).await;
        assert_eq!(answered.slug(), "overloaded");
        assert_eq!(answered.header("Retry-After"), "1");
        let body = String::from_utf8(answered.body.to_vec()).unwrap();
        assert!(!body.contains("db-1"), "{body}");
    }
}

#[tokio::test]
async fn it_lives_without_a_database_and_is_not_ready() {
    let away = troubled(Trouble::Away);
    assert_eq!(away.get("/livez").await.status, StatusCode::OK);
    let answered = away.get("/readyz").await;
    assert_eq!(answered.slug(), "not-ready");
    assert_eq!(answered.json()["detail"], "The database cannot be reached.");
    let ready = Service::empty().get("/readyz").await.json();
    assert_eq!(ready["now"], "1970-01-01T00:00:00.000Z");
}

/// LerianStudio/midaz#2476: a service ran in a mode in which nothing expired, and nobody was told.
#[tokio::test]
async fn it_is_not_ready_when_the_expirer_gives_no_sign_of_life() {
    let service = Service::empty();
    service.metrics.heartbeat("expirer").set(-60.0);
    let answered = service.get("/readyz").await;
    assert_eq!(answered.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answered.slug(), "not-ready");
    assert_eq!(service.get("/livez").await.status, StatusCode::OK);
    service.metrics.heartbeat("expirer").set(0.0);
    assert_eq!(service.get("/readyz").await.status, StatusCode::OK);
}

#[tokio::test]
async fn requests_are_counted_by_the_pattern_of_their_route() {
    let service = Service::empty();
    service.get(RESERVATION).await;
    service.get("/nowhere/at/all").await;
    let strange = request(Method::from_bytes(b"BREW").unwrap(), "/livez");
    service.send(strange.body(Body::empty()).unwrap()).await;
    let answered = service.get("/metrics").await;
    assert!(
        answered
            .header("Content-Type")
            .starts_with("application/openmetrics-text")
    );
    let text = String::from_utf8(answered.body.to_vec()).unwrap();
    for line in [
        r#"holdfast_requests_total{method="GET",route="/v1/reservations/{id}",status="404"} 1"#,
        r#"holdfast_requests_total{method="GET",route="unmatched",status="404"} 1"#,
        r#"holdfast_requests_total{method="other",route="/livez",status="405"} 1"#,
        "holdfast_request_duration_seconds_count 3",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    assert!(
        service
            .metrics
            .encode()
            .unwrap()
            .contains("holdfast_requests")
    );
}

#[tokio::test]
async fn pages_of_allowed_origins_may_ask() {
    let service = Service::new(
        Shelf::default(),
        Settings {
            cors_origins: vec!["https://shop.test".parse().unwrap()],
            ..Settings::default()
        },
    );
    let from = |method: Method, origin: &str| {
        request(method, RESERVATION)
            .header("Origin", origin)
            .header("Access-Control-Request-Method", "POST")
            .body(Body::empty())
            .unwrap()
    };
    let preflight = service
        .send(from(Method::OPTIONS, "https://shop.test"))
        .await;
    assert_eq!(preflight.status, StatusCode::OK);
    let allowed = preflight
        .header("Access-Control-Allow-Headers")
        .to_ascii_lowercase();
    assert!(allowed.contains("idempotency-key"), "{allowed}");
    // A problem is readable for the page as well.
    let answered = service.send(from(Method::GET, "https://shop.test")).await;
    assert_eq!(answered.slug(), "not-found");
    assert_eq!(
        answered.header("Access-Control-Allow-Origin"),
        "https://shop.test"
    );
    let exposed = answered.header("Access-Control-Expose-Headers");
    for name in [
        "location",
        "idempotent-replayed",
        "retry-after",
        "x-request-id",
    ] {
        assert!(exposed.contains(name), "{exposed}");
    }
    let stranger = service.send(from(Method::GET, "https://other.test")).await;
    assert_eq!(stranger.header("Access-Control-Allow-Origin"), "");
    let closed = Service::empty()
        .send(from(Method::GET, "https://shop.test"))
        .await;
    assert_eq!(closed.header("Access-Control-Allow-Origin"), "");
}

#[tokio::test]
async fn every_problem_has_a_page() {
    let service = Service::empty();
    let index = service.get("/problems").await;
    let index = String::from_utf8(index.body.to_vec()).unwrap();
    for kind in kinds::ALL {
        let uri = format!("/problems/{}", kind.slug);
        assert!(index.contains(&uri), "{uri}");
        let page = service.get(&uri).await;
        assert_eq!(page.status, StatusCode::OK, "{uri}");
        assert!(page.header("Content-Type").starts_with("text/html"));
    }
    assert_eq!(service.get("/problems/none").await.slug(), "not-found");
    assert_eq!(service.get("/problems/%3Cb%3E").await.slug(), "not-found");
}

#[tokio::test]
async fn the_document_is_browsed_offline() {
    let service = Service::empty();
    let document = service.get("/openapi.json").await.json();
    assert_eq!(document["openapi"], "3.1.0");
    assert_eq!(service.get("/docs").await.header("Location"), "/docs/");
    let index = service.get("/docs/").await;
    assert!(index.header("Content-Type").starts_with("text/html"));
    let index = String::from_utf8(index.body.to_vec()).unwrap();
    assert!(
        !index.contains("https://") && !index.contains("\"//"),
        "{index}"
    );
    for file in [
        "swagger-ui.css",
        "swagger-ui-bundle.js",
        "swagger-initializer.js",
    ] {
        let answered = service.get(&format!("/docs/{file}")).await;
        assert_eq!(answered.status, StatusCode::OK, "{file}");
    }
    let start = service.get("/docs/swagger-initializer.js").await;
    let start = String::from_utf8(start.body.to_vec()).unwrap();
    assert!(
        start.contains("/openapi.json") && start.contains("\"none\""),
        "{start}"
    );
}

/// Every example of a request is a request that is not refused.
#[tokio::test]
async fn the_examples_of_requests_reach_the_engine() {
    let service = Service::empty();
    let document = service.get("/openapi.json").await.json();
    let mut sent = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let example = &operation["requestBody"]["content"]["application/json"]["example"];
            // What a queue delivers needs a queue and its signature; an operator sends no commands.
            let others = ["/v1/deliveries/", "/v1/operations/"];
            let is_other = others.iter().any(|other| path.starts_with(other));
            if *example == Value::Null || is_other {
                continue;
            }
            let uri = path
                .replace("{id}", "rsv_01jdz3x9k2e5qs8v4m7n6p0r1t")
                .replace("{sku}", "SKU-COFFEE-1KG");
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            let post = json(method, &uri)
                .header(
                    "Idempotency-Key",
                    "\"8e03978e-40d5-43dd-bc93-6894a57f9324\"",
                )
                .body(Body::from(example.to_string()))
                .unwrap();
            let answered = service.send(post).await;
            assert!(answered.reached_the_engine(), "{path} {answered:?}");
            sent += 1;
        }
    }
    assert_eq!(sent, 6);
}

/// An example that could not be made is `null`.
#[tokio::test]
async fn the_examples_of_answers_are_there() {
    let document = Service::empty().get("/openapi.json").await.json();
    for (path, item) in document["paths"].as_object().unwrap() {
        for operation in item.as_object().unwrap().values() {
            let responses = operation["responses"].as_object().unwrap();
            let good = &responses
                .iter()
                .find(|(status, _)| status.starts_with('2'))
                .unwrap()
                .1;
            let content = &good["content"]["application/json"];
            let item = content["example"].get("items").map(|items| &items[0]);
            if path.starts_with("/v1") {
                let example = item.unwrap_or(&content["example"]);
                assert!(example.is_object(), "{path} {content}");
            }
        }
    }
}
