//! What the service says about itself: the API's document, the pages, the figures.

use std::collections::BTreeSet;

use reqwest::Method;
use serde_json::{Value, json};

use crate::on_each_store;
use crate::quarantine::open_case;
use crate::queue::settings;
use crate::raw;
use crate::shop::{Shop, id, released};
use crate::world::client::Client;
use crate::world::contract::{DOCUMENT, seen};
use crate::world::server::run;

on_each_store!(
    every_documented_answer_is_given,
    the_figures_have_their_names,
    pages_load_nothing_from_elsewhere,
);

const QUARANTINE: &str = "/v1/operations/quarantine";

#[test]
fn the_program_prints_the_committed_document() {
    let printed = run(&["openapi"], &[]);
    assert!(printed.status.success());
    let committed = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi/openapi.json");
    let committed = std::fs::read_to_string(committed).unwrap();
    assert!(String::from_utf8(printed.stdout).unwrap() == committed);
}

async fn text(client: &Client, path: &str) -> (u16, String, String) {
    let answer = client.send(client.request(Method::GET, path)).await;
    let content_type = answer.header("content-type").unwrap_or_default().to_owned();
    let body = match answer.body {
        Value::String(text) => text,
        other => other.to_string(),
    };
    (answer.status, content_type, body)
}

