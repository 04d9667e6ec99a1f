//! Answers that no proper queue gives, from a server that speaks no HTTP of its own.

use std::sync::{Arc, Mutex};

use holdfast::domain::Timestamp;
use holdfast::queue::{Fault, Publication, Queue as _, Receipt};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::service::{NOON_MS, Stand, TOKEN, message, rest};

/// A server that answers every request with these bytes and closes the connection, and what it was
/// sent first.
pub async fn answering(answer: impl Into<Vec<u8>>) -> (String, Arc<Mutex<String>>) {
    let answer = answer.into();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let asked = Arc::new(Mutex::new(String::new()));
    let record = Arc::clone(&asked);
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            let mut request = vec![0; 65_536];
            let length = connection.read(&mut request).await.unwrap_or(0);
            *record.lock().unwrap() = String::from_utf8_lossy(&request[..length]).into_owned();
            // A client that has seen enough closes first.
            let _ = connection.write_all(&answer).await;
        }
    });
    (url, asked)
}

pub fn http(status: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{headers}\r\n{body}")
}

async fn publish(url: &str) -> Result<Receipt, Fault> {
    let batch = [Publication {
        message: message(1),
        delay_ms: 1_999,
    }];
    let now = Timestamp::from_millis(NOON_MS).unwrap();
    let mut answers = rest(url, "pull", TOKEN).publish(&batch, now).await;
    answers.remove(0)
}

#[tokio::test]
async fn garbage_is_tried_again_later() {
    let huge = format!("{{\"data\":{{\"message_id\":\"{}\"}}}}", "m".repeat(70_000));
    for answer in [
        String::new(),
        "hello".to_owned(),
        "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"data\":".to_owned(),
        http("200 OK", "", ""),
        http("200 OK", "", "<html>welcome</html>"),
        http("200 OK", "", "{}"),
        http("200 OK", "", r#"{"data":{"message_id":7}}"#),
        http("204 No Content", "", ""),
        http("200 OK", "", &huge),
        http("502 Bad Gateway", "", "\u{1b}[31mred\r\nlines"),
    ] {
        let (url, _) = answering(answer.clone()).await;
        let fault = publish(&url).await.unwrap_err();
        let start: String = answer.chars().take(80).collect();
        assert!(matches!(fault, Fault::Backoff(_)), "{start}: {fault:?}");
        let said = fault.to_string();
        assert!(
            said.len() < 1_000 && !said.contains(char::is_control),
            "{said}"
        );
        assert!(!said.contains(TOKEN), "{said}");
    }
}

#[tokio::test]
async fn a_date_without_a_clock_of_its_own_is_read_by_ours() {
    let date = "Retry-After: Tue, 01 Dec 2026 12:00:05 GMT\r\n";
    let (url, _) = answering(http("503 Busy", date, "")).await;
    let fault = publish(&url).await.unwrap_err();
    let Fault::RetryAfter { wait, .. } = &fault else {
        panic!("{fault:?}");
    };
    assert_eq!(wait.as_millis(), 4_750);
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let stand = Stand::start("pull").await;
    let elsewhere = format!(
        "Location: http://{}/v1/queue/publish\r\n",
        stand.emulator.address()
    );
    for status in ["301 Moved", "307 Elsewhere", "308 Elsewhere"] {
        let (url, _) = answering(http(status, &elsewhere, "")).await;
        let fault = publish(&url).await.unwrap_err();
        assert!(matches!(fault, Fault::Backoff(_)), "{fault:?}");
    }
    assert_eq!(stand.stats().published, 0);
    assert_eq!(stand.stats().refused.len(), 0);
}

#[tokio::test]
async fn what_is_sent_is_what_the_protocol_says() {
    let (url, asked) = answering(http("200 OK", "", r#"{"data":{"message_id":"m1"}}"#)).await;
    assert_eq!(publish(&url).await, Ok(Receipt("m1".to_owned())));
    let asked = asked.lock().unwrap().clone();
    let (head, body) = asked.split_once("\r\n\r\n").unwrap();
    let head = head.to_lowercase();
    assert!(
        head.starts_with("post /v1/queue/publish http/1.1\r\n"),
        "{head}"
    );
    for header in [
        "\r\nauthorization: bearer a-token\r\n".to_owned(),
        "\r\ncontent-type: application/json\r\n".to_owned(),
        format!("\r\nidempotency-key: {}\r\n", message(1).key()),
    ] {
        assert!(head.contains(&header), "{header} is missing in {head}");
    }
    let payload = message(1).payload();
    let expected = format!(r#"{{"queue":"holds","payload":{payload},"delay_seconds":1}}"#);
    assert_eq!(body, expected);
}

#[tokio::test]
async fn a_discovery_that_does_not_fit_is_found() {
    let document = r#"{"method":"PUT","path":"/v2/publish","request_schema":{"required":["tenant"],
        "properties":{"queue":{},"payload":{},"delay_seconds":{"maximum":900}}}}"#;
    let (url, _) = answering(http("200 OK", "", document)).await;
    let findings = rest(&url, "pull", TOKEN).check().await.unwrap();
    let said = findings.mismatches.join("\n");
    for word in ["PUT", "/v2/publish", "`tenant`", "900 s"] {
        assert!(said.contains(word), "{word} is missing: {said}");
    }
    let (url, _) = answering(http("404 Not Found", "", "nobody here")).await;
    let fault = rest(&url, "pull", TOKEN).check().await.unwrap_err();
    assert!(fault.to_string().contains("404"), "{fault}");
}
