//! What each scope may do, and what somebody may not learn who may not do it.

use reqwest::{Method, RequestBuilder};
use serde_json::json;

use crate::house::{House, PATIENCE, until_status};
use crate::on_each_store;
use crate::world::client::Client;
use crate::world::contract::{DOCUMENT, seen};

on_each_store!(
    each_operation_takes_its_scope,
    somebody_elses_hold_is_not_seen_and_not_touched,
);

/// Which scopes are enough for each operation below `/v1`; the operator's always is.
const TABLE: [(&str, &[&str]); 18] = [
    ("create_reservation", &["checkout"]),
    ("get_reservation", &["checkout"]),
    ("list_reservations", &["checkout"]),
    ("extend_reservation", &["checkout"]),
    ("checkout_reservation", &["checkout"]),
    ("cancel_reservation", &["checkout"]),
    ("set_stock", &["inventory"]),
    ("adjust_stock", &["inventory"]),
    ("get_stock", &["checkout", "inventory"]),
    ("list_stock", &["checkout", "inventory"]),
    ("list_events", &["checkout", "inventory"]),
    ("run_relay", &[]),
    ("run_sweep", &[]),
    ("list_quarantine", &[]),
    ("get_quarantine", &[]),
    ("replay_quarantine", &[]),
    ("replay_quarantines", &[]),
    ("dismiss_quarantine", &[]),
];

const UNKNOWN_HOLD: &str = "rsv_01jdz3x9k2e5qs8v4m7n6p0r1t";

/// Every operation of the document: its id, whether it takes a key, and a way to ask for it.
fn operations(client: &Client) -> Vec<(String, bool, RequestBuilder)> {
    let mut found = Vec::new();
    for (path, item) in DOCUMENT["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let method: Method = method.to_uppercase().parse().unwrap();
            let path = path.replace("{id}", UNKNOWN_HOLD).replace("{sku}", "A");
            let takes_key = path.starts_with("/v1/");
            // Queues sign what they deliver.
            if path.starts_with("/v1/deliveries/") {
                continue;
            }
            let mut request = client.request(method.clone(), &path);
            if method != Method::GET {
                request = request.json(&json!({}));
            }
            let id = operation["operationId"].as_str().unwrap().to_owned();
            found.push((id, takes_key, request));
        }
    }
    found
}

async fn each_operation_takes_its_scope(house: House) {
    let scopes = ["checkout", "inventory", "operator"];
    let (server, clients) = house.with_keys(scopes, &[]);
    let mut seen = 0;
    for (scope, client) in scopes.into_iter().zip(&clients) {
        for (id, takes_key, request) in operations(client) {
            let answer = client.send(request).await;
            if !takes_key {
                assert!(![401, 403].contains(&answer.status), "{id}: {answer:?}");
                continue;
            }
            let row = TABLE.iter().find(|(known, _)| *known == id);
            let (_, enough) = row.unwrap_or_else(|| panic!("{id} is not in the table"));
            if scope == "operator" || enough.contains(&scope) {
                assert!(![401, 403].contains(&answer.status), "{id}: {answer:?}");
                seen += 1;
            } else {
                assert_eq!(answer.refusal(), (403, "forbidden"), "{id} by {scope}");
                let detail = answer.body["detail"].as_str().unwrap();
                assert!(
                    enough.iter().all(|scope| detail.contains(scope)),
                    "{detail}"
                );
            }
        }
    }
    assert_eq!(seen, 9 + 5 + 18, "some operation was not asked for");
    // Without a key, with a wrong one, and with one that almost is.
    let nobody = server.client();
    for client in [&nobody, &nobody.holding("hf_wrong"), &nobody.holding("x")] {
        for (id, takes_key, request) in operations(client) {
            let answer = client.send(request).await;
            if takes_key {
                assert_eq!(answer.refusal(), (401, "unauthorized"), "{id}");
                assert_eq!(answer.header("www-authenticate"), Some("Bearer"), "{id}");
            } else {
                assert_ne!(answer.status, 401, "{id}");
            }
        }
    }
    for path in [
        "/docs/",
        "/openapi.json",
        "/problems",
        "/problems/forbidden",
    ] {
        let answer = nobody.send(nobody.request(Method::GET, path)).await;
        assert_eq!(answer.status, 200, "{path}");
    }
    // Nor is it told what is there and what is not.
    for path in ["/v1/nothing", "/v1"] {
        let answer = nobody.send(nobody.request(Method::GET, path)).await;
        assert_eq!(answer.refusal(), (401, "unauthorized"), "{path}");
    }
    let request = clients[1].request(Method::GET, "/v1/nothing");
    assert_eq!(clients[1].send(request).await.status, 404);
    // A key may have several scopes.
    let both = house.make_key("both", &["inventory", "checkout"]);
    let both = server.client().holding(&both.secret);
    until_status(PATIENCE, 200, async || both.put_stock("A", 1).await).await;
    both.reserve_one("A", 1, 60).await.expect(201);
}