/// Every operation gives each of its documented answers, as documented; the client holds each
/// against the document. Answers of the 500s are for faults, which tests of faults meet, and those
/// of the door are for whoever may not come in, whom tests of keys send.
async fn every_documented_answer_is_given(shop: &mut Shop) {
    let client = shop.client();
    let long = "x".repeat(2 << 20);
    for path in ["/livez", "/readyz", "/metrics"] {
        assert_eq!(text(&client, path).await.0, 200);
    }
    client.put_stock("A", 10).await.expect(200);
    client.adjust_stock("A", 1).await.expect(200);
    client.get_stock("A").await.expect(200);
    client.get_stock("B").await.expect(404);
    client.list_events(0, 10).await.expect(200);
    for list in [
        &["stock"][..],
        &["reservations"],
        &["operations", "quarantine"],
    ] {
        client.get(list, &[]).await.expect(200);
        client.get(list, &[("cursor", "x")]).await.expect(400);
        client.get(list, &[("limit", "0")]).await.expect(422);
    }
    client.get(&["events"], &[("limit", "0")]).await.expect(422);
    client
        .get(&["stock", "A"], &[("limit", "0")])
        .await
        .expect(422);
    client.reserve_one("A", 12, 600).await.expect(409);
    let held = id(client.reserve_one("A", 1, 600).await);
    client.get_reservation(&held).await.expect(200);
    client
        .get(&["reservations", &held], &[("limit", "0")])
        .await
        .expect(422);
    client
        .get_reservation("rsv_01jdz3x9k2e5qs8v4m7n6p0r1t")
        .await
        .expect(404);
    client
        .extend(&held, json!({ "extend_seconds": 1 }))
        .await
        .expect(200);
    client.checkout(&held, json!({})).await.expect(200);
    let cancelled = id(client.reserve_one("A", 1, 600).await);
    client.cancel(&cancelled, json!({})).await.expect(200);
    for action in ["extend", "checkout", "cancel"] {
        let body = if action == "extend" {
            json!({ "extend_seconds": 1 })
        } else {
            json!({})
        };
        let ended = if action == "cancel" {
            &held
        } else {
            &cancelled
        };
        client
            .ask(Method::POST, &["reservations", ended, action], body.clone())
            .await
            .expect(409);
        let nobody = ["reservations", "rsv_01jdz3x9k2e5qs8v4m7n6p0r1t", action];
        client.ask(Method::POST, &nobody, body).await.expect(404);
    }
    client.put_stock("B", 1).await.expect(200);
    client.reserve_one("B", 1, 600).await.expect(201);
    client.put_stock("B", 0).await.expect(409);
    client.adjust_stock("B", -1).await.expect(409);
    let held = format!("/v1/reservations/{held}");
    for (method, path) in [
        (Method::PUT, "/v1/stock/A".to_owned()),
        (Method::POST, "/v1/stock/A/adjustments".to_owned()),
        (Method::POST, "/v1/reservations".to_owned()),
        (Method::POST, format!("{held}/extend")),
        (Method::POST, format!("{held}/checkout")),
        (Method::POST, format!("{held}/cancel")),
        (Method::POST, "/v1/operations/relay/run".to_owned()),
        (Method::POST, "/v1/operations/sweep/run".to_owned()),
        (Method::POST, format!("{QUARANTINE}/replay")),
        (Method::POST, format!("{QUARANTINE}/1/replay")),
        (Method::POST, format!("{QUARANTINE}/1/dismiss")),
    ] {
        for (content_type, body, status) in [
            ("application/json", "{", 400),
            ("application/json", &long, 413),
            ("text/plain", "{}", 415),
            ("application/json", r#"{"nonsense":1}"#, 422),
        ] {
            let request = client
                .request(method.clone(), &path)
                .header("Content-Type", content_type)
                .body(body.to_owned());
            client.send(request).await.expect(status);
        }
    }
    cases_give_their_answers(shop, &client).await;
    the_log_says_where_it_begins(shop, &client).await;
    runs_give_their_answers(shop).await;
    let missing = missing();
    assert!(
        missing.is_empty(),
        "documented, and never given: {missing:#?}"
    );
}

/// A case of a delivery, one of a hold that stands, and none.
async fn cases_give_their_answers(shop: &Shop, client: &Client) {
    let held = id(client.reserve_one("A", 1, 600).await);
    open_case(shop, "rest", "m-1", "{}").await;
    open_case(shop, "hold", &held, "{}").await;
    let reason = json!({ "reason": "a test" });
    for (case, replayed, dismissed) in [("1", 200, 200), ("2", 200, 409), ("3", 404, 404)] {
        let path = ["operations", "quarantine", case];
        let ask = async |action, body: &Value| {
            let path = [&path[..], &[action]].concat();
            client.ask(Method::POST, &path, body.clone()).await
        };
        client.get(&path, &[]).await.expect(replayed);
        client.get(&path, &[("limit", "1")]).await.expect(422);
        ask("replay", &json!({})).await.expect(replayed);
        ask("dismiss", &reason).await.expect(dismissed);
    }
    let many = ["operations", "quarantine", "replay"];
    client.ask(Method::POST, &many, json!({})).await.expect(200);
    client.cancel(&held, json!({})).await.expect(200);
}

/// With the timer there is nothing to publish to; with a queue there is, even if it is away.
async fn runs_give_their_answers(shop: &mut Shop) {
    const RELAY: [&str; 3] = ["operations", "relay", "run"];
    const SWEEP: [&str; 3] = ["operations", "sweep", "run"];
    let run = async |client: Client, path| client.ask(Method::POST, path, json!({})).await;
    let refused = run(shop.client(), &RELAY).await.expect(409);
    let detail = refused["detail"].as_str().unwrap();
    assert!(detail.contains("HOLDFAST_QUEUE_URL"), "{detail}");
    run(shop.client(), &SWEEP).await.expect(200);
    let away = "rest+http://127.0.0.1:1/v1?queue=expiry&mode=pull";
    let settings = settings(away, "300");
    let client = shop.restart(&settings).await;
    run(client, &RELAY).await.expect(200);
}

/// No test waits until an event is old, so one is put aside as if it had been deleted.
async fn the_log_says_where_it_begins(shop: &Shop, client: &Client) {
    let all = client.list_events(0, 10).await.expect(200);
    let hide = "update events set seq = 1000000 where seq = 1";
    let delete = "update retention set seq = 1 where table_name = 'events'";
    for sql in [hide, delete] {
        shop.sql(sql).await.unwrap();
    }
    let gone = client.list_events(0, 10).await.expect(410);
    assert_eq!(gone["type"], "/problems/events-deleted");
    assert_eq!(gone["after"], 1);
    let rest = client.list_events(1, 9).await.expect(200);
    assert_eq!(rest["items"][0], all["items"][1]);
    let end = client.list_events(1_000_000, 9).await.expect(200);
    assert_eq!(end["items"], json!([]));
    let restore = "update retention set seq = 0 where table_name = 'events'";
    for sql in ["update events set seq = 1 where seq = 1000000", restore] {
        shop.sql(sql).await.unwrap();
    }
}

/// What the document promises and no answer of this process has shown.
fn missing() -> Vec<String> {
    let mut missing = Vec::new();
    for (path, operations) in DOCUMENT["paths"].as_object().unwrap() {
        // What a queue is answered is asked where there is one.
        if path.starts_with("/v1/deliveries/") {
            continue;
        }
        for (method, operation) in operations.as_object().unwrap() {
            for status in operation["responses"].as_object().unwrap().keys() {
                let status: u16 = status.parse().unwrap();
                let operation = format!("{method} {path}");
                // The door, and the wire, have tests of their own.
                let is_shown_elsewhere = matches!(status, 401 | 403 | 408 | 429);
                if status < 500 && !is_shown_elsewhere && seen(&operation, status) == 0 {
                    missing.push(format!("{operation}: {status}"));
                }
            }
        }
    }
    missing
}

async fn the_figures_have_their_names(shop: &mut Shop) {
    let client = shop.client();
    client.put_stock("A", 1).await.expect(200);
    let id = id(client.reserve_one("A", 1, 1).await);
    released(&client, &id).await;
    let (status, content_type, figures) = text(&client, "/metrics").await;
    assert_eq!(status, 200);
    assert!(content_type.starts_with("application/openmetrics-text; version=1.0.0"));
    assert!(figures.ends_with("# EOF\n"));
    for name in [
        "holdfast_requests_total{method=\"POST\",route=\"/v1/reservations\",status=\"201\"} 1",
        "holdfast_request_duration_seconds_bucket",
        "holdfast_outcomes_total{command=\"reserve\",outcome=\"created\"} 1",
        "holdfast_lateness_seconds_count{via=\"timer\"} 1",
        "holdfast_lane_depth{lane=\"release\"}",
        "holdfast_batch_size_bucket",
        "holdfast_batch_duration_seconds_sum{lane=\"sales-0\"}",
        "holdfast_stuck_holds_total 0",
        "holdfast_worker_last_run_seconds",
    ] {
        assert!(figures.contains(name), "{name} is missing in\n{figures}");
    }
    let names = figures
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "));
    for name in names {
        assert!(name.starts_with("holdfast_"), "{name}");
    }
    // A path that anybody can make up is no series of its own.
    client.get(&["nothing", "here"], &[]).await.expect(404);
    let (_, _, figures) = text(&client, "/metrics").await;
    assert!(!figures.contains("nothing"));
}

async fn pages_load_nothing_from_elsewhere(shop: &mut Shop) {
    let client = shop.client();
    let (status, content_type, served) = text(&client, "/openapi.json").await;
    assert_eq!((status, content_type.as_str()), (200, "application/json"));
    let served: Value = serde_json::from_str(&served).unwrap();
    assert_eq!(served, *DOCUMENT);

    let (status, _, page) = text(&client, "/docs/").await;
    assert_eq!(status, 200);
    let mut pages = vec![("/docs/".to_owned(), page)];
    let (status, _, script) = text(&client, "/docs/swagger-initializer.js").await;
    assert_eq!(status, 200);
    assert!(script.contains("/openapi.json"), "{script}");
    pages.push(("/docs/swagger-initializer.js".to_owned(), script));
    for file in [
        "swagger-ui.css",
        "swagger-ui-bundle.js",
        "swagger-ui-standalone-preset.js",
    ] {
        assert_eq!(
            text(&client, &format!("/docs/{file}")).await.0,
            200,
            "{file}"
        );
    }

    let mut slugs = BTreeSet::new();
    let document = DOCUMENT.to_string();
    for (at, start) in document.match_indices("/problems/") {
        let rest = &document[at + start.len()..];
        let end = rest.find(|letter: char| !letter.is_ascii_lowercase() && letter != '-');
        slugs.insert(rest[..end.unwrap()].to_owned());
    }
    slugs.remove("");
    for slug in [
        "validation",
        "malformed-request",
        "not-found",
        "method-not-allowed",
        "payload-too-large",
        "unsupported-media-type",
        "insufficient-stock",
        "reservation-not-held",
        "reservation-expired",
        "stock-below-held",
        "hold-limit",
        "idempotency-key-reused",
        "idempotency-key-in-use",
        "unauthorized",
        "forbidden",
        "rate-limited",
        "overloaded",
        "internal",
    ] {
        slugs.insert(slug.to_owned());
    }
    for slug in &slugs {
        let (status, content_type, page) = text(&client, &format!("/problems/{slug}")).await;
        assert_eq!(
            (status, content_type.starts_with("text/html")),
            (200, true),
            "{slug}"
        );
        assert!(page.contains(slug.as_str()));
        pages.push((slug.clone(), page));
    }
    for (name, page) in &pages {
        for load in [
            "src=\"http",
            "href=\"http",
            "url(http",
            "@import",
            "src=\"//",
            "href=\"//",
        ] {
            assert!(!page.contains(load), "{name} loads from elsewhere: {load}");
        }
    }
    let url = shop.server().url().to_owned();
    let head = raw::exchange(&url, &raw::request("GET", "/docs", &[], b""))
        .await
        .unwrap();
    assert!((300..400).contains(&head.status), "{head:?}");
}
