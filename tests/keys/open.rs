//! Without keys: open to this machine, and not to the web pages that are looked at on it.

use reqwest::Method;
use serde_json::json;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::house::House;

/// What comes back for these bytes on a connection that the server closes.
async fn raw(url: &str, request: &str) -> String {
    let address = url.trim_start_matches("http://");
    let mut connection = TcpStream::connect(address).await.unwrap();
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_is_not_this_machine_is_refused() {
    let house = House::on_sqlite();
    let server = house.start(&[]);
    let client = server.client();
    let ask = async |path: &str, host: &str| {
        let request = client.request(Method::GET, path).header("Host", host);
        client.send(request).await
    };
    for host in ["localhost", "localhost:8080", "127.0.0.1", "[::1]:8080"] {
        ask("/v1/events", host).await.expect(200);
    }
    for host in ["shop.example", "localhost.shop.example:80", "192.0.2.1"] {
        for path in ["/v1/events", "/readyz", "/docs/"] {
            let answer = ask(path, host).await;
            assert_eq!(answer.refusal(), (403, "forbidden"), "{path} of {host}");
            assert!(answer.body["detail"].as_str().unwrap().contains("`Host`"));
        }
    }
    // Two names, or another one in the target, are no way round.
    for (target, hosts) in [
        ("/v1/events", "Host: localhost\r\nHost: shop.example"),
        ("http://shop.example/v1/events", "Host: localhost"),
    ] {
        let request = format!("GET {target} HTTP/1.1\r\n{hosts}\r\nConnection: close\r\n\r\n");
        let answer = raw(server.url(), &request).await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{target}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_somebody_else_changes_nothing() {
    let house = House::on_sqlite();
    let server = house.start(&[("HOLDFAST_CORS_ORIGINS", "https://shop.example")]);
    let client = server.client();
    let ask = async |method: Method, path: &str, origin: &str| {
        let request = client.request(method, path).header("Origin", origin);
        client.send(request.json(&json!({ "delta": 1 }))).await
    };
    let adjust = "/v1/stock/A/adjustments";
    for origin in ["https://evil.example", "null", "http://127.0.0.1:1"] {
        let answer = ask(Method::POST, adjust, origin).await;
        assert_eq!(answer.refusal(), (403, "forbidden"), "{origin}");
        assert!(answer.body["detail"].as_str().unwrap().contains("`Origin`"));
    }
    client.get_stock("A").await.expect(404);
    // The pages of the service itself, and those that are named.
    for origin in [server.url(), "https://shop.example"] {
        ask(Method::POST, adjust, origin).await.expect(200);
    }
    // To read is what the browser itself forbids.
    let answer = ask(Method::GET, "/v1/stock/A", "https://evil.example").await;
    assert_eq!(answer.header("access-control-allow-origin"), None);
    assert_eq!(answer.expect(200)["on_hand"], 2);
}