/// What the document says of the door, every operation does.
#[tokio::test(flavor = "multi_thread")]
async fn every_documented_refusal_is_given() {
    let house = House::on_sqlite();
    let server = house.start(&[]);
    for (id, _, request) in operations(&server.client()) {
        let elsewhere = request.header("Host", "shop.example");
        let answer = server.client().send(elsewhere).await;
        assert_eq!(answer.refusal(), (403, "forbidden"), "{id}");
    }
    assert!(server.terminate().await.success());
    let settings = [("HOLDFAST_RATE_LIMIT", "1"), ("HOLDFAST_RATE_BURST", "1")];
    let (server, [operator]) = house.with_keys(["operator"], &settings);
    for (id, takes_key, request) in operations(&server.client()) {
        if takes_key {
            assert_eq!(server.client().send(request).await.status, 401, "{id}");
        }
    }
    for (_, takes_key, request) in operations(&operator) {
        if takes_key {
            let ask = async || operator.send(request.try_clone().unwrap()).await;
            until_status(PATIENCE, 429, ask).await;
        }
    }
    for (path, item) in DOCUMENT["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            for status in [401, 403, 429] {
                let documented = operation["responses"][status.to_string()].is_object();
                let is_signed = path.starts_with("/v1/deliveries/");
                let operation = format!("{method} {path}");
                assert!(
                    is_signed || documented == (seen(&operation, status) > 0),
                    "{operation}: {status}"
                );
            }
        }
    }
}

/// rangelovkiril/rampme-software#100, calcom/cal.diy PR 29383: a list leaked the secret by which
/// holds are cancelled, and any caller could release any hold.
async fn somebody_elses_hold_is_not_seen_and_not_touched(house: House) {
    let keys = ["checkout", "inventory"].map(|scope| house.make_key(scope, &[scope]));
    let server = house.start(&[("HOLDFAST_LOG", "trace")]);
    let [shop, stock] = [0, 1].map(|n| server.client().holding(&keys[n].secret));
    stock.put_stock("A", 5).await.expect(200);
    let held = shop.reserve_one("A", 1, 600).await.expect(201);
    let id = held["id"].as_str().unwrap();
    // Whoever may not see holds is told the same of one that exists as of one that does not.
    for hold in [id, UNKNOWN_HOLD] {
        for answer in [
            stock.get_reservation(hold).await,
            stock.cancel(hold, json!({})).await,
            stock.extend(hold, json!({ "extend_seconds": 9 })).await,
            stock.checkout(hold, json!({})).await,
        ] {
            assert_eq!(answer.refusal(), (403, "forbidden"));
            let said = answer.body["detail"].as_str().unwrap();
            assert_eq!(said, "The key does not have the scope `checkout`.");
        }
    }
    let cursor = shop.list_reservations(&[("limit", "1")]).await;
    assert_eq!(cursor.status, 200);
    assert_eq!(stock.list_reservations(&[]).await.status, 403);
    assert_eq!(shop.put_stock("A", 0).await.status, 403);
    let still = shop.get_reservation(id).await.expect(200);
    assert_eq!(still["state"], "held");
    assert_eq!(stock.get_stock("A").await.expect(200)["on_hand"], 5);
    // No secret is where somebody else might read it.
    let events = shop.list_events(0, 100).await.body.to_string();
    let listed = house.run(&["keys", "list"]);
    let listed = String::from_utf8(listed.stdout).unwrap();
    for key in &keys {
        assert!(listed.contains(&key.id), "{listed}");
        for text in [&events, &listed, &server.log().join("\n")] {
            assert!(!text.contains(&key.secret[3..]));
        }
    }
    if let Some(directory) = house.directory() {
        for file in std::fs::read_dir(directory.path()).unwrap() {
            let bytes = std::fs::read(file.unwrap().path()).unwrap();
            for key in &keys {
                let secret = &key.secret.as_bytes()[3..];
                assert!(!bytes.windows(secret.len()).any(|part| part == secret));
            }
        }
    }
}
