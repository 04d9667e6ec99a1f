//! Bodies, headers, paths and queries.

use serde_json::Value;

use super::{JSON, assert_unharmed, invalid, refused, with_member, with_quantity};
use crate::on_each_store;
use crate::raw::{self, exchange};
use crate::shop::Shop;

on_each_store!(
    what_is_not_json_is_refused_as_such,
    members_are_known_and_given_once,
    bodies_are_said_to_be_json_and_are_not_huge,
    paths_and_queries_keep_the_rule,
);

async fn what_is_not_json_is_refused_as_such(shop: &mut Shop) {
    let client = shop.client();
    client.put_stock("A", 1).await.expect(200);
    let deep =
        |opening: &str, closing: &str| opening.repeat(10_000) + "1" + &closing.repeat(10_000);
    for body in [
        String::new(),
        " ".to_owned(),
        "{".to_owned(),
        "nonsense".to_owned(),
        "{'lines':[]}".to_owned(),
        "{\"lines\":[],}".to_owned(),
        with_quantity("1") + "x",
        with_quantity("1") + "{}",
        "\u{feff}".to_owned() + &with_quantity("1"),
        deep("[", "]"),
        deep("{\"a\":", "}"),
        with_member(&format!("\"metadata\":{}", deep("[", "]"))),
        with_member(&format!("\"metadata\":{}", deep("{\"a\":", "}"))),
        "[".repeat(500_000),
    ] {
        let shown: String = body.chars().take(40).collect();
        let (status, slug, _) = refused(&client, &body).await;
        assert_eq!(
            (status, slug.as_str()),
            (400, "malformed-request"),
            "{shown}"
        );
    }
    assert_unharmed(shop).await;
}

