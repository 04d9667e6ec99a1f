//! What is refused before it reaches the engine, by the path of the field.

use axum::body::Body;
use axum::http::{HeaderValue, Method};

use super::{RESERVATION, RESERVATIONS, Service, json, request};

fn lines(line: &str) -> String {
    format!(r#"{{"lines":[{line}]}}"#)
}

/// A creation whose line is fine and that has one more member.
fn creation(member: &str) -> String {
    format!(r#"{{"lines":[{{"sku":"A","quantity":1}}],{member}}}"#)
}

/// Each body of a creation, with the slug and the field it is refused with.
async fn refuses(cases: &[(String, &str, &str)]) {
    let service = Service::empty();
    for (body, slug, field) in cases {
        let answered = service.post(RESERVATIONS, body.clone()).await;
        let shown: String = body.chars().take(100).collect();
        let expected = ((*slug).to_owned(), (*field).to_owned());
        assert_eq!(answered.fault(), expected, "{shown} {:?}", answered.json());
        assert!(answered.body.len() < 2_000, "{shown}");
    }
}

#[tokio::test]
async fn what_is_right_reaches_the_engine() {
    let service = Service::empty();
    for body in [
        lines(r#"{"sku":"A","quantity":1}"#),
        lines(r#"{"sku":"A","quantity":1000000000,"location":"b"}"#),
        creation(r#""hold_seconds":1"#),
        creation(r#""hold_seconds":9223372036854775807"#),
        creation(r#""expires_at":"2026-12-01t12:00:00.123456789+05:30""#),
        creation(r#""hold_seconds":null,"expires_at":null,"customer_id":null,"metadata":null"#),
        creation(r#""metadata":{"a":"b","c":"d"}"#),
        creation(r#""customer_id":"\u00e9\ud83d\ude00""#),
    ] {
        let answered = service.post(RESERVATIONS, body.clone()).await;
        assert!(answered.reached_the_engine(), "{body} {answered:?}");
    }
}

/// saleor/saleor#12771, woocommerce/woocommerce-ios#313: quantities that no number type holds.
#[tokio::test]
async fn a_quantity_is_an_integer_in_range() {
    let digits = "9".repeat(400);
    let quantities = [
        "-1",
        "0",
        "1.5",
        "1.0",
        "\"5\"",
        "1e3",
        "1000000001",
        "2147483648",
        "9007199254740993",
        "9223372036854775808",
        "18446744073709551616",
        &digits,
        "1e308",
        "1e400",
        "null",
        "true",
        "[1]",
        "{}",
        "-9223372036854775809",
    ];
    let cases: Vec<_> = quantities
        .iter()
        .map(|quantity| {
            let line = format!(r#"{{"sku":"A","quantity":{quantity}}}"#);
            (lines(&line), "validation", "lines[0].quantity")
        })
        .collect();
    refuses(&cases).await;
    refuses(&[
        (
            lines(r#"{"sku":"A","quantity":NaN}"#),
            "malformed-request",
            "lines[0].quantity",
        ),
        (
            lines(r#"{"sku":"A","quantity":01}"#),
            "malformed-request",
            "lines[0].quantity",
        ),
    ])
    .await;
}

/// backbay-labs/clawdstrike#80, kube-rs/kube#1488: a duration from outside ended the process.
#[tokio::test]
async fn a_duration_is_a_positive_integer() {
    for seconds in [
        "-1",
        "0",
        "1e308",
        "1.5",
        "\"PT15M\"",
        "9223372036854775808",
    ] {
        refuses(&[(
            creation(&format!(r#""hold_seconds":{seconds}"#)),
            "validation",
            "hold_seconds",
        )])
        .await;
        let answered = Service::empty()
            .post(
                &format!("{RESERVATION}/extend"),
                format!(r#"{{"extend_seconds":{seconds}}}"#),
            )
            .await;
        assert_eq!(answered.fault().1, "extend_seconds", "{seconds}");
    }
}

/// mojaloop/project#514: what an instant without a zone means is not for us to guess.
#[tokio::test]
async fn an_instant_is_rfc_3339_with_an_offset() {
    let cases: Vec<_> = [
        r#""2026-12-01T12:00:00""#,
        r#""2026-12-01T12:00:60Z""#,
        r#""10000-01-01T00:00:00Z""#,
        r#""1969-12-31T23:59:59Z""#,
        r#""2026-02-30T12:00:00Z""#,
        r#""2026-12-01""#,
        "1796126400",
        r#""""#,
    ]
    .iter()
    .map(|instant| {
        let body = creation(&format!(r#""expires_at":{instant}"#));
        (body, "validation", "expires_at")
    })
    .collect();
    refuses(&cases).await;
}

/// brianc/node-postgres#2080, magda-io/magda#3161: text that the database refuses.
#[tokio::test]
async fn text_keeps_the_rule_wherever_it_stands() {
    let long = "x".repeat(1_000_000);
    let service = Service::empty();
    let texts = [
        r"a\u0000b",
        r"a\u001fb",
        r"a\u0085b",
        r"a\u202eb",
        " a",
        "a ",
        "",
        ".",
        "..",
        r"e\u0301",
        &long,
    ];
    for text in texts {
        refuses(&[
            (
                lines(&format!(r#"{{"sku":"{text}","quantity":1}}"#)),
                "validation",
                "lines[0].sku",
            ),
            (
                lines(&format!(
                    r#"{{"sku":"A","quantity":1}},{{"sku":"A","quantity":1,"location":"{text}"}}"#
                )),
                "validation",
                "lines[1].location",
            ),
            (
                creation(&format!(r#""customer_id":"{text}""#)),
                "validation",
                "customer_id",
            ),
            (
                creation(&format!(r#""reference":"{text}""#)),
                "validation",
                "reference",
            ),
            (
                creation(&format!(r#""metadata":{{"note":"{text}"}}"#)),
                "validation",
                "metadata.note",
            ),
        ])
        .await;
        let pair = creation(&format!(r#""metadata":{{"{text}":"note"}}"#));
        let (slug, field) = service.post(RESERVATIONS, pair).await.fault();
        assert!(slug == "validation" && field.starts_with("metadata.") && field.len() < 2_000);
        for (uri, member) in [("cancel", "reason"), ("checkout", "payment_reference")] {
            let body = format!(r#"{{"{member}":"{text}"}}"#);
            let answered = service.post(&format!("{RESERVATION}/{uri}"), body).await;
            assert_eq!(answered.fault(), ("validation".into(), member.into()));
        }
    }
}

#[tokio::test]
async fn what_is_not_json_is_malformed() {
    let nested = "[".repeat(1_000) + &"]".repeat(1_000);
    refuses(&[
        ("{".to_owned(), "malformed-request", "body"),
        (String::new(), "malformed-request", "body"),
        ("nonsense".to_owned(), "malformed-request", "body"),
        (lines("{}") + "{}", "malformed-request", "body"),
        ("{\"lines\":[],}".to_owned(), "malformed-request", "body"),
        (
            lines(r#"{"sku":"\ud800","quantity":1}"#),
            "malformed-request",
            "lines[0].sku",
        ),
        (
            lines("{\"sku\":\"a\0b\",\"quantity\":1}"),
            "malformed-request",
            "lines[0].sku",
        ),
        (nested.clone(), "malformed-request", "body"),
        (lines(&nested), "malformed-request", "body"),
        (
            creation(&format!(r#""metadata":{nested}"#)),
            "malformed-request",
            "body",
        ),
        (
            format!(r#"{{"colour":{nested}}}"#),
            "malformed-request",
            "body",
        ),
        // The unknown member comes first, and the rest is not JSON.
        (r#"{"colour":1,"#.to_owned(), "malformed-request", "body"),
    ])
    .await;

    let answered = Service::empty()
        .post(RESERVATIONS, b"{\"lines\":[{\"sku\":\"\xff\"}]}".to_vec())
        .await;
    assert_eq!(answered.slug(), "malformed-request");
}

#[tokio::test]
async fn members_are_known_and_stand_once() {
    let many: Vec<_> = (0..51).map(|n| format!(r#""n{n}":"v""#)).collect();
    let line = r#"{"sku":"A","quantity":1}"#;
    refuses(&[
        ("{}".to_owned(), "validation", "body"),
        ("[]".to_owned(), "validation", "body"),
        ("null".to_owned(), "validation", "body"),
        (r#"{"lines":[]}"#.to_owned(), "validation", "lines"),
        (r#"{"lines":{}}"#.to_owned(), "validation", "lines"),
        (lines(r#"["A",1,"default"]"#), "validation", "lines[0]"),
        (lines(r#"{"sku":"A"}"#), "validation", "lines[0]"),
        (lines(&vec![line; 1_001].join(",")), "validation", "lines"),
        (creation(r#""colour":"red""#), "validation", "colour"),
        (
            lines(r#"{"sku":"A","quantity":1,"colour":"red"}"#),
            "validation",
            "lines[0].colour",
        ),
        (
            creation(r#""customer_id":"a","customer_id":"a""#),
            "validation",
            "body",
        ),
        (
            lines(r#"{"sku":"A","quantity":1,"quantity":2}"#),
            "validation",
            "lines[0]",
        ),
        (
            creation(r#""metadata":{"a":"b","a":"b"}"#),
            "validation",
            "metadata",
        ),
        (
            creation(&format!(r#""metadata":{{{}}}"#, many.join(","))),
            "validation",
            "metadata",
        ),
        (
            creation(r#""metadata":{"a":1}"#),
            "validation",
            "metadata.a",
        ),
        (creation(r#""metadata":[]"#), "validation", "metadata"),
        (
            creation(r#""hold_seconds":1,"expires_at":"2026-12-01T12:00:00Z""#),
            "validation",
            "expires_at",
        ),
    ])
    .await;
}

#[tokio::test]
async fn the_other_bodies_are_read_as_strictly() {
    let service = Service::empty();
    for (uri, body, field) in [
        ("extend", "{}", "extend_seconds"),
        (
            "extend",
            r#"{"extend_seconds":1,"expires_at":"2026-12-01T12:00:00Z"}"#,
            "expires_at",
        ),
        ("checkout", r#"{"on_expired":"maybe"}"#, "on_expired"),
        (
            "checkout",
            r#"{"on_expired":{"reject":null}}"#,
            "on_expired",
        ),
        ("checkout", r#"{"payment":"pi_1"}"#, "payment"),
        ("cancel", r#"{"reason":7}"#, "reason"),
    ] {
        let answered = service.post(&format!("{RESERVATION}/{uri}"), body).await;
        assert_eq!(
            answered.fault(),
            ("validation".into(), field.into()),
            "{body}"
        );
    }
    for (body, field) in [
        (r#"{"delta":0}"#, "delta"),
        (r#"{"delta":1000000000001}"#, "delta"),
        (r#"{"delta":-1000000000001}"#, "delta"),
        (r#"{"delta":1.5}"#, "delta"),
        ("{}", "body"),
    ] {
        let answered = service.post("/v1/stock/A/adjustments", body).await;
        assert_eq!(
            answered.fault(),
            ("validation".into(), field.into()),
            "{body}"
        );
    }
    for on_hand in ["-1", "1000000000001", "\"1\"", "null", "1e2"] {
        let body = format!(r#"{{"on_hand":{on_hand}}}"#);
        let put = json(Method::PUT, "/v1/stock/A")
            .body(Body::from(body))
            .unwrap();
        let answered = service.send(put).await;
        assert_eq!(answered.fault(), ("validation".into(), "on_hand".into()));
    }
}

#[tokio::test]
async fn a_checkout_and_a_cancel_need_no_body() {
    let service = Service::empty();
    for (uri, content_type, body, reaches) in [
        ("checkout", None, "", true),
        ("cancel", None, "", true),
        ("checkout", Some("application/json"), "{}", true),
        (
            "cancel",
            Some("application/json; charset=utf-8"),
            "{}",
            true,
        ),
        ("checkout", Some("application/json"), "", false),
        ("extend", None, "", false),
    ] {
        let mut post = request(Method::POST, &format!("{RESERVATION}/{uri}"));
        if let Some(content_type) = content_type {
            post = post.header("Content-Type", content_type);
        }
        let answered = service.send(post.body(Body::from(body)).unwrap()).await;
        assert_eq!(answered.reached_the_engine(), reaches, "{uri} {body}");
        assert!(reaches || answered.slug() == "malformed-request");
    }
}

#[tokio::test]
async fn a_body_is_said_to_be_json_and_is_not_huge() {
    let service = Service::empty();
    for content_type in [
        None,
        Some("text/plain"),
        Some("application/jsonp"),
        Some("\u{e9}"),
    ] {
        let mut post = request(Method::POST, RESERVATIONS);
        if let Some(content_type) = content_type {
            let value = HeaderValue::from_bytes(content_type.as_bytes()).unwrap();
            post = post.header("Content-Type", value);
        }
        let answered = service.send(post.body(Body::from("{}")).unwrap()).await;
        assert_eq!(
            answered.slug(),
            "unsupported-media-type",
            "{content_type:?}"
        );
    }
    let twice = json(Method::POST, RESERVATIONS)
        .header("Content-Type", "application/json")
        .body(Body::from("{}"))
        .unwrap();
    assert_eq!(service.send(twice).await.slug(), "unsupported-media-type");

    let huge = vec![b' '; 50 << 20];
    assert_eq!(
        service.post(RESERVATIONS, huge).await.slug(),
        "payload-too-large"
    );
    let over = vec![b' '; (1 << 20) + 1];
    assert_eq!(
        service.post(RESERVATIONS, over).await.slug(),
        "payload-too-large"
    );
    let just = vec![b' '; 1 << 20];
    assert_eq!(
        service.post(RESERVATIONS, just).await.slug(),
        "malformed-request"
    );
}

#[tokio::test]
async fn a_bad_idempotency_key_is_malformed() {
    let service = Service::empty();
    for keys in [vec!["a", "a"], vec![""], vec!["\"\""], vec!["a, b"]] {
        let mut post = json(Method::POST, RESERVATIONS);
        for key in &keys {
            post = post.header("Idempotency-Key", *key);
        }
        let body = lines(r#"{"sku":"A","quantity":1}"#);
        let answered = service.send(post.body(Body::from(body)).unwrap()).await;
        let expected = ("malformed-request".into(), "Idempotency-Key".into());
        assert_eq!(answered.fault(), expected, "{keys:?}");
    }
}
