//! Idempotency-Key: the same request has one effect and one answer, and another request none of it.

use reqwest::Method;
use serde_json::json;
use sqlx::{Connection as _, Executor as _};

use crate::on_each_store;
use crate::shop::{Kind, Shop, at_once, id_of, with_status};
use crate::world::client::{Answer, Client};

on_each_store!(
    the_same_request_gets_the_same_answer,
    however_the_same_json_is_written_it_is_the_same_request,
    another_request_under_the_key_is_refused,
    fifty_at_once_make_one_hold,
    what_is_no_key_is_refused,
    refusals_are_remembered_and_faults_are_not,
);

const BODY: &str = r#"{"lines":[{"sku":"A","quantity":1}],"hold_seconds":600,"reference":"r"}"#;

/// A POST of these bytes under these keys.
async fn post(client: &Client, path: &str, keys: &[&[u8]], body: &str) -> Answer {
    let mut request = client
        .request(Method::POST, path)
        .header("Content-Type", "application/json")
        .body(body.to_owned());
    for key in keys {
        request = request.header("Idempotency-Key", *key);
    }
    client.send(request).await
}

async fn reserve(client: &Client, key: &str, body: &str) -> Answer {
    post(client, "/v1/reservations", &[key.as_bytes()], body).await
}

async fn holds(shop: &Shop) -> i64 {
    shop.count("select count(*) from reservations").await
}

async fn the_same_request_gets_the_same_answer(shop: &mut Shop) {
    let client = shop.client();
    client.put_stock("A", 10).await.expect(200);
    let first = reserve(&client, "k1", BODY).await;
    assert_eq!(first.status, 201);
    assert!(!first.is_replayed());
    let location = first.header("location").unwrap().to_owned();
    assert_eq!(location, format!("/v1/reservations/{}", id_of(&first.body)));
    // Also after what it made has moved on, and after a restart.
    client
        .cancel(id_of(&first.body), json!({}))
        .await
        .expect(200);
    let client = shop.restart(&[]).await;
    for key in ["k1", "\"k1\""] {
        let again = reserve(&client, key, BODY).await;
        assert!(again.is_replayed());
        assert_eq!((again.status, &again.body), (201, &first.body));
        assert_eq!(again.header("location"), Some(location.as_str()));
        assert_eq!(again.header("content-type"), first.header("content-type"));
    }
    assert_eq!(holds(shop).await, 1);
    // A key is no key where it says nothing, and another key is another request.
    assert!(!reserve(&client, "k2", BODY).await.is_replayed());
    assert_eq!(
        post(&client, "/v1/reservations", &[], BODY).await.status,
        201
    );
    assert_eq!(holds(shop).await, 3);
}

async fn however_the_same_json_is_written_it_is_the_same_request(shop: &mut Shop) {
    let client = shop.client();
    client.put_stock("A", 10).await.expect(200);
    let first = reserve(&client, "k", BODY).await.expect(201);
    for same in [
        r#"{"reference":"r","hold_seconds":600,"lines":[{"quantity":1,"sku":"A"}]}"#,
        "{ \"lines\" : [\n{\"sku\":\"A\" ,\t\"quantity\":1 } ],\r\n\"hold_seconds\":600, \"reference\":\"r\" }",
        r#"{"lines":[{"sku":"\u0041","quantity":1}],"hold_seconds":600,"reference":"\u0072"}"#,
    ] {
        let again = reserve(&client, "k", same).await;
        assert!(again.is_replayed(), "{same}");
        assert_eq!(again.body, first);
    }
    assert_eq!(holds(shop).await, 1);
}

