//! Input that breaks a rule, sent to a real process: the exact status, slug and field; and then the
//! process still lives and has not panicked.

mod requests;
mod values;

use reqwest::Method;

use crate::shop::Shop;
use crate::world::client::{Answer, Client};

/// The most units of a row of stock.
const MOST: i64 = 1_000_000_000_000;

const JSON: &str = "Content-Type: application/json";

async fn post(client: &Client, path: &str, body: impl Into<reqwest::Body>) -> Answer {
    let request = client
        .request(Method::POST, path)
        .header("Content-Type", "application/json")
        .body(body);
    client.send(request).await
}

/// Sends a new reservation, and tells status, slug and field of the refusal.
async fn refused(client: &Client, body: &str) -> (u16, String, String) {
    let answer = post(client, "/v1/reservations", body.to_owned()).await;
    let slug = answer.problem().unwrap_or_default().to_owned();
    (answer.status, slug, answer.field().to_owned())
}

fn invalid(field: &str) -> (u16, String, String) {
    (422, "validation".to_owned(), field.to_owned())
}

fn malformed(field: &str) -> (u16, String, String) {
    (400, "malformed-request".to_owned(), field.to_owned())
}

/// A reservation of which one thing is written like this.
fn with_quantity(quantity: &str) -> String {
    format!(r#"{{"lines":[{{"sku":"A","quantity":{quantity}}}]}}"#)
}

fn with_member(member: &str) -> String {
    format!(r#"{{"lines":[{{"sku":"A","quantity":1}}],{member}}}"#)
}

/// Nothing was made by all that, and the process answers as before.
async fn assert_unharmed(shop: &mut Shop) {
    assert_eq!(shop.count("select count(*) from reservations").await, 0);
    assert!(!shop.server().has_ended());
    let client = shop.client();
    client.put_stock("A", 1).await.expect(200);
    client.reserve_one("A", 1, 600).await.expect(201);
    let log = shop.server().log();
    assert!(
        !log.iter()
            .any(|line| line.contains("panic") || line.contains("ERROR")),
        "{log:#?}"
    );
}
