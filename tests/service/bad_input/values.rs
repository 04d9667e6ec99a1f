//! Numbers, time spans and text.

use reqwest::Method;
use serde_json::json;

use super::{MOST, assert_unharmed, invalid, malformed, post, refused, with_member, with_quantity};
use crate::on_each_store;
use crate::shop::{Shop, id};

on_each_store!(
    a_quantity_is_a_whole_number_that_fits,
    units_do_not_overflow_by_adding_up,
    a_time_span_is_a_whole_number_that_fits,
    text_keeps_the_rule_wherever_it_comes_in,
);

/// saleor/saleor#12771, woocommerce/woocommerce-ios#313: numbers that a type did not hold.
async fn a_quantity_is_a_whole_number_that_fits(shop: &mut Shop) {
    let client = shop.client();
    client.put_stock("A", 1_000_000_000_000).await.expect(200);
    let digits = "9".repeat(400);
    for quantity in [
        "-1",
        "0",
        "1.5",
        "1.0",
        "\"5\"",
        "1e3",
        "1E0",
        "-0",
        "1000000001",
        "2147483648",
        "9007199254740993",
        "9223372036854775807",
        "9223372036854775808",
        "18446744073709551616",
        "-9223372036854775809",
        "1e308",
        "1e400",
        "-1e400",
        &digits,
        "null",
        "true",
        "[1]",
        "{}",
    ] {
        let body = with_quantity(quantity);
        assert_eq!(
            refused(&client, &body).await,
            invalid("lines[0].quantity"),
            "{quantity}"
        );
    }
    for quantity in [
        "NaN", "Infinity", "01", "+1", "0x10", "1_000", ".5", "1.", "١",
    ] {
        let (status, slug, _) = refused(&client, &with_quantity(quantity)).await;
        assert_eq!(
            (status, slug.as_str()),
            (400, "malformed-request"),
            "{quantity}"
        );
    }
    for (path, name) in [("/v1/stock/A/adjustments", "delta")] {
        for number in [
            "0",
            "1.5",
            "1e3",
            "1000000000001",
            "-1000000000001",
            "9223372036854775808",
            &digits,
        ] {
            let answer = post(&client, path, format!(r#"{{"{name}":{number}}}"#)).await;
            assert_eq!(answer.refusal(), (422, "validation"), "{number}");
            assert_eq!(answer.field(), name);
        }
    }
    for number in [
        "-1",
        "1.5",
        "1e3",
        "1000000000001",
        "9223372036854775808",
        "\"1\"",
        "null",
        &digits,
    ] {
        let request = client
            .request(Method::PUT, "/v1/stock/A")
            .header("Content-Type", "application/json")
            .body(format!(r#"{{"on_hand":{number}}}"#));
        let answer = client.send(request).await;
        assert_eq!(answer.refusal(), (422, "validation"), "{number}");
        assert_eq!(answer.field(), "on_hand");
    }
    assert_unharmed(shop).await;
}

/// open-mercato/open-mercato#925: a sum of two allowed numbers overflowed.
async fn units_do_not_overflow_by_adding_up(shop: &mut Shop) {
    let client = shop.client();
    client.put_stock("A", MOST).await.expect(200);
    let more = client.adjust_stock("A", 1).await;
    assert_eq!(more.refusal(), (422, "validation"));
    assert_eq!(more.field(), "delta");
    assert_eq!(
        client.adjust_stock("A", MOST).await.refusal(),
        (422, "validation")
    );
    assert_eq!(
        client.adjust_stock("NEW", -1).await.refusal(),
        (409, "stock-below-held")
    );
    client.get_stock("NEW").await.expect(404);

    // A thousand lines of the largest quantity on one row are what a row can hold, and no more.
    let line = json!({ "sku": "A", "quantity": 1_000_000_000 });
    let all = json!({ "lines": vec![line.clone(); 1_000], "hold_seconds": 600 });
    let all = id(client.reserve(all).await);
    let stock = client.get_stock("A").await.expect(200);
    assert_eq!(
        (&stock["held"], &stock["available"]),
        (&json!(MOST), &json!(0))
    );
    let more = client.reserve(json!({ "lines": [line, line, line] })).await;
    assert_eq!(more.refusal(), (409, "insufficient-stock"));
    assert_eq!(more.body["short"][0]["requested"], 3_000_000_000_i64);
    client.cancel(&all, json!({})).await.expect(200);

    let line = r#"{"sku":"A","quantity":1}"#;
    for many in [0, 1_001, 10_001] {
        let body = format!(r#"{{"lines":[{}]}}"#, vec![line; many].join(","));
        assert_eq!(
            refused(&client, &body).await,
            invalid("lines"),
            "{many} lines"
        );
    }
    assert!(!shop.server().has_ended());
}

/// backbay-labs/clawdstrike#80, kube-rs/kube#1488: a time span from outside ended the process.
async fn a_time_span_is_a_whole_number_that_fits(shop: &mut Shop) {
    let client = shop.client();
    client.put_stock("A", 1).await.expect(200);
    let digits = "9".repeat(400);
    for seconds in [
        "-1",
        "0",
        "1.5",
        "1e3",
        "1e308",
        "\"PT15M\"",
        "\"900\"",
        "9223372036854775808",
        &digits,
        "-9223372036854775808",
        "[]",
        "true",
    ] {
        let body = with_member(&format!(r#""hold_seconds":{seconds}"#));
        assert_eq!(
            refused(&client, &body).await,
            invalid("hold_seconds"),
            "{seconds}"
        );
    }
    // What is a number of seconds, and no hold that anybody may have.
    for seconds in [
        "2592001",
        "2147483647",
        "2147483648",
        "9007199254740992",
        "9223372036854775807",
    ] {
        let body = with_member(&format!(r#""hold_seconds":{seconds}"#));
        let limit = (422, "hold-limit".to_owned(), String::new());
        assert_eq!(refused(&client, &body).await, limit, "{seconds}");
    }
    for limit in [
        "0",
        "-1",
        "1001",
        "1.5",
        "1e2",
        "99999999999999999999",
        "",
        "ten",
        "%00",
    ] {
        for path in ["reservations", "stock", "events"] {
            let path = format!("/v1/{path}?limit={limit}");
            let answer = client.send(client.request(Method::GET, &path)).await;
            assert_eq!(
                (answer.refusal(), answer.field()),
                ((422, "validation"), "limit"),
                "{path}"
            );
        }
    }
    for after in ["-1", "9223372036854775808", "1e3", "x"] {
        let path = format!("/v1/events?after={after}");
        let answer = client.send(client.request(Method::GET, &path)).await;
        assert_eq!(
            (answer.refusal(), answer.field()),
            ((422, "validation"), "after"),
            "{path}"
        );
    }
    let past_the_end = client.list_events(i64::MAX, 1_000).await.expect(200);
    assert_eq!(past_the_end["items"], json!([]));
    assert_unharmed(shop).await;
}

/// brianc/node-postgres#2080, magda-io/magda#3161: text that the database refuses became a 500.
async fn text_keeps_the_rule_wherever_it_comes_in(shop: &mut Shop) {
    let client = shop.client();
    client.put_stock("A", 1).await.expect(200);
    let reservation = "/v1/reservations/rsv_01jdz3x9k2e5qs8v4m7n6p0r1t";
    let megabyte = "x".repeat(1_000_000);
    for text in [
        r"a\u0000b",
        r"\u0000",
        r"a\u001f",
        r"a\u007f",
        r"a\u0085",
        r"a\n",
        r"a\u202eb",
        r"\u2066a",
        r"\u200fa",
        " a",
        "a ",
        r"\u00a0a",
        "",
        ".",
        "..",
        r"e\u0301",
        &megabyte,
    ] {
        let shown = &text[..text.len().min(20)];
        for (body, field) in [
            (
                with_quantity("1").replace("\"A\"", &format!("\"{text}\"")),
                "lines[0].sku",
            ),
            (
                format!(r#"{{"lines":[{{"sku":"A","quantity":1,"location":"{text}"}}]}}"#),
                "lines[0].location",
            ),
            (
                with_member(&format!(r#""customer_id":"{text}""#)),
                "customer_id",
            ),
            (
                with_member(&format!(r#""reference":"{text}""#)),
                "reference",
            ),
            (
                with_member(&format!(r#""metadata":{{"k":"{text}"}}"#)),
                "metadata.k",
            ),
        ] {
            assert_eq!(refused(&client, &body).await, invalid(field), "{shown}");
        }
        let (status, slug, field) = refused(
            &client,
            &with_member(&format!(r#""metadata":{{"{text}":"v"}}"#)),
        )
        .await;
        assert_eq!((status, slug.as_str()), (422, "validation"), "{shown}");
        assert!(
            field.starts_with("metadata") && field.len() < 500,
            "{field}"
        );
        for (action, member) in [("cancel", "reason"), ("checkout", "payment_reference")] {
            let path = format!("{reservation}/{action}");
            let answer = post(&client, &path, format!(r#"{{"{member}":"{text}"}}"#)).await;
            assert_eq!(
                (answer.refusal(), answer.field()),
                ((422, "validation"), member),
                "{shown}"
            );
        }
        let body = format!(r#"{{"delta":1,"reason":"{text}"}}"#);
        let answer = post(&client, "/v1/stock/A/adjustments", body).await;
        assert_eq!(
            (answer.refusal(), answer.field()),
            ((422, "validation"), "reason"),
            "{shown}"
        );
    }
    // Half of a pair, a raw NUL, and bytes that are no text are not JSON.
    for text in [r"\ud800", r"\udc00\ud800", "a\0b", "a\nb"] {
        let body = with_member(&format!(r#""customer_id":"{text}""#));
        assert_eq!(
            refused(&client, &body).await,
            malformed("customer_id"),
            "{text:?}"
        );
    }
    for bytes in [
        b"\xff".as_slice(),
        b"\xc0\x80",
        b"\xed\xa0\x80",
        b"\xf5\x80\x80\x80",
        b"\xe2\x82",
    ] {
        let body = [br#"{"lines":[{"sku":""#, bytes, br#"","quantity":1}]}"#].concat();
        let answer = post(&client, "/v1/reservations", body).await;
        assert_eq!(answer.refusal(), (400, "malformed-request"), "{bytes:?}");
    }
    assert_unharmed(shop).await;
}