async fn members_are_known_and_given_once(shop: &mut Shop) {
    let client = shop.client();
    client.put_stock("A", 1).await.expect(200);
    let many: Vec<String> = (0..51).map(|n| format!(r#""k{n}":"v""#)).collect();
    for (body, field) in [
        ("{}".to_owned(), "body"),
        ("[]".to_owned(), "body"),
        ("null".to_owned(), "body"),
        ("\"lines\"".to_owned(), "body"),
        (r#"{"lines":null}"#.to_owned(), "lines"),
        (r#"{"lines":{}}"#.to_owned(), "lines"),
        (r#"{"lines":[["A",1]]}"#.to_owned(), "lines[0]"),
        (r#"{"lines":[{"quantity":1}]}"#.to_owned(), "lines[0]"),
        (r#"{"lines":[{"sku":"A"}]}"#.to_owned(), "lines[0]"),
        (
            r#"{"lines":[{"sku":7,"quantity":1}]}"#.to_owned(),
            "lines[0].sku",
        ),
        (
            r#"{"lines":[{"sku":"A","quantity":1,"price":1}]}"#.to_owned(),
            "lines[0].price",
        ),
        (
            r#"{"lines":[{"sku":"A","sku":"A","quantity":1}]}"#.to_owned(),
            "lines[0]",
        ),
        (with_member(r#""Lines":[]"#), "Lines"),
        (with_member(r#""state":"paid""#), "state"),
        (with_member(r#""lines":[]"#), "body"),
        (
            with_member(r#""customer_id":"a","customer_id":"b""#),
            "body",
        ),
        (with_member(r#""metadata":{"a":1}"#), "metadata.a"),
        (with_member(r#""metadata":{"a":null}"#), "metadata.a"),
        (with_member(r#""metadata":{"a":"b","a":"c"}"#), "metadata"),
        (
            with_member(&format!(r#""metadata":{{{}}}"#, many.join(","))),
            "metadata",
        ),
        (
            with_member(r#""hold_seconds":60,"expires_at":"2099-01-01T00:00:00Z""#),
            "expires_at",
        ),
    ] {
        assert_eq!(refused(&client, &body).await, invalid(field), "{body}");
    }
    assert_unharmed(shop).await;
}

async fn bodies_are_said_to_be_json_and_are_not_huge(shop: &mut Shop) {
    let client = shop.client();
    client.put_stock("A", 1).await.expect(200);
    let url = shop.server().url().to_owned();
    let path = "/v1/reservations";
    let body = with_quantity("2");
    let send = async |headers: &[&str], body: &[u8]| {
        exchange(&url, &raw::post(path, headers, body))
            .await
            .unwrap()
    };
    for headers in [
        vec![],
        vec!["Content-Type: text/plain"],
        vec!["Content-Type: application/x-www-form-urlencoded"],
        vec!["Content-Type: application/jsonp"],
        vec!["Content-Type: "],
        vec![JSON, JSON],
        vec![JSON, "Content-Type: text/plain"],
    ] {
        let answer = send(&headers, body.as_bytes()).await;
        assert_eq!(answer.status, 415, "{headers:?}: {answer:?}");
        assert_eq!(answer.slug(), "unsupported-media-type");
    }
    for header in [
        JSON,
        "content-type: APPLICATION/JSON;charset=utf-8",
        "Content-Type:application/json ; x=y",
    ] {
        assert_eq!(
            send(&[header], body.as_bytes()).await.status,
            409,
            "{header}"
        );
    }
    // In pieces, and in pieces that are none.
    let chunked = ["Transfer-Encoding: chunked", JSON];
    let pieces = format!(
        "5\r\n{}\r\n{:x}\r\n{}\r\n0\r\n\r\n",
        &body[..5],
        body.len() - 5,
        &body[5..]
    );
    assert_eq!(send(&chunked, pieces.as_bytes()).await.status, 409);
    let answer = send(&chunked, b"zz\r\nnonsense").await;
    assert_eq!(
        (answer.status, answer.slug().as_str()),
        (400, "malformed-request")
    );

    // Announced as huge, huge without being announced, and just too large.
    let huge = vec![b' '; 50 << 20];
    let answer = send(&[JSON], &huge).await;
    assert_eq!(
        (answer.status, answer.slug().as_str()),
        (413, "payload-too-large")
    );
    let mut endless = Vec::with_capacity(51 << 20);
    for part in huge.chunks(65_536) {
        endless.extend_from_slice(format!("{:x}\r\n", part.len()).as_bytes());
        endless.extend_from_slice(part);
        endless.extend_from_slice(b"\r\n");
    }
    let answer = send(&chunked, &endless).await;
    assert_eq!(
        (answer.status, answer.slug().as_str()),
        (413, "payload-too-large")
    );
    let answer = send(&[JSON], &huge[..=(1 << 20)]).await;
    assert_eq!(answer.status, 413);
    // The largest that is taken.
    let padded = body.clone() + &" ".repeat((1 << 20) - body.len());
    assert_eq!(send(&[JSON], padded.as_bytes()).await.status, 409);
    assert_unharmed(shop).await;
}

/// What does not get as far as a handler is refused as well, and the process goes on.
async fn paths_and_queries_keep_the_rule(shop: &mut Shop) {
    let client = shop.client();
    client.put_stock("A", 1).await.expect(200);
    let url = shop.server().url().to_owned();
    let get = async |path: &str| {
        exchange(&url, &raw::request("GET", path, &[], b""))
            .await
            .unwrap()
    };
    let long = format!("/v1/stock/{}", "x".repeat(129));
    for (path, field) in [
        ("/v1/stock/%00", "sku"),
        ("/v1/stock/a%00b", "sku"),
        ("/v1/stock/%FF", "sku"),
        ("/v1/stock/%ED%A0%80", "sku"),
        ("/v1/stock/%C0%AF", "sku"),
        ("/v1/stock/%20", "sku"),
        ("/v1/stock/%2E%2E", "sku"),
        ("/v1/stock/..", "sku"),
        ("/v1/stock/.", "sku"),
        ("/v1/stock/e%CC%81", "sku"),
        ("/v1/stock/a%E2%80%AEb", "sku"),
        (&long, "sku"),
        ("/v1/stock/A?location=%00", "location"),
        ("/v1/stock/A?location=%FF", "location"),
        ("/v1/stock/A?location=", "location"),
        ("/v1/stock/A?location=a&location=a", "location"),
        ("/v1/stock/A?locaton=a", "locaton"),
        ("/v1/stock?sku=%00", "sku"),
        ("/v1/reservations?customer_id=%00", "customer_id"),
        ("/v1/reservations?customer_id=%E2%80%AE", "customer_id"),
        ("/v1/reservations?reference=%ED%A0%80", "reference"),
        ("/v1/reservations?state=HELD", "state"),
        ("/v1/reservations?limit=1&limit=1", "limit"),
        ("/v1/reservations?page=2", "page"),
        ("/v1/events?cursor=1", "cursor"),
    ] {
        let answer = get(path).await;
        assert_eq!(
            (answer.status, answer.slug().as_str()),
            (422, "validation"),
            "{path}"
        );
        assert_eq!(answer.json()["errors"][0]["field"], field, "{path}");
    }
    for path in [
        "/v1/stock/A/",
        "/v1/stock//",
        "/v1/stock/A/B",
        "/v1",
        "/v2/stock/A",
        "//v1/stock/A",
        "/v1/reservations/",
        "/v1/reservations/1",
        "/v1/reservations/%00",
        "/v1/reservations/%FF",
        "/v1/reservations/rsv_81jdz3x9k2e5qs8v4m7n6p0r1t",
        "/v1/reservations/RSV_01JDZ3X9K2E5QS8V4M7N6P0R1T",
        "/v1/reservations/rsv_01jdz3x9k2e5qs8v4m7n6p0r1t",
        "/problems/nothing",
        "/problems/%00",
        "/docs/%2e%2e%2fCargo.toml",
        "/docs/../../../../etc/passwd",
    ] {
        let answer = get(path).await;
        assert_eq!(
            (answer.status, answer.slug().as_str()),
            (404, "not-found"),
            "{path}"
        );
    }
    // A slash and a question mark in a SKU are letters like others, if they are encoded.
    for sku in [
        "a/b",
        "a?b#c",
        "a%2Fb",
        "a+b c",
        "ä/咖啡",
        "a;b=c",
        "-",
        "%",
    ] {
        client.put_stock(sku, 3).await.expect(200);
        let stock = client.get_stock(sku).await.expect(200);
        assert_eq!(stock["sku"], sku);
        let listed = client.get(&["stock"], &[("sku", sku)]).await.expect(200);
        assert_eq!(listed["items"].as_array().unwrap().len(), 1, "{sku}");
    }
    let answer = exchange(&url, &raw::request("DELETE", "/v1/stock/A", &[], b""))
        .await
        .unwrap();
    assert_eq!(
        (answer.status, answer.slug().as_str()),
        (405, "method-not-allowed")
    );
    let allow = answer.head.to_lowercase();
    let allow = allow
        .lines()
        .find(|line| line.starts_with("allow: "))
        .unwrap_or_default()
        .to_owned();
    assert!(allow.contains("get") && allow.contains("put"), "{allow}");
    // What is no HTTP gets no answer, or a refusal.
    for bytes in [
        b"\0\0\0\0\r\n\r\n".as_slice(),
        b"GET /v1/stock/\0 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /v1/stock/\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /v1/reservations HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/reservations HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n{}{}{}",
        b"POST /v1/reservations HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999\r\n\r\n",
        b"GET /v1/stock/A HTTP/9.9\r\n\r\n",
    ] {
        let answer = exchange(&url, bytes).await;
        let status = answer.map_or(400, |answer| answer.status);
        assert!((400..500).contains(&status), "{status}: {}", String::from_utf8_lossy(bytes));
    }
    let headers = format!("X-Long: {}", "x".repeat(1 << 20));
    let answer = exchange(&url, &raw::request("GET", "/v1/stock/A", &[&headers], b"")).await;
    assert!(answer.is_none_or(|answer| (400..500).contains(&answer.status)));
    let stock: Value = client.get_stock("A").await.expect(200);
    assert_eq!(stock["on_hand"], 1);
    assert_unharmed(shop).await;
}