/// fossasia/eventyay#602: the same key with another request got the stored answer.
async fn another_request_under_the_key_is_refused(shop: &mut Shop) {
    let client = shop.client();
    client.put_stock("A", 10).await.expect(200);
    let first = reserve(&client, "k", BODY).await.expect(201);
    let cancel = format!("/v1/reservations/{}/cancel", id_of(&first));
    let checkout = format!("/v1/reservations/{}/checkout", id_of(&first));
    let adjust = "/v1/stock/A/adjustments";
    for (path, body) in [
        (
            "/v1/reservations",
            r#"{"lines":[{"sku":"A","quantity":2}],"hold_seconds":600,"reference":"r"}"#,
        ),
        (
            "/v1/reservations",
            r#"{"lines":[{"sku":"A","quantity":1}],"hold_seconds":600}"#,
        ),
        (
            "/v1/reservations",
            r#"{"lines":[{"sku":"A","quantity":1}],"hold_seconds":600,"reference":"R"}"#,
        ),
        (cancel.as_str(), "{}"),
        (&checkout, "{}"),
        (adjust, r#"{"delta":1}"#),
    ] {
        let other = post(&client, path, &[b"k"], body).await;
        assert_eq!(
            other.refusal(),
            (422, "idempotency-key-reused"),
            "{path} {body}"
        );
    }
    let read = client.get_reservation(id_of(&first)).await.expect(200);
    assert_eq!(read, first, "nothing has happened");

    // The query counts as well, in any order.
    let first = post(
        &client,
        "/v1/stock/A/adjustments?location=here",
        &[b"q"],
        r#"{"delta":5}"#,
    )
    .await;
    assert_eq!(first.status, 200);
    let again = post(
        &client,
        "/v1/stock/A/adjustments?location=here",
        &[b"q"],
        r#"{"delta":5}"#,
    )
    .await;
    assert!(again.is_replayed());
    let other = post(
        &client,
        "/v1/stock/A/adjustments?location=there",
        &[b"q"],
        r#"{"delta":5}"#,
    )
    .await;
    assert_eq!(other.refusal(), (422, "idempotency-key-reused"));
    // A PUT is the same however often it is sent; a key on it says nothing.
    let put = client
        .request(Method::PUT, "/v1/stock/A")
        .header("Idempotency-Key", "k")
        .json(&json!({ "on_hand": 7 }));
    assert_eq!(client.send(put).await.expect(200)["on_hand"], 7);
}

/// josipmusa/idempotency4j#12: two of the same at the same time.
async fn fifty_at_once_make_one_hold(shop: &mut Shop) {
    let mut clients = shop.clients();
    if shop.kind() == Kind::Postgres {
        clients.push(shop.start(&[]));
    }
    clients[0].put_stock("A", 50).await.expect(200);
    for round in 0..4 {
        let key = format!("round-{round}");
        let answers = at_once((0..50).map(|n| {
            let (client, key) = (clients[n % clients.len()].clone(), key.clone());
            async move { reserve(&client, &key, BODY).await }
        }))
        .await;
        assert_eq!(with_status(&answers, 201), 50);
        let first = &answers[0].body;
        assert!(answers.iter().all(|answer| &answer.body == first));
        let fresh = answers
            .iter()
            .filter(|answer| !answer.is_replayed())
            .count();
        assert_eq!(fresh, 1, "one made it, and the others were told");
        assert_eq!(holds(shop).await, round + 1);
    }
}

/// grimurrash/test-task2#73: two equal header lines became one new key.
async fn what_is_no_key_is_refused(shop: &mut Shop) {
    let client = shop.client();
    client.put_stock("A", 10).await.expect(200);
    let huge = vec![b'k'; 10 * 1_024];
    let too_long = vec![b'k'; 256];
    let cases: [&[&[u8]]; 12] = [
        &[b"k", b"k"],
        &[b"k", b"l"],
        &[b""],
        &[b"\"\""],
        &[b"k, k"],
        &[b"two words"],
        &[b"\"open"],
        &["ké".as_bytes()],
        &["\"ké\"".as_bytes()],
        &[b"\xff\xfe"],
        &[&huge],
        &[&too_long],
    ];
    for keys in cases {
        let refused = post(&client, "/v1/reservations", keys, BODY).await;
        let shown: Vec<_> = keys
            .iter()
            .map(|key| String::from_utf8_lossy(&key[..key.len().min(9)]))
            .collect();
        assert_eq!(refused.refusal(), (400, "malformed-request"), "{shown:?}");
        assert_eq!(refused.field(), "Idempotency-Key", "{shown:?}");
    }
    assert_eq!(holds(shop).await, 0);
    assert_eq!(shop.count("select count(*) from idempotency").await, 0);
    let longest = vec![b'k'; 255];
    assert_eq!(
        post(&client, "/v1/reservations", &[&longest], BODY)
            .await
            .status,
        201
    );
}

async fn refusals_are_remembered_and_faults_are_not(shop: &mut Shop) {
    let client = shop.client();
    // What was decided is remembered, whatever has become of the stock since.
    client.put_stock("A", 0).await.expect(200);
    let refused = reserve(&client, "none", BODY).await;
    assert_eq!(refused.refusal(), (409, "insufficient-stock"));
    client.put_stock("A", 10).await.expect(200);
    let again = reserve(&client, "none", BODY).await;
    assert!(again.is_replayed());
    assert_eq!((again.status, &again.body), (409, &refused.body));
    assert_eq!(
        again.header("content-type"),
        Some("application/problem+json")
    );

    let too_long = BODY.replace("600", "9000000000");
    let refused = reserve(&client, "long", &too_long).await;
    assert_eq!(refused.refusal(), (422, "hold-limit"));
    let again = reserve(&client, "long", &too_long).await;
    assert!(again.is_replayed());
    assert_eq!(again.body, refused.body, "with the clock of the first time");

    // What cannot be read or is not there is not: the key is still free.
    for (key, path, body, status) in [
        ("bad", "/v1/reservations", "{", 400),
        ("wrong", "/v1/reservations", r#"{"lines":[]}"#, 422),
        (
            "lost",
            "/v1/reservations/rsv_01jdz3x9k2e5qs8v4m7n6p0r1t/cancel",
            "{}",
            404,
        ),
    ] {
        assert_eq!(
            post(&client, path, &[key.as_bytes()], body).await.status,
            status
        );
        let made = reserve(&client, key, BODY).await;
        assert_eq!((made.status, made.is_replayed()), (201, false), "{key}");
    }
}

/// A fault of the moment is not pinned to the key.
#[tokio::test(flavor = "multi_thread")]
async fn a_503_leaves_the_key_free() {
    let settings = [("HOLDFAST_REQUEST_TIMEOUT_SECONDS", "1")];
    let shop = Shop::open(Kind::Postgres, 1, &settings).await;
    let client = shop.client();
    client.put_stock("A", 10).await.expect(200);
    let mut stranger = shop.postgres().await;
    stranger
        .execute("begin; select * from stock for update")
        .await
        .unwrap();
    let refused = reserve(&client, "k", BODY).await;
    assert_eq!(refused.refusal(), (503, "overloaded"));
    assert!(refused.header("retry-after").is_some());
    stranger.close().await.unwrap();

    let made = reserve(&client, "k", BODY).await;
    assert_eq!(made.status, 201);
    let again = reserve(&client, "k", BODY).await;
    assert!(again.is_replayed());
    assert_eq!(again.body, made.body);
    assert_eq!(holds(&shop).await, 1);
    shop.close().await;
}
